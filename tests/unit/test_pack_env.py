"""`percola pack-env`: what is in a packed environment, and how its Python starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from commands import call, is_error

from percola.platform import packing
from percola.platform.packing import PackError, pack

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
PATH = f"{sys.base_prefix}/bin:/usr/bin:/bin"


def unpacked(folder: Path, *packages: str, python: str | None = None) -> Path:
    """The Python of an environment with Percola's core and these packages, unpacked."""
    packed = pack(folder / "env.tar.gz", packages, python, extras=())
    (folder / "elsewhere").mkdir()
    subprocess.run(["tar", "-xzf", packed.file, "-C", folder / "elsewhere"], check=True)
    packed.file.unlink()
    return folder / "elsewhere" / "bin" / "python"


def started(python: Path, program: str, **more: str) -> subprocess.CompletedProcess[str]:
    dropped = ("PYTHONPATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return subprocess.run(
        [python, "-c", program],
        env={**kept, "PATH": PATH, **more},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for packages, from which Python imports."""
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def install(site: Path, name: str, *requires: str, editable: str | None = None) -> None:
    module = name.replace("-", "_")
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0", "Provides-Extra: fast"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {r}" for r in requires)]))
    files = [f"{info.name}/METADATA", f"{info.name}/RECORD", "../../../bin/command"]
    if editable is None:
        (site / f"{module}.py").write_text(f"NAME = {name!r}\n")
        files.append(f"{module}.py")
    else:
        (site / f"_{module}.pth").write_text(editable)
        (info / "direct_url.json").write_text('{"dir_info": {"editable": true}, "url": "file:"}')
        files += [f"_{module}.pth", f"{info.name}/direct_url.json"]
    (info / "RECORD").write_text("".join(f"{one},,\n" for one in files))


def test_its_python_has_percola_wherever_it_is_unpacked(tmp_path: Path) -> None:
    python = unpacked(tmp_path)
    program = "import sys, percola, click; print(percola.__file__, click.__file__, sys.path[1])"
    done = started(python, program, PYTHONPATH="/of/spark")
    assert done.returncode == 0, done.stderr
    site = tmp_path / "elsewhere" / "lib" / f"python{VERSION}" / "site-packages"
    places = [str(site / "percola" / "__init__.py"), str(site / "click" / "__init__.py")]
    # Spark's own paths come first: its PySpark is the one to use.
    assert done.stdout.split() == [*places, "/of/spark"]


def test_a_machine_without_that_python_is_told_which_is_needed(tmp_path: Path) -> None:
    done = started(unpacked(tmp_path, python="/nowhere/python3"), "print(1)")
    assert done.returncode == 127 and done.stdout == ""
    assert f"needs Python {VERSION}, and this machine has none" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_packages_are_packed_with_what_they_require_but_nothing_of_spark(
    tmp_path: Path, installed: Path
) -> None:
    fast, old = "quick-part; extra == 'fast'", "not-there>=1; python_version < '3'"
    install(installed, "our-program", "Middle_Part[fast]>=1", "pyspark[sql]>=4", old)
    install(installed, "middle-part", fast, "slow-part; extra == 'slow'", "py4j")
    for name in ("quick-part", "slow-part", "other-part"):
        install(installed, name)
    packed = pack(tmp_path / "env.tgz", ["our-program"], extras=())
    assert {"our-program", "middle-part", "quick-part", "percola", "click"} <= set(packed.packages)
    assert not {"slow-part", "other-part", "pyspark", "py4j"} & set(packed.packages)
    with tarfile.open(packed.file) as archive:
        names = archive.getnames()
    assert f"lib/python{VERSION}/site-packages/quick_part.py" in names
    assert not [one for one in names if "command" in one.rsplit("/", 1)[-1] and "bin/" in one]
    assert not [one for one in names if one.endswith(".pyc")]


def test_an_editable_package_is_packed_as_its_sources(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "src" / "ours").mkdir(parents=True)
    (tmp_path / "src" / "ours" / "__init__.py").write_text("WORD = 'here'\n")
    install(installed, "ours", editable=f"{tmp_path / 'src'}\n")
    done = started(unpacked(tmp_path, "ours"), "import ours; print(ours.WORD, ours.__file__)")
    word, place = done.stdout.split()
    assert word == "here" and place.startswith(str(tmp_path / "elsewhere")), done.stderr


def test_an_editable_package_found_by_a_program_is_refused(tmp_path: Path, installed: Path) -> None:
    install(installed, "hooked", editable="import _hooked_finder\n")
    with pytest.raises(PackError, match=r"hooked is installed in editable mode.*cannot be packed"):
        pack(tmp_path / "env.tar.gz", ["hooked"], extras=())
    assert not list(tmp_path.glob("*env.tar.gz*"))


def test_an_older_archive_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").write_text("older")
    pack(tmp_path / "env.tar.gz", extras=())
    assert tarfile.is_tarfile(tmp_path / "env.tar.gz")
    assert [one.name for one in tmp_path.iterdir()] == ["env.tar.gz"]


def test_the_extras_are_those_that_tasks_need() -> None:
    needed = packing._needed([f"percola[{','.join(packing.EXTRAS)}]"])
    assert {"pyarrow", "pandas", "lmdb", "tantivy", "kazoo"} <= set(needed)
    # Executors export to OpenSearch and make spans, too.
    assert {"opensearch-py", "opentelemetry-sdk"} <= set(needed)
    assert not {"pyspark", "py4j", "pytest", "hypothesis", "mypy"} & set(needed)


def test_the_command_refuses_mistakes_in_a_sentence(tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    assert is_error(call("pack-env", tmp_path / "env.zip"), "must be called .tar.gz")
    assert is_error(call("pack-env", tmp_path / "no" / "env.tgz"), "There is no folder")
    unknown = call("pack-env", "--with", "no-such-package", archive)
    assert is_error(unknown, "no-such-package is not installed")
    assert is_error(call("pack-env", "--python", "a b", archive), "no path of an interpreter")

"""The unit files in `deploy/systemd`: systemd takes them, and percola takes what they run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from needs import lack, need

from percola.cli.root import cli

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
INSTALLED = "/opt/percola/.venv/bin/percola"


def settings(text: str) -> dict[str, str]:
    """NAME=VALUE of an environment file, those as well that are offered behind a #."""
    found = re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.MULTILINE)
    return {name: " ".join(shlex.split(value)) for name, value in found}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    need("systemd")
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        lack("systemd", "There is no systemd-analyze here to read unit files with.")
    here = tmp_path / unit.name
    text = unit.read_text()
    assert INSTALLED in text
    here.write_text(text.replace(INSTALLED, str(Path(sys.executable).with_name("percola"))))
    found = subprocess.run([analyze, "verify", here], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_percola_knows_the_command_and_the_example_names_what_it_takes(unit: Path) -> None:
    known = settings((FOLDER / "percola.env.example").read_text())
    [command] = re.findall(rf"^ExecStart={INSTALLED} (.*)$", unit.read_text(), re.MULTILINE)
    names = re.findall(r"\$\{(\w+)\}", command)
    assert set(names) <= known.keys()
    command = command.replace("%i", "99")  # The instance.
    name, *words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda one: known[one[1]], command))
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    context = found.make_context(name, words, resilient_parsing=False)
    assert context.params
    assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_every_setting_of_the_example_is_one_that_percola_reads() -> None:
    sources = (Path(__file__).parents[2] / "src" / "percola").rglob("*.py")
    read = "".join(path.read_text() for path in sources) + "JAVA_HOME"
    read += "".join(unit.read_text() for unit in UNITS)
    # Names are put together there: PERCOLA_ORACLE_ and CA.
    for name in settings((FOLDER / "percola.env.example").read_text()):
        prefix, _, last = name.rpartition("_")
        assert name in read or (f"{prefix}_" in read and f'"{last}"' in read), name


def test_the_docs_name_every_variable_of_the_environment_that_percola_reads() -> None:
    """How a repository with an address gets the credential for ZooKeeper, none of them said."""
    root = Path(__file__).parents[2]
    sources = "".join(path.read_text() for path in (root / "src" / "percola").rglob("*.py"))
    pages = "".join(path.read_text() for path in (root / "docs").glob("*.md"))
    names = {name for name in re.findall(r"PERCOLA_[A-Z_]+", sources) if not name.endswith("_")}
    assert len(names) > 10
    assert [name for name in sorted(names) if name not in pages] == []


def test_no_two_units_of_a_machine_listen_on_one_port_and_prometheus_asks_the_workers() -> None:
    """As with percola-serve on the port that percola-worker@2 had for its metrics."""
    commands = {
        unit.name: re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)[0]
        for unit in UNITS
    }
    worker = commands.pop("percola-worker@.service")
    of_workers = [
        int(port)
        for number in range(1, 100)
        for port in re.findall(r"port (\d+)", worker.replace("%i", str(number)))
    ]
    of_others = [
        int(port) for one in commands.values() for port in re.findall(r"(?:port |:)(\d+)", one)
    ]
    ports = [*of_workers, *of_others]
    assert len(of_workers) == 99 and len(of_others) == 4
    assert len(set(ports)) == len(ports) and max(ports) < 2**16

    scrape = (FOLDER.parent / "prometheus" / "percola.scrape.yml").read_text()
    [job] = re.findall(r"job_name: percola-worker\n(?:.*\n)*?.*targets: \[(.*)\]", scrape)
    assert [int(port) for port in re.findall(r":(\d+)", job)] == of_workers[:2]


def test_a_unit_that_may_write_nowhere_says_how_it_may_write_a_repository_in_a_folder() -> None:
    """Opening a folder writes: with the unit as it is, that was 'Read-only file system'."""
    for unit in UNITS:
        text = unit.read_text()
        assert "\nProtectSystem=strict\n" in text
        opens = re.search(r"/percola (worker|serve) ", text) is not None
        assert ("\n#ReadWritePaths=/" in text) == opens, unit.name
    page = (FOLDER.parents[1] / "docs" / "scaling.md").read_text()
    assert "`ReadWritePaths=`" in page


def test_the_commands_of_the_docs_install_them(tmp_path: Path) -> None:
    root = FOLDER.parents[1]
    section = (root / "docs" / "scaling.md").read_text().partition("## As services")[2]
    [commands] = re.findall(r"(?:^    .*\n)+", section.partition("\n## ")[0], re.MULTILINE)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    script = "useradd() { :; }; chown() { :; }; systemctl() { :; }\n"
    script += commands.replace(" /etc/", f" {tmp_path}/etc/")
    done = subprocess.run(["sh", "-euc", script], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    made = {path.name for path in (tmp_path / "etc/percola").iterdir()}
    assert made == {"percola.env", "token", "serve.token"}

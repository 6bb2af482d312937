"""What an installation without extras says, and that each extra brings what its modules import.

The wheel is built and installed into environments of its own; what it depends on is linked there
from this one.
"""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from needs import lack, need
from packaging.requirements import Requirement

import webindex

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 180
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMES: Final = {"percola.testing.simulation": "percola.testing", "percola.serve": "percola serve"}
SERVE: Final = (
    "Error: percola serve needs the Python package anyio: install it with "
    "pip install 'percola[serve]'.\n"
)
SERVERS: Final = "'percola[{},zookeeper]'"


def closure(asked: Iterable[str]) -> set[str]:
    """The distributions that requirements bring, by name."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(line) for line in asked]
    while todo:
        wanted = todo.pop()
        for extra in ("", *wanted.extras):
            if (wanted.name, extra) in found:
                continue
            found.add((wanted.name, extra))
            lines = (
                [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]
                if wanted.name == "percola"
                else metadata.requires(wanted.name) or []
            )
            for one in map(Requirement, lines):
                if one.marker is None or one.marker.evaluate({"extra": extra}):
                    todo.append(one)
    return {name for name, _ in found} - {"percola"}


Install = Callable[..., Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=SECONDS)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Make an environment as `pip install 'percola[extras]'` does; the folder of its programs."""

    def make(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=False)
        [site] = folder.glob("lib/python*/site-packages")
        for name in closure([f"percola[{','.join(extras)}]"]):
            distribution = metadata.distribution(name)
            for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    os.symlink(str(distribution.locate_file(top)), site / top)
        command = [Path(sys.executable).with_name("uv"), "pip", "install", "--offline", "--no-deps"]
        subprocess.run(
            [*command, "--quiet", "--python", folder / "bin" / "python", wheel],
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
        return folder / "bin"

    return make


@pytest.fixture(scope="module")
def bare(install: Install) -> Path:
    return install()


def run(programs: Path, name: str, *arguments: str, **more: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of an installed program."""
    hidden = ("PYTHONPATH", "PERCOLA_REPO", "PERCOLA_ORACLE_TOKEN_FILE")
    done = subprocess.run(
        [programs / name, *arguments],
        cwd=programs,
        env={name: value for name, value in os.environ.items() if name not in hidden} | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["search", "--help"], ["search", "word"], ["no-such-command"]]
)
def test_webindex_without_its_extra_says_how_to_install_it(
    bare: Path, arguments: list[str]
) -> None:
    sentence = (
        r"Error: webindex needs the Python package \w+: install it with "
        r"pip install 'percola\[webindex\]'\.\n"
    )
    for program in (("webindex",), ("python", "-m", "webindex")):
        status, out, said = run(bare, *program, *arguments)
        assert (status, out) == (1, "")
        assert re.fullmatch(sentence, said), said


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("percola.serve", "anyio", "serve"),
        ("percola.spark", "pyspark", "spark"),
        ("percola.testing", "hypothesis", "testing"),
        ("percola.testing.simulation", "hypothesis", "testing"),
    ],
)
def test_a_package_without_its_extra_raises_an_import_error_that_names_it(
    bare: Path, module: str, package: str, extra: str
) -> None:
    status, _, said = run(bare, "python", "-c", f"import {module}")
    assert status == 1
    assert said.splitlines()[-1] == (
        f"ImportError: {NAMES.get(module, module)} needs the Python package {package}: "
        f"install it with pip install 'percola[{extra}]'."
    )


@pytest.mark.parametrize(
    ("scheme", "package", "arguments"),
    [
        ("hbase", "jpype", ["status"]),
        ("bigtable", "grpc", ["status"]),
        ("hbase", "jpype", ["oracle", "--listen", "127.0.0.1:0"]),
    ],
)
def test_a_repository_on_servers_without_the_extras_names_all_of_them(
    bare: Path, scheme: str, package: str, arguments: list[str]
) -> None:
    address = f"{scheme}://a/b?oracle=127.0.0.1:9&zookeeper=127.0.0.1:9"
    status, _, said = run(bare, "percola", "--repo", address, *arguments)
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("Error: ")
    extras = SERVERS.format(scheme)
    assert said.endswith(
        f"needs the Python package {package}: install it with pip install {extras}.\n"
    )


def test_percola_without_extras_works_on_a_folder(bare: Path, tmp_path: Path) -> None:
    repo = str(tmp_path / "repo")
    assert run(bare, "percola", "--repo", repo, "init", "--column", "docs.title:str")[0] == 0
    assert run(bare, "percola", "--repo", repo, "set", "row", "title", "x")[0] == 0
    assert run(bare, "percola", "--repo", repo, "get", "row", "title")[:2] == (0, "x\n")
    for command in ("dev-cluster", "hbase-jars", "worker", "oracle", "serve"):
        assert run(bare, "percola", command, "--help")[0] == 0
    assert run(bare, "percola", "--repo", repo, "serve") == (1, "", SERVE)


MODULES: Final = {
    "bigtable": ["percola.store.bigtable.store"],
    "hbase": ["percola.store.hbase.store"],
    "oracle": [
        "percola.coordination.lock_service.client",
        "percola.oracle.client",
        "percola.oracle.server",
    ],
    "opensearch": ["opensearchpy"],
    "otel": ["percola.transactions.spans", "opentelemetry.exporter.otlp.proto.http.trace_exporter"],
    "serve": ["percola.serve"],
    "spark": ["percola.spark", "pyspark_percola"],
    "testing": ["percola.testing", "percola.testing.simulation"],
    "zookeeper": ["percola.coordination.zookeeper.coordination"],
    "webindex": [
        one.name
        for one in pkgutil.walk_packages(webindex.__path__, "webindex.")
        if not one.name.endswith("__main__")
    ],
}


def test_every_extra_is_looked_at() -> None:
    # What `bench` brings is for this repository's own benchmarks, which are not installed.
    assert {*MODULES} == {*PROJECT["optional-dependencies"]} - {"bench"}


@pytest.mark.parametrize("extra", sorted(MODULES))
def test_an_extra_brings_all_that_its_modules_import(install: Install, extra: str) -> None:
    programs = install(extra)
    status, _, said = run(programs, "python", "-c", f"import {', '.join(MODULES[extra])}")
    assert (status, said) == (0, "")
    if extra == "webindex":
        assert run(programs, "webindex", "--help")[0] == 0


BY_A_PROXY: Final = """
import asyncio
from percola.serve import make_server

async def app(scope, receive, send):
    print(scope["scheme"])

server = make_server(app, proxies=["10.0.0.0/8"])
server.config.load()
headers = [(b"x-forwarded-proto", b"https")]
scope = {"type": "http", "scheme": "http", "client": ("10.1.2.3", 1), "headers": headers}
asyncio.run(server.config.loaded_app(scope, None, None))
"""
"""Prints the scheme of a request that a proxy in a network of them has passed on."""


@pytest.mark.long
def test_the_command_line_runs_with_the_oldest_packages_that_it_allows(
    wheel: Path, tmp_path: Path
) -> None:
    """As where another program needs an older click, with which every command was a TypeError."""
    need("index")
    venv.create(tmp_path / "old", with_pip=False)
    programs = tmp_path / "old" / "bin"
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet"]
    uv += ["--resolution", "lowest-direct", "--python", programs / "python"]
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["otel"], *extras["serve"]]
    done = subprocess.run([*uv, *wanted], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        lack("index", f"The oldest packages cannot be installed: {done.stderr.strip()[-200:]}")
    subprocess.run([*uv, "--offline", "--no-deps", wheel], check=True, timeout=SECONDS)
    repo = ("--repo", str(tmp_path / "repo"))
    made = run(programs, "percola", *repo, "init", "--column", "docs.title:str")
    assert made[0] == 0, made
    console = {"OTEL_TRACES_EXPORTER": "console"}
    written = run(programs, "percola", *repo, "set", "row", "title", "x", **console)
    assert written[0] == 0 and '"percola.commit_ts": 1' in written[2], written
    assert run(programs, "percola", *repo, "get", "row", "title", "--at", "1")[:2] == (0, "x\n")
    for command in ("status", "scan", "check", "observers", "failed"):
        assert run(programs, "percola", *repo, command)[0] == 0
    for command in ("dev-cluster", "oracle", "pack-env", "relay", "serve", "worker"):
        assert run(programs, "percola", command, "--help")[0] == 0
    assert run(programs, "python", "-c", BY_A_PROXY) == (0, "https\n", "")

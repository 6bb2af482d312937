"""HBase's jars: what is not there is fetched, whole or not at all, and it is said where it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest
from commands import run as command

from percola.devcluster import jars

SCRIPT: Final = jars.SCRIPT

# Stands for Maven: puts a jar where it is told, and counts its runs.
MAVEN: Final = """\
#!/bin/sh
for word; do case $word in -DoutputDirectory=*) folder=${word#*=} ;; esac; done
echo run >>"$HOME/runs"
touch "$folder/hbase-server-2.jar"
[ ! -e "$HOME/fails" ] || { echo "noise"; echo "[ERROR] no route"; echo "[ERROR] more"; exit 1; }
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    maven = tmp_path / "bin" / "mvn"
    maven.write_text(MAVEN)
    maven.chmod(0o755)
    return tmp_path


def run(home: Path, *words: str, path: str = "", **more: str) -> tuple[int, str, str]:
    env = {"HOME": str(home), "PATH": path or f"{home}/bin:{os.environ['PATH']}", **more}
    done = subprocess.run(
        ["bash", SCRIPT, *words], env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def runs(home: Path) -> int:
    file = home / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_jars_are_fetched_once(home: Path) -> None:
    cache = home / ".cache" / "percola"
    status, out, said = run(home, "find", "server")
    assert (status, out) == (1, "")
    assert said == (
        "HBase's server jars cannot be had: they are not here; 'percola hbase-jars server' "
        "fetches them.\n"
    )
    status, out, _ = run(home, "install")
    assert (status, out) == (0, f"{cache}/hbase-client\n{cache}/hbase-server\n")
    assert runs(home) == 2
    assert run(home, "install") == (0, out, "")
    assert run(home, "find", "server") == (0, f"{cache}/hbase-server\n", "")
    assert runs(home) == 2
    assert sorted(os.listdir(cache)) == ["hbase-client", "hbase-server"]


def test_a_download_that_failed_half_way_leaves_nothing(home: Path) -> None:
    (home / "fails").touch()
    status, out, said = run(home, "install", "server")
    assert (status, out) == (1, "")
    assert said.splitlines()[-1] == (
        "HBase's server jars cannot be had: Maven says: [ERROR] no route"
    )
    assert runs(home) == 1
    assert os.listdir(home / ".cache" / "percola") == []
    assert run(home, "find", "server")[0] == 1


def test_jars_of_other_versions_are_fetched_anew(home: Path) -> None:
    assert run(home, "install", "server")[0] == 0
    folder = home / ".cache" / "percola" / "hbase-server"
    (folder / "pom.xml").write_text("of an earlier version")
    (folder / "old.jar").touch()
    assert run(home, "find", "server")[0] == 1
    assert run(home, "install", "server")[0] == 0
    assert sorted(os.listdir(folder)) == ["hbase-server-2.jar", "pom.xml"]


def test_without_a_home_folder_jars_are_the_users_own_or_none(home: Path) -> None:
    """As in a container, under a number of its own."""
    status, out, said = run(home, "install", "client", HOME="")
    assert (status, out) == (
        1,
        "",
    ) and "HOME names none: set it, or have PERCOLA_HBASE_JARS" in said
    own = home / "own"
    own.mkdir()
    (own / "hbase-shaded-client-2.jar").touch()
    found = run(home, "find", "client", HOME="", PERCOLA_HBASE_JARS=str(own))
    assert found == (0, f"{own}\n", "")


def test_own_jars_are_taken_as_they_are(home: Path) -> None:
    own = home / "own"
    own.mkdir()
    status, _, said = run(home, "install", "client", PERCOLA_HBASE_JARS=str(own))
    assert status == 1
    assert said == (
        f"HBase's client jars cannot be had: there are none in {own}, which PERCOLA_HBASE_JARS "
        "names, and nothing is fetched to a folder of yours: unset it to have them fetched.\n"
    )
    assert (
        "which PERCOLA_HBASE_SERVER_JARS names"
        in (run(home, "install", "server", PERCOLA_HBASE_SERVER_JARS=str(own))[2])
    )
    (own / "x.jar").touch()
    assert run(home, "install", "client", PERCOLA_HBASE_JARS=str(own)) == (0, f"{own}\n", "")
    assert runs(home) == 0


def test_without_maven_one_line_says_so(home: Path) -> None:
    tools = home / "tools"
    tools.mkdir()
    for tool in ("bash", "cmp", "mkdir", "cat"):
        for folder in ("/bin", "/usr/bin"):
            if os.access(f"{folder}/{tool}", os.X_OK) and not (tools / tool).exists():
                (tools / tool).symlink_to(f"{folder}/{tool}")
    status, out, said = run(home, "install", "server", path=str(tools))
    assert (status, out) == (1, "")
    assert said.count("\n") == 1 and "there is no Maven to fetch them with" in said


@pytest.mark.parametrize("words", [(), ("find",), ("find", "all"), ("install", "x"), ("remove",)])
def test_anything_else_is_answered_with_how_it_is_used(home: Path, words: tuple[str, ...]) -> None:
    status, out, said = run(home, *words)
    assert (status, out) == (2, "")
    assert said.startswith("usage: ")


def test_the_command_fetches_and_says_where_they_are_or_why_not(home: Path) -> None:
    cache = home / ".cache" / "percola"
    environment = {"HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    (home / "fails").touch()
    failed = command("--json", "hbase-jars", "server", **environment)
    told = "HBase's server jars cannot be had: Maven says: [ERROR] no route"
    assert (failed.code, failed.json["error"]) == (1, {"kind": "JarsError", "message": told})
    assert failed.err.splitlines()[-1] == f"Error: {told}"
    (home / "fails").unlink()
    one = command("hbase-jars", "server", **environment)
    assert (one.code, one.out) == (0, f"{cache}/hbase-server\n")
    assert one.err.startswith("Fetching HBase's server jars with Maven")
    both = command("hbase-jars", "--json", **environment)
    assert both.json == {one: f"{cache}/hbase-{one}" for one in jars.SETS}
    assert command("hbase-jars", **environment).err == ""
    with pytest.raises(jars.JarsError, match=r"client and server; there is no 'servers'"):
        jars.install("servers")

"""A PostgreSQL server that a benchmark starts in a folder, and environments for peers.

The server is Debian's: the one that is installed, or its packages unpacked into `build/benchmarks`,
which needs no root and changes nothing on the machine. It listens on a socket in its folder only.
It refuses to run as root, so there it runs as `postgres`, or else `nobody`.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import OUTPUT
from percola import PercolaError

PEERS: Final = OUTPUT / "peers"
CLIENT: Final = "psycopg[binary]==3.2.13"
_UNPACKED: Final = "usr/lib/postgresql/*/bin/postgres"
_DEADLINE: Final = 120.0
_SETTINGS: Final = {
    "listen_addresses": "",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "autovacuum": "on",
    "max_connections": "40",
}
"""As someone would who measures: a cache that holds the data, checkpoints not in the middle."""


class PeerError(PercolaError):
    """A peer cannot be installed, or does not do its work."""


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """No other benchmark makes the same peer meanwhile: it would remove what this one has begun."""
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment(name: str, packages: Sequence[str]) -> Path:
    """The Python of an environment of its own with these packages, made on its first use.

    Raises:
        PeerError: it cannot be made.
    """
    folder = PEERS / name
    python = folder / "bin" / "python"
    listed = folder / "packages.txt"
    with _alone(name):
        if listed.exists() and listed.read_text() == " ".join(packages):
            return python
        shutil.rmtree(folder, ignore_errors=True)
        uv = Path(sys.executable).parent / "uv"
        tool = str(uv) if uv.exists() else shutil.which("uv")
        if tool is None:
            raise PeerError("There is no uv to make an environment with: run 'make setup'.")
        for command in (
            [tool, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [tool, "pip", "install", "--quiet", "--python", str(python), *packages],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                said = done.stderr.strip().splitlines()
                raise PeerError(f"{name} cannot be installed: {said[-1] if said else command}")
        listed.write_text(" ".join(packages))
    return python


def programs() -> Path:
    """The folder with initdb and postgres.

    Raises:
        PeerError: there is none, and Debian's packages cannot be had.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda one: one.parent)
    if not found:
        with _alone("postgresql"):
            unpacked = PEERS / "postgresql"
            if not list(unpacked.glob(_UNPACKED)):
                _unpack(unpacked)
            found = sorted(unpacked.glob(_UNPACKED))
    if not found:
        raise PeerError("PostgreSQL is missing: install it, on Debian with 'postgresql'.")
    return found[-1].parent


def _unpack(folder: Path) -> None:
    """Debian's server into a folder, without installing it."""
    missing = "PostgreSQL is missing and cannot be fetched: install Debian's package 'postgresql'."
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise PeerError(missing)
    listing = ["apt-cache", "depends", "postgresql"]
    said = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
    server = [word for word in said.split() if word.startswith("postgresql-")]
    names = [one for one in server if one.rpartition("-")[2].isdigit()][:1]
    if not names:
        raise PeerError(missing)
    names += [names[0].replace("postgresql-", "postgresql-client-"), "libpq5"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Moved when it is whole: half of a server would be taken for one by the next run.
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=folder.parent) as place:
        whole = Path(place, "whole")
        whole.mkdir()
        for name in names:
            fetch = ["apt-get", "download", name]
            if subprocess.run(fetch, cwd=place, capture_output=True, check=False).returncode:
                raise PeerError(missing)
        for package in Path(place).glob("*.deb"):
            unpack = ["dpkg-deb", "-x", str(package), str(whole)]
            if subprocess.run(unpack, capture_output=True, check=False).returncode:
                raise PeerError(missing)
        shutil.rmtree(folder, ignore_errors=True)
        whole.rename(folder)


class Server:
    """A running PostgreSQL.

    Attributes:
        dsn: how clients connect.
        pid: the server's first process, the parent of all others.
        version: as the server tells it.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], version: str) -> None:
        self.dsn = f"host={folder} user=postgres dbname=postgres"
        self.pid = process.pid
        self.version = version


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server whose data is in this folder, for a `with` block.

    Raises:
        PeerError: it cannot be installed, or does not start.
    """
    tools = programs()
    folder.mkdir(parents=True)
    user = _user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
        for above in folder.parents[:1]:
            above.chmod(above.stat().st_mode | 0o011)  # To be passed through, not listed.
    libraries = [str(one) for one in (PEERS / "postgresql").glob("usr/lib/*-linux-gnu")]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)} if libraries else dict(os.environ)
    options: dict[str, Any] = {"cwd": folder, "env": env}
    if user is not None:
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data = str(folder / "data")
    made = subprocess.run(
        [str(tools / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"],
        capture_output=True,
        check=False,
        **options,
    )
    if made.returncode:
        said = made.stderr.decode(errors="replace").strip().splitlines()
        raise PeerError(f"PostgreSQL's initdb failed: {said[-1] if said else 'silent'}")
    words = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    with (folder.parent / "postgres.log").open("wb") as log:
        process = subprocess.Popen(
            [str(tools / "postgres"), "-D", data, "-k", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **options,
        )
    try:
        ready = [str(tools / "pg_isready"), "-q", "-h", str(folder), "-U", "postgres"]
        end = time.monotonic() + _DEADLINE
        while subprocess.run(ready, check=False, env=env).returncode:
            if process.poll() is not None or time.monotonic() > end:
                lines = (folder.parent / "postgres.log").read_text().strip().splitlines()
                raise PeerError(f"PostgreSQL does not start: {lines[-1] if lines else 'silent'}")
            time.sleep(0.05)  # pg_isready is how a server tells.
        version = subprocess.run(
            [str(tools / "postgres"), "--version"], capture_output=True, check=True, env=env
        )
        # "postgres (PostgreSQL) 15.4 (Debian …)"
        yield Server(folder, process, version.stdout.decode().split()[2])
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PeerError("PostgreSQL does not run as root, and there is no user postgres or nobody.")

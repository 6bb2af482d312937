"""§2.1: a physical copy of an LMDB snapshot, made while other transactions write.

LMDB can write out the snapshot of a read transaction, without the free pages. That may take
minutes, in which this process could neither fork nor let its map grow: LMDB's transactions end
before either (`percola.store.lmdb.environment`). So a child process does it, with a separate
environment: like any reader, it keeps the pages from being reused until it ends, in whatever way.
It writes to its standard output

    {"ts": the last timestamp drawn, "bytes": the most bytes that follow}  in one line of JSON
    data.mdb

and to its standard error at last that this was all of it, or else an error message. Its exit status
does not tell: a program that ignores SIGCHLD, or waits for any child, gets none.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import lmdb

from percola.errors import StoreError
from percola.store.lmdb.driver import translate

CHUNK_BYTES: Final = 1 << 20
"""The size of a chunk of a copy, in bytes."""

_WHOLE: Final = "That was all of the copy."
_ATTEMPTS: Final = 5
_LEAST_MAP_BYTES: Final = 1 << 24


class SnapshotCopy:
    """A copy in progress; a context manager, which ends it.

    Args:
        folder: the folder of the store's `data.mdb`, which is open in some process.

    Raises StoreError if the store cannot be read.

    Attributes:
        ts: the last timestamp drawn, as of the snapshot, which contains all commits up to it.
        most_bytes: the maximum size of the copy; free pages are left out.
    """

    def __init__(self, folder: Path) -> None:
        # -P: modules of the current folder are not imported in place of those it needs. Nor are
        # those that stand beside this package, which the child imports wherever it is.
        program = (
            "import sys; source = sys.argv.pop(1); "
            "installed = [one.endswith('-packages') for one in sys.path]; "
            "sys.path.insert([*installed, True].index(True), source); "
            f"from {__name__} import main; main()"
        )
        source = str(Path(__file__).parents[3])
        errors: IO[bytes] | None = None
        try:
            # In memory: a disk without room is a reason to make a backup on another one.
            errors = open(os.memfd_create("percola-copy"), "w+b")  # noqa: SIM115
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, source, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=CHUNK_BYTES,
            )
        except OSError as error:
            if errors is not None:
                errors.close()
            raise StoreError(
                f"The store in {folder} cannot be copied: no process can be started "
                f"({error.strerror})."
            ) from error
        self._folder, self._errors = folder, errors
        assert self._process.stdout is not None
        self._output = self._process.stdout
        try:
            line = self._output.readline()
            if not line.endswith(b"\n"):
                self._wait()
            head = json.loads(line)
            self.ts: int = head["ts"]
            self.most_bytes: int = head["bytes"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SnapshotCopy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chunks(self) -> Iterator[bytes]:
        """The copy in chunks; StoreError if it ended early."""
        while chunk := self._output.read(CHUNK_BYTES):
            yield chunk
        self._wait()

    def _wait(self) -> None:
        """Wait for the child to end; StoreError if it failed."""
        status = self._process.wait()
        self._errors.seek(0)
        told = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        if _WHOLE in told:
            return
        why = told[-1] if told else f"its process ended with {status or 'no word on why'}."
        raise StoreError(f"The store in {self._folder} could not be copied: {why}")

    def close(self) -> None:
        """End the child, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._output.close()
        self._process.wait()
        self._errors.close()


def _open(folder: Path) -> tuple[lmdb.Environment, Any]:
    """Open a separate environment, and a read transaction in it."""
    size = max(_LEAST_MAP_BYTES, 2 * os.path.getsize(folder / "data.mdb"))
    for attempt in range(_ATTEMPTS):
        env = lmdb.open(str(folder), map_size=size, readonly=True, create=False, readahead=True)
        try:
            return env, env.begin()
        except lmdb.MapResizedError:
            # Other processes have just enlarged it beyond the map of this one.
            env.close()
            if attempt == _ATTEMPTS - 1:
                raise
            size *= 4
    raise AssertionError("unreachable")


def _write_out(folder: Path, out: int) -> None:
    env, txn = _open(folder)
    ts = int.from_bytes(txn.get(b"ts") or b"", "big")
    most = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    os.write(out, json.dumps({"ts": ts, "bytes": most}).encode() + b"\n")
    env.copyfd(out, compact=True, txn=txn)
    txn.abort()
    env.close()


def main() -> NoReturn:
    """What the child runs: writes out the store in the folder that its argument names."""
    folder = Path(sys.argv[1])
    try:
        os.chdir(folder)  # py-lmdb takes no path that is not UTF-8.
        _write_out(Path(), sys.stdout.fileno())
    except (lmdb.Error, OSError) as error:
        with contextlib.suppress(OSError):
            print(translate(error, folder), file=sys.stderr)
        sys.exit(1)
    print(_WHOLE, file=sys.stderr)
    sys.exit(0)

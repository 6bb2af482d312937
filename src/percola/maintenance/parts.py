"""Rows on their way between a folder and machines that do not have it: files on a shared path.

LMDB's file is read and written by processes of one machine only. So the tasks of a Spark cluster
write what goes to a folder to files, one for each range, and the driver puts these into the folder;
what comes from a folder, the driver writes to such files, and tasks put these into the store:

    percola part 1                       the file type, and the version of this layout
    length (4 bytes) ‖ that many bytes   a row's changes, in pieces as in a backup …
    00000000                             … up to an empty one
    SHA-256 (32 bytes)                   of all of the above

A file is written under a temporary name, synced to disk and renamed, and read only if its checksum
is right: so a task may be run again, or twice at once, and no part of a file is taken for all.
Their folder has the permissions of the repository's: who may not enter that one reads no rows here.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final

from percola.cells import Kind
from percola.errors import StoreError, StoreFullError, UsageError
from percola.maintenance.pieces import PieceWriter, read_pieces
from percola.platform.files import is_full, make_folder
from percola.store.base import Limits, Put, RowMutation

_MAGIC: Final = b"percola part 1\n"
_PART: Final = re.compile(r"part-\d")


def check_parts(parts: Path) -> None:
    """Check that a folder is missing, or has nothing but the files of earlier runs.

    For it is deleted with all that it has. Raises UsageError, or StoreError if it cannot be read.
    """
    with _refusing(f"The folder {parts}, through which rows are copied, cannot be read"):
        try:
            runs = [*parts.iterdir()]
        except FileNotFoundError:
            return
        except NotADirectoryError:
            runs = [parts]
        for run in runs:
            is_run = run.name.isdecimal() and run.is_dir() and not run.is_symlink()
            if not is_run or any(not _PART.match(one.name) for one in run.iterdir()):
                raise UsageError(
                    f"Rows are copied through the folder {parts}, which is deleted in the end, but "
                    f"there is {run}, which no copy has written: rename it, and begin again."
                )


def new_run(parts: Path, of: str, run: int, *, alone: bool, like: Path | None) -> Path:
    """The folder of a run's files, which is made in place of those of the copy's earlier runs.

    `of` names the copy: a folder may be copied to several stores at a time, and then it is not
    `alone`. The ranges of other runs differ. `like` is the folder whose permissions it has.
    """
    if alone:
        shutil.rmtree(parts, ignore_errors=True)
    end_runs(parts, of)
    folder = parts / f"{_number_of(of)}{run:06}"
    for one in (parts, folder):
        make_folder(one, like)
    return folder


def end_runs(parts: Path, of: str) -> None:
    """Delete the files of a copy's runs, and the folder if no other copy has some there."""
    for folder in parts.glob(f"{_number_of(of)}*"):
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        parts.rmdir()


def _number_of(of: str) -> str:
    return f"{int.from_bytes(blake2b(of.encode(), digest_size=8).digest()):020}"


@dataclass(frozen=True, slots=True)
class PartFile:
    """The changes of one range, while they are written.

    Attributes:
        limits: those of the store that will get them.
    """

    limits: Limits
    _pieces: PieceWriter

    def mutate(self, batch: Sequence[RowMutation]) -> None:
        """Write rows, which nothing is asked of and which only puts are given."""
        for one in batch:
            puts = [put for put in one.changes if isinstance(put, Put)]
            assert len(puts) == len(one.changes) and not one.conditions
            listed = [[put.kind, put.column.hex(), put.ts, len(put.value)] for put in puts]
            head = json.dumps([one.table, one.row.hex(), listed]).encode()
            self._pieces.put(b"\n".join([head, b"".join(put.value for put in puts)]))


@contextmanager
def new_part(folder: Path, number: int, limits: Limits) -> Iterator[PartFile]:
    """The file of a range: there once the block has ended, and not at all after an error.

    Raises StoreError if the folder is not there, StoreFullError if the disk is full.
    """
    path = _path(folder, number)
    temporary = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    with _refusing(f"The folder {folder}, which all machines have to share, cannot be written"):
        try:
            with open(temporary, "xb") as file:
                pieces = PieceWriter(file, _MAGIC)
                yield PartFile(limits, pieces)
                pieces.end()
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        finally:
            with suppress(OSError):
                temporary.unlink()


def read_part(folder: Path, number: int) -> Iterator[RowMutation]:
    """The changes of a range; its file is read twice, first to verify its checksum.

    Raises StoreError if its file is not there, DamagedRecordError if it is not whole.
    """
    path = _path(folder, number)
    with _refusing(f"{path} was written and cannot be read: the machines of driver and executors "
                   "have to share this folder"), open(path, "rb") as file:  # fmt: skip
        for _ in _pieces(file, path):
            pass
        file.seek(0)
        for piece in _pieces(file, path):
            head, _, values = piece.partition(b"\n")
            table, row, listed = json.loads(head)
            puts, at = [], 0
            for kind, column, ts, size in listed:
                value = values[at : at + size]
                puts.append(Put(Kind(kind), bytes.fromhex(column), ts, value))
                at += size
            yield RowMutation(table, bytes.fromhex(row), (), puts)


def _pieces(file: IO[bytes], path: Path) -> Iterator[bytes]:
    return read_pieces(file, file.read(len(_MAGIC)), f"The file {path}")


def _path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05}"


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StoreFullError if is_full(error) else StoreError
        raise kind(f"{what}: {error.strerror}.") from error

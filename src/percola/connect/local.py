"""The folder of an LMDB repository: what makes it one, and who in this process has it open.

percola.json    its format, and the durability that it was created with
store/          LMDB's files, and the safe point
live/ wake/ rows.lock leases
what `percola.coordination.local.coordination` needs; may be lost while nobody is at work
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from percola.connect.shared import Connection, acquire
from percola.coordination.local.coordination import LocalCoordination
from percola.errors import (
    ConflictingOptionsError,
    NotARepositoryError,
    RepositoryError,
    RepositoryVersionError,
)
from percola.platform.files import (
    PRIVATE_FOLDER,
    expanded,
    is_full,
    make_folder,
    no_room,
    occupy_standard_streams,
    open_file,
    restrict,
)
from percola.store.base import OneStepStore, Store
from percola.store.lmdb.environment import file_of
from percola.store.lmdb.store import LmdbStore

FORMAT: Final = 1
_DESCRIPTION: Final = "percola.json"
_DATA: Final = "store/data.mdb"
_MADE_LATER: Final = "store/safe-point"
_WRAPPED: Final = re.compile(r"\s.*|.*\s|([\"']).*\1", re.DOTALL)
_OWN_FILES: Final = frozenset({"store", "live", "wake", "rows.lock", "leases", _DESCRIPTION})


def folder_of(address: str) -> Path:
    """The folder that an address names.

    Raises NotARepositoryError for an address of another kind, UsageError for a home folder that is
    not known.
    """
    if not address or "\0" in address or not _is_unicode(address):
        raise NotARepositoryError(
            f"{address!r} names no folder: name the one that has the repository, or will."
        )
    if _WRAPPED.fullmatch(address) and not os.path.lexists(address):
        raise NotARepositoryError(
            f"{address!r} has white space or quotes around the repository's name, which some "
            "programs take over from a file with variables: leave them out. If the name has them, "
            "make the folder first."
        )
    if address == ":memory:" and not os.path.lexists(address):
        raise NotARepositoryError(
            "':memory:' is what SQLite calls a database in memory, and would be a folder here: use "
            "memory: without a colon before it."
        )
    match = re.fullmatch(r"([a-z][a-z0-9+.-]+):(?://)?(.*)", address, re.DOTALL)
    if match is None and "://" not in address:
        return expanded(address)
    if match is None or match[1] != "lmdb" or not match[2]:
        raise NotARepositoryError(
            f"{address!r} names no store that this version has: use a folder, lmdb:FOLDER, "
            "memory:, hbase://… or bigtable://…."
        )
    return expanded(match[2])


def _is_unicode(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


@dataclass
class LocalConnection(Connection):
    """What a process has open of an LMDB repository.

    Attributes:
        file: the device and the inode of the file that the store has open.
    """

    folder: Path
    durability: str
    store: OneStepStore
    coordination: LocalCoordination
    file: tuple[int, int] | None

    @classmethod
    def open(cls, folder: Path, durability: str | None, *, create: bool) -> LocalConnection:
        """Open it, or share what this process has open."""

        def check(known: LocalConnection) -> None:
            # First of all: else a new repository would be made here, and the removed one written.
            if known.file != file_of(known.folder / "store"):
                raise RepositoryError(
                    f"The repository {folder} was removed or replaced while this process had it "
                    "open: close its Repository objects, and open it again."
                )
            wanted = durability or _describe(folder, durability, create=create)["durability"]
            if known.durability != wanted:
                raise ConflictingOptionsError(
                    f"The repository {folder} is open in this process with durability "
                    f"{known.durability!r}; it cannot be opened with {wanted!r} as well."
                )

        real = _resolved(folder)
        return acquire(real, lambda: _open(folder, real, durability, create=create), check)

    @property
    def key(self) -> Path:
        return self.folder

    def close(self) -> None:
        self.coordination.close()
        self.store.close()


def folder_in_use(store: Store) -> Path | None:
    """The folder of the repository on LMDB that has this store; None for another store.

    Its address may be relative to another folder than the current one by now.
    """
    return store.folder.parent if isinstance(store, LmdbStore) else None


def _resolved(folder: Path) -> Path:
    """The folder without symbolic links, as far as it exists."""
    try:
        return Path(os.path.realpath(folder))
    except OSError as error:  # Of a relative path.
        raise RepositoryError(
            f"The repository {folder} cannot be found, since the current folder cannot be used: "
            f"{error.strerror}. Change to another folder."
        ) from error


def _open(folder: Path, real: Path, durability: str | None, *, create: bool) -> LocalConnection:
    description = _describe(folder, durability, create=create)
    durability = durability or description["durability"]
    if (lost := _lost(real)) is not None:
        # A new store would be empty, and hide that all is lost.
        raise RepositoryError(
            f"The repository {folder} has lost its store: {lost} {folder / _DATA}. Put it "
            "back, or restore a backup; if nothing was ever written there, delete the folder and "
            "create the repository again."
        )
    try:
        occupy_standard_streams()
        coordination = LocalCoordination(real)
    except OSError as error:
        raise _unusable(folder, error) from error
    store = LmdbStore(real / "store", durability=durability)
    return LocalConnection(real, durability, store, coordination, file_of(real / "store"))


def _unusable(folder: Path, error: OSError) -> RepositoryError:
    """The error for a folder whose files cannot be opened."""
    if is_full(error):
        return no_room(folder)
    told = f"The repository {folder} cannot be used: {error.strerror}."
    if isinstance(error, PermissionError):
        told += " Work as a user who may write there, which reading it takes as well"
        with contextlib.suppress(OSError, KeyError):  # A user without a name on this machine.
            told += f": it belongs to {folder.owner()}"
        told += "."
    return RepositoryError(told)


def _lost(folder: Path) -> str | None:
    """What is wrong with the store's file, if it is gone or empty: the beginning of a sentence."""
    # It is empty until the store is opened first, which makes its other files after it. In this
    # order: another process may do so just now.
    was_opened = os.path.lexists(folder / _MADE_LATER)
    try:
        size = os.stat(folder / _DATA).st_size
    except OSError:
        return "there is no"
    return "there is nothing in" if not size and was_opened else None


def _describe(folder: Path, durability: str | None, *, create: bool) -> dict[str, Any]:
    """Read what a folder says of itself; make it a repository if it may be one."""
    path = folder / _DESCRIPTION
    try:
        description = json.loads(path.read_text())
        version = description["format"]
        description["durability"]
    except FileNotFoundError:
        return _found(folder, durability, create=create)
    except NotADirectoryError:
        raise NotARepositoryError(f"{folder} is a file; a repository is a folder.") from None
    except (IsADirectoryError, ValueError, KeyError, TypeError) as error:
        raise NotARepositoryError(
            f"{path} is there, but it is not readable as a repository's description ({error}). "
            "Restore it from a backup."
        ) from error
    except OSError as error:
        # Says nothing of the file: there may be too many others open.
        raise _unusable(folder, error) from error
    if version != FORMAT:
        raise RepositoryVersionError(
            f"The repository {folder} has format {version}; this version of Percola reads format "
            f"{FORMAT}. Use the version that wrote it, or load its data into a new repository."
        )
    known: dict[str, Any] = description
    return known


def _found(folder: Path, durability: str | None, *, create: bool) -> dict[str, Any]:
    if folder.exists() and not folder.is_dir():
        raise NotARepositoryError(f"{folder} is a file; a repository is a folder.")
    others = set(os.listdir(folder)) - _OWN_FILES if folder.is_dir() else set()
    others = {name for name in others if not name.startswith(_DESCRIPTION)}
    if others:
        raise NotARepositoryError(
            f"The folder {folder} is not a repository, and not empty (it holds "
            f"{sorted(others)[0]!r}). Name an empty or a new folder."
        )
    if not create:
        raise NotARepositoryError(
            f"There is no repository at {folder}. Create one with "
            f"'percola --repo {shlex.quote(str(folder))} init' "
            "(in a program, by percola.open with a schema), or name another folder."
        )
    description = {"format": FORMAT, "store": "lmdb", "durability": durability or "full"}
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        temporary = folder / f"{_DESCRIPTION}.{os.getpid()}"
        try:
            with temporary.open("w") as file:
                restrict(file.fileno(), os.stat(folder), made=True, locked=False)
                file.write(json.dumps(description) + "\n")
                file.flush()
                os.fsync(file.fileno())
            # Before the folder is a repository: from then on a missing store is a lost one.
            make_folder(folder / "store")
            os.close(open_file(folder / _DATA, locked=False))
            sync_folder(folder / "store")
            temporary.replace(folder / _DESCRIPTION)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        # Commits are acknowledged as durable from here on, so their repository must be.
        sync_folder(folder)
        sync_folder(folder.parent)
    except OSError as error:
        if is_full(error):
            raise no_room(folder) from error
        raise RepositoryError(
            f"No repository can be created at {folder}: {error.strerror}."
        ) from error
    return description


def sync_folder(folder: Path) -> None:
    """Make what was created or renamed in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

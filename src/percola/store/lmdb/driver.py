"""§2.1: the interface to py-lmdb: the methods in use, and the translation of its errors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import lmdb

from percola.errors import StoreError, StoreFullError

_LITTLE: Final = 64 << 20
"""A disk with less free space than this, in bytes, counts as full when a write fails."""


class Cursor(Protocol):
    """The methods in use of an LMDB cursor; keys and values are bytes, as buffers are off."""

    def set_range(self, key: bytes) -> bool: ...
    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def item(self) -> tuple[bytes, bytes]: ...
    def next(self) -> bool: ...
    def prev(self) -> bool: ...
    def last(self) -> bool: ...
    def iternext(self, keys: bool, values: bool) -> Iterator[bytes]: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...


class Txn(Protocol):
    """The methods in use of an LMDB transaction."""

    def get(self, key: bytes, default: bytes | None = None, *, db: Any = None) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, *, db: Any = None) -> bool: ...
    def delete(self, key: bytes, *, db: Any) -> bool: ...
    def cursor(self, db: Any = None) -> Cursor: ...
    def stat(self, db: Any) -> dict[str, int]: ...
    def id(self) -> int: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...


def translate(error: Exception, folder: Path) -> StoreError:
    """The StoreError for an error of LMDB or the system."""
    text = str(error)
    if (
        isinstance(error, lmdb.DiskError)
        or any(reason in text for reason in ("No space left", "File too large", "Disk quota"))
        or ("Input/output error" in text and _is_full(folder))
    ):
        return StoreFullError(
            f"There is no room left on the disk for the store in {folder}; nothing of this was "
            "written. Make room and try again: everything committed before is safe."
        )
    if isinstance(error, lmdb.ReadonlyError | lmdb.LockError) or "Permission denied" in text:
        return StoreError(f"The store in {folder} cannot be opened for writing: {text}.")
    if isinstance(error, lmdb.CorruptedError | lmdb.InvalidError | lmdb.VersionMismatchError):
        return StoreError(
            f"The store in {folder} is damaged or is not an LMDB file ({text}). Restore it from "
            "a backup."
        )
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(
            f"Too many threads and processes read the store in {folder} at once. Run fewer workers."
        )
    if isinstance(error, lmdb.MemoryError):
        return StoreError(
            f"The system gives the store in {folder} no address space. Raise the limit (ulimit "
            "-v) or use a larger machine."
        )
    return StoreError(f"The store in {folder} failed: {text}.")


def _is_full(folder: Path) -> bool:
    """Whether a short write, which LMDB reports as an input/output error, means a full disk.

    The system would report the reason only to the next write, which LMDB does not make.
    """
    disk = os.statvfs(folder)
    try:
        size = (folder / "data.mdb").stat().st_size
    except FileNotFoundError:
        size = 0
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    limited = most != resource.RLIM_INFINITY and size + _LITTLE > most
    return limited or disk.f_bavail * disk.f_frsize < _LITTLE

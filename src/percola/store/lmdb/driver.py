"""§2.1: the interface to LMDB: which engine opens it, the methods in use, the errors.

There are two engines, and a process uses one of them for all its environments:

    native    `percola._native`, where it was built: the same LMDB, which py-lmdb has loaded, called
              from native code that also has the hot paths of the store
    python    py-lmdb, with the hot paths in Python

Both raise py-lmdb's exceptions, and processes of either kind share a repository. With
PERCOLA_NATIVE=0 in its environment a process uses py-lmdb.
"""

from __future__ import annotations

import importlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

import lmdb

from percola.errors import StoreError, StoreFullError

if TYPE_CHECKING:
    import percola._native as _native

_INTERFACE: Final = 3
"""Of the native engine: to be raised in `native/src/lib.rs` too, whenever `_native.pyi` changes."""

_OFF: Final = ("0", "false", "no", "off")
_LITTLE: Final = 64 << 20
"""A disk with less free space than this, in bytes, counts as full when a write fails."""

LONG_BYTES: Final = 16 << 20
"""Long values of about so many bytes end a scan, so that what it holds is bounded."""


def _load() -> tuple[ModuleType | None, str]:
    """The native engine, or None and why not."""
    asked = os.environ.get("PERCOLA_NATIVE", "").strip()
    if asked.lower() in _OFF:
        return None, f"PERCOLA_NATIVE={asked}"
    if os.environ.get("LMDB_DEFAULT_LIB_VERSION"):
        # py-lmdb's own switch: its engines differ in the format of new files.
        return None, "LMDB_DEFAULT_LIB_VERSION is set"
    try:
        module = importlib.import_module("percola._native")
    except ImportError as error:
        return None, "not built" if error.name == "percola._native" else str(error)
    if getattr(module, "INTERFACE", None) != _INTERFACE:
        return None, "built for another version of Percola; 'make native' builds it again"
    return module, ""


native, _WHY_NOT = _load()
"""The native engine, if this process uses it."""


def engine() -> str:
    """Which engine this process uses, in a few words, for a line that people read."""
    if native is not None:
        return f"LMDB {native.LMDB_VERSION}, native"
    version = ".".join(map(str, lmdb.version()))
    return f"LMDB {version}, through py-lmdb; native code: {_WHY_NOT}"


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


class OpenEnvironment(Protocol):
    """The methods in use of an LMDB environment."""

    def begin(self, *, write: bool = False) -> Any: ...
    def open_db(self, name: bytes, txn: Any) -> Any: ...
    def info(self) -> Any: ...
    def set_mapsize(self, map_size: int) -> None: ...
    def reader_check(self) -> int: ...
    def readers(self) -> str: ...
    def sync(self, force: bool = False) -> None: ...
    def close(self) -> None: ...


def open_environment(folder: Path, using: ModuleType | None, **options: Any) -> OpenEnvironment:
    """Open an environment with the native engine `using`, or with py-lmdb; raises its errors.

    Raises StoreError for a path that py-lmdb cannot take.
    """
    if using is None:
        try:
            return lmdb.open(str(folder), **options)
        except UnicodeEncodeError as error:
            raise StoreError(
                f"The store in {folder} cannot be opened by py-lmdb, as its path is not UTF-8: "
                "rename the folder, or use the native engine ('percola --version')."
            ) from error
    environment: _native.Environment = using.Environment(str(folder), **options)
    return environment


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
    if isinstance(error, lmdb.LockError):
        # LMDB tells processes apart by their ids, each of which locks a byte of `lock.mdb`.
        return StoreError(
            f"The store in {folder} is open in another process with this one's id, {os.getpid()}: "
            "in another container, probably. Give containers that share a repository one PID "
            "namespace (docker run --pid=host; in Kubernetes one pod, shareProcessNamespace)."
        )
    if isinstance(error, lmdb.ReadonlyError) or any(
        reason in text for reason in ("Permission denied", "Read-only file system")
    ):
        return StoreError(
            f"The store in {folder} cannot be opened for writing, which reading it takes as well: "
            f"{text}. Work as a user who may write there; a service of systemd also has to name "
            "the repository in ReadWritePaths=."
        )
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

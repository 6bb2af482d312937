"""§2.2: the methods of a transaction that run for each read, each write, a beginning and an end.

A short transaction on LMDB costs little more than these calls, so they exist twice: here, and in
native code (`percola._native`, `native/src/transactions.rs`). `Snapshot` and `Transaction` derive
from one of the two, whichever engine LMDB has in this process:

    get  get_many  set  delete  commit      natively: all of it, for a repository in a folder, if
                                            nothing is unusual; else `_get`, `_get_many`, `_set`,
                                            `_delete`, `_commit`
                                            in Python: those
    _few_rows                               natively: the first rows of a range, for a reader
                                            without own writes; else, and in Python: None

So whatever can fail is decided by the methods of `Snapshot` and `Transaction` alone. On another
store, through py-lmdb, with calls counted or with spans, everything is left to them.

The native classes keep a transaction's own writes themselves until Python asks for `_writes`, and
make the other fields when they are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeAlias, TypeVar, cast

from percola.cells import Cell, Kind, LastChange
from percola.codecs import Codec, V, codec_of
from percola.errors import ConflictError, StoreError
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.platform import fork_safety as forks
from percola.schema import Column, R, Writable
from percola.store.base import Store
from percola.store.capabilities import NativeCalls
from percola.store.lmdb import driver
from percola.transactions.active_snapshots import ActiveSnapshots
from percola.transactions.context import TransactionContext
from percola.transactions.own_writes import OwnWrites, Writes

if TYPE_CHECKING:
    import percola._native as _native

S = TypeVar("S")
P = ParamSpec("P")

FewRows: TypeAlias = tuple[list[tuple[bytes, dict[bytes, bytes]]], bytes | None]
"""Rows that have a value, and the row from which to read on; None: these were all."""


def by_the_column(
    method: Callable[[S, Column[R, V], R, V], None],
) -> Callable[Concatenate[S, Writable[P], P], None]:
    """Have type checkers take the types of the row and the value from the column alone.

    For the plain signature mypy looks for types R and V that fit all arguments. For a wrong value
    there are none, and it says only "Cannot infer value of type parameter V". With this signature
    it says which argument is wrong, and which type the column has.
    """
    return cast("Callable[Concatenate[S, Writable[P], P], None]", method)


class PythonSnapshot:
    """The fields of a snapshot, and the calls of one, in Python."""

    __slots__ = ("_cache", "_context", "_readers", "_used_up", "_writes", "start_ts")

    def __init__(self, context: TransactionContext, start_ts: int) -> None:
        self._context = context
        self._readers = context.readers.by_column
        self._cache = context.new_cache() if context.caches_reads else None
        self._used_up: str | None = None
        # Empty in a snapshot; a transaction's reads check it first.
        self._writes: Writes = {}
        self.start_ts = start_ts
        context.leases.add(id(self), start_ts)

    def __del__(self) -> None:
        try:
            # Snapshots that have ended are unregistered already.
            if self._used_up is None:
                self._unregister()
                if self._cache is not None:
                    self._cache.end()
        except AttributeError:
            return  # The constructor failed before it had a timestamp.

    def __enter__(self) -> Self:
        if self._used_up is not None:
            self._check_usable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, column: Column[R, V], row: R) -> V | None:
        """See `percola.Snapshot.get`."""
        return self._get(column, row)

    def get_many(self, cells: Iterable[tuple[Column[R, Any], R]]) -> list[Any]:
        """See `percola.Snapshot.get_many`."""
        return self._get_many(cells)

    def _few_rows(
        self, table: str, start: bytes, end: bytes, wanted: list[tuple[bytes, bool]] | None
    ) -> FewRows | None:
        """The first rows of a range, or None: read the range from the store."""
        return None

    def _unregister(self) -> None:
        """Have garbage collection wait for this snapshot no longer; harmless if it does not."""
        self._context.leases.drop(id(self))

    def close(self) -> None:
        raise NotImplementedError

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _get(self, column: Column[R, V], row: R) -> V | None:
        raise NotImplementedError

    def _get_many(self, cells: Iterable[tuple[Column[R, Any], R]]) -> list[Any]:
        raise NotImplementedError


TOO_LARGE: Final = "was too large, and nothing of it was written"
"""Of a transaction that was refused. A program that has not noticed is told when it ends."""


class PythonTransaction(PythonSnapshot):
    """The fields of a transaction, and the calls of one, in Python."""

    __slots__ = (
        "_answers",
        "_began",
        "_bytes",
        "_causes",
        "_conflict_callbacks",
        "_last_changes",
        "_notifications",
        "_own",
        "_silent",
        "_two_phase",
        "commit_ts",
        "unfinished",
    )

    def __init__(
        self, context: TransactionContext, *, two_phase: bool = False, notify: bool = True
    ) -> None:
        if context.spans is not None:
            self._began = time.time_ns()
            self._causes: list[int] = []
        self._silent = not notify
        self._two_phase = two_phase or context.one_step is None
        oracle = context.oracle
        start_ts = oracle.timestamp() if self._two_phase else oracle.read_timestamp()
        PythonSnapshot.__init__(self, context, start_ts)
        self._notifications: dict[Cell, None] = {}
        self._last_changes: dict[Cell, LastChange] = {}
        self._answers: list[tuple[Kind, Cell, int]] = []
        self.unfinished: StoreError | None = None
        self._bytes = 0
        self._conflict_callbacks: dict[Callable[[ConflictError], object], None] = {}
        # Created by the first read of a row or range after a write.
        self._own: OwnWrites | None = None
        self.commit_ts: int | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.rollback()
        elif self._used_up is None or self._used_up == TOO_LARGE:
            self.commit()

    @by_the_column
    def set(self, column: Column[R, V], row: R, value: V) -> None:
        """See `percola.Transaction.set`."""
        self._set(column, row, value)

    def delete(self, column: Column[R, Any], row: R) -> None:
        """See `percola.Transaction.delete`."""
        self._delete(column, row)

    def commit(self) -> int:
        """See `percola.Transaction.commit`."""
        return self._commit()

    def rollback(self) -> None:
        raise NotImplementedError

    def _set(self, column: Column[R, V], row: R, value: V, raw: bytes | None = None) -> None:
        raise NotImplementedError

    def _delete(self, column: Column[R, Any], row: R) -> None:
        raise NotImplementedError

    def _commit(self) -> int:
        raise NotImplementedError


if TYPE_CHECKING or driver.native is None:
    SnapshotBase = PythonSnapshot
    TransactionBase = PythonTransaction
else:
    SnapshotBase = driver.native.SnapshotBase
    TransactionBase = driver.native.TransactionBase
    forks.at_fork(driver.native.forked)


def native_calls(
    store: Store,
    oracle: Oracle,
    columns: Mapping[tuple[str, bytes], bool | None],
    leases: ActiveSnapshots,
) -> _native.Calls | None:
    """What a repository's transactions call in native code, if they can.

    It does not call the oracle, so that must be the store's own and no class derived from it.
    """
    if not isinstance(store, NativeCalls) or type(oracle) is not EmbeddedOracle:
        return None
    native = driver.native
    if native is None or not isinstance(leases, native.ActiveSnapshots):
        return None
    known: list[Codec[Any]] = [codec_of(bytes), codec_of(str), codec_of(int)]
    codecs = [(codec.encode, codec.decode) for codec in known]
    return store.native_calls(columns, Column, codecs, leases)

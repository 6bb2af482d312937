# The native engine of the store on LMDB: `native/src` has its code, and what each function does.

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from percola.cells import Cell
from percola.store.base import Blocked, CellState, OneStepWrite
from percola.store.capabilities import Codecs
from percola.store.lmdb.feed import Feeds
from percola.transactions import active_snapshots
from percola.transactions.calls import PythonSnapshot, PythonTransaction

INTERFACE: int
LMDB_VERSION: str

class Environment:
    def __init__(
        self,
        path: str,
        *,
        map_size: int,
        max_dbs: int,
        max_readers: int,
        max_spare_txns: int,
        sync: bool,
        metasync: bool,
        readahead: bool,
        mode: int,
    ) -> None: ...
    def begin(self, *, write: bool = False) -> Transaction: ...
    def open_db(self, name: bytes, txn: Transaction) -> int: ...
    def info(self) -> dict[str, int]: ...
    def set_mapsize(self, map_size: int) -> None: ...
    def reader_check(self) -> int: ...
    def readers(self) -> str: ...
    def sync(self, force: bool = False) -> None: ...
    def close(self) -> None: ...

class Transaction:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def get(
        self, key: bytes, default: bytes | None = None, *, db: int | None = None
    ) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, *, db: int | None = None) -> bool: ...
    def delete(self, key: bytes, *, db: int | None = None) -> bool: ...
    def cursor(self, db: int | None = None) -> Cursor: ...
    def stat(self, db: int) -> dict[str, int]: ...
    def id(self) -> int: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...

class Cursor:
    def set_range(self, key: bytes) -> bool: ...
    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def item(self) -> tuple[bytes, bytes]: ...
    def next(self) -> bool: ...
    def prev(self) -> bool: ...
    def last(self) -> bool: ...
    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...

class LastDrawn:
    def __call__(self) -> int: ...

class Slot:
    def __init__(self, view: memoryview[int], index: int) -> None: ...
    def __call__(self, ts: int) -> None: ...
    def close(self) -> None: ...

class ActiveSnapshots(active_snapshots.ActiveSnapshots): ...

class Calls:
    def __init__(
        self,
        reads: Reads,
        drawn: LastDrawn,
        trees: tuple[int, int],
        shared: memoryview[int],
        prefixes: dict[str, bytes],
        declared: dict[tuple[str, bytes], bool | None],
        class_: type,
        codecs: Codecs,
        commits: Commits,
        feeds: Feeds,
        leases: ActiveSnapshots,
    ) -> None: ...

class SnapshotBase(PythonSnapshot): ...
class TransactionBase(PythonTransaction): ...

def forked() -> None: ...

class Reader:
    def read(self, row: bytes, ts: int) -> bytes | Blocked | None: ...

class Reads:
    paused: bool
    @property
    def is_busy(self) -> bool: ...
    def attach(
        self, environment: Environment, databases: Sequence[int], owner: object, turn: int
    ) -> None: ...
    def detach(self) -> None: ...
    def start_afresh(self) -> None: ...
    def last_drawn(self, slow: Callable[[], int]) -> LastDrawn: ...
    def reader(
        self,
        head: bytes,
        tail: bytes,
        cells: int,
        data: int,
        safe_point: memoryview[int],
        blocked: Blocked,
        slow: Callable[[bytes, int], bytes | Blocked | None],
    ) -> Reader: ...

class Commits:
    def __init__(
        self,
        reads: Reads,
        trees: tuple[int, int, int, int],
        shared: memoryview[int],
        prefixes: dict[str, bytes],
    ) -> None: ...
    def commit(
        self,
        turn: int,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        noted: Sequence[bytes],
        removed: Sequence[bytes],
        as_of: int,
        feeds: frozenset[bytes],
    ) -> int | tuple[int, tuple[int, bytes] | None, int] | None: ...

def states(
    txn: Transaction, keys: list[bytes], ts: int, cells: int, data: int
) -> list[CellState] | None: ...
def commit_cells(
    txn: Transaction,
    trees: tuple[int, int, int, int],
    start_ts: int,
    writes: Sequence[OneStepWrite],
    prefixes: dict[str, bytes],
    feeds: frozenset[bytes],
) -> int | tuple[int, tuple[int, bytes] | None, int] | None: ...
def scan(
    txn: Transaction,
    trees: tuple[int, int],
    ts: int,
    first: bytes,
    last: bytes,
    columns: Sequence[tuple[bytes, bool]] | None,
    limit: int,
    table: str,
    cell: Callable[[tuple[str, bytes, bytes]], Cell],
) -> tuple[list[tuple[Cell, CellState]], bytes | None] | None: ...
def scan_columns(
    txn: Transaction,
    trees: tuple[int, int],
    ts: int,
    first: bytes,
    last: bytes,
    columns: Sequence[bytes],
    limit: int,
) -> (
    tuple[
        list[tuple[int, list[bytes]]],
        list[tuple[int, int, tuple[int, bytes]]],
        bytes | None,
    ]
    | None
): ...
def scan_cells(
    txn: Transaction,
    trees: tuple[int, int],
    ts: int,
    first: bytes,
    last: bytes,
    columns: Sequence[tuple[bytes, bool]] | None,
    limit: int,
) -> (
    tuple[
        list[tuple[int, list[bytes]]],
        bytes,
        list[tuple[int, tuple[int, bytes]]],
        bytes | None,
    ]
    | None
): ...

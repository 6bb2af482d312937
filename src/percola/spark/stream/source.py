"""§2.4 `spark.readStream`: the change feed of a table, micro-batch by micro-batch.

    row  commit_ts  changed  then the table's columns, as they were at commit_ts

An offset is a timestamp up to which everything has been read (`percola.feed.settled`): what was in
flight then commits above it. A stream without a checkpoint first reads the table as it is, as rows
with their own newest commit_ts, and then every change:

    {"snapshot": T, "after": row}   the table at T, up to and including this row (in hex)
    {"ts": T}                       every change up to T

Both carry a name for the stream, under which it holds its timestamp back from garbage collection,
also while it does not run. Where a batch ends stands in its end alone: Spark asks for the initial
offset once more if the first batch has to be repeated, and then it is another one.

All changes of a row that are in one batch are in one partition, in the order of commit_ts. Tasks
only read, so Spark may repeat them.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from percola import (
    PercolaError,
    Repository,
    SchemaError,
    SnapshotTooOldError,
    Table,
    UsageError,
    WrongTypeError,
)
from percola.feed import RowImage, check_start, read_changes, read_rows, settle, settled, since
from percola.schema import WeakColumn
from percola.spark.columns import Chosen, chosen, to_arrays
from percola.spark.options import Options
from percola.spark.partitioning import row_ranges
from percola.spark.stream.ranges import change_ranges

COMMIT_TS: Final = "commit_ts"
CHANGED: Final = "changed"
_FEEDS_OWN: Final[dict[str, DataType]] = {COMMIT_TS: LongType(), CHANGED: ArrayType(StringType())}

HOLD_SECONDS: Final = 86_400.0
"""How long a stream that does not run holds back its timestamp if nothing else is asked for."""

_IDLE_SECONDS: Final = 60.0
"""After so long without a change the offset moves on by itself: or the hold would stand still."""

_HOLD_MOVES: Final = 1.0
"""How often, in seconds, the hold follows a stream that goes on."""

_REST: Final = 4.0
"""A look for locks, or for changes where there were none, is not repeated for so many times as
long as it took: on a store of servers either may read the whole table."""

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 8 << 20


# --- What a feed looks like -------------------------------------------------------------


def feed_schema(options: Options) -> StructType:
    """The columns of the feed: the row, commit_ts, changed, and those of the table.

    Raises NoFeedError if the table keeps none; SchemaError if a column of the table is called as
    one of the feed's own.
    """
    with options.open() as repository:
        table = options.table(repository)
        since(repository, table)
        first, *others = chosen(table, None, options.text("columns"), options.row_column)
        for one in others:
            _check_name(table, one.name)
        own = [StructField(name, kind) for name, kind in _FEEDS_OWN.items()]
        return StructType([first.field, *own, *(one.field for one in others)])


def _check_name(table: Table[Any], name: str) -> None:
    if name.casefold() in _FEEDS_OWN:
        raise SchemaError(
            f"The table {table.name!r} has a column named {name!r}, which in a feed is the name of "
            "something else. Leave it out with the option columns."
        )


def _owned(table: Table[Any], schema: StructType, options: Options) -> set[str]:
    """Which of the schema's columns are the feed's own; WrongTypeError for those of no such type.

    Unless the option feedColumns says that they are, those that the table has too are the table's.
    """
    members = {one.name.casefold() for one in table.members if not isinstance(one, WeakColumn)}
    found = set()
    for field in schema:
        kind = _FEEDS_OWN.get(field.name.casefold())
        if kind is None or (field.name.casefold() in members and not options.flag("feedColumns")):
            continue
        if field.dataType.simpleString() != kind.simpleString():
            raise WrongTypeError(
                f"{field.name!r} is {kind.simpleString()} in a feed, not "
                f"{field.dataType.simpleString()}."
            )
        found.add(field.name)
    return found


# --- Offsets ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream has come: what an offset says.

    Attributes:
        ts: every change up to here has been read; while the table is read first, the timestamp at
            which it is read.
        stream: the stream's name.
        after: while the table is read first, the row up to which it has been; else None.
        initial: whether the stream has not begun: another attempt begins elsewhere.
    """

    ts: int
    stream: str
    after: bytes | None = None
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark keeps it in its checkpoint."""
        if self.after is not None:
            return {"snapshot": self.ts, "after": self.after.hex(), "stream": self.stream}
        said: dict[str, Any] = {"ts": self.ts, "stream": self.stream}
        return {**said, "initial": True} if self.initial else said

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Position:
        """What an offset of a checkpoint says; UsageError if it is of another source."""
        try:
            stream = str(offset["stream"])
            if "snapshot" in offset:
                return cls(int(offset["snapshot"]), stream, bytes.fromhex(offset["after"]))
            return cls(int(offset["ts"]), stream, initial=bool(offset.get("initial")))
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"The checkpoint has an offset {offset!r}, which is none of Percola's: it is of "
                "another source. Use another checkpoint location."
            ) from None


class StreamTooOldError(SnapshotTooOldError):
    """Garbage collection has removed changes that a stream had yet to read (P12)."""

    def __str__(self) -> str:
        return (
            f"The stream has read up to timestamp {self.ts}, but garbage collection has removed "
            f"what was up to {self.safe_point}: it cannot go on without missing changes. Begin "
            "again with another checkpoint location, which reads the table whole first. To keep "
            "changes for a stream that stands still for longer, set its option holdSeconds, or a "
            "longer retention of 'percola gc' and the workers."
        )


# --- The driver's side ------------------------------------------------------------------


@dataclass
class FeedPartition(InputPartition):
    """A range of rows of one batch: the changes in (after, upto], or the rows at `upto`.

    Attributes:
        after: None for the rows themselves.
        start, end: the rows: [start, end); an empty `end` has none.
    """

    after: int | None
    upto: int
    start: bytes
    end: bytes


def stream_reader(options: Options, schema: StructType) -> DataSourceStreamReader:
    """The reader of a table's feed; see `feed_schema` for what is refused."""
    with options.open() as repository:
        table = options.table(repository)
        since(repository, table)
        owned = _owned(table, schema, options)
        others = [field for field in schema if field.name not in owned]
        columns = chosen(table, StructType(others), None, options.row_column) if others else []
        return FeedReader(options, schema, columns)


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the feed of a table. One works in the driver's helper process as long as the query."""

    def __init__(self, options: Options, schema: StructType, columns: Sequence[Chosen]) -> None:
        self._options = options
        self._schema = schema
        self._columns = list(columns)
        self._opened: Repository | None = None
        self._target: int | None = None
        self._settled = 0
        self._look_again = 0.0
        self._nothing_in: tuple[int, int] | None = None
        # When the offset last moved, what was last held back and when, and what was not since.
        self._moved = time.monotonic()
        self._held: tuple[Position, float] | None = None
        self._unheld: Position | None = None

    # --- Offsets --------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a stream without a checkpoint begins."""
        repository, table = self._repository(), self._table_name
        beginning = self._options["startingTimestamp"]
        stream = f"stream/{table}/{uuid.uuid4().hex[:16]}"
        if isinstance(beginning, int):
            position = Position(beginning, stream)
        elif beginning == "earliest":
            position = Position(since(repository, table), stream, initial=True)
        else:
            now, first = self._find_settled(), since(repository, table)
            if now < first:
                # The feed has begun just now, and what is in flight began before it.
                now = self._settled = settle(repository, table, first)
            whole = beginning is None
            position = Position(now, stream, b"" if whole else None, initial=not whole)
        self._check(position)
        self._hold(position)
        return position.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRowsPerTrigger."""
        most = self._options.count("maxRowsPerTrigger")
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What commits from here on is for the next run."""
        self._target = self._find_settled()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far a batch from `start` may go.

        In whole timestamps, so `limit` may be exceeded by the changes of one.
        """
        position = Position.of(start)
        self._check(position)
        # A batch that ends there has been committed. At the end of a run it may be the last word.
        self._hold(position, last=self._target is not None and position.ts >= self._target)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if position.after is not None:
            return self._further_row(position, position.after, most).to_json()
        if position.initial:
            # An empty batch, after which the timestamp stands in the checkpoint.
            return replace(position, initial=False).to_json()
        return replace(position, ts=self._further_ts(position.ts, most)).to_json()

    def _further_row(self, position: Position, after: bytes, most: int | None) -> Position:
        if most is not None:
            store = self._repository().context.store
            rows = read_rows(
                store, self._table_name, position.ts, start=_next(after), wanted=self._wanted()
            )
            last = b""
            for count, one in enumerate(rows):
                if count == most:
                    return replace(position, after=last)
                last = one.row
        return replace(position, after=None)

    def _further_ts(self, after: int, most: int | None) -> int:
        upto = self._find_settled()
        if self._target is not None:
            upto = min(upto, self._target)
        if upto <= after:
            return after
        now = began = time.monotonic()
        counted, whole, last = 0, after, after
        if (after, upto) != self._nothing_in:
            store = self._repository().context.store
            for one in store.walk_changes(self._table_name, after, upto, limit=most or 1):
                if one.commit_ts != last:
                    whole, last = last, one.commit_ts
                counted += 1
                if most is None or counted > most:
                    break
            now = time.monotonic()
            if not counted:
                # What is settled stays so: it is looked at again with what is settled next.
                self._nothing_in = after, upto
                self._rest(now - began)
        # It moves on also where nothing changes, but not for every commit to another table.
        rest = min(_IDLE_SECONDS, self._hold_seconds / 4)
        if not counted and self._target is None and now - self._moved < rest:
            return after
        self._moved = now
        if most is None or counted <= most:
            return upto
        # Without the last timestamp, unless that is all.
        return whole if whole > after else last

    def _find_settled(self) -> int:
        """The newest settled timestamp; as it was a moment ago, if there are locks by the million.

        It never goes down: what was settled once stays so.
        """
        began = time.monotonic()
        if began >= self._look_again:
            found = settled(self._repository(), self._table_name)
            self._settled = max(self._settled, found)
            self._rest(time.monotonic() - began)
        return self._settled

    def _rest(self, took: float) -> None:
        """Put off the next look for what is settled, after one that took so many seconds."""
        rest = _REST * took if took > 0.05 else 0.0
        self._look_again = max(self._look_again, time.monotonic() + rest)

    def _check(self, position: Position) -> None:
        try:
            check_start(self._repository(), self._table_name, position.ts)
        except SnapshotTooOldError as error:
            raise StreamTooOldError(error.ts, error.safe_point) from error

    # --- A batch --------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of rows in which a batch is read."""
        first, last = Position.of(start), Position.of(end)
        self._moved = time.monotonic()
        repository, table = self._repository(), self._table_name
        store = repository.context.store
        most = self._options.count("partitions")
        self._check(first if first.after is None else last)
        if first.after is not None:
            # At the timestamp of the end: the start may be of another attempt.
            beyond = _next(last.after) if last.after else b""
            ranges = row_ranges(store, table, _next(first.after), beyond, most)
            return [FeedPartition(None, last.ts, *one) for one in ranges]
        if first.initial or first.ts >= last.ts:
            return []
        ranges = change_ranges(store, table, first.ts, last.ts, most)
        return [FeedPartition(first.ts, last.ts, *one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range of a batch; runs in a task, which knows nothing of other calls."""
        assert isinstance(partition, FeedPartition)
        with self._options.open() as repository:
            table = self._options.table(repository)
            yield from _batches(repository, table, self._schema, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing before `end` will be asked for any more."""
        self._hold(Position.of(end))

    def stop(self) -> None:
        """The query has ended; what it holds back stays, for the next run."""
        opened, last = self._opened, self._unheld
        if opened is None:
            return
        if last is not None and self._hold_seconds:
            with contextlib.suppress(PercolaError):
                opened.hold(last.ts, self._hold_seconds, name=last.stream)
        self._opened = None
        opened.close()

    # --- The repository -------------------------------------------------------------------

    def _repository(self) -> Repository:
        if self._opened is None:
            self._opened = self._options.open()
        return self._opened

    @property
    def _table_name(self) -> str:
        return self._options.table_name

    def _wanted(self) -> list[tuple[bytes, bool]] | None:
        return _wanted(self._columns) or None

    @property
    def _hold_seconds(self) -> float:
        return self._options.seconds("holdSeconds", HOLD_SECONDS)

    def _hold(self, position: Position, *, last: bool = False) -> None:
        """Hold the position's timestamp back from garbage collection, in place of the last one.

        Not every time, but for the `last` one: an older timestamp only keeps a little more.
        """
        seconds = self._hold_seconds
        now = time.monotonic()
        if self._held is not None:
            moved = self._held[0].ts != position.ts
            rest = min(_HOLD_MOVES if moved else _IDLE_SECONDS, seconds / 4)
            if now - self._held[1] < rest and not (last and moved):
                self._unheld = position if moved else None
                return
        if not seconds:
            return
        try:
            self._repository().hold(position.ts, seconds, name=position.stream)
        except SnapshotTooOldError as error:
            raise StreamTooOldError(error.ts, error.safe_point) from error
        self._held = position, now
        self._unheld = None


# --- A task's side ----------------------------------------------------------------------


def _batches(
    repository: Repository,
    table: Table[Any],
    schema: StructType,
    columns: Sequence[Chosen],
    partition: FeedPartition,
) -> Iterator[pa.RecordBatch]:
    """What is in a partition as Arrow batches of the schema."""
    store, wanted = repository.context.store, _wanted(columns)
    start, end = partition.start, partition.end
    after, upto = partition.after, partition.upto
    convert = _converter(schema, columns)
    # While it is read, garbage collection keeps it, whatever has become of the hold.
    with repository.snapshot(at=upto if after is None else after):
        if after is None:
            rows = read_rows(store, table.name, upto, start=start, end=end, wanted=wanted or None)
        else:
            rows = read_changes(store, table.name, after, upto, start=start, end=end, wanted=wanted)
        gathered: list[RowImage] = []
        size = 0
        for one in rows:
            gathered.append(one)
            size += sum(map(len, one.values.values()))
            if len(gathered) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield convert(gathered)
                gathered, size = [], 0
        if gathered:
            yield convert(gathered)


def _wanted(columns: Sequence[Chosen]) -> list[tuple[bytes, bool]]:
    """Which columns of the table are read."""
    return [one.wanted for one in columns if one.wanted is not None]


def _converter(
    schema: StructType, columns: Sequence[Chosen]
) -> Callable[[list[RowImage]], pa.RecordBatch]:
    arrow = to_arrow_schema(schema, timezone="UTC")
    by_name = {one.name: one for one in columns}

    def convert(rows: list[RowImage]) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        read = [(one.row, one.values) for one in rows]
        for field in arrow:
            column = by_name.get(field.name)
            if column is not None:
                arrays += to_arrays([column], read, pa.schema([field]))
            elif field.name.casefold() == COMMIT_TS:
                arrays.append(pa.array([one.commit_ts for one in rows], field.type))
            else:
                names = [[name.decode() for name in one.changed] for one in rows]
                arrays.append(pa.array(names, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    return convert


def _next(row: bytes) -> bytes:
    """The first row after one; the first of all after none."""
    return row + b"\0" if row else b""

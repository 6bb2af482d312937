"""§2.4 `spark.readStream`: the change feed of a table, micro-batch by micro-batch.

    row  commit_ts  changed  then the table's columns, as they were at commit_ts
                             and, with beforeImages, `before`: the same before that
    key  value               instead, with an envelope: events (`percola.debezium`)

An offset is a timestamp up to which every change has been read (`percola.feed.settled`):
transactions still in flight commit above it. A stream without a checkpoint first reads the table's
current rows, each with its newest commit_ts, and then every change:

    {"snapshot": T, "after": row}   the table at T, up to and including this row (in hex)
    {"ts": T}                       every change up to T

Both contain the stream's name, which is also the name of its retention hold; the hold remains
while the stream does not run. What a batch contains must follow from its end offset alone: if the
first batch is repeated, Spark calls `initialOffset` again, which returns another one.

All changes of a row in one batch are in one partition, in the order of commit_ts. Tasks only read,
so Spark may repeat them.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from percola import (
    ConflictingOptionsError,
    PercolaError,
    Repository,
    SchemaError,
    SnapshotTooOldError,
    Table,
    UsageError,
    WrongTypeError,
)
from percola.debezium import Events, usual
from percola.feed import RowImage, check_start, read_changes, read_rows, settle, settled, since
from percola.schema import WeakColumn
from percola.spark.columns import NEVER_NULL, Chosen, arrays_of, cells_of, check_nulls, chosen
from percola.spark.options import Options
from percola.spark.partitioning import row_ranges
from percola.spark.sentences import errors_are_sentences
from percola.spark.stream.ranges import change_ranges
from percola.spark.versions import READ_LIMITS, arrow_schema

COMMIT_TS: Final = "commit_ts"
CHANGED: Final = "changed"
BEFORE: Final = "before"
_FEEDS_OWN: Final[dict[str, DataType]] = {COMMIT_TS: LongType(), CHANGED: ArrayType(StringType())}
_EVENT: Final = StructType([StructField(name, StringType()) for name in ("key", "value")])

HOLD_SECONDS: Final = 86_400.0
"""The default number of seconds for which a stopped stream's timestamp is held."""

_IDLE_SECONDS: Final = 60.0
"""Without changes, the offset advances this often, so that the hold does, too."""

_HOLD_MOVES: Final = 1.0
"""The interval, in seconds, at which the hold follows an advancing stream."""

_REST: Final = 4.0
"""A scan for locks, or one that found no changes, is not repeated for this many times its own
duration: on a remote store either may read the whole table."""

_STREAM: Final = "stream"
"""The names of streams begin with it and the table's name."""

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 8 << 20


# --- The schema of a feed ---------------------------------------------------------------


def feed_schema(options: Options) -> StructType:
    """The columns of the feed: the row, commit_ts, changed, and those of the table.

    Raises NoFeedError if the table has no feed; SchemaError if a column of the table has the name
    of one of the feed's own; ConflictingOptionsError.
    """
    options.check_envelope()
    with options.open() as repository:
        table = options.table(repository)
        since(repository, table)
        if "envelope" in options:
            _events(table, _enveloped(table, options), options)
            return _EVENT
        columns = chosen(table, None, options.text("columns"), options.row_column)
        taken = {*_FEEDS_OWN, *([BEFORE] if options.flag("beforeImages") else ())}
        for one in columns:
            _check_name(table, one, taken)
        own = [StructField(name, kind) for name, kind in _FEEDS_OWN.items()]
        key = [one.field for one in columns if one.member is None]
        fields = [one.field for one in columns if one.member is not None]
        if options.flag("beforeImages"):
            return StructType([*key, *own, *fields, StructField(BEFORE, StructType(fields))])
        return StructType([*key, *own, *fields])


def check_feed(options: Options) -> None:
    """Raise NoFeedError if the table has no feed; ConflictingOptionsError."""
    options.check_envelope()
    with options.open() as repository:
        since(repository, options.table(repository))


def _check_name(table: Table[Any], one: Chosen, taken: Collection[str]) -> None:
    if one.name.casefold() in taken and one.member is None:
        raise SchemaError(
            f"The row's key cannot be called {one.name!r} in a feed, where that is the name of "
            "something else: choose another rowColumn."
        )
    if one.name.casefold() in taken:
        raise SchemaError(
            f"The table {table.name!r} has a column named {one.name!r}, which in a feed is the "
            "name of something else. Leave it out with the option columns."
        )


def _owned(table: Table[Any], schema: StructType, options: Options) -> set[str]:
    """Which of the schema's columns are the feed's own; WrongTypeError for ones of another type.

    A column whose name the table has too is the table's, unless feedColumns is set.
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
    """The position of a stream, which its offset encodes.

    Attributes:
        ts: every change up to here has been read; during the first reading of the table, the
            timestamp at which it is read.
        stream: the stream's name.
        after: during the first reading of the table, the last row that has been read; else None.
        initial: whether the stream has not begun: another attempt may begin elsewhere.
        since: where the first batch begins that ends here, if its start is `initial`; None if it is
            empty.
    """

    ts: int
    stream: str
    after: bytes | None = None
    initial: bool = False
    since: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark stores it in its checkpoint."""
        if self.after is not None:
            return {"snapshot": self.ts, "after": self.after.hex(), "stream": self.stream}
        said: dict[str, Any] = {"ts": self.ts, "stream": self.stream}
        if self.initial:
            said["initial"] = True
        if self.since is not None:
            said["since"] = self.since
        return said

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Position:
        """Decode an offset of a checkpoint; UsageError if it is another source's."""
        try:
            stream = str(offset["stream"])
            if "snapshot" in offset:
                return cls(int(offset["snapshot"]), stream, bytes.fromhex(offset["after"]))
            beginning = offset.get("since")
            return cls(
                int(offset["ts"]),
                stream,
                initial=bool(offset.get("initial")),
                since=None if beginning is None else int(beginning),
            )
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"The checkpoint has an offset {offset!r}, which is none of Percola's: it is of "
                "another source. Use another checkpoint location."
            ) from None


class StreamTooOldError(SnapshotTooOldError):
    """Garbage collection has removed changes that a stream had not read yet (P12)."""

    def __str__(self) -> str:
        return (
            f"The stream has read up to timestamp {self.ts}, but garbage collection has removed "
            f"what was up to {self.safe_point}: it cannot go on without missing changes. Begin "
            "again with another checkpoint location, which reads the table whole first. To keep "
            "changes for a stream that stands still for longer, set its option holdSeconds, or a "
            "longer retention of 'percola gc' and the workers."
        )


# --- In the driver ----------------------------------------------------------------------


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
    """The reader of a table's feed; raises the errors of `feed_schema`."""
    options.check_envelope()
    with options.open() as repository:
        table = options.table(repository)
        since(repository, table)
        if "envelope" in options:
            columns = before = _enveloped(table, options)
            _check_event(schema)
        else:
            owned = _owned(table, schema, options)
            name, past = _past(schema, options)
            _check_owned(options, feedColumns=bool(owned), beforeImages=bool(name))
            others = [field for field in schema if field.name not in {*owned, name}]
            columns = chosen(table, StructType(others), None, options.row_column) if others else []
            before = chosen(table, past, None, options.row_column) if past is not None else []
    if READ_LIMITS:
        from percola.spark.stream.limited import LimitedFeedReader

        return LimitedFeedReader(options, schema, columns, before)
    from percola.spark.stream.unlimited import UnlimitedFeedReader

    return UnlimitedFeedReader(options, schema, columns, before)


def _check_owned(options: Options, **found: bool) -> None:
    """ConflictingOptionsError for an option for columns that the stream's schema does not have."""
    for name, has in found.items():
        if options.flag(name) and not has:
            raise ConflictingOptionsError(
                f"The option {name} asks for columns that this stream does not have, because its "
                "schema was given, or is that of a catalog's table. Load the stream by "
                "format('percola') without a schema, or name these columns in the schema."
            )


def _past(schema: StructType, options: Options) -> tuple[str, StructType | None]:
    """The field for the row as it was before, and its type; WrongTypeError if that is no struct."""
    if options.flag("beforeImages"):
        for field in schema:
            if field.name.casefold() == BEFORE:
                if isinstance(field.dataType, StructType):
                    return field.name, field.dataType
                raise WrongTypeError(
                    f"{field.name!r} is a struct of the table's columns in a feed with "
                    f"beforeImages, not {field.dataType.simpleString()}."
                )
    return "", None


def _enveloped(table: Table[Any], options: Options) -> list[Chosen]:
    """The columns that events show, without the row's key; see `percola.debezium.Events`."""
    names = options.text("columns")
    found = chosen(table, None, names, options.row_column)
    if names is None:
        shown = usual(table)
        return [one for one in found if one.member in shown]
    return [one for one in found if one.member is not None]


def _events(table: Table[Any], columns: Sequence[Chosen], options: Options) -> Events[Any]:
    return Events(
        table,
        name=options["envelopeName"],
        columns=[one.member for one in columns if one.member is not None],
        row_name=options.row_column,
        schemas=options.flag("envelopeSchemas"),
        decimals=options["envelopeDecimals"],
    )


def _check_event(schema: StructType) -> None:
    if [(one.name, one.dataType) for one in schema] != [(f.name, f.dataType) for f in _EVENT]:
        raise WrongTypeError(
            "The columns of a stream with an envelope are key and value, both string, not "
            f"{schema.simpleString()}. Load it by format('percola'), not by a catalog, without a "
            "schema, and cast them afterwards."
        )


class FeedReader(DataSourceStreamReader):
    """Reads the feed of a table. One lives in the driver's helper process as long as the query.

    `latestOffset` is for the classes of `stream/limited.py` and `stream/unlimited.py`.
    """

    def __init__(
        self,
        options: Options,
        schema: StructType,
        columns: Sequence[Chosen],
        before: Sequence[Chosen] = (),
    ) -> None:
        self._options = options
        self._schema = schema
        self._columns = list(columns)
        self._before = list(before)
        self._opened: Repository | None = None
        self._target: int | None = None
        self._settled = 0
        self._look_again = 0.0
        self._nothing_in: tuple[int, int] | None = None
        # When the offset last moved; the last hold and its time; a newer position not held yet.
        self._moved = time.monotonic()
        self._held: tuple[Position, float] | None = None
        self._unheld: Position | None = None

    # --- Offsets --------------------------------------------------------------------------

    @errors_are_sentences
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a stream without a checkpoint begins."""
        return self._start(self._beginning()).to_json()

    def _start(self, position: Position) -> Position:
        """Hold the position at which a stream begins; raise an error if it cannot begin there."""
        self._check(position)
        self._hold(position)
        return position

    def _beginning(self) -> Position:
        repository, table = self._repository(), self._table_name
        beginning = self._options["startingTimestamp"]
        stream = f"{_STREAM}/{table}/{uuid.uuid4().hex[:16]}"
        if isinstance(beginning, int):
            return Position(beginning, stream)
        if beginning == "earliest":
            return Position(since(repository, table), stream, initial=True)
        now, first = self._find_settled(), since(repository, table)
        if now < first:
            # The feed is new, and transactions in flight began before it.
            now = self._settled = settle(repository, table, first)
        whole = beginning is None
        return Position(now, stream, b"" if whole else None, initial=not whole)

    def _next_position(self, position: Position, most: int | None) -> Position:
        """The end of a batch that begins at the position and has at most about `most` rows."""
        if position.after is not None:
            return self._further_row(position, position.after, most)
        if position.initial:
            # An empty batch, which stores the timestamp in the checkpoint.
            return replace(position, initial=False)
        ts = self._further_ts(position.ts, most)
        return position if ts == position.ts else replace(position, ts=ts, since=None)

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
            for one in store.changes(self._table_name, after, upto):
                if one.commit_ts != last:
                    whole, last = last, one.commit_ts
                counted += 1
                if most is None or counted > most:
                    break
            now = time.monotonic()
            if not counted:
                # A settled range does not change: do not scan it again until more is settled.
                self._nothing_in = after, upto
                self._rest(now - began)
        # The offset advances without changes, too, but not for every commit to another table.
        rest = min(_IDLE_SECONDS, self._hold_seconds / 4 or _IDLE_SECONDS)
        if not counted and self._target is None and now - self._moved < rest:
            return after
        self._moved = now
        if most is None or counted <= most:
            return upto
        # Without the last timestamp, unless that is all.
        return whole if whole > after else last

    def _following(self, position: Position) -> Iterator[RowImage]:
        """The rows or changes after a position, up to what is settled."""
        store, wanted = self._repository().context.store, self._wanted()
        if position.after is not None:
            start = _next(position.after)
            return read_rows(store, self._table_name, position.ts, start=start, wanted=wanted)
        return read_changes(
            store,
            self._table_name,
            position.ts,
            self._find_settled(),
            wanted=wanted,
            before=bool(self._before),
        )

    def _find_settled(self) -> int:
        """The newest settled timestamp; a recent one if the scan for locks is slow.

        It never decreases: a settled timestamp stays settled.
        """
        began = time.monotonic()
        if began >= self._look_again:
            found = settled(self._repository(), self._table_name)
            self._settled = max(self._settled, found)
            self._rest(time.monotonic() - began)
        return self._settled

    def _rest(self, took: float) -> None:
        """Delay the next scan for the settled timestamp after one that took `took` seconds."""
        rest = _REST * took if took > 0.05 else 0.0
        self._look_again = max(self._look_again, time.monotonic() + rest)

    def _check(self, position: Position) -> None:
        """Raise an error if the stream cannot go on from there."""
        kind, _, of = position.stream.partition("/")
        table = of.rpartition("/")[0]
        if kind == _STREAM and table != self._table_name:
            raise UsageError(
                f"The checkpoint is of a stream of the table {table!r}, and this one is of "
                f"{self._table_name!r}, whose rows up to there would be missed. Use another "
                "checkpoint location, which reads the table whole first."
            )
        try:
            check_start(self._repository(), self._table_name, position.ts)
        except SnapshotTooOldError as error:
            raise StreamTooOldError(error.ts, error.safe_point) from error

    # --- A batch --------------------------------------------------------------------------

    @errors_are_sentences
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of rows of a batch."""
        first, last = Position.of(start), Position.of(end)
        self._moved = time.monotonic()
        repository, table = self._repository(), self._table_name
        store = repository.context.store
        most = self._options.count("partitions")
        if first.initial and last.since is not None:
            first = Position(last.since, last.stream)
        self._check(first if first.after is None else last)
        if first.after is not None:
            # At the end's timestamp: the start may be from another attempt.
            beyond = _next(last.after) if last.after else b""
            ranges = row_ranges(store, table, _next(first.after), beyond, most)
            return [FeedPartition(None, last.ts, *one) for one in ranges]
        if first.initial or first.ts >= last.ts:
            return []
        ranges = change_ranges(store, table, first.ts, last.ts, most)
        return [FeedPartition(first.ts, last.ts, *one) for one in ranges]

    @errors_are_sentences
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range of a batch; runs in a task, without state from other calls."""
        assert isinstance(partition, FeedPartition)
        with self._options.open() as repository:
            table = self._options.table(repository)
            if "envelope" in self._options:
                events = _events(table, self._columns, self._options)
                convert = _event_converter(repository, events, first=partition.after is None)
            else:
                convert = _converter(self._schema, self._columns, self._before)
            yield from _batches(repository, table, convert, self._columns, self._before, partition)

    @errors_are_sentences
    def commit(self, end: dict[str, Any]) -> None:
        """Record that Spark will not request anything before `end` again."""
        self._hold(Position.of(end))

    def stop(self) -> None:
        """The query has ended; its retention hold stays for the next run."""
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
        return _wanted([*self._columns, *self._before]) or None

    @property
    def _hold_seconds(self) -> float:
        return self._options.seconds("holdSeconds", HOLD_SECONDS)

    def _hold(self, position: Position, *, last: bool = False) -> None:
        """Move the retention hold to the position's timestamp.

        Rate-limited except for the `last` position: an older timestamp only retains a little more.
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


# --- In a task --------------------------------------------------------------------------

_Convert: TypeAlias = Callable[[list[RowImage]], pa.RecordBatch]


def _batches(
    repository: Repository,
    table: Table[Any],
    convert: _Convert,
    columns: Sequence[Chosen],
    before: Sequence[Chosen],
    partition: FeedPartition,
) -> Iterator[pa.RecordBatch]:
    """The contents of a partition as Arrow batches."""
    store, wanted = repository.context.store, list(dict.fromkeys(_wanted([*columns, *before])))
    start, end = partition.start, partition.end
    after, upto = partition.after, partition.upto
    # The snapshot protects the range from garbage collection even if the hold has expired.
    with repository.snapshot(at=upto if after is None else after):
        if after is None:
            rows = read_rows(store, table.name, upto, start=start, end=end, wanted=wanted or None)
        else:
            rows = read_changes(
                store,
                table.name,
                after,
                upto,
                start=start,
                end=end,
                wanted=wanted,
                before=bool(before),
            )
        gathered: list[RowImage] = []
        size = 0
        for one in rows:
            gathered.append(one)
            size += one.size
            if len(gathered) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield convert(gathered)
                gathered, size = [], 0
        if gathered:
            yield convert(gathered)


def _wanted(columns: Sequence[Chosen]) -> list[tuple[bytes, bool]]:
    """Which columns of the table are read."""
    return [one.wanted for one in columns if one.wanted is not None]


def _event_converter(repository: Repository, events: Events[Any], *, first: bool) -> _Convert:
    arrow = arrow_schema(_EVENT)
    clock, times = repository.context.clock, repository.commit_times()

    def convert(rows: list[RowImage]) -> pa.RecordBatch:
        now = clock.wall_ms()
        found = [event for one in rows for event in events.of(one, times, now, first=first)]
        columns = ([event.key for event in found], [event.value for event in found])
        arrays = [pa.array(one, field.type) for one, field in zip(columns, arrow, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    return convert


def _converter(schema: StructType, columns: Sequence[Chosen], before: Sequence[Chosen]) -> _Convert:
    arrow = arrow_schema(schema)
    kinds = pa.schema([arrow.field(one.name) for one in columns])

    def convert(rows: list[RowImage]) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        read = cells_of([(one.row, one.values) for one in rows])
        found = dict(zip(kinds.names, arrays_of(columns, read, kinds), strict=True))
        for field in arrow:
            if field.name in found:
                arrays.append(found[field.name])
            elif field.name.casefold() == COMMIT_TS:
                arrays.append(pa.array([one.commit_ts for one in rows], field.type))
            elif before and field.name.casefold() == BEFORE:
                arrays.append(_past_array(rows, before, field))
            else:
                names = [[name.decode() for name in one.changed] for one in rows]
                arrays.append(pa.array(names, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    return convert


def _past_array(rows: Sequence[RowImage], columns: Sequence[Chosen], field: pa.Field) -> pa.Array:
    """The rows as they were before; null where there was none, and in a table's first reading."""
    there = [(one.row, one.before) for one in rows if one.before]
    members = arrays_of(columns, cells_of(there), pa.schema(list(field.type)))
    present = pa.StructArray.from_arrays(members, fields=list(field.type))
    places = itertools.count()
    found = present.take(
        pa.array([next(places) if one.before else None for one in rows], pa.int64())
    )
    if not field.nullable:
        check_nulls(found, NEVER_NULL, lambda at: f"{BEFORE!r} of the row {rows[at].row!r}")
    return found


def _next(row: bytes) -> bytes:
    """The smallest key after `row`; the beginning of the table for an empty `row`."""
    return row + b"\0" if row else b""

"""§2.4 `spark.read`: a table at one consistent timestamp, as read by the paper's MapReduces.

Every action on a frame, and every task of it, reads at the timestamp that the frame got when it
was created: both sides of a self-join see the same rows. A retention hold with the frame's name
protects the timestamp from garbage collection for `holdSeconds` after the frame's last action
(Spark does not report when a frame is no longer used).

Ranges follow the table's tablets, and large tablets are cut further. A task that is retried reads
the same rows, so none is lost or duplicated when a process dies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from percola import ConflictingOptionsError, Family, Repository, Table, WrongTypeError
from percola.codecs import Codec, UnfitValueError, parse_text
from percola.feed import settled
from percola.spark.columns import Chosen, chosen
from percola.spark.metrics import METRICS, measured
from percola.spark.options import Options
from percola.spark.partitioning import row_ranges
from percola.spark.read.family_rows import LongRows, long_fields, long_rows
from percola.spark.read.scan import RangeReader, Sieve, merged
from percola.spark.sentences import errors_are_sentences
from percola.spark.types import row_codec
from percola.spark.versions import arrow_schema
from percola.transactions.snapshot import after_prefix

HOLD_SECONDS: Final = 3600.0
"""The default number of seconds a frame's timestamp is held after its last action."""

_RENEWED_SECONDS: Final = 60.0
"""The hold is not renewed for an action that comes so soon after the first one."""


# --- When the frame is made -----------------------------------------------------------------


def snapshot_timestamp(repository: Repository, options: Options) -> int:
    """The timestamp that the options select now.

    Raises UsageError for one in the future or a time before the log of times, SnapshotTooOldError
    for one below the safe point, ConflictingOptionsError for options that exclude each other.
    """
    at = options["snapshot"]
    time = options["timestampAsOf"]
    if time is not None and at != "latest":
        raise ConflictingOptionsError(
            f"timestampAsOf={time.isoformat()} and snapshot={at} both choose the timestamp: leave "
            "one of the two out."
        )
    if options["onLock"] == "avoid":
        if options.flag("allRows"):  # Of a catalog's table.
            raise ConflictingOptionsError(
                "onLock=avoid chooses the timestamp, but all tables of a query in SQL are read at "
                "the one that their catalog chooses: leave it out, or load the table by "
                "format('percola')."
            )
        if _is_past(options):
            given = f"snapshot={at}" if time is None else f"timestampAsOf={time.isoformat()}"
            raise ConflictingOptionsError(
                f"onLock=avoid chooses the timestamp, so it does not go with {given}: leave one of "
                "the two out."
            )
        return settled(repository, options.table(repository), all_locks=True)
    with repository.snapshot(time or (None if at == "latest" else at)) as snapshot:
        return snapshot.start_ts


def _is_past(options: Options) -> bool:
    """Whether the options name a timestamp or a time."""
    return options["snapshot"] != "latest" or options["timestampAsOf"] is not None


def frame_schema(options: Options, ts: int, frame: str) -> tuple[StructType, int]:
    """The schema of a frame of the table, and the timestamp at which it reads.

    Places the retention hold. If the frame reads the latest timestamp, it is chosen again
    afterwards: garbage collection that has not seen the hold began before that timestamp.
    """
    with options.open() as repository:
        table = options.table(repository)
        _bounds(table, options)
        family = _family(table, options)
        if family is not None:
            schema = long_fields(family, options.row_column)
        else:
            columns = chosen(table, None, options.text("columns"), options.row_column)
            schema = StructType([one.field for one in columns])
        _hold(repository, options, ts, frame)
        if not _is_past(options):
            ts = snapshot_timestamp(repository, options)
        return schema, ts


def _hold(repository: Repository, options: Options, ts: int, frame: str) -> None:
    seconds = options.seconds("holdSeconds", HOLD_SECONDS)
    if seconds:  # With holdSeconds=0 the user protects the timestamp, and reads write nothing.
        repository.hold(ts, seconds, name=frame)


def _family(table: Table[Any], options: Options) -> Family[Any, Any] | None:
    """The family to read as long rows; None to read the table's rows."""
    name = options.text("family")
    if name is None:
        return None
    if "columns" in options:
        raise ConflictingOptionsError(
            "The option family gives the columns row, qualifier and value, so it does not go with "
            "columns: leave one of the two out."
        )
    if options.flag("allRows"):  # Of a catalog's table.
        raise ConflictingOptionsError(
            "The option family gives the columns row, qualifier and value, which are not those of "
            "a catalog's table: load the family by format('percola')."
        )
    families = [member for member in table.members if isinstance(member, Family)]
    for family in families:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in families) or "none"
    raise ConflictingOptionsError(
        f"The table {table.name!r} has no family {name!r}. Its families are: {known}."
    )


def _bounds(table: Table[Any], options: Options) -> tuple[bytes, bytes]:
    """The range of rows that the options select, as keys; an empty end is the table's end."""
    if "prefix" in options and ("startRow" in options or "endRow" in options):
        raise ConflictingOptionsError(
            "Rows are chosen by either a prefix or startRow and endRow, not both."
        )
    prefix = _key(table, "prefix", options)
    if prefix:
        table.encode_prefix(table.decode_row(prefix))
        return prefix, after_prefix(prefix)
    return _key(table, "startRow", options), _key(table, "endRow", options)


def _key(table: Table[Any], name: str, options: Options) -> bytes:
    text = options.text(name)
    if not text:
        return b""
    if table.rows is str:
        return text.encode()
    if isinstance(table.rows, Codec):
        try:
            return table.encode_row(parse_text(table.rows, text))
        except UnfitValueError as error:
            raise WrongTypeError(
                f"Rows of the table {table.name!r} are {table.rows_name}, but {name} is not: "
                f"{error}."
            ) from None
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise WrongTypeError(
            f"Rows of the table {table.name!r} are bytes, so {name} is written in hexadecimal "
            f"digits, as in '00ff'; this is {text!r}."
        ) from None


# --- Each action ----------------------------------------------------------------------------


class RowRanges(InputPartition):
    """The row ranges that a task reads: each from a start up to but not including an end.

    An empty end is the table's end.

    Attributes:
        held_ms: when the frame's timestamp was held, by the wall clock, for the task that renews
            the hold: the first one.
    """

    def __init__(self, ranges: Sequence[tuple[bytes, bytes]], held_ms: int | None = None) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.held_ms = held_ms

    def __repr__(self) -> str:
        return f"RowRanges({list(self.ranges)!r})"


class TableReader(DataSourceReader):
    """Reads a table at a timestamp; it is pickled, and opens the repository where it runs."""

    def __init__(self, options: Options, schema: StructType, ts: int, frame: str) -> None:
        self._options = options
        self._measured = METRICS.name in schema.names
        self._schema = StructType([field for field in schema if field.name != METRICS.name])
        self._ts, self._frame = ts, frame
        with options.open() as repository:
            table = options.table(repository)
            self._row_codec = row_codec(table)
            self._range = _bounds(table, options)
            self._columns(table)

    def _columns(self, table: Table[Any]) -> list[Chosen] | LongRows:
        """The Percola columns behind the schema's columns."""
        family = _family(table, self._options)
        if family is not None:
            return long_rows(family, self._schema, self._options.row_column)
        return chosen(table, self._schema, None, self._options.row_column)

    @errors_are_sentences
    def partitions(self) -> list[InputPartition]:
        """Ranges of rows. Spark asks for them once, and uses them for all actions on a frame."""
        start, end = self._range
        options = self._options
        with options.open() as repository:
            if end and start >= end:
                return self._held(repository, [])
            store, wanted = repository.context.store, options.count("partitions")
            ranges = row_ranges(store, options.table_name, start, end, wanted)
            return self._held(repository, [[one] for one in ranges])

    def _held(
        self, repository: Repository, shares: Sequence[Sequence[tuple[bytes, bytes]]]
    ) -> list[InputPartition]:
        """Hold the timestamp; a task for each share, of which the first renews the hold."""
        _hold(repository, self._options, self._ts, self._frame)
        now = repository.context.clock.wall_ms()
        return [RowRanges(one, None if at else now) for at, one in enumerate(shares)]

    def _hold_again(self, repository: Repository, held_ms: int | None) -> None:
        """Renew the hold for a later action than the first."""
        if held_ms is None:
            return
        rest = min(_RENEWED_SECONDS, self._options.seconds("holdSeconds", HOLD_SECONDS) / 10)
        if abs(repository.context.clock.wall_ms() - held_ms) >= 1000 * rest:
            _hold(repository, self._options, self._ts, self._frame)

    def _sieves(self, columns: Sequence[Chosen]) -> list[Sieve]:
        """Tests that can drop rows before all of their columns are decoded."""
        return []

    @errors_are_sentences
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of some ranges as Arrow batches."""
        if not isinstance(partition, RowRanges):
            return  # Spark calls this without partitions, too.
        options = self._options
        with options.open() as repository, repository.snapshot(at=self._ts):
            self._hold_again(repository, partition.held_ms)
            table = options.table(repository)
            reader = RangeReader(
                repository.context, table.name, self._ts, fails_on_lock=options["onLock"] == "fail"
            )
            columns = self._columns(table)
            every = None
            if options.flag("allRows"):
                every = chosen(table, row_name=options.row_column)
            batches: Iterator[Any]
            if isinstance(columns, LongRows):
                batches = (
                    batch
                    for start, end in partition.ranges
                    for batch in reader.long_batches(columns, start, end)
                )
            elif len(keys := _points(partition.ranges)) > 1:
                batches = reader.points(columns, keys, self._sieves(columns), every)
            else:
                sieves = self._sieves(columns)
                batches = (
                    batch
                    for start, end in partition.ranges
                    for batch in reader.batches(columns, start, end, sieves, every)
                )
            batches = batches if len(partition.ranges) == 1 else merged(batches)
            if self._measured:
                whole = arrow_schema(StructType([*self._schema, METRICS]))
                counted = repository.context.calls
                batches = measured(batches, whole, lambda: reader.metrics.packed(counted))
            yield from batches


def _points(ranges: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """The rows, if each of the ranges is that of a single one."""
    rows = [start for start, end in ranges if end == start + b"\0"]
    return rows if len(rows) == len(ranges) else []


def reader(options: Options, schema: StructType, ts: int, frame: str) -> DataSourceReader:
    """The reader of a frame; with the option pushFilters, one that supports pushdown."""
    if options.flag("pushFilters"):
        from percola.spark.read.filters import FilteringReader

        return FilteringReader(options, schema, ts, frame)
    return TableReader(options, schema, ts, frame)

"""§2.1: long work on whole tables, as ranges of rows that one process or many work through.

Garbage collection, checks, copies, backups and reruns each look at every row. Each of them is a
`RangeWork`, a function over one range of rows, and a sum of what it counted in the ranges. A
`Runner` says who calls the function: `Here`, this process, one table after the other; or the tasks
of a Spark job (`percola.spark.ranges`), which cuts the tables into more ranges.

A walk that changes something keeps its positions in the store, so that a task that is run again, or
another process after this one was killed, goes on where it was:

    @percola[ROW].@walk      run → {"what", "before", "ranges"}     what is walked, in ranges
    @percola[ROW].@range:N   run → {"next", "counts"}               how far its range N has come

A run is one call of the driver. A walk that is resumed is a new run, of what was left: its ranges
replace those of the earlier run in one mutation, and positions are stored on the condition that
their run is still the last one. So a process or a task that was replaced without knowing learns so
when it next stores its position, or asks (`Walk.is_current`). Two attempts of one task are not told
apart, as Spark may run both on purpose: whatever the function does may be done twice, and each of
their positions is one before which all is done.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from percola.cells import MAX_TS, Cell, Kind
from percola.clock import Clock
from percola.errors import DamagedRecordError
from percola.store.base import SYSTEM_TABLE, Condition, Delete, Put, RowMutation, Store
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

_WALK: Final = b"@walk"
_RANGE: Final = b"@range:"
_SAVED_EVERY: Final = 1.0
_MOST_KEPT: Final = 1_000
"""An unfinished walk of more ranges than these loses its order, so that it cannot grow forever."""

K = TypeVar("K")
T = TypeVar("T")

Counts = Counter[str]
"""What was counted, by name."""


class TableRange(NamedTuple):
    """The rows of a table from `start` up to but not including `end`; an empty `end` is none."""

    table: str
    start: bytes = b""
    end: bytes = b""


RangeWork = Callable[[TransactionContext, int, TableRange], Generator[T]]
"""Works through the range of that number, in an open repository.

Yields what it has found so far, now and then and at the end; only the last one counts. It may be
run again from the start, or twice at once, and must keep its position itself if it wants to go on.
Closing it ends the work. A runner may pickle it.
"""

PairWork = Callable[[TransactionContext, int, TableRange], Generator[tuple[K, T]]]
"""Yields keys and values of a range, all of which count. Otherwise as `RangeWork`."""


class Runner(Protocol):
    """Runs work on ranges.

    Attributes:
        at_once: how many ranges it works on at the same time.
        on_this_machine: whether its processes have the files of this one.
    """

    @property
    def at_once(self) -> int:
        """How many ranges it works on at the same time."""

    @property
    def on_this_machine(self) -> bool:
        """Whether its processes have the files of this one."""

    def cut(self, store: Store, ranges: Sequence[TableRange]) -> list[TableRange]:
        """Cut ranges further, into as many as it is well to work on; in the same order."""

    def run(
        self,
        context: TransactionContext,
        ranges: Sequence[TableRange],
        work: RangeWork[T],
        *,
        title: str,
        tick: Callable[[], object] = lambda: None,
    ) -> Generator[tuple[int, T]]:
        """Run the work on every range; yield what it yields with the range's number.

        Perhaps only the last of each range. `title` is what is done, for people, such as
        "Checking"; `tick` is called regularly meanwhile. Closing the iterator ends the work.
        """

    def each(
        self,
        count: int,
        work: Callable[[int], Generator[T]],
        *,
        title: str,
        tick: Callable[[], object] = lambda: None,
    ) -> Generator[tuple[int, T]]:
        """As `run`, for work on the numbers below `count` that needs no repository."""

    def grouped(
        self,
        context: TransactionContext,
        ranges: Sequence[TableRange],
        work: PairWork[K, T],
        combine: Callable[[T, T], T],
        judge: Callable[[K, T], Iterable[str]],
        *,
        title: str,
        most: int,
    ) -> tuple[int, list[str]]:
        """Bring together, by key, what the work yields of all ranges, and judge every key.

        Returns how many findings `judge` has yielded, and `most` of them.
        """


class Here:
    """Runs work on one range after the other, in this process."""

    at_once: Final = 1
    on_this_machine: Final = True

    def cut(self, store: Store, ranges: Sequence[TableRange]) -> list[TableRange]:
        """Leave the ranges as they are."""
        return list(ranges)

    def run(
        self,
        context: TransactionContext,
        ranges: Sequence[TableRange],
        work: RangeWork[T],
        *,
        title: str,
        tick: Callable[[], object] = lambda: None,
    ) -> Generator[tuple[int, T]]:
        """See `Runner.run`: everything that the work yields."""
        return _in_turn(len(ranges), lambda at: work(context, at, ranges[at]), tick)

    def each(
        self,
        count: int,
        work: Callable[[int], Generator[T]],
        *,
        title: str,
        tick: Callable[[], object] = lambda: None,
    ) -> Generator[tuple[int, T]]:
        """See `Runner.each`: everything that the work yields."""
        return _in_turn(count, work, tick)

    def grouped(
        self,
        context: TransactionContext,
        ranges: Sequence[TableRange],
        work: PairWork[K, T],
        combine: Callable[[T, T], T],
        judge: Callable[[K, T], Iterable[str]],
        *,
        title: str,
        most: int,
    ) -> tuple[int, list[str]]:
        """See `Runner.grouped`: in a dictionary of all keys."""
        groups: dict[K, T] = {}
        for number, one in enumerate(ranges):
            with contextlib.closing(work(context, number, one)) as pairs:
                for key, value in pairs:
                    groups[key] = combine(groups[key], value) if key in groups else value
        return judged(groups.items(), judge, most)


HERE: Final[Runner] = Here()


def _in_turn(
    count: int, work: Callable[[int], Generator[T]], tick: Callable[[], object]
) -> Generator[tuple[int, T]]:
    for number in range(count):
        with contextlib.closing(work(number)) as found:
            for so_far in found:
                tick()
                yield number, so_far


def judged(
    groups: Iterable[tuple[K, T]], judge: Callable[[K, T], Iterable[str]], most: int
) -> tuple[int, list[str]]:
    """How many findings there are in these groups, and `most` of them."""
    number = 0
    kept: list[str] = []
    for key, value in groups:
        for found in judge(key, value):
            number += 1
            if len(kept) < most:
                kept.append(found)
    return number, kept


def whole(tables: Iterable[str]) -> list[TableRange]:
    """A range for each table, with all of its rows."""
    return [TableRange(table) for table in tables]


# --- Walks whose positions are stored -------------------------------------------------------


@dataclass(slots=True)
class Unfinished:
    """A walk that was not finished.

    Attributes:
        what: what its first run said of it.
        counts: what was counted up to its positions.
        left: the ranges that nobody has worked on.
        done: the others.
    """

    what: dict[str, Any]
    counts: Counts = field(default_factory=Counter)
    left: list[TableRange] = field(default_factory=list)
    done: list[TableRange] = field(default_factory=list)


class Walk:
    """One run of a walk whose positions are stored in a row of the system table.

    It may be pickled with work on its ranges, which binds it to the store of its task (`on`).

    Args:
        store: where; for a copy, the target's.
        clock: of the process that stores positions.
        row: the row.
        every: how many seconds are between two positions that this process stores.

    Attributes:
        run: the number of the run; `begin` sets it.
    """

    def __init__(
        self, store: Store, clock: Clock, row: bytes, every: float = _SAVED_EVERY, run: int = 0
    ) -> None:
        self._store = store
        self._clock = clock
        self._row = row
        self._every = every
        self._saved_at = clock.monotonic()
        self._alone = not run
        self.run = run

    def __reduce__(self) -> tuple[Any, ...]:
        return _Sent, (self._row, self._every, self.run)

    def on(self, store: Store, clock: Clock) -> Walk:
        """This walk."""
        return self

    def unfinished(self) -> Unfinished | None:
        """The walk that is stored, if there is one. Notes its run, which `begin` replaces.

        Raises DamagedRecordError if it cannot be read; `begin` replaces it all the same.
        """
        cell = Cell(SYSTEM_TABLE, self._row, _WALK)
        found = self._store.entries(cell, Kind.DATA, 0, MAX_TS, 1)
        if not found:
            return None
        self.run, raw = found[0]
        with _reading(cell, raw):
            text = json.loads(raw)
            walk = Unfinished(dict(text["what"]), Counter(text["before"]))
            ranges = [(table, *map(bytes.fromhex, bounds)) for table, *bounds in text["ranges"]]
        positions = self._positions()
        for number, (table, start, end) in enumerate(ranges):
            position, counts = positions.get(number, (start, Counter()))
            walk.counts.update(counts)
            if position is None:
                walk.done.append(TableRange(table, start, end))
                continue
            walk.left.append(TableRange(table, position, end))
            if position > start:
                walk.done.append(TableRange(table, start, position))
        return walk

    def begin(
        self, what: Mapping[str, Any], ranges: Sequence[TableRange], before: Counts | None = None
    ) -> bool:
        """Begin a run in place of the one that was noted; False if another process was faster."""
        text = {
            "what": dict(what),
            "before": before or {},
            "ranges": [[one.table, one.start.hex(), one.end.hex()] for one in ranges],
        }
        put = Put(Kind.DATA, _WALK, self.run + 1, json.dumps(text).encode())
        begun = self._replace([put])
        self.run += begun
        self._saved_at = self._clock.monotonic()
        return begun

    def end(self, *changes: Put | Delete) -> bool:
        """Remove the walk, with these changes of its row; False if it is another process's now."""
        return self._replace(list(changes))

    def is_current(self) -> bool:
        """Whether no other run has begun, and this one has not ended."""
        cell = Cell(SYSTEM_TABLE, self._row, _WALK)
        found = self._store.entries(cell, Kind.DATA, self.run, MAX_TS, 1)
        return bool(found) and found[0][0] == self.run

    def position(self, number: int, start: bytes) -> tuple[bytes | None, Counts]:
        """How far this run has come in a range: the next row, None at the end; what it counted."""
        cell = Cell(SYSTEM_TABLE, self._row, _range_column(number))
        found = self._store.entries(cell, Kind.DATA, self.run, self.run)
        return _position(cell, found[0][1]) if found else (start, Counter())

    def save(self, number: int, following: bytes | None, counts: Counts) -> bool:
        """Store how far a range has come; False if the run is no longer the last one."""
        text = {"next": None if following is None else following.hex(), "counts": counts}
        put = Put(Kind.DATA, _range_column(number), self.run, json.dumps(text).encode())
        self._saved_at = self._clock.monotonic()
        return self._store.mutate(
            [RowMutation(SYSTEM_TABLE, self._row, self._is_last(self.run), [put])]
        )[0]

    def is_due(self, *, ends: bool) -> bool:
        """Whether it is time to store a position; for a task always at the end of its range.

        A process that works alone has many short ranges perhaps, and ends the walk itself.
        """
        due = self._clock.monotonic() - self._saved_at >= self._every
        return due or (ends and not self._alone)

    def _positions(self) -> dict[int, tuple[bytes | None, Counts]]:
        return {
            int(column.removeprefix(_RANGE)): _position(Cell(SYSTEM_TABLE, self._row, column), raw)
            for column, run, raw in self._entries()
            if column.startswith(_RANGE) and run == self.run
        }

    def _replace(self, changes: list[Put | Delete]) -> bool:
        """Apply changes in place of all that is stored of the run."""
        gone = [
            Delete(Kind.DATA, column, ts)
            for column, ts, _ in self._entries()
            if column.startswith(_RANGE) or (column == _WALK and ts <= self.run)
        ]
        return self._store.mutate(
            [RowMutation(SYSTEM_TABLE, self._row, self._is_last(self.run), [*gone, *changes])]
        )[0]

    def _is_last(self, run: int) -> list[Condition]:
        conditions = [Condition(False, Kind.DATA, _WALK, run + 1, MAX_TS)]
        if run:
            conditions.append(Condition(True, Kind.DATA, _WALK, run, run))
        return conditions

    def _entries(self) -> list[tuple[bytes, int, bytes]]:
        entries = walk_kind(
            self._store, Kind.DATA, SYSTEM_TABLE, self._row, self._row + b"\0", limit=4096
        )
        return [(cell.column, ts, raw) for cell, ts, raw in entries]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A walk in a task, before it is bound to the task's store."""

    row: bytes
    every: float
    run: int

    def on(self, store: Store, clock: Clock) -> Walk:
        """The walk, which stores its positions in `store`."""
        return Walk(store, clock, self.row, self.every, self.run)


class NoWalk:
    """For work on a range that keeps no position: another attempt begins again."""

    def position(self, number: int, start: bytes) -> tuple[bytes | None, Counts]:
        """See `Walk.position`: the beginning."""
        return start, Counter()

    def is_due(self, *, ends: bool) -> bool:
        """See `Walk.is_due`: never."""
        return False

    def save(self, number: int, following: bytes | None, counts: Counts) -> bool:
        """See `Walk.save`."""
        return True

    def is_current(self) -> bool:
        """See `Walk.is_current`."""
        return True


class Cursor:
    """The stored position of one range, for the function that works through it.

    Attributes:
        following: the row to go on from; None at the end.
        counts: what was counted up to there, also by an earlier attempt of the same run.
    """

    def __init__(self, walk: Walk | NoWalk, number: int, one: TableRange) -> None:
        self._walk = walk
        self._number = number
        self.following, self.counts = walk.position(number, one.start)
        self._saved = self.following

    def move(self, following: bytes | None, first: Callable[[], object] = lambda: None) -> bool:
        """All before that row is done; stores so if it is time. False as `Walk.save` returns it.

        `first` is called before it is stored, for work that is done only then.
        """
        self.following = following
        if not self._walk.is_due(ends=following is None):
            return True
        first()
        return self.save()

    def save(self) -> bool:
        """Store the position now, unless it is stored."""
        if self.following == self._saved:
            return True
        self._saved = self.following
        return self._walk.save(self._number, self.following, self.counts)


def joined(ranges: Iterable[TableRange]) -> list[TableRange]:
    """The same rows in the same order, in as few ranges as that takes."""
    found: list[TableRange] = []
    for one in ranges:
        before = found[-1] if found else None
        if before and before.table == one.table and before.end == one.start != b"":
            found[-1] = before._replace(end=one.end)
        else:
            found.append(one)
    return found


def turned(walk: Unfinished, tables: Sequence[str]) -> list[TableRange]:
    """All rows of the tables in an order that begins with those that the walk has left."""
    there = set(tables)
    known = [one for one in (*walk.left, *walk.done) if one.table in there]
    new = there - {one.table for one in known}
    found = joined([*whole(table for table in tables if table in new), *known])
    return found if len(found) <= _MOST_KEPT else whole(tables)


def _range_column(number: int) -> bytes:
    return b"%b%d" % (_RANGE, number)


def _position(cell: Cell, raw: bytes) -> tuple[bytes | None, Counts]:
    with _reading(cell, raw):
        text = json.loads(raw)
        following = text["next"]
        return None if following is None else bytes.fromhex(following), Counter(text["counts"])


@contextlib.contextmanager
def _reading(cell: Cell, raw: bytes) -> Iterator[None]:
    """Raise DamagedRecordError if the block cannot read the value of a cell."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedRecordError(
            f"{cell} holds {raw[:60]!r}, which is no position of a walk over tables: the store is "
            "damaged. A rerun can be begun anew (--restart), and a copy in another place."
        ) from error

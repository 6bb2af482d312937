"""§2.4: run an observer, new or changed, over rows that are there.

A new observer sees only the changes since it has been there, and one whose function was changed
has acknowledged the cells that its old function has handled. A rerun marks the rows of a range
dirty, a batch in each transaction, and the workers run the observer as after any change:

    c:ack_O     deleted, if there is one: the observer has acknowledged nothing
    c:notify    put at the commit_ts, as for a weak notification (rule N4)

The transaction deletes the acknowledgment that a run writes, so of a run and a rerun of one cell
that overlap, one conflicts (rule N3): either the run comes first, and its acknowledgment is
deleted, or it is repeated and sees that there is none. The other observers of the column find their
acknowledgments and do nothing; those that have not handled the newest change run there, too. Rows
that are written meanwhile notify the observer themselves.

It is work on ranges of rows (`percola.ranges`), by this process or by tasks of Spark. Positions are
stored after each batch, on Spark about once a second, so that a rerun whose process was killed goes
on where it was; what was marked since then may be marked twice.

    @percola["rerun/NAME"]   the walk, which says which columns and prefixes it is about

A second process that runs the same rerun takes it over, and the first one ends with an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from percola.cells import Cell, ack_column
from percola.clock import backoff
from percola.errors import (
    ConflictingOptionsError,
    DamagedRecordError,
    ObserverError,
    TransientError,
    UsageError,
)
from percola.observers.observer import ObservedColumn, Observer
from percola.platform import fork_safety as forks
from percola.ranges import HERE, Counts, Cursor, Runner, TableRange, Unfinished, Walk
from percola.repository import Repository
from percola.schema import R, WeakColumn
from percola.transactions.context import TransactionContext
from percola.transactions.snapshot import after_prefix
from percola.transactions.transaction import Transaction

_BATCH: Final = 256
"""The most rows that a transaction marks."""

_SAVED_EVERY: Final = 1.0
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Rerun:
    """How far a rerun has come.

    Attributes:
        observer: the observer's name.
        rows: how many rows it has marked dirty, including those before it was interrupted.
        resumed: how many of them were marked before it was interrupted; 0 if it never was.
    """

    observer: str
    rows: int = 0
    resumed: int = 0


def rerun(
    repo: Repository,
    observer: Observer[R],
    *,
    prefixes: Iterable[R] = (),
    rate: float | None = None,
    restart: bool = False,
    progress: Callable[[Rerun], object] = lambda so_far: None,
    runner: Runner = HERE,
) -> Rerun:
    """Mark rows dirty so that workers run an observer on them, even if it has run there before.

    Marked are the rows that have a value in one of its columns; if all its columns are weak, all
    rows of the table. Other observers of these columns run there, too, if they have not handled the
    newest change. Run workers with the observer as it is now, and with no older version of it,
    before or meanwhile. If an earlier call for this observer was interrupted, this one goes on
    where it was.

    Args:
        prefixes: only rows that begin with one of these; all rows if there are none.
        rate: rows per second at most; None: no limit.
        restart: begin at the first row even if an earlier call was interrupted.
        progress: called after every batch.
        runner: who marks: this process, or the tasks of Spark (`percola.spark.OnSpark`), which
            share the rate.

    Raises UsageError if another process has taken over the same rerun, or an interrupted one has
    other columns or prefixes; ConflictingOptionsError for a rate that is not above 0; the errors of
    a schema without its columns; TransientError after 20 conflicts of one row, StoreError;
    ObserverError for what is no observer.
    """
    if not isinstance(observer, Observer):
        raise ObserverError(
            f"{observer!r} is not an observer: decorate the function with @observer(column)."
        )
    return rerun_named(
        repo,
        observer.name,
        observer.columns,
        prefixes=prefixes,
        rate=rate,
        restart=restart,
        progress=progress,
        runner=runner,
    )


def rerun_named(
    repo: Repository,
    name: str,
    columns: Sequence[ObservedColumn[Any]],
    *,
    prefixes: Iterable[Any] = (),
    rate: float | None = None,
    restart: bool = False,
    progress: Callable[[Rerun], object] = lambda so_far: None,
    runner: Runner = HERE,
) -> Rerun:
    """`rerun` for an observer that is known by its name and columns."""
    if rate is not None and not (isinstance(rate, int | float) and 0 < rate < math.inf):
        raise ConflictingOptionsError(f"A rate of {rate!r} is not a number of rows above 0.")
    if isinstance(prefixes, str | bytes):
        raise UsageError(f"The prefixes are a list of rows' beginnings, but this is {prefixes!r}.")
    table = columns[0].table
    for column in columns:
        repo.table(table.name).resolve(column.name)
    context = repo.context
    asked = _shortest(table.encode_prefix(one) for one in prefixes)
    often = 0.0 if runner.at_once == 1 else _SAVED_EVERY
    walk = Walk(context.store, context.clock, b"rerun/" + name.encode(), often)
    what = {"columns": sorted(one.name for one in columns), "prefixes": _digest(asked)}
    try:
        found = walk.unfinished()
    except DamagedRecordError:
        if not restart:
            raise
        found = None
    if found is not None and not restart and found.what != what:
        raise UsageError(
            f"A rerun of {name!r} was interrupted after {found.counts['rows']:,} rows, and it had "
            "other prefixes or columns. Finish it as it was begun, or begin this one with "
            "--restart (restart=True)."
        )
    if found is None or restart:
        # An empty end is no bound.
        every = TableRange(
            table.name, asked[0] if asked else b"", after_prefix((asked or [b""])[-1])
        )
        found = Unfinished(what, left=[every])
    ranges = runner.cut(context.store, found.left)
    if not walk.begin(what, ranges, found.counts):
        raise _overtaken(name)
    before = found.counts["rows"]
    state = Rerun(name, before, before)
    work = _MarkRange(
        walk,
        name,
        asked,
        tuple(one.key for one in columns if isinstance(one, WeakColumn)),
        # The acknowledgment of each column that has values.
        {one.key: ack_column(name, one.key) for one in columns if not isinstance(one, WeakColumn)},
        None if rate is None else rate / max(1, min(runner.at_once, len(ranges))),
    )
    parts_of: dict[int, Counts] = {}
    for number, counts in runner.run(context, ranges, work, title=f"Marking for {name}"):
        parts_of[number] = counts
        state = replace(state, rows=before + sum(one["rows"] for one in parts_of.values()))
        progress(state)
    if not walk.end():
        raise _overtaken(name)
    return state


def _overtaken(name: str) -> UsageError:
    return UsageError(
        f"Another process runs a rerun of {name!r} and has gone on with it from here: let it "
        "finish."
    )


@dataclass(frozen=True, slots=True)
class _MarkRange:
    """Marks the rows of a range, from the position that is stored of it."""

    walk: Walk
    name: str
    prefixes: Sequence[bytes]
    weak: Sequence[bytes]
    acks: Mapping[bytes, bytes]
    rate: float | None

    def __call__(
        self, context: TransactionContext, number: int, one: TableRange
    ) -> Generator[Counts]:
        cursor = Cursor(self.walk.on(context.store, context.clock), number, one)
        yield from _Marker(context, self, one, cursor).run()


class _Marker:
    """Marks the rows of one range."""

    def __init__(
        self, context: TransactionContext, work: _MarkRange, one: TableRange, cursor: Cursor
    ) -> None:
        self._context = context
        self._work = work
        self._range = one
        self._cursor = cursor
        self._rng = forks.new_random()

    def run(self) -> Generator[Counts]:
        """Mark what has not been marked; yields how much was, after each batch."""
        clock, cursor, rate = self._context.clock, self._cursor, self._work.rate
        before = cursor.counts["rows"]
        began = clock.monotonic()
        most = _BATCH if rate is None else max(1, min(_BATCH, math.ceil(rate)))
        size = most
        while cursor.following is not None:
            size, following, marked = self._mark(cursor.following, min(most, 2 * size))
            cursor.counts["rows"] += marked
            if not cursor.move(following):
                raise _overtaken(self._work.name)
            yield cursor.counts
            if rate is not None:
                early = began + (cursor.counts["rows"] - before) / rate - clock.monotonic()
                if early > 0:
                    clock.sleep(early)
        yield cursor.counts

    def _mark(self, start: bytes, size: int) -> tuple[int, bytes | None, int]:
        """Mark up to `size` rows; return the size used, where to go on, and how many were marked.

        A batch that conflicts with runs of the observer is tried again with half the rows.
        """
        for attempt in itertools.count(1):
            try:
                with Transaction(self._context) as t:
                    following, marked = self._mark_rows(t, start, size)
            except TransientError:
                if attempt >= _ATTEMPTS:
                    raise
                size = max(1, size // 2)
                wait = backoff(self._rng, attempt, first=0.001, most=0.5)
                self._context.clock.sleep(wait)
                continue
            return size, following, marked
        raise AssertionError("unreachable")

    def _mark_rows(self, t: Transaction, start: bytes, size: int) -> tuple[bytes | None, int]:
        name, acks, weak = self._range.table, self._work.acks, self._work.weak
        wanted = [(one, False) for one in (*acks, *acks.values())] if acks else None
        marked = 0
        for low, high in self._spans(start):
            for row, values in t._scan(name, low, high, wanted):
                columns = [column for column in acks if column in values] if acks else weak
                for column in columns:
                    t._mark_dirty(Cell(name, row, column))
                    if column in acks and acks[column] in values:
                        t._forget(Cell(name, row, acks[column]))
                marked += bool(columns)
                size -= 1
                if not size:
                    return row + b"\0", marked
        return None, marked

    def _spans(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows of the range from `start` on that have a prefix, as [low, high)."""
        end = self._range.end
        for low in self._work.prefixes or [b""]:
            high = after_prefix(low)
            high = min(high, end) if high and end else high or end
            low = max(low, start)
            if not high or low < high:
                yield low, high


def _digest(prefixes: Sequence[bytes]) -> str:
    """The prefixes in a few bytes: there may be thousands."""
    return blake2b(b"".join(b"%d:%b" % (len(one), one) for one in prefixes)).hexdigest()[:32]


def _shortest(prefixes: Iterable[bytes]) -> list[bytes]:
    """The prefixes in order, without those that begin with another one."""
    kept: list[bytes] = []
    for one in sorted(set(prefixes)):
        if not kept or not one.startswith(kept[-1]):
            kept.append(one)
    return kept

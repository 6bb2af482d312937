"""What a page shows: samples, from which the plots are drawn, and the view of now beside them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from percola.inspection import Failure, HeldLock, Process
from percola.observers.reports import Report
from percola.paused import PausedObserver
from percola.serve.rates import Speed


@dataclass(frozen=True, slots=True)
class Sample:
    """The repository at one moment; the plots are drawn from these.

    Attributes:
        number: counts up from 1; after a gap, older samples were dropped.
        at_ms: when it was taken, in milliseconds since the epoch.
        last_ts: the last timestamp drawn.
        waiting: by observer, the cells that it has yet to answer; and by column, written
            `table.column`, dirty cells that no observer is known for.
        failed: dead-lettered changes; None where counting them takes a scan of whole tables.
        oldest_s: seconds since the oldest pending change; 0 if there is none.
        timestamps: drawn a second, since the last sample; None for the first one.
        runs, conflicts: of observers, a second; None if no worker tells.
        p50, p95, p99: milliseconds from a change to its answer, over the last minute's.
        more: what an application adds.
    """

    number: int
    at_ms: int
    last_ts: int
    waiting: dict[str, int]
    failed: int | None
    oldest_s: float
    timestamps: float | None = None
    runs: float | None = None
    conflicts: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    more: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObserverState:
    """An observer as a row of the page; or, with `is_column`, a column that no observer answers.

    Attributes:
        name: its name.
        columns: the columns that it observes.
        waiting: the cells that it has yet to answer.
        oldest_s: seconds since the oldest change among them, or None.
        at_least: whether that change may be older than can be told.
        oldest_cell: the cell of that change, as text; empty if there is none.
        retrying: on how many of the waiting cells it has failed, and will run again.
        dead: changes that are dead-lettered for it; or, where they are not counted, those that
            workers have dead-lettered since they started.
        paused: since when and why it is paused, or None.
        processes: how many live processes run it.
        speed: what workers did for it; None if none of them tells.
        is_column: whether this is a column without an observer.
    """

    name: str
    columns: tuple[str, ...]
    waiting: int
    oldest_s: float | None
    at_least: bool
    oldest_cell: str
    retrying: int
    dead: int
    paused: PausedObserver | None
    processes: int
    speed: Speed | None
    is_column: bool = False


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead-lettered change.

    Attributes:
        failure: the change, with its traceback.
        row: its row, as text.
        link: a page about the row, of an application; empty for none.
    """

    failure: Failure
    row: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class WorkingProcess:
    """A live process, and what the workers in it report; empty if none does."""

    process: Process
    reports: tuple[Report, ...]

    @property
    def observers(self) -> list[str]:
        """The names of the observers that it runs."""
        labels = itertools.chain.from_iterable(self.process.observers.values())
        return sorted({label.partition("(")[0] for label in labels})


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock, with its cell as text and the seconds since its transaction began, at least."""

    held: HeldLock
    cell: str
    age_s: float


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What keeps the safe point where it is: a sentence's subject, and the timestamp it needs."""

    what: str
    ts: int
    age_s: float


@dataclass(slots=True)
class View:
    """The data shown beside the plots.

    Attributes:
        version: counts up with each attempt to take a sample.
        trouble: a message if the last sample could not be taken: the rest is of an earlier one.
        complete: whether the survey has read everything; if not, its numbers are lower bounds.
        observers: those of live workers, of the application, paused and with dead letters.
        processes: the live ones.
        letters: the dead letters of the newest changes; None where finding them would take a scan
            of whole tables.
        locks: the oldest locks; None where finding them would take a scan of whole tables.
        locked: how many cells are locked; None there as well.
        safe_point: the oldest timestamp that can be read; 0 before any garbage collection.
        safe_point_s: how many seconds ago it was the newest one; None before the first sample.
        held_back: what needs timestamps near the safe point, the oldest first.
        retention: how long workers keep superseded versions, in seconds; None if none tells.
        calls: calls to the store a second, and their cells, by kind; None where none are counted.
        used_bytes, free_bytes: of the folder and its disk; None for a store on servers.
    """

    version: int = 0
    trouble: str = ""
    complete: bool = True
    observers: list[ObserverState] = field(default_factory=list)
    processes: list[WorkingProcess] = field(default_factory=list)
    letters: list[Letter] | None = field(default_factory=list)
    locks: list[Lock] | None = field(default_factory=list)
    locked: int | None = 0
    safe_point: int = 0
    safe_point_s: float | None = None
    held_back: list[HeldBack] = field(default_factory=list)
    retention: float | None = None
    calls: dict[str, tuple[float, float]] | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def oldest(self) -> ObserverState | None:
        """The observer or column that the oldest pending change waits for, or None."""
        waiting = [one for one in self.observers if one.oldest_s is not None]
        return max(waiting, key=lambda one: one.oldest_s or 0.0, default=None)

    @property
    def workers(self) -> list[WorkingProcess]:
        """The processes that run observers."""
        return [one for one in self.processes if one.process.observers]


def since(samples: Sequence[Sample], number: int) -> list[Sample]:
    """The samples after the one of this number."""
    if samples and number >= samples[-1].number:
        return []
    start = bisect.bisect_right(samples, number, key=lambda sample: sample.number)
    return list(itertools.islice(samples, start, None))


def as_json(sample: Sample) -> dict[str, Any]:
    """A sample as the page's script reads it."""
    return asdict(sample)

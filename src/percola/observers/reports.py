"""§2.4: what each worker reports of itself, for `percola serve`.

    @percola["worker/TOKEN/N"].@report   1 → {"pid": 4711, "observers": {…}, …}

Throughput, conflicts, latencies and store calls are counted in the worker's memory. Every few
seconds it writes the totals into a row of its own in the system table, so that all who can read the
repository can see them, whatever the store is, and from whichever machine: nothing has to reach the
worker's ports. It writes only what has changed, so an idle worker writes nothing. It is one
unconditional put in a thread of its own: no commit waits for it, and no timestamp is drawn.

The row goes when the worker stops. That of a killed worker stays until another worker starts, which
removes the rows of tokens that are dead. A row holds totals and never rates: a reader that has seen
it before computes those (`percola.serve.rates`), and a report that is lost costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from percola.cells import Kind
from percola.store.base import SYSTEM_TABLE, Delete, Put, RowMutation, Store
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

if TYPE_CHECKING:  # Prometheus is loaded by the first worker, not by every program.
    from percola.observers.metrics import Counted, WorkerMetrics

EVERY: Final = 5.0
"""The usual seconds between reports: `WorkerOptions.report` of `percola worker`."""

_ROWS: Final = b"worker/"
_AFTER_ROWS: Final = b"worker0"
_COLUMN: Final = b"@report"
_TS: Final = 1
_READ: Final = 1_000
_LONG: Final = 1.0

_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LongRun:
    """A run that has been going on for longer than a second.

    Attributes:
        observer: the observer.
        since_ms: when it began, by the worker's wall clock, in milliseconds since the epoch.
    """

    observer: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class ObserverTotals:
    """What a worker has counted of an observer since it started.

    Attributes:
        runs: runs that committed.
        conflicts: transactions that lost to another one and ran again.
        failures: how often it raised.
        dead_lettered: how often a change was dead-lettered for it.
        latencies: how many changes it answered, by bucket of their latency
            (`percola.observers.metrics.LATENCIES`); empty if none.
    """

    runs: int = 0
    conflicts: int = 0
    failures: int = 0
    dead_lettered: int = 0
    latencies: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker reports of itself. Times are in milliseconds since the epoch, by its clock.

    Attributes:
        pid: its process id.
        host: its machine.
        since_ms: when it started.
        at_ms: when it reported: its numbers are the same until it reports again.
        every: seconds between its checks whether there is something new to report.
        threads: how many threads scan and run observers.
        observers: its observers, by name.
        calls: calls to the store by kind, all callers together, as (calls, cells); None on
            a store in which calls are not counted, because they go over no network.
        running: its runs of more than a second, the longest first; eight at most.
        retention: seconds for which it keeps superseded versions; None if it collects no garbage.
        held_back: why garbage collection could not raise the safe point further when this worker
            last had its turn; empty if nothing held it back, or it had no turn.
    """

    pid: int
    host: str
    since_ms: int
    at_ms: int
    every: float
    threads: int
    observers: dict[str, ObserverTotals]
    calls: dict[str, tuple[int, int]] | None = None
    running: tuple[LongRun, ...] = ()
    retention: float | None = None
    held_back: str = ""


class Reporter:
    """Writes a worker's reports. Its methods but `held_back` are for one thread.

    Args:
        observers: the names of the worker's observers.
        running: the runs in progress: the observer and seconds since its run began.
        calls: the counts of calls to the store; None if they are not counted.

    Attributes:
        held_back: see `Report`.
    """

    def __init__(
        self,
        context: TransactionContext,
        observers: Sequence[str],
        metrics: WorkerMetrics,
        running: Callable[[], list[tuple[str, float]]],
        calls: Callable[[], Counted] | None,
        *,
        every: float,
        threads: int,
        retention: float | None,
    ) -> None:
        self._context = context
        self._observers = observers
        self._metrics = metrics
        self._running = running
        self._calls = calls
        self._every = every
        self._threads = threads
        self._retention = retention
        self._since_ms = context.clock.wall_ms()
        self._number = next(_numbers)
        self._row = b""
        self._written: dict[str, object] = {}
        self.held_back = ""

    def report(self) -> None:
        """Report, unless nothing has changed. Raises StoreError."""
        # A lost session with ZooKeeper brings another token, and so another row.
        row = b"%b%b/%d" % (_ROWS, self._context.coordination.token.encode(), self._number)
        report = asdict(self._take())
        at_ms = report.pop("at_ms")
        if row == self._row and report == self._written:
            return
        if row != self._row:
            self.withdraw()
        text = json.dumps({"at_ms": at_ms, **report}, separators=(",", ":")).encode()
        put = Put(Kind.DATA, _COLUMN, _TS, text)
        self._context.store.mutate([RowMutation(SYSTEM_TABLE, row, (), [put])])
        self._row, self._written = row, report

    def withdraw(self) -> None:
        """Remove this worker's report. Raises StoreError."""
        if self._row:
            _remove(self._context.store, self._row)
            self._row, self._written = b"", {}

    def forget_dead(self) -> None:
        """Remove the reports of processes that have ended. Raises StoreError."""
        context = self._context
        for row, _ in _rows(context.store):
            if not context.coordination.is_alive(_token(row)):
                _remove(context.store, row)

    def _take(self) -> Report:
        now_ms = self._context.clock.wall_ms()
        long = sorted(self._running(), key=lambda one: -one[1])[:8]
        counts = self._metrics.counts()
        return Report(
            pid=os.getpid(),
            host=socket.gethostname(),
            since_ms=self._since_ms,
            at_ms=now_ms,
            every=self._every,
            threads=self._threads,
            observers={
                name: ObserverTotals(
                    latencies=tuple(self._metrics.latency.counts(name)),
                    **{
                        field: int(counts.get(f"observer_{field}", {}).get(name, 0))
                        for field in ("runs", "conflicts", "failures", "dead_lettered")
                    },
                )
                for name in self._observers
            },
            calls=None if self._calls is None else _by_kind(self._calls()),
            # To the second, so that a run that goes on does not change the report.
            running=tuple(
                LongRun(name, round((now_ms - seconds * 1000) / 1000) * 1000)
                for name, seconds in long
                if seconds > _LONG
            ),
            retention=self._retention,
            held_back=self.held_back,
        )


def read_reports(store: Store) -> dict[str, Report]:
    """The reports by row, up to a thousand; those of ended processes may be among them.

    `reporting_process` tells whose each is. Raises StoreError.
    """
    found: dict[str, Report] = {}
    for row, text in _rows(store):
        # One of another release may not be understood: it then counts as none.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            found[row.decode()] = _decode(json.loads(text))
    return found


def reporting_process(row: str) -> str:
    """The liveness token of the process whose report is in this row."""
    return _token(row.encode())


def _rows(store: Store) -> Iterator[tuple[bytes, bytes]]:
    entries = walk_kind(store, Kind.DATA, SYSTEM_TABLE, _ROWS, _AFTER_ROWS)
    for cell, _, text in itertools.islice(entries, _READ):
        yield cell.row, text


def _token(row: bytes) -> str:
    return row.removeprefix(_ROWS).rpartition(b"/")[0].decode("utf-8", "replace")


def _remove(store: Store, row: bytes) -> None:
    store.mutate([RowMutation(SYSTEM_TABLE, row, (), [Delete(Kind.DATA, _COLUMN, _TS)])])


def _by_kind(counted: Counted) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for (_, kind), (calls, _, cells) in counted.items():
        before = found.get(kind, (0, 0))
        found[kind] = before[0] + calls, before[1] + cells
    return found


def _decode(said: dict[str, object]) -> Report:
    """A report from its JSON; ValueError or the like if it is none."""
    observers, calls, running = said["observers"], said["calls"], said["running"]
    if not isinstance(observers, dict) or not isinstance(running, list):
        raise ValueError(f"{said!r} is no report")
    if calls is not None and not isinstance(calls, dict):
        raise ValueError(f"{calls!r} are no calls")
    totals = {
        str(name): ObserverTotals(**{**one, "latencies": tuple(one["latencies"])})
        for name, one in observers.items()
    }
    rest = {name: value for name, value in said.items() if name in _PLAIN}
    return Report(
        **rest,  # type: ignore[arg-type]
        observers=totals,
        calls=None if calls is None else {kind: (one[0], one[1]) for kind, one in calls.items()},
        running=tuple(LongRun(**one) for one in running),
    )


_PLAIN: Final = {"pid", "host", "since_ms", "at_ms", "every", "threads", "retention", "held_back"}

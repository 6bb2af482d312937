"""What is going on in a repository, sampled from it; any number of pages show the same samples.

Everything comes from the repository, whichever processes work on it and however often they are
restarted: what waits and is dead-lettered from a survey (`percola.observers.survey`), what workers
did from their reports (`percola.observers.reports`), who lives from the coordination.

A sample reads a bounded part of each table, and costs the same however large the repository is; but
on HBase, servers pass an entry of each cell that was ever locked. The next one waits for at least
twenty times as long as it took. Samples are taken each second while
somebody looks, else every ten seconds; that nobody looks costs next to nothing, and the plots of
the last minutes are there when somebody opens the page.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final

from percola import inspection
from percola.catalog import stored_schema
from percola.cells import Cell
from percola.errors import PercolaError
from percola.gc.time_log import read_log
from percola.inspection import Failure, Process
from percola.observers.draw_times import DrawTimes
from percola.observers.observer import Observer
from percola.observers.reports import Report, read_reports, reporting_process
from percola.observers.survey import Surveyed, take_survey
from percola.paused import PausedObserver, paused_observers
from percola.platform import fork_safety as forks
from percola.repository import Repository
from percola.schema import Family, Schema
from percola.serve import shown
from percola.serve.rates import Rates, Speeds, retention
from percola.serve.view import (
    HeldBack,
    Letter,
    Lock,
    ObserverState,
    Sample,
    View,
    WorkingProcess,
)

KEPT: Final = 900
"""Samples that are kept."""

LISTED: Final = 50
"""The most dead letters and locks to list; all are counted, up to the bound of a survey."""

HOLDS: Final = 5
"""The most holds to list, the oldest first."""

log = logging.getLogger("percola.serve")

END_SECONDS: Final = 2.0
"""For how long the end of the server waits for what a thread has asked of the store."""

_DEFECT: Final = "No numbers could be taken. What happened stands in the server's output."
_LOOKED_AT: Final = 1.0
_UNATTENDED: Final = 10.0
_ATTENTION: Final = 15.0
_SHARE: Final = 20
_NOTED: Final = 1.0


class Sampler:
    """Takes samples in its own thread. Any thread may request them.

    An application adds to the page by a class derived from this one: see `measure` and `letter`.

    Args:
        repo: an open repository, which must outlive it.
        observers: the application's; those that live workers announce are known anyway.
    """

    expected: tuple[type[Exception], ...] = (PercolaError,)
    """Errors whose message is shown when a sample cannot be taken; others are defects."""

    def __init__(self, repo: Repository, observers: Iterable[Observer[Any]] = ()) -> None:
        self._repo = repo
        self._declared: dict[str, set[str]] = {}
        for one in observers:
            columns = {f"{column.table_name}.{column.name}" for column in one.columns}
            self._declared.setdefault(one.name, set()).update(columns)
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._view = View()
        self._times = DrawTimes(repo.context.clock)
        self._rates = Rates(repo.context.clock)
        self._learned = False
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._changed = threading.Condition()
        self._looked = 0.0
        self._stopping = False
        self._awaited = False
        self._tried = 0
        self._thread = threading.Thread(target=self._run, name="percola-serve", daemon=True)

    # --- For an application -----------------------------------------------------------------

    def measure(self, at_ms: int, seconds: float | None) -> Mapping[str, float | None]:
        """More numbers for `Sample.more`. Called in the sampler's thread, for each sample.

        Args:
            at_ms: the time, in milliseconds since the epoch.
            seconds: since the last sample; None for the first one.
        """
        return {}

    def letter(self, failure: Failure, row: str) -> Letter:
        """A dead letter as it is shown. Called in the sampler's thread."""
        return Letter(failure, row)

    @property
    def is_looked_at(self) -> bool:
        """Whether somebody has asked for samples within the last seconds."""
        return time.monotonic() - self._looked < _ATTENTION

    # --- For pages --------------------------------------------------------------------------

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; returns when it has ended, or waits in vain for the store."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)

    def look(self, *, seconds: float = 2.0) -> tuple[list[Sample], View]:
        """All samples and the view.

        If nobody has asked recently, waits up to `seconds` for a new sample. For a while after each
        call, samples are taken each second.
        """
        with self._changed:
            was_looked_at = self.is_looked_at
            self._looked = time.monotonic()
            if not was_looked_at:
                before, self._awaited = self._tried, True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._tried > before or self._stopping, seconds)
            return list(self._samples), self._view

    def look_again(self) -> None:
        """Take the next sample at once: somebody has changed something."""
        with self._changed:
            self._looked = 0.0

    @property
    def address(self) -> str:
        """Where the repository is."""
        return self._repo.address

    # --- In the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            began, self._awaited = time.monotonic(), False
            try:
                sample, view = self._take()
            except self.expected as error:
                sample, view = None, replace(self._view, trouble=str(error))
            except Exception:
                if self._stopping:
                    return  # The process may be ending.
                # If this thread ended, the plots would freeze without an explanation.
                log.exception("A sample could not be taken.")
                sample, view = None, replace(self._view, trouble=_DEFECT)
            cost = time.monotonic() - began
            with self._changed:
                self._tried += 1
                self._view = replace(view, version=self._tried)
                if sample is not None:
                    self._samples.append(sample)
                self._changed.notify_all()
            self._rest(began, cost)

    def _rest(self, began: float, cost: float) -> None:
        """Wait until the next sample is due; sooner if a browser opens the view."""
        while not self._stopping:
            with self._changed:
                now = time.monotonic()
                usual = _LOOKED_AT if self.is_looked_at else _UNATTENDED
                pause = max(0.0 if self._awaited else usual, _SHARE * cost)
                left = began + pause - now
                if left <= 0:
                    return
                self._changed.wait(min(left, _NOTED))
            self._note_time()

    def _note_time(self) -> None:
        """Note which timestamp is the newest, so that ages are right to the second."""
        try:
            self._times.note(self._repo.context.oracle.read_timestamp())
        except PercolaError:
            return  # The next sample reports it.

    def _take(self) -> tuple[Sample, View]:
        context, store = self._repo.context, self._repo.context.store
        if not self._learned:
            self._times.learn(read_log(store))
            self._learned = True
        at_ms = context.clock.wall_ms()
        last_ts = context.oracle.read_timestamp()
        self._times.note(last_ts)

        schema = stored_schema(store).with_codecs_of(self._repo.schema)
        live = inspection.processes(self._repo)
        paused = paused_observers(store)
        columns = self._columns(live, paused)
        reports, speeds = self._reported({one.token for one in live})
        surveyed = take_survey(
            context,
            _by_column(schema, columns),
            [table.name for table in schema],
            examples=LISTED,
            letters=not store.has_notify_table,
        )
        if store.has_notify_table:
            for report in itertools.chain.from_iterable(reports.values()):
                for name, totals in report.observers.items():
                    surveyed.dead[name] += totals.dead_lettered
        view = View(
            complete=surveyed.complete,
            observers=self._observers(schema, columns, live, paused, surveyed, speeds),
            processes=[WorkingProcess(one, tuple(reports.get(one.token, ()))) for one in live],
            letters=None if store.has_notify_table else self._letters(schema, surveyed),
            locks=None if surveyed.locked is None else self._locks(schema, surveyed),
            locked=surveyed.locked,
            safe_point=surveyed.safe_point,
            safe_point_s=self._times.age(surveyed.safe_point + 1),
            held_back=self._held_back(surveyed),
            retention=retention(itertools.chain.from_iterable(reports.values())),
            calls=speeds.calls,
        )
        if os.path.isdir(self._repo.address):
            view.used_bytes = store.statistics().get("bytes")
            view.free_bytes = shutil.disk_usage(self._repo.address).free
        return self._sample(at_ms, last_ts, view, surveyed, speeds), view

    def _sample(
        self, at_ms: int, last_ts: int, view: View, surveyed: Surveyed, speeds: Speeds
    ) -> Sample:
        before = self._samples[-1] if self._samples else None
        seconds = (at_ms - before.at_ms) / 1000 if before is not None else None
        oldest, total = view.oldest, speeds.total
        return Sample(
            number=before.number + 1 if before is not None else 1,
            at_ms=at_ms,
            last_ts=last_ts,
            waiting={one.name: one.waiting for one in view.observers if one.waiting},
            failed=None if view.letters is None else sum(surveyed.dead.values()),
            oldest_s=round(oldest.oldest_s or 0.0, 3) if oldest is not None else 0.0,
            timestamps=_rate(last_ts - before.last_ts, seconds) if before else None,
            runs=round(total.runs, 2) if speeds.known else None,
            conflicts=round(total.conflicts, 2) if speeds.known else None,
            p50=_milliseconds(total.p50),
            p95=_milliseconds(total.p95),
            p99=_milliseconds(total.p99),
            more=self.measure(at_ms, seconds),
        )

    def _reported(self, live: Set[str]) -> tuple[dict[str, list[Report]], Speeds]:
        """The reports of live processes by their tokens, and the speeds that they tell."""
        known: dict[str, Report] = {}
        by_token: dict[str, list[Report]] = {}
        for row, report in read_reports(self._repo.context.store).items():
            if (token := reporting_process(row)) in live:
                known[row] = report
                by_token.setdefault(token, []).append(report)
        return by_token, self._rates.take(known)

    def _columns(
        self, live: Sequence[Process], paused: Mapping[str, PausedObserver]
    ) -> dict[str, set[str]]:
        """The columns of every observer that anybody knows of."""
        found = {name: set(columns) for name, columns in self._declared.items()}
        for process in live:
            for column, labels in process.observers.items():
                for label in labels:
                    found.setdefault(label.partition("(")[0], set()).add(column)
        for name, one in paused.items():
            found.setdefault(name, set(one.columns))
        return found

    def _observers(
        self,
        schema: Schema,
        columns: Mapping[str, set[str]],
        live: Sequence[Process],
        paused: Mapping[str, PausedObserver],
        surveyed: Surveyed,
        speeds: Speeds,
    ) -> list[ObserverState]:
        running = [WorkingProcess(one, ()).observers for one in live]

        def state(name: str) -> ObserverState:
            oldest = surveyed.oldest.get(name)
            return ObserverState(
                name,
                tuple(sorted(columns.get(name, ()))),
                surveyed.dirty[name],
                None if oldest is None else self._times.age(oldest),
                oldest is not None and not self._times.reaches_back_to(oldest),
                "" if oldest is None else _cell_text(schema, surveyed.oldest_cells[name]),
                surveyed.retrying[name],
                surveyed.dead[name],
                paused.get(name),
                sum(name in names for names in running),
                speeds.observers.get(name) if speeds.known else None,
            )

        # In the order of the application, as far as it is known.
        names = dict.fromkeys([*self._declared, *sorted({*columns, *surveyed.dead})])
        return [state(name) for name in names] + [
            ObserverState(
                column,
                (column,),
                number,
                self._times.age(surveyed.oldest_unobserved[column]),
                not self._times.reaches_back_to(surveyed.oldest_unobserved[column]),
                "",
                0,
                0,
                None,
                0,
                None,
                is_column=True,
            )
            for column, number in sorted(surveyed.unobserved.items())
        ]

    def _letters(self, schema: Schema, surveyed: Surveyed) -> list[Letter]:
        failures = [inspection.failure(*entry) for entry in surveyed.letters]
        return [self.letter(one, shown.row(schema, one.cell)) for one in failures]

    def _locks(self, schema: Schema, surveyed: Surveyed) -> list[Lock]:
        return [
            Lock(
                inspection.held_lock(self._repo, cell, start_ts, raw),
                _cell_text(schema, cell),
                self._times.age(start_ts),
            )
            for cell, start_ts, raw in surveyed.locks
        ]

    def _held_back(self, surveyed: Surveyed) -> list[HeldBack]:
        """What needs timestamps, the oldest first."""
        found = {
            f"the hold {one.name!r}, until it ends or is released": one.ts
            for one in self._repo.holds()[:HOLDS]
        }
        if (held := self._repo.context.coordination.oldest_held()) is not None:
            readers = self._repo.context.coordination.named_readers(held) or "a process"
            found[f"a snapshot or transaction that {readers} has open"] = held
        if surveyed.oldest_lock is not None:
            found["the oldest lock"] = surveyed.oldest_lock
        ordered = sorted(found.items(), key=lambda one: one[1])
        return [HeldBack(what, ts, self._times.age(ts)) for what, ts in ordered]


def _cell_text(schema: Schema, cell: Cell) -> str:
    return f"{shown.row(schema, cell)} {inspection.column_name(cell)}"


def _by_column(
    schema: Schema, columns: Mapping[str, Iterable[str]]
) -> dict[tuple[str, bytes], list[str]]:
    """The observers of each column by its address, from the columns of each by their names."""
    # Names of tables and columns may have dots.
    addresses = {
        inspection.column_name(Cell(table.name, b"", member.key)): (table.name, member.key)
        for table in schema
        for member in table.members
        if not isinstance(member, Family)
    }
    found: dict[tuple[str, bytes], list[str]] = {}
    for name, observed in columns.items():
        for column in observed:
            if column in addresses:
                found.setdefault(addresses[column], []).append(name)
    return found


def _rate(number: int, seconds: float | None) -> float | None:
    return round(number / seconds, 2) if seconds is not None and seconds > 0 else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)

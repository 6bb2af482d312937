"""§2.4: observers that fail on a change: attempts, back-off, dead letters (rule N5).

A failed attempt is recorded in the value of the change's notify entry, and the observer runs again
after a back-off. After `attempts` failures the change is dead-lettered for this observer: the row
mutation that removes the notify entry also puts a `failed` entry with the traceback.

    c:notify@8 = {"index": [2, 1700000000000]}      failed twice; not before this time, in ms
    c:notify@8 = {"index": [5, null], …}            dead-lettered; other observers of the column
                                                    have not handled the change yet

There is no separate table of failures that could overflow: any number of cells may fail at once,
all workers see all attempts, the attempts survive the death of a worker, and a scan skips cells in
back-off without another store call. The record is removed with the notify entry. A newer change has
its own notify entry without a record, so it runs at once, starting with the first attempt. Its runs
are attempts at the older changes as well: where a cell changes before each attempt, older changes
are dead-lettered once all attempts since then come to so many.

While one of a column's observers is paused (`percola.observers.pausing`), no other one can answer
the notify entry. The record then also has those that have handled the change, so that a scan skips
the cell until the paused one is resumed, as it does if the change is dead-lettered for the others:

    c:notify@8 = {"index": [0, 0]}                  handled; another observer is paused

Only the scan relies on it, and only during the pause: afterwards all of them look at the cell.

A notify entry that takes the place of a dead letter, as it is to be tried again, says which one it
was, for those who wait for the change (`percola.transactions.answered`):

    c:notify@9 = {"@index": [8, null]}              instead of index's dead letter at 8

The back-off compares wall clocks of different machines. Clock skew affects only when the next
attempt runs, and no wait is longer than this worker's `longest_wait`.
"""

from __future__ import annotations

import logging
import math
import random
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from percola.cells import (
    HANDLED,
    MAX_TS,
    Attempts,
    Cell,
    DeadLetter,
    Kind,
    decode_attempts,
    encode_attempts,
    encode_dead_letter,
    failed_column,
    retried_letters,
)
from percola.clock import backoff
from percola.observers.observer import Observer
from percola.platform.text import printable
from percola.store.base import MOST_CHANGES, Condition, Delete, Put, RowMutation, Store
from percola.transactions.context import TransactionContext

if TYPE_CHECKING:
    from percola.observers.metrics import WorkerMetrics

log = logging.getLogger("percola.worker")

_NO_ATTEMPTS: Final = Attempts(0, 0)
_STORY: Final = 50_000
"""The most characters of a traceback that are logged and kept: it may quote a whole value."""
_LINE: Final = 1_000
"""The most characters of the line that says what was raised."""
_TRACEBACKS: Final = 20
"""How many tracebacks of one place are logged in `_PERIOD` seconds; then it is a line each."""
_FRAME: Final = re.compile(r'^[ |]*File ".*", line .*', re.MULTILINE)
_PERIOD: Final = 60.0
_PLACES: Final = 1_000
"""The most places that are remembered."""
_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class DirtyCell:
    """A cell with notify entries, as read under its row's advisory lock.

    Attributes:
        cell: the cell.
        notified: the timestamps of its notify entries, the newest first.
        attempts: failed attempts for the newest change, by observer name.
        records: the values of older entries that have any, with their timestamps, the newest first.
    """

    cell: Cell
    notified: list[int]
    attempts: dict[str, Attempts]
    records: Sequence[tuple[int, bytes]] = ()
    _earlier: Sequence[tuple[int, dict[str, Attempts]]] | None = None

    @classmethod
    def of(cls, cell: Cell, entries: Sequence[tuple[int, bytes]]) -> DirtyCell:
        """Create it from the cell's notify entries, (timestamp, value); at least one."""
        if len(entries) > 1:
            entries = sorted(entries, reverse=True)
        (_, newest), *older = entries
        records = [(ts, raw) for ts, raw in older if raw]
        return cls(cell, [ts for ts, _ in entries], decode_attempts(newest), records)

    @property
    def earlier(self) -> Sequence[tuple[int, dict[str, Attempts]]]:
        """The failed attempts for older changes of which any are recorded, the newest first."""
        if self._earlier is None:  # They are seldom asked for, and may be many.
            self._earlier = [(ts, decode_attempts(raw)) for ts, raw in self.records]
        return self._earlier

    @property
    def has_failed(self) -> bool:
        """Whether attempts at the newest change are recorded."""
        return _has_failed(self.attempts)

    @property
    def newest(self) -> int:
        """The timestamp of the newest change."""
        return self.notified[0]


class Story(NamedTuple):
    """What is known of a failed attempt.

    Attributes:
        error: the exception and the first line of its message. The last line of the traceback may
            be any line of the message, a note, or the frame of a group.
        traceback: the whole traceback.
    """

    error: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Story:
        """That of an exception, which was caught just now."""
        # A SyntaxError has the place in the code before it, indented.
        said = [one for one in traceback.format_exception_only(error) if not one.startswith(" ")]
        lines = [one.strip() for one in "".join(said).splitlines() if one.strip()]
        named, *more = lines or [type(error).__name__]
        if (
            named.endswith(":") and " " not in named and more
        ):  # The message begins with an empty line.
            named = f"{named} {more[0]}"
        return cls(named, "".join(traceback.format_exception(error)))


class Failures:
    """Counts failed attempts, schedules the next one, and dead-letters changes.

    Args:
        attempts: how often an observer may fail on a change before it is dead-lettered.
        first_wait: seconds until the second attempt; the wait doubles with each failure.
        longest_wait: upper bound of the wait in seconds.
    """

    def __init__(
        self,
        context: TransactionContext,
        metrics: WorkerMetrics,
        rng: random.Random,
        *,
        attempts: int,
        first_wait: float,
        longest_wait: float,
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._metrics = metrics
        self._attempts = attempts
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._rng = rng
        self._logged: dict[int, tuple[float, int]] = {}
        """By places (hashes of the frames of a traceback): since when how many failed."""

    def is_dead_lettered(self, one: Observer[Any], dirty: DirtyCell) -> bool:
        """Whether the newest change is dead-lettered for an observer."""
        return is_dead_lettered(self._context.store, one, dirty)

    def dead_lettered_up_to(self, one: Observer[Any], dirty: DirtyCell) -> int:
        """The newest change but the newest of all that is dead-lettered for an observer, or 0."""
        for ts, attempts in dirty.earlier:
            older = DirtyCell(dirty.cell, [ts], attempts)
            if is_dead_lettered(self._context.store, one, older):
                return ts
        return 0

    def is_due(self, one: Observer[Any], dirty: DirtyCell) -> bool:
        """Whether to run the observer now: it has not failed, or its back-off is over."""
        return not self._seconds_left(dirty.attempts.get(one.name, _NO_ATTEMPTS))

    def seconds_to_wait(
        self, group: Sequence[Observer[Any]], raw: bytes, paused: frozenset[str] = _NOBODY
    ) -> float:
        """Seconds until any of a cell's observers may run, by its newest notify entry; 0: now.

        Infinite if only those that are `paused` have yet to run.
        """
        attempts, store = decode_attempts(raw), self._context.store
        active = [one for one in group if one.name not in paused] if paused else group
        # An observer without a record may have run already: acknowledgments are not read here.
        if any(one.name not in attempts for one in active):
            return 0.0
        waits = len(active) < len(group)  # For one of its own: others may be paused as well.
        if waits and all(_is_done(store, attempts[one.name]) for one in active):
            return math.inf
        return self.until_next_attempt(raw, paused)

    def until_next_attempt(self, raw: bytes, paused: frozenset[str] = _NOBODY) -> float:
        """Seconds until the earliest recorded attempt is due of observers that are not paused."""
        waiting = [
            one
            for name, one in decode_attempts(raw).items()
            if one.due_ms is not None and one != HANDLED and name not in paused
        ]
        return min(map(self._seconds_left, waiting), default=0.0)

    def _seconds_left(self, attempts: Attempts) -> float:
        if not attempts.due_ms:
            return 0.0
        left = (attempts.due_ms - self._clock.wall_ms()) / 1000
        # Further away than any back-off: the clock of the recording worker is ahead of this one.
        return left if 0 < left <= self._longest_wait + 0.002 else 0.0

    def failed(
        self,
        one: Observer[Any],
        changes: Sequence[DirtyCell],
        answers: Mapping[Cell, Sequence[int]],
        story: Story,
    ) -> bool:
        """Record a failed attempt.

        It counts for all `changes`, the dirty cells of one row; the observer was run for the first.
        Each change that has used up its attempts is dead-lettered, also if a newer one of its cell
        has not, and its notify entries in `answers` are removed. Returns whether the newest change
        of the first cell was dead-lettered.
        """
        self._metrics.failures.labels(one.name).inc()
        counts = [dirty.attempts.get(one.name, _NO_ATTEMPTS).failed + 1 for dirty in changes]
        # One wait for all changes: else the observer would run again for each of them.
        wait = backoff(self._rng, max(counts), first=self._first_wait, most=self._longest_wait)
        due_ms = self._clock.wall_ms() + math.ceil(wait * 1000) + 1
        following = "" if counts[0] >= self._attempts else f", the next one in {wait:.2f} s"
        log.warning(
            "observer %s failed on %s, attempt %d of %d%s:%s",
            *(one.name, self._context.shown(changes[0].cell), counts[0], self._attempts),
            *(following, self.message(one, story)),
        )
        dead: list[bool] = []
        for dirty, count in zip(changes, counts, strict=True):
            if count >= self._attempts:
                dead.append(self.dead_letter(one, dirty, answers[dirty.cell], story, count))
            else:
                dead.append(False)
                dirty.attempts[one.name] = Attempts(count, due_ms)
                self._change(dirty, [self._record(dirty)])
                self._dead_letter_earlier(one, dirty, answers[dirty.cell], story, count)
        return dead[0]

    def message(self, one: Observer[Any], story: Story) -> str:
        """What is logged of a failure; where many are in one place, few tracebacks are."""
        now = self._clock.monotonic()
        # Its messages, also those of causes, may name the row.
        kind, frames = story.error.partition(":")[0], _FRAME.findall(story.traceback)
        place = hash((one.name, kind, *frames))
        began, count = self._logged.get(place, (-math.inf, 0))
        if now - began >= _PERIOD:
            began, count = now, 0
        if len(self._logged) >= _PLACES:
            self._logged.clear()
        self._logged[place] = began, count + 1
        if count >= _TRACEBACKS:
            return f" {printable(_line(story.error))} (where the last {count:,} failed)"
        # It may quote what an observer has read, and be read at a terminal.
        return "\n" + printable(_shortened(story.traceback), keep="\n\t")

    def _dead_letter_earlier(
        self,
        one: Observer[Any],
        dirty: DirtyCell,
        answered: Sequence[int],
        story: Story,
        count: int,
    ) -> None:
        """Dead-letter older changes that were tried often enough, in runs for newer ones too."""
        for ts, attempts in dirty.earlier:
            found = attempts.get(one.name, _NO_ATTEMPTS)
            if found.due_ms is None:
                return  # They are already, and others have yet to handle them.
            count += found.failed
            if count >= self._attempts:
                older = DirtyCell(dirty.cell, [at for at in dirty.notified if at <= ts], attempts)
                gone = [at for at in answered if at <= ts]
                self.dead_letter(one, older, gone, story, count)
                return

    def dead_letter(
        self,
        one: Observer[Any],
        dirty: DirtyCell,
        answered: Sequence[int],
        story: Story,
        count: int,
    ) -> bool:
        """Put a `failed` entry with the traceback, and remove the notify entries `answered`.

        The entry has the timestamp of the newest change that the observer had to handle, so a run
        that began before that change does not remove it. Returns False and changes nothing if
        another worker has answered that change in the meantime.
        """
        cell, newest = dirty.cell, dirty.newest
        column, now_ms = cell.column.decode(), self._clock.wall_ms()
        error = _line(story.error)
        told = _shortened(story.traceback)
        letter = DeadLetter(one.name, column, count, now_ms, error, told)
        failed = _failed_cell(one, cell)
        changes: list[Put | Delete] = [
            Put(Kind.FAILED, failed.column, newest, encode_dead_letter(letter))
        ]
        # A later failure replaces an earlier one.
        for ts, _ in self._context.store.entries(failed, Kind.FAILED, 0, newest - 1):
            changes.append(Delete(Kind.FAILED, failed.column, ts))
        fits = len(answered) <= MOST_CHANGES
        if answered and fits:
            changes += [Delete(Kind.NOTIFY, cell.column, ts) for ts in answered]
        else:
            dirty.attempts[one.name] = Attempts(count, None)
            changes.append(self._record(dirty))
        if not self._change(dirty, changes):
            return False
        if not fits:
            self._remove(dirty, answered)
        named = self._context.shown(cell)
        log.error("observer %s was dead-lettered on %s: %s", one.name, named, printable(error))
        self._metrics.dead_lettered.labels(one.name).inc()
        return True

    def note_handled(self, names: Sequence[str], dirty: DirtyCell) -> None:
        """Record that these observers have handled the change, as another one is paused."""
        new = [name for name in names if dirty.attempts.get(name) != HANDLED]
        if new:
            dirty.attempts.update(dict.fromkeys(new, HANDLED))
            self._change(dirty, [self._record(dirty)])

    def answer(self, dirty: DirtyCell) -> None:
        """Remove the notify entries of a change that is dead-lettered for all its observers."""
        self._remove(dirty, dirty.notified)

    def _remove(self, dirty: DirtyCell, timestamps: Iterable[int]) -> None:
        """Remove notify entries of what is dead-lettered; the newest, with its record, last."""
        gone = [Delete(Kind.NOTIFY, dirty.cell.column, ts) for ts in sorted(timestamps)]
        for at in range(0, len(gone), MOST_CHANGES):
            self._change(dirty, gone[at : at + MOST_CHANGES])

    def _record(self, dirty: DirtyCell) -> Put:
        return Put(Kind.NOTIFY, dirty.cell.column, dirty.newest, encode_attempts(dirty.attempts))

    def _change(self, dirty: DirtyCell, changes: Sequence[Put | Delete]) -> bool:
        """Mutate the cell's row if its newest change is unanswered; return whether it was."""
        table, row, column = dirty.cell
        stands = Condition(True, Kind.NOTIFY, column, dirty.newest, dirty.newest)
        return self._context.store.mutate([RowMutation(table, row, [stands], changes)])[0]


def has_failed(raw: bytes) -> bool:
    """Whether a notify entry with this value records attempts."""
    return _has_failed(decode_attempts(raw))


def _has_failed(attempts: Mapping[str, Attempts]) -> bool:
    return len(attempts) > len(retried_letters(attempts))


def is_dead_lettered(store: Store, one: Observer[Any], dirty: DirtyCell) -> bool:
    """Whether the newest change of a cell is dead-lettered for an observer.

    The `failed` entry decides; the record only tells when to read it. The record may exist without
    the entry: with a separate notify table (`percola.store.remote.notify_table`), if the worker
    died between the two writes, or if the record arrived after a retry of the change by a user.
    """
    found = dirty.attempts.get(one.name)
    if found is None or found.due_ms is not None:
        return False
    failed = _failed_cell(one, dirty.cell)
    return bool(store.entries(failed, Kind.FAILED, dirty.newest, MAX_TS))


def _is_done(store: Store, attempts: Attempts | None) -> bool:
    """Whether by this record an observer has handled the change, or it is dead-lettered for it.

    The dead letter itself may be gone: a run for a newer change has answered both. With a separate
    notify table the record may be wrong: see `is_dead_lettered`.
    """
    if attempts is None:
        return False
    return attempts == HANDLED or (attempts.due_ms is None and not store.has_notify_table)


def waits_for_paused(
    store: Store, group: Sequence[Observer[Any]], dirty: DirtyCell, paused: frozenset[str]
) -> bool:
    """Whether all observers of a cell have handled its newest change, but for paused ones."""
    return any(one.name in paused for one in group) and all(
        one.name in paused
        or _is_done(store, dirty.attempts.get(one.name))
        or is_dead_lettered(store, one, dirty)
        for one in group
    )


def _line(error: str) -> str:
    return error if len(error) <= _LINE else error[:_LINE] + "…"


def _shortened(story: str) -> str:
    """A traceback without the middle of it, if it is very long."""
    story = story.rstrip()
    if len(story) <= _STORY:
        return story
    half = _STORY // 2
    return f"{story[:half]}\n… {len(story) - 2 * half:,} characters …\n{story[-half:]}"


def _failed_cell(one: Observer[Any], cell: Cell) -> Cell:
    return Cell(cell.table, cell.row, failed_column(one.name, cell.column))

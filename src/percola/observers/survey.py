"""§2.4: what waits for observers, counted now and then for a worker's metrics and `percola serve`.

Workers of the same observers take turns by an advisory lock, so that one of them counts for all:
what a survey costs does not grow with the workers. It reads up to 10,000 notify entries of each
table, in the order of rows, and as many dead letters and locks. If there are more, the numbers are
lower bounds, and the oldest change may be another one. A cell that changes all the time beside a
paused observer may have them all: of the cells behind it the newest entries are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from percola.cells import HANDLED, Cell, Kind, failed_observer
from percola.errors import PercolaError
from percola.observers.failures import DirtyCell
from percola.observers.observer import Observers
from percola.observers.unobserved import COUNTED
from percola.store.base import SYSTEM_TABLE
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

_STEP: Final = 1024

Entry: TypeAlias = tuple[Cell, int, bytes]
"""An entry of the store: its cell, timestamp and value."""


@dataclass
class Surveyed:
    """What a survey found.

    Attributes:
        dirty: by observer, how many cells it has yet to answer.
        oldest: by observer, the timestamp of the oldest change among them.
        oldest_cells: by observer, the cell of that change.
        retrying: by observer, on how many of the cells it has failed and will run again.
        dead: by observer, how many changes are dead-lettered for it; empty if they were not read.
        unobserved: by column (`table.column`), how many cells are dirty that no observer answers.
        oldest_unobserved: the timestamp of the oldest change among those, by column.
        letters: the dead letters of the newest changes, the newest first, as many as asked for.
        locks: the oldest locks, the oldest first, as many as asked for.
        oldest_lock: the start_ts of the oldest lock in the observers' tables; None if there is none
            or, with a separate notify table, if finding it would take a scan of whole tables.
        locked: how many cells are locked; None where that takes such a scan.
        safe_point: the oldest timestamp that can be read.
        complete: whether it has read all entries.
    """

    dirty: Counter[str] = field(default_factory=Counter)
    oldest: dict[str, int] = field(default_factory=dict)
    oldest_cells: dict[str, Cell] = field(default_factory=dict)
    retrying: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    unobserved: Counter[str] = field(default_factory=Counter)
    oldest_unobserved: dict[str, int] = field(default_factory=dict)
    letters: list[Entry] = field(default_factory=list)
    locks: list[Entry] = field(default_factory=list)
    oldest_lock: int | None = None
    locked: int | None = None
    safe_point: int = 0
    complete: bool = True


class Survey:
    """Surveys a repository, if no other worker of the same observers does.

    Attributes:
        last: what the last survey found; None while another worker does it, and after a failure.
    """

    def __init__(self, context: TransactionContext, observers: Observers) -> None:
        self._context = context
        self._observers = observers
        self._by_column = {
            address: [one.name for one in observers.of(Cell(address[0], b"", address[1]))]
            for address in observers.addresses
        }
        names = "\n".join(sorted(one.name for one in observers))
        self._lock: Final = b"survey:" + hashlib.sha256(names.encode()).digest()[:8]
        self._held = False
        self.last: Surveyed | None = None

    def look(self) -> None:
        """Survey now, if it is this worker's turn. Raises StoreError."""
        coordination = self._context.coordination
        try:
            # Taken anew each time: it may have been lost with a session.
            self.end_turn()
            self._held = coordination.try_lock(SYSTEM_TABLE, self._lock)
            self.last = self._survey() if self._held else None
        except BaseException:
            # What was found before is out of date: that nothing is known is to be seen, and another
            # worker may find out.
            self.last = None
            with contextlib.suppress(PercolaError):
                self.end_turn()
            raise

    def end_turn(self) -> None:
        """Let another worker survey."""
        if self._held:
            self._held = False
            self._context.coordination.unlock(SYSTEM_TABLE, self._lock)

    def _survey(self) -> Surveyed:
        return take_survey(
            self._context,
            self._by_column,
            self._observers.tables,
            letters=not self._context.store.has_notify_table,
        )


def take_survey(
    context: TransactionContext,
    observers: Mapping[tuple[str, bytes], Sequence[str]],
    tables: Sequence[str],
    *,
    examples: int = 0,
    letters: bool = True,
) -> Surveyed:
    """Survey tables now. Raises StoreError.

    Args:
        observers: the names of the observers of each column, (table, column).
        tables: the tables to look at.
        examples: how many dead letters and locks to return besides their numbers.
        letters: whether to read dead letters, which with a separate notify table takes a scan of
            whole tables.
    """
    found = Surveyed(safe_point=context.store.safe_point())
    names = {name for group in observers.values() for name in group}
    found.dirty.update(dict.fromkeys(names, 0))
    if letters:
        found.dead.update(dict.fromkeys(names, 0))
    newest: list[tuple[int, Entry]] = []
    for table in tables:
        for dirty in _dirty_cells(context, table, found):
            _count(dirty, observers.get((table, dirty.cell.column), ()), found)
        dead = _read(context, Kind.FAILED, table, found) if letters else iter(())
        for cell, group in itertools.groupby(dead, key=lambda entry: entry[0]):
            *_, letter = group  # The newest; an older failure may have arrived late.
            found.dead[failed_observer(cell.column)] += 1
            _keep(newest, letter[1], letter, examples)
    found.letters = [letter for _, letter in sorted(newest, reverse=True)]
    if not context.store.has_notify_table:
        oldest: list[tuple[int, Entry]] = []
        found.locked = 0
        for table in tables:
            for lock in _read(context, Kind.LOCK, table, found):
                found.locked += 1
                _keep(oldest, -lock[1], lock, max(1, examples))
        found.locks = [lock for _, lock in sorted(oldest, reverse=True)]
        found.oldest_lock = found.locks[0][1] if found.locks else None
    return found


def _dirty_cells(context: TransactionContext, table: str, found: Surveyed) -> Iterator[DirtyCell]:
    """The dirty cells of a table: those of the first entries, and if they are few, others."""
    seen: set[Cell] = set()
    number, row = 0, b""
    entries = _read(context, Kind.NOTIFY, table, found)
    for cell, group in itertools.groupby(entries, key=lambda entry: entry[0]):
        changes = [(ts, raw) for _, ts, raw in group]
        number, row = number + len(changes), cell.row
        seen.add(cell)
        yield DirtyCell.of(cell, changes)
    if number < COUNTED:
        return
    newest = walk_kind(context.store, Kind.NOTIFY, table, row, limit=_STEP, versions=1)
    behind = (entry for entry in newest if entry[0] not in seen)
    for cell, ts, raw in itertools.islice(behind, COUNTED - len(seen)):
        yield DirtyCell.of(cell, [(ts, raw)])


def _count(dirty: DirtyCell, names: Sequence[str], found: Surveyed) -> None:
    oldest = dirty.notified[-1]
    if not names:
        column = f"{dirty.cell.table}.{dirty.cell.column.decode('utf-8', 'backslashreplace')}"
        found.unobserved[column] += 1
        before = found.oldest_unobserved.get(column, oldest)
        found.oldest_unobserved[column] = min(oldest, before)
    for name in names:
        done = dirty.attempts.get(name)
        if done is not None and (done == HANDLED or done.due_ms is None):
            continue  # It has handled it beside a paused one, or it is dead-lettered.
        found.dirty[name] += 1
        found.retrying[name] += done is not None
        found.oldest[name] = min(oldest, found.oldest.get(name, oldest))
        if found.oldest[name] == oldest:
            found.oldest_cells[name] = dirty.cell


def _keep(kept: list[tuple[int, Entry]], rank: int, entry: Entry, most: int) -> None:
    """Keep the entries of the highest ranks in a heap."""
    heapq.heappush(kept, (rank, entry))
    if len(kept) > most:
        heapq.heappop(kept)


def _read(context: TransactionContext, kind: Kind, table: str, found: Surveyed) -> Iterator[Entry]:
    entries = walk_kind(context.store, kind, table, first=1, limit=_STEP)
    for number, entry in enumerate(entries):
        if number >= COUNTED:
            found.complete = False
            return
        yield entry

"""§2.4: what waits for a worker's observers, counted now and then for its metrics.

Workers of the same observers take turns by an advisory lock, so that one of them counts for all:
what a survey costs does not grow with the workers. It reads up to 10,000 notify entries of each
table, in the order of rows, and as many dead letters and locks. If there are more, the numbers are
lower bounds, and the oldest change may be another one.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from percola.catalog import SYSTEM_TABLE
from percola.cells import HANDLED, Cell, Kind, failed_column
from percola.observers.failures import DirtyCell
from percola.observers.observer import Observers
from percola.observers.unobserved import COUNTED
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

_STEP: Final = 1024


@dataclass
class Surveyed:
    """What a survey found.

    Attributes:
        dirty: by observer, how many cells it has yet to answer.
        oldest: by observer, the timestamp of the oldest change among them.
        dead: by observer, how many changes are dead-lettered for it.
        oldest_lock: the start_ts of the oldest lock in the observers' tables; None if there is none
            or, with a separate notify table, if finding it would take a scan of whole tables.
        safe_point: the oldest timestamp that can be read.
        complete: whether it has read all entries.
    """

    dirty: Counter[str] = field(default_factory=Counter)
    oldest: dict[str, int] = field(default_factory=dict)
    dead: Counter[str] = field(default_factory=Counter)
    oldest_lock: int | None = None
    safe_point: int = 0
    complete: bool = True


class Survey:
    """Surveys a repository, if no other worker of the same observers does.

    Attributes:
        last: what the last survey found; None while another worker does it.
    """

    def __init__(self, context: TransactionContext, observers: Observers) -> None:
        self._context = context
        self._observers = observers
        self._failed = {
            (column.table_name, failed_column(one.name, column.key)): one.name
            for one in observers
            for column in one.columns
        }
        names = "\n".join(sorted(one.name for one in observers))
        self._lock: Final = b"survey:" + hashlib.sha256(names.encode()).digest()[:8]
        self._held = False
        self.last: Surveyed | None = None

    def look(self) -> None:
        """Survey now, if it is this worker's turn. Raises StoreError."""
        coordination = self._context.coordination
        # Taken anew each time: it may have been lost with a session.
        self.end_turn()
        self._held = coordination.try_lock(SYSTEM_TABLE, self._lock)
        self.last = self._survey() if self._held else None

    def end_turn(self) -> None:
        """Let another worker survey."""
        if self._held:
            self._held = False
            self._context.coordination.unlock(SYSTEM_TABLE, self._lock)

    def _survey(self) -> Surveyed:
        found = Surveyed(safe_point=self._context.store.safe_point())
        names = [one.name for one in self._observers]
        found.dirty.update(dict.fromkeys(names, 0))
        found.dead.update(dict.fromkeys(names, 0))
        for table in self._observers.tables:
            entries = self._read(Kind.NOTIFY, table, found)
            for cell, group in itertools.groupby(entries, key=lambda entry: entry[0]):
                self._count(DirtyCell.of(cell, [(ts, raw) for _, ts, raw in group]), found)
            letters = {
                (cell.row, cell.column) for cell, _, _ in self._read(Kind.FAILED, table, found)
            }
            for _, column in letters:
                if name := self._failed.get((table, column)):
                    found.dead[name] += 1
        if not self._context.store.has_notify_table:
            found.oldest_lock = min(
                (
                    start_ts
                    for table in self._observers.tables
                    for _, start_ts, _ in self._read(Kind.LOCK, table, found)
                ),
                default=None,
            )
        return found

    def _count(self, dirty: DirtyCell, found: Surveyed) -> None:
        oldest = dirty.notified[-1]
        for one in self._observers.of(dirty.cell):
            done = dirty.attempts.get(one.name)
            if done is not None and (done == HANDLED or done.due_ms is None):
                continue  # It has handled it beside a paused one, or it is dead-lettered.
            found.dirty[one.name] += 1
            found.oldest[one.name] = min(oldest, found.oldest.get(one.name, oldest))

    def _read(self, kind: Kind, table: str, found: Surveyed) -> Iterator[tuple[Cell, int, bytes]]:
        entries = walk_kind(self._context.store, kind, table, first=1, limit=_STEP)
        for number, entry in enumerate(entries):
            if number >= COUNTED:
                found.complete = False
                return
            yield entry

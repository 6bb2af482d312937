"""A simulated store that sends usual commits by itself, as the one on HBase does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from percola.cells import MAX_TS, Kind, LockRecord, Op, encode_lock
from percola.errors import OutcomeUnknownError, StoreError
from percola.store.base import CommitRow, Condition, PreparedCommit, Put, RowMutation
from percola.testing.simulation import SimulatedStore, Workload
from percola.testing.simulation.world import Process
from percola.transactions.lock_resolver import commit_changes

OUTCOMES: Counter[tuple[str, bool | None]] = Counter()
"""How often a row of a phase came to what."""


def prepared(workload: type[Workload]) -> type[Workload]:
    """The workload on a store with all that such a store has."""
    has = {"has_volatile_writes": True, "has_notify_table": False}
    return type(workload.__name__, (workload,), {**has, "name": f"{workload.name} prepared"})


class PreparingStore(SimulatedStore):
    """Sends the usual commit by itself; how many cells that may have differs between processes."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.prepared_cells = process.rng.choice((4, 100))

    def prepare_commit(
        self, start_ts: int, lock: LockRecord, rows: Sequence[CommitRow]
    ) -> PreparedCommit | None:
        return None if self._process.rng.random() < 0.1 else _Commit(self, start_ts, lock, rows)

    def attempt(self, phase: str, batch: Sequence[RowMutation]) -> Sequence[bool | None]:
        """Send a batch once; what is known of each row."""
        try:
            return self.mutate(batch)
        except OutcomeUnknownError:
            return [None] * len(batch)
        except StoreError:
            return [False] * len(batch)

    def sends(self) -> bool:
        """Whether it sends what follows, or leaves it to the protocol."""
        return self._process.rng.random() < 0.9


class _Commit:
    def __init__(
        self, store: PreparingStore, start_ts: int, lock: LockRecord, rows: Sequence[CommitRow]
    ) -> None:
        self._store, self._start_ts, self._lock, self._rows = store, start_ts, lock, rows

    def prewrite(self, seconds: float) -> Sequence[bool | None]:
        return self._send("prewrite", [self._prewrite_row(one) for one in self._rows])

    def commit(self, commit_ts: int) -> Sequence[bool | None] | None:
        if not self._store.sends():
            return None
        return self._send("commit", [self._commit_row(one, commit_ts) for one in self._rows])

    def _send(self, phase: str, rows: Sequence[RowMutation]) -> Sequence[bool | None]:
        found = list(self._store.attempt(phase, rows[:1]))
        if found[0] and rows[1:] and self._store.sends():
            found += self._store.attempt(phase, rows[1:])
        found += [False] * (len(rows) - len(found))
        OUTCOMES.update((phase, one) for one in found)
        return found

    def _prewrite_row(self, row: CommitRow) -> RowMutation:
        start_ts, conditions, puts = self._start_ts, [], []
        for column, op, value, observed in row.cells:
            conditions.append(Condition(False, Kind.WRITE, column, start_ts, MAX_TS))
            conditions.append(Condition(False, Kind.LOCK, column, 0, MAX_TS))
            record = encode_lock(self._locked(op, value, observed))
            puts.append(Put(Kind.LOCK, column, start_ts, record))
        return RowMutation(row.table, row.row, conditions, puts, row is not self._rows[0])

    def _commit_row(self, row: CommitRow, commit_ts: int) -> RowMutation:
        start_ts, conditions, changes = self._start_ts, [], []
        for column, op, value, observed in row.cells:
            conditions.append(Condition(True, Kind.LOCK, column, start_ts, start_ts))
            lock = self._locked(op, value, observed)
            changes += commit_changes(column, start_ts, commit_ts, lock)
        return RowMutation(row.table, row.row, conditions, [*changes, *row.answered])

    def _locked(self, op: int, value: bytes | None, observed: bool) -> LockRecord:
        return self._lock._replace(op=Op(op), value=value, observed=observed)

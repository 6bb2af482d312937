"""§2.3: the oracle of an embedded store: the counter inside the store itself.

One counter serves every process of the repository, under the store's own write lock, and is
as durable as the commits that carry its timestamps: it cannot fall behind them. The paper's
reserved ranges would save nothing here, because the lock has to be taken for the commit
anyway, and drawing under it is what makes the one-step commit safe (rule P11).

Two-phase transactions are identified by their start_ts, so it must be unique. A transaction that
commits in one step starts at the last timestamp drawn, which many may share. `timestamp` therefore
leaves a gap of one above the timestamp that it returns: the last timestamp drawn then never
identifies a two-phase transaction.
"""

from __future__ import annotations

from percola.oracle.base import Oracle
from percola.store.base import OneStepStore


class EmbeddedOracle(Oracle):
    """Draws timestamps from a store that owns a counter."""

    def __init__(self, store: OneStepStore) -> None:
        self._store = store

    def timestamp(self) -> int:
        return self._store.draw(2) - 1

    def read_timestamp(self) -> int:
        return self._store.last_drawn()

    def advance(self, ts: int) -> None:
        if (missing := ts - self._store.last_drawn()) > 0:
            self._store.draw(missing)

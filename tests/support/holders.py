"""A transaction of another process that stops wherever a test tells it to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stores import Ground

from percola import Table
from percola.schema import Column
from percola.transactions.two_phase import TwoPhaseCommit


class Holder:
    """Writes one cell, in steps: `lock` and `commit`."""

    def __init__(
        self, ground: Ground, tables: Iterable[Table[Any]], column: Column[str], row: str
    ) -> None:
        t = ground.repo(tables).transaction(two_phase=True)
        t.set(column, row, "new")
        self.start_ts = t.start_ts
        self._oracle = ground.oracle
        self._cells = list(t._writes)
        self._commit = TwoPhaseCommit(t._context, t.start_ts, t._writes)

    def lock(self) -> int:
        """Go on until just before the commit point; its commit_ts."""
        self._commit.prewrite([self._cells], self._cells[0])
        return self._oracle.timestamp()

    def commit(self, commit_ts: int) -> None:
        """Go past the commit point."""
        self._commit.commit_primary(self._cells, self._cells[0], commit_ts)

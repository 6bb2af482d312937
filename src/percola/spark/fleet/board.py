"""§2.4: what the driver and the tasks of a fleet tell each other, in the repository itself.

A driver cannot talk to a task that runs, nor hear from it before it has ended; both reach the
store. A fleet has a row of the system table there:

    column       at       says
    ----------   ------   ---------------------------------------------------------------
    @driver      1        the driver's order: a beat that goes up, and whether to stop
    @worker:N    epoch    what worker N reports: a beat that goes up, who it is, what it did

An entry is replaced at the timestamp where it stands, so that no versions pile up. An epoch says
which attempt of the worker it is; an older attempt can no longer report once a newer one has, and
nobody can once the driver has cleared the row: so learns a zombie that it is one. Beats are
compared with themselves alone, never a machine's clock with another's (rule P8).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final

from percola.catalog import SYSTEM_TABLE
from percola.cells import MAX_TS, Cell, Kind
from percola.store.base import Condition, Delete, Put, RowMutation, Store

_ROWS: Final = b"fleet/"
_DRIVER: Final = b"@driver"
_DRIVER_TS: Final = 1
_WORKER: Final = b"@worker:"
_ABANDONED_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Order:
    """What the driver says.

    Attributes:
        beat: goes up for as long as the driver lives.
        stop: whether the workers are to end.
        wall_ms: the driver's clock, for those who look at the table.
    """

    beat: int
    stop: bool
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of itself.

    Attributes:
        beat: goes up for as long as the worker lives.
        host: the name of its machine.
        pid: the number of its process there.
        transactions: how many of its observers' transactions have committed.
        runs: for how many rows they ran.
        per_second: committed transactions a second, of late.
        conflicts: how often a transaction ran again.
        failures: how often an observer raised.
        set_aside: how often a change was dead-lettered.
        columns: the (table, column) that its observers observe.
    """

    beat: int
    host: str
    pid: int
    transactions: int = 0
    runs: int = 0
    per_second: float = 0.0
    conflicts: int = 0
    failures: int = 0
    set_aside: int = 0
    columns: list[tuple[str, str]] = field(default_factory=list)


class Board:
    """The row of one fleet. Every call may raise StoreError."""

    def __init__(self, store: Store, fleet: str) -> None:
        self._store = store
        self._row = _ROWS + fleet.encode()

    def order(self) -> Order | None:
        """What the driver has said last; None if the fleet is over."""
        cell = Cell(SYSTEM_TABLE, self._row, _DRIVER)
        found = self._store.entries(cell, Kind.DATA, _DRIVER_TS, _DRIVER_TS)
        return Order(**json.loads(found[0][1])) if found else None

    def give(self, order: Order) -> None:
        """Say something to the workers; the first time, open the fleet."""
        put = Put(Kind.DATA, _DRIVER, _DRIVER_TS, json.dumps(asdict(order)).encode())
        self._store.mutate([RowMutation(SYSTEM_TABLE, self._row, (), [put])])

    def report(self, worker: int, epoch: int, report: Report) -> bool:
        """Report; False if a newer attempt of the worker has, or if the fleet is over."""
        column = b"%b%d" % (_WORKER, worker)
        cell = Cell(SYSTEM_TABLE, self._row, column)
        changes: list[Put | Delete] = [
            Delete(Kind.DATA, column, ts)
            for ts, _ in self._store.entries(cell, Kind.DATA, 0, epoch - 1)
        ]
        changes.append(Put(Kind.DATA, column, epoch, json.dumps(asdict(report)).encode()))
        conditions = [
            Condition(True, Kind.DATA, _DRIVER, _DRIVER_TS, _DRIVER_TS),
            Condition(False, Kind.DATA, column, epoch + 1, MAX_TS),
        ]
        [applied] = self._store.mutate([RowMutation(SYSTEM_TABLE, self._row, conditions, changes)])
        return applied

    def reports(self) -> dict[int, tuple[int, Report]]:
        """The last report of each worker that has made one, with its epoch."""
        found: dict[int, tuple[int, Report]] = {}
        for column, epoch, text in self._entries():
            if not column.startswith(_WORKER):
                continue
            worker = int(column.removeprefix(_WORKER))
            if epoch > found.get(worker, (0,))[0]:
                said = json.loads(text)
                said["columns"] = [(table, name) for table, name in said["columns"]]
                found[worker] = epoch, Report(**said)
        return found

    def clear(self) -> None:
        """The fleet is over: nobody can report any more, and nothing of it stays."""
        changes = [Delete(Kind.DATA, column, ts) for column, ts, _ in self._entries()]
        if changes:
            self._store.mutate([RowMutation(SYSTEM_TABLE, self._row, (), changes)])

    def _entries(self) -> list[tuple[bytes, int, bytes]]:
        end = self._row + b"\0"
        entries = self._store.walk_kind(Kind.DATA, SYSTEM_TABLE, self._row, end)
        return [(cell.column, ts, text) for cell, ts, text in entries]


def clear_abandoned(store: Store, now_ms: int) -> None:
    """Remove the rows of fleets whose driver has been gone for a day, by this machine's clock.

    A worker of such a fleet that lives after all is told to end by that, as its own patience
    should have told it long ago.
    """
    last: dict[bytes, int] = {}
    for cell, _, text in store.walk_kind(Kind.DATA, SYSTEM_TABLE, _ROWS, _ROWS + b"\xff"):
        if cell.column == _DRIVER:
            last[cell.row] = Order(**json.loads(text)).wall_ms
    for row, wall_ms in last.items():
        if now_ms - wall_ms > _ABANDONED_MS:
            Board(store, row.removeprefix(_ROWS).decode()).clear()

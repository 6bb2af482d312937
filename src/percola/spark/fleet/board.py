"""§2.4: messages between the driver and the tasks of a fleet, through the repository.

Spark has no channel from a driver to a running task, nor back before the task ends; both can reach
the store. A fleet has a row of the system table:

    column       at       contents
    ----------   ------   ---------------------------------------------------------------
    @driver      1        the driver's order: a heartbeat counter, and whether to stop
    @worker:N    epoch    worker N's report: a heartbeat counter, its process, its totals

Entries are replaced at the same timestamp, so versions do not accumulate. The epoch numbers the
attempts of a worker: an older attempt can no longer report once a newer one has, and none can once
the driver has cleared the row. This is how a zombie learns that it was replaced. Heartbeats are
compared only with earlier ones of the same process, never clocks of two machines (rule P8).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Final, TypeVar

from percola.cells import MAX_TS, Cell, Kind
from percola.store.base import SYSTEM_TABLE, Condition, Delete, Put, RowMutation, Store
from percola.store.walks import walk_kind

_ROWS: Final = b"fleet/"
_DRIVER: Final = b"@driver"
_DRIVER_TS: Final = 1
_WORKER: Final = b"@worker:"
_ABANDONED_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Order:
    """The driver's message to the workers.

    Attributes:
        beat: the heartbeat counter, which increases while the driver lives.
        stop: whether the workers must end.
        wall_ms: the driver's clock, for diagnosis and `clear_abandoned`.
    """

    beat: int
    stop: bool
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's message to the driver.

    Attributes:
        beat: the heartbeat counter, which increases while the worker lives.
        host: the name of its machine.
        pid: its process id there.
        transactions: how many of its observers' transactions have committed.
        runs: for how many rows they ran.
        per_second: the recent rate of committed transactions.
        conflicts: how often a transaction was retried.
        failures: how often an observer raised.
        dead_lettered: how often a change was dead-lettered.
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
    dead_lettered: int = 0
    columns: list[tuple[str, str]] = field(default_factory=list)


_Message = TypeVar("_Message", Order, Report)


def _decode(of: type[_Message], text: bytes) -> _Message:
    """The message in its JSON, without the fields that a newer version may have added."""
    said = json.loads(text)
    return of(**{one.name: said[one.name] for one in fields(of) if one.name in said})


class Board:
    """The row of one fleet. Every call may raise StoreError."""

    def __init__(self, store: Store, fleet: str) -> None:
        self._store = store
        self._row = _ROWS + fleet.encode()

    def order(self) -> Order | None:
        """The driver's last order; None if the fleet has ended."""
        cell = Cell(SYSTEM_TABLE, self._row, _DRIVER)
        found = self._store.entries(cell, Kind.DATA, _DRIVER_TS, _DRIVER_TS)
        return _decode(Order, found[0][1]) if found else None

    def give(self, order: Order) -> None:
        """Write an order; the first one creates the fleet's row."""
        put = Put(Kind.DATA, _DRIVER, _DRIVER_TS, json.dumps(asdict(order)).encode())
        self._store.mutate([RowMutation(SYSTEM_TABLE, self._row, (), [put])])

    def report(self, worker: int, epoch: int, report: Report) -> bool:
        """Write a report; False if a newer attempt has reported or the fleet has ended."""
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
        """The last report of each worker that has reported, with its epoch."""
        found: dict[int, tuple[int, Report]] = {}
        for column, epoch, text in self._entries():
            if not column.startswith(_WORKER):
                continue
            worker = int(column.removeprefix(_WORKER))
            if epoch > found.get(worker, (0,))[0]:
                said = _decode(Report, text)
                columns = [(table, name) for table, name in said.columns]
                found[worker] = epoch, replace(said, columns=columns)
        return found

    def clear(self) -> None:
        """End the fleet: delete its row, after which no worker can report."""
        changes = [Delete(Kind.DATA, column, ts) for column, ts, _ in self._entries()]
        if changes:
            self._store.mutate([RowMutation(SYSTEM_TABLE, self._row, (), changes)])

    def _entries(self) -> list[tuple[bytes, int, bytes]]:
        end = self._row + b"\0"
        entries = walk_kind(self._store, Kind.DATA, SYSTEM_TABLE, self._row, end)
        return [(cell.column, ts, text) for cell, ts, text in entries]


def clear_abandoned(store: Store, now_ms: int) -> None:
    """Remove the rows of fleets whose driver has been gone for a day, by this machine's clock.

    If a worker of such a fleet still lives, this ends it; its own timeout should have done so
    long before.
    """
    last: dict[bytes, int] = {}
    for cell, _, text in walk_kind(store, Kind.DATA, SYSTEM_TABLE, _ROWS, _ROWS + b"\xff"):
        if cell.column == _DRIVER:
            last[cell.row] = _decode(Order, text).wall_ms
    for row, wall_ms in last.items():
        if now_ms - wall_ms > _ABANDONED_MS:
            Board(store, row.removeprefix(_ROWS).decode()).clear()

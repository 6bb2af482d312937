"""§2.1: which safe points are older than any call that may still be in flight (P12).

A rollback record stops a late prewrite of its transaction. It is removed once the safe point has
been above it for as long as such a call may take (`Store.latest_arrival`). A collector that runs
for so long knows it from what it has seen itself. Where collectors end sooner, as `percola gc`
does, one safe point at a time is noted with the steady clock of the machine that saw it:

    @percola["gc"].@arrivals   1 → {"settled", "ts", "steady", "wall", "machine"}

A later collector on this machine finds by the same clock that it is old enough, and notes that it
is `settled`, which it is for all, and the next one. Clocks of two machines are never compared for
that. The wall clock only says when the machine may be given up for another one, as after a restart.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from percola.cells import Cell, Kind
from percola.clock import Clock
from percola.errors import DamagedRecordError
from percola.store.base import SYSTEM_TABLE, Put, RowMutation, Store

_CELL: Final = Cell(SYSTEM_TABLE, b"gc", b"@arrivals")
_TS: Final = 1


class _Noted(NamedTuple):
    """What is stored: see above. The clocks are in milliseconds."""

    settled: int = 0
    ts: int = 0
    steady: int = 0
    wall: int = 0
    machine: str = ""


class Arrivals:
    """What one collector knows; `settled` is called in each of its cycles."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        # Safe points, and the times at which this collector first saw them.
        self._watched: list[tuple[int, float]] = []

    def settled(self, safe_point: int) -> int:
        """The newest safe point that is older than any call that may still be in flight.

        `safe_point` is in force now.
        """
        now = self._clock.monotonic()
        self._watched.append((safe_point, now))
        stood = [at for at, since in self._watched if now - since >= self._store.latest_arrival]
        settled = max(stood, default=0)
        if self._store.latest_arrival:
            settled = self._noted(safe_point, settled)
        self._watched = [(at, since) for at, since in self._watched if at >= settled]
        return settled

    def _noted(self, safe_point: int, settled: int) -> int:
        """The newest one that is settled, also by what others have noted; notes what is next."""
        clock, late = self._clock, self._store.latest_arrival * 1000
        now = _Noted(0, safe_point, clock.steady_ms(), clock.wall_ms(), clock.machine)
        found = self._read()
        is_mine = bool(found.machine) and found.machine == now.machine
        has_stood = is_mine and now.steady - found.steady >= late
        settled = max(settled, found.settled, found.ts if has_stood else 0)
        is_given_up = not is_mine and abs(now.wall - found.wall) >= 2 * late
        if settled < safe_point and (found.ts <= settled or is_given_up):
            text = json.dumps(now._replace(settled=settled)._asdict()).encode()
            put = Put(Kind.DATA, _CELL.column, _TS, text)
            self._store.mutate([RowMutation(_CELL.table, _CELL.row, (), [put])])
        return settled

    def _read(self) -> _Noted:
        found = self._store.entries(_CELL, Kind.DATA, _TS, _TS)
        try:
            return _Noted(**json.loads(found[0][1])) if found else _Noted()
        except (ValueError, TypeError):
            raise DamagedRecordError(
                f"{_CELL} holds {found[0][1][:60]!r}, which is no safe point with its time: the "
                "store is damaged."
            ) from None

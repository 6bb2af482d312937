"""What a copy of a repository was copied from.

    @percola["copy"].@origin   timestamp of the copy → {"source", "begun_ms", "ended_ms"}

A backup of a network store is made from a copy in a folder. If it is interrupted after that, the
next backup goes on with the folder only if it is of the same repository, and not old.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from percola.cells import MAX_TS, Cell, Kind
from percola.connect.address import is_memory, network_address
from percola.connect.local import folder_of
from percola.store.base import SYSTEM_TABLE, Put, RowMutation, Store

_CELL: Final = Cell(SYSTEM_TABLE, b"copy", b"@origin")


class Origin(NamedTuple):
    """What a finished copy is of.

    Attributes:
        source: the name of the source (`name_of`).
        begun_ms: when it was begun, in milliseconds since the epoch; 0 if that is not known.
        ended_ms: when it was finished.
    """

    source: str
    begun_ms: int
    ended_ms: int

    def write(self, store: Store, ts: int) -> None:
        """Write it to the store of a copy of this timestamp."""
        put = Put(Kind.DATA, _CELL.column, ts, json.dumps(self._asdict()).encode())
        store.mutate([RowMutation(_CELL.table, _CELL.row, (), [put])])


def origin(store: Store) -> Origin | None:
    """What the repository in this store was copied from; None if it is no copy that says so."""
    found = store.entries(_CELL, Kind.DATA, 0, MAX_TS, 1)
    return Origin(**json.loads(found[0][1])) if found else None


def name_of(address: str) -> str:
    """What stays the same of an address, wherever and through which oracles it is opened."""
    if is_memory(address):
        return address
    network = network_address(address)
    return network.store if network is not None else str(folder_of(address).resolve())

"""§2.3: "writing the highest allocated timestamp to stable storage": the record in the store.

One cell of an internal table holds one entry. Its timestamp is the record's version, and the next
version is written on the condition that the last one is still there and none is above it: a
compare-and-swap by the contract that every store implements.

    @percola-oracle   timestamps.@record    41: data = {"limit": 3000000, "holder": "f2…", …}

A write that was sent and not answered can arrive late without harm: it names the version that it
replaces, and versions only go up.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import DamagedRecordError
from percola.store.base import Condition, Delete, Put, RowMutation, Store

ORACLE_TABLE: Final = "@percola-oracle"
"""The table of the record; names of users' tables do not begin with `@`."""

_CELL: Final = Cell(ORACLE_TABLE, b"timestamps", b"@record")


class Record(NamedTuple):
    """The process that hands out timestamps, and up to which limit.

    Attributes:
        version: goes up by one with every write of the record.
        limit: no timestamp above this has been handed out.
        holder: the process that may hand out timestamps; empty if the last one has stepped down.
        name: the holder's name for people.
        lease_ms: for how long it may hand out after it sent this, in milliseconds.
        source: chosen at random when the record was first written: timestamps of different sources
            are not comparable.
    """

    version: int
    limit: int
    holder: str
    name: str
    lease_ms: int
    source: str


def newest(store: Store) -> Record | None:
    """The current record, None if there is none; DamagedRecordError if it cannot be decoded."""
    found = store.entries(_CELL, Kind.DATA, 0, MAX_TS, 1)
    if not found:
        return None
    version, raw = found[0]
    try:
        fields = json.loads(raw)
        record = Record(
            version,
            int(fields["limit"]),
            str(fields["holder"]),
            str(fields["name"]),
            int(fields["lease_ms"]),
            str(fields["source"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedRecordError(
            f"{raw[:80]!r} in the table {ORACLE_TABLE!r} is not the oracle's record: the store is "
            "damaged. Stop the oracles, delete that row, and start them with --above and the "
            "highest timestamp that the store may hold."
        ) from error
    if record.limit < 0 or record.lease_ms < 0:
        raise DamagedRecordError(f"The oracle's record {raw[:80]!r} has a negative number.")
    return record


def replacement(replaces: Record | None, record: Record) -> RowMutation:
    """The mutation that replaces `replaces` with `record`, if it is still the current record."""
    conditions = [Condition(False, Kind.DATA, _CELL.column, record.version, MAX_TS)]
    fields = record._asdict()
    version = fields.pop("version")
    changes: list[Put | Delete] = [
        Put(Kind.DATA, _CELL.column, version, json.dumps(fields).encode())
    ]
    if replaces is None:
        conditions = [Condition(False, Kind.DATA, _CELL.column, 0, MAX_TS)]
    else:
        at = replaces.version
        conditions.append(Condition(True, Kind.DATA, _CELL.column, at, at))
        changes.append(Delete(Kind.DATA, _CELL.column, at))
    return RowMutation(ORACLE_TABLE, _CELL.row, conditions, changes)

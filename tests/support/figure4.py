"""Figure 4's way to show a column: its data, lock and write entries beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stores import Ground, cell_of

from percola import Column
from percola.cells import Kind, decode_lock, decode_write


def history(ground: Ground, column: Column[Any, Any], rows: Sequence[Any]) -> str:
    """The data, lock and write columns of some rows, as figure 4 of the paper prints them.

    A small value stands in its lock or write record; it is shown where the paper has it.
    """
    name = column.name
    lines = [("key", f"{name}:data", f"{name}:lock", f"{name}:write")]
    for row in rows:
        data = dict(ground.entries(column, row, Kind.DATA))
        locks, writes = {}, {}
        for ts, raw in ground.entries(column, row, Kind.LOCK):
            lock = decode_lock(raw)
            primary = f"{lock.primary.row.decode()}.{lock.primary.column.decode()}"
            here = lock.primary == cell_of(column, row)
            locks[ts] = "I am primary" if here else f"primary @ {primary}"
            if lock.value is not None:
                data[ts] = lock.value
        for ts, raw in ground.entries(column, row, Kind.WRITE):
            record = decode_write(raw)
            writes[ts] = f"data @ {record.start_ts}"
            if record.value is not None:
                data[record.start_ts] = record.value
        key = row
        for ts in sorted({*data, *locks, *writes}, reverse=True):
            value = f"${data[ts].decode()}" if ts in data else ""
            lines.append(
                (key, f"{ts}: {value}", f"{ts}: {locks.get(ts, '')}", f"{ts}: {writes.get(ts, '')}")
            )
            key = ""
    text = (f"{a:<5}{b:<10}{c:<22}{d}".rstrip() for a, b, c, d in lines)
    return "\n".join(text)

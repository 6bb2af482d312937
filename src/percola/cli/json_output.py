"""Output of the command line for programs: JSON.

Rows and values of type bytes are strings if they are UTF-8, and `{"base64": "…"}` otherwise.
Decimals, dates and times are strings, so that they are exact: "12.50", "2010-10-04",
"2010-10-04T12:00:00+00:00". A map whose keys are not text is a list of pairs. All other types map
to JSON directly.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any, Final, TextIO

from percola.cells import Cell, LockRecord, Op
from percola.errors import PercolaError, WrongTypeError
from percola.gc.time_log import CommitTimes
from percola.inspection import Failure, HeldLock, Status, Version, decoded_row
from percola.observers.causes import Change, Run
from percola.schema import Column, Family, Schema, Table, WeakColumn
from percola.transactions.row import Row

_KINDS = {Op.PUT: "put", Op.DELETE: "delete", Op.LOCK: "lock", Op.ROLLBACK: "rollback"}


_HIDDEN: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters that JSON may have as they are, and what changes the direction of writing."""

_kept: TextIO | None = None
"""Where documents go while what a program prints goes to stderr."""


@contextlib.contextmanager
def only_json() -> Iterator[None]:
    """Keep stdout for documents: what a user's code prints meanwhile goes to stderr."""
    global _kept
    before, _kept = _kept, _kept or sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _kept = before


def write_json(document: object) -> None:
    """Print one JSON document on one line."""
    out = _kept or sys.stdout
    out.write(_text(document, out) + "\n")
    out.flush()


def write_json_list(name: str, items: Iterable[object]) -> None:
    """Print the document `{name: [item, …]}` on one line, item by item: there may be millions.

    If one cannot be had, the document ends with those before it; without any, nothing is printed.
    """
    out = _kept or sys.stdout
    head = before = f"{{{json.dumps(name)}: ["
    try:
        for item in items:
            out.write(before + _text(item, out))
            before = ", "
    except PercolaError:
        if before != head:
            out.write("]}\n")
        raise
    out.write(("" if before != head else head) + "]}\n")
    out.flush()


def _text(document: object, out: TextIO) -> str:
    utf8 = (out.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(document, ensure_ascii=not utf8, allow_nan=False)
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def as_json(value: Any) -> Any:
    """A row key or a value in its JSON form."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date):
        return value.isoformat()
    # Loops, as each comprehension takes a frame up to Python 3.11: values are up to 500 deep.
    if isinstance(value, list):
        listed: list[Any] = []
        for one in value:
            listed.append(as_json(one))
        return listed
    if isinstance(value, dict):
        if all(isinstance(name, str) for name in value):
            named: dict[str, Any] = {}
            for name, one in value.items():
                named[name] = as_json(one)
            return named
        return [[as_json(name), as_json(one)] for name, one in value.items()]
    return value


def cell_json(cell: Cell, row: Any = None) -> dict[str, Any]:
    """A cell's address; `row` is its row's key, decoded. Without it, its bytes are shown."""
    key = cell.row if row is None else row
    return {"table": cell.table, "row": as_json(key), "column": as_json(cell.column)}


def stored_cell_json(cell: Cell, schema: Schema) -> dict[str, Any]:
    """`cell_json` of a stored cell, with its row's key if the schema can decode it."""
    return cell_json(cell, decoded_row(schema, cell))


def row_json(row: Row[Any]) -> dict[str, Any]:
    """A row that was read."""
    columns = {column.name: as_json(value) for column, value in row._all_items()}
    return {"row": as_json(row.key), "columns": columns}


def version_json(
    version: Version,
    column: Column[Any, Any] | WeakColumn[Any],
    times: CommitTimes,
    schema: Schema,
) -> dict[str, Any]:
    """A line of a cell's history."""
    write = version.write
    committed = {"committed_after": None, "committed_by": None}
    return {
        "ts": version.ts,
        **(committed if write is None else _committed_json(version.ts, times)),
        "data": None if version.data is None else as_json(decoded(column, version.data)),
        "lock": None if version.lock is None else _lock_json(version.lock, schema),
        "write": write and {"op": _KINDS[write.op], "start_ts": write.start_ts},
        "notify": version.notify,
        "acknowledged": list(version.acknowledged),
    }


def held_lock_json(lock: HeldLock, schema: Schema) -> dict[str, Any]:
    """A lock, its cell and its owner."""
    return {
        **stored_cell_json(lock.cell, schema),
        "start_ts": lock.start_ts,
        **_lock_json(lock.record, schema),
        "is_primary": lock.is_primary,
        "owner_alive": lock.owner_alive,
        "age_seconds": lock.age_seconds,
    }


def _lock_json(lock: LockRecord, schema: Schema) -> dict[str, Any]:
    return {
        "op": _KINDS[lock.op],
        "primary": stored_cell_json(lock.primary, schema),
        "owner": lock.owner,
        "wall_ms": lock.wall_ms,
        "ttl_ms": lock.ttl_ms,
    }


def change_json(change: Change, times: CommitTimes, schema: Schema) -> dict[str, Any]:
    """A change of `percola why`, with the runs that made or answered it."""
    return {
        **stored_cell_json(change.cell, schema),
        "op": change.op,
        "commit_ts": change.commit_ts,
        **_committed_json(change.commit_ts, times),
        "runs": [_run_json(run, times, schema) for run in change.runs],
        "end": change.end or None,
    }


def _run_json(run: Run, times: CommitTimes, schema: Schema) -> dict[str, Any]:
    return {
        "observer": run.observer,
        "table": run.table,
        "row": as_json(decoded_row(schema, Cell(run.table, run.row, b""))),
        "start_ts": run.start_ts,
        "commit_ts": run.commit_ts,
        **_committed_json(run.commit_ts, times),
        "at_ms": run.at_ms,
        "process": run.process or None,
        "batch": run.batch or None,
        "changes": [change_json(change, times, schema) for change in run.changes],
        "more": run.more,
        "end": run.end or None,
    }


def _committed_json(commit_ts: int, times: CommitTimes) -> dict[str, Any]:
    after, by = times.of(commit_ts)
    return {
        "committed_after": after and after.isoformat(),
        "committed_by": by and by.isoformat(),
    }


def failure_json(failure: Failure, schema: Schema) -> dict[str, Any]:
    """A change that was dead-lettered for an observer."""
    return {
        **stored_cell_json(failure.cell, schema),
        "observer": failure.observer,
        "attempts": failure.attempts,
        "at_ms": failure.at_ms,
        "error": failure.error,
        "traceback": failure.traceback,
    }


def status_json(status: Status) -> dict[str, Any]:
    """A summary of the repository."""
    return {
        "address": status.address,
        "format": status.format,
        "durability": status.durability,
        "last_ts": status.last_ts,
        "safe_point": status.safe_point,
        "statistics": dict(status.statistics),
        "tables": [
            {
                "name": table.name,
                "rows": table.rows_name,
                "columns": [
                    {"name": name, "type": kind, "observed": observed}
                    for name, kind, observed in members(table)
                ],
            }
            for table in status.tables
        ],
        "processes": [
            {
                "token": one.token,
                "pid": one.pid,
                "host": one.host,
                "since_ms": one.since_ms,
                "observers": dict(one.observers),
            }
            for one in status.processes
        ],
        "locks": status.locks,
        "dead_locks": status.dead_locks,
        "notifications": dict(status.notifications),
        "failures": status.failures,
        "paused": [one.name for one in status.paused],
    }


def members(table: Table[Any]) -> list[tuple[str, str, bool]]:
    """Each column's name, type, and whether it is observed."""
    found = []
    for member in table.members:
        if isinstance(member, WeakColumn):
            found.append((member.name, "weak", True))
        elif isinstance(member, Family):
            found.append((f"{member.name}:…", member.codec.name, False))
        else:
            found.append((member.name, member.codec.name, member.observed))
    return found


def decoded(column: Column[Any, Any] | WeakColumn[Any], raw: bytes) -> Any:
    # Show undecodable values raw: they may be why the history is being inspected.
    try:
        return column.decode_value(raw) if isinstance(column, Column) else raw
    except WrongTypeError:
        return raw

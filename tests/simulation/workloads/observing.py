"""What the workloads with observers check alike: N3, and that every change is answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from percola import Column, Repository
from percola.cells import MAX_TS, Cell, Kind, Op, ack_column, decode_write
from percola.testing.simulation import Workload


def check_answered(
    workload: Workload, repo: Repository, column: Column[str, Any], rows: Iterable[str], name: str
) -> int:
    """N3, and rest: at most one commit of the observer a change, and none behind the last.

    Returns how many runs answered more than one change.
    """
    collapsed = 0
    for row in rows:
        cell = Cell(column.table_name, column.table.encode_row(row), column.key)
        ack = Cell(cell.table, cell.row, ack_column(name, cell.column))
        changes = [commit_ts for commit_ts, _ in committed(repo, cell)]
        runs = [start_ts for _, start_ts in committed(repo, ack)]
        seen = 0
        for start_ts in sorted(runs):
            answered = [ts for ts in changes if seen < ts <= start_ts]
            if not answered:
                workload.violate(
                    f"The observer {name} committed twice for one change of {row}: its runs "
                    f"started at {sorted(runs)}, the changes are at {sorted(changes)} (N3).",
                    (column, row),
                )
            collapsed += len(answered) > 1
            seen = start_ts
        if changes and max(changes) > seen:
            workload.violate(
                f"The observer {name} has not answered the change of {row} at {max(changes)}: its "
                f"runs started at {sorted(runs)} (N1, N2).",
                (column, row),
            )
    return collapsed


def committed(repo: Repository, cell: Cell) -> list[tuple[int, int]]:
    """(commit_ts, start_ts) of every committed put and delete of a cell."""
    found = []
    for commit_ts, raw in repo.context.store.entries(cell, Kind.WRITE, 0, MAX_TS):
        record = decode_write(raw)
        if record.op in (Op.PUT, Op.DELETE):
            found.append((commit_ts, record.start_ts))
    return found

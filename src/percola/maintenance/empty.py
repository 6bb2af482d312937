"""§2.2: `empty` deletes what is in a table, or in some of its columns or rows.

A table stays in the schema, since other programs may use it, and nothing is taken out of the store
behind the protocol's back: each cell is deleted by a transaction, up to 1,000 at a time. So older
snapshots, feeds, observers and copies see what they see of any delete, on every store, and garbage
collection frees the space after the retention. If it is interrupted, the next call finds what is
left.

Deleted are the cells that are there when it begins, also those that are written before their turn;
what is written to others meanwhile stays, and so does what a cell gets after it was deleted.
The snapshot of the beginning holds garbage collection back until the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from percola.catalog import RUNS
from percola.errors import RetriesExhaustedError, UsageError
from percola.repository import Repository
from percola.schema import RECORD, Column, R, Table
from percola.transactions.retry import ATTEMPTS
from percola.transactions.row import Columns
from percola.transactions.transaction import Transaction

_CELLS: Final = 1_000
"""The most cells that a transaction deletes."""
_OF_A_ROW: Final = 100
"""The most of one row: Bigtable looks at the names of all of them in one filter."""
_TOGETHER: Final = 3
"""How often they are tried together, while others write one of them."""

_Cell = tuple[Column[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Emptied:
    """What was deleted, or would be.

    Attributes:
        rows: the rows of which something was deleted.
        cells: the cells.
    """

    rows: int = 0
    cells: int = 0


def empty(
    repo: Repository,
    table: Table[R],
    columns: Columns[R] = None,
    *,
    prefix: R | None = None,
    notify: bool = True,
    dry_run: bool = False,
    progress: Callable[[Emptied], object] = lambda so_far: None,
) -> Emptied:
    """Delete the cells of a table, also of columns that other programs have declared.

    Args:
        columns: only these columns and families. None: all, which a table does not accept that has
            what its rows contributed to a recipe: without that the recipe could not take it back.
        prefix: only rows that begin so.
        notify: whether observers run for the cells of observed columns, as after any delete.
        dry_run: count, and delete nothing.
        progress: called after each transaction; what it raises ends the work.

    Raises UsageError for a table that Percola keeps for itself, or with such contributions, for
    what is none, and for an empty prefix; the errors of `Snapshot.scan` and of `Repository.run`.
    """
    if not isinstance(table, Table):
        raise UsageError(
            f"{table!r} is not a Table: pass the one that your program declares, or that "
            "repo.table(NAME) returns."
        )
    if isinstance(prefix, str | bytes) and not prefix:
        raise UsageError(
            "The prefix is empty, as of a variable that is not set, and every row begins so: leave "
            "it out to delete the cells of all rows."
        )
    whole = repo.table(table.name)
    if whole.name == RUNS.name:
        raise UsageError(
            f"The table {whole.name!r} has the records of observers' runs, which garbage "
            "collection removes: 'percola observers record off' ends the recording."
        )
    if columns is None:
        kept = [one.name for one in whole.members if one.name.startswith(RECORD)]
        if kept:
            raise UsageError(
                f"The column {whole.name}.{kept[0]} has what its rows contributed to a recipe, "
                "which could not take it back without: name the columns that are to be deleted."
            )
    rows = cells = 0
    with repo.snapshot() as now:
        found = now.scan(whole, prefix=prefix, columns=columns)
        names = ((row.key, list(row._values)) for row in found)
        for begun, batch in _batches(whole, names):
            if not dry_run:
                _delete_in(repo, batch, notify=notify)
            rows, cells = rows + begun, cells + len(batch)
            progress(Emptied(rows, cells))
    return Emptied(rows, cells)


def _batches(
    table: Table[Any], rows: Iterator[tuple[Any, list[bytes]]]
) -> Iterator[tuple[int, list[_Cell]]]:
    """The cells of rows for one transaction each, and how many rows begin with them."""
    batch: list[_Cell] = []
    begun = 0
    for key, names in rows:
        for at in range(0, len(names), _OF_A_ROW):
            part = names[at : at + _OF_A_ROW]
            if batch and (at or len(batch) + len(part) > _CELLS):
                yield begun, batch
                begun, batch = 0, []
            begun += not at
            for name in part:
                column = table.resolve(name.decode())
                assert isinstance(column, Column)
                batch.append((column, key))
    if batch:
        yield begun, batch


def _delete_in(repo: Repository, cells: Sequence[_Cell], *, notify: bool) -> None:
    """Delete cells in one transaction; in two, and so on, if others write one all the time."""
    alone = len(cells) == 1
    try:
        attempts = ATTEMPTS if alone else _TOGETHER
        repo.run(functools.partial(_delete, cells=cells), attempts=attempts, notify=notify)
    except RetriesExhaustedError:
        if alone:
            raise
        half = len(cells) // 2
        for some in (cells[:half], cells[half:]):
            _delete_in(repo, some, notify=notify)


def _delete(t: Transaction, cells: Sequence[_Cell]) -> None:
    for column, row in cells:
        t.delete(column, row)

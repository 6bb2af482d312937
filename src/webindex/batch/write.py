"""Writes a computed index into an empty repository, by transactions in tasks.

A chunk of rows is one transaction. No two tasks write the same cell, so nothing conflicts, and a
task that Spark runs again repeats the same writes. Documents get the epoch that an observer
would give them, the timestamp of the transaction, and an entry in the outbox.

Writing observed columns makes their cells dirty, as it should: no observer has seen them. But all
that observers would write is there already. So `acknowledge` runs observers of the same
names on the same columns that do nothing, which acknowledges all changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

import percola
from percola import Column, Observer, Transaction, Worker
from percola.spark import in_transactions
from webindex import tables
from webindex.batch.inlinks import Row
from webindex.workers.processes import build_observers, open_index

_TABLES: Final = {table.name: table for table in tables.SCHEMA}
_ROWS: Final = 400
_BYTES: Final = 4 << 20
"""Bounds of one transaction's writes: far more than a loader's, as there are no other clients."""

_THREADS: Final = 3


def writes(address: str, salt: int) -> Callable[[Iterable[Row]], Iterator[int]]:
    """The function for `mapPartitions` that writes rows; it yields the cells per transaction.

    `salt` makes the names of clusters unique in this repository.
    """
    return in_transactions(
        partial(_write, salt), address, schema=tables.SCHEMA, chunk_rows=_ROWS, chunk_bytes=_BYTES
    )


def _write(salt: int, t: Transaction, rows: Iterable[Row]) -> int:
    cells = 0
    for row in rows:
        key, values = named(row, salt)
        for name, value in values.items():
            if row.table == "clusters" and name == "document":
                t.set(tables.document, key, {**value, "epoch": t.start_ts})
                tables.exports.enter(t, key, [], bulk=True)
            else:
                t.set(_column(row.table, name), key, value)
        cells += len(values)
    return cells


@lru_cache(maxsize=1000)
def _column(table: str, name: str) -> Column[str, Any]:
    column = _TABLES[table].resolve(name)
    assert isinstance(column, Column), (table, name)
    return column


def named(row: Row, salt: int) -> tuple[str, dict[str, Any]]:
    """A row's key and values, with the cluster names of the repository."""
    if row.table == "clusters":
        return cluster_name(row.row, salt), row.values
    values = dict(row.values)
    for name in ("joined", "owner"):
        if name in values:
            values[name] = {
                **values[name],
                "cluster": cluster_name(values[name]["cluster"], salt),
            }
    return row.row, values


def cluster_name(page: str, salt: int) -> str:
    """The name of a cluster, derived from the id of one of its pages."""
    return f"{page[:16]}{salt:x}"


# --- Acknowledging --------------------------------------------------------------------------


def acknowledge(address: str, numbers: Iterable[int]) -> Iterator[int]:
    """Acknowledge all changes for the observers, in a Spark worker; yields how many.

    The exporter's column is left dirty: it alone has something to do.
    """
    for _ in numbers:
        with (
            percola.open(address, schema=tables.SCHEMA, create=False) as repo,
            open_index(repo, create=True) as index,
        ):
            idle = [
                Observer(one.column, _nothing, one.name, others=one.others)
                for one in build_observers(index)
                if tables.outbox_ready not in one.columns
            ]
            worker = Worker(repo, idle, threads=_THREADS, retention=None, warn_unobserved=False)
            worker.run_until_idle()
        yield 1


def _nothing(t: Transaction, row: Any) -> None:
    """Do nothing: all that this observer would do has been done."""

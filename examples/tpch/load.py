"""Load TPC-H's tables from the Parquet files in `data` into the repository `tpch`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet

import percola
import queries
from percola import Repository, Table

TABLES = [
    queries.region,
    queries.nation,
    queries.supplier,
    queries.customer,
    queries.orders,
    queries.lineitem,
]
KEYS = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "customer": ["c_custkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}


def columns_of(table: Table[Any]) -> list[str]:
    """The columns of a table that TPC-H has."""
    prefix = KEYS[table.name][0][:2]
    return [one.name for one in table.members if one.name.startswith(prefix)]


def key_of(table: str, keys: Sequence[int]) -> Any:
    if table == "lineitem":
        return f"{keys[0]:010}/{keys[1]}"
    return f"{keys[0]:010}" if table == "orders" else keys[0]


def rows_of(data: Path, table: Table[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The keys and the columns of a table's rows."""
    keys, columns = KEYS[table.name], columns_of(table)
    file = pyarrow.parquet.ParquetFile(data / f"{table.name}.parquet")
    for batch in file.iter_batches(1_000, columns=[*keys, *columns]):
        for row in batch.to_pylist():
            yield key_of(table.name, [row[key] for key in keys]), {c: row[c] for c in columns}


def load(repo: Repository, data: Path) -> int:
    """Write all rows, a thousand in a transaction; returns how many."""
    number = 0
    for table in TABLES:
        resolved = {name: table.resolve(name) for name in columns_of(table)}
        t = repo.transaction()
        for key, values in rows_of(data, table):
            for name, value in values.items():
                t.set(resolved[name], key, value)
            number += 1
            if number % 1_000 == 0:
                t.commit()
                t = repo.transaction()
        t.commit()
    return number


if __name__ == "__main__":
    with percola.open("tpch", queries.SCHEMA, durability="relaxed") as repo:
        print(load(repo, Path(sys.argv[1] if len(sys.argv) > 1 else "data")), "rows loaded")

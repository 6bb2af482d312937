"""What a repository holds, without what depends on time and chance: to compare two of them.

Clusters have names that were made up when they were founded; here each is named by its first URL.
Times of loading and epochs are left out, which of the captures that say the same came first, where
a capture stands in which file, which captures were identical to it, and what revisits wait for: one
that came before its original is registered there, one that came later is not. Of each row a digest
is kept, so that two indexes of a whole corpus fit into memory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

from percola import Repository
from webindex import tables
from webindex.load.revisits import earlier_key

State = dict[tuple[str, str], bytes]
"""A digest of each row: (table, row) → of all its cells."""

_OF_TIME: Final = frozenset(
    {"loaded_ms", "changed", "file", "offset", "length", "seen", "epoch", "run", "identical"}
)
_WITHOUT: Final = (tables.journal, tables.ranks, tables.waiting)


def state_of(repo: Repository) -> State:
    """All rows of the index as they are now."""
    return {
        place: blake2b(json.dumps(cells, sort_keys=True).encode(), digest_size=16).digest()
        for place, cells in _rows(repo)
    }


def check_same(one: State, other: State) -> None:
    """AssertionError, with the first rows that differ, unless both hold the same."""
    wrong = sorted(p for p in one.keys() | other.keys() if one.get(p) != other.get(p))
    shown = "\n".join(
        f"  {table} {row}: {_how(one.get((table, row)), other.get((table, row)))}"
        for table, row in wrong[:10]
    )
    assert not wrong, f"{len(wrong):,} rows differ:\n{shown}"


def _how(one: bytes | None, other: bytes | None) -> str:
    if one is None:
        return "only in the second"
    return "only in the first" if other is None else "differs"


def _rows(repo: Repository) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    with repo.snapshot() as now:
        names: dict[str, str] = {}
        for row in now.scan(tables.clusters, columns=[tables.member]):
            members = row.family(tables.member)
            names[row.key] = min((one["url"] for one in members.values()), default=row.key)
        for table in (one for one in tables.SCHEMA if one not in _WITHOUT):
            for row in now.scan(table):
                cells = {
                    column.name: _timeless(column.name, value, names)
                    for column, value in row.items()
                }
                capture = row.get(tables.capture) if table is tables.pages else None
                if capture is not None and "earlier" in cells:
                    # An older capture of its payload is there only if it was loaded later.
                    cells["earlier"].pop(earlier_key(capture), None)
                    if not cells["earlier"]:
                        del cells["earlier"]
                # An empty list and none at all say the same of a page's links.
                cells = {name: value for name, value in cells.items() if value != []}
                if cells:
                    key = names[row.key] if table is tables.clusters else row.key
                    yield (table.name, key), cells


def _timeless(column: str, value: Any, names: dict[str, str]) -> Any:
    if column == "body":
        return zlib.decompress(value).hex()
    if isinstance(value, bytes):
        return value.hex()
    if column in ("inverted", "links"):
        return sorted(value)
    if isinstance(value, dict):
        kept = _without_times(value)
        if column in ("joined", "owner"):
            kept["cluster"] = names.get(value["cluster"], "?")
        return kept
    return value


def _without_times(value: Any) -> Any:
    """A value at any depth: earlier captures and reports are values inside others."""
    if isinstance(value, dict):
        return {name: _without_times(one) for name, one in value.items() if name not in _OF_TIME}
    return [_without_times(one) for one in value] if isinstance(value, list) else value

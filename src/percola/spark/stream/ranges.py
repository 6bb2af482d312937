"""§2.4 Partitioning the changes of a batch into ranges of rows with about equally many changes.

Starting a task costs as much as reading some thousand rows, so a small batch is one range. For a
large batch, the first changes are sampled. (`percola.spark.partitioning` partitions rows.)
"""

from __future__ import annotations

import itertools
import os
from typing import Final

from percola.store.base import Store

Range = tuple[bytes, bytes]
"""[start, end); an empty end has none."""

_WORTH_A_TASK: Final = 4096
_LOOKED_AT: Final = 65_536


def change_ranges(
    store: Store, table: str, after: int, upto: int, most: int | None = None
) -> list[Range]:
    """Ranges of rows for reading the changes in (after, upto]; no row is in two ranges."""
    listed = list(itertools.islice(store.changes(table, after, upto), _LOOKED_AT))
    if not listed:
        return []
    parts = most or min(max(2, os.cpu_count() or 1), max(1, len(listed) // _WORTH_A_TASK))
    rows = sorted(one.row for one in listed)
    cuts = sorted({rows[len(rows) * number // parts] for number in range(1, parts)} - {rows[0]})
    return list(itertools.pairwise([b"", *cuts, b""]))

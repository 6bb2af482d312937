"""§2.4 How the changes of a batch are divided: ranges of rows with about equally much to read.

Starting a task costs as much as reading some thousand rows, so a small batch is one range. Which
ranges are fair is judged by a part of a large one. (`percola.spark.partitioning` divides rows.)
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
    """Ranges of rows in which the changes in (after, upto] are read, each all of a row's."""
    listed = list(itertools.islice(store.walk_changes(table, after, upto), _LOOKED_AT))
    if not listed:
        return []
    parts = most or min(max(2, os.cpu_count() or 1), max(1, len(listed) // _WORTH_A_TASK))
    rows = sorted(one.row for one in listed)
    cuts = sorted({rows[len(rows) * number // parts] for number in range(1, parts)} - {rows[0]})
    return list(itertools.pairwise([b"", *cuts, b""]))

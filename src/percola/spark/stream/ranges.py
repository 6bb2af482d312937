"""§2.4 Partitioning the changes of a batch into ranges of rows with about equally many changes.

Starting a task costs as much as reading some thousand rows, so a small batch is one range. A large
batch is sampled: by its first changes if these are all, and else by those that follow timestamps
at equal distances. Of one commit they would be its first rows only: if it is a large part of the
sample, as that of a Spark job, the table's rows are partitioned (`percola.spark.partitioning`).
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from typing import Final

from percola.spark.partitioning import row_ranges
from percola.store.base import Store

Range = tuple[bytes, bytes]
"""[start, end); an empty end has none."""

_WORTH_A_TASK: Final = 4096
_LOOKED_AT: Final = 65_536
_PLACES: Final = 8


def change_ranges(
    store: Store, table: str, after: int, upto: int, most: int | None = None
) -> list[Range]:
    """Ranges of rows for reading the changes in (after, upto]; no row is in two ranges."""
    listed = list(itertools.islice(store.changes(table, after, upto), _LOOKED_AT))
    if not listed:
        return []
    parts = most or min(max(2, os.cpu_count() or 1), max(1, len(listed) // _WORTH_A_TASK))
    if len(listed) == _LOOKED_AT:
        each = _LOOKED_AT // _PLACES
        places = (after + (upto - after) * at // _PLACES for at in range(_PLACES))
        listed = [
            one for at in places for one in itertools.islice(store.changes(table, at, upto), each)
        ]
        if max(Counter(one.commit_ts for one in listed).values()) > 2 * each:
            return row_ranges(store, table, b"", b"", parts)
    rows = sorted(one.row for one in listed)
    cuts = sorted({rows[len(rows) * number // parts] for number in range(1, parts)} - {rows[0]})
    return list(itertools.pairwise([b"", *cuts, b""]))

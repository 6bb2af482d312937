"""§2.4: dirty cells of columns that no worker observes: a warning when a worker starts, or is idle.

Their notify entries are kept until a worker observes the column, and nothing else would reveal the
mistake: with an observer missing from its list, a worker just looks idle. Where its own runs notify
such a column, as those that contribute to a recipe do, only its end shows it.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Collection
from typing import Final

from percola.cells import Kind
from percola.observers.observer import Observers
from percola.store.walks import walk_kind
from percola.transactions.context import TransactionContext

log = logging.getLogger("percola.worker")

COUNTED: Final = 10_000
"""The most notify entries read per table, so that a worker starts fast however many are dirty."""


def warn_of_unobserved(
    context: TransactionContext, observers: Observers, told: Collection[str] = ()
) -> set[str]:
    """Log each column that has dirty cells, and no observer here or in a live worker elsewhere.

    Costs nothing if every observable column of the schema is observed here; else a bounded scan of
    the notify entries of the tables concerned. Returns which columns it has logged, of those that
    were not `told` before.
    """
    unobserved = {
        address
        for address, observed in context.columns.items()
        # A table is listed as a column with an empty name.
        if observed is not False and address[1] and address not in observers.addresses
    }
    logged: set[str] = set()
    if not unobserved:
        return logged
    elsewhere = set(told)
    for process in context.coordination.processes():
        if isinstance(announced := process.get("observers"), dict):
            elsewhere.update(announced)
    for table in sorted({table for table, _ in unobserved}):
        dirty, whole = _dirty_cells(context, table)
        for column, cells in sorted(dirty.items()):
            name = f"{table}.{column.decode()}"
            if (table, column) in observers.addresses or name in elsewhere:
                continue
            number = f"{cells:,}" if whole else f"at least {cells:,}"
            if cells > COUNTED:
                number = f"more than {COUNTED:,}"
            log.warning(
                "%s has %s dirty %s, and no worker observes it.",
                *(name, number, "cell" if number == "1" else "cells"),
            )
            logged.add(name)
    return logged


def _dirty_cells(context: TransactionContext, table: str) -> tuple[Counter[bytes], bool]:
    """The number of dirty cells by column, and whether the count is complete."""
    entries = walk_kind(context.store, Kind.NOTIFY, table, first=1, versions=1)
    cells = [cell for cell, _, _ in itertools.islice(entries, COUNTED + 1)]
    return Counter(cell.column for cell in cells), len(cells) <= COUNTED

"""Commits a transaction of three rows in two phases, and stops for ever at a given place.

Arguments: the repository's folder, the number of row mutations to apply before stopping. It
prints "stopped" there, and waits to be killed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from stores import SeamStore

import percola
from percola import Repository, Table
from percola.store.base import OneStepStore, RowMutation

bank = Table("bank")
bal = bank.column("bal", int, observed=True)


def main(folder: str, stop_after: int) -> None:
    opened = percola.open(folder, schema=[bank])
    context = opened.context
    assert isinstance(context.store, OneStepStore)
    store = SeamStore(context.store)
    repo = Repository(folder, store, context.oracle, context.coordination, [bank])
    applied = 0

    def stop(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        nonlocal applied
        if applied == stop_after:
            print("stopped", flush=True)
            threading.Event().wait()
        applied += 1
        return apply()

    store.hook = stop
    with repo.transaction(two_phase=True) as t:
        for row in ("a", "b", "c"):
            t.set(bal, row, 2)
    print("committed", flush=True)
    print("stopped", flush=True)
    threading.Event().wait()


main(sys.argv[1], int(sys.argv[2]))

"""Upkeep while tests use tables of HBase: flushes and compactions, as HBase does them in time.

What stands in memory, in one file or in several, with its delete markers or without them, is read
by other code of HBase each time; no answer may depend on it. HBase writes a file at megabytes or
after an hour, which no test waits for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from hbase_admin import Admin
from stores import DEADLINE, in_thread

from percola.store.hbase.store import HBaseStore

_PAUSE: Final = 0.5
"""Seconds between two rounds: tests take about as long."""

_COMPACTED: Final = 3
"""Every so manieth flush of a table is followed by a major compaction of its files."""


class Upkeep:
    """A thread that flushes and compacts the tables of a namespace that are used meanwhile."""

    def __init__(self, store: HBaseStore) -> None:
        self._admin = Admin(store)
        self._turn = threading.Condition()
        self._flushes = Counter[str]()
        self._ends = threading.Event()
        self._done = in_thread(self._run)

    def _run(self) -> None:
        before: dict[str, int] = {}
        while not self._ends.wait(_PAUSE):
            now = self._admin.requests()
            used = [one for one in now if now[one] != before.get(one)]
            for table in filter(self._admin.is_open, used):
                self._admin.flush(table)
                if self._flushes[table] % _COMPACTED == _COMPACTED - 1:
                    self._admin.compact(table)
                with self._turn:
                    self._flushes[table] += 1
                    self._turn.notify_all()
            before = now

    def check(self, table: str, write: Callable[[int], object]) -> None:
        """Have a table written until it stands in files that were compacted."""
        for i in range(1 + _COMPACTED):
            write(i)
            with self._turn:
                wanted = self._flushes[table] + 1
                self._turn.wait_for(
                    lambda wanted=wanted: self._flushes[table] >= wanted or self._done.done(),
                    DEADLINE,
                )
            assert not self._done.done(), str(self._done.exception())
            assert self._flushes[table] >= wanted, "nobody flushes it"
        assert self._admin.files(table) > 0
        deadline = time.monotonic() + DEADLINE
        while not self._admin.was_compacted(table):
            assert time.monotonic() < deadline, "nobody compacts it"

    def end(self) -> None:
        """Stop it. Raises what it has failed with."""
        self._ends.set()
        self._done.result(2 * DEADLINE)


@contextlib.contextmanager
def kept_up(store: HBaseStore) -> Iterator[Upkeep]:
    """Keep the tables of a store's namespace up meanwhile."""
    store.create_tables([])  # Makes the namespace.
    upkeep = Upkeep(store)
    yield upkeep
    upkeep.end()

"""§3: the outbox: changed documents that are not in the search index yet.

    0000000000000012/c1f0…/00000000000000049200     entry: changed at timestamp 49,200
    ──── window ──── cluster ──── epoch ───────

Entries that pass through a queue leave versions behind until garbage collection removes them, and a
scan reads over them. So the queue is divided into windows of time, by the timestamp of the change:
a window's first and last entries are never many timestamps apart, the exporter scans only
windows that were notified, and entries exported long ago are in other windows.

A transaction that commits late enters its documents into the window in which it started, and
notifies that one: no entry is left behind because other transactions went on to later windows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from percola import Snapshot, Transaction
from webindex import tables

__all__ = ["Entry", "Waiting", "enter", "entries", "window_of"]

WINDOW: Final = 4096
"""Timestamps in one window."""


class Entry(NamedTuple):
    """The key of an entry: the cluster that changed, and the timestamp of the change."""

    key: str
    cluster: str
    epoch: int


class Waiting(NamedTuple):
    """An entry, and when the captures that caused it were loaded, in milliseconds."""

    entry: Entry
    loaded_ms: Sequence[int]


def window_of(ts: int) -> str:
    """The row of a timestamp's window; a notification there means that it has entries."""
    return f"{ts // WINDOW:016}"


def enter(t: Transaction, cluster: str, loaded_ms: Iterable[int] = ()) -> None:
    """Enter a cluster whose document changes in this transaction, and notify the exporter."""
    window = window_of(t.start_ts)
    value: dict[str, Any] = {"loaded_ms": list(loaded_ms)}
    t.set(tables.entry, f"{window}/{cluster}/{t.start_ts:020}", value)
    t.notify(tables.outbox_ready, window)


def entries(
    now: Snapshot, window: str, cluster: str | None = None, *, after: str = ""
) -> Iterator[Waiting]:
    """The entries of a window, of one cluster or of all.

    With `after`, the key of an entry, they come in order from there on, and then from the
    beginning: the entries before it have been deleted, except those added later, and a scan reads
    over each deleted one.
    """
    prefix = f"{window}/" if cluster is None else f"{window}/{cluster}/"
    scan = functools.partial(now.scan, tables.outbox, columns=[tables.entry])
    if after:
        past = prefix[:-1] + chr(ord("/") + 1)
        rows = itertools.chain(scan(start=after, end=past), scan(start=prefix, end=after))
    else:
        rows = itertools.chain(scan(prefix=prefix))
    for row in rows:
        _, name, epoch = row.key.split("/")
        yield Waiting(Entry(row.key, name, int(epoch)), row[tables.entry]["loaded_ms"])

"""A queue of changes for a system outside the repository, such as a search index or a mail server.

    outbox['0000000000000012/c17/00000000000000049200']
                     entry    {"key": "c17", "note": …}     c17 changed at timestamp 49,200
                     refused  {"key": "c17", "note": …, "why": …}     instead: it was not taken
    outbox['0000000000000012']
                     ready    weak: the window has entries
    outbox['entered/0000000000000012/c17/00000000000000049200']
                     entered  "c17"       there is such an entry, unless it was lost

A transaction that changes something enters its key, and commits both or neither. An exporter, an
observer, takes entries by the hundreds, sends them, and removes them in the transaction in which it
has read what it sent. If it is killed in between, they are sent again: at least once. The receiver
keeps the epoch of each key, the timestamp of the change, and ignores what it has already: once in
effect, if transactions that enter one key conflict when they overlap.

Entries that pass through a queue leave versions behind until garbage collection removes them, and a
scan reads over them. So the queue is divided into windows of time, by the timestamp of the change:
a window's first and last entries are never many timestamps apart, the exporter scans only
windows that were notified, and entries exported long ago are in other windows. A transaction that
commits late enters its keys into the window in which it began, and notifies that one: no entry is
left behind because other transactions went on to later windows.

An exported entry leaves nothing, and neither does one that a bug or an operator has deleted. So
each has a witness, a cell in another row, which the transaction that enters the entry writes and
the one that exports it deletes. A witness without its entry is a loss, which
`percola.recipes.check` tells.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from percola.errors import ObserverError, SchemaError, UsageError
from percola.observers.observer import Observer, observer
from percola.recipes.applied import VALUES
from percola.recipes.comparing import Checkable, Claim, Comparison, Scan
from percola.recipes.keys import part
from percola.schema import Column, Table, WeakColumn
from percola.transactions.row import Row
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

WINDOW: Final = 4096
"""Timestamps in one window."""

_WINDOWS: Final = 256
"""Windows of which an exporter remembers how far it went."""

_ENTERED: Final = "entered/"
"""Before the rows of witnesses, which come after all windows: exporters do not scan them."""


class Entry(NamedTuple):
    """A change that waits to be exported.

    Attributes:
        row: its row in the queue.
        key: what changed.
        epoch: when it changed: the start_ts of the transaction that entered it.
        note: what that transaction noted.
    """

    row: str
    key: str
    epoch: int
    note: Any


class Refused(NamedTuple):
    """An entry that the receiver did not take, and why."""

    entry: Entry
    why: str


Send: TypeAlias = Callable[[Transaction, Sequence[Entry]], Iterable[Refused] | Refused | None]


class Export(Checkable):
    """Changes for a system outside, taken by one exporter or several side by side.

    Several exporters divide the keys, so that the entries of a key are sent one after the other,
    and their number is part of the schema. One exporter may also run in several workers
    (`observers`), which divide the windows.

    Args:
        name: of the queue's table.
        exporters: how many there are. Each has the keys whose hash is in its range, so the entries
            of one key are sent by one exporter. Drain the queue before you lower the number, or
            raise it from 1: nobody would export what waits.

    Attributes:
        entry: the column of entries, for rows of `table`.
        ready: the weak column of each exporter.
        tables: what the schema must contain.
    """

    def __init__(self, name: str, *, exporters: int = 1) -> None:
        if type(exporters) is not int or not 1 <= exporters <= 1000:
            raise SchemaError(
                f"The queue {name!r} has from 1 to 1000 exporters, not {exporters!r}."
            )
        self.table: Final[Table[str]] = Table(name)
        self.entry: Final[Column[str, Any]] = self.table.column("entry", VALUES)
        self.refused: Final[Column[str, Any]] = self.table.column("refused", VALUES)
        self._entered: Final[Column[str, Any]] = self.table.column("entered", VALUES)
        self.ready: Final[Sequence[WeakColumn[str]]] = tuple(
            self.table.weak_column("ready" if exporters == 1 else f"ready.{number}")
            for number in range(exporters)
        )
        self.tables: Final[Sequence[Table[Any]]] = (self.table,)

    # --- Entering -----------------------------------------------------------------------

    def enter(self, t: Transaction, key: str, note: Any = None, *, bulk: bool = False) -> None:
        """Enter a key that changes in this transaction, and notify its exporter.

        Transactions that enter the same key should write a cell in common: else, of two that
        overlap, the one that commits last may have the older epoch, which the receiver ignores.

        Args:
            note: goes with the entry: what JSON can hold, and Decimals. What is sent should be read
                when it is sent, so that it is the newest.
            bulk: whether this transaction enters hundreds of keys: they get a window of their own,
                which one run exports, so that workers share what such transactions enter.
        """
        name = part(key)  # Raises WrongTypeError for what is no key.
        window = self.window_of(t.start_ts, key)
        if bulk:
            window += f".{t.start_ts % WINDOW:04}"
        self._put(t, Entry(f"{window}/{name}/{t.start_ts:020}", key, t.start_ts, note))

    def _put(self, t: Transaction, one: Entry) -> None:
        t.set(self.entry, one.row, {"key": one.key, "note": one.note})
        t.set(self._entered, _ENTERED + one.row, one.key)
        t.notify(self.ready[self._exporter_of(one.key)], one.row.partition("/")[0])

    def window_of(self, ts: int, key: str) -> str:
        """The row of the window of a timestamp and a key."""
        window = f"{ts // WINDOW:016}"
        return window if len(self.ready) == 1 else f"{self._exporter_of(key):03}.{window}"

    def _exporter_of(self, key: str) -> int:
        if len(self.ready) == 1:
            return 0
        digest = hashlib.blake2b(key.encode(), digest_size=4).digest()
        return int.from_bytes(digest) * len(self.ready) >> 32

    # --- Reading ------------------------------------------------------------------------

    def entries(
        self, now: Snapshot, window: str, key: str | None = None, *, after: str = ""
    ) -> Iterator[Entry]:
        """The entries of a window, of one key or of all.

        With `after`, the row of an entry, they come in order from there on, and then from the
        beginning: the entries before it have been deleted, except those added later, and a scan
        reads over each deleted one.
        """
        prefix = f"{window}/" if key is None else f"{window}/{part(key)}/"
        scan = functools.partial(now.scan, self.table, columns=[self.entry])
        if after:
            past = prefix[:-1] + chr(ord("/") + 1)
            rows = itertools.chain(scan(start=after, end=past), scan(start=prefix, end=after))
        else:
            rows = itertools.chain(scan(prefix=prefix))
        return (_entry(row, row[self.entry]) for row in rows)

    def refusals(self, now: Snapshot) -> Iterator[Refused]:
        """The entries that the receiver did not take: the dead letters, oldest windows first."""
        for row in now.scan(self.table, columns=[self.refused]):
            found = row[self.refused]
            yield Refused(_entry(row, found), found["why"])

    def lost(self, now: Snapshot) -> Iterator[Refused]:
        """The entries that were deleted without being exported; their notes are gone with them."""
        entries = now.scan(self.table, end=_ENTERED, columns=[self.entry])
        there = next(entries, None)
        for row in now.scan(self.table, prefix=_ENTERED, columns=[self._entered]):
            name = row.key.removeprefix(_ENTERED)  # In the order of the entries.
            while there is not None and there.key < name:
                there = next(entries, None)
            if there is None or there.key != name:
                one = Entry(name, row[self._entered], int(name.rpartition("/")[2]), None)
                yield Refused(one, "It was deleted before it was exported.")

    def retry(self, t: Transaction, one: Refused) -> None:
        """Enter an entry that was refused or lost again, with its epoch."""
        t.delete(self.refused, one.entry.row)
        self._put(t, one.entry)

    # --- Exporting ----------------------------------------------------------------------

    def observers(
        self,
        send: Send,
        *,
        name: str = "",
        most: int = 500,
        share: float = 1.0,
        workers: int = 1,
    ) -> list[Observer[str]]:
        """The exporters, for a worker to run; each on a thread of its own.

        Args:
            send: called with the transaction of a run and some entries. It reads in the
                transaction what has to be sent, and sends it, durably. It must be safe to repeat:
                the receiver ignores a key whose epoch it has already. It returns what the receiver
                refuses, which becomes dead letters, or None; if it raises, or returns anything
                else, all entries stay, and it is called again, five times in all unless it raises a
                TransientError.
            name: of the observers, followed by a number if there are several; `NAME.export` by
                default.
            most: entries that one call gets at most.
            share: cap on the exporters' part of a worker's time, see `percola.observer`.
            workers: how many workers run each exporter at a time, each for other windows. With
                more than one, entries of a key may be sent at the same time and in any order: the
                receiver has to compare epochs and to take an entry in one step.
        """
        name = name or f"{self.table.name}.export"
        if not all(isinstance(one, int) and one >= 1 for one in (most, workers)):
            raise ObserverError(
                f"The exporters {name!r} take at least one entry at a time and run in at least one "
                f"worker, but most is {most!r} and workers is {workers!r}: these are numbers."
            )
        several = len(self.ready) > 1
        return [
            # One window a transaction: a call that fails does not have others repeated.
            observer(
                column,
                name=f"{name}.{number}" if several else name,
                batch=1,
                share=share,
                dedicated=workers,
            )(self._exporter(column, send, most))
            for number, column in enumerate(self.ready)
        ]

    def _exporter(
        self, ready: WeakColumn[str], send: Send, most: int
    ) -> Callable[[Transaction, str], None]:
        # By window, the last entry taken, for windows with more entries. A hint: if the run did not
        # commit, or another process went further, entries before it are found as well.
        reached: dict[str, str] = {}

        def export(t: Transaction, window: str) -> None:
            taken: list[Entry] = []
            for one in self.entries(t, window, after=reached.pop(window, "")):
                if len(taken) >= most:
                    t.notify(ready, window)
                    if len(reached) >= _WINDOWS:
                        reached.clear()
                    reached[window] = taken[-1].row
                    break
                taken.append(one)
                t.delete(self.entry, one.row)
                t.delete(self._entered, _ENTERED + one.row)
            if taken:
                for refused in self._refused(send(t, taken)):
                    one = refused.entry
                    value = {"key": one.key, "note": one.note, "why": refused.why}
                    t.set(self.refused, one.row, value)

        return export

    def _refused(self, found: object) -> Sequence[Refused]:
        """What `send` has returned, as a list; UsageError for anything else than it may return."""
        if found is None:
            return ()
        listed: list[object] = [found]
        if isinstance(found, Collection | Iterator) and not isinstance(found, Refused):
            listed = list(found)
        refused = [one for one in listed if isinstance(one, Refused)]
        if len(refused) < len(listed):
            raise UsageError(
                f"The function that sends the entries of {self.table.name!r} has returned "
                f"{found!r}, which may say that they were not taken: they are sent again. It "
                "returns the entries that the receiver refuses, each as a Refused, or None, and "
                "raises an error if nothing was taken."
            )
        return refused

    # --- Checking -----------------------------------------------------------------------

    def comparisons(self) -> Sequence[Comparison]:
        """How entries are compared with their witnesses; see `percola.recipes.check`.

        It may be called while entries wait to be exported.
        """
        scan = Scan(self.table, [self.entry, self._entered], self._claims)
        return [Comparison(self.table.name, [scan], _combined, self._judge)]

    def _claims(self, row: Row[str]) -> Iterator[Claim]:
        if self._entered in row:
            yield Claim(row.key.removeprefix(_ENTERED), expected=row[self._entered])
        if self.entry in row:
            yield Claim(row.key, found=True)

    def _judge(self, kind: str, name: str, expected: Any, found: Any) -> Iterator[str]:
        # Entries of earlier versions have no witness.
        if found is None:
            table = self.table.name
            yield (
                f"{table}[{name!r}] is missing: it was deleted before {expected!r} was exported. "
                f"Enter what is lost again: `for one in {table}.lost(t): {table}.retry(t, one)`, "
                f"{table} being the Export."
            )


def _combined(kind: str, left: Any, right: Any) -> Any:
    return left


def _entry(row: Row[str], found: Any) -> Entry:
    _, key, epoch = row.key.split("/")
    # Entries that webindex made before it had this queue are named by their rows alone.
    return Entry(row.key, found.get("key", key), int(epoch), found.get("note"))

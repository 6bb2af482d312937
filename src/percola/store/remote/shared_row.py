"""§2.1, rule P12: state that all processes on a network store share: safe point, feeds, index.

Both are stored in one row. Reading it with every call would double the calls, so each process
caches it for up to LEASE seconds, and a change takes effect only after that time:

    announce     put the new value; processes that read the row from now on use it
    wait         LEASE seconds and a tenth: no process uses the old value any more
    in force     put it once more: `raise_safe_point` and `keep_feed` return

Why that is enough. A reader finishes reading at a moment A by its own clock, and then checks. It
uses the row that it requested at a moment Q if A - Q < LEASE, else it requests the row now. If it
missed a value that was announced at W, its request was before W, so A < W + LEASE, which is before
the value came into force, and before anything was removed because of it: all that it read was
complete. If it requested the row after A, the same follows, as the request was after A.

A committer checks when its last prewrite has been acknowledged, at A. If it missed a safe point,
then by the same argument all its prewrites were applied before anything was removed: they met all
records that conflict with them. Only then does it draw its commit_ts (P2), so that this is above
any safe point whose collector did not see its locks (`percola.gc.collector`). A committer whose
prewrites were applied after a removal has A after W + LEASE, so its check fails. The same holds for
a client that finds no record of its own commit: if it was removed, then before A.

A writer checks whether the table keeps a feed at a moment A, when the commit_ts that it is about to
write has been drawn; if it missed the feed, that commit_ts is older than the moment at which the
feed came into force, and so below the timestamp from which the feed is complete according to the
catalog.

The index of feeds (`percola.store.remote.feed_index`) comes into force like a feed: a committer
asks for it at a moment A, too, when it has drawn its commit_ts. Before any table keeps a feed, it
does so at once: a committer that knows a table's feed has read the row since that was announced,
and thus since the index was.

A process compares durations by its own clock only, one that runs on while the machine sleeps. The
tenth allows for clocks that run at different speeds. The collector does not use the cache: it
removes only what the server reports as below the safe point in force (`look`).

A safe point or feed whose announcer died stays announced and comes into force when the next client
raises or requests it; readers and committers respect it from its announcement on.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from percola.clock import elapsed
from percola.errors import SnapshotTooOldError, StoreError
from percola.platform import fork_safety as forks

SHARED_TABLE: Final = "@percola-store"
"""The table of the row; users' tables cannot have names like this."""

LEASE: Final = 1.0
"""Seconds for which a process caches the row. It must be the same in all processes."""

ROW: Final = b"repository"
"""The key of the row; its entries are of kind DATA."""

_SAFE_POINT: Final = b"safe-point:"
_FEED: Final = b"feed:"
_INDEX: Final = b"feed-index:"
_ANNOUNCED: Final = b"announced"
_IN_FORCE: Final = b"in-force"
_SINCE: Final = b"since"
_FLOOR: Final = b"floor:"
_WALKED: Final = b"walked"
_FORGOTTEN: Final = b"forgotten"
_KEPT: Final = 1


class View(NamedTuple):
    """The row as this process last read it.

    Attributes:
        asked: when it sent the request, by `elapsed`.
        announced: the safe point that readers and committers respect.
        in_force: the safe point that every process respects.
        feeds: the tables that keep a feed, or are about to.
        feeds_in_force: those of them that every writer knows.
        indexed: whether commits have entries in the index of feeds.
        indexed_since: every commit above this timestamp has them; None: none may.
        walked: the tables all of whose locks that matter have them.
        floors_announced: by table, a timestamp at or below which no commit puts pending entries.
        floors: by table, a timestamp at or below which no pending entry matters any more.
        forgotten: by table, up to where the collector has removed committed entries.
        floors_forgotten: by table, up to where it has removed pending ones.
    """

    asked: float
    announced: int
    in_force: int
    feeds: frozenset[str]
    feeds_in_force: frozenset[str]
    indexed: bool = False
    indexed_since: int | None = None
    walked: frozenset[str] = frozenset()
    floors_announced: Mapping[str, int] = MappingProxyType({})
    floors: Mapping[str, int] = MappingProxyType({})
    forgotten: Mapping[str, int] = MappingProxyType({})
    floors_forgotten: Mapping[str, int] = MappingProxyType({})


class SharedRow(ABC):
    """One process's cache of the shared row; subclasses read and write it in their store.

    Args:
        sleep: waits for a number of seconds.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._view: View | None = None
        # When the last request that failed for good was begun, and why it failed.
        self._silent: tuple[float, str] | None = None

    def now(self) -> float:
        """The moment by which leases are counted, in seconds."""
        return elapsed()

    @abstractmethod
    def _read(self) -> Mapping[bytes, int]:
        """The timestamp of each column's newest entry."""

    @abstractmethod
    def _put(self, column: bytes, ts: int) -> None:
        """Put an entry without a value. The newest one counts, so the call may be repeated."""

    def view(self, moment: float) -> View:
        """The view for an operation that finished at `moment`; reads the row only if needed.

        Raises StoreError if the server does not answer: in threads that wait for one request when
        that has failed, and they do not repeat it one after the other.
        """
        view = self._view
        if view is not None and moment - view.asked < LEASE:
            return view
        with self._guard:
            # Another thread may have read it meanwhile: one call for all.
            view = self._view
            if view is None or moment - view.asked >= LEASE:
                if self._silent is not None and moment < self._silent[0]:
                    raise StoreError(self._silent[1])
                began = self.now()
                try:
                    view = self.look()
                except StoreError as error:
                    self._silent = began, str(error)
                    raise
            return view

    def current(self) -> View:
        """The view for an operation that finishes now."""
        return self.view(self.now())

    def look(self) -> View:
        """Read the row from the server."""
        asked = self.now()
        row = self._read()
        view = View(
            asked,
            row.get(_SAFE_POINT + _ANNOUNCED, 0),
            row.get(_SAFE_POINT + _IN_FORCE, 0),
            _feeds(row, _ANNOUNCED),
            _feeds(row, _IN_FORCE),
            _INDEX + _ANNOUNCED in row,
            # Stored as the first timestamp that may have entries: 0 is none of the database's.
            row[_INDEX + _SINCE] - 1 if _INDEX + _SINCE in row else None,
            _feeds(row, _WALKED),
            _stamps(row, _ANNOUNCED, _FLOOR),
            _stamps(row, _IN_FORCE, _FLOOR),
            _stamps(row, _FORGOTTEN, _FEED),
            _stamps(row, _FORGOTTEN, _FLOOR),
        )
        current = self._view
        if current is None or current.asked <= asked:
            self._view = view
        return view

    def check(self, ts: int) -> None:
        """Raise SnapshotTooOldError if what was read at `ts` until now may be incomplete."""
        view = self.current()
        if ts < view.announced:
            raise SnapshotTooOldError(ts, view.announced)

    def raise_safe_point(self, ts: int) -> None:
        """Raise the safe point, and return when no process reads below it any more."""
        if ts <= self.look().in_force:
            return
        self._establish(_SAFE_POINT, ts)

    def keep_feed(self, table: str) -> None:
        """Record that the table keeps a feed, and return when every writer knows."""
        if table in self.look().feeds_in_force:
            return
        self._establish(_FEED + table.encode() + b":", _KEPT)

    def index_feeds(self, latest: Callable[[], int]) -> bool:
        """See `FeedIndex.begin`."""
        if self.look().indexed_since is not None:
            return False
        self._put(_INDEX + _ANNOUNCED, _KEPT)
        since = 0
        # A feed that is announced from now on is known only to writers that know the index.
        if self.look().feeds:
            self._sleep(LEASE * 1.1)
            since = latest()
        self._put(_INDEX + _SINCE, since + 1)
        self.look()
        return True

    def announce_floor(self, table: str, ts: int) -> float:
        """Announce a floor of pending entries; returns from when on all committers know it."""
        self._put(_column(_FLOOR, table, _ANNOUNCED), ts)
        return self.now() + LEASE * 1.1

    def raise_floor(self, table: str, ts: int) -> None:
        """Bring a floor into force, after that time; the highest counts."""
        self._put(_column(_FLOOR, table, _IN_FORCE), ts)
        self.look()

    def note_forgotten(self, table: str, upto: int, *, pending: bool) -> None:
        """Note up to where the collector has removed a table's entries in the index of feeds."""
        self._put(_column(_FLOOR if pending else _FEED, table, _FORGOTTEN), upto)

    def note_walked(self, table: str) -> None:
        """See `FeedIndex.note_walked`."""
        self._put(_column(_FEED, table, _WALKED), _KEPT)
        self.look()

    def _establish(self, name: bytes, ts: int) -> None:
        self._put(name + _ANNOUNCED, ts)
        self._sleep(LEASE * 1.1)
        self._put(name + _IN_FORCE, ts)
        self.look()


def _feeds(columns: Iterable[bytes], state: bytes, what: bytes = _FEED) -> frozenset[str]:
    ending = b":" + state
    return frozenset(
        column[len(what) : -len(ending)].decode()
        for column in columns
        if column.startswith(what) and column.endswith(ending)
    )


def _stamps(row: Mapping[bytes, int], state: bytes, what: bytes) -> Mapping[str, int]:
    return {table: row[_column(what, table, state)] for table in _feeds(row, state, what)}


def _column(what: bytes, table: str, state: bytes) -> bytes:
    return what + table.encode() + b":" + state

"""§2.1, rule P12: what all processes on a network store must know: safe point, feeds.

Both stand in one row. Asking for it with every call would double the calls, so each process goes
by what it has seen for up to LEASE seconds, and whoever changes something waits for that long
before it counts:

    announce     put the new value; everyone who looks from now on goes by it
    wait         LEASE seconds and a tenth: nobody goes by the old one any more
    in force     put it once more: `raise_safe_point` and `keep_feed` return

Why that is enough. A reader finishes reading at a moment A by its own clock, and then checks. It
goes by what it has asked for at a moment Q if A - Q < LEASE, else it asks now. Had it missed a
value that was announced at W, then its look was before W, so A < W + LEASE, which is before the
value came into force, and before anything was removed on the strength of it: what it read was all
there. If it asked after A, its look was after A: the same.

A committer checks when its last prewrite has been acknowledged, at A. Had it missed a safe point,
then by the same reckoning all its prewrites were applied before anything was removed: they met all
that they conflict with. Only then does it draw its commit_ts (P2), so that this is above any safe
point whose collector did not see its locks (`percola.gc.collector`). One whose prewrites came after
a removal has A after W + LEASE, and is told. The same holds for who finds no record of its own
commit: if it was removed, then before A.

A writer looks whether the table keeps a feed at a moment A, when the commit_ts that it is about to
write has been drawn; had it missed the feed, then that commit_ts is older than the moment at which
the feed came into force, and so below the timestamp from which on the catalog says that the feed is
complete.

A process compares durations by its own clock only, one that goes on while the machine sleeps. The
tenth is room for clocks that run at different speeds. The collector does not go by any of this: it
removes what the server says is in force (`look`).

A safe point or feed whose announcer died is announced for good and comes into force when the
next one raises it or asks for it; readers and committers heed it from its announcement on.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from percola.clock import elapsed
from percola.errors import SnapshotTooOldError
from percola.platform import fork_safety as forks

SHARED_TABLE: Final = "@percola-store"
"""The table of the row; users' names do not begin like that."""

LEASE: Final = 1.0
"""Seconds for which a process goes by what it has seen. All processes must agree on it."""

ROW: Final = b"repository"
"""Its key; the entries are those of kind DATA."""

_SAFE_POINT: Final = b"safe-point:"
_FEED: Final = b"feed:"
_ANNOUNCED: Final = b"announced"
_IN_FORCE: Final = b"in-force"
_KEPT: Final = 1


class View(NamedTuple):
    """The row as this process saw it.

    Attributes:
        asked: when it asked, by `elapsed`.
        announced: the safe point that readers and committers heed.
        in_force: the safe point that everyone heeds.
        feeds: the tables that keep a feed, or are about to.
        feeds_in_force: those of them of which every writer knows.
    """

    asked: float
    announced: int
    in_force: int
    feeds: frozenset[str]
    feeds_in_force: frozenset[str]


class SharedRow(ABC):
    """The shared row, as one process goes by it; a store says how it is read and written.

    Args:
        sleep: waits for so many seconds.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._view: View | None = None

    @abstractmethod
    def _read(self) -> Mapping[bytes, int]:
        """The timestamp of each column's newest entry."""

    @abstractmethod
    def _put(self, column: bytes, ts: int) -> None:
        """Put an entry without a value. The newest counts, so it may be repeated."""

    def view(self, moment: float) -> View:
        """What whoever finished at `moment` must go by; asks the server only if it has to."""
        view = self._view
        if view is not None and moment - view.asked < LEASE:
            return view
        with self._guard:
            # Another thread may have asked meanwhile: one call for all.
            view = self._view
            if view is None or moment - view.asked >= LEASE:
                view = self.look()
            return view

    def look(self) -> View:
        """Ask the server."""
        asked = elapsed()
        row = self._read()
        view = View(
            asked,
            row.get(_SAFE_POINT + _ANNOUNCED, 0),
            row.get(_SAFE_POINT + _IN_FORCE, 0),
            _feeds(row, _ANNOUNCED),
            _feeds(row, _IN_FORCE),
        )
        current = self._view
        if current is None or current.asked <= asked:
            self._view = view
        return view

    def check(self, ts: int) -> None:
        """SnapshotTooOldError if what was looked at for `ts` until now may be incomplete."""
        view = self.view(elapsed())
        if ts < view.announced:
            raise SnapshotTooOldError(ts, view.announced)

    def raise_safe_point(self, ts: int) -> None:
        """Raise it, and return when no process reads below it any more."""
        if ts <= self.look().in_force:
            return
        self._establish(_SAFE_POINT, ts)

    def keep_feed(self, table: str) -> None:
        """Note that the table keeps a feed, and return when every writer knows."""
        if table in self.look().feeds_in_force:
            return
        self._establish(_FEED + table.encode() + b":", _KEPT)

    def _establish(self, name: bytes, ts: int) -> None:
        self._put(name + _ANNOUNCED, ts)
        self._sleep(LEASE * 1.1)
        self._put(name + _IN_FORCE, ts)
        self.look()


def _feeds(columns: Iterable[bytes], state: bytes) -> frozenset[str]:
    ending = b":" + state
    return frozenset(
        column[len(_FEED) : -len(ending)].decode()
        for column in columns
        if column.startswith(_FEED) and column.endswith(ending)
    )

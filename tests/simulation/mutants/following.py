"""Mutants of feeds and their index: what a follower misses if a step is left out or comes late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

from percola.cells import decode_lock
from percola.store.base import ChangedRow, Put, RowMutation
from percola.store.remote import feed as remote_feed
from percola.store.remote.feed import Feed, Index
from percola.store.remote.feed_index import COMMITTED, FEED_TABLE, PENDING, pending_put
from percola.store.remote.shared_row import SharedRow
from percola.testing.simulation import FaultKind, SimulatedStore
from percola.transactions import settled
from percola.transactions.jobs.coordinator import _JointCommit
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.mutant import TWO_PHASE, Collection, Seams
from tests.simulation.mutants.workloads import Beginning, Hurried, Indexed, Leased, Tidying

FOLLOWING = Collection()

SLOW = (FaultKind.SLOW, FaultKind.PAUSED)


@FOLLOWING.mutant("lists-after-commit-ts", "P2", Indexed, modes=TWO_PHASE)
def lists_after_commit_ts(seams: Seams) -> None:
    """A commit lists its rows as pending when it has drawn its commit_ts: a follower who reads
    the pending ones in between does not know of it."""

    @seams.replaces(TwoPhaseCommit, "_draw")
    def draw(original: Any, self: Any) -> int:
        commit_ts: int = self._context.oracle.timestamp()
        original(self)
        return commit_ts


@FOLLOWING.mutant("lists-one-row", "P2", Indexed, modes=TWO_PHASE)
def lists_one_row(seams: Seams) -> None:
    """A commit lists only the first of its rows as pending."""

    @seams.replaces(TwoPhaseCommit, "_changed_rows")
    def changed_rows(original: Any, self: Any, tables: Any) -> Any:
        return list(original(self, tables))[:1]


@FOLLOWING.mutant("lists-one-part-of-a-row", "P2", Indexed, modes=TWO_PHASE)
def lists_one_part(seams: Seams) -> None:
    """A job lists each row for one of the transactions that have written it."""

    @seams.replaces(_JointCommit, "_changed_rows")
    def changed_rows(original: Any, self: Any, tables: Any) -> Iterator[Any]:
        for table, row, started in original(self, tables):
            yield table, row, {max(started)}


@FOLLOWING.mutant("deletes-pending-first", "P2", Indexed, modes=TWO_PHASE)
def deletes_pending_first(seams: Seams) -> None:
    """Who settles a row deletes its pending entry, and puts the committed one after that."""

    @seams.store
    class Hasty(SimulatedStore):
        def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
            held: list[RowMutation] = vars(self).setdefault("_held", [])
            # Those of the set-up have no pending ones.
            is_put = isinstance(batch[0].changes[0], Put) and self._process.schedule.current
            if is_put and batch[0].table == FEED_TABLE and batch[0].row[1:2] == COMMITTED:
                held += batch
                return [True] * len(batch)
            applied = super().mutate(batch)
            if not is_put and batch[0].table == FEED_TABLE and held:
                puts = held[:]
                held.clear()
                super().mutate(puts)
            return applied


@FOLLOWING.mutant("floor-passes-what-is-pending", "P2", Hurried, modes=TWO_PHASE, kinds=SLOW)
def floor_passes_pending(seams: Seams) -> None:
    """The floor is raised above entries of transactions that may still commit."""

    @seams.replaces(Index, "looked")
    def looked(
        original: Any, self: Any, table: str, upto: int, began: float, gone: int, left: int | None
    ) -> None:
        original(self, table, upto, began, gone, None)


@FOLLOWING.mutant("floor-at-once", "P2", Leased, modes=TWO_PHASE, kinds=SLOW)
def floor_at_once(seams: Seams) -> None:
    """The floor is raised before every process knows that it was announced."""

    @seams.replaces(SharedRow, "announce_floor")
    def announce_floor(original: Any, self: Any, table: str, ts: int) -> float:
        original(self, table, ts)
        return self.now()  # type: ignore[no-any-return]


@FOLLOWING.mutant("commit-ignores-the-floor", "P2", Hurried, modes=TWO_PHASE, kinds=SLOW)
def commit_ignores_the_floor(seams: Seams) -> None:
    """A commit lists its rows at its start_ts, although nobody reads that any more."""

    @seams.replaces(Index, "floor")
    def floor(original: Any, self: Any, tables: Any) -> int:
        return 0


@FOLLOWING.mutant("commit-asks-for-the-floor-once", "P2", Hurried, modes=TWO_PHASE, kinds=SLOW)
def commit_asks_once(seams: Seams) -> None:
    """A commit does not ask again whether a floor was announced while it was listing its rows."""

    @seams.replaces(TwoPhaseCommit, "_draw")
    def draw(original: Any, self: Any) -> int:
        oracle, index = self._context.oracle, self._context.store.feed_index
        if index is None:
            return int(original(self))
        fed = index.of(self._tables())
        ts = self._start_ts if self._start_ts > index.floor(fed) else oracle.timestamp()
        self._put_all(pending_put(table, ts, *one) for table, *one in self._changed_rows(fed))
        return int(oracle.timestamp())


@FOLLOWING.mutant("the-dead-are-not-pending", "P2 P7", Indexed, modes=TWO_PHASE)
def the_dead_are_not_pending(seams: Seams) -> None:
    """A pending row whose locks are of the dead counts as rolled back, though the primary may
    have been committed."""

    @seams.replaces(Index, "look")
    def look(original: Any, self: Any, table: str, entries: Any) -> Any:
        alive = self._store._process.world.alive
        return [
            one._replace(locks=[lock for lock in one.locks if decode_lock(lock[2]).owner in alive])
            for one in original(self, table, entries)
        ]


@FOLLOWING.mutant("looks-for-locks-last", "P2", Indexed, modes=TWO_PHASE)
def looks_for_locks_last(seams: Seams) -> None:
    """Who settles pending rows reads their records before their locks: a commit in between has
    neither, and counts as rolled back."""

    @seams.replaces(Index, "look")
    def look(original: Any, self: Any, table: str, entries: Any) -> Any:
        before = {one[:2]: one.commit_ts for one in original(self, table, entries)}
        return [one._replace(commit_ts=before[one[:2]]) for one in original(self, table, entries)]


@FOLLOWING.mutant("an-entry-is-a-change", "P2", Indexed, modes=TWO_PHASE)
def an_entry_is_a_change(seams: Seams) -> None:
    """A follower takes an entry of the index for a change, without a look at the row."""

    @seams.replaces(Feed, "_looked_up")
    def looked_up(
        original: Any, self: Any, table: str, found: Iterable[tuple[int, bytes]], after: int
    ) -> Iterator[ChangedRow]:
        some = list(found)
        changes = {one[:2]: one for one in original(self, table, iter(some), after)}
        for ts, row in some:
            yield changes.get((ts, row), ChangedRow(ts, row, ()))


@FOLLOWING.mutant("committed-go-early", "P12", Indexed, modes=TWO_PHASE)
def committed_go_early(seams: Seams) -> None:
    """The collector removes committed entries above the safe point, too."""

    @seams.replaces(Index, "forget")
    def forget(original: Any, self: Any, table: str, upto: int) -> Any:
        return original(self, table, upto + 40)


@FOLLOWING.mutant("pending-go-early", "P12", Tidying, modes=TWO_PHASE, kinds=SLOW)
def pending_go_early(seams: Seams) -> None:
    """The collector removes pending entries above the floor, too."""

    @seams.replaces(Index, "forget")
    def forget(original: Any, self: Any, table: str, upto: int) -> Any:
        gone = [one[:2] for one in self.pending(table, upto)]
        if gone:
            self._store.mutate(remote_feed.deletes(PENDING, table, gone))
        return original(self, table, upto)


@FOLLOWING.mutant("settles-no-pending-rows", "P2", Indexed, modes=TWO_PHASE)
def settles_no_pending_rows(seams: Seams) -> None:
    """Pending rows lower nothing: a table counts as settled above transactions under way."""

    @seams.replaces(settled, "_list")
    def list_(original: Any, *args: Any, **options: Any) -> Any:
        return [(args[3], gone) for _, gone in original(*args, **options)]


@FOLLOWING.mutant("walks-no-locks", "P2", Beginning, modes=TWO_PHASE)
def walks_no_locks(seams: Seams) -> None:
    """A table whose feed or index has just begun is settled by its pending rows alone: who began
    to commit before that has none."""

    @seams.replaces(Index, "is_walked")
    def is_walked(original: Any, self: Any, table: str) -> bool:
        return True


@FOLLOWING.mutant("index-begins-at-once", "P2", Beginning, modes=TWO_PHASE, kinds=SLOW)
def index_begins_at_once(seams: Seams) -> None:
    """An index counts as complete before every process knows that it has begun."""

    @seams.replaces(SharedRow, "index_feeds")
    def index_feeds(original: Any, self: Any, latest: Any) -> bool:
        with mock.patch.object(self, "_sleep"):
            return bool(original(self, latest))

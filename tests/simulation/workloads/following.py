"""Followers of a table's feed beside writers, jobs and garbage collection (§2.1, P2, P12)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from unittest import mock

from percola import Repository, SnapshotTooOldError, Table, TransientError, catalog, feed
from percola.cells import MAX_TS, Kind, Op, encode_write
from percola.errors import CommitUnknownError, NoFeedError, RetriesExhaustedError, StoreError
from percola.gc.collector import GarbageCollector
from percola.maintenance.check import check
from percola.schema import Schema
from percola.store.base import ChangedRow, Condition, Put, RowMutation
from percola.store.remote import batches, shared_row
from percola.store.remote import feed as remote_feed
from percola.store.remote.feed_index import is_listed
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Mode, Simulation, Sizes, Workload
from percola.transactions import settled
from percola.transactions.jobs import JOBS, JointError, JointTransaction, RowWrites, new_run

docs = Table("docs")
fed = Schema((Table("docs", feed=True),))
title = docs.column("title", str)
body = docs.column("body", str)
# Of joint transactions, which are in no history.
joint = tuple(docs.column(name, str) for name in ("left", "right"))

FEED_LATER: Final = 2
INDEX_LATER: Final = 3
"""Sizes of `begins`: the feed begins beside the writers, or only its index does."""

FLOOR: Final = "the floor of an index was raised"
BEGUN: Final = "an index began beside writers"
ANEW: Final = "a follower had to begin again"
RETENTION: Final = 0.1

Seen = tuple[int, str, tuple[str, ...]]
"""The commit_ts of a change, its row and its columns."""


@dataclass
class Stretch:
    """What a follower has seen without a gap: all at `after` < commit_ts ≤ `upto`."""

    after: int
    upto: int
    seen: list[Seen] = field(default_factory=list)


class Following(Workload):
    """Some clients follow, and remember in all their lives what they have seen; others write."""

    name = "following"
    tables = (docs, JOBS)
    sizes: ClassVar[Sizes] = {"clients": (3, 6), "turns": (6, 14), "rows": (2, 5), "begins": (0, 3)}
    # Only a store without commits in one step has an index.
    modes = (Mode.TWO_PHASE, Mode.TWO_PHASE, Mode.TWO_PHASE, Mode.MIXED)
    has_feed_index = None
    pause = 0.04
    lease: ClassVar[float] = 0.03
    collects: ClassVar[float] = 0.15
    """How often a follower collects garbage in its turn instead of following."""
    lock_ttl_seconds = 0.3

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.stretches: dict[int, list[Stretch]] = {}
        # Whether the follower goes on from the last one.
        self.goes_on: dict[int, bool] = {}
        # Up to where somebody was told that the table is settled, and how much had happened then.
        self.settled: list[tuple[int, int]] = []
        self._collectors: dict[str, GarbageCollector] = {}

    def patched(self) -> AbstractContextManager[Any]:
        """What is done in large portions is done in small ones, and leases are short."""
        stack = contextlib.ExitStack()
        for owner, name, value in (
            (shared_row, "LEASE", self.lease),
            (remote_feed, "_WORTH_A_FLOOR", 1),
            (remote_feed, "_WORTH_A_SCAN", 6),
            (remote_feed, "KEYS", 3),
            (settled, "_ROWS", 3),
            (batches, "AT_ONCE", 1),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        return stack

    def set_up(self, client: Client) -> None:
        """Write without a lock, as a copy does; and try to, where there is no such lock."""
        store, oracle = client.repo.context.store, client.repo.context.oracle
        if self.size("begins") == INDEX_LATER:
            # As a release before 0.2 has made it.
            version, schema = catalog._newest(store)
            catalog._replace(store, version, schema.to_json())
        if self.size("begins") != FEED_LATER:
            catalog.keep_feeds(store, oracle, fed)
        for refused in (False, True):
            start_ts, commit_ts = oracle.timestamp(), oracle.timestamp()
            column = joint[0].key
            held = [Condition(True, Kind.LOCK, column, 0, MAX_TS)] * refused
            put = Put(Kind.WRITE, column, commit_ts, encode_write(Op.PUT, start_ts, b"copied"))
            assert store.mutate([RowMutation("docs", b"r0", held, [put])]) == [not refused]

    # --- Turns --------------------------------------------------------------------------

    def turn(self, client: Client, number: int) -> None:
        draw = client.rng.random()
        what = f"{client.process.name}/{number}".replace(" ", "-")
        try:
            if self.size("begins") >= FEED_LATER and client.rng.random() < 0.1:
                self.begin(client)
            elif client.number <= 2 or draw > 0.9:
                if draw >= self.collects:
                    self.follow(client)
                else:
                    self.collect(client)
            elif draw < 0.75:
                self.write(client, what)
            else:
                self.write_jointly(client, what)
        except (StoreError, TransientError, CommitUnknownError, JointError) as error:
            client.note(f"goes no further: {error}")
        except (RetriesExhaustedError, NoFeedError) as error:
            client.note(f"goes no further: {error}")

    def begin(self, client: Client) -> None:
        """Begin the feed or its index, if nobody has."""
        store, oracle = client.repo.context.store, client.repo.context.oracle
        catalog.keep_feeds(store, oracle, fed)
        if catalog.index_feeds(store, oracle):
            self.simulation.world.sightings[BEGUN] += 1

    def write(self, client: Client, what: str) -> None:
        """Change one row or several, or only lock some cells; sometimes think better of it."""
        rng = client.rng
        rows = rng.sample(self.rows(), rng.choice((1, 1, 2, self.size("rows"))))
        gives_up = rng.random() < 0.1

        def work(t: RecordedTransaction) -> None:
            for row in rows:
                draw = rng.random()
                if draw < 0.15:
                    t.get_for_update(title, row)
                elif draw < 0.3:
                    t.delete(title, row)
                else:
                    t.set(title, row, what)
                if draw > 0.7:
                    t.set(body, row, what)
            if gives_up:
                raise StoreError("It has thought better of it.")

        client.transact(work, attempts=3)

    def write_jointly(self, client: Client, what: str) -> None:
        """A joint transaction whose parts change columns of the same row, and rows of their own."""
        run = new_run(client.repo)
        job = JointTransaction(client.repo, what, run, ["docs"], ttl_seconds=1.0, timeout=0.3)
        rows = client.rng.sample(self.rows(), 2)
        parts = []
        for partition, column in enumerate(joint):
            attempt = job.attempt(partition, partition)
            if attempt is None:
                return
            for row in rows[: client.rng.randint(1, 2)]:
                cells = {column.key: column.encode_value(what)}
                attempt.write([RowWrites("docs", row.encode(), cells)])
            parts.append(attempt.finish())
        if client.rng.random() < 0.1:
            job.abort()
        else:
            job.commit(parts)

    def collect(self, client: Client) -> None:
        name = client.process.name
        if name not in self._collectors:
            context = client.repo.context
            self._collectors[name] = GarbageCollector(context, retention=RETENTION)
        client.note(f"collected: {self._collectors[name].collect()}")

    # --- Followers ----------------------------------------------------------------------

    def follow(self, client: Client) -> None:
        repo, mine = client.repo, self.stretches.setdefault(client.number, [])
        if not self.goes_on.get(client.number):
            since = feed.since(repo, docs)
            mine.append(Stretch(since, since))
            self.goes_on[client.number] = True
        one = mine[-1]
        self.note_settled(feed.settled(repo, docs))
        # Or as far as another one was told: who reads the changes need not be who has asked.
        upto = client.rng.choice(self.settled)[1] if client.rng.random() < 0.3 else None
        if upto is None:
            upto = max(ts for _, ts in self.settled)
        if upto <= one.upto:
            return
        try:
            found = list(self.changes(repo, one.upto, upto, client.rng.random()))
        except SnapshotTooOldError:
            self.goes_on[client.number] = False
            self.simulation.world.sightings[ANEW] += 1
            return
        client.note(f"has seen up to {upto}: {found}")
        one.seen += found
        one.upto = upto

    def note_settled(self, ts: int) -> None:
        self.settled.append((len(self.simulation.world.trace), ts))

    def changes(self, repo: Repository, after: int, upto: int, draw: float) -> Iterable[Seen]:
        """The changes of all rows, of each of two ranges of rows, or with their images."""
        store = repo.context.store
        if draw < 0.3:
            return [
                (one.commit_ts, one.row, one.changed)
                for one in feed.changes(repo, docs, after, upto)
            ]
        if draw < 0.6:
            cut = self.rows()[1].encode()
            parts = [
                *store.changes("docs", after, upto, end=cut),
                *store.changes("docs", after, upto, start=cut),
            ]
            return map(seen, sorted(parts))
        return map(seen, store.changes("docs", after, upto))

    def rows(self) -> list[str]:
        return [f"r{number}" for number in range(self.size("rows"))]

    # --- At rest ------------------------------------------------------------------------

    def at_rest(self, repo: Repository) -> None:
        if catalog.feed_since(repo.context.store, "docs") is None:
            return
        self.check_that_it_was_settled()
        truth = self.truth()
        for number, stretches in self.stretches.items():
            for one in stretches:
                self.compare(f"client {number}", truth, one)
        # Before and after anybody has looked: rows are pending, or listed as committed.
        self.check_all(repo)
        self.note_settled(upto := feed.settled(repo, docs))
        oldest = feed.since(repo, docs)
        try:
            repo.context.store.check_safe_point(oldest)
        except SnapshotTooOldError as error:
            oldest = error.safe_point  # Announced by a collector that died.
        for number, stretches in self.stretches.items():
            for last in stretches[-1:]:
                if last.upto < oldest:
                    continue
                rest = Stretch(last.upto, upto, list(self.changes(repo, last.upto, upto, 1)))
                self.compare(f"client {number}, at rest,", truth, rest)
        for draw in (0.0, 0.5, 1.0):
            found = list(self.changes(repo, oldest, upto, draw))
            self.compare("A follower at rest", truth, Stretch(oldest, upto, found))
        self.check_all(repo)
        index = repo.context.store.feed_index
        if index is not None and index.of(["docs"]):
            self.check_index(repo)

    def check_all(self, repo: Repository) -> None:
        for finding in check(repo):
            self.violate(f"percola check finds at rest: {finding}")

    def check_index(self, repo: Repository) -> None:
        index = repo.context.store.feed_index
        assert index is not None
        if left := list(index.pending("docs", repo.context.oracle.read_timestamp())):
            self.violate(f"At rest rows are pending: {left}")
        if index.floor(["docs"]):
            self.simulation.world.sightings[FLOOR] += 1

    def compare(self, who: str, truth: list[Seen], one: Stretch) -> None:
        expected = [change for change in truth if one.after < change[0] <= one.upto]
        if one.seen != expected:
            missed = [change for change in expected if change not in one.seen]
            added = [change for change in one.seen if change not in expected]
            self.violate(
                f"{who} has followed from {one.after} to {one.upto} and missed {missed}, has seen "
                f"{added} which are not there, and of all {len(expected)} saw {len(one.seen)}.",
                *((title, row) for _, row, _ in missed + added),
            )

    def writes(self) -> Iterator[tuple[int, int, str, str]]:
        """(event, commit_ts, row, column) of each put and delete that has ever been committed."""
        for number, event in enumerate(self.simulation.world.trace):
            if event.what in ("mutates", "arrives late") and event.details[1]:
                mutation: RowMutation = event.details[0]
                for put in mutation.changes if mutation.table == "docs" else ():
                    if isinstance(put, Put) and put.kind is Kind.WRITE and is_listed(put):
                        yield number, put.ts, mutation.row.decode(), put.column.decode()
            elif event.what == "commits in one step" and isinstance(event.details[2], int):
                for cell, op, _, _ in event.details[1]:
                    if cell.table == "docs" and op in (Op.PUT, Op.DELETE):
                        yield number, event.details[2], cell.row.decode(), cell.column.decode()

    def truth(self) -> list[Seen]:
        """All changes that have ever been committed, in order."""
        every = sorted({one[1:] for one in self.writes()})
        return [
            (ts, row, tuple(column for _, _, column in group))
            for (ts, row), group in itertools.groupby(every, key=lambda one: one[:2])
        ]

    def check_that_it_was_settled(self) -> None:
        """Nothing has been committed at or below a timestamp that somebody was told is settled."""
        # A prewrite that comes late, when the record of its delete has been collected, is rolled
        # forward to the same record once more, below the safe point.
        known: set[tuple[int, str, str]] = set()
        told = iter([*self.settled, (len(self.simulation.world.trace) + 1, 0)])
        upto = 0
        at, ts = next(told)
        for number, commit_ts, row, column in self.writes():
            while at <= number:
                upto = max(upto, ts)
                at, ts = next(told)
            if commit_ts <= upto and (commit_ts, row, column) not in known:
                self.violate(
                    f"{column} of {row!r} is committed at {commit_ts}, after somebody was told "
                    f"that the table is settled up to {upto}.",
                    (title, row),
                )
            known.add((commit_ts, row, column))


def seen(one: ChangedRow) -> Seen:
    return one.commit_ts, one.row.decode(), tuple(column.decode() for column in one.columns)

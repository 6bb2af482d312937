"""§2.2, §2.4: writes ranks into the repository so that no two runs ever mix.

Each shard of the pages has a cell `ranks.run`, the timestamp of the run that may write its ranks:

    a run begins        it writes its timestamp into all of these cells, unless there is a larger
                        one
    it reads ranks      only then, to see which have moved
    it writes ranks     a transaction reads the shard's cell for update, and must find its own
                        timestamp there

A transaction of an older run that is in flight when a newer one begins has read a cell
that is written meanwhile: it conflicts, is retried, and finds that it has been overtaken. So the
ranks that a run has read are not changed concurrently, and the ranks of a page come from
ever newer runs, even if runs or tasks are paused, lost or repeated in between.

The number of edges from a page is written with its rank: until the next run, that is what the page
gives to new ones (`webindex.observers.interim`), whose estimates a run replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from percola import PercolaError, Repository, Snapshot, Transaction
from webindex import tables
from webindex.load.recrawls import rank_moved
from webindex.observers.documents import tell
from webindex.observers.interim import DIGITS, is_interim
from webindex.ranking.graph import SHARDS

BATCH: Final = 32
"""Ranks that one transaction writes: enough to share a commit, few enough to repeat it."""

_OTHER_LINKS: Final = 0.1
"""A rank is also written if the number of edges from its page has changed by more than this part
of it: new pages would get too large or too small a share."""

_CLAIMED_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 512

Rank = tuple[str, float]
"""A page's row, and its rank."""


class OvertakenError(Exception):
    """A newer run has begun: this one may no longer write."""


@dataclass(slots=True)
class Written:
    """The result of writing the ranks of some shards.

    `overtaken` means that the writing ended early, `error` that it failed, and why.
    """

    written: int = 0
    gone: int = 0
    overtaken: bool = False
    error: str | None = None
    attempt: int = 0

    def add(self, other: Written) -> None:
        """Add the counts of other shards."""
        self.written += other.written
        self.gone += other.gone


def begin(repo: Repository, run: int) -> None:
    """Make `run` the run that writes ranks, and exclude older ones.

    Raises OvertakenError if a newer one has begun.
    """
    # Not all in one transaction: it would conflict with every write of an older run.
    for low in range(0, len(SHARDS), _CLAIMED_AT_ONCE):
        shards = SHARDS[low : low + _CLAIMED_AT_ONCE]

        def claim(t: Transaction, shards: Sequence[str] = shards) -> None:
            there = t.get_many((tables.rank_run, shard) for shard in shards)
            if any(newest is not None and newest > run for newest in there):
                raise OvertakenError
            for shard in shards:
                t.set(tables.rank_run, shard, run)

        repo.run(claim)


def write_ranks(
    repo: Repository,
    run: int,
    ranks: Iterable[Rank],
    epsilon: float,
    links: Mapping[str, int] | None = None,
) -> Written:
    """Write the ranks that have moved by more than epsilon, and those of pages that have none.

    `links` is the number of edges from each page, by its row; pages that are missing have none.
    The ranks of a shard are adjacent in the input. Repeating it changes nothing: what an earlier
    attempt of the same run has written is counted again, and not written.
    """
    done = Written()
    links = links or {}
    try:
        for shard, group in groupby(ranks, key=lambda rank: rank[0][:2]):
            with repo.snapshot() as snapshot:
                moved = list(_moved(snapshot, run, group, epsilon, links, done))
            for low in range(0, len(moved), BATCH):
                done.add(repo.run(_Batch(run, shard, moved[low : low + BATCH], links)))
    except OvertakenError:
        done.overtaken = True
    except PercolaError as error:
        done.error = str(error)
    return done


def _moved(
    snapshot: Snapshot,
    run: int,
    ranks: Iterable[Rank],
    epsilon: float,
    links: Mapping[str, int],
    done: Written,
) -> Iterator[Rank]:
    group = [(row, round(value, DIGITS)) for row, value in ranks]
    for low in range(0, len(group), _READ_AT_ONCE):
        some = group[low : low + _READ_AT_ONCE]
        there = snapshot.get_many((tables.rank, row) for row, _ in some)
        for (row, value), before in zip(some, there, strict=True):
            if before is None or is_interim(before):
                yield row, value
            elif before["run"] == run:
                done.written += 1
            elif abs(value - before["value"]) > epsilon or _differ(
                links.get(row, 0), before.get("links", 0)
            ):
                yield row, value


def _differ(links: int, before: int) -> bool:
    return abs(links - before) > _OTHER_LINKS * before


@dataclass(frozen=True, slots=True)
class _Batch:
    """One transaction: some ranks of one shard."""

    run: int
    shard: str
    ranks: Sequence[Rank]
    links: Mapping[str, int]

    def __call__(self, t: Transaction) -> Written:
        done = Written()
        if t.get_for_update(tables.rank_run, self.shard) != self.run:
            raise OvertakenError
        for row, value in self.ranks:
            # For update: a transaction that removes the page from the index deletes its rank, and
            # must not miss this one.
            if t.get_for_update(tables.fingerprint, row) is None:
                done.gone += 1
                continue
            done.written += 1
            rank = {"value": value, "run": self.run}
            if given := self.links.get(row):
                rank["links"] = given
            t.set(tables.rank, row, rank)
            rank_moved(t, row, rank)
            tell(t, row)
        return done

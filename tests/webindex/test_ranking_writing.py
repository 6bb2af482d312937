"""Ranks go back by transactions: what has moved, of live pages, and only by the newest run."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from link_graphs import Web, put, written

import percola
from percola import Column, Repository, Transaction, Worker, observer
from webindex import tables
from webindex.observers import documents as assembling
from webindex.page.urls import page_row
from webindex.ranking import writing
from webindex.ranking.graph import SHARDS
from webindex.ranking.writing import BATCH, OvertakenError, Written, begin, write_ranks

URLS = [f"https://example.org/{n}" for n in range(400)]
URL_OF = {page_row(url): url for url in URLS}
ROWS = sorted(URL_OF)
DEADLINE = 180.0


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", schema=tables.SCHEMA, durability="relaxed") as opened:
        put(opened, Web({url: [] for url in URLS}))
        yield opened


def started(repo: Repository) -> int:
    """A run that has just begun."""
    run = last_timestamp(repo)
    begin(repo, run)
    return run


def delete(repo: Repository, column: Column[str, Any], rows: Sequence[str]) -> None:
    repo.run(lambda t: [t.delete(column, row) for row in rows])


def last_timestamp(repo: Repository) -> int:
    with repo.snapshot() as snapshot:
        return snapshot.start_ts


def clusters_told(repo: Repository) -> set[str]:
    """The clusters that were told since this was asked last."""
    told = set()

    @observer(tables.cluster_changed)
    def listen(t: Transaction, cluster: str) -> None:
        told.add(cluster)

    Worker(repo, [listen]).run_until_idle()
    return told


class Pause:
    """Stops the first transaction that tells a cluster, in its middle, until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int = 1) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self._after = after
        monkeypatch.setattr(writing, "tell", self._tell)

    def _tell(self, t: Transaction, row: str) -> None:
        assembling.tell(t, row)
        self._after -= 1
        if self._after == 0:
            self.reached.set()
            assert self.go.wait(DEADLINE)


def test_a_first_run_writes_every_rank_and_tells_every_cluster(repo: Repository) -> None:
    run = started(repo)
    ranks = [(row, 0.5 + n / 7) for n, row in enumerate(ROWS)]
    assert write_ranks(repo, run, ranks, 0.01) == Written(written=len(ROWS))
    assert written(repo) == {row: (round(value, 6), run) for row, value in ranks}
    assert clusters_told(repo) == {f"cluster of {url}" for url in URLS}


def test_only_what_moved_by_more_than_epsilon_is_written_and_told(repo: Repository) -> None:
    first = started(repo)
    write_ranks(repo, first, [(row, 1.0) for row in ROWS], 0.01)
    delete(repo, tables.rank, ROWS[:2])
    assert len(clusters_told(repo)) == len(ROWS)
    second = started(repo)
    moved = {ROWS[5]: 1.011, ROWS[6]: 0.989}
    still = {ROWS[7]: 1.0099, ROWS[8]: 0.9901}
    ranks = [(row, {**moved, **still}.get(row, 1.0)) for row in ROWS]
    before = {row: len(repo.versions(tables.rank, row)) for row in ROWS}
    assert write_ranks(repo, second, ranks, 0.01).written == 4
    after = written(repo)
    assert {row for row, (_, run) in after.items() if run == second} == {*ROWS[:2], *moved}
    assert {row: after[row][0] for row in moved} == moved
    changed = {row for row in ROWS if len(repo.versions(tables.rank, row)) > before[row]}
    assert changed == {*ROWS[:2], *moved}
    assert clusters_told(repo) == {f"cluster of {URL_OF[row]}" for row in changed}


def test_where_nothing_moved_there_is_no_transaction_at_all(repo: Repository) -> None:
    write_ranks(repo, started(repo), [(row, 1.0) for row in ROWS], 0.01)
    run = started(repo)
    before = last_timestamp(repo)
    assert write_ranks(repo, run, [(row, 1.005) for row in ROWS], 0.01) == Written()
    assert last_timestamp(repo) == before


def test_a_run_that_is_repeated_writes_nothing_twice_and_counts_the_same(repo: Repository) -> None:
    run = started(repo)
    ranks = [(row, 2.0) for row in ROWS]
    write_ranks(repo, run, ranks[:100], 0.01)
    before = last_timestamp(repo)
    assert write_ranks(repo, run, ranks[:100], 0.01).written == 100
    assert last_timestamp(repo) == before
    assert write_ranks(repo, run, ranks, 0.01).written == len(ROWS)
    assert {len(repo.versions(tables.rank, row)) for row in ROWS} == {1}


def test_a_page_that_has_died_since_the_snapshot_gets_no_rank(repo: Repository) -> None:
    run = started(repo)
    dead = ROWS[3:6]
    delete(repo, tables.fingerprint, dead)
    done = write_ranks(repo, run, [(row, 1.0) for row in ROWS], 0.01)
    assert (done.written, done.gone) == (len(ROWS) - 3, 3)
    assert set(ROWS) - written(repo).keys() == set(dead)


def test_a_page_that_dies_while_its_rank_is_written_has_none_in_the_end(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(repo)
    pause = Pause(monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write_ranks, repo, run, [(ROWS[0], 1.0)], 0.01)
        assert pause.reached.wait(DEADLINE)

        def die(t: Transaction) -> None:
            t.delete(tables.fingerprint, ROWS[0])
            # As the chain does it: what is not there needs no deletion.
            if t.get(tables.rank, ROWS[0]) is not None:
                t.delete(tables.rank, ROWS[0])

        repo.run(die)
        pause.go.set()
        assert writer.result(DEADLINE) == Written(gone=1)
    assert written(repo) == {}


# --- Several runs -------------------------------------------------------------------------


def test_a_run_begins_in_every_shard_and_an_older_one_never_again(repo: Repository) -> None:
    old, new = last_timestamp(repo), started(repo) + 1
    begin(repo, new)
    begin(repo, new)
    with pytest.raises(OvertakenError):
        begin(repo, old)
    with repo.snapshot() as snapshot:
        assert {snapshot.get(tables.rank_run, shard) for shard in SHARDS} == {new}


def test_a_run_that_paused_between_computing_and_writing_writes_nothing_once_overtaken(
    repo: Repository,
) -> None:
    old = started(repo)
    new = started(repo)
    assert write_ranks(repo, old, [(row, 1.0) for row in ROWS], 0.01) == Written(overtaken=True)
    assert written(repo) == {}
    assert write_ranks(repo, new, [(row, 2.0) for row in ROWS], 0.01).written == len(ROWS)


def test_a_run_that_paused_in_a_transaction_cannot_commit_it_once_overtaken(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = started(repo)
    # One batch of the first shard has committed by then, if it has two; the pause is in another.
    pause = Pause(monkeypatch, after=5)
    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write_ranks, repo, old, [(row, 1.0) for row in ROWS], 0.01)
        assert pause.reached.wait(DEADLINE)
        before = written(repo)
        assert len(before) < 5
        new = started(repo)
        read = written(repo)
        pause.go.set()
        done = writer.result(DEADLINE)
    assert done.overtaken
    assert done.written == len(before)
    # What the newer run has read of ranks is what there still is.
    assert written(repo) == read == before
    assert write_ranks(repo, new, [(row, 2.0) for row in ROWS], 0.01).written == len(ROWS)
    assert set(written(repo).values()) == {(2.0, new)}


def test_a_newer_run_begins_though_an_older_one_writes_without_a_pause(repo: Repository) -> None:
    old = started(repo)
    over = threading.Event()

    def write() -> int:
        rounds = 0
        while not over.is_set():
            if write_ranks(repo, old, [(row, rounds * 1.0) for row in ROWS], 0.0).overtaken:
                return rounds
            rounds += 1
            # So that the next round finds something to write.
            delete(repo, tables.rank, ROWS[:200])
        return -1

    with ThreadPoolExecutor(2) as threads:
        writers = [threads.submit(write) for _ in range(2)]
        try:
            new = started(repo)
            assert all(writer.result(DEADLINE) >= 0 for writer in writers)
        finally:
            over.set()
    with repo.snapshot() as snapshot:
        assert snapshot.get(tables.rank_run, "00") == new


def test_of_runs_that_overlap_at_will_a_page_sees_ever_newer_ones_and_the_newest_wins(
    repo: Repository,
) -> None:
    ended: list[int] = []
    begun: set[int] = set()
    guard = threading.Lock()

    def another() -> int:
        """A run of its own: two that read the same moment would come to the same ranks."""
        with guard:
            run = max(last_timestamp(repo), max(begun, default=0) + 1)
            begun.add(run)
            return run

    def work(seed: int) -> int:
        dice = random.Random(seed)
        overtaken = 0
        for _ in range(12):
            run = another()
            try:
                begin(repo, run)
            except OvertakenError:
                overtaken += 1
                continue
            some = sorted(dice.sample(ROWS, 120))
            if write_ranks(repo, run, [(row, float(run)) for row in some], 0.0).overtaken:
                overtaken += 1
            else:
                ended.append(run)
        return overtaken

    with ThreadPoolExecutor(4) as threads:
        overtaken = sum(one.result(DEADLINE) for one in [threads.submit(work, n) for n in range(4)])
    assert overtaken and ended
    for row in ROWS:
        runs = [value["run"] for _, value in repo.versions(tables.rank, row) if value is not None]
        assert runs == sorted(set(runs), reverse=True)
    # The last one to begin was overtaken by nobody, and its ranks are what there is.
    with repo.snapshot() as snapshot:
        [newest] = {snapshot.get(tables.rank_run, shard) for shard in SHARDS}
    assert newest == max(ended)
    assert list(written(repo).values()).count((float(newest), newest)) == 120


def test_a_shard_of_many_pages_is_written_in_several_transactions(repo: Repository) -> None:
    shard = ROWS[0][:2]
    many = [f"{shard}/example,org)/{n:04}" for n in range(2 * BATCH + 1)]
    with repo.transaction() as t:
        for row in many:
            t.set(tables.fingerprint, row, {"url": "?"})
    run = started(repo)
    assert write_ranks(repo, run, [(row, 1.0) for row in many], 0.01).written == len(many)
    commits = {repo.versions(tables.rank, row)[0][0] for row in many}
    assert len(commits) == 3


@pytest.mark.parametrize("failure", [percola.RetriesExhaustedError, percola.StoreError])
def test_what_the_repository_refuses_is_told_with_what_was_written_before(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    run = started(repo)
    calls: list[Callable[[Transaction], Written]] = []
    through = repo.run

    def refuse(function: Callable[[Transaction], Written]) -> Written:
        calls.append(function)
        if len(calls) == 3:
            raise failure("There is no room left.")
        return through(function)

    monkeypatch.setattr(repo, "run", refuse)
    done = write_ranks(repo, run, [(row, 1.0) for row in ROWS], 0.01)
    assert (done.error, done.written) == ("There is no room left.", len(written(repo)))
    assert done.written > 0

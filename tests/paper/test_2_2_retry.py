"""§2.2: "the transaction has conflicted … and should be retried after a backoff" (rule P13)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stores import Ground, ScriptedClock, all_at_once

from percola import (
    ConflictError,
    ConflictingOptionsError,
    Repository,
    RetriesExhaustedError,
    Table,
    Transaction,
    UsageError,
)
from percola.transactions.retry import FIRST_WAIT, LONGEST_WAIT

bank = Table("bank")
bal = bank.column("bal", int)
TABLES = [bank]


def interfere(repo: Repository) -> None:
    """Another transaction adds one to x."""
    with repo.transaction() as t:
        t.set(bal, "x", (t.get(bal, "x") or 0) + 1)


def test_p13_a_retry_runs_the_function_again_at_a_new_start_ts(
    ground: Ground, repo: Repository
) -> None:
    starts, seen = [], []

    def add(t: Transaction) -> int:
        starts.append(t.start_ts)
        seen.append(t.get(bal, "x"))
        if len(seen) <= 3:
            interfere(repo)
        t.set(bal, "x", (seen[-1] or 0) + 10)
        t.set(bal, f"attempt {len(seen)}", 1)
        return len(seen)

    assert repo.run(add) == 4
    assert starts == sorted(set(starts)), "each attempt needs a start_ts of its own"
    assert seen == [None, 1, 2, 3], "each attempt reads afresh"
    snapshot = repo.snapshot()
    assert snapshot.get(bal, "x") == 13
    rows = [row.key for row in snapshot.scan(bank, prefix="attempt")]
    assert rows == ["attempt 4"], "writes of a lost attempt must never be replayed"


def test_p13_increments_from_many_threads_are_all_counted(repo: Repository) -> None:
    def add() -> None:
        for _ in range(10):
            repo.run(lambda t: t.set(bal, "x", (t.get(bal, "x") or 0) + 1), attempts=1000)

    assert all_at_once([add] * 6) == [None] * 6
    assert repo.snapshot().get(bal, "x") == 60


def test_retries_are_bounded_and_back_off_with_growing_waits(ground: Ground) -> None:
    clock = ScriptedClock()
    repo, other = ground.repo(TABLES, clock=clock), ground.repo(TABLES)
    runs = []

    def always_late(t: Transaction) -> None:
        runs.append(t.start_ts)
        interfere(other)
        t.set(bal, "x", 0)

    with pytest.raises(RetriesExhaustedError, match="12 attempts") as caught:
        repo.run(always_late, attempts=12)
    assert isinstance(caught.value.__cause__, ConflictError)
    assert "always_late" in str(caught.value) and "so hot" in str(caught.value)
    assert len(runs) == 12
    assert len(clock.slept) == 11, "no wait after the last attempt"
    for attempt, wait in enumerate(clock.slept, 1):
        ceiling = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (attempt - 1))
        assert 0 < wait <= ceiling
    assert sum(clock.slept[6:]) > sum(clock.slept[:5])


def test_the_users_own_error_ends_a_run_at_once(repo: Repository) -> None:
    runs = []

    def fail(t: Transaction) -> None:
        runs.append(t)
        t.set(bal, "x", 1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        repo.run(fail)
    assert len(runs) == 1
    assert repo.snapshot().get(bal, "x") is None


def test_only_after_conflicts_it_is_said_that_a_cell_is_hot(repo: Repository) -> None:
    interfere(repo)
    interfere(repo)
    repo.collect_garbage(retention=0)
    with pytest.raises(RetriesExhaustedError) as caught:
        repo.run(lambda t: repo.snapshot(at=1).get(bal, "x"), attempts=2)
    assert "no longer be read at 1" in str(caught.value) and "so hot" not in str(caught.value)


def test_a_conflict_inside_the_function_is_retried_too(repo: Repository) -> None:
    runs = []

    def nested(t: Transaction) -> str:
        runs.append(t)
        if len(runs) == 1:
            loser = repo.transaction()
            interfere(repo)
            loser.set(bal, "x", 5)
            loser.commit()
        return "done"

    assert repo.run(nested) == "done"
    assert len(runs) == 2


def test_at_least_one_attempt_is_needed(repo: Repository) -> None:
    with pytest.raises(ConflictingOptionsError, match="at least 1"):
        repo.run(lambda t: None, attempts=0)


def test_a_function_that_has_yet_to_do_its_work_is_an_error_and_writes_nothing(
    repo: Repository,
) -> None:
    async def later(t: Transaction) -> None:
        t.set(bal, "x", 1)

    def each(t: Transaction) -> Iterator[None]:
        yield t.set(bal, "x", 1)

    def first(t: Transaction) -> object:
        t.set(bal, "x", 1)
        return later(t)

    for function in (later, each, first):
        with pytest.raises(UsageError, match=f"{function.__name__} cannot run in a transaction"):
            repo.run(function)
    assert repo.snapshot().get(bal, "x") is None
    assert list(repo.run(lambda t: (n for n in range(3)))) == [0, 1, 2]

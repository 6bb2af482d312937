"""§2.2: functions that begin, retry and commit their transaction, or take part in another's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from stores import Ground, ScriptedClock

import percola
from percola import (
    ConflictError,
    Repository,
    RetriesExhaustedError,
    Table,
    Transaction,
    UsageError,
    Worker,
    observer,
)

bank = Table("bank")
bal = bank.column("bal", int)
order = bank.column("order", int, observed=True)
TABLES = [bank]


@percola.transactional
def add(t: Transaction, row: str, amount: int, *, most: int = 100) -> int:
    """Add to a balance, and return it."""
    balance = min(most, (t.get(bal, row) or 0) + amount)
    t.set(bal, row, balance)
    return balance


@percola.transactional
def pay(t: Transaction, payer: str, payee: str, amount: int) -> None:
    add(t, payer, -amount)
    add(t, payee, amount)


def test_given_a_repository_it_commits_and_returns_what_the_function_returned(
    repo: Repository,
) -> None:
    assert add(repo, "ann", 7) == 7
    assert add(repo, "ann", amount=70, most=50) == 50
    assert repo.snapshot().get(bal, "ann") == 50


def test_given_a_repository_it_is_retried_when_it_conflicts(repo: Repository) -> None:
    starts = []

    @percola.transactional
    def late(t: Transaction) -> None:
        starts.append(t.start_ts)
        seen = t.get(bal, "ann") or 0
        if len(starts) <= 2:
            add(repo, "ann", 1)
        t.set(bal, "ann", seen + 10)

    late(repo)
    assert len(set(starts)) == 3
    assert repo.snapshot().get(bal, "ann") == 12


def test_what_it_raises_at_last_names_the_function(ground: Ground) -> None:
    repo, other = ground.repo(TABLES, clock=ScriptedClock()), ground.repo(TABLES)

    @percola.transactional
    def always_late(t: Transaction) -> None:
        add(other, "ann", 1)
        t.set(bal, "ann", 0)

    with pytest.raises(RetriesExhaustedError, match="always_late did not commit in 20 attempts"):
        always_late(repo)


def test_given_a_transaction_it_takes_part_and_leaves_the_commit_to_its_owner(
    repo: Repository,
) -> None:
    with repo.transaction() as t:
        pay(t, "ann", "bob", 5)
        assert add(t, "bob", 1) == 6, "it sees what the transaction has written"
        assert repo.snapshot().get(bal, "bob") is None
    now = repo.snapshot()
    assert (now.get(bal, "ann"), now.get(bal, "bob")) == (-5, 6)
    assert now.version(bal, "ann") == now.version(bal, "bob") == t.commit_ts


def test_in_a_given_transaction_a_conflict_is_left_to_its_owner(repo: Repository) -> None:
    runs = []

    @percola.transactional
    def once(t: Transaction) -> None:
        runs.append(t)
        t.set(bal, "ann", 1)

    t = repo.transaction()
    once(t)
    add(repo, "ann", 3)
    with pytest.raises(ConflictError):
        t.commit()
    assert runs == [t]
    assert repo.snapshot().get(bal, "ann") == 3


def test_an_observer_calls_it_with_its_transaction(repo: Repository) -> None:
    fill = observer(order, name="fill")(lambda t, row: add(t, "total", t.get(order, row) or 0))

    repo.run(lambda t: t.set(order, "first", 4))
    Worker(repo, observers=[fill]).run_until_idle()
    now = repo.snapshot()
    assert now.get(bal, "total") == 4
    assert repo.versions(bal, "total")[0][0] > now.version(order, "first")


def test_anything_but_a_repository_or_a_transaction_is_refused(repo: Repository) -> None:
    wrong: Any = repo.snapshot()
    with pytest.raises(UsageError, match="add needs a repository or a transaction"):
        add(wrong, "ann", 1)


def test_a_function_that_returns_before_it_has_worked_is_refused() -> None:
    def rows(t: Transaction) -> Iterator[str]:
        yield from (row.key for row in t.scan(bank))

    async def wait(t: Transaction) -> None: ...

    for function in (rows, wait):
        late: Any = function
        with pytest.raises(UsageError, match=f"{function.__name__} cannot be transactional"):
            percola.transactional(late)


def test_it_keeps_its_name_and_its_documentation() -> None:
    assert (add.__name__, add.__doc__) == ("add", "Add to a balance, and return it.")

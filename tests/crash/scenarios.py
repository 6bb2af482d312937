"""The programs that are killed at every boundary: transactions, their cleaners, observers.

All work on the ledger (`tests.crash.ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from percola import Repository, Table, inspection
from tests.crash import ledger
from tests.crash.boundaries import Act, Death, Scenario
from tests.crash.killing import KillingStore


def begin(repo: Repository, _: KillingStore) -> None:
    ledger.open_accounts(repo)


def in_two_phases(repo: Repository, _: KillingStore) -> None:
    ledger.transfer(repo, two_phase=True)


def in_one_step(repo: Repository, _: KillingStore) -> None:
    ledger.transfer(repo, two_phase=False)


def churn(repo: Repository, _: KillingStore) -> None:
    """Versions for the collector: values rewritten, long ones as well, and a cell that is gone."""
    for step in range(3):
        with repo.transaction(two_phase=step == 1) as t:
            for name in ledger.ACCOUNTS:
                t.set(ledger.balance, name, ledger.OPENING)
            t.set(ledger.note, "old", ledger.LONG)
            t.set(ledger.note, "gone", ledger.LONG[step:])
    with repo.transaction() as t:
        t.delete(ledger.note, "gone")


def collect(repo: Repository, _: KillingStore) -> None:
    assert repo.collect_garbage(retention=0).complete


def read(repo: Repository, _: KillingStore) -> None:
    ledger.check_no_locks(repo)


def conflict_in_two_phases(repo: Repository, _: KillingStore) -> None:
    write_over(repo, two_phase=True)


def conflict_in_one_step(repo: Repository, _: KillingStore) -> None:
    write_over(repo, two_phase=False)


def work(repo: Repository, _: KillingStore) -> None:
    ledger.work(repo)


def work_poisoned(repo: Repository, _: KillingStore) -> None:
    ledger.work(repo, poisoned=True)


def place_orders(repo: Repository, _: KillingStore) -> None:
    with repo.transaction() as t:
        t.set(ledger.amount, "eve/1", 7)
        t.set(ledger.amount, "fay/1", 11)
        t.set(ledger.amount, "fay/2", 2)


def place_poisoned_order(repo: Repository, _: KillingStore) -> None:
    with repo.transaction() as t:
        t.set(ledger.amount, "eve/1", 7)
        t.set(ledger.amount, "fay/1", ledger.POISON)


def bring_tables(repo: Repository, store: KillingStore) -> None:
    """A program that declares tables which the repository has not got."""
    context = repo.context
    new = [*ledger.SCHEMA, Table("new")]
    Repository(repo.address, store, context.oracle, context.coordination, new)


def retry(repo: Repository, _: KillingStore) -> None:
    inspection.retry_failures(repo)


def write_over(repo: Repository, *, two_phase: bool) -> None:
    """A transaction that meets all locks of `transfer`, and changes nothing that is checked."""
    with repo.transaction(two_phase=two_phase) as t:
        for name in ledger.ACCOUNTS:
            t.set(ledger.balance, name, t.get_for_update(ledger.balance, name) or 0)
        held = t.get(ledger.note, "old")
        if held is not None:
            t.set(ledger.note, "old", held)


# --- What must hold ---------------------------------------------------------------------


def transfer_is_whole(repo: Repository, death: Death) -> None:
    """By its commit point, which it reached or did not; whoever comes first finds that."""
    reached = death.passed("after commit primary") or death.passed("after one step")
    check_whole(repo, death, committed=reached)


def transfer_is_committed(repo: Repository, death: Death) -> None:
    """It had passed its commit point before the cleaner that was killed began."""
    check_whole(repo, death, committed=True)


def transfer_is_undone(repo: Repository, death: Death) -> None:
    """It had not, and was dead: nobody can have brought it back."""
    check_whole(repo, death, committed=False)


def check_whole(repo: Repository, death: Death, *, committed: bool) -> None:
    # Those who may meet what is left take turns at being the first.
    first = death.number % 4
    if first == 0:
        ledger.check_transfer(repo, committed=committed)
    elif first == 1:
        ledger.work(repo, threads=2)
    elif first == 2:
        write_over(repo, two_phase=False)
    else:
        write_over(repo, two_phase=True)
    ledger.check_transfer(repo, committed=committed)
    ledger.check_no_locks(repo)
    ledger.check_notified(repo)
    go_on(repo)


def committed_and_collected(repo: Repository, death: Death) -> None:
    check_collected(repo, death, committed=True)


def undone_and_collected(repo: Repository, death: Death) -> None:
    check_collected(repo, death, committed=False)


def check_collected(repo: Repository, death: Death, *, committed: bool) -> None:
    """What could be read still can; the next collector comes to the end that this one missed."""
    if death.number % 2:
        ledger.check_transfer(repo, committed=committed)
    collected = repo.collect_garbage(retention=0)
    assert collected.complete and not collected.held_back, collected
    ledger.check_transfer(repo, committed=committed)
    ledger.check_one_version(repo)
    check_whole(repo, death, committed=committed)


def observed_exactly_once(repo: Repository, death: Death) -> None:
    """Whatever the worker had done: another one comes to the exact end."""
    ledger.check_no_locks(repo, but_acknowledgments=True)
    ledger.check_notified(repo)
    go_on(repo)


def dead_lettered_once(repo: Repository, death: Death) -> None:
    """The poisoned order ends up dead-lettered, the other is answered; mended, both are."""
    ledger.check_notified(repo)
    ledger.work(repo, poisoned=True)
    ledger.check_at_rest(repo, dead_lettered=1)
    assert inspection.retry_failures(repo) == 1
    go_on(repo)


def tables_are_there(repo: Repository, death: Death) -> None:
    """Whoever declares them next finds them, or makes them; nothing else is disturbed."""
    context = repo.context
    new = Table("new")
    cell = new.column("cell", int)
    again = Repository(
        repo.address, context.store, context.oracle, context.coordination, [*ledger.SCHEMA, new]
    )
    with again.transaction() as t:
        t.set(cell, "row", 1)
    assert again.snapshot().get(cell, "row") == 1
    go_on(again)


def retried_or_still_listed(repo: Repository, death: Death) -> None:
    """The failure is listed, or its cell is dirty: never neither."""
    listed, dirty = repo.dead_lettered(), sum(repo.pending().values())
    assert listed + dirty == 1, (listed, dirty)
    assert (dirty == 1) == death.passed("after retry")
    inspection.retry_failures(repo)
    go_on(repo)


def go_on(repo: Repository) -> None:
    """Work continues: with a new order, and to the end of it and of what was left."""
    with repo.transaction() as t:
        t.set(ledger.amount, "gus/1", 3)
        t.set(ledger.balance, "ada", (t.get(ledger.balance, "ada") or 0) - 1)
        t.set(ledger.balance, "ben", (t.get(ledger.balance, "ben") or 0) + 1)
    ledger.work(repo)
    ledger.check_at_rest(repo)
    assert sum(ledger.balances(repo).values()) == ledger.OPENING * len(ledger.ACCOUNTS)


# --- The scenarios ----------------------------------------------------------------------

PREWRITTEN = ((begin, None), (in_two_phases, "before commit primary"))
COMMITTED = ((begin, None), (in_two_phases, "after commit primary"))
SECONDARY_LEFT = ((begin, None), (in_two_phases, "after commit secondary"))


def scenario(
    name: str,
    act: Act,
    check: Callable[[Repository, Death], object],
    phases: Iterable[str],
    before: Sequence[tuple[Act, str | None]],
    *,
    one_step: bool = True,
) -> Scenario:
    """One on the ledger."""
    return Scenario(name, ledger.SCHEMA, act, check, frozenset(phases), before, one_step)


TWO_PHASES: Final = (
    "draw",
    "prewrite primary",
    "prewrite secondary",
    "weak notify",
    "commit primary",
    "commit secondary",
)

SCENARIOS: Final = [
    scenario(
        "a writer in two phases", in_two_phases, transfer_is_whole, TWO_PHASES, [(begin, None)]
    ),
    scenario("a writer in one step", in_one_step, transfer_is_whole, ["one step"], [(begin, None)]),
    scenario("a reader rolling forward", read, transfer_is_committed, ["roll forward"], COMMITTED),
    scenario(
        "a worker rolling forward",
        work,
        transfer_is_committed,
        ["roll forward", "one step acknowledging"],
        SECONDARY_LEFT,
    ),
    scenario(
        "a reader rolling back", read, transfer_is_undone, ["roll back", "remove lock"], PREWRITTEN
    ),
    scenario(
        "a writer in one step, rolling back",
        conflict_in_one_step,
        transfer_is_undone,
        ["roll back", "remove lock", "one step"],
        PREWRITTEN,
    ),
    scenario(
        "a writer in two phases, rolling forward",
        conflict_in_two_phases,
        transfer_is_committed,
        ["roll forward", "prewrite primary", "commit primary"],
        COMMITTED,
    ),
    scenario(
        "a worker in one step",
        work,
        observed_exactly_once,
        ["one step acknowledging"],
        [(begin, None), (place_orders, None)],
    ),
    scenario(
        "a worker in two phases",
        work,
        observed_exactly_once,
        TWO_PHASES,
        [(begin, None), (place_orders, None)],
        one_step=False,
    ),
    scenario(
        "a worker dead-lettering",
        work_poisoned,
        dead_lettered_once,
        ["failed attempt", "dead-lettered", "one step acknowledging"],
        [(begin, None), (place_poisoned_order, None)],
    ),
    scenario(
        "a collector that rolls back",
        collect,
        undone_and_collected,
        ["raise safe point", "collect", "note", "roll back", "remove lock"],
        [(begin, None), (churn, None), (in_two_phases, "before commit primary")],
    ),
    scenario(
        "a collector that rolls forward",
        collect,
        committed_and_collected,
        ["raise safe point", "collect", "note", "roll forward"],
        [(begin, None), (churn, None), (in_two_phases, "after commit primary")],
    ),
    scenario(
        "a program with new tables",
        bring_tables,
        tables_are_there,
        ["note", "create tables"],
        [(begin, None), (place_orders, None)],
    ),
    scenario(
        "an operator retrying",
        retry,
        retried_or_still_listed,
        ["retry"],
        [(begin, None), (place_poisoned_order, None), (work_poisoned, None)],
    ),
]

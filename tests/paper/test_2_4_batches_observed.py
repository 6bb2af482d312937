"""§2.4: several changes of an observed column answered in one transaction, each acknowledged."""

from __future__ import annotations

import pytest
from doubling import ROWS, TABLES, commits, contents, count, drain, runs, targets, total, totals
from stores import Ground, ScriptedClock, put_all

from percola import ConflictError, Observer, Repository, Transaction, Worker, observer
from percola.cells import MAX_TS, Cell, Kind
from percola.store.base import Put, RowMutation


@pytest.fixture
def still(ground: Ground) -> Repository:
    """Its clock stands still: no batch ends because the machine is busy."""
    return ground.repo(TABLES, clock=ScriptedClock())


def measure(t: Transaction, row: str) -> None:
    t.set(total, row, len(t.get(contents, row) or ""))
    t.set(runs, row, (t.get(runs, row) or 0) + 1)


def make(batch: int = 8) -> Observer[str]:
    return observer(contents, name="double", batch=batch)(measure)


def write(repo: Repository, *rows: str, value: str = "text") -> None:
    put_all(repo, contents, dict.fromkeys(rows, value))


def handed_out(ground: Ground, *rows: str) -> list[tuple[bytes, dict[Cell, list[int]]]]:
    """Rows and their notify entries, as a worker hands them to a batch."""
    found = []
    for row in rows:
        cell = Cell("targets", row.encode(), contents.key)
        entries = ground.store.entries(cell, Kind.NOTIFY, 0, MAX_TS)
        found.append((cell.row, {cell: [ts for ts, _ in entries]}))
    return found


def ran(repo: Repository) -> dict[str, int]:
    """How often the observer has committed for each row."""
    return {row.key: row[runs] for row in repo.snapshot().scan(targets, columns=[runs])}


def test_a_batch_answers_changes_of_many_rows_in_one_transaction(
    ground: Ground, still: Repository
) -> None:
    write(still, *ROWS)
    worker = drain(still, make(batch=32))
    assert totals(still) == dict.fromkeys(ROWS, 4)
    assert ran(still) == dict.fromkeys(ROWS, 1)
    assert len(commits(still)) <= 2, "a scan begins at a random row and goes round"
    assert count(worker, "observer_runs") == 8
    assert ground.left_over(targets, Kind.NOTIFY) == []


def test_n3_a_change_that_a_batch_has_answered_is_not_run_again(
    ground: Ground, still: Repository
) -> None:
    """Its notify entries are put back: what was acknowledged counts."""
    write(still, *ROWS)
    before = handed_out(ground, *ROWS)
    drain(still, make())
    for row, notified in before:
        [timestamps] = notified.values()
        changes = [Put(Kind.NOTIFY, contents.key, ts, b"") for ts in timestamps]
        ground.store.mutate([RowMutation("targets", row, (), changes)])
    worker = drain(still, make())
    assert ran(still) == dict.fromkeys(ROWS, 1)
    assert ground.left_over(targets, Kind.NOTIFY) == [], "and the entries are gone all the same"
    assert count(worker, "observer_conflicts") == count(worker, "observer_runs") == 0


def test_a_batch_counts_the_rows_for_which_the_function_ran(
    ground: Ground, still: Repository
) -> None:
    write(still, *ROWS)
    before = handed_out(ground, *ROWS)
    one = make()
    one.run_batch(still.context, before[:5], most=8)
    answered, called = one.run_batch(still.context, before, most=8)
    assert (len(answered), called) == (8, 3)


def test_n3_a_batch_and_a_run_that_both_saw_a_change_meet_at_its_acknowledgment(
    ground: Ground, still: Repository
) -> None:
    write(still, *ROWS)
    rows = handed_out(ground, *ROWS)
    one = make()

    def overtaken(t: Transaction, row: str) -> None:
        measure(t, row)
        if row == ROWS[-1]:
            # Another worker answers one change of the batch before it commits.
            assert one.run(still.context, rows[2][0], rows[2][1])

    batch = observer(contents, name="double", batch=8)(overtaken)
    with pytest.raises(ConflictError):
        batch.run_batch(still.context, iter(rows), most=8)
    assert ran(still) == {ROWS[2]: 1}, "nothing of the batch was committed"
    drain(still, one)
    assert ran(still) == dict.fromkeys(ROWS, 1)


def test_n2_a_change_that_comes_while_a_batch_runs_is_answered_by_another_run(
    ground: Ground, still: Repository
) -> None:
    write(still, *ROWS)
    changed: list[str] = []

    def slow(t: Transaction, row: str) -> None:
        measure(t, row)
        if not changed:
            changed.append(row)
            write(still, row, value="longer text")

    drain(still, observer(contents, name="double", batch=8)(slow))
    [row] = changed
    assert totals(still) == {**dict.fromkeys(ROWS, 4), row: 11}
    assert ran(still)[row] in (1, 2), "the batch conflicts with the change or comes before it"
    assert ground.left_over(targets, Kind.NOTIFY) == []


def test_an_observer_that_writes_its_own_column_in_a_row_of_its_batch_runs_for_that_again(
    ground: Ground, still: Repository
) -> None:
    """The row has been acknowledged at the batch's start, and changes at its commit."""

    def passing_on(t: Transaction, row: str) -> None:
        measure(t, row)
        if row != ROWS[0] and t.get(contents, row) == "text":
            t.set(contents, ROWS[0], "from another")

    one = observer(contents, name="double", batch=8)(passing_on)
    write(still, *ROWS[:3])
    answered, _ = one.run_batch(still.context, handed_out(ground, *ROWS[:3]), most=8)
    assert len(answered) == 3
    assert totals(still)[ROWS[0]] == len("text"), "it was the first"
    drain(still, one)
    assert totals(still)[ROWS[0]] == len("from another")


def test_a_column_with_two_observers_takes_no_batches(still: Repository) -> None:
    """The last one answers for the change, and only if every other has run."""

    def other(t: Transaction, row: str) -> None:
        t.get(contents, row)

    write(still, *ROWS)
    worker = Worker(still, [make(), observer(contents, batch=8)(other)], threads=1)
    worker.run_until_idle()
    assert ran(still) == dict.fromkeys(ROWS, 1)
    assert commits(still) == [1] * 8
    assert count(worker, "observer_batches") == 0

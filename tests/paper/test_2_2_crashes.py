"""§2.2: a real process, killed with SIGKILL inside its commit; others carry on at once (P8)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stores import Program, ScriptedClock

import percola
from percola import Repository, Table, Worker, observer
from percola.cells import Kind
from percola.inspection import locks

bank = Table("bank")
bal = bank.column("bal", int, observed=True)
ROWS = ["a", "b", "c"]

# How many row mutations were applied: prewrites of a, b, c, then commits of a, b, c.
BOUNDARIES = {
    "before the primary's prewrite": (0, 0),
    "after the primary's prewrite": (1, 1),
    "between the secondaries' prewrites": (2, 2),
    "before the primary's commit": (3, 3),
    "after the primary's commit": (4, 2),
    "between the secondaries' commits": (5, 1),
    "after the last commit": (6, 0),
}


def patient_only_by_clock(
    folder: Path, *, one_step: bool = True
) -> tuple[Repository, ScriptedClock]:
    """The repository as a process that would notice if it had to wait."""
    context = percola.open(folder, schema=[bank]).context
    clock = ScriptedClock()
    store, oracle, coordination = context.store, context.oracle, context.coordination
    repo = Repository(
        str(folder), store, oracle, coordination, [bank], clock=clock, one_step=one_step
    )
    return repo, clock


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_writer_killed_inside_its_commit_is_cleaned_up_at_once_all_or_nothing(
    tmp_path: Path, boundary: str
) -> None:
    """By the next reader, by the next writer in one step, and by one in two phases."""
    applied, locked = BOUNDARIES[boundary]
    folder = tmp_path / "killed"
    with percola.open(folder, schema=[bank], durability="relaxed") as repo, repo.transaction() as t:
        for row in ROWS:
            t.set(bal, row, 1)
    with Program("crashing_writer.py", folder, applied) as writer:
        writer.expect("stopped")
        with percola.open(folder, schema=[bank]) as repo:
            held = list(locks(repo))
            assert len(held) == locked
            assert all(lock.owner_alive for lock in held)
        writer.kill()
    value = 2 if applied > 3 else 1
    for finisher in ("reader", "scanner", "writer in one step", "writer in two phases"):
        copy = tmp_path / finisher.replace(" ", "-")
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("lock.mdb", "wake"))
        repo, clock = patient_only_by_clock(copy, one_step=finisher != "writer in two phases")
        assert not any(lock.owner_alive for lock in locks(repo))
        if finisher == "reader":
            for row in ROWS:
                assert repo.snapshot().get(bal, row) == value, row
        elif finisher == "scanner":
            assert [row[bal] for row in repo.snapshot().scan(bank)] == [value] * 3
        else:
            with repo.transaction() as t:
                assert t.get(bal, "c") == value
                t.set(bal, "b", 7)
                t.set(bal, "c", 7)
            assert repo.snapshot().get_many([(bal, row) for row in ROWS]) == [value, 7, 7]
        assert clock.slept == [], f"the {finisher} waited for a dead process"
        assert list(locks(repo)) == []


def test_a_transaction_rolled_forward_after_a_kill_still_notifies(tmp_path: Path) -> None:
    """N1: whoever completes the commit puts the notify cells of what it completes."""
    folder = tmp_path / "killed"
    percola.open(folder, schema=[bank], durability="relaxed").close()
    with Program("crashing_writer.py", folder, 4) as writer:
        writer.expect("stopped")
        writer.kill()
    seen: list[str] = []

    watch = observer(bal, name="watch")(lambda t, row: seen.append(row))

    with percola.open(folder, schema=[bank]) as repo:
        assert repo.snapshot().get_many([(bal, row) for row in ROWS]) == [2, 2, 2]
        for row in ROWS:
            cell = percola.cells.Cell("bank", row.encode(), bal.key)
            assert len(repo.context.store.entries(cell, Kind.NOTIFY, 0, 2**62)) == 1
        Worker(repo, [watch], threads=1).run_until_idle()
    assert sorted(seen) == ROWS

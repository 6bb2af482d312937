"""§2.2: a joint transaction is there whole or not at all, whoever dies or comes in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from joints import assert_sound, begin, docs, joint, row, size, stranger, title, titles, write
from stores import Crashed, CrashingStore, Ground, ScriptedClock, SeamStore, phase, telling

from percola import Repository
from percola.cells import MAX_TS, Cell, Kind
from percola.errors import (
    CommitUnknownError,
    OutcomeUnknownError,
    RolledBackError,
    StoreError,
    TransactionTooLargeError,
)
from percola.store.base import Put, RowMutation
from percola.store.walks import scan_writes
from percola.transactions.jobs import (
    JOBS,
    JobOverError,
    JointError,
    JointTransaction,
    Part,
    RowWrites,
    SupersededError,
    new_run,
)
from percola.transactions.jobs.job_row import STATE, JobRow

TABLES = [docs, JOBS]


# --- Crashes ----------------------------------------------------------------------------


def test_whoever_dies_at_any_moment_the_job_is_there_whole_or_not_at_all(
    ground: Ground, tmp_path: Any
) -> None:
    """Every row mutation of a job, by number; then another run finishes what is left."""
    outcomes: list[str] = []
    for at in range(1, 200):
        job = f"job {at}"
        rows = {f"{name} {at}" for name in "abc"}
        crashing = CrashingStore(ground.store, at)
        repo = ground.repo(TABLES, store=crashing)
        crashing.armed = True
        died = False
        try:
            renamed_job(repo, job, at)
        except Crashed:
            died = True
        reader, _ = stranger(ground)
        found = {key for key in titles(reader) if key in rows}
        assert found in (set(), rows), (at, found)
        outcomes.append("there" if found else "nothing")
        state = JobRow(reader, job).state()
        assert (state is not None and state.what == "committed") is bool(found)
        # A later run: writes it, or finds it written.
        again = joint(reader, job)
        begun = again.attempt(0, 1)
        assert (begun is None) is bool(found)
        if begun is not None:
            begun.write([row(f"{name} {at}", "again") for name in "abc"])
            again.commit([begun.finish()])
        else:
            again.commit([])
        after = titles(reader)
        assert {after[key] for key in rows} <= ({"again"} if not found else {"new" * 200, "new"})
        assert_sound(reader, ground)
        if not died:
            break
    else:
        pytest.fail("it never got through")
    # First nothing, from the commit point on all.
    assert outcomes == sorted(outcomes)
    assert outcomes.count("nothing") > 10 and outcomes.count("there") > 3


def renamed_job(repo: Repository, job: str, at: int, *, reads: bool = False) -> None:
    def keyed(*rows: RowWrites) -> list[RowWrites]:
        return [one._replace(row=one.row + b" %d" % at) for one in rows]

    one = joint(repo, job, read_at=repo.snapshot().start_ts if reads else None)
    begin(one, 0, 1).write(keyed(row("a", "lost"), row("b", "lost", locks=[size.key])))
    begun = begin(one, 0, 2)
    begun.write(keyed(row("a", "new" * 200, 1)))
    begun.write(keyed(row("b", "new", 2)))
    parts = [begun.finish(), write(one, 1, keyed(row("c", "new", 3)), attempt=3)]
    one.commit(parts)


LOST = ["before", "after", "twice"]


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("how", LOST)
def test_a_lost_reply_to_any_mutation_changes_nothing(
    ground: Ground, how: str, reads: bool
) -> None:
    """P6, P7: lost before it arrived, after it was applied, or delivered a second time later."""
    fired = 0
    for at in range(1, 100):
        seam = SeamStore(ground.store)
        repo = ground.repo(TABLES, store=seam, clock=ScriptedClock(), one_step=False)
        job = f"{how} {at}"
        count = 0
        late: list[Callable[[], bool]] = []

        def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
            nonlocal count, fired
            count += 1
            if count != at:  # noqa: B023
                return apply()
            fired += 1
            if how == "before":
                raise OutcomeUnknownError("lost")
            applied = apply()
            if how == "after":
                raise OutcomeUnknownError("lost")
            late.append(apply)  # noqa: B023
            return applied

        seam.hook = hook
        gave_up: Exception | None = None
        try:
            renamed_job(repo, job, at, reads=reads)
        except (OutcomeUnknownError, JointError, CommitUnknownError) as error:
            gave_up = error
        for again in late:
            again()
        seam.hook = None
        one = joint(repo, job)
        rows = {f"{name} {at}" for name in "abc"}
        found = {key for key in titles(repo) if key in rows}
        assert found in (set(), rows)
        if gave_up is None:
            assert found == rows
        assert (one.committed() is not None) is bool(found)
        one.abort()
        assert_sound(repo, ground)
        if count < at:
            break
    assert fired > 15


def test_a_commit_whose_outcome_cannot_be_read_is_unknown_and_never_undone(ground: Ground) -> None:
    seam = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=seam, clock=ScriptedClock())
    one = joint(repo)
    part = write(one, 0, [row("a", "new")])
    lost: list[bool] = []

    def away(*_: object) -> object:
        raise StoreError("The store cannot be reached.")

    def hook(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "commit" and mutation.table == JOBS.name:
            lost.append(apply())
            seam.entries = away  # type: ignore[method-assign, assignment]
            raise OutcomeUnknownError("lost")
        return apply()

    seam.hook = hook
    with pytest.raises(CommitUnknownError) as told:
        one.commit([part])
    assert lost == [True]
    seam.hook = None
    del seam.entries
    assert repo.resolve(told.value)
    assert not one.abort()
    assert titles(repo) == {"a": "new"}
    assert_sound(repo, ground)


def test_a_commit_that_comes_after_a_leg_was_undone_by_a_reader_commits_nothing(
    ground: Ground,
) -> None:
    """Between the last look and the commit point: the mutation's conditions refuse the commit."""
    reader, clock = stranger(ground)

    def undo() -> None:
        assert reader.snapshot().get(title, "row 1") is None
        assert clock.slept

    parts: list[Part] = []
    repo, undone = between(ground, lambda m: bool(parts) and commits_the_job(m), undo)
    one = joint(repo)
    parts += [write(one, p, [row(f"row {p}", "new")]) for p in range(3)]
    with pytest.raises(JointError, match="partition 1"):
        one.commit(parts)
    assert undone
    assert ground.lock_holders(STATE, "job") == [], "its own lock on the state is in the way"
    with pytest.raises(JobOverError):
        one.attempt(1, 9)
    assert one.abort()
    assert titles(repo) == {}
    assert_sound(repo, ground)


def between(
    ground: Ground, is_it: Callable[[RowMutation], bool], action: Callable[[], object]
) -> tuple[Repository, list[RowMutation]]:
    """A repository that does something just before its first mutation of a kind arrives."""
    seam = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=seam)
    seen: list[RowMutation] = []

    def look(mutation: RowMutation) -> None:
        if not seen and is_it(mutation):
            seen.append(mutation)
            action()

    seam.hook = telling(look)
    return repo, seen


def commits_the_job(mutation: RowMutation) -> bool:
    return phase(mutation) == "commit" and mutation.table == JOBS.name


def locks_primary(mutation: RowMutation) -> bool:
    return any(
        isinstance(change, Put)
        and change.kind is Kind.LOCK
        and change.column.startswith(b"primary")
        for change in mutation.changes
    )


def test_no_attempt_begins_after_a_later_run_has_come_in_between(ground: Ground) -> None:
    other, _ = stranger(ground)
    run = new_run(other)
    repo, seen = between(ground, locks_primary, lambda: begin(joint(other), 7, 7).finish())
    with pytest.raises(JobOverError):
        joint(repo, run=run).attempt(0, 1)
    assert seen
    assert [one.run > run for one in JobRow(other, "job").held()[0]] == [True]


def test_an_attempt_that_finishes_just_before_another_one_begins_keeps_its_claim(
    ground: Ground,
) -> None:
    other, _ = stranger(ground)
    first = joint(other)
    parts: list[Part] = []
    repo, seen = between(
        ground, locks_primary, lambda: parts.append(write(first, 0, [row("a", "1")], attempt=1))
    )
    second = begin(joint(repo, run=first._run), 0, 2, retry=1)
    assert seen and second.done == parts[0]
    first.commit(parts)
    assert titles(repo) == {"a": "1"}
    assert_sound(repo, ground)


def test_an_attempt_that_finishes_just_before_it_would_be_overtaken_is_not(ground: Ground) -> None:
    other, _ = stranger(ground)
    one = joint(other)
    first = begin(one, 0, 1)
    first.write([row("a", "first")])
    repo, seen = between(ground, lambda m: phase(m) == "roll back", first.finish)
    second = begin(joint(repo, run=one._run), 0, 2, retry=1)
    assert seen and second.done == first.done is not None
    one.commit([second.finish()])
    assert titles(repo) == {"a": "first"}
    assert_sound(repo, ground)


def test_a_commit_that_hangs_is_put_an_end_to_by_the_next_run_without_waiting(
    ground: Ground,
) -> None:
    """It holds the state, and its process lives: a later run has the last word all the same."""
    other, clock = stranger(ground)
    taken: list[JointTransaction] = []

    def take_over() -> None:
        again = joint(other)
        write(again, 0, [row("a", "second")])
        taken.append(again)

    repo, seen = between(ground, commits_the_job, take_over)
    if not ground.one_step:  # There the state is begun by a commit of its own.
        begin(joint(other, run=1), 5, 5).abandon()
    one = joint(repo, run=1)
    parts = [write(one, 0, [row("a", "first")])]
    with pytest.raises((JobOverError, JointError, RolledBackError)):
        one.commit(parts)
    assert seen and clock.slept == []
    [again] = taken
    _, claims = JobRow(other, "job").held()
    [claim] = claims.values()
    again.commit([Part(0, claim.attempt, claim.subtransactions, claim.rows)])
    assert titles(other) == {"a": "second"}
    assert_sound(other, ground)


def test_a_job_of_too_many_partitions_for_the_store_is_told_how_to_have_fewer(
    ground: Ground,
) -> None:
    """Bigtable checks 20,000 bytes of conditions at once, those of about 200 partitions."""

    def refuse() -> None:
        raise TransactionTooLargeError("too many conditions")

    def is_wide(mutation: RowMutation) -> bool:
        return commits_the_job(mutation) and len(mutation.conditions) > 4

    repo, seen = between(ground, is_wide, refuse)
    one = joint(repo)
    parts = [write(one, p, [row(f"row {p}", "new")]) for p in range(3)]
    with pytest.raises(JointError, match=r"The 3 partitions .* 3 locks are too many .*coalesce"):
        one.commit(parts)
    assert seen and one.abort()
    assert titles(repo) == {}
    assert_sound(repo, ground)


def test_a_lock_without_a_token_is_nobodys_and_not_taken_for_a_dead_process(ground: Ground) -> None:
    repo, _ = stranger(ground, process="reader")
    one = joint(repo)
    part = write(one, 0, [row("a", "new")])
    [started] = JobRow(repo, "job").held()[0]
    assert repo.context.resolver.fate(started.cell, started.start_ts) is None
    one.commit([part])
    assert titles(repo) == {"a": "new"}


def test_no_attempt_begins_or_finishes_once_the_state_is_locked_for_the_commit(
    ground: Ground,
) -> None:
    def finish() -> None:
        with pytest.raises(JobOverError):
            begun.finish()

    parts: list[Part] = []
    repo, tried = between(ground, lambda m: bool(parts) and commits_the_job(m), finish)
    one = joint(repo)
    parts.append(write(one, 0, [row("a", "new")]))
    other, _ = stranger(ground)
    begun = begin(joint(other, run=one._run), 1, 1)
    begun.write([row("b", "late")])
    one.commit(parts)
    assert tried
    with pytest.raises((JobOverError, SupersededError)):
        begun.write([row("c", "late")])
    assert titles(repo) == {"a": "new"}
    assert_sound(other, ground)


def test_primaries_leave_no_value_and_the_commit_point_is_one_mutation(
    repo: Repository, ground: Ground
) -> None:
    one = joint(repo)
    parts = [write(one, p, [row(f"row {p}", "new")]) for p in range(5)]
    commit_ts = one.commit(parts)
    seam_rows = scan_writes(ground.store, JOBS.name)[0]
    at_commit = [cell for cell, records in seam_rows if records[0][0] == commit_ts]
    assert len(at_commit) == 11, "five primaries, five claims, and the state"
    kept = ground.store.entries(Cell(JOBS.name, b"job", STATE.key), Kind.WRITE, 0, MAX_TS)
    assert kept[0][0] == commit_ts

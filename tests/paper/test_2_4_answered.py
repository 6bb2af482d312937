"""§2.4: waiting until observers have answered what a transaction wrote."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stores import (
    DEADLINE,
    Ground,
    ListeningClock,
    ScriptedClock,
    SeamStore,
    at_work,
    delete,
    heard,
    in_thread,
    notify,
    put,
    put_all,
    stopped,
)

import percola
from percola import (
    ConflictingOptionsError,
    NotAnsweredError,
    Repository,
    Table,
    Transaction,
    UsageError,
    Worker,
    observer,
)
from percola.cells import MAX_TS, Cell, Kind, decode_attempts
from percola.inspection import retry_failures

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
words = docs.column("words", int, observed=True)
total = docs.column("total", int)
note = docs.column("note", str)
poke = docs.weak_column("poke")
TABLES = [docs]

QUICK: dict[str, Any] = {"attempts": 2, "first_wait": 0.01, "longest_wait": 0.02, "threads": 1}


@observer(contents)
def count(t: Transaction, row: str) -> None:
    t.set(words, row, len((t.get(contents, row) or "").split()))


@observer(words)
def add(t: Transaction, row: str) -> None:
    t.set(total, "all", (t.get(total, "all") or 0) + (t.get(words, row) or 0))


@observer(contents, name="count")
def fail(t: Transaction, row: str) -> None:
    raise ValueError(f"cannot count {row}")


def write(repo: Repository, row: str, text: str = "some text") -> int:
    """Change the contents of a row; return the commit timestamp."""
    return put(repo, contents, row, text)


def is_answered(repo: Repository, commit_ts: int, depth: int = 1) -> bool:
    try:
        repo.wait_answered(commit_ts, timeout=0, depth=depth)
    except NotAnsweredError:
        return False
    return True


def test_it_returns_once_the_run_that_saw_the_change_has_committed(ground: Ground) -> None:
    clock, begun, go_on = ListeningClock(), threading.Event(), threading.Event()
    repo, elsewhere = ground.repo(TABLES, clock=clock), ground.repo(TABLES)

    @observer(contents, name="count")
    def count_slowly(t: Transaction, row: str) -> None:
        begun.set()
        assert go_on.wait(DEADLINE)
        count(t, row)

    with at_work(Worker(elsewhere, [count_slowly], **QUICK)):
        commit_ts = write(repo, "a")
        waiting = in_thread(lambda: repo.wait_answered(commit_ts, timeout=DEADLINE))
        assert begun.wait(DEADLINE)
        clock.slept.clear()
        assert clock.slept.wait(DEADLINE), "it waits while the observer runs"
        assert not waiting.done()
        go_on.set()
        waiting.result(DEADLINE)
        assert repo.snapshot().get(words, "a") == 2


def test_without_a_worker_it_gives_up_after_the_timeout_and_names_the_cell(ground: Ground) -> None:
    clock = ScriptedClock()
    repo = ground.repo(TABLES, clock=clock)
    commit_ts = write(repo, "a")
    with pytest.raises(NotAnsweredError, match=rf"docs.*a.*contents.* {commit_ts} within 30 s"):
        repo.wait_answered(commit_ts, timeout=30)
    assert sum(clock.slept) == pytest.approx(30)
    assert clock.slept[0] == 0.001
    assert max(clock.slept) == 0.1


def test_with_a_timeout_of_zero_it_only_checks(ground: Ground) -> None:
    clock = ScriptedClock()
    repo = ground.repo(TABLES, clock=clock)
    commit_ts = write(repo, "a")
    assert not is_answered(repo, commit_ts)
    assert clock.slept == []
    Worker(ground.repo(TABLES), [count], **QUICK).run_until_idle()
    assert is_answered(repo, commit_ts)


def test_it_waits_for_weak_notifications(repo: Repository) -> None:
    rows = []

    look = observer(poke, name="look")(lambda t, row: rows.append(row))

    commit_ts = notify(repo, poke, "a")
    assert not is_answered(repo, commit_ts)
    Worker(repo, [look], **QUICK).run_until_idle()
    assert is_answered(repo, commit_ts)
    assert rows == ["a"]


def test_it_does_not_wait_for_what_other_transactions_wrote(repo: Repository) -> None:
    before = write(repo, "a")
    commit_ts = put(repo, words, "b", 5)
    after = write(repo, "c")
    Worker(repo, [add], **QUICK).run_until_idle()
    assert is_answered(repo, commit_ts)
    assert not is_answered(repo, before)
    assert not is_answered(repo, after)


def test_one_run_answers_several_changes_of_a_cell(repo: Repository) -> None:
    changes = [write(repo, "a", text) for text in ("one", "one two")]
    assert not any(is_answered(repo, commit_ts) for commit_ts in changes)
    Worker(repo, [count], **QUICK).run_until_idle()
    assert all(is_answered(repo, commit_ts) for commit_ts in changes)


def test_writes_that_notify_nobody_are_not_waited_for(repo: Repository) -> None:
    assert is_answered(repo, put(repo, contents, "a", "text", notify=False))


def test_a_change_whose_lock_is_not_yet_replaced_is_not_overlooked(ground: Ground) -> None:
    repo, seam = ground.repo(TABLES), SeamStore(ground.store)
    t = ground.repo(TABLES, store=seam, one_step=False).transaction()
    t.set(note, "a primary", "not observed")
    t.set(contents, "observed", "text")
    with stopped(seam, t.commit, "commit", "observed") as committing:
        [(commit_ts, _)] = ground.entries(note, "a primary", Kind.WRITE)
        assert ground.lock_holders(contents, "observed") == [t.start_ts]
        assert not is_answered(repo, commit_ts)
        Worker(repo, [count], **QUICK).run_until_idle()
        assert is_answered(repo, commit_ts)
    assert committing.result(DEADLINE) == commit_ts


def test_the_lock_of_a_transaction_that_has_not_committed_is_left_alone(ground: Ground) -> None:
    repo, seam = ground.repo(TABLES), SeamStore(ground.store)
    commit_ts = write(repo, "a")
    t = ground.repo(TABLES, store=seam, one_step=False).transaction()
    t.set(contents, "b", "text")
    after = write(repo, "c")
    Worker(repo, [count], **QUICK).run_until_idle()
    with stopped(seam, t.commit, "commit", "b") as committing:
        assert is_answered(repo, commit_ts)
        assert is_answered(repo, after)
        assert ground.lock_holders(contents, "b") == [t.start_ts]
    assert committing.result(DEADLINE) > after


def test_a_change_that_is_dead_lettered_is_not_answered(repo: Repository) -> None:
    bad = write(repo, "bad")
    Worker(repo, [fail], **QUICK).run_until_idle()
    with pytest.raises(
        NotAnsweredError, match=r"for the observer count: ValueError: cannot count"
    ) as raised:
        repo.wait_answered(bad)
    # Without saying which, the command is refused.
    assert "'percola failed retry --observer count' runs" in str(raised.value)
    good = write(repo, "good")
    Worker(repo, [count], **QUICK).run_until_idle()
    repo.wait_answered(good)
    again = write(repo, "bad", "other text")
    Worker(repo, [count], **QUICK).run_until_idle()
    for commit_ts in (good, bad, again):
        repo.wait_answered(commit_ts)


def test_a_dead_letter_counts_for_all_changes_that_its_run_had_to_handle(repo: Repository) -> None:
    before = write(repo, "good")
    Worker(repo, [count], **QUICK).run_until_idle()
    changes = [write(repo, "bad", text) for text in ("one", "one two")]
    Worker(repo, [fail], **QUICK).run_until_idle()
    for commit_ts in changes:
        with pytest.raises(NotAnsweredError, match="dead-lettered"):
            repo.wait_answered(commit_ts)
    repo.wait_answered(before)


@pytest.mark.parametrize("column", ["contents", "poke"])
def test_a_dead_letter_that_is_tried_again_is_not_answered_before_its_run_has_committed(
    repo: Repository, column: str
) -> None:
    observed: Any = docs.resolve(column)

    def run(function: Any) -> None:
        Worker(repo, [observer(observed, name="count")(function)], **QUICK).run_until_idle()

    commit_ts = notify(repo, poke, "a") if column == "poke" else write(repo, "a")
    later_ts = notify(repo, poke, "a") if column == "poke" else write(repo, "a")
    run(fail.function)
    assert retry_failures(repo) == 1
    assert not is_answered(repo, later_ts)
    if column == "contents":  # Of a weak notification nothing says when it came.
        run(fail.function)
        assert not is_answered(repo, later_ts)
        assert retry_failures(repo) == 1
        assert not is_answered(repo, commit_ts)
    run(lambda t, row: None)
    assert is_answered(repo, later_ts)
    assert is_answered(repo, commit_ts)


def test_a_change_that_was_answered_stays_so_while_a_later_one_is_tried_again(
    repo: Repository,
) -> None:
    commit_ts = write(repo, "a")
    Worker(repo, [count], **QUICK).run_until_idle()
    later_ts = write(repo, "a", "more text")
    Worker(repo, [fail], **QUICK).run_until_idle()
    assert retry_failures(repo) == 1
    assert is_answered(repo, commit_ts)
    assert not is_answered(repo, later_ts)


def test_a_failed_attempt_does_not_hide_that_a_dead_letter_is_tried_again(
    repo: Repository,
) -> None:
    commit_ts = write(repo, "a")
    Worker(repo, [fail], **QUICK).run_until_idle()
    assert retry_failures(repo) == 1
    cell = Cell("docs", b"a", contents.key)
    Worker(repo, [fail], attempts=9)._runs.work_cell(cell, [])
    [(_, raw)] = repo.context.store.entries(cell, Kind.NOTIFY, 0, MAX_TS)
    assert decode_attempts(raw)["count"].failed == 1
    assert not is_answered(repo, commit_ts)


def test_a_later_change_that_is_dead_lettered_leaves_an_answered_one_answered(
    repo: Repository,
) -> None:
    first = write(repo, "a", "one")
    Worker(repo, [count], **QUICK).run_until_idle()
    later = write(repo, "a", "one two")
    Worker(repo, [fail], **QUICK).run_until_idle()
    repo.wait_answered(first)
    with pytest.raises(NotAnsweredError, match="dead-lettered"):
        repo.wait_answered(later)


def test_with_depth_it_also_waits_for_what_the_runs_wrote(repo: Repository) -> None:
    commit_ts = write(repo, "a", "one two three")
    assert not is_answered(repo, commit_ts)
    Worker(repo, [count], **QUICK).run_until_idle()
    assert is_answered(repo, commit_ts)
    with pytest.raises(NotAnsweredError, match="words"):
        repo.wait_answered(commit_ts, timeout=0, depth=2)
    Worker(repo, [add], **QUICK).run_until_idle()
    assert is_answered(repo, commit_ts, depth=2)
    assert is_answered(repo, commit_ts, depth=5)
    assert repo.snapshot().get(total, "all") == 3


def test_with_depth_it_waits_for_what_runs_wrote_to_a_table_that_is_newer(
    tmp_path: Path,
) -> None:
    """The writer had opened the repository before the worker brought the table."""
    later = Table("later")
    text = later.column("text", str, observed=True)

    @observer(contents, name="to-later")
    def pass_on(t: Transaction, row: str) -> None:
        t.set(text, row, "text")

    with percola.open(tmp_path / "repo", TABLES) as repo:
        commit_ts = write(repo, "a")
        with percola.open(tmp_path / "repo", [*TABLES, later]) as other:
            Worker(other, [pass_on], **QUICK).run_until_idle()
        assert is_answered(repo, commit_ts)
        assert not is_answered(repo, commit_ts, depth=2)


def test_with_depth_it_does_not_wait_for_what_was_there_before(repo: Repository) -> None:
    put(repo, words, "old", 1)
    commit_ts = write(repo, "a")
    delete(repo, contents, "a")

    @observer(contents, name="count")
    def only_look(t: Transaction, row: str) -> None: ...

    Worker(repo, [only_look], **QUICK).run_until_idle()
    assert is_answered(repo, commit_ts, depth=3)


def test_while_it_waits_it_reads_one_cell_however_many_are_dirty(ground: Ground) -> None:
    calls: Counter[tuple[str, Kind]] = Counter()
    store = heard(
        ground.store,
        scan_kind=lambda _, kind, *where: calls.update([("scan", kind)]),
        entries=lambda _, cell, kind, *where: calls.update([("read", kind)]),
    )
    scan, read = ("scan", Kind.NOTIFY), ("read", Kind.NOTIFY)
    clock = ScriptedClock()
    repo = ground.repo(TABLES, store=store, clock=clock)
    put_all(repo, contents, {f"other {number:03}": "text" for number in range(600)})
    commit_ts = write(repo, "z")
    calls.clear()
    assert not is_answered(repo, commit_ts)
    scans = calls[scan]
    assert calls[read] == 1
    calls.clear()
    with pytest.raises(NotAnsweredError):
        repo.wait_answered(commit_ts, timeout=20)
    assert calls[scan] == scans
    assert calls[read] == len(clock.slept) + 1 > 200


@pytest.mark.parametrize("commit_ts", [None, 0, -1, 10**12, "5"])
def test_a_timestamp_at_which_nothing_can_have_committed_is_refused(
    repo: Repository, commit_ts: Any
) -> None:
    write(repo, "a")
    with pytest.raises(UsageError):
        repo.wait_answered(commit_ts)


@pytest.mark.parametrize("options", [{"timeout": -1}, {"timeout": float("nan")}, {"depth": 0}])
def test_a_wait_that_cannot_work_is_refused(repo: Repository, options: Any) -> None:
    commit_ts = write(repo, "a")
    with pytest.raises(ConflictingOptionsError):
        repo.wait_answered(commit_ts, **options)

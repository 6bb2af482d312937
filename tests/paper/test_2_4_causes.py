"""§2.4: what caused a cell, and what it has caused, is found exactly, or said to be unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from stores import Ground, put

import percola
from percola import Observer, Repository, Table, Transaction, UsageError, Worker, observer, rerun
from percola import recording as recording_switch
from percola.catalog import RUNS
from percola.cells import Kind
from percola.clock import Clock
from percola.gc.collector import GarbageCollector
from percola.inspection import retry_failures
from percola.observers import run_records
from percola.observers.causes import Change, causes, effects
from percola.observers.run_records import find_record
from percola.store.base import Limits
from percola.store.memory import MemoryStore
from percola.store.walks import walk_kind

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
title = docs.column("title", str)
words = Table("words")
used_in = words.family("used_in", str)
changed = words.weak_column("changed")
uses = words.column("uses", int, observed=True)
most = words.column("most", str)


@observer(contents)
def split(t: Transaction, row: str) -> None:
    text = t.get(contents, row) or ""
    t.set(title, row, text[:1])
    for word in text.split():
        t.set(used_in[row], word, row)
        t.notify(changed, word)


@observer(changed)
def count(t: Transaction, row: str) -> None:
    t.set(uses, row, len(t.get_row(words, row, [used_in]).family(used_in)))


@observer(uses)
def rank(t: Transaction, row: str) -> None:
    number = t.get(uses, row)
    t.set(most, row, f"{number} uses")


ALL: list[Observer[Any]] = [split, count, rank]


class HastyClock(Clock):
    """The real clock, but that time which somebody sleeps passes at once."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds


def recording(ground: Ground, **options: Any) -> Repository:
    repo = ground.repo([docs, words], clock=HastyClock(), **options)
    assert repo.record_runs().on
    return repo


def work(repo: Repository, observers: Sequence[Observer[Any]] = ALL) -> None:
    Worker(repo, observers, threads=1, attempts=1).run_until_idle()


def write(repo: Repository, row: str, text: str) -> int:
    return put(repo, contents, row, text)


def lines(change: Change, depth: int = 0) -> list[str]:
    """A tree of changes and runs as indented lines, without timestamps."""
    cell = change.cell
    found = [f"{' ' * depth}{change.op} {cell.table}[{cell.row.decode()}].{cell.column.decode()}"]
    for run in change.runs:
        found.append(f"{' ' * (depth + 1)}{run.observer} {run.row.decode()}")
        for one in run.changes:
            found += lines(one, depth + 2)
        if run.end:
            found.append(f"{' ' * (depth + 2)}({run.end})")
    if change.end:
        found.append(f"{' ' * (depth + 1)}({change.end})")
    return found


PROGRAM = "(not written by an observer: by a program, a loader or a job)"
OFF = "runs are not recorded (percola observers record on)"
UNKNOWN = "by a program, a loader or a job, or an observer's run for another row"


def test_a_value_leads_back_over_rows_and_weak_notifications_to_the_program(ground: Ground) -> None:
    repo = recording(ground)
    for row, text in (("a", "red"), ("b", "blue"), ("c", "green blue")):
        write(repo, row, text)  # One batch answers all three.
    work(repo)
    again = write(repo, "a", "red blue")
    work(repo)
    found = causes(repo, most, "blue")
    assert lines(found) == [
        "put words[blue].most",
        " rank blue",
        "  put words[blue].uses",
        "   count blue",
        "    notify words[blue].changed",
        "     split a",
        "      put docs[a].contents",
        f"       {PROGRAM}",
    ]
    first = found.runs[0].changes[0].runs[0].changes[0].runs[0]
    assert first.changes[0].commit_ts == again
    assert first.at_ms is not None and first.process == repo.context.coordination.token
    # At an older timestamp: the two documents that used it then, each by its own run of the batch.
    older = lines(causes(repo, uses, "blue", at=again - 1))
    assert older[:3] == ["put words[blue].uses", " count blue", "  notify words[blue].changed"]
    for row in "bc":
        cell = causes(repo, used_in[row], "blue")
        assert lines(cell)[1:3] == [f" split {row}", f"  put docs[{row}].contents"]
        assert cell.runs[0].batch in (1, 3)


def test_a_write_leads_forward_to_all_that_it_has_caused(ground: Ground) -> None:
    repo = recording(ground)
    write(repo, "a", "red")
    work(repo)
    assert lines(effects(repo, contents, "a")) == [
        "put docs[a].contents",
        " split a",
        "  notify words[red].changed",
        "   count red",
        "    write words[red].uses",
        "     rank red",
        "      write words[red].most",
        "  write docs[a].title",
        "  write words[red].used_in:a",
    ]
    write(repo, "a", "blue")
    assert effects(repo, contents, "a").end == "not answered yet, or not by all observers"


def test_a_change_that_was_dead_lettered_says_for_which_observer(ground: Ground) -> None:
    repo = ground.repo([docs, words])

    @observer(contents, name="look")
    def look(t: Transaction, row: str) -> None:
        raise ValueError(row)

    def ran() -> Change:
        Worker(repo, [split, look], attempts=1).run_until_idle()
        return effects(repo, contents, "a")

    write(repo, "a", "red")
    found = ran()
    assert [run.observer for run in found.runs] == ["split"]
    assert found.end == "dead-lettered for look: 'percola failed' says why"
    retry_failures(repo)
    assert effects(repo, contents, "a").end == "not answered yet, or not by all observers"
    assert ran().end == found.end
    write(repo, "a", "blue")
    assert effects(repo, contents, "a").end == "not answered yet, or not by all observers"


def test_one_run_that_answers_many_changes_names_them_all(ground: Ground) -> None:
    repo = ground.repo([docs, words])
    first = [write(repo, "a", text) for text in ("zero", "one")]
    work(repo)
    [run] = causes(repo, title, "a").runs
    assert [one.commit_ts for one in run.changes] == first[::-1]
    collapsed = [write(repo, "a", text) for text in ("two", "three", "four")]
    work(repo)
    [run] = causes(repo, title, "a").runs
    assert [one.commit_ts for one in run.changes] == collapsed[::-1]
    [run] = causes(repo, title, "a", width=2).runs
    assert (len(run.changes), run.more) == (2, 1)
    assert lines(causes(repo, title, "a", depth=1))[-1] == "   (not followed beyond 1 runs)"


def test_of_very_many_notifications_a_record_has_the_newest(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_records, "_ANSWERED", 2)
    repo = recording(ground)
    for row in "abcd":
        write(repo, row, "blue")
        work(repo, [split])
    sent = [by for row in "abcd" for by, _ in repo.versions(used_in[row], "blue")]
    work(repo, [count])
    [run] = causes(repo, uses, "blue").runs
    assert [(one.op, one.commit_ts) for one in run.changes] == [
        ("notify", sent[-1]),
        ("notify", sent[-2]),
    ]
    assert [lines(one)[1] for one in run.changes] == [" split d", " split c"]


def test_a_run_that_writes_rows_with_very_long_keys_is_recorded_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would fail on a store such as HBase, as its record is longer than a value may be."""
    monkeypatch.setattr(MemoryStore, "limits", Limits(row_bytes=32_000, value_bytes=1 << 23))
    monkeypatch.setattr(recording_switch, "_SETTLED", 0.0)
    repo = percola.open("memory:", [docs, words])
    repo.record_runs()

    @observer(contents)
    def spread(t: Transaction, row: str) -> None:
        for number in range(300):
            t.set(most, f"{number:030000}", row)

    put(repo, contents, "a", "text")
    Worker(repo, [spread], attempts=1, retention=None).run_until_idle()
    assert repo.dead_lettered() == 0
    [run] = effects(repo, contents, "a", width=1000).runs
    assert 30 < len(run.changes) < 300
    assert len(run.changes) + run.more == 300


def test_without_records_the_trail_ends_where_rows_end_and_says_so(ground: Ground) -> None:
    repo = ground.repo([docs, words])
    write(repo, "a", "red")
    work(repo)
    assert lines(causes(repo, used_in["a"], "red")) == [
        "put words[red].used_in:a",
        f" ({UNKNOWN}: {OFF})",
    ]
    assert lines(causes(repo, most, "red")) == [
        "put words[red].most",
        " rank red",
        "  put words[red].uses",
        "   count red",
        "    (it answered a weak notification, whose sender is not recorded)",
    ]
    assert lines(effects(repo, contents, "a")) == [
        "put docs[a].contents",
        " split a",
        "  put docs[a].title",
        f"  (what it wrote in other rows is not known: {OFF})",
    ]
    # From the moment that it is turned on; what was before stays unknown.
    repo = recording(ground)
    assert "runs are recorded since" in causes(repo, used_in["a"], "red").end
    write(repo, "b", "red")
    work(repo)
    assert lines(causes(repo, used_in["b"], "red"))[1] == " split b"
    with pytest.raises(UsageError, match="no value"):
        causes(repo, title, "nobody")


def test_a_run_that_a_rerun_asked_for_is_told_from_one_for_a_weak_notification(
    ground: Ground,
) -> None:
    repo = ground.repo([docs, words])
    write(repo, "a", "red")
    work(repo)
    assert rerun(repo, split).rows == rerun(repo, count).rows == 1
    work(repo)
    assert lines(causes(repo, title, "a")) == [
        "put docs[a].title",
        " split a",
        "  (a rerun had it run again, without a new change)",
    ]
    assert lines(causes(repo, uses, "red"))[-1] == (
        "  (it answered a weak notification, whose sender is not recorded)"
    )
    # Below the safe point a change that was answered may have been removed.
    safe_point = GarbageCollector(repo.context, retention=0).collect().safe_point
    write(repo, "b", "blue")
    work(repo)
    rerun(repo, split)
    work(repo)
    assert causes(repo, title, "b").runs[0].end == (
        f"the change that it answered is older than the safe point {safe_point}, or a rerun had "
        "it run again"
    )


def test_garbage_collection_forgets_records_and_the_trail_says_so(ground: Ground) -> None:
    repo = recording(ground)
    write(repo, "a", "red")
    work(repo)
    write(repo, "b", "red")
    work(repo)
    safe_point = GarbageCollector(repo.context, retention=0).collect().safe_point
    assert not list(walk_kind(ground.store, Kind.WRITE, RUNS.name))
    assert not list(walk_kind(ground.store, Kind.DATA, RUNS.name))
    assert (
        f"records go back to the safe point {safe_point}" in causes(repo, used_in["b"], "red").end
    )
    write(repo, "c", "red")
    work(repo)
    assert lines(causes(repo, most, "red"))[-3:] == [
        "     split c",
        "      put docs[c].contents",
        f"       {PROGRAM}",
    ]


def test_recording_is_turned_off_and_on_in_running_workers_and_no_answer_is_wrong(
    ground: Ground,
) -> None:
    clock = HastyClock()
    worker = ground.repo([docs, words], clock=clock)  # It was opened before anything is recorded.
    operator = ground.repo([docs, words], clock=clock)
    write(operator, "a", "red")
    work(worker)
    assert operator.record_runs(False) == (False, None, None)
    since = operator.record_runs().since
    assert operator.record_runs().since == since is not None
    write(operator, "b", "red")
    work(worker)
    assert lines(causes(operator, used_in["b"], "red"))[1] == " split b"
    operator.run(lambda t: t.set(used_in["z"], "red", "z"))
    assert lines(causes(operator, used_in["z"], "red"))[1] == f" {PROGRAM}"

    turned_off = operator.record_runs(False)
    assert turned_off.since == since and turned_off.until is not None
    clock.sleep(1)
    recorded = len(list(walk_kind(ground.store, Kind.WRITE, RUNS.name)))
    write(operator, "c", "red")
    operator.run(lambda t: t.set(used_in["y"], "red", "y"))
    work(worker)
    assert len(list(walk_kind(ground.store, Kind.WRITE, RUNS.name))) == recorded
    was = f"runs were recorded since {since}, until {turned_off.until}"
    for row in "cy":
        assert lines(causes(operator, used_in[row], "red"))[1] == f" ({UNKNOWN}: {was})"
    # What was certain before, and what was recorded, stays so.
    assert lines(causes(operator, used_in["b"], "red"))[1] == " split b"
    assert lines(causes(operator, used_in["z"], "red"))[1] == f" {PROGRAM}"


def test_a_run_during_which_recording_is_turned_on_is_not_taken_for_a_program(
    ground: Ground,
) -> None:
    repo = ground.repo([docs, words], clock=HastyClock())

    @observer(contents, name="split")
    def interrupted(t: Transaction, row: str) -> None:
        repo.record_runs()
        split.function(t, row)

    write(repo, "a", "red")
    work(repo, [interrupted])
    assert f"{UNKNOWN}: runs are recorded since" in causes(repo, used_in["a"], "red").end
    work(repo, [count])
    [sent] = causes(repo, uses, "red").runs[0].changes
    assert "or by an observer's run that began before" in sent.end
    write(repo, "b", "red")
    work(repo, [interrupted])
    assert lines(causes(repo, used_in["b"], "red"))[1] == " split b"


def test_a_run_whose_commit_was_completed_by_another_client_is_recorded(ground: Ground) -> None:
    """The record is part of the transaction: it is there if, and only if, the run committed."""
    repo = recording(ground, one_step=False)
    write(repo, "a", "red")
    work(repo)
    commit_ts = causes(repo, used_in["a"], "red").commit_ts
    record = find_record(ground.store, commit_ts)
    assert record is not None and record == find_record(ground.store, commit_ts, record.start_ts)
    assert record.runs[0].row == b"a" and not record.unlisted


def test_a_conflicting_run_leaves_no_record(ground: Ground) -> None:
    repo = recording(ground)
    write(repo, "a", "red")
    entered: list[Any] = []

    @observer(contents, name="split")
    def interrupted(t: Transaction, row: str) -> None:
        t.set(title, row, "x")
        if not entered:
            entered.append(row)
            repo.run(lambda other: other.set(title, row, "y"))

    Worker(repo, [interrupted], threads=1).run_until_idle()
    assert entered and repo.snapshot().get(title, "a") == "x"
    assert len(list(walk_kind(ground.store, Kind.WRITE, RUNS.name))) == 1

"""§2.4: what caused a cell, and what it has caused, is found exactly, or said to be unknown."""

from __future__ import annotations

from typing import Any

import pytest
from stores import Ground, ground

from percola import Repository, Table, Transaction, UsageError, Worker, observer
from percola.catalog import RUN, RUNS
from percola.cells import Kind
from percola.gc.collector import GarbageCollector
from percola.observers.causes import Change, causes, effects
from percola.observers.run_records import find_record
from percola.store.walks import walk_kind

__all__ = ["ground"]

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


ALL = [split, count, rank]


def work(repo: Repository) -> None:
    Worker(repo, ALL, threads=1, attempts=1).run_until_idle()


def write(repo: Repository, row: str, text: str) -> int:
    with repo.transaction() as t:
        t.set(contents, row, text)
    assert t.commit_ts is not None
    return t.commit_ts


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
OFF = "runs are not recorded (percola init --record-runs)"


def test_a_value_leads_back_over_rows_and_weak_notifications_to_the_program(ground: Ground) -> None:
    repo = ground.repo([docs, words, RUNS])
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
    repo = ground.repo([docs, words, RUNS])
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


def test_without_records_the_trail_ends_where_rows_end_and_says_so(ground: Ground) -> None:
    repo = ground.repo([docs, words])
    write(repo, "a", "red")
    work(repo)
    unknown = "by a program, a loader or a job, or an observer's run for another row"
    assert lines(causes(repo, used_in["a"], "red")) == [
        "put words[red].used_in:a",
        f" ({unknown}: {OFF})",
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
    # From the moment that the table is there; what was before stays unknown.
    repo = ground.repo([RUNS])
    assert "runs are recorded since" in causes(repo, used_in["a"], "red").end
    write(repo, "b", "red")
    work(repo)
    assert lines(causes(repo, used_in["b"], "red"))[1] == " split b"
    with pytest.raises(UsageError, match="no value"):
        causes(repo, title, "nobody")


def test_garbage_collection_forgets_records_and_the_trail_says_so(ground: Ground) -> None:
    repo = ground.repo([docs, words, RUNS])
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


def test_a_run_whose_commit_was_completed_by_another_client_is_recorded(ground: Ground) -> None:
    """The record is part of the transaction: it is there if, and only if, the run committed."""
    repo = ground.repo([docs, words, RUNS], one_step=False)
    write(repo, "a", "red")
    work(repo)
    commit_ts = causes(repo, used_in["a"], "red").commit_ts
    record = find_record(ground.store, commit_ts)
    assert record is not None and record == find_record(ground.store, commit_ts, record.start_ts)
    assert record.runs[0].row == b"a" and not record.unlisted


def test_a_conflicting_run_leaves_no_record(ground: Ground) -> None:
    repo = ground.repo([docs, words, RUNS])
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
    assert RUN.address in repo.context.columns

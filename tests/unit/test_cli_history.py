"""`history`: every version of a cell, as figure 4 shows them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from commands import bal, bank, call, contents, folder, is_error, put, repo, run, title
from stores import Crashed, CrashingStore

import percola
from percola import Codec, Repository, Table, Transaction, Worker, observer
from percola.cells import Cell, Kind
from percola.store.base import OneStepStore
from percola.transactions.lock_resolver import Fate

__all__ = ["folder", "repo"]


def transfer_until(repo: Repository, mutations: int) -> None:
    """Move 7 from Bob to Joe in two phases, and stop for good after so many row mutations."""
    context = repo.context
    assert isinstance(context.store, OneStepStore)
    store = CrashingStore(context.store, mutations + 1)
    stopping = Repository(
        repo.address, store, context.oracle, context.coordination, [bank], one_step=False
    )
    transfer = stopping.transaction()
    transfer.set(bal, "Bob", 3)
    transfer.set(bal, "Joe", 9)
    store.armed = True
    with contextlib.suppress(Crashed):
        transfer.commit()


def history_lines(folder: Path, row: str) -> list[str]:
    """What `history ROW bal` prints below its headings."""
    lines = call("--repo", folder, "history", row, "bal").out.splitlines()
    return [" ".join(line.split()) for line in lines[3:]]


@pytest.mark.parametrize("two_phase", [False, True])
def test_history_shows_versions_as_figure_4_does(repo: Repository, two_phase: bool) -> None:
    first = put(repo, bal, "Bob", 10, two_phase=two_phase)
    second = put(repo, bal, "Bob", 3, two_phase=two_phase)
    answer = run("--repo", repo.address, "history", "Bob", "bal")
    versions = run("--repo", repo.address, "history", "Bob", "bal", "--json").json["versions"]
    writes = {one["ts"]: one["write"] for one in versions if one["write"]}
    data = {one["ts"]: one["data"] for one in versions if one["data"] is not None}
    assert {ts: data[write["start_ts"]] for ts, write in writes.items()} == {first: 10, second: 3}
    if two_phase:
        assert all(write["start_ts"] == ts - 2 for ts, write in writes.items())
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[0] == ["bank['Bob'].bal"]
    assert lines[1] == ["timestamp", "data", "lock", "write"]
    expected = []
    for ts in sorted({*writes, *data}, reverse=True):
        value = [str(data[ts])] if ts in data else []
        write = ["data", "@", str(writes[ts]["start_ts"])] if ts in writes else []
        expected.append([f"{ts}:", *value, *write])
    assert lines[3:] == expected


def test_history_shows_figure_4s_transfer_at_each_of_its_five_states(tmp_path: Path) -> None:
    """7 go from Bob to Joe, and the transaction stops after each of its row mutations."""
    states = []
    for mutations in range(5):
        folder = tmp_path / str(mutations)
        with percola.open(folder, schema=[bank], durability="relaxed") as repo:
            with repo.transaction(two_phase=True) as t:
                t.set(bal, "Bob", 10)
                t.set(bal, "Joe", 2)
            transfer_until(repo, mutations)
            states.append(tuple(history_lines(folder, row) for row in ("Bob", "Joe")))
    old_bob, old_joe = ["3: data @ 1", "1: 10"], ["3: data @ 1", "1: 2"]
    bob_locked, joe_locked = ["5: 3 I am primary"], ["5: 9 primary @ Bob.bal"]
    written = "7: data @ 5"
    assert states == [
        (old_bob, old_joe),
        (bob_locked + old_bob, old_joe),
        (bob_locked + old_bob, joe_locked + old_joe),
        ([written, "5: 3", *old_bob], joe_locked + old_joe),
        ([written, "5: 3", *old_bob], [written, "5: 9", *old_joe]),
    ]


def test_history_names_deletes_locks_and_rollbacks(repo: Repository) -> None:
    put(repo, title, "a", "T", two_phase=True)
    with repo.transaction(two_phase=True) as t:
        t.delete(title, "a")
        t.get_for_update(title, "b")
    start_ts = t.start_ts
    context = repo.context
    dead = Cell("docs", b"b", b"title")
    rolled_back = repo.transaction(two_phase=True).start_ts
    assert context.resolver.fate(dead, rolled_back, force=True) == Fate(None)
    where = ("--repo", repo.address)
    assert f"delete @ {start_ts}" in call(*where, "history", "a", "docs.title").out
    out = call(*where, "history", "b", "docs.title").out
    assert f"lock only @ {start_ts}" in out and "rolled back" in out
    versions = call(*where, "history", "b", "docs.title", "--json").json["versions"]
    assert [one["write"]["op"] for one in versions] == ["rollback", "lock"]
    assert len(context.store.entries(dead, Kind.WRITE, 0, 2**63 - 1)) == 2


def test_history_cuts_long_values_to_the_width_but_not_in_json(repo: Repository) -> None:
    put(repo, contents, "https://example.org/" + "x" * 100, b"<html>" * 1000)
    where = ("--repo", repo.address, "history", "https://example.org/" + "x" * 100, "contents")
    lines = run(*where).out.splitlines()
    assert max(map(len, lines[1:])) <= 80 and "(6,000 bytes)" in run(*where).out
    assert run(*where, "--json").json["versions"][-1]["data"] == "<html>" * 1000
    narrow = run(*where, COLUMNS="40").out.splitlines()
    assert max(map(len, narrow[1:])) <= 40
    # A narrower terminal wraps these lines itself: rich would leave columns out, or everything.
    for columns in ("0", "20"):
        assert run(*where, COLUMNS=columns).out.splitlines() == narrow


def test_history_limits_itself_and_says_when_there_is_nothing(repo: Repository) -> None:
    for value in range(5):
        put(repo, bal, "Bob", value, two_phase=True)
    where = ("--repo", repo.address, "history")
    assert len(call(*where, "Bob", "bal", "--limit", 3, "--json").json["versions"]) == 3
    assert "3 timestamps; --limit 0 shows all" in call(*where, "Bob", "bal", "--limit", 3).out
    assert "has no versions" in call(*where, "Joe", "bal").out
    assert call(*where, "Joe", "bal", "--json").json["versions"] == []
    assert is_error(call(*where, "Joe", "nonsense"), "nonsense")
    assert is_error(call(*where, "x" * 1000, "bal"), "1000 bytes")


def test_history_shows_people_the_newest_hundred_lines_and_programs_all(repo: Repository) -> None:
    """A table of 200,000 versions took a minute and a half, and 700 MB, before its first line."""
    for value in range(60):
        put(repo, bal, "Bob", value, two_phase=True)
    where = ("--repo", repo.address, "history", "Bob", "bal")
    lines = call(*where).out.splitlines()
    assert lines[-1] == "The newest 100 timestamps; --limit 0 shows all."
    assert len(lines) == 3 + 100 + 1 and lines[4].split()[1] == "59"
    every = call(*where, "--limit", 0).out.splitlines()
    assert every[:103] == lines[:103] and len(every) == 3 + 120
    assert len(call(*where, "--json").json["versions"]) == 120
    assert call(*where, "--limit", 10**30).out.splitlines() == every


def test_history_shows_bytes_that_are_not_of_the_columns_type(folder: Path) -> None:
    odd = Table("odd")
    upper: Codec[str] = Codec("upper", lambda s: s.upper().encode(), bytes.decode)
    column = odd.column("name", upper)
    with percola.open(folder, schema=[odd]) as repo:
        put(repo, column, "a", "bob")
    assert call("--repo", folder, "get", "a", "name").out == "BOB"
    assert "BOB" in call("--repo", folder, "history", "a", "name").out


def test_history_and_why_say_that_a_logged_time_is_a_bound(folder: Path, repo: Repository) -> None:
    first = put(repo, bal, "Bob", 1)
    repo.collect_garbage()
    second = put(repo, bal, "Bob", 2)
    lines = {one.partition(":")[0]: one for one in history_lines(folder, "Bob")}
    day = r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    # The log has a time after the first commit, and none after the second.
    assert re.search(f"≤{day}$", lines[str(first)]) and re.search(f">{day}$", lines[str(second)])
    for ts, sign in ((first, "≤"), (second, ">")):
        shown = run("--repo", folder, "why", "Bob", "bal", "--at", ts).out.splitlines()
        assert re.fullmatch(rf"bank\['Bob'\].bal  written at {ts} \({sign}{day}\)", shown[0])


def test_why_leads_from_a_cell_to_the_write_that_caused_it(folder: Path) -> None:
    @observer(contents)
    def head(t: Transaction, row: str) -> None:
        t.set(title, row, (t.get(contents, row) or b"").decode())

    told = call("--repo", folder, "observers", "record").out
    assert told == "Runs are not recorded.\n"
    told = call("--repo", folder, "observers", "record", "on").out
    assert told.startswith("Runs are recorded: all that have begun since ")
    with percola.open(folder) as repo:
        put(repo, contents, "a", b"xyz")
        Worker(repo, [head], threads=1).run_until_idle()
    shown = run("--repo", folder, "why", "a", "docs.title").out.splitlines()
    assert shown[0].startswith("docs['a'].title  written at ")
    assert shown[1].startswith("└── by head  for docs['a'], saw ")
    assert shown[2].startswith("    └── docs['a'].contents  written at ")
    assert shown[3] == "        └── not written by an observer: by a program, a loader or a job"
    answer = call("--repo", folder, "why", "a", "contents", "--effects", "--json").json
    [caused] = answer["runs"]
    assert caused["observer"] == "head" and caused["batch"] == 1 and caused["process"]
    assert [one["column"] for one in caused["changes"]] == ["title"]
    assert "were." in call("--repo", folder, "observers", "record", "off").out
    off = call("--repo", folder, "observers", "record", "--json").json["recording"]
    assert off["on"] is False and off["since"] <= off["until"]
    missing = call("--repo", folder, "why", "nobody", "docs.title")
    assert is_error(missing, "docs['nobody'].title has no value")


def test_why_follows_a_hundred_runs_in_a_row_and_is_asked_for_no_more(tmp_path: Path) -> None:
    """JSON is nested by each: what is a thousand levels deep cannot be written, nor read."""
    steps = Table("steps")
    done = steps.column("done", int, observed=True)

    @observer(done)
    def follow(t: Transaction, row: str) -> None:
        if int(row) < 120:
            t.set(done, f"{int(row) + 1:03}", 1)

    words = ("--repo", tmp_path / "steps", "why", "120", "done")
    with percola.open(tmp_path / "steps", [steps], durability="relaxed") as repo:
        repo.record_runs()
        put(repo, done, "000", 1)
        Worker(repo, [follow]).run_until_idle()
    change, runs = call(*words, "--depth", 100, "--json").json, 0
    while change["runs"]:
        [one] = change["runs"]
        [change] = one["changes"]
        runs += 1
    assert (runs, change["row"]) == (100, "020")
    assert change["end"] == "not followed beyond 100 runs"
    assert call(*words, "--depth", 1000, "--json").code == 2

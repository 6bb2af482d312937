"""§2.4: `rerun` runs an observer, new or changed, over rows that are there."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from stores import Ground, ScriptedClock

import percola
from percola import (
    ConflictingOptionsError,
    Repository,
    Rerun,
    SchemaMismatchError,
    Table,
    Transaction,
    UsageError,
    Worker,
    observer,
    rerun,
)
from percola.cells import Kind
from percola.maintenance.check import Severity, check
from percola.store.base import SYSTEM_TABLE
from percola.store.walks import walk_kind

docs = Table("docs")
text = docs.column("text", str, observed=True)
lang = docs.column("lang", str, observed=True)
size = docs.column("size", int)
again = docs.weak_column("again")
TABLES = [docs]
ran: Counter[tuple[str, str]] = Counter()


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@observer(text)
def measure(t: Transaction, row: str) -> None:
    ran["measure", row] += 1
    t.set(size, row, len(t.get(text, row) or ""))


@observer(text, name="measure")
def measure_twice(t: Transaction, row: str) -> None:
    ran["measure_twice", row] += 1
    t.set(size, row, 2 * len(t.get(text, row) or ""))


@observer(text)
def other(t: Transaction, row: str) -> None:
    ran["other", row] += 1


@observer(text, lang)
def both(t: Transaction, row: str) -> None:
    ran["both", row] += 1


@observer(again)
def weak(t: Transaction, row: str) -> None:
    ran["weak", row] += 1


def fill(repo: Repository, rows: int, *, notify: bool = True) -> None:
    with repo.transaction(notify=notify) as t:
        for number in range(rows):
            t.set(text, f"{'ab'[number % 2]}/{number:04}", "x")


def drain(repo: Repository, *observers: percola.Observer[str]) -> None:
    Worker(repo, observers, threads=2).run_until_idle()


def sizes(repo: Repository) -> dict[str, int]:
    with repo.snapshot() as s:
        return {row.key: row[size] for row in s.scan(docs, columns=[size])}


def errors(repo: Repository) -> list[str]:
    return [str(one) for one in check(repo) if one.severity is not Severity.NOTE]


# --- Which observers run where ----------------------------------------------------------


def test_a_new_observer_runs_once_on_every_row_and_the_others_do_not(repo: Repository) -> None:
    fill(repo, 700)
    drain(repo, other)
    ran.clear()
    done = rerun(repo, measure)
    assert (done.rows, done.resumed) == (700, 0)
    drain(repo, other, measure)
    assert len(sizes(repo)) == 700
    assert ran.total() == 700, "nor does the other one run again"
    assert errors(repo) == []


def test_another_observer_that_has_not_handled_a_row_runs_there_as_well(repo: Repository) -> None:
    """The guide says so: a notification is for all observers of its column."""
    fill(repo, 3)
    drain(repo, measure)
    ran.clear()
    rerun(repo, measure)
    drain(repo, other, measure)
    assert ran.total() == 6
    rerun(repo, measure)
    drain(repo, other, measure)
    assert ran.total() == 9, "it has handled them"


def test_a_changed_observer_runs_again_on_the_rows_of_a_prefix(repo: Repository) -> None:
    fill(repo, 20)
    drain(repo, measure, other)
    ran.clear()
    assert rerun(repo, measure_twice, prefixes=["a/"]).rows == 10
    drain(repo, measure_twice, other)
    assert sizes(repo) == {f"{'ab'[n % 2]}/{n:04}": 2 - n % 2 for n in range(20)}
    assert ran == {("measure_twice", f"a/{n:04}"): 1 for n in range(0, 20, 2)}
    assert errors(repo) == []


def test_prefixes_that_overlap_mark_a_row_once(repo: Repository) -> None:
    fill(repo, 20)
    assert rerun(repo, measure, prefixes=["b/", "a/0", "a/", "a/00"]).rows == 20
    assert rerun(repo, measure, prefixes=["c", "a/0002"]).rows == 1


def test_a_function_in_place_of_an_observer_is_refused(repo: Repository) -> None:
    with pytest.raises(percola.ObserverError, match=r"is not an observer: decorate the function"):
        rerun(repo, lambda t, row: None)  # type: ignore[arg-type]


def test_a_text_in_place_of_prefixes_is_refused(repo: Repository) -> None:
    """Its characters would be prefixes, each of them."""
    fill(repo, 4)
    with pytest.raises(percola.UsageError, match="a list of rows' beginnings, but this is 'a/'"):
        rerun(repo, measure, prefixes="a/")


def test_writes_that_notified_nobody_are_seen_after_a_rerun(repo: Repository) -> None:
    fill(repo, 5, notify=False)
    drain(repo, measure)
    assert sizes(repo) == {}
    rerun(repo, measure)
    drain(repo, measure)
    assert len(sizes(repo)) == 5
    assert errors(repo) == []


def test_an_observer_of_several_columns_runs_once_for_a_row(repo: Repository) -> None:
    with repo.transaction() as t:
        for row in ("1", "2"):
            t.set(text, row, "x")
        for row in ("2", "3"):
            t.set(lang, row, "en")
        t.set(size, "4", 1)
    drain(repo, both)
    ran.clear()
    assert rerun(repo, both).rows == 3
    drain(repo, both)
    assert ran == {("both", "1"): 1, ("both", "2"): 1, ("both", "3"): 1}
    assert errors(repo) == []


def test_a_weak_column_is_notified_in_every_row_of_the_table(repo: Repository) -> None:
    with repo.transaction() as t:
        t.set(size, "1", 1)
        t.set(lang, "2", "en")
    assert rerun(repo, weak).rows == 2
    drain(repo, weak, both)
    assert (ran["weak", "1"], ran["weak", "2"]) == (1, 1)


def test_a_row_that_was_only_ever_notified_is_no_row_of_the_table(repo: Repository) -> None:
    with repo.transaction() as t:
        t.notify(again, "1")
        t.set(size, "2", 1)
    drain(repo, weak)
    assert rerun(repo, weak).rows == 1
    drain(repo, weak)
    assert (ran["weak", "1"], ran["weak", "2"]) == (1, 1)


def test_rows_whose_observed_cells_were_deleted_are_left_alone(repo: Repository) -> None:
    fill(repo, 2)
    drain(repo, measure)
    repo.run(lambda t: t.delete(text, "a/0000"))
    drain(repo, measure)
    ran.clear()
    assert rerun(repo, measure).rows == 1
    drain(repo, measure)
    assert ran == {("measure", "b/0001"): 1}


def test_a_run_that_began_before_its_row_was_marked_does_not_count(ground: Ground) -> None:
    """N3: the run and the mark write the same acknowledgment, so the run is repeated."""
    repo, marker = ground.repo(TABLES), ground.repo(TABLES)
    fill(repo, 1)
    drain(repo, measure)
    attempts: list[int] = []

    @observer(text, name="measure")
    def changed(t: Transaction, row: str) -> None:
        attempts.append(t.start_ts)
        t.set(size, row, 1000 + len(attempts))
        if len(attempts) == 1:
            rerun(marker, measure)

    repo.run(lambda t: t.set(text, "a/0000", "y"))
    drain(repo, changed)
    assert len(attempts) == 2
    assert sizes(repo) == {"a/0000": 1002}
    assert errors(repo) == []


def test_a_mark_that_meets_a_run_is_repeated_and_the_row_runs_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, marker = ground.repo(TABLES), ground.repo(TABLES)
    fill(repo, 3)
    drain(repo, measure)
    with repo.transaction() as t:
        t.set(text, "a/0002", "yyy")
    commit, conflicts = Transaction.commit, 0

    def run_before(t: Transaction) -> int:
        nonlocal conflicts
        if t._context is marker.context and not conflicts:
            conflicts += 1
            drain(repo, measure)  # It acknowledges a row whose acknowledgment is being deleted.
        return commit(t)

    monkeypatch.setattr(Transaction, "commit", run_before)
    assert rerun(marker, measure_twice).rows == 3
    assert conflicts == 1
    drain(repo, measure_twice)
    assert sizes(repo) == {"a/0000": 2, "b/0001": 2, "a/0002": 6}


# --- Interrupted, refused, slowed down ----------------------------------------------------


class InterruptedHereError(Exception):
    pass


def interrupt(repo: Repository, after: int, **options: object) -> None:
    count = itertools.count(1)

    def stop(so_far: Rerun) -> None:
        if next(count) == after:
            raise InterruptedHereError

    with pytest.raises(InterruptedHereError):
        rerun(repo, measure, progress=stop, **options)  # type: ignore[arg-type]


def test_an_interrupted_rerun_goes_on_where_it_was(repo: Repository) -> None:
    fill(repo, 1000)
    drain(repo, measure)
    interrupt(repo, 2)
    marked = repo.pending()["docs.text"]
    assert 0 < marked < 1000
    drain(repo, measure_twice)
    done = rerun(repo, measure_twice)
    assert (done.rows, done.resumed) == (1000, marked)
    assert repo.pending()["docs.text"] == 1000 - marked
    drain(repo, measure_twice)
    assert set(sizes(repo).values()) == {2}
    assert not list(walk_kind(repo.context.store, Kind.DATA, SYSTEM_TABLE, b"rerun/", b"rerun0"))


def test_an_interrupted_rerun_of_many_prefixes_goes_on_where_it_was(repo: Repository) -> None:
    fill(repo, 600)
    drain(repo, measure)
    interrupt(repo, 2, prefixes=["b/", "a/"])
    marked = repo.pending()["docs.text"]
    assert rerun(repo, measure, prefixes=["a/", "b/"]).resumed == marked
    assert repo.pending()["docs.text"] == 600


def test_another_rerun_than_the_interrupted_one_has_to_be_said(repo: Repository) -> None:
    fill(repo, 600)
    interrupt(repo, 1)
    with pytest.raises(UsageError, match=r"'measure' was interrupted after 256 rows.*--restart"):
        rerun(repo, measure, prefixes=["a/"])
    assert rerun(repo, measure, prefixes=["a/"], restart=True).rows == 300


def test_two_processes_do_not_run_the_same_rerun(ground: Ground) -> None:
    repo, second = ground.repo(TABLES), ground.repo(TABLES)
    fill(repo, 600)

    def beside(so_far: Rerun) -> None:
        if so_far.rows == 256:
            rerun(second, measure)

    with pytest.raises(UsageError, match="Another process runs a rerun of 'measure'"):
        rerun(repo, measure, progress=beside)


def test_a_rate_bounds_the_rows_of_a_second(ground: Ground) -> None:
    clock = ScriptedClock()
    repo = ground.repo(TABLES, clock=clock)
    fill(repo, 100)
    began = clock.monotonic()
    seen: list[tuple[int, float]] = []
    rerun(repo, measure, rate=10, progress=lambda s: seen.append((s.rows, clock.monotonic())))
    assert clock.monotonic() - began >= 100 / 10
    assert all(rows <= 10 + 10 * (at - began) for rows, at in seen)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_no_number_of_rows_is_refused(repo: Repository, rate: float) -> None:
    with pytest.raises(ConflictingOptionsError, match="is not a number of rows above 0"):
        rerun(repo, measure, rate=rate)


def test_a_column_that_has_data_can_be_observed_from_now_on(tmp_path: Path) -> None:
    before = Table("docs")
    plain = before.column("text", str)
    with percola.open(tmp_path / "repo", schema=[before]) as repo, repo.transaction() as t:
        t.set(plain, "old", "x")
    with percola.open(tmp_path / "repo", schema=TABLES) as repo:
        repo.run(lambda t: t.set(text, "new", "x"))
        drain(repo, measure)
        assert ran == {("measure", "new"): 1}
        assert any("lost-notification" in one for one in errors(repo)), "the rerun is missing"
        assert rerun(repo, measure).rows == 2
        drain(repo, measure)
        assert ran["measure", "old"] == 1
        assert errors(repo) == []
    with pytest.raises(SchemaMismatchError, match="observed"):
        percola.open(tmp_path / "repo", schema=[before])

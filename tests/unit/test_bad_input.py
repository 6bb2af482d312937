"""What a user can do wrong gets one clear error of its own class, and changes nothing."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import percola
from percola import (
    DamagedRecordError,
    PercolaError,
    Repository,
    RepositoryClosedError,
    RowTooLongError,
    SchemaError,
    Table,
    Transaction,
    TransactionUsedUpError,
    UnknownColumnError,
    UnknownTableError,
    UsageError,
    ValueTooLargeError,
    Worker,
    WrongTypeError,
    observer,
)
from percola.cells import Cell, Kind
from percola.recipes import Sums
from percola.store.base import Delete, RowMutation
from percola.store.walks import state_beneath
from tests.unit.wrong_calls import (
    TABLES,
    any_,
    blob,
    check_message,
    docs,
    elsewhere,
    everything,
    extra,
    flag,
    keyed,
    missing,
    missing_family,
    missing_weak,
    other_weak,
    poke,
    score,
    seen,
    size,
    strange,
    tags,
    title,
    value,
)
from tests.unit.wrong_calls import repo as repo

Act = Callable[[Transaction], object]


CASES: dict[type[PercolaError], dict[str, tuple[str, Act]]] = {
    UnknownTableError: {
        "get from an unknown table": ("strange", lambda t: t.get(elsewhere, "a")),
        "set in an unknown table": ("strange", lambda t: t.set(elsewhere, "a", 1)),
        "scan of an unknown table": ("strange", lambda t: list(t.scan(strange))),
        "row of an unknown table": ("strange", lambda t: t.get_row(strange, "a")),
        "notify an unknown table": ("strange", lambda t: t.notify(other_weak, "a")),
    },
    UnknownColumnError: {
        "get of an unknown column": ("missing", lambda t: t.get(missing, "a")),
        "set of an unknown column": ("missing", lambda t: t.set(missing, "a", 1)),
        "delete of an unknown column": ("missing", lambda t: t.delete(missing, "a")),
        "lock of an unknown column": ("missing", lambda t: t.get_for_update(missing, "a")),
        "many of an unknown column": ("missing", lambda t: t.get_many([(missing, "a")])),
        "scan for an unknown column": ("missing", lambda t: list(t.scan(docs, columns=[missing]))),
        "scan for an unknown family": (
            "missing-family",
            lambda t: list(t.scan(docs, columns=[missing_family])),
        ),
        "a column of an unknown family": (
            "missing-family",
            lambda t: t.set(missing_family["x"], "a", b""),
        ),
        "notify an unknown weak column": ("missing-weak", lambda t: t.notify(missing_weak, "a")),
    },
    UsageError: {
        "a name instead of a column": ("'title'", lambda t: t.get(any_("title"), "a")),
        "a name to write": ("'title'", lambda t: t.set(any_("title"), "a", "x")),
        "a name to scan for": ("'title'", lambda t: list(t.scan(docs, columns=any_(["title"])))),
        "a column of another table to scan for": (
            "keyed.value is of another table than 'docs'",
            lambda t: list(t.scan(docs, columns=any_([value]))),
        ),
        "a family of another table in a row": (
            "is of another table than 'keyed'",
            lambda t: t.get_row(keyed, b"a", any_([tags])),
        ),
        "a name instead of a table": ("'docs'", lambda t: list(t.scan(any_("docs")))),
        "a family to read": ("a family", lambda t: t.get(any_(tags), "a")),
        "a family to write": ("a family", lambda t: t.set(any_(tags), "a", 1)),
        "a weak column to read": ("weak", lambda t: t.get(any_(poke), "a")),
        "a weak column to scan for": ("weak", lambda t: list(t.scan(docs, columns=any_([poke])))),
        "a weak column of a row": ("weak", lambda t: t.get_row(docs, "a", any_([poke]))),
        "a weak column to write": ("weak", lambda t: t.set(any_(poke), "a", b"")),
        "a weak column to delete": ("weak", lambda t: t.delete(any_(poke), "a")),
        "a strong column to notify": ("not a weak", lambda t: t.notify(any_(seen), "a")),
        "a prefix and a range": ("not both", lambda t: t.scan(docs, prefix="a", end="b")),
    },
    WrongTypeError: {
        "a row of bytes for one of text": ("bytes", lambda t: t.get(title, any_(b"a"))),
        "a row of text for one of bytes": ("str", lambda t: t.set(value, any_("a"), b"")),
        "a number for a row": ("int", lambda t: t.set(title, any_(7), "x")),
        "nothing for a row": ("NoneType", lambda t: t.delete(title, any_(None))),
        "an empty row": ("not empty", lambda t: t.set(title, "", "x")),
        "an empty row to notify": ("not empty", lambda t: t.notify(poke, "")),
        "an empty row to read": ("not empty", lambda t: t.get_row(docs, "")),
        "half a character": ("Unicode", lambda t: t.set(title, "\ud800", "x")),
        "a number as text": ("int 5", lambda t: t.set(title, "a", any_(5))),
        "text as a number": ("str '5'", lambda t: t.set(size, "a", any_("5"))),
        "truth as a number": ("bool True", lambda t: t.set(size, "a", True)),
        "text as a float": ("str", lambda t: t.set(score, "a", any_("1.5"))),
        "a number as truth": ("int 1", lambda t: t.set(flag, "a", any_(1))),
        "text as bytes": ("str", lambda t: t.set(blob, "a", any_("x"))),
        "None as a value": ("NoneType", lambda t: t.set(title, "a", any_(None))),
        "half a character as text": ("title", lambda t: t.set(title, "a", "\ud800")),
        "a set as JSON": ("json", lambda t: t.set(extra, "a", {1, 2})),
        "not-a-number as JSON": ("json", lambda t: t.set(extra, "a", float("nan"))),
        "a column of a family with a wrong value": (
            "tag:x",
            lambda t: t.set(tags["x"], "a", any_("1")),
        ),
        "a number beyond floats": ("float", lambda t: t.set(score, "a", 10**400)),
        "a number of too many digits": ("too large", lambda t: t.set(size, "a", 10**5000)),
        "JSON that is too deep": (
            "too large",
            lambda t: t.set(extra, "a", functools.reduce(lambda x, _: [x], range(100_000), [])),
        ),
    },
    RowTooLongError: {
        "an over-long row": ("70000", lambda t: t.set(title, "x" * 70_000, "x")),
        "an over-long row to read": ("70000", lambda t: t.get(title, "x" * 70_000)),
        "an over-long row to look at": ("70000", lambda t: t.get_row(docs, "x" * 70_000)),
        "an over-long row to notify": ("70000", lambda t: t.notify(poke, "x" * 70_000)),
    },
    ValueTooLargeError: {
        "too large a value": ("268435457", lambda t: t.set(blob, "a", bytes(2**28 + 1))),
    },
    SchemaError: {
        "an empty qualifier": ("''", lambda t: t.set(tags[""], "a", 1)),
        "a qualifier with NUL": ("NUL", lambda t: t.set(tags["a\0b"], "a", 1)),
        "an over-long qualifier": ("hash", lambda t: t.set(tags["x" * 200], "a", 1)),
    },
}


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind in CASES for case in CASES[kind]])
def test_a_wrong_call_raises_its_own_error_and_nothing_of_its_transaction_is_written(
    repo: Repository, kind: type[PercolaError], case: str
) -> None:
    words, act = CASES[kind][case]
    before = everything(repo)

    def attempt(t: Transaction) -> None:
        t.set(title, "a", "written before the error")
        t.notify(poke, "a")
        act(t)

    with pytest.raises(kind) as caught:
        repo.run(attempt)
    assert type(caught.value) is kind
    check_message(caught.value, words)
    assert everything(repo) == before


def test_lmdbs_row_limit_is_told_with_what_to_do(tmp_path: Path) -> None:
    with percola.open(tmp_path / "repo", schema=TABLES) as repo, repo.transaction() as t:
        t.set(title, "x" * 384, "fits")
        for row in ("x" * 385, "\0" * 193):
            with pytest.raises(RowTooLongError, match=r"up to 384 bytes.*Use a hash"):
                t.set(title, row, "x")


def test_a_wrong_call_leaves_the_transaction_usable(repo: Repository) -> None:
    with repo.transaction() as t:
        with pytest.raises(WrongTypeError):
            t.set(size, "a", any_("5"))
        t.set(size, "a", 5)
    assert repo.snapshot().get(size, "a") == 5


@pytest.mark.parametrize("end", ["committed", "rolled back", "left by an error"])
def test_a_used_up_transaction_cannot_write_outside_its_block(repo: Repository, end: str) -> None:
    try:
        with repo.transaction() as t:
            t.set(size, "a", 1)
            if end == "rolled back":
                t.rollback()
            elif end == "left by an error":
                raise KeyError(end)
    except KeyError:
        pass
    before = everything(repo)
    for act in (
        lambda: t.set(size, "a", 2),
        lambda: t.delete(size, "a"),
        lambda: t.notify(poke, "a"),
        lambda: t.get(size, "a"),
        lambda: t.scan(docs),
        lambda: t.commit(),
    ):
        with pytest.raises(TransactionUsedUpError, match="Begin another one") as caught:
            act()
        check_message(caught.value, str(t.start_ts))
    assert everything(repo) == before


@pytest.mark.parametrize("at", [10**9, -1, 2**70])
def test_a_snapshot_of_no_past_moment_is_refused(repo: Repository, at: int) -> None:
    with pytest.raises(UsageError, match="There is no snapshot at") as caught:
        repo.snapshot(at)
    check_message(caught.value, repr(at))


@pytest.mark.parametrize("at", [1.5, "2026-11-23T10:00", datetime.date(2026, 11, 23)])
def test_a_snapshot_at_what_is_no_time_says_what_it_takes(repo: Repository, at: object) -> None:
    with pytest.raises(UsageError, match=r"an int, or at a time, a datetime") as caught:
        repo.snapshot(any_(at))
    check_message(caught.value, repr(at))


def test_texts_for_numbers_and_times_and_functions_for_observers_are_refused_in_a_sentence(
    repo: Repository,
) -> None:
    def index(t: Transaction, row: str) -> None: ...

    calls: dict[str, Callable[[], object]] = {
        "A time is a datetime, and not '2026": lambda: repo.timestamp_at(any_("2026-11-23T10:00")),
        "A lock_ttl_seconds of '9'": lambda: percola.open("memory:", lock_ttl_seconds=any_("9")),
        "A lock_wait_seconds of '9'": lambda: percola.open("memory:", lock_wait_seconds=any_("9")),
        "A timeout of None": lambda: repo.wait_answered(1, timeout=any_(None)),
        "at least 1 attempt, not '3'": lambda: repo.run(lambda t: None, attempts=any_("3")),
        "A rate of '5'": lambda: percola.rerun(repo, observer(seen)(index), rate=any_("5")),
        "index at .* is no observer: pass": lambda: repo.pause_observer(any_(index)),
        "title.* is no observer": lambda: repo.resume_observer(any_(title)),
        "is a text, and not None": lambda: repo.pause_observer(
            observer(seen)(index), reason=any_(None)
        ),
        "True, or not, False, and not 'off'": lambda: repo.record_runs(any_("off")),
    }
    for message, call in calls.items():
        with pytest.raises(UsageError, match=message):
            call()


def test_a_recipe_in_a_list_of_tables_or_observers_is_told_what_to_list(repo: Repository) -> None:
    sums = Sums("sums", Table("source"))
    for name, act in (
        ("tables", lambda: percola.open("memory:", schema=[any_(sums)])),
        ("observers", lambda: Worker(repo, [any_(sums)])),
    ):
        with pytest.raises(PercolaError, match=f"list its `{name}`"):
            act()


def test_a_closed_repository_says_so(repo: Repository) -> None:
    t, snapshot = repo.transaction(), repo.snapshot()
    t.set(title, "a", "x")
    repo.close()
    repo.close()
    acts: list[Callable[[], object]] = [
        repo.transaction,
        repo.snapshot,
        lambda: repo.run(lambda t: None),
        lambda: snapshot.get(title, "a"),
        t.commit,
        lambda: Worker(repo, [observer(seen, name="x")(lambda t, row: None)]),
    ]
    for act in acts:
        with pytest.raises(RepositoryClosedError, match="closed; open it again"):
            act()


def test_what_was_written_with_another_type_is_an_error(repo: Repository) -> None:
    repo.run(lambda t: t.set(title, "a", "not a number"))
    titles_as_numbers = Table("docs").column("title", int)
    with pytest.raises(WrongTypeError, match="written with another type"):
        repo.snapshot().get(titles_as_numbers, "a")


def test_a_long_value_that_was_lost_is_damage_also_beneath_a_lock(repo: Repository) -> None:
    with repo.transaction() as t:
        t.set(blob, "a", bytes(300))
    cell, store = Cell(docs.name, b"a", blob.key), repo.context.store
    lost = RowMutation(cell.table, cell.row, (), [Delete(Kind.DATA, cell.column, t.start_ts)])
    assert t.commit_ts is not None and store.mutate([lost]) == [True]
    for read in (
        lambda at: repo.snapshot(at).get(blob, "a"),
        functools.partial(state_beneath, store, cell),
    ):
        with pytest.raises(DamagedRecordError, match=rf"data at {t.start_ts}, which is missing"):
            read(t.commit_ts)


def test_json_that_is_nested_too_deep_to_be_read_is_an_error_that_says_so(repo: Repository) -> None:
    with repo.transaction() as t:  # As an earlier version has written it.
        t._put(Cell(docs.name, b"a", extra.key), b"[" * 200_000 + b"]" * 200_000)
    now = repo.snapshot()
    reads: list[Callable[[], object]] = [
        lambda: now.get(extra, "a"),
        lambda: now.get_many([(extra, "a")]),
        lambda: now.get_row(docs, "a")[extra],
        lambda: [dict(row.items()) for row in now.scan(docs)],
    ]
    for read in reads:
        with pytest.raises(
            WrongTypeError, match=r"docs\.extra holds .* nested too deep for Python's"
        ):
            read()


def test_a_family_that_was_written_with_another_type_is_an_error_that_names_the_column() -> None:
    pages = Table("pages")
    links = pages.family("links", str)
    with percola.open("memory:", schema=[pages]) as repo:
        repo.run(lambda t: t.set(links["x"], "a", "not a number"))
        row = repo.snapshot().get_row(pages, "a")
        with pytest.raises(WrongTypeError, match=r"pages\.links:x should hold int"):
            row.family(Table("pages").family("links", int))


def test_a_column_that_another_program_added_is_told_as_such(tmp_path: Path) -> None:
    with percola.open(tmp_path / "repo", schema=TABLES) as repo:
        newer = Table("docs")
        added = newer.column("added", int)
        with percola.open(tmp_path / "repo", schema=[newer]) as other, other.transaction() as t:
            t.set(added, "a", 1)
        row = repo.snapshot().get_row(docs, "a")
        assert row[added] == 1
        with pytest.raises(UnknownColumnError, match=r"'added' that was declared by another"):
            dict(row.items())
    # To open it again is not enough: the table is the program's.
    with percola.open(tmp_path / "repo", schema=TABLES) as opened:
        row = opened.snapshot().get_row(docs, "a")
        with pytest.raises(UnknownColumnError, match=r"read `repo\.table\('docs'\)`, which"):
            dict(row.items())
    with percola.open(tmp_path / "repo") as again:
        found = again.snapshot().get_row(again.table("docs"), "a")
        assert [(column.name, one) for column, one in found.items()] == [("added", 1)]


def test_a_part_of_a_family_is_that_part_also_of_a_row_that_was_read_whole(
    repo: Repository,
) -> None:
    repo.run(lambda t: [t.set(tags[name], "a", 1) for name in ("red", "rose", "blue")])
    row = repo.snapshot().get_row(docs, "a")
    assert row.family(tags.starting("r")) == {"red": 1, "rose": 1}
    assert row.family(tags).keys() == {"red", "rose", "blue"}


def test_a_name_in_place_of_a_column_of_a_row_is_refused_in_a_sentence(repo: Repository) -> None:
    repo.run(lambda t: t.set(title, "a", "A"))
    row = repo.snapshot().get_row(docs, "a")
    wrong: dict[str, Callable[[], object]] = {
        "'title' is not a Column: name a column of the table 'docs'": lambda: row[any_("title")],
        "'size' is not a Column": lambda: row.get(any_("size"), 0),
        "'seen' is not a Column": lambda: any_("seen") in row,
        "is not a Column": lambda: any_(tags) in row,
        "'tag' is not a Family": lambda: row.family(any_("tag")),
    }
    for says, call in wrong.items():
        with pytest.raises(UsageError, match=says):
            call()


def test_a_column_of_another_table_is_refused_of_a_row_also_if_its_name_is_the_same(
    repo: Repository,
) -> None:
    others = Table("others")
    other_title, other_tags = others.column("title", str), others.family("tag", int)
    repo.run(lambda t: [t.set(title, "a", "A"), t.set(tags["x"], "a", 1)])
    row = repo.snapshot().get_row(docs, "a")
    calls: list[Callable[[], object]] = [
        lambda: row[other_title],
        lambda: row.get(other_title),
        lambda: other_title in row,
        lambda: row[other_tags["x"]],
        lambda: row.family(other_tags),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=r"others\..* is of another table than 'docs'"):
            call()


def test_a_row_refuses_to_tell_of_a_column_that_was_not_read(repo: Repository) -> None:
    """It would say that the row has none, and a sum over rows would be wrong in silence."""
    repo.run(lambda t: [t.set(title, "a", "A"), t.set(size, "a", 7), t.set(tags["xy"], "a", 1)])
    now, begun = repo.snapshot(), repo.transaction()
    some = [title, tags.starting("x")]
    rows = [
        now.get_row(docs, "a", some),
        begun.get_row(docs, "a", some),
        begun.get_rows(docs, ["a"], some)[0],
        *now.scan(docs, columns=some),
        now.get_row(docs, "nothing", some),
    ]
    for row in rows:
        calls: list[Callable[[], object]] = [
            lambda row=row: row.get(size, 0),  # type: ignore[misc]
            lambda row=row: row[size],  # type: ignore[misc]
            lambda row=row: size in row,  # type: ignore[misc]
            lambda row=row: row.get(tags["y"]),  # type: ignore[misc]
            lambda row=row: row.family(tags.starting("y")),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(UsageError, match=r"docs\..* of the row '.*' was not read: name it"):
                call()
        there = row.key == "a"
        assert (row.get(title), tags["xy"] in row) == (("A", True) if there else (None, False))
        assert row.get(tags["x"]) is None  # Begins as what was read does: there is none.
        assert row.family(tags) == ({"xy": 1} if there else {})
    with pytest.raises(UsageError, match=r"docs\.tag.* was not read"):
        now.get_row(docs, "a", [title]).family(tags)
    assert now.get_row(docs, "a", [tags["xy"]]).family(tags) == {"xy": 1}
    assert now.get_row(docs, "a").get(blob) is None  # All columns were read.


def test_one_thing_in_place_of_a_list_is_refused_in_a_sentence(repo: Repository) -> None:
    look = observer(seen, name="look")(lambda t, row: None)
    now = repo.snapshot()
    wrong: dict[str, Callable[[], object]] = {
        "docs.title alone": lambda: now.scan(docs, columns=title),  # type: ignore[arg-type]
        "alone: put it in one": lambda: now.get_row(docs, "a", tags),  # type: ignore[arg-type]
        "The rows to read are a list, but this is 'abc'": lambda: now.get_rows(docs, "abc"),
        r"pairs of .*, but one is .*docs\.title": lambda: now.get_many(any_([title, "abc"])),
        r"write \[look\]": lambda: Worker(repo, look),  # type: ignore[arg-type]
        r"Table\('docs'\) alone": lambda: percola.open("memory:", docs),  # type: ignore[arg-type]
    }
    for says, call in wrong.items():
        with pytest.raises(UsageError, match=says):
            call()


def test_what_no_column_can_have_or_begin_with_is_refused_in_a_sentence() -> None:
    for start in (5, b"r", "\ud800"):
        with pytest.raises(SchemaError, match=r"No column of the family docs\.tag:\* begins with"):
            tags.starting(any_(start))
    for kind in ([], {"a": 1}, "str", list):
        with pytest.raises(SchemaError, match="is not a type that a column can have"):
            Table("others").column("a", any_(kind))

"""Recording transactions, and the files that hold what was recorded."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from stores import all_at_once

import percola
from percola import (
    Codec,
    ConflictError,
    Repository,
    RetriesExhaustedError,
    StoreError,
    Table,
    decimal_of,
)
from percola.cells import Cell
from percola.codecs import JSON
from percola.errors import CommitUnknownError, OutcomeUnknownError
from percola.recipes import Sums
from percola.testing.histories.recorder import (
    DamagedHistoryError,
    Outcome,
    Recorded,
    RecordedTransaction,
    Recorder,
    merge,
    read_folder,
    read_histories,
    read_history,
    write_history,
)
from percola.testing.histories.timestamps import check
from percola.transactions.transaction import Transaction

t = Table("t")
value = t.column("value", int)
listed = t.column("list", JSON)
raw = t.column("raw")
tag = t.family("tag", int)
VALUE, LIST = "t.value", "t.list"


@pytest.fixture
def repo() -> Iterator[Repository]:
    with percola.open("memory:", schema=[t]) as opened:
        yield opened


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder with a clock that counts, and a file."""
    count = itertools.count(1)
    with Recorder("p1", lambda: next(count), path=tmp_path / "p1.jsonl") as made:
        yield made


def test_reads_and_writes_are_recorded_with_both_timestamps(
    repo: Repository, recorder: Recorder
) -> None:
    with recorder.transaction(repo) as x:
        assert x.get(value, "a") is None
        x.set(value, "a", 1)
        x.delete(value, "b")
    with recorder.transaction(repo) as x:
        assert x.get_many([(value, "a"), (value, "b")]) == [1, None]
    first, second = recorder.history
    assert first.reads == [(f"{VALUE}/a", None)]
    assert first.writes == [(f"{VALUE}/a", 1), (f"{VALUE}/b", None)]
    assert (first.outcome, first.start_ts, first.commit_ts) == (Outcome.COMMITTED, 0, 1)
    assert (first.began, first.ended, second.began, second.ended) == (1, 2, 3, 4)
    assert second.reads == [(f"{VALUE}/a", 1), (f"{VALUE}/b", None)]
    assert (second.outcome, second.start_ts, second.commit_ts) == (Outcome.COMMITTED, 1, None)


def test_own_reads_and_overwritten_values_stand_apart(repo: Repository, recorder: Recorder) -> None:
    with recorder.transaction(repo) as x:
        x.set(value, "a", 1)
        x.get(value, "a")
        x.set(value, "a", 2)
        assert [row.key for row in x.scan(t, columns=[value])] == ["a"]
    (record,) = recorder.history
    assert record.reads == []
    assert record.own_reads == [(f"{VALUE}/a", 1, 1), (f"{VALUE}/a", 2, 2)]
    assert record.overwritten == [(f"{VALUE}/a", 1)]
    assert record.ranges == [(f"{VALUE}/", f"{VALUE}0", [])]


def test_get_for_update_locks_what_is_not_written(repo: Repository, recorder: Recorder) -> None:
    with recorder.transaction(repo) as x:
        x.get_for_update(value, "a")
        x.get_for_update(value, "b")
        x.set(value, "b", 1)
    (record,) = recorder.history
    assert record.locked == [f"{VALUE}/a"]
    assert record.commit_ts is not None


def test_a_row_records_what_it_has_and_which_of_the_asked_columns_it_has_not(
    repo: Repository, recorder: Recorder
) -> None:
    with repo.transaction() as x:
        x.set(value, "a", 1)
        x.set(tag["red"], "a", 2)
    with recorder.transaction(repo) as y:
        y.get_row(t, "a", [value, raw, tag])
        y.get_row(t, "none", [value])
    (record,) = recorder.history
    assert sorted(record.reads) == sorted(
        [(f"{VALUE}/a", 1), ("t.tag:red/a", 2), ("t.raw/a", None), (f"{VALUE}/none", None)]
    )


def test_a_scan_records_its_range_as_far_as_followed(repo: Repository, recorder: Recorder) -> None:
    with repo.transaction() as x:
        for row in ("a1", "a2", "b1"):
            x.set(value, row, 1)
    with recorder.transaction(repo) as y:
        list(y.scan(t, prefix="a", columns=[value]))
        list(y.scan(t, start="a2", end="b", columns=[value]))
        next(y.scan(t, columns=[value]))
    (record,) = recorder.history
    (_, high, found), second, third = record.ranges
    assert found == [f"{VALUE}/a1", f"{VALUE}/a2"] and f"{VALUE}/a\uffff" < high < f"{VALUE}/b"
    assert second == (f"{VALUE}/a2", f"{VALUE}/b", [f"{VALUE}/a2"])
    assert third == (f"{VALUE}/", f"{VALUE}/a1\0", [f"{VALUE}/a1"])
    assert check([_filled(), record]) == []


def _filled() -> Recorded:
    writes: list[tuple[str, object]] = [(f"{VALUE}/{row}", 1) for row in ("a1", "a2", "b1")]
    return Recorded(9, "p0", 0, 1, Outcome.COMMITTED, [], writes, 0, 0)


def test_a_list_changed_later_is_recorded_as_it_was(repo: Repository, recorder: Recorder) -> None:
    numbers = [1]
    with recorder.transaction(repo) as x:
        x.set(listed, "a", numbers)
        numbers.append(2)
    with recorder.transaction(repo) as x:
        seen = x.get(listed, "a")
        seen.append(3)
    assert recorder.history[0].writes == [(f"{LIST}/a", [1])]
    assert recorder.history[1].reads == [(f"{LIST}/a", [1])]


def test_values_of_every_codec_are_recorded_as_they_are_read(recorder: Recorder) -> None:
    words = Table("words")
    found = Sums("found", words, {"share": decimal_of(9, 2)})
    letters = words.column(
        "letters",
        Codec("set", lambda one: "".join(sorted(one)).encode(), lambda raw: {*raw.decode()}),
    )
    by_length = words.column("by_length", JSON)
    with percola.open("memory:", schema=[words, *found.tables]) as repo:
        with recorder.transaction(repo) as x:
            x.set(letters, "ann", {"a", "n"})
            x.set(by_length, "ann", {3: ("ann",)})
            found.contribute(cast("Transaction", x), "ann", {"all": {"share": Decimal("1.50")}})
        with recorder.transaction(repo) as x:
            assert x.get(letters, "ann") == {"a", "n"}
            assert x.get(by_length, "ann") == {"3": ["ann"]}
            assert x.get_row(words, "ann")
    assert check(recorder.history) == []
    written, read = (
        {*map(str, one)} for one in (recorder.history[0].writes, recorder.history[1].reads)
    )
    assert len(read) == 3
    assert read < written


def test_each_attempt_of_a_run_is_a_record(repo: Repository, recorder: Recorder) -> None:
    met: list[int] = []

    def work(x: RecordedTransaction) -> None:
        x.set(value, "a", (x.get(value, "a") or 0) + 1)
        if not met:
            met.append(1)
            repo.run(lambda y: y.set(value, "a", 10))

    recorder.run(repo, work)
    assert [one.outcome for one in recorder.history] == [Outcome.ABORTED, Outcome.COMMITTED]
    assert [dict(one.writes)[f"{VALUE}/a"] for one in recorder.history] == [1, 11]
    met.clear()
    with pytest.raises(RetriesExhaustedError):
        recorder.run(repo, work, attempts=1)


def test_what_raises_rolls_back_and_counts_as_aborted(repo: Repository, recorder: Recorder) -> None:
    def fail(x: RecordedTransaction) -> None:
        x.set(value, "a", 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorder.run(repo, fail)
    (record,) = recorder.history
    assert record.outcome is Outcome.ABORTED and record.ended is not None
    assert repo.snapshot().get(value, "a") is None


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StoreError("refused"), Outcome.ABORTED),
        (ConflictError(Cell("t", b"a", b"value"), 1, 2, locked=False), Outcome.ABORTED),
        (OutcomeUnknownError("no answer"), Outcome.UNKNOWN),
        (CommitUnknownError(Cell("t", b"a", b"value"), 1, 7), Outcome.UNKNOWN),
        (KeyboardInterrupt(), Outcome.UNKNOWN),
    ],
)
def test_an_outcome_that_was_not_heard_is_unknown(
    repo: Repository,
    recorder: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    outcome: Outcome,
) -> None:
    def fail(transaction: Transaction) -> int:
        raise error

    x = recorder.transaction(repo)
    x.set(value, "a", 1)
    monkeypatch.setattr(Transaction, "commit", fail)
    with pytest.raises(type(error)):
        x.commit()
    (record,) = recorder.history
    assert record.outcome is outcome
    assert (record.ended is None) == (outcome is Outcome.UNKNOWN)
    assert record.commit_ts == (7 if isinstance(error, CommitUnknownError) else None)
    assert read_history(tmp_path / "p1.jsonl") == [record]


def test_the_attempt_is_in_the_file_before_the_commit_is_tried(
    repo: Repository, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[Recorded]] = []
    commit = Transaction.commit

    def look(transaction: Transaction) -> int:
        found.append(read_history(tmp_path / "p1.jsonl"))
        return commit(transaction)

    monkeypatch.setattr(Transaction, "commit", look)
    with recorder.transaction(repo) as x:
        x.set(value, "a", 1)
    ((before,),) = found
    assert (before.outcome, before.writes, before.ended) == (
        Outcome.UNKNOWN, [(f"{VALUE}/a", 1)], None,
    )  # fmt: skip
    assert read_history(tmp_path / "p1.jsonl") == recorder.history


def test_a_recorder_may_be_used_from_many_threads(
    repo: Repository, recorder: Recorder, tmp_path: Path
) -> None:
    def work(number: int) -> None:
        for step in range(20):
            recorder.run(repo, lambda x, n=step: x.set(value, f"{number}", n), attempts=1000)

    assert all_at_once([lambda n=number: work(n) for number in range(4)]) == [None] * 4
    assert len({one.id for one in recorder.history}) == len(recorder.history) >= 80
    assert {one.id for one in read_history(tmp_path / "p1.jsonl")} == {
        one.id for one in recorder.history
    }


# --- Files ------------------------------------------------------------------------------


def everything() -> list[Recorded]:
    return [
        Recorded(1, "p1", 3, 5, Outcome.COMMITTED, [("k", None), ("é\x00", [1, {"a": 2}])],
                 [("k", "v")], 10, 11, [("k", 1)], [("k", 1, 1)], ["l"], [("a", "b", ["a"])], True),
        Recorded(2, "p1", 6, None, Outcome.UNKNOWN, [], [("k", None)], 12, None),
        Recorded(3, "p1", 6, None, Outcome.ABORTED, [("k", 1.5)], [], 13, 14),
    ]  # fmt: skip


def test_a_history_reads_back_as_it_was_written(tmp_path: Path) -> None:
    write_history(tmp_path / "h.jsonl", everything())
    assert read_history(tmp_path / "h.jsonl") == everything()
    assert read_folder(tmp_path) == everything()


def test_histories_are_merged_in_the_order_of_time_and_numbered_anew(tmp_path: Path) -> None:
    late = Recorded(1, "p2", 3, None, Outcome.COMMITTED, [], [], 12, 13)
    write_history(tmp_path / "a", everything())
    write_history(tmp_path / "b", [late])
    merged = read_histories([tmp_path / "a", tmp_path / "b"])
    assert [(one.id, one.process, one.began) for one in merged] == [
        (1, "p1", 10), (2, "p1", 12), (3, "p2", 12), (4, "p1", 13),
    ]  # fmt: skip
    assert late.id == 1, "merging leaves what it is given alone"
    assert merge([]) == []


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    write_history(path, everything())
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        assert read_history(path) == everything()[:2]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("not json", "Expecting value"),
        ("[1, 2]", "it is not a JSON object"),
        ('{"id": 7}', "it has no 'outcome'"),
        ('{"id": 7, "outcome": "maybe", "commit_ts": 3, "ended": 4}', "'maybe' is not a valid"),
        ('{"id": 7, "outcome": "aborted", "commit_ts": null, "ended": 4}', "which never began"),
        ('{"id": 1, "outcome": "committed", "ended": 4}', "it has no 'commit_ts'"),
        ('{"id": "x", "outcome": "committed"}', "its id is 'x'"),
        ("ID1", "transaction 1 is there twice"),
        ("NOREADS", "it has no 'reads'"),
        ("BADREADS", "['k'] is not one of its reads"),
        ("MORE", "extra"),
        ("\ufffd", "decode"),
    ],
)
def test_a_damaged_line_is_named_with_what_is_wrong(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "h.jsonl"
    write_history(path, everything())
    fields = json.loads(path.read_text().splitlines()[1])
    variants = {
        "ID1": {**fields, "id": 1},
        "NOREADS": {name: got for name, got in {**fields, "id": 9}.items() if name != "reads"},
        "BADREADS": {**fields, "id": 9, "reads": [["k"]]},
        "MORE": {**fields, "id": 9, "extra": 1},
    }
    text = json.dumps(variants[line]) if line in variants else line
    with path.open("ab") as file:
        file.write(text.encode() if text != "\ufffd" else b"\xff")
        file.write(b"\n" + path.read_bytes().splitlines(keepends=True)[2].replace(b"3", b"8", 1))
    with pytest.raises(DamagedHistoryError) as caught:
        read_history(path)
    assert str(caught.value).startswith(f"Line 4 of the history {path} is damaged: ")
    assert what in str(caught.value)


def test_a_folder_without_histories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedHistoryError, match=r"no file that ends in \.jsonl"):
        read_folder(tmp_path)


def test_a_file_is_appended_to_line_by_line(repo: Repository, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    recorder = Recorder("p", path=path)
    sizes = [path.stat().st_size]
    for _ in range(3):
        with recorder.transaction(repo) as x:
            x.set(value, "a", 1)
        sizes.append(path.stat().st_size)
    assert all(a < b for a, b in itertools.pairwise(sizes)), "nothing waits in a buffer"
    recorder.close()
    recorder.close()
    assert path.read_bytes().endswith(b"\n")
    assert os.path.getsize(path) == sizes[-1]

"""§2.4: a task that writes in small transactions counts once, however often it is run."""

from __future__ import annotations

from typing import Any

import pytest
from joints import assert_sound, docs, links, row, size, stranger, title, titles
from stores import Ground, ScriptedClock, SeamStore, phase, put, put_all

from percola import Repository, Transaction
from percola.cells import Kind
from percola.errors import OutcomeUnknownError, StoreError
from percola.spark.write.idempotent import MarkedPartition, end
from percola.store.base import RowMutation
from percola.transactions.jobs import JOBS, JobOverError, RowLockedError, RowWrites, SupersededError

TABLES = [docs, JOBS]


def begin(
    repo: Repository, attempt: int = 1, retry: int | None = None, **more: Any
) -> MarkedPartition:
    options: dict[str, Any] = {"row_by_row": True, "timeout": 2.0, **more}
    retry = attempt - 1 if retry is None else retry
    return MarkedPartition(repo, "write", docs, 0, attempt, retry, **options)


def commits(repo: Repository, key: str) -> int:
    return len(repo.versions(title, key))


@pytest.mark.parametrize("row_by_row", [True, False])
def test_a_new_attempt_writes_only_what_the_first_has_not(
    repo: Repository, ground: Ground, row_by_row: bool
) -> None:
    first = begin(repo, row_by_row=row_by_row)
    first.write([row("a", "ours"), row("b", "ours")])
    put_all(repo, title, {"b": "theirs", "d": "theirs"})
    second = begin(repo, 2, row_by_row=row_by_row)
    second.write([row("a", "ours"), row("b", "ours")])
    second.write([row("c", "ours"), row("d", "ours", 7)])
    second.finish()
    assert titles(repo) == {"a": "ours", "b": "theirs", "c": "ours", "d": "theirs"}
    assert [commits(repo, key) for key in "abcd"] == [1, 2, 1, 1]
    assert repo.snapshot().get(size, "d") == 7, "each cell by itself"
    end(repo, "write", committed=True)
    assert_sound(repo, ground)


def test_a_zombie_writes_nothing_after_another_attempt_has_begun(
    repo: Repository, ground: Ground
) -> None:
    zombie = begin(repo)
    zombie.write([row("a", "zombie")])
    second = begin(repo, 2)
    with pytest.raises(SupersededError):
        zombie.write([row("b", "zombie")])
    with pytest.raises(SupersededError):
        zombie.finish()
    with pytest.raises(SupersededError):
        begin(repo, 1)
    second.write([row("b", "second")])
    second.finish()
    end(repo, "write", committed=True)
    for late in (zombie, second):
        with pytest.raises(JobOverError):
            late.write([row("c", "late")])
    with pytest.raises(JobOverError):
        begin(repo, 3)
    assert titles(repo) == {"a": "zombie", "b": "second"}
    assert_sound(repo, ground)


def test_a_takeover_between_a_zombies_look_and_its_commit_stops_the_commit(ground: Ground) -> None:
    """It has read the marker, and found itself there: the commit conflicts all the same."""
    repo, _ = stranger(ground)
    other, _ = stranger(ground)
    zombie = begin(repo)
    taken: list[MarkedPartition] = []

    class Slow(dict[bytes, bytes | None]):
        def items(self) -> Any:
            if not taken:
                taken.append(begin(other, 2))
            return super().items()

    with pytest.raises(SupersededError):
        zombie.write([RowWrites("docs", b"a", Slow({title.key: b"zombie"}))])
    assert taken and titles(repo) == {}
    assert_sound(repo, ground)


def test_a_finished_attempt_is_not_repeated_unless_its_rows_may_be_others(
    repo: Repository, ground: Ground
) -> None:
    first = begin(repo, 1, 0)
    first.write([row("a", "first")])
    first.finish()
    assert begin(repo, 2, 1).done
    anew = begin(repo, 3, 0)
    assert not anew.done
    anew.write([row("a", "first"), row("b", "other")])
    anew.finish()
    assert titles(repo) == {"a": "first", "b": "other"}
    assert commits(repo, "a") == 1
    assert_sound(repo, ground)


def test_row_by_row_a_row_in_conflict_holds_up_no_other_and_a_chunk_is_whole_or_not_at_all(
    ground: Ground,
) -> None:
    repo, _ = stranger(ground)
    held = repo.transaction(two_phase=True)
    held.set(title, "b", "theirs")
    seam = SeamStore(ground.store)
    locking = ground.repo(TABLES, store=seam, one_step=False)
    t = locking.transaction(two_phase=True)
    t.set(title, "b", "theirs")
    checked: list[dict[str, str]] = []

    def hook(mutation: RowMutation, apply: Any) -> bool:
        if phase(mutation) == "commit" and not checked:
            for row_by_row in (True, False):
                other, clock = stranger(ground)
                part = MarkedPartition(
                    other, f"w{row_by_row}", docs, 0, 1, 0, row_by_row=row_by_row, timeout=1.0
                )
                tag = f"{row_by_row}"
                with pytest.raises(RowLockedError, match=r"could not be written in 1 s.*docs"):
                    part.write([row(f"a{tag}", "ours"), row("b", "ours"), row(f"c{tag}", "ours")])
                assert 1 <= sum(clock.slept) < 3 and part.conflicts > 3
                others = other.snapshot().get_many([(title, f"a{tag}"), (title, f"c{tag}")])
                checked.append({tag: str(others)})
        return apply()  # type: ignore[no-any-return]

    seam.hook = hook
    t.commit()
    assert checked == [{"True": "['ours', 'ours']"}, {"False": "[None, None]"}]
    assert repo.snapshot().get(title, "b") == "theirs"


def test_a_commit_of_unknown_outcome_is_looked_at_before_it_is_repeated(ground: Ground) -> None:
    for applies in (True, False):
        seam = SeamStore(ground.store)
        repo = ground.repo(TABLES, store=seam, one_step=False, clock=ScriptedClock())
        part = MarkedPartition(repo, f"w{applies}", docs, 0, 1, 0, row_by_row=False, timeout=2.0)
        lost = 0

        def away(*_: object) -> object:
            del seam.entries  # noqa: B023
            raise StoreError("The store cannot be reached.")

        def hook(mutation: RowMutation, apply: Any) -> bool:
            nonlocal lost
            if phase(mutation) == "commit" and mutation.table == JOBS.name and lost < 20:
                lost += 1
                if applies:  # noqa: B023
                    apply()
                    if lost == 1:
                        seam.entries = away  # type: ignore[method-assign, assignment] # noqa: B023
                if lost < 9:
                    raise OutcomeUnknownError("lost")
            return apply()  # type: ignore[no-any-return]

        seam.hook = hook
        key = f"row {applies}"
        part.write([row(key, "ours")])
        assert lost >= (1 if applies else 8)
        assert commits(repo, key) == 1
    assert ground.left_over(docs, Kind.LOCK) == []


def test_a_row_that_is_cleared_loses_all_that_it_has_also_in_a_second_attempt(
    repo: Repository, ground: Ground
) -> None:
    with repo.transaction() as t:
        for key in "ab":
            t.set(title, key, "old")
            t.set(links["x"], key, "old")
    begin(repo).write([RowWrites("docs", b"a", {}, clears=True)])
    put(repo, title, "a", "theirs")
    second = begin(repo, 2)
    second.write([RowWrites("docs", key, {}, clears=True) for key in (b"a", b"b")])
    assert titles(repo) == {"a": "theirs"}
    assert not repo.snapshot().get_row(docs, "b")
    assert_sound(repo, ground)


def test_several_tasks_that_begin_at_once_all_begin(repo: Repository) -> None:
    parts = [
        MarkedPartition(repo, "w", docs, n, n, 0, row_by_row=True, timeout=1.0) for n in range(8)
    ]
    for n, part in enumerate(parts):
        part.write([row(f"row {n}", "x")])
        part.finish()
    assert len(titles(repo)) == 8


def test_a_task_begins_however_many_begin_beside_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 50 others begins while this one does, which then conflicts with it."""
    repo, _ = stranger(ground)
    other, _ = stranger(ground)
    others = iter(range(1, 51))
    began = MarkedPartition._begin

    def beside(self: MarkedPartition, t: Transaction) -> dict[str, Any]:
        found = began(self, t)
        number = next(others, None) if self._repo is repo else None
        if number is not None:
            MarkedPartition(other, "w", docs, number, 1, 0, row_by_row=True, timeout=1.0)
        return found

    monkeypatch.setattr(MarkedPartition, "_begin", beside)
    part = MarkedPartition(repo, "w", docs, 0, 1, 0, row_by_row=True, timeout=1.0)
    part.write([row("a", "ours")])
    part.finish()
    assert titles(repo) == {"a": "ours"}


@pytest.mark.parametrize("row_by_row", [True, False])
def test_rows_of_more_cells_than_a_transaction_may_have_are_several_transactions(
    repo: Repository, ground: Ground, monkeypatch: pytest.MonkeyPatch, row_by_row: bool
) -> None:
    monkeypatch.setattr("percola.transactions.transaction.MOST_CELLS", 50)
    monkeypatch.setattr("percola.spark.write.idempotent._CELLS", 40)
    cells = {links[f"{number}"].key: b"x" for number in range(15)}
    wide = [RowWrites("docs", key, cells) for key in (b"a", b"b", b"c", b"d", b"e")]
    part = begin(repo, row_by_row=row_by_row)
    part.write(wide)
    with repo.snapshot() as now:
        assert [len(now.get_row(docs, key).family(links)) for key in "abcde"] == [15] * 5
    # What is deleted is known once the row has been read.
    part.write([RowWrites("docs", one.row, {}, clears=True) for one in wide])
    assert list(repo.snapshot().scan(docs)) == []
    assert part.rows == 10
    assert_sound(repo, ground)

"""Copies to and from a folder by machines that do not have it: by files, whole or refused."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import percola
from percola import (
    NotARepositoryError,
    Repository,
    StoreError,
    StoreFullError,
    Table,
    UsageError,
)
from percola.cells import Cell, Kind
from percola.errors import DamagedRecordError
from percola.maintenance import copy
from percola.maintenance.backup import backup_network, restore, restore_network
from percola.maintenance.copy import Copied, copy_repository, copy_store
from percola.ranges import Here, TableRange
from percola.store.base import Store
from percola.store.walks import walk_kind

docs = Table("docs", feed=True)
text = docs.column("text", str, observed=True)
size = docs.column("size", int)
empty = Table("empty")
empty.column("nothing")
TABLES = [docs, empty]
ROWS = 300


class Elsewhere(Here):
    """As Spark on other machines: its work is sent, in many ranges, and is done twice."""

    on_this_machine = False  # type: ignore[assignment, misc]

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then

    def cut(self, store: Store, ranges: Sequence[TableRange]) -> list[TableRange]:
        """Each whole table in three."""
        bounds = [b"", b"row-1", b"row-2", b""]
        found: list[TableRange] = []
        for one in ranges:
            whole = not (one.start or one.end)
            cut = [TableRange(one.table, *bounds[n : n + 2]) for n in range(3)]
            found += cut if whole else [one]
        return found

    def run(self, context: Any, ranges: Any, work: Any, **more: Any) -> Generator[Any]:
        sent = pickle.loads(pickle.dumps(work))
        list(super().run(context, ranges, sent, **more))
        yield from super().run(context, ranges, sent, **more)
        self._then()

    def each(self, count: int, work: Any, **more: Any) -> Generator[Any]:
        sent = pickle.loads(pickle.dumps(work))
        list(super().each(1, sent, **more))
        for found in super().each(count, sent, **more):
            yield found
            self._then()


@pytest.fixture
def repo() -> Iterator[Repository]:
    with percola.open("memory:", TABLES) as repo:
        for value in range(2):
            with repo.transaction() as t:
                for row in range(ROWS):
                    t.set(text, f"row-{row:03}", f"{value} " * (1 + 200 * (row % 2)))
                    t.set(size, f"row-{row:03}", row)
        repo.run(lambda t: t.delete(text, "row-007"))
        yield repo


def everything(folder: Path) -> set[tuple[Cell, Kind, int, bytes]]:
    with percola.open(folder, TABLES) as repo:
        return {
            (cell, kind, ts, raw)
            for table in TABLES
            for kind in Kind
            for cell, ts, raw in walk_kind(repo.context.store, kind, table.name)
        }


@pytest.mark.parametrize("history", [False, True])
def test_a_copy_by_files_is_as_one_without(repo: Repository, tmp_path: Path, history: bool) -> None:
    options: dict[str, Any] = {"history": history, "durability": "relaxed"}
    by_files = copy_repository(repo, str(tmp_path / "files"), runner=Elsewhere(), **options)
    alone = copy_repository(repo, str(tmp_path / "alone"), at=by_files.ts, **options)
    assert by_files == alone and alone.rows == ROWS
    assert everything(tmp_path / "files") == everything(tmp_path / "alone")
    assert {one.name for one in tmp_path.iterdir()} == {"files", "alone"}


@pytest.mark.parametrize("history", [False, True])
def test_a_copy_from_a_folder_by_files_goes_on_where_it_was_stopped_and_is_the_same(
    repo: Repository, tmp_path: Path, history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a folder, in place of a network store, which each task opens as well."""
    target = str(tmp_path / "files")

    def copied(runner: Elsewhere) -> Copied:
        with copy._opened(target, "relaxed") as (store, oracle):
            return copy_store(
                *(repo, store, oracle),
                history=history,
                runner=runner,
                of_task=partial(copy._opened_store, target),
                parts=tmp_path / "parts",
            )

    seen = iter(range(100))

    def stop() -> None:
        if next(seen) == 5:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(copy, "_CHANGES", 20)
        patch.setattr(copy, "_SAVED_EVERY", 0.0)
        with pytest.raises(InterruptedError):
            copied(Elsewhere(stop))
    by_files = copied(Elsewhere())
    assert 0 < by_files.resumed < by_files.rows == ROWS
    alone = copy_repository(repo, str(tmp_path / "alone"), at=by_files.ts, history=history)
    assert alone.rows == ROWS
    assert everything(tmp_path / "files") == everything(tmp_path / "alone")
    assert {one.name for one in tmp_path.iterdir()} == {"files", "alone"}


def test_two_copies_of_one_folder_at_once_do_not_take_each_others_files(
    repo: Repository, tmp_path: Path
) -> None:
    """To two network stores, from two drivers; the second is stopped when it has written its."""

    def copied(name: str, runner: Elsewhere) -> Copied:
        target = str(tmp_path / name)
        with copy._opened(target, "relaxed") as (store, oracle):
            of_task = partial(copy._opened_store, target)
            parts = tmp_path / "parts"
            return copy_store(repo, store, oracle, runner=runner, of_task=of_task, parts=parts)

    def stop() -> None:
        raise InterruptedError

    def begin_another() -> None:
        if not (tmp_path / "second").exists():
            for row in (5, 150, 250):
                repo.run(lambda t, row=row: t.set(text, f"row-{row:03}", "newer"))
            with pytest.raises(InterruptedError):
                copied("second", Elsewhere(stop))

    first = copied("first", Elsewhere(begin_another))
    second = copied("second", Elsewhere())
    assert first.ts < second.ts
    for name, ts in (("first", first.ts), ("second", second.ts)):
        copy_repository(repo, str(tmp_path / f"alone-{name}"), at=ts)
        assert everything(tmp_path / name) == everything(tmp_path / f"alone-{name}")
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("mode", [0o700, 0o2770])
def test_who_may_not_read_a_repository_may_not_read_the_files_of_its_copy(
    repo: Repository, tmp_path: Path, mode: int
) -> None:
    """On a path that all machines share, other users often are on it as well."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files").chmod(mode)
    modes: list[int] = []

    def look() -> None:
        parts = tmp_path / "files.parts"
        modes.extend(one.stat().st_mode & 0o7777 for one in (parts, *parts.iterdir()))

    before = os.umask(0o022)
    try:
        copy_repository(repo, str(tmp_path / "files"), runner=Elsewhere(look))
    finally:
        os.umask(before)
    assert [*map(oct, modes)] == [oct(mode)] * 2


@pytest.mark.parametrize("theirs", ["notes.txt", "7/notes.txt", ""])
def test_a_folder_of_the_user_is_neither_used_for_the_files_nor_deleted(
    repo: Repository, tmp_path: Path, theirs: str
) -> None:
    file = tmp_path / "files.parts" / theirs
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(UsageError, match=r"files\.parts.*which no copy has written: rename it"):
        copy_repository(repo, str(tmp_path / "files"), runner=Elsewhere())
    assert file.read_text() == "mine"
    file.rename(tmp_path / "elsewhere")
    assert copy_repository(repo, str(tmp_path / "files"), runner=Elsewhere()).rows == ROWS
    assert {one.name for one in tmp_path.iterdir()} == {"files", "elsewhere"}


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def change(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (cut_short, DamagedRecordError),
        (change, DamagedRecordError),
        # As if it had been written to another machine's folder of this name.
        (Path.unlink, StoreError),
    ],
)
def test_a_file_that_is_not_whole_ends_a_backup_and_the_next_one_is_right(
    repo: Repository, tmp_path: Path, harm: Callable[[Path], object], error: type[Exception]
) -> None:
    target = tmp_path / "monday.percola"

    def harm_one() -> None:
        [folder] = (tmp_path / "monday.percola.copying.parts").iterdir()
        harm(folder / "part-00001")

    with pytest.raises(error, match="part-00001"):
        backup_network(repo, target, runner=Elsewhere(harm_one))
    assert not target.exists()
    with pytest.raises(NotARepositoryError, match="cop"):
        percola.open(tmp_path / "monday.percola.copying", create=False)
    made = backup_network(repo, target, runner=Elsewhere())
    assert [one.name for one in tmp_path.iterdir()] == ["monday.percola"]
    restore(target, tmp_path / "restored")
    copy_repository(repo, str(tmp_path / "alone"), at=made.timestamp)
    assert everything(tmp_path / "restored") == everything(tmp_path / "alone")


def test_a_copy_that_a_backup_has_left_is_taken_for_hours_and_for_its_own_repository(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when the file was written, for instance: the copy beside it is whole."""
    target = tmp_path / "monday.percola"

    def full(done: int, expected: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    began = repo.context.clock.wall_ms()
    with pytest.raises(StoreFullError):
        backup_network(repo, target, progress=full)
    copied_by = repo.context.clock.wall_ms()
    repo.run(lambda t: t.set(size, "row-000", 1000))
    with percola.open(tmp_path / "other", TABLES, durability="relaxed") as other:
        other.run(lambda t: t.set(size, "row-000", 2000))
        with pytest.raises(UsageError, match=r"monday\.percola\.copying has another repository"):
            backup_network(other, target)
    later = copied_by + 7 * 3_600_000
    with monkeypatch.context() as patch:
        patch.setattr(repo.context.clock, "wall_ms", lambda: later)
        with pytest.raises(UsageError, match=r"monday\.percola\.copying was left by a backup"):
            backup_network(repo, target)
        patch.setattr(repo.context.clock, "wall_ms", lambda: later - 2 * 3_600_000)
        made = backup_network(repo, target)
    assert began <= made.made_ms <= copied_by, "the time of what it holds"
    assert {one.name for one in tmp_path.iterdir()} == {"monday.percola", "other"}
    restore(target, tmp_path / "restored")
    with percola.open(tmp_path / "restored", TABLES) as restored:
        assert restored.snapshot().get(size, "row-000") == 0


def test_a_restore_goes_on_with_what_one_of_the_same_backup_has_left_and_with_nothing_else(
    repo: Repository, tmp_path: Path
) -> None:
    """As into a network store, by way of a folder beside the file."""
    file, target = tmp_path / "latest.percola", str(tmp_path / "target")
    backup_network(repo, file)

    def stop(copied: Copied) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        restore_network(file, target, copying=stop)
    first = file.rename(tmp_path / "first.percola")
    repo.run(lambda t: t.set(size, "row-000", 1000))
    backup_network(repo, file)
    with pytest.raises(UsageError, match=r"latest\.percola\.restored is there already"):
        restore_network(file, str(tmp_path / "another"))
    file.unlink()
    first.rename(file)
    assert restore_network(file, target).timestamp < repo.snapshot().start_ts
    assert {one.name for one in tmp_path.iterdir()} == {"latest.percola", "target"}
    mine = tmp_path / "latest.percola.restored"
    restore(file, mine)
    with pytest.raises(UsageError, match="is there already"):
        restore_network(file, str(tmp_path / "another"))
    with percola.open(mine, TABLES) as kept, percola.open(target, TABLES) as restored:
        assert kept.snapshot().get(size, "row-000") == 0
        assert restored.snapshot().get(size, "row-000") == 0


def test_a_backup_that_can_no_longer_be_resumed_names_the_folder_to_delete(
    repo: Repository, tmp_path: Path
) -> None:
    target = tmp_path / "monday.percola"

    def stop(copied: Copied) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        backup_network(repo, target, copying=stop)
    for one in repo.holds():
        repo.release(one.name)  # As after some hours.
    repo.run(lambda t: t.set(size, "row-000", 1000))
    repo.collect_garbage(retention=0)
    with pytest.raises(UsageError, match=r"Delete .*/monday\.percola\.copying and begin again"):
        backup_network(repo, target)


def test_a_target_that_is_not_empty_is_refused_before_a_backup_is_restored_beside_its_file(
    repo: Repository, tmp_path: Path
) -> None:
    file = tmp_path / "monday.percola"
    backup_network(repo, file)
    percola.open(tmp_path / "full", TABLES).close()
    restored: list[int] = []
    with pytest.raises(NotARepositoryError, match="has a repository with the table"):
        restore_network(
            file, str(tmp_path / "full"), progress=lambda done, _: restored.append(done)
        )
    assert restored == []
    assert {one.name for one in tmp_path.iterdir()} == {"full", "monday.percola"}

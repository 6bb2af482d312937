"""What a user sees when the disk is full, the file damaged, or the system says no.

Each test runs in a process of its own, which limits itself.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import engines
import pytest
from children import Child, hear, say
from forked import in_child

import percola
from percola import (
    RepositoryError,
    StoreError,
    StoreFullError,
    Table,
    Transaction,
    observer,
)
from percola.cells import Cell, Kind
from percola.inspection import processes
from percola.observers.worker import Worker
from percola.store.base import Put, RowMutation
from percola.store.capabilities import scan_cells, scan_columns
from percola.store.lmdb.environment import Environment
from percola.store.lmdb.store import LmdbStore

MEGABYTE = 1 << 20
NOBODY = 65534

docs = Table("docs")
body = docs.column("body")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A file system of 8 MB; None where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def until_it_fails(write: Callable[[int], object]) -> tuple[int, StoreError]:
    """Call `write(0)`, `write(1)`, … until it raises: how often it went well, and the error."""
    for i in range(1000):
        try:
            write(i)
        except StoreError as error:
            return i, error
    raise AssertionError("it never failed")


def fill_and_go_on(pipe: Connection, folder: Path, limit: int | None) -> None:
    """Fill what room there is, be told to go on when there is more, and check what is there."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    repo = percola.open(folder, schema=[docs])

    def write(i: int) -> None:
        repo.run(lambda t: t.set(body, str(i), b"%03d" % i * 30_000))

    written, error = until_it_fails(write)
    assert isinstance(error, StoreFullError)
    assert "no room left on the disk" in str(error)
    assert error.__cause__ is not None
    assert written > 10
    check(repo, written)
    # A small one may fit or not, but it tells the truth.
    with contextlib.suppress(StoreFullError):
        repo.run(lambda t: t.set(body, "small", b"x"))
    say(pipe, written)
    hear(pipe)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for i in range(written, written + 5):
        write(i)
    check(repo, written + 5)
    repo.close()


def check(repo: percola.Repository, written: int) -> None:
    snapshot = repo.snapshot()
    for i in range(written):
        assert snapshot.get(body, str(i)) == b"%03d" % i * 30_000, i


def check_all(pipe: Connection, folder: Path, written: int) -> None:
    with percola.open(folder, schema=[docs]) as repo:
        check(repo, written)


def test_a_full_disk_is_told_loses_nothing_and_work_goes_on_once_there_is_room(
    tmp_path: Path, small_disk: Path | None
) -> None:
    limit = 5 * MEGABYTE if small_disk is None else None
    place = small_disk or tmp_path
    ballast = place / "ballast"
    ballast.write_bytes(bytes(3 * MEGABYTE))
    with Child(fill_and_go_on, place / "repo", limit) as child:
        written = child.hear()
        # While it is full, the repository can be opened and read.
        with Child(check_all, place / "repo", written) as reader:
            reader.hear()
        ballast.unlink()
        child.tell()
        child.hear()


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    with Child(fill_and_go_on, tmp_path / "repo", 3 * MEGABYTE) as child:
        child.hear()
        child.tell()
        child.hear()


@pytest.mark.parametrize("name", engines.ENGINES)
def test_a_store_that_was_begun_with_room_for_a_part_of_its_first_pages_is_begun_again(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "store"
    with engines.using(name):
        Environment(folder, [b"one"]).close()
        (folder / "data.mdb").unlink()  # The other files are there.

        def open_with_little_room() -> None:
            most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getpagesize(), most[1]))
            for _ in range(2):
                with pytest.raises(StoreFullError, match="Make room and try again"):
                    Environment(folder, [b"one"])
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
            Environment(folder, [b"one"]).close()

        assert in_child(open_with_little_room) == "None"


def overwritten(data: bytes) -> bytes:
    return os.urandom(16_384) + data[16_384:]


def text(data: bytes) -> bytes:
    return b"This is no repository at all.\n" * 1000


def zeros(data: bytes) -> bytes:
    return bytes(len(data))


def stub(data: bytes) -> bytes:
    return data[:100]


@pytest.mark.parametrize("damage", [overwritten, text, zeros, stub])
def test_a_damaged_file_is_one_clear_error_and_is_left_as_it_is(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path / "repo"
    with percola.open(folder, schema=[docs]) as repo:
        repo.run(lambda t: t.set(body, "a", b"v" * 100_000))
    file = folder / "store" / "data.mdb"
    sound = file.read_bytes()
    damaged = damage(sound)
    file.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(StoreError, match="damaged") as caught:
            percola.open(folder, schema=[docs])
        assert str(folder) in str(caught.value)
        assert "backup" in str(caught.value)
    assert file.read_bytes() == damaged
    # The same process opens it once it has been restored.
    file.write_bytes(sound)
    with percola.open(folder, schema=[docs]) as repo:
        assert repo.snapshot().get(body, "a") == b"v" * 100_000


@pytest.mark.parametrize("name", engines.ENGINES)
def test_a_damaged_page_is_named_as_such_by_every_read_of_it_and_others_go_on(
    tmp_path: Path, name: str
) -> None:
    rows = [f"{at:04}" for at in range(300)]
    bad, sound = rows[150], rows[0]
    folder = tmp_path / "repo"
    with percola.open(folder, schema=[docs]) as repo:
        repo.run(lambda t: [t.set(body, row, b"v" * 200) for row in rows])
    file = folder / "store" / "data.mdb"
    data = bytearray(file.read_bytes())
    for at in range(0, len(data), 4096):
        page = data[at : at + 4096]
        if page[10] == 2 and bad.encode() + b"\0\1" in page:  # A leaf.
            data[at : at + 4096] = bytes(4096)
    file.write_bytes(data)
    with engines.using(name), percola.open(folder, schema=[docs]) as repo:
        now, store, key = repo.snapshot(), repo.context.store, bad.encode()
        where: Any = ("docs", key, key + b"\0", now.start_ts)
        calls: list[Callable[[], object]] = [
            lambda: now.get(body, bad),
            lambda: now.get_many([(body, bad)]),
            lambda: now.get_row(docs, bad),
            lambda: scan_columns(store, *where, [b"body"]),
            lambda: scan_cells(store, *where, None),
            lambda: repo.run(lambda t: t.set(body, bad, b"w")),
        ]
        for call in calls:
            with pytest.raises(StoreError, match=r"is damaged .* Restore it from a backup\.$"):
                call()
            assert now.get(body, sound) == now.get_many([(body, sound)])[0] == b"v" * 200


def open_as_nobody(pipe: Connection, folder: Path) -> list[str]:
    # `percola` imports names at their first use, which `nobody` may not be allowed to.
    open_repository, expected = percola.open, percola.RepositoryError
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    errors = []
    for _ in range(2):
        try:
            open_repository(folder, schema=[docs])
        except expected as error:
            errors.append(str(error))
    return errors


def test_a_repository_of_another_user_is_said_to_be_one_and_not_damaged() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "repo"
        percola.open(folder, schema=[docs]).close()
        Path(place).chmod(0o755)
        folder.chmod(0o700 if os.getuid() == 0 else 0)
        try:
            with Child(open_as_nobody, folder) as child:
                errors = child.hear()
        finally:
            folder.chmod(0o755)
        what = f"The repository {folder} cannot be used: Permission denied. Work as a user who may"
        for error in errors:
            assert error.startswith(what) and error.endswith(f" it belongs to {folder.owner()}.")
        assert len(errors) == 2


def test_a_folder_that_may_not_be_written_is_one_clear_error() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "repo"
        with percola.open(folder, schema=[docs]) as repo:
            repo.run(lambda t: t.set(body, "a", b"v"))
        Path(place).chmod(0o755)
        parts = [folder, *folder.rglob("*")]
        for part in parts:
            part.chmod(0o555 if part.is_dir() else 0o444)
        try:
            with Child(open_as_nobody, folder) as child:
                errors = child.hear()
        finally:
            for part in parts:
                part.chmod(0o755)
        assert len(errors) == 2
        for error in errors:
            assert str(folder) in error
            assert "cannot be opened for writing" in error
            assert "Permission denied" in error


# --- Address space ----------------------------------------------------------------------


def work_in_little_address_space(pipe: Connection, folder: Path, spare: int) -> int:
    store = LmdbStore(folder, durability="relaxed")
    store.create_tables(["t"])
    store.close()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))
    store = LmdbStore(folder, durability="relaxed")

    def value(i: int) -> list[tuple[int, bytes]]:
        return store.entries(Cell("t", b"%d" % i, b"c"), Kind.DATA, 0, 9)

    def write(i: int) -> None:
        put = Put(Kind.DATA, b"c", 1, b"%03d" % i * 350_000)
        store.mutate([RowMutation("t", b"%d" % i, (), [put])])

    written, error = until_it_fails(write)
    assert isinstance(error, StoreFullError)
    assert "address space" in str(error)
    # What is there is read as before, by this process, and small writes may still fit.
    for i in range(written):
        assert value(i) == [(1, b"%03d" % i * 350_000)]
    assert value(written) == []
    store.close()
    return written


def test_with_little_address_space_a_store_holds_what_fits_and_says_why(tmp_path: Path) -> None:
    with Child(work_in_little_address_space, tmp_path, 200 * MEGABYTE) as child:
        written = child.hear()
    assert written > 20
    with_more = LmdbStore(tmp_path)
    for i in range(written):
        entries = with_more.entries(Cell("t", b"%d" % i, b"c"), Kind.DATA, 0, 9)
        assert entries == [(1, b"%03d" % i * 350_000)]
    with_more.close()


def read_with_little_memory(pipe: Connection, folder: Path) -> list[str]:
    """What reads of values raise for which the address space has no room."""
    table = Table("t")
    raw, text = table.column("raw"), table.column("text", str)
    told = []
    with percola.open(folder, [table], durability="relaxed") as repo:
        with repo.transaction() as t:
            t.set(raw, "a", b"short")
            t.set(raw, "b", bytes(40 * MEGABYTE))
            t.set(text, "b", "x" * 40 * MEGABYTE)
        with repo.snapshot() as now:
            assert now.get(raw, "a") == b"short"
            store, ts = repo.context.store, now.start_ts
            scan_columns(store, "t", b"", b"b", ts, [b"raw"])  # It imports what it needs.
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 24 * MEGABYTE, used + 24 * MEGABYTE))
            for read in (
                lambda: now.get(raw, "b"),
                lambda: now.get(text, "b"),
                lambda: now.get_many([(raw, "a"), (raw, "b")]),
                lambda: now.get_row(table, "b"),
                lambda: list(now.scan(table)),
                lambda: repo.versions(raw, "b"),
                lambda: scan_columns(store, "t", b"", b"", ts, [b"raw"]),
                lambda: scan_cells(store, "t", b"", b"", ts, None),
            ):
                try:
                    read()
                except MemoryError:
                    told.append("MemoryError")
                assert now.get(raw, "a") == b"short"
    return told


@pytest.mark.long  # It writes 80 MB.
def test_a_value_for_which_there_is_no_memory_is_a_memory_error(tmp_path: Path) -> None:
    with Child(read_with_little_memory, tmp_path / "repo") as child:
        assert child.hear() == ["MemoryError"] * 8


@pytest.mark.parametrize("replaced", [False, True])
def test_a_repository_that_was_removed_while_open_is_not_opened_again(
    tmp_path: Path, replaced: bool
) -> None:
    """Its store would take commits that no other process ever sees, and that are then gone."""
    folder, moved = tmp_path / "repo", tmp_path / "moved"
    with percola.open(folder, [docs]) as repo:
        repo.run(lambda t: t.set(body, "a", b"1"))
        folder.rename(moved)
        if replaced:
            shutil.copytree(moved, folder)
        with pytest.raises(RepositoryError, match="removed or replaced while this process"):
            percola.open(folder, [docs])
        assert folder.exists() == replaced
        if not replaced:
            with pytest.raises(RepositoryError, match="No such file"):
                processes(repo)
    with percola.open(folder, [docs]) as again:
        assert again.snapshot().get(body, "a") == (b"1" if replaced else None)


@pytest.mark.parametrize("replaced", [False, True])
def test_after_a_fork_a_process_does_not_go_on_in_a_repository_that_took_the_place_of_its_own(
    tmp_path: Path, replaced: bool
) -> None:
    """It knows tables by the numbers that they had in its own."""
    folder, restored = tmp_path / "repo", tmp_path / "restored"
    others = Table("others")
    other = others.column("other")
    percola.open(restored, [others]).close()
    with percola.open(folder, [docs]) as repo:
        repo.run(lambda t: t.set(body, "a", b"1"))
        folder.rename(tmp_path / "moved")
        if replaced:
            restored.rename(folder)

        def write() -> None:
            with pytest.raises(RepositoryError, match="removed or replaced while this process"):
                repo.run(lambda t: t.set(body, "b", b"2"))

        assert in_child(write) == "None"
        write()
        with pytest.raises(RepositoryError, match="open it again"):
            repo.snapshot().get(body, "a")
        assert folder.exists() == replaced
    with percola.open(folder, [docs, others]) as again:
        assert list(again.snapshot().scan(others, columns=[other])) == []
        assert list(again.snapshot().scan(docs)) == []


@pytest.mark.parametrize("replaced", [False, True])
def test_a_worker_ends_if_its_repository_is_removed(
    tmp_path: Path, replaced: bool, wait_until: Callable[..., object]
) -> None:
    """It would go on answering what no other process writes any more."""
    folder, moved = tmp_path / "repo", tmp_path / "moved"
    followed = Table("followed")
    seen = followed.column("seen", bytes, observed=True)

    @observer(seen)
    def nothing(t: Transaction, row: str) -> None:
        pass

    with percola.open(folder, [followed]) as repo, ThreadPoolExecutor(1) as pool:
        worker = Worker(repo, [nothing], timeout=1.0)
        running = pool.submit(worker.run)
        try:
            # It announces its observers, and then makes the file by which it is woken.
            wait_until(lambda: any((folder / "wake").iterdir()), what="its start")
            folder.rename(moved)
            if replaced:
                shutil.copytree(moved, folder, ignore=shutil.ignore_patterns("wake"))
            with pytest.raises(RepositoryError, match="removed or replaced while this process"):
                running.result(30)
        finally:
            with contextlib.suppress(RepositoryError):
                worker.stop()

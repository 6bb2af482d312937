"""A backup is one moment of a repository that others go on changing, whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import itertools
import json
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import engines
import pytest
from children import Child, hear, say
from commands import python
from forked import in_child, open_no_more
from stores import Crashed, CrashingStore

import percola
from percola import (
    ConflictingOptionsError,
    NotARepositoryError,
    Repository,
    StoreError,
    StoreFullError,
    Table,
    Transaction,
    Worker,
    observer,
)
from percola.errors import DamagedRecordError, RepositoryVersionError
from percola.inspection import durability
from percola.maintenance.backup import Backup, backup, encode_header, read_header, restore
from percola.maintenance.check import Counts, check
from percola.maintenance.copy import copy_repository
from percola.maintenance.origin import origin
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import OneStepStore
from percola.store.lmdb.copy import SnapshotCopy

bank = Table("bank")
bal = bank.column("bal", int, observed=True)
seen = bank.column("seen", int)
body = bank.column("body")
TABLES = [bank]
ACCOUNTS, EACH = 10, 100


@observer(bal)
def note(t: Transaction, row: str) -> None:
    t.set(seen, row, t.get(bal, row) or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with accounts in it, that nobody has open."""
    path = tmp_path / "repo"
    with percola.open(path, TABLES, durability="relaxed") as repo:
        fill(repo)
    return path


def fill(repo: Repository) -> None:
    with repo.transaction() as t:
        for i in range(ACCOUNTS):
            t.set(bal, str(i), EACH)


def assert_sound(repo: Repository) -> Counts:
    counts = Counts()
    assert list(check(repo, counts=counts)) == []
    assert counts.unsettled == 0
    return counts


def total(repo: Repository) -> int:
    snapshot = repo.snapshot()
    return sum(snapshot.get(bal, str(i)) or 0 for i in range(ACCOUNTS))


def made(folder: Path, **options: Any) -> tuple[bytes, Backup]:
    """A backup of a repository, and what it says of itself."""
    out = io.BytesIO()
    with percola.open(folder, TABLES) as repo:
        told = backup(repo, out, **options)
    assert read_header(io.BytesIO(out.getvalue()))[0] == told
    return out.getvalue(), told


def enlarge(folder: Path, size: int) -> None:
    with percola.open(folder, TABLES) as repo:
        repo.run(lambda t: t.set(body, "0", os.urandom(size)))


def left_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


# --- Whole ------------------------------------------------------------------------------


def test_a_restored_repository_is_the_one_that_was_backed_up(folder: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup", tmp_path / "other"
    large = os.urandom(3_000_000)
    with percola.open(folder, TABLES) as repo:
        repo.run(lambda t: t.set(body, "0", large))
        last = repo.context.oracle.read_timestamp()
        told = backup(repo, file)
        repo.run(lambda t: t.set(bal, "0", 0))
    assert (told.timestamp, told.durability) == (last, "relaxed")
    assert restore(file, other) == told
    with percola.open(other, TABLES, create=False) as repo:
        assert repo.context.oracle.read_timestamp() == last
        assert repo.snapshot().get(body, "0") == large
        assert total(repo) == ACCOUNTS * EACH
        assert repo.context.oracle.timestamp() > last
        assert assert_sound(repo).notifications == ACCOUNTS
        Worker(repo, [note], threads=1).run_until_idle()
        assert repo.is_idle()
        assert_sound(repo)
    assert json.loads((other / "percola.json").read_text())["durability"] == "relaxed"
    assert left_in(tmp_path) == ["backup", "other", "repo"]


def test_an_empty_folder_may_be_restored_into(folder: Path, tmp_path: Path) -> None:
    raw, _ = made(folder)
    (tmp_path / "other").mkdir()
    restore(io.BytesIO(raw), tmp_path / "other")
    with percola.open(tmp_path / "other", TABLES) as repo:
        assert total(repo) == ACCOUNTS * EACH


def test_free_pages_are_left_out(folder: Path) -> None:
    with percola.open(folder, TABLES) as repo:
        for _ in range(30):
            repo.run(lambda t: t.set(body, "0", os.urandom(100_000)))
        used = (folder / "store" / "data.mdb").stat().st_size
        repo.collect_garbage(retention=0)
    raw, told = made(folder)
    assert len(raw) < 400_000 < 3_000_000 < told.most_bytes <= used + 100_000


def test_a_backup_imports_no_module_of_the_current_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "current"
    current.mkdir()
    (current / "lmdb.py").write_text("raise SystemExit('It was imported.')")
    monkeypatch.chdir(current)
    with percola.open(folder, TABLES) as repo:
        backup(repo, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")


def test_a_backup_imports_no_module_beside_percola_in_place_of_pythons_own(
    folder: Path, tmp_path: Path
) -> None:
    """As an old package for earlier versions of Python that is installed beside it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "pathlib.py").write_text("raise SystemExit('It was imported.')")
    (site / "percola").symlink_to(Path(percola.__file__).parent)
    program = f"""
import sys
installed = [one for one in sys.path if "site-packages" in one]
sys.path.insert(sys.path.index(installed[0]), {str(site)!r})
import percola
from percola.maintenance.backup import backup
assert percola.__file__.startswith({str(site)!r})
with percola.open({str(folder)!r}, create=False) as repo:
    backup(repo, {str(tmp_path / "backup")!r})
"""
    answer = python(program, PYTHONPATH="")
    assert answer.code == 0, answer.err
    restore(tmp_path / "backup", tmp_path / "restored")


def test_a_program_that_has_changed_its_folder_backs_up_what_it_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with percola.open(folder.name, TABLES) as repo:
        monkeypatch.chdir("/")
        backup(repo, tmp_path / "backup")
        assert durability(repo) == "relaxed"
        copy_repository(repo, str(tmp_path / "copy"))
    with percola.open(tmp_path / "copy", TABLES) as copied:
        of = origin(copied.context.store)
        assert of is not None and of.source == str(folder)
    restore(tmp_path / "backup", tmp_path / "restored")
    with percola.open(tmp_path / "restored", TABLES) as restored:
        assert total(restored) == ACCOUNTS * EACH


def test_a_backup_takes_no_room_but_that_of_its_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk with the repository and the temporary files may be full."""

    def full(*_: object, **__: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", full)
    monkeypatch.setattr(tempfile, "_gettempdir", full)
    with percola.open(folder, TABLES) as repo:
        backup(repo, tmp_path / "backup")
        (folder / "store" / "data.mdb").rename(tmp_path / "lost")
        with pytest.raises(StoreError, match=r"could not be copied: .*No such file"):
            backup(repo, tmp_path / "another")
    restore(tmp_path / "backup", tmp_path / "restored")


def test_a_folder_whose_path_is_not_utf_8_is_backed_up(folder: Path, tmp_path: Path) -> None:
    engines.native()  # py-lmdb opens no such path.
    odd = folder.with_name("rep\udcff")
    folder.rename(odd)
    with percola.open(odd, TABLES) as repo:
        backup(repo, tmp_path / "backup\udcff")
    restore(tmp_path / "backup\udcff", tmp_path / "restored\udcff")
    with percola.open(tmp_path / "restored\udcff", TABLES) as repo:
        assert total(repo) == ACCOUNTS * EACH
    with engines.using("python"), pytest.raises(StoreError, match="path is not UTF-8"):
        percola.open(odd, TABLES)


def test_progress_goes_up_to_the_end(folder: Path, tmp_path: Path) -> None:
    enlarge(folder, 3_000_000)
    steps: list[tuple[int, int]] = []
    raw, _ = made(folder, progress=lambda *step: steps.append(step))
    assert len(steps) > 3
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1] <= len(raw)
    again: list[tuple[int, int]] = []
    restore(io.BytesIO(raw), tmp_path / "other", progress=lambda *step: again.append(step))
    assert [done for done, _ in again] == [done for done, _ in steps]


# --- Beside others ----------------------------------------------------------------------


def transfer_on_and_on(pipe: Connection, folder: Path, two_phase: bool) -> None:
    with percola.open(folder, TABLES, one_step=not two_phase) as repo:
        for number in itertools.count():

            def move(t: Transaction, number: int = number) -> None:
                a, b = str(number % ACCOUNTS), str((number * 7 + 1) % ACCOUNTS)
                if a != b:
                    t.set(bal, a, (t.get(bal, a) or 0) - 1)
                    t.set(bal, b, (t.get(bal, b) or 0) + 1)
                t.set(body, a, os.urandom(20_000))

            repo.run(move, attempts=10_000)
            if number == 20:
                say(pipe)


def observe_on_and_on(pipe: Connection, folder: Path) -> None:
    with percola.open(folder, TABLES) as repo:
        say(pipe)
        Worker(repo, [note], threads=2).run()


def test_a_backup_beside_writers_and_a_worker_is_one_moment(folder: Path, tmp_path: Path) -> None:
    backups = []
    with (
        Child(transfer_on_and_on, folder, False) as one,
        Child(transfer_on_and_on, folder, True) as two,
        Child(observe_on_and_on, folder) as three,
        percola.open(folder, TABLES) as repo,
    ):
        for child in (one, two, three):
            child.hear()
        for i in range(4):
            before = repo.context.oracle.read_timestamp()
            backups.append(backup(repo, tmp_path / f"{i}"))
            after = repo.context.oracle.read_timestamp()
            assert before <= backups[-1].timestamp < after, "nobody wrote beside the backup"
    for i, told in enumerate(backups):
        restore(tmp_path / f"{i}", tmp_path / f"restored-{i}")
        with percola.open(tmp_path / f"restored-{i}", TABLES) as repo:
            counts = assert_sound(repo)
            assert counts.pending == 0
            assert counts.last_ts == told.timestamp
            assert total(repo) == ACCOUNTS * EACH
            Worker(repo, [note], threads=1).run_until_idle()
            snapshot = repo.snapshot()
            for account in range(ACCOUNTS):
                assert snapshot.get(seen, str(account)) == snapshot.get(bal, str(account))
                snapshot.get(body, str(account))  # Whoever meets a lock resolves it.
            assert assert_sound(repo).left == 0


@pytest.mark.parametrize(("after", "locks", "first"), [(1, 1, EACH), (2, 2, EACH), (3, 1, 0)])
def test_locks_of_writers_that_were_under_way_resolve_in_what_is_restored(
    folder: Path, tmp_path: Path, after: int, locks: int, first: int
) -> None:
    with percola.open(folder, TABLES) as repo:
        context = repo.context
        store = context.store
        assert isinstance(store, OneStepStore)
        crashing = CrashingStore(store, after + 1)
        dying = Repository(
            repo.address, crashing, EmbeddedOracle(store), context.coordination, TABLES
        )
        t = dying.transaction(two_phase=True)
        t.set(bal, "0", 0)
        t.set(bal, "1", 2 * EACH)
        crashing.armed = True
        with pytest.raises(Crashed):
            t.commit()
        counts = Counts()
        assert not list(check(repo, counts=counts))
        assert (counts.pending, counts.left) == (locks, 0)
        backup(repo, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "other")
    with percola.open(tmp_path / "other", TABLES) as repo:
        counts = assert_sound(repo)
        assert (counts.pending, counts.left) == (0, locks)
        assert total(repo) == ACCOUNTS * EACH
        assert repo.snapshot().get(bal, "0") == first
        assert assert_sound(repo).left == 0


def test_a_program_goes_on_forking_and_growing_while_it_is_backed_up(folder: Path) -> None:
    class Slow(io.BytesIO):
        """A target that is written to only once the program has done something else."""

        def __init__(self, meanwhile: Callable[[], None]) -> None:
            super().__init__()
            self._meanwhile: Callable[[], None] | None = meanwhile

        def write(self, raw: Any) -> int:
            meanwhile, self._meanwhile = self._meanwhile, None
            if meanwhile:
                meanwhile()
            return super().write(raw)

    with percola.open(folder, TABLES) as repo:

        def meanwhile() -> None:
            repo.run(lambda t: t.set(body, "0", bytes(2_000_000)))
            child = os.fork()
            if child == 0:
                os._exit(0 if repo.snapshot().get(bal, "0") == EACH else 1)
            assert os.waitpid(child, 0)[1] == 0
            repo.context.store._environment._grow(2)  # type: ignore[attr-defined]

        out = Slow(meanwhile)
        told = backup(repo, out)
        assert repo.context.oracle.read_timestamp() > told.timestamp
    assert read_header(io.BytesIO(out.getvalue()))[0] == told


# --- Killed -----------------------------------------------------------------------------


def step_by_step(pipe: Connection) -> Callable[[int, int], None]:
    """Progress that is told, and goes on only when that is said."""

    def progress(done: int, expected: int) -> None:
        say(pipe, done)
        hear(pipe)

    return progress


def back_up_until_killed(pipe: Connection, folder: Path, file: Path) -> None:
    with percola.open(folder, TABLES) as repo:
        backup(repo, file, progress=step_by_step(pipe))


def restore_until_killed(pipe: Connection, file: Path, folder: Path) -> None:
    restore(file, folder, progress=step_by_step(pipe))


def kill_after(pieces: int, function: Callable[..., None], *arguments: Path) -> None:
    with Child(function, *arguments) as child:
        for _ in range(pieces):
            assert child.hear() > 0
            child.tell()
        child.hear()
        child.kill()


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_nothing_stands_under_its_name_after_kill_9_during_a_backup(
    folder: Path, tmp_path: Path, pieces: int
) -> None:
    enlarge(folder, 2_500_000)
    file = tmp_path / "backup"
    kill_after(pieces, back_up_until_killed, folder, file)
    assert not file.exists()
    with percola.open(folder, TABLES) as repo:
        backup(repo, file)
    restore(file, tmp_path / "other")


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_nothing_stands_under_its_name_after_kill_9_during_a_restore(
    folder: Path, tmp_path: Path, pieces: int
) -> None:
    with percola.open(folder, TABLES) as repo:
        repo.run(lambda t: t.set(body, "0", os.urandom(2_500_000)))
        backup(repo, tmp_path / "backup")
    other = tmp_path / "other"
    kill_after(pieces, restore_until_killed, tmp_path / "backup", other)
    assert not other.exists()
    restore(tmp_path / "backup", other)
    with percola.open(other, TABLES) as repo:
        assert total(repo) == ACCOUNTS * EACH


def test_the_copying_process_ends_with_the_one_that_asked_for_it(
    folder: Path, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    enlarge(folder, 5_000_000)

    def copying() -> list[Path]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # It has just ended.
                if str(folder / "store").encode() in path.read_bytes():
                    found.append(path)
        return found

    with Child(back_up_until_killed, folder, tmp_path / "backup") as child:
        child.hear()
        assert copying()
        child.kill()
    wait_until(lambda: not copying())


def test_a_backup_is_not_whole_without_the_word_of_the_copying_process(folder: Path) -> None:
    """Its exit status is not known to a program that ignores SIGCHLD."""
    enlarge(folder, 5_000_000)

    def copied(*, killed: bool) -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with SnapshotCopy(folder / "store") as copy:
            chunks = copy.chunks()
            size = len(next(chunks))
            if killed:
                copy._process.kill()
            return size + sum(map(len, chunks))

    why = "its process ended with no word on why."
    said = in_child(lambda: copied(killed=True))
    assert said == f"StoreError: The store in {folder / 'store'} could not be copied: {why}"
    assert int(in_child(lambda: copied(killed=False))) > 5_000_000


# --- Refused ----------------------------------------------------------------------------


def test_a_repository_in_memory_is_refused() -> None:
    with (
        percola.open("memory:", TABLES) as repo,
        pytest.raises(NotARepositoryError, match="memory"),
    ):
        backup(repo, io.BytesIO())


def test_a_repository_that_cannot_be_read_is_not_said_to_be_in_memory(folder: Path) -> None:
    with percola.open(folder, TABLES) as repo:

        def use() -> None:
            open_no_more()
            backup(repo, io.BytesIO())

        why = f"The repository {folder} cannot be backed up: Too many open files."
        assert in_child(use) == f"StoreError: {why}"
        description = folder / "percola.json"
        description.write_text("{}")
        with pytest.raises(DamagedRecordError, match=r"repo/percola\.json is damaged"):
            backup(repo, io.BytesIO())
        description.unlink()
        with pytest.raises(StoreError, match="cannot be backed up: No such file"):
            backup(repo, io.BytesIO())


def test_an_existing_file_is_never_overwritten(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    file.write_text("mine")
    with percola.open(folder, TABLES) as repo:
        with pytest.raises(ConflictingOptionsError, match="overwrites nothing"):
            backup(repo, file)

        def somebody_else(done: int, expected: int) -> None:
            (tmp_path / "late").write_text("mine")

        with pytest.raises(ConflictingOptionsError, match="overwrites nothing"):
            backup(repo, tmp_path / "late", progress=somebody_else)
    assert file.read_text() == (tmp_path / "late").read_text() == "mine"
    assert left_in(tmp_path) == ["backup", "late", "repo"]


def test_a_folder_with_something_in_it_is_never_restored_into(folder: Path, tmp_path: Path) -> None:
    raw, _ = made(folder)
    for target in (folder, tmp_path / "full", tmp_path / "file"):
        if target.name == "full":
            target.mkdir()
            (target / "mine").touch()
        elif target.name == "file":
            target.touch()
        with pytest.raises(ConflictingOptionsError, match="overwrites nothing"):
            restore(io.BytesIO(raw), target)

    def somebody_else(done: int, expected: int) -> None:
        (tmp_path / "late").mkdir(exist_ok=True)
        (tmp_path / "late" / "mine").touch()

    with pytest.raises(ConflictingOptionsError, match="overwrites nothing"):
        restore(io.BytesIO(raw), tmp_path / "late", progress=somebody_else)
    assert left_in(tmp_path) == ["file", "full", "late", "repo"]
    assert left_in(tmp_path / "late") == left_in(tmp_path / "full") == ["mine"]


class Unseekable(io.BytesIO):
    """What a pipe is like."""

    def seekable(self) -> bool:
        return False


class Dribbling(Unseekable):
    """What a socket without a buffer may be like: it takes and gives a part of what it could."""

    def write(self, raw: Any) -> int:
        return super().write(raw[: (len(raw) + 1) // 2])

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None and size > 0
        return super().read((size + 1) // 2)


def test_a_stream_may_take_and_give_a_part_at_a_time(folder: Path, tmp_path: Path) -> None:
    out = Dribbling()
    with percola.open(folder, TABLES) as repo:
        told = backup(repo, out)
    assert restore(Dribbling(out.getvalue()), tmp_path / "other") == told
    with percola.open(tmp_path / "other", TABLES) as repo:
        assert total(repo) == ACCOUNTS * EACH


@pytest.mark.parametrize("source", [io.BytesIO, Unseekable])
def test_a_backup_that_was_cut_short_or_changed_is_refused(
    folder: Path, tmp_path: Path, source: type[io.BytesIO]
) -> None:
    raw, _ = made(folder)
    header = raw.index(b"\n", raw.index(b"\n") + 1) + 1
    cuts = [0, 5, header - 1, header, header + 2, header + 4, 5000, len(raw) - 33, len(raw) - 1]
    damaged = [raw[:cut] for cut in cuts]
    for at in (3, header - 5, header + 1, header + 5000, len(raw) - 35, len(raw) - 1):
        damaged.append(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    damaged.append(raw + b"more")
    for one in damaged:
        with pytest.raises(DamagedRecordError) as refused:
            restore(source(one), tmp_path / "other")
        assert len(str(refused.value).split(". ")) == 1
        assert left_in(tmp_path) == ["repo"]
    restore(source(raw), tmp_path / "other")


def test_a_compressed_backup_that_was_cut_short_or_is_none_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    raw = gzip.compress(made(folder)[0])
    for cut in (3, 30, len(raw) // 2, len(raw) - 1):
        with (
            gzip.open(io.BytesIO(raw[:cut])) as source,
            pytest.raises(DamagedRecordError, match="cut short"),
        ):
            restore(source, tmp_path / "other")
    with (
        gzip.open(io.BytesIO(b"text")) as source,
        pytest.raises(StoreError, match="cannot be read: Not a gzipped file"),
    ):
        restore(source, tmp_path / "other")
    with gzip.open(io.BytesIO(raw)) as source:
        restore(source, tmp_path / "other")
    assert left_in(tmp_path) == ["other", "repo"]


def test_a_backup_of_another_version_is_refused(folder: Path, tmp_path: Path) -> None:
    raw, told = made(folder)
    later = raw.replace(b"percola backup 1\n", b"percola backup 2\n", 1)
    with pytest.raises(RepositoryVersionError, match="another version"):
        restore(io.BytesIO(later), tmp_path / "other")
    head = encode_header(told)
    other = head.replace(b'"format": 1', b'"format": 7')
    assert other != head
    with pytest.raises(RepositoryVersionError, match="of format 7"):
        restore(io.BytesIO(other + raw[len(head) :]), tmp_path / "other")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        restore(tmp_path / "none", tmp_path / "other")
    with pytest.raises(StoreError, match="directory"):
        restore(tmp_path, tmp_path / "other")


def run_out_of_room(pipe: Connection, folder: Path, what: str, target: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
    if what == "restore":
        with pytest.raises(StoreFullError, match="File too large"):
            restore(folder.parent / "backup", target)
        return
    repo = percola.open(folder, TABLES)
    with pytest.raises(StoreFullError, match="File too large"):
        backup(repo, target)
    repo.close()


def find_no_room(pipe: Connection, folder: Path, target: Path) -> None:
    with percola.open(folder, TABLES) as repo:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        with pytest.raises(StoreFullError, match="File too large"):
            backup(repo, target)


def test_a_disk_without_any_room_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    """What is buffered then is written once more when the file is closed."""
    percola.open(folder, TABLES).close()
    before = left_in(tmp_path)
    with Child(find_no_room, folder, tmp_path / "target") as child:
        child.hear()
    assert left_in(tmp_path) == before


@pytest.mark.parametrize("what", ["backup", "restore"])
def test_a_full_disk_leaves_nothing_behind(folder: Path, tmp_path: Path, what: str) -> None:
    with percola.open(folder, TABLES) as repo:
        repo.run(lambda t: t.set(body, "0", os.urandom(3_000_000)))
        backup(repo, tmp_path / "backup")
    before = left_in(tmp_path)
    with Child(run_out_of_room, folder, what, tmp_path / "target") as child:
        child.hear()
    assert left_in(tmp_path) == before

"""Files of a repository's folder: permissions, full disks, and who holds a lock.

Each test on a full disk runs in a process of its own, for what it shows used to end the process.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from children import Child, hear, say
from commands import SECONDS
from needs import lack, need
from stores import in_thread

import percola
from percola import StoreError, StoreFullError, Table
from percola.coordination.local.coordination import LocalCoordination
from percola.maintenance.backup import backup, restore
from percola.platform import file_locks
from percola.platform.files import allocate, open_file

NOBODY = 65534
LEASES, SAFE_POINT, LOCKS = "leases", "store/safe-point", "store/lock.mdb"

docs = Table("docs")
body = docs.column("body", observed=True)


def make(folder: Path) -> None:
    with percola.open(folder, schema=[docs]) as repo:
        with repo.transaction(two_phase=True) as t:
            t.set(body, "a", b"v")
        assert repo.context.coordination.try_lock("docs", b"a")
        repo.collect_garbage(retention=0)


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


def test_no_file_of_a_repository_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """What a library wrote to standard error was written into the file of LMDB's locks."""
    program = (
        "import os, percola\n"
        "with percola.open('repo', schema=[percola.Table('docs')]), open('numbers', 'w') as file:\n"
        "    for number in range(3):\n"
        "        print(os.readlink(f'/proc/self/fd/{number}'), file=file)\n"
    )
    line = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=SECONDS)
    assert (tmp_path / "numbers").read_text() == "/dev/null\n" * 3


# --- Permissions ------------------------------------------------------------------------

DATA = {"percola.json", "store/data.mdb"}
FOLDERS = {".", "store", "live", "wake"}
LOCKED = {"rows.lock", LEASES, SAFE_POINT, LOCKS, "store/turn.lock"}


def test_a_new_repository_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make(tmp_path / "repo")
    finally:
        os.umask(before)
    found = modes(tmp_path / "repo")
    assert found.keys() == DATA | FOLDERS | LOCKED
    assert {name: oct(mode) for name, mode in found.items()} == {
        name: "0o700" if name in FOLDERS else "0o600" for name in found
    }


@pytest.mark.parametrize(
    ("folder_mode", "data_mode", "lock_mode"),
    [
        (0o700, 0o600, 0o600),
        (0o750, 0o640, 0o600),
        (0o755, 0o644, 0o600),
        (0o770, 0o660, 0o660),
        (0o775, 0o664, 0o660),
    ],
)
def test_in_a_folder_that_is_there_permissions_follow_the_folders(
    tmp_path: Path, folder_mode: int, data_mode: int, lock_mode: int
) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    folder.chmod(folder_mode)
    repo = percola.open(folder, schema=[docs])
    token = repo.context.coordination.token
    stop = repo.context.coordination.on_wake(lambda _: None)
    found = modes(folder)
    assert {found[name] for name in FOLDERS} == {folder_mode}
    assert {found[name] for name in DATA} == {data_mode}
    shared = {f"live/{token}", f"wake/{token}", SAFE_POINT, LOCKS, "store/turn.lock"}
    assert {name: oct(found[name]) for name in shared} == dict.fromkeys(shared, oct(lock_mode))
    stop()
    repo.close()


def test_lock_files_of_an_older_version_lose_excess_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    make(folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    make(folder)
    found = modes(folder)
    assert {oct(found[name]) for name in LOCKED} == {"0o600"}


def lock_as_nobody(pipe: Connection, folder: Path) -> list[str]:
    """The files of a repository that another local user can lock."""
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    able = []
    for path in sorted(folder.rglob("*")):
        if not path.is_dir():
            try:
                fd = os.open(path, os.O_RDONLY)
            except PermissionError:
                continue
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            able.append(path.name)
    return able


def require_root() -> None:
    need("root")
    if os.geteuid() != 0:
        lack("root", "Acting as another user and mounting a disk take root: run the tests as root.")


def test_a_user_who_may_only_read_the_folder_can_lock_none_of_its_lock_files() -> None:
    require_root()
    place = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    folder = place / "repo"
    try:
        folder.mkdir()
        place.chmod(0o755)
        folder.chmod(0o755)
        make(folder)
        with Child(lock_as_nobody, folder) as stranger:
            assert sorted(stranger.hear()) == ["data.mdb", "percola.json"]
    finally:
        subprocess.run(["rm", "-rf", str(place)], check=True)


def test_what_root_makes_in_another_users_repository_belongs_to_that_user(tmp_path: Path) -> None:
    require_root()
    folder = tmp_path / "repo"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    make(folder)
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in folder.rglob("*")}
    assert owners == {(NOBODY, NOBODY)}


def test_what_root_restores_into_another_users_folder_belongs_to_that_user(tmp_path: Path) -> None:
    require_root()
    make(tmp_path / "repo")
    with percola.open(tmp_path / "repo") as repo:
        backup(repo, tmp_path / "file")
    folder = tmp_path / "restored"
    folder.mkdir(mode=0o750)
    os.chown(folder, NOBODY, NOBODY)
    restore(tmp_path / "file", folder)
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in (folder, *folder.rglob("*"))}
    assert owners == {(NOBODY, NOBODY)}
    assert folder.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    ("folder_mode", "umask", "backup_mode"),
    [(0o700, 0o022, 0o600), (0o755, 0o022, 0o644), (0o755, 0o077, 0o600), (0o770, 0o022, 0o640)],
)
def test_who_may_not_read_a_repository_may_not_read_its_backup(
    tmp_path: Path, folder_mode: int, umask: int, backup_mode: int
) -> None:
    folder, file = tmp_path / "repo", tmp_path / "file"
    folder.mkdir()
    folder.chmod(folder_mode)
    make(folder)
    before = os.umask(umask)
    try:
        with percola.open(folder) as repo:
            backup(repo, file)
    finally:
        os.umask(before)
    assert oct(file.stat().st_mode & 0o777) == oct(backup_mode)


@pytest.mark.parametrize(
    ("folder_mode", "backup_mode", "mode_in_the_group"),
    [(0o2770, 0o600, 0o640), (0o2775, 0o644, 0o644)],
)
def test_who_shares_only_the_group_of_who_makes_a_backup_may_not_read_it(
    tmp_path: Path, folder_mode: int, backup_mode: int, mode_in_the_group: int
) -> None:
    require_root()
    folder, shared = tmp_path / "repo", tmp_path / "shared"
    for path, mode in ((folder, folder_mode), (shared, 0o2755)):
        path.mkdir()
        os.chown(path, 0, NOBODY)
        path.chmod(mode)
    make(folder)
    before = os.umask(0o022)
    try:
        with percola.open(folder) as repo:
            backup(repo, tmp_path / "file")  # Of root's group.
            backup(repo, shared / "file")  # Of the repository's.
    finally:
        os.umask(before)
    assert oct((tmp_path / "file").stat().st_mode & 0o777) == oct(backup_mode)
    assert oct((shared / "file").stat().st_mode & 0o777) == oct(mode_in_the_group)


# --- Who holds a lock -------------------------------------------------------------------


@pytest.fixture
def logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged, of waits that have lasted for a hundredth of a second."""
    monkeypatch.setattr(file_locks, "LOGGED_AFTER", 0.01)
    with caplog.at_level(logging.WARNING, "percola.store"):
        yield caplog


def hold_turn(pipe: Connection, path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    say(pipe, "held")
    hear(pipe)


def test_a_writer_that_waits_for_another_process_logs_which_one_and_since_when(
    tmp_path: Path, logged: pytest.LogCaptureFixture, wait_until: Callable[..., object]
) -> None:
    make(tmp_path / "repo")
    turn = tmp_path / "repo" / "store" / "turn.lock"
    with (
        percola.open(tmp_path / "repo", schema=[docs]) as repo,
        Child(hold_turn, turn) as holder,
    ):
        holder.hear()
        writing = in_thread(lambda: repo.run(lambda t: t.set(body, "b", b"v")))
        wait_until(lambda: f"held by process {holder.pid}" in logged.text)
        text = next(one for one in logged.messages if f"held by process {holder.pid}" in one)
        assert text.startswith(f"process {os.getpid()} has waited since ")
        assert f"for the lock {turn}, which is held by process {holder.pid} (user root" in text
        holder.tell()
        writing.result(20)


def test_a_writer_waits_also_where_no_thread_can_be_started_that_would_log_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "repo")
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name != "percola-lock-wait":
            return start(thread)
        holder.tell()
        raise RuntimeError("can't start new thread")

    with (
        percola.open(tmp_path / "repo", schema=[docs]) as repo,
        Child(hold_turn, tmp_path / "repo" / "store" / "turn.lock") as holder,
        monkeypatch.context() as patch,
    ):
        holder.hear()
        patch.setattr(threading.Thread, "start", fail)
        repo.run(lambda t: t.set(body, "b", b"v"))
        assert repo.snapshot().get(body, "b") == b"v"


def hold_announcing(pipe: Connection, path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, 1 << 62)
    say(pipe, "held")
    hear(pipe)


def test_a_worker_that_waits_to_announce_its_observers_logs_for_whom(
    tmp_path: Path, logged: pytest.LogCaptureFixture, wait_until: Callable[..., object]
) -> None:
    make(tmp_path / "repo")
    coordination = LocalCoordination(tmp_path / "repo")
    with Child(hold_announcing, tmp_path / "repo" / "rows.lock") as holder:
        holder.hear()
        announcing = in_thread(lambda: coordination.announce_observers({"docs.body": ["one"]}))
        holder_named = f"held by process {holder.pid} (user root"
        wait_until(lambda: any(holder_named in one.getMessage() for one in logged.records))
        holder.tell()
        announcing.result(20)
    coordination.close()


def test_a_wait_that_ends_while_its_holder_is_looked_up_is_not_logged(
    logged: pytest.LogCaptureFixture,
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def held_by() -> list[file_locks.Holder]:
        asked.set()
        assert answer.wait(20)
        return []

    before = set(threading.enumerate())
    wait = file_locks.Wait("a lock", held_by)
    with wait.waiting():
        assert asked.wait(20)
        (watcher,) = set(threading.enumerate()) - before
    wait.close()
    answer.set()
    watcher.join(20)
    assert "a lock" not in logged.text


def test_files_that_are_mapped_have_all_their_blocks(tmp_path: Path) -> None:
    make(tmp_path / "repo")
    for name in (LEASES, SAFE_POINT, LOCKS):
        about = (tmp_path / "repo" / name).stat()
        assert about.st_blocks * 512 >= about.st_size > 0, name


# --- A full disk ------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    require_root()
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        lack("root", f"No disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_mounted_read_only_is_told_with_what_to_do(disk: Path) -> None:
    """As a worker meets it under systemd, whose ProtectSystem= mounts all folders so."""
    make(disk / "repo")
    seen = disk / "seen"
    seen.mkdir()
    folder = seen / "repo"
    subprocess.run(["mount", "--bind", str(disk), str(seen)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(seen)], check=True)
        with pytest.raises(StoreError) as raised:
            percola.open(folder, create=False)
    finally:
        subprocess.run(["umount", "--lazy", str(seen)], check=True)
    told = str(raised.value)
    assert f"{folder / 'store'} cannot be opened for writing" in told
    assert "Read-only file system" in told and "ReadWritePaths" in told


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast


def make_sparse(path: Path) -> None:
    """As an older version has left it: of full length, and without blocks."""
    size = path.stat().st_size
    path.unlink()
    with open(path, "xb") as file:
        file.truncate(size)
    assert path.stat().st_blocks == 0


def use(pipe: Connection, folder: Path) -> dict[str, str]:
    """What becomes of each use of a repository: an error's name, or what was read."""
    told = {}

    def attempt(name: str, function: Callable[[], object]) -> None:
        try:
            told[name] = str(function())
        except StoreFullError as error:
            told[name] = "full" if "no room left on the disk" in str(error) else str(error)

    try:
        repo = percola.open(folder, schema=[docs])
    except StoreFullError as error:
        return {"open": "full" if "no room left on the disk" in str(error) else str(error)}

    def write(two_phase: bool) -> None:
        with repo.transaction(two_phase=two_phase) as t:
            t.set(body, "b", b"v" * 100_000)

    coordination = repo.context.coordination
    attempt("read", lambda: repo.snapshot().get(body, "a"))
    attempt("write", lambda: write(False))
    attempt("two phases", lambda: write(True))
    attempt("token", lambda: bool(coordination.token))
    attempt("oldest reader", coordination.oldest_held)
    attempt("announce", lambda: coordination.announce_observers({"docs.body": ["x" * 9000]}))
    repo.close()
    return told


def test_on_a_full_disk_a_repository_is_read_and_every_write_says_it_is_full(disk: Path) -> None:
    make(disk / "repo")
    fill(disk)
    with Child(use, disk / "repo") as child:
        told = child.hear()
    assert told == {
        "read": "b'v'",
        "write": "full",
        "two phases": "full",
        "token": "full",
        "oldest reader": told["oldest reader"],
        "announce": "full",
    }
    assert not list((disk / "repo").glob("live-*")), "nothing half made is left"


def test_on_a_full_disk_without_its_leases_a_repository_is_still_read(disk: Path) -> None:
    make(disk / "repo")
    (disk / "repo" / LEASES).unlink()
    fill(disk)
    with Child(use, disk / "repo") as child:
        told = child.hear()
    assert (told["read"], told["write"], told["oldest reader"]) == ("b'v'", "full", "full")


@pytest.mark.parametrize("name", [SAFE_POINT, LOCKS, LEASES])
@pytest.mark.parametrize("spoil", [Path.unlink, make_sparse])
def test_a_mapped_file_without_blocks_is_no_crash_on_a_full_disk(
    disk: Path, name: str, spoil: Callable[[Path], object]
) -> None:
    make(disk / "repo")
    spoil(disk / "repo" / name)
    ballast = fill(disk)
    with Child(use, disk / "repo") as child:
        told = child.hear()
    assert told["oldest reader" if name == LEASES else "open"] == "full"
    ballast.unlink()
    with Child(use, disk / "repo") as child:
        assert child.hear()["write"] == "None"


def test_no_repository_is_made_on_a_full_disk(disk: Path) -> None:
    ballast = fill(disk)
    with Child(use, disk / "repo") as child:
        assert child.hear() == {"open": "full"}
    ballast.unlink()
    with Child(use, disk / "repo") as child:
        assert child.hear()["write"] == "None"


@pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_where_blocks_cannot_be_reserved_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    fd = open_file(tmp_path / "file")
    os.pwrite(fd, b"there already", 0)
    allocate(fd, 10_000)
    os.fsync(fd)
    file = os.fstat(fd)
    assert (file.st_size, file.st_blocks * 512 >= 10_000) == (10_000, True)
    assert os.pread(fd, 20, 0) == b"there already" + bytes(7)
    os.close(fd)

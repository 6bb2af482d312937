"""Backups of a repository: one file with a consistent snapshot, taken while writers run.

    percola backup 1                      the file type, and the version of this layout
    {"format": 1, "timestamp": 4711, …}   one line of JSON: `Backup`
    length (4 bytes) ‖ that many bytes    LMDB's file, in pieces …
    00000000                              … up to an empty one
    SHA-256 (32 bytes)                    of all of the above

A backup holds every transaction that had committed by its timestamp, and none that committed later.
Transactions in progress at that moment are in it as they were, with their locks and notify entries:
a restored repository is one whose processes have all just been killed. Readers that meet a lock
roll its transaction forward or back, workers run the pending observers, and new timestamps are
above all those in the backup.

A network store has no file to copy. Its repository is copied into a folder beside the backup, at
one timestamp (`percola.maintenance.copy`, by this process or by Spark), and that folder is backed
up; to restore, the backup is restored to a folder beside it, which is copied to the store. The
folders (`….copying`, `….restored`, `….parts`) are removed in the end. A process that was killed
leaves them, and the next one goes on with them.

Backups and restored repositories are never visible in part: both are written under a temporary name
(`….partial-…`, `….restoring-…`: all that a killed process leaves), synced to disk, and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from percola import repository as repositories
from percola.connect.address import network_address
from percola.connect.local import FORMAT, folder_in_use, folder_of, sync_folder
from percola.errors import (
    ConflictingOptionsError,
    DamagedRecordError,
    NotARepositoryError,
    RepositoryVersionError,
    StoreError,
    StoreFullError,
    UsageError,
)
from percola.maintenance.copy import HELD, Copied, check_target, copy_repository
from percola.maintenance.origin import name_of, origin
from percola.maintenance.pieces import PieceWriter, read_pieces, read_up_to
from percola.platform.files import PRIVATE_FOLDER, is_full, make_folder, restrict
from percola.ranges import HERE, Runner
from percola.repository import Repository
from percola.store.lmdb.copy import CHUNK_BYTES, SnapshotCopy
from percola.store.lmdb.environment import DURABILITIES

_MAGIC: Final = b"percola backup 1\n"
_HEADER_BYTES: Final = 64 * 1024
_DESCRIPTION: Final = "percola.json"
_RESTORED: Final = "restored_from"

Progress = Callable[[int, int], None]
"""Called with the number of bytes done and the approximate total."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The header of a backup.

    Attributes:
        format: the version of the repository's format.
        durability: the repository's default: "full" or "relaxed".
        timestamp: the last timestamp handed out when its snapshot was taken: the backup holds every
            commit up to it, and none above.
        made_ms: when it was made, in milliseconds since the epoch.
        most_bytes: how many bytes the restored store needs on disk at most.
    """

    format: int
    durability: str
    timestamp: int
    made_ms: int
    most_bytes: int


def _nothing(done: int, expected: int) -> None:
    """Ignore progress."""


# --- The header -------------------------------------------------------------------------


def encode_header(backup: Backup) -> bytes:
    """The first bytes of a backup."""
    fields = {name: getattr(backup, name) for name in Backup.__slots__}
    return _MAGIC + json.dumps(fields).encode() + b"\n"


def read_header(source: IO[bytes]) -> tuple[Backup, bytes]:
    """Read the header of a backup; returns it and the bytes read.

    Raises DamagedRecordError if it is not a backup, RepositoryVersionError if its version differs.
    """
    magic = read_up_to(source, len(_MAGIC))
    if magic != _MAGIC:
        if magic.startswith(_MAGIC.rpartition(b" ")[0] + b" ") and magic.endswith(b"\n"):
            raise RepositoryVersionError("The backup was made by another version of Percola.")
        raise DamagedRecordError("This is not a backup that 'percola backup' has made.")
    line = source.readline(_HEADER_BYTES)
    try:
        fields = json.loads(line)
        backup = Backup(**{name: fields[name] for name in Backup.__slots__})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedRecordError("The backup is damaged: its header cannot be read.") from error
    numbers = (backup.format, backup.timestamp, backup.made_ms, backup.most_bytes)
    if (
        not line.endswith(b"\n")
        or any(type(number) is not int or not 0 <= number < 2**63 for number in numbers)
        or not isinstance(backup.durability, str)
    ):
        raise DamagedRecordError("The backup is damaged: its header cannot be read.")
    if backup.format != FORMAT:
        raise RepositoryVersionError(
            f"The backup is of a repository of format {backup.format}; this version of Percola "
            f"reads format {FORMAT}. Use the version that made it."
        )
    if backup.durability not in DURABILITIES:
        raise DamagedRecordError(
            f"The backup is damaged: the durability {backup.durability[:40]!r} is not known."
        )
    return backup, magic + line


# --- Making one -------------------------------------------------------------------------


def backup(
    repo: Repository,
    target: str | os.PathLike[str] | IO[bytes],
    *,
    progress: Progress = _nothing,
    made_ms: int | None = None,
) -> Backup:
    """Write a backup of the repository to a new file or an open stream; others may go on writing.

    A file can be read by those who can read the repository, less those whom the umask leaves out,
    and less the repository's group where the file is of another one.
    While it is written, the store keeps the pages that the snapshot needs, so pages rewritten
    meanwhile take additional disk space. `made_ms` is the time that it says it was made; None: now.

    Raises:
        NotARepositoryError: the repository is in memory only.
        DamagedRecordError: the description of the repository is damaged.
        ConflictingOptionsError: the file exists; it is left unchanged.
        StoreFullError: the disk is full; the partial backup is removed.
        StoreError: the store cannot be read, or the file cannot be written.
    """
    in_use = folder_in_use(repo.context.store)
    folder = in_use or Path(repo.address)
    description = folder / _DESCRIPTION
    if in_use is None and not description.exists():
        raise NotARepositoryError(
            f"{repo.address!r} is not a repository in a folder, so there is nothing to back up: "
            "one that is kept in memory ends with its process."
        )
    try:
        with _refusing(f"The repository {folder} cannot be backed up"):
            durability = json.loads(description.read_text())["durability"]
            readable = os.stat(description)
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedRecordError(
            f"{description} is damaged: it does not say what the repository is. Restore that file "
            "from an earlier backup, and begin again."
        ) from error
    context = repo.context
    with contextlib.ExitStack() as stack:
        out = target
        if isinstance(target, str | os.PathLike):
            out = stack.enter_context(_new_file(Path(target), readable))
        copy = stack.enter_context(SnapshotCopy(folder / "store"))
        at_ms = context.clock.wall_ms() if made_ms is None else made_ms
        made = Backup(FORMAT, durability, copy.ts, at_ms, copy.most_bytes)
        with _refusing("The backup cannot be written"):
            _write(made, copy, out, progress)
    return made


def backup_network(
    repo: Repository,
    target: str | os.PathLike[str],
    *,
    runner: Runner = HERE,
    copying: Callable[[Copied], object] = lambda copied: None,
    progress: Progress = _nothing,
) -> Backup:
    """Write a backup of a repository on a network store; others may go on writing.

    It is copied into a folder beside the file first, which takes as much space as the file. If an
    earlier call was interrupted, this one goes on, at the same timestamp, for up to six hours.

    Args:
        runner: who copies: this process, or tasks of Spark. Those on other machines write files to
            a folder `….copying.parts` beside it, which has to be on a path that all share.
        copying, progress: called while it is copied, and while the file is written.

    Raises what `percola.maintenance.copy.copy_repository` and `backup` raise, and UsageError if
    that folder has a finished copy of another repository, or an older one.
    """
    path = Path(target)
    if os.path.lexists(path):
        raise _taken(path)
    folder = path.with_name(f"{path.name}.copying")
    if not _is_whole(folder, repo):
        copy_repository(repo, os.fspath(folder), runner=runner, progress=copying)
    with repositories.open(folder, create=False) as copied:
        of = origin(copied.context.store)
        begun_ms = of.begun_ms if of is not None else 0
        made = backup(copied, path, progress=progress, made_ms=begun_ms or None)
    shutil.rmtree(folder, ignore_errors=True)
    return made


def _is_whole(folder: Path, repo: Repository) -> bool:
    """Whether an earlier call has copied everything, and was interrupted later.

    Raises UsageError for a copy of another repository, and for one that is old.
    """
    try:
        with repositories.open(folder, create=False) as copied:
            if not list(copied.schema):
                return False
            of = origin(copied.context.store)
    except NotARepositoryError:
        return False
    if of is None or of.source != name_of(repo.address):
        raise UsageError(
            f"{folder} has another repository than {name_of(repo.address)}: delete it, or name "
            "another file for the backup."
        )
    if repo.context.clock.wall_ms() - of.ended_ms > HELD * 1000:
        raise UsageError(
            f"{folder} was left by a backup that was interrupted long ago, and has the repository "
            "as it was then: delete it, and begin again."
        )
    return True


def _write(made: Backup, copy: SnapshotCopy, out: Any, progress: Progress) -> None:
    pieces = PieceWriter(out, encode_header(made))
    done = 0
    for chunk in copy.chunks():
        pieces.put(chunk)
        done += len(chunk)
        progress(done, made.most_bytes)
    pieces.end()
    out.flush()
    progress(done, done)


@contextlib.contextmanager
def _new_file(path: Path, readable: os.stat_result) -> Iterator[IO[bytes]]:
    """A file that is renamed to `path` once complete and on disk, and removed on any error.

    It gets the permissions of the file that is `readable`, less what the umask takes.
    """
    if os.path.lexists(path):
        raise _taken(path)
    temporary = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    with _refusing(f"No backup can be written to {path}"):
        make = functools.partial(os.open, mode=_mode_in(os.stat(path.parent), readable))
        file = open(temporary, "xb", opener=make)  # noqa: SIM115
    try:
        # Closing it writes what is still buffered, and fails again if there is no room.
        with _refusing(f"No backup can be written to {path}"), file:
            yield file
            _sync(file)
        with _refusing(f"No backup can be written to {path}"):
            try:
                # Unlike a rename, a link does not replace a file created there meanwhile.
                os.link(temporary, path)
            except FileExistsError:
                raise _taken(path) from None
            except OSError:
                temporary.rename(path)  # A file system without links.
            sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _mode_in(folder: os.stat_result, readable: os.stat_result) -> int:
    """The permissions of a new file in a folder, for those who may read the other file."""
    mode = readable.st_mode & 0o666 | 0o600
    group = folder.st_gid if folder.st_mode & stat.S_ISGID else os.getegid()
    if group != readable.st_gid:  # Then its members are others.
        mode = mode & ~0o060 | (mode & 0o006) << 3
    return mode


def _taken(path: Path) -> ConflictingOptionsError:
    return ConflictingOptionsError(
        f"{path} is there already, and a backup overwrites nothing: name another file."
    )


# --- Restoring one ----------------------------------------------------------------------


def restore(
    source: str | os.PathLike[str] | IO[bytes],
    folder: str | os.PathLike[str],
    *,
    progress: Progress = _nothing,
) -> Backup:
    """Create a repository from a backup, in a folder that is empty or does not exist.

    A file is read twice: nothing is written until its checksum was verified. A stream is read once,
    and the repository is renamed to its folder once the checksum was verified.

    Raises:
        DamagedRecordError: it is not a backup, or it was truncated or changed.
        RepositoryVersionError: it is of another version.
        NotARepositoryError: it is no folder, but the address of a store.
        ConflictingOptionsError: the folder is not empty, or it cannot be replaced, as the current
            directory and a mount point cannot.
        StoreFullError: the disk is full; the partial repository is removed.
        StoreError: the file cannot be read, or the repository cannot be written.
    """
    return _restore(source, folder_of(os.fspath(folder)), progress)


def _restore(
    source: str | os.PathLike[str] | IO[bytes],
    target: Path,
    progress: Progress,
    *,
    is_left_for_others: bool = False,
) -> Backup:
    """See `restore`. What is left for others says of which backup it is."""
    _check_free(target)
    with contextlib.ExitStack() as stack:
        stream: Any = source
        if isinstance(source, str | os.PathLike):
            with _refusing(f"The backup {os.fspath(source)} cannot be read"):
                stream = stack.enter_context(open(source, "rb"))
        if stream.seekable():
            with _refusing("The backup cannot be read"):
                begin = stream.tell()
                for _ in _pieces(stream, read_header(stream)[1]):
                    pass
                stream.seek(begin)
        found, head = read_header(stream)
        temporary = target.with_name(f"{target.name}.restoring-{secrets.token_hex(4)}")
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        with _refusing(f"No repository can be restored to {target}"):
            more = {_RESTORED: _identity(found)} if is_left_for_others else {}
            _fill(temporary, target, found, _pieces(stream, head), progress, more)
            _check_free(target)
            # Replaces an empty folder at most: the system refuses any other.
            temporary.rename(target)
            sync_folder(target.parent)
    return found


def restore_network(
    source: str | os.PathLike[str],
    address: str,
    *,
    runner: Callable[[Repository], AbstractContextManager[Runner]] = lambda repo: (
        contextlib.nullcontext(HERE)
    ),
    copying: Callable[[Copied], object] = lambda copied: None,
    progress: Progress = _nothing,
) -> Backup:
    """Create a repository on an empty network store from the file of a backup.

    Its oracle has to be running. The backup is restored to a folder beside it first. If an earlier
    call was interrupted, this one goes on.

    Args:
        runner: given that folder's repository, who copies it to the store.
        copying, progress: called while it is copied, and while the folder is written.

    Raises what `restore` and `percola.maintenance.copy.copy_repository` raise, and UsageError if
    that folder is there and is not what such a call has left.
    """
    path = Path(source)
    folder = path.with_name(f"{path.name}.restored")
    if os.path.lexists(folder):
        with _refusing(f"The backup {path} cannot be read"), open(path, "rb") as stream:
            made, _ = read_header(stream)
        if _restored_from(folder) != _identity(made):
            raise UsageError(
                f"{folder} is there already, and is not what an interrupted restore of this backup "
                "has left: delete it, or give it another name, and begin again."
            )
    else:
        check_target(address)  # A folder is made only if it can be copied.
        made = _restore(path, folder, progress, is_left_for_others=True)
    with repositories.open(folder, create=False) as restored, runner(restored) as who:
        copy_repository(restored, address, runner=who, progress=copying)
    # Also the files of a call that was killed, on a cluster, before this one went on without them.
    for made_here in (folder, path.with_name(f"{folder.name}.parts")):
        shutil.rmtree(made_here, ignore_errors=True)
    return made


def _identity(backup: Backup) -> list[int]:
    """What tells a backup from an earlier one in a file of the same name."""
    return [backup.timestamp, backup.made_ms]


def _restored_from(folder: Path) -> object:
    """The backup that a folder says it was restored from; None if it does not say so."""
    try:
        return json.loads((folder / _DESCRIPTION).read_text()).get(_RESTORED)
    except (OSError, ValueError, AttributeError):
        return None


def is_network(address: str) -> bool:
    """Whether the repository of this address is on a network store, which has no file."""
    return network_address(address) is not None


def _fill(
    folder: Path,
    target: Path,
    found: Backup,
    pieces: Iterator[bytes],
    progress: Progress,
    more: Mapping[str, Any],
) -> None:
    """Write the repository into a folder that can replace the target, and sync it to disk."""
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True)
    if target.is_dir():
        replaced = target.stat()
        with contextlib.suppress(OSError):  # A folder that root fills is its owner's to use.
            owner = replaced.st_uid if os.geteuid() == 0 else -1
            os.chown(folder, owner, replaced.st_gid)
        folder.chmod(stat.S_IMODE(replaced.st_mode))
    about = folder.stat()
    make_folder(folder / "store")
    done = 0
    with open(folder / "store" / "data.mdb", "xb") as file:
        restrict(file.fileno(), about, made=True, locked=False)
        for piece in pieces:
            file.write(piece)
            done += len(piece)
            progress(done, found.most_bytes)
        _sync(file)
    description = {"format": FORMAT, "store": "lmdb", "durability": found.durability, **more}
    with open(folder / _DESCRIPTION, "xb") as file:
        restrict(file.fileno(), about, made=True, locked=False)
        file.write(json.dumps(description).encode() + b"\n")
        _sync(file)
    sync_folder(folder / "store")
    sync_folder(folder)
    progress(done, done)


def _pieces(stream: IO[bytes], head: bytes) -> Iterator[bytes]:
    """The data after a header; DamagedRecordError at the end if the checksum differs."""
    return read_pieces(stream, head, "The backup", CHUNK_BYTES)


def _check_free(target: Path) -> None:
    with _refusing(f"No repository can be restored to {target}"):
        if not os.path.lexists(target):
            return
        if target.is_symlink() or not target.is_dir() or any(target.iterdir()):
            raise ConflictingOptionsError(
                f"{target} is there already, and a restore overwrites nothing: name a new or an "
                "empty folder."
            )
        # What is restored takes the folder's place.
        if os.path.samefile(target, os.curdir):
            raise ConflictingOptionsError(
                f"{target} is the current directory, which a restored repository cannot replace: "
                "go to another one, and name this folder from there."
            )
        if target.is_mount():
            raise ConflictingOptionsError(
                f"{target} is a mount point, which a restored repository cannot replace: name a "
                "new folder in it."
            )


# --- Files ------------------------------------------------------------------------------


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn an OSError into an error of Percola's, except EPIPE: the reader has gone.

    Also what is raised at the end of a compressed stream that was cut.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        kind = StoreFullError if is_full(error) else StoreError
        # Errors of compressed streams have no number.
        raise kind(f"{what}: {error.strerror or error}.") from error
    except EOFError as error:
        raise DamagedRecordError("The backup is damaged: it was cut short.") from error


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())

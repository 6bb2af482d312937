"""Files of a repository's folder: their permissions, and disk space for them.

Permissions follow the folder that a file is in. There are two kinds of file:

    data     `data.mdb`, `percola.json`: users who may read or write the folder may do so
    locked   everything else: only users who may write the folder get any permission

    folder   0700   0750   0755   0770   0775
    data     0600   0640   0644   0660   0664
    locked   0600   0600   0600   0660   0660

A user who can open a file, even for reading only, can lock it, and a lock that is never released
blocks every writer. So users who may not write have no access to lock files. Files of an older
version lose excess permissions when their owner opens them; none are added.

Disk blocks of a file are allocated before it is mapped into memory: on a full disk, writing to a
hole of a mapped file is not an error that can be handled but kills the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from percola.errors import RepositoryError, StoreFullError, UsageError

PRIVATE_FOLDER: Final = 0o700

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_BLOCK: Final = 512
_CLASSES: Final = (0o700, 0o070, 0o007)


def expanded(path: str) -> Path:
    """The path, with the home folder that `~` or `~user` stands for; UsageError if it has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{path!r} begins with a home folder that this machine does not know: write its path "
            "in full, or put ./ before a name that begins so."
        ) from error


def occupy_standard_streams() -> None:
    """Open /dev/null for each of standard input, output and error that is closed, as by `2>&-`.

    Otherwise the next file that is opened, of a repository too, gets its number, and what a library
    or a child writes to standard error is written into that file.
    """
    while (unused := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(unused, True)
    os.close(unused)


def write_to_pipe(fd: int, raw: bytes) -> None:
    """Write to a pipe that its reader may have left: BrokenPipeError, and never SIGPIPE.

    Python ignores that signal, but programs have it end them, to be quiet behind `| head`.
    """
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN:
        os.write(fd, raw)
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    try:
        os.write(fd, raw)
    except BrokenPipeError:
        signal.sigtimedwait([signal.SIGPIPE], 0)  # It waits for this thread alone.
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_full(error: OSError) -> bool:
    """Whether a call failed because the disk is full or the user's quota is exceeded."""
    return error.errno in _FULL


def no_room(path: Path) -> StoreFullError:
    """The error for a file that cannot be created or extended because the disk is full."""
    return StoreFullError(
        f"There is no room left on the disk for {path}; nothing of this was written. Make room "
        "and try again: everything committed before is safe."
    )


def file_error(error: OSError, path: Path) -> RepositoryError:
    """Percola's error for a file of the repository that cannot be used."""
    if is_full(error):
        return no_room(path)
    return RepositoryError(f"The file {path} cannot be used: {error.strerror}.")


@contextlib.contextmanager
def using(path: Path) -> Iterator[None]:
    """Turn an OSError in a block that uses a repository's file or folder into Percola's error."""
    try:
        yield
    except OSError as error:
        raise file_error(error, path) from error


def mode_in(folder: os.stat_result, *, locked: bool) -> int:
    """The permissions of a file in a folder; see above."""
    granted = stat.S_IMODE(folder.st_mode)
    mode = granted & 0o066
    if locked:
        for users in _CLASSES[1:]:
            needed = users & 0o333
            if granted & needed != needed:
                mode &= ~users
    return mode | 0o600


def open_file(path: Path, *, locked: bool = True, exclusive: bool = False, size: int = 0) -> int:
    """Open a file of a repository for reading and writing; create it if it is missing.

    Args:
        locked: the kind of file, see above: one that is locked or mapped, not a data file.
        exclusive: it must not exist yet.
        size: allocate disk blocks for at least this many bytes.

    Raises OSError.
    """
    fd, made = _open(path, exclusive)
    try:
        restrict(fd, os.stat(path.parent), made=made, locked=locked)
        if size:
            allocate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open(path: Path, exclusive: bool) -> tuple[int, bool]:
    """A descriptor, and whether the file was created."""
    while True:
        if not exclusive:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDWR | os.O_CLOEXEC), False
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), True
        except FileExistsError:
            if exclusive:
                raise
            if path.is_symlink() and not path.exists():
                # It can neither be opened nor created, however often one tries.
                why = "it is a symbolic link, and leads nowhere"
                raise FileNotFoundError(errno.ENOENT, why, str(path)) from None


def restrict(fd: int, folder: os.stat_result, *, made: bool, locked: bool = True) -> None:
    """Set the permissions of an open file in a folder; adds none unless it was just `made`."""
    mode = mode_in(folder, locked=locked)
    file = os.fstat(fd)
    had = stat.S_IMODE(file.st_mode)
    # Some file systems have no permissions, and only an owner may change them.
    with contextlib.suppress(OSError):
        if made and (file.st_uid, file.st_gid) != (folder.st_uid, folder.st_gid):
            # A file that root creates in another user's repository must be usable by that user.
            os.fchown(fd, folder.st_uid if os.geteuid() == 0 else -1, folder.st_gid)
    with contextlib.suppress(OSError):
        if (made and had != mode) or had & ~mode:
            os.fchmod(fd, mode if made else had & mode)


def make_folder(path: Path, like: Path | None = None) -> None:
    """Create a folder inside a repository's, with the same permissions; no effect if it exists.

    Or with those of the folder `like`, for one that is elsewhere.
    """
    try:
        path.mkdir(mode=PRIVATE_FOLDER)
    except FileExistsError:
        return
    given = os.stat(like or path.parent)
    with contextlib.suppress(OSError):
        os.chown(path, given.st_uid if os.geteuid() == 0 else -1, given.st_gid)
    with contextlib.suppress(OSError):
        path.chmod(stat.S_IMODE(given.st_mode))


def allocate(fd: int, size: int) -> None:
    """Allocate disk blocks for the first `size` bytes of a file. Raises OSError.

    A file system that copies on write (btrfs, ZFS) may still need new ones later.
    """
    file = os.fstat(fd)
    if file.st_size >= size and file.st_blocks * _BLOCK >= size:
        return
    reserve = getattr(os, "posix_fallocate", None)
    if reserve is not None:
        try:
            reserve(fd, 0, size)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        else:
            return
    # The file system cannot reserve blocks, so write them. Existing contents are left alone, since
    # # others may be changing them.
    while (end := os.fstat(fd).st_size) < size:
        os.pwrite(fd, bytes(size - end), end)

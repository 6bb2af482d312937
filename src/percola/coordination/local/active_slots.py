"""§2.2: which timestamps the processes of one machine still read at (rule P12).

    leases    one slot of 8 bytes a process: the oldest timestamp that it reads at, or 0

A process owns a slot by a record lock on its first byte, which the kernel frees when the process
ends, however it ends. The slots are mapped into memory, so saying "I read at 17 now" costs no
system call, and whoever collects garbage reads them all at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path
from typing import Final

_SLOTS: Final = 4096
_BYTES: Final = 8
_NONE_YET: Final = -1
_NONE_LEFT: Final = -2


class LeaseFile:
    """The leases of one repository's processes; one object a process, made after a fork.

    Where every slot is taken, or the file cannot be used, this process holds nothing back.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "leases"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(self._fd).st_size < _SLOTS * _BYTES:
                os.ftruncate(self._fd, _SLOTS * _BYTES)
            self._map = mmap.mmap(self._fd, _SLOTS * _BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._view = memoryview(self._map).cast("Q")
        self._mine = _NONE_YET

    def hold(self, ts: int) -> None:
        """Hold `ts` back, in place of what was held before; 0: nothing."""
        mine = self._mine
        if mine >= 0:
            self._view[mine] = ts
        elif ts and mine == _NONE_YET:
            self._mine = self._take_slot()
            self.hold(ts)

    def _take_slot(self) -> int:
        for slot in range(_SLOTS):
            if self._try_lock(slot):
                return slot
        return _NONE_LEFT

    def _try_lock(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot * _BYTES)
        except OSError:
            return False
        return True

    def oldest(self) -> int | None:
        """The oldest timestamp that a live process holds, or None."""
        oldest: int | None = None
        for slot, ts in enumerate(self._view.tolist()):
            if not ts or (oldest is not None and ts >= oldest):
                continue
            if slot != self._mine and self._try_lock(slot):
                # Its owner has ended.
                self._view[slot] = 0
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot * _BYTES)
                continue
            oldest = ts
        return oldest

    def close(self, *, forked: bool = False) -> None:
        """Give the slot back; in the child of a fork, where it is the parent's, leave it."""
        if self._mine >= 0 and not forked:
            self._view[self._mine] = 0
        self._view.release()
        with contextlib.suppress(BufferError, ValueError):
            self._map.close()
        os.close(self._fd)

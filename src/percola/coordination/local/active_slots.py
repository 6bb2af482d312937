"""§2.2: which timestamps the processes of one machine still read at (rule P12).

    leases    one slot of 8 bytes a process: the oldest timestamp that it reads at, or 0

A process owns a slot by a record lock on its first byte, which the kernel frees when the process
ends, however it ends. The slots are mapped into memory, so publishing a timestamp costs no system
call, and garbage collection reads all slots at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import mmap
import operator
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from percola.platform.file_locks import Holder, holders
from percola.platform.files import open_file
from percola.store.lmdb import driver

if TYPE_CHECKING:
    import percola._native as _native

_SLOTS: Final = 4096
_BYTES: Final = 8
_NONE_YET: Final = -1
_NONE_LEFT: Final = -2


class ActiveSlots:
    """The slots of one repository's processes; one object a process, reopened after a fork.

    If every slot is taken, this process publishes nothing. Raises OSError if the file cannot
    be used, or if there is no room for it on the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = open_file(folder / "leases", size=_SLOTS * _BYTES)
        try:
            self._map = mmap.mmap(self._fd, _SLOTS * _BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._view = memoryview(self._map).cast("Q")
        self._mine = _NONE_YET
        # What publishes in native code; made with the slot.
        self._slot: _native.Slot | None = None
        # Between this process's threads, which record locks do not exclude: a thread that frees a
        # dead process's slot could free one that another thread is taking. Reentrant, for snapshots
        # that Python's garbage collection ends.
        self._guard = threading.RLock()

    def hold(self, ts: int) -> Callable[[int], object] | None:
        """Publish `ts` in place of the previous timestamp; 0: nothing is read.

        Returns what does the same until this is closed, then it raises ValueError; None without a
        slot.
        """
        if ts and self._mine == _NONE_YET:
            self._take_slot()
        mine = self._mine
        if mine < 0:
            return None
        self._view[mine] = ts
        if driver.native is None:
            return functools.partial(operator.setitem, self._view, mine)
        if self._slot is None:
            self._slot = driver.native.Slot(self._view, mine)
        return self._slot

    def _take_slot(self) -> None:
        with self._guard:
            if self._mine == _NONE_YET:
                free = (slot for slot in range(_SLOTS) if self._try_lock(slot))
                self._mine = next(free, _NONE_LEFT)

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
            if not self._free_if_dead(slot):
                oldest = ts
        return oldest

    def readers(self, ts: int) -> list[Holder]:
        """The processes that hold `ts`, as far as the system reveals them."""
        slots = [slot for slot, held in enumerate(self._view.tolist()) if held == ts]
        return [one for slot in slots for one in holders(self._fd, "POSIX", slot * _BYTES)]

    def _free_if_dead(self, slot: int) -> bool:
        """Whether the owner of a slot has ended; its slot is then freed."""
        with self._guard:
            if slot == self._mine or not self._try_lock(slot):
                return False
            self._view[slot] = 0
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot * _BYTES)
            return True

    def close(self, *, forked: bool = False) -> None:
        """Free the slot; in the child of a fork the slot is the parent's and stays."""
        if self._mine >= 0 and not forked:
            self._view[self._mine] = 0
        if self._slot is not None:
            self._slot.close()
        self._view.release()
        with contextlib.suppress(BufferError, ValueError):
            self._map.close()
        os.close(self._fd)

"""§2.1: the safe point of garbage collection, in memory that all processes share.

A read below the safe point must fail, whichever process raised it and however recently (rule P12).
So every read checks it, and the check must be very cheap: it is an integer in a mapped file. The
durable value is stored in LMDB itself; the two are reconciled when the store is opened.

The second integer counts how often a table has begun to keep a feed: a writer checks it within its
write transaction, and reads the list of feeds again only if it has changed.

A collector raises the safe point here before it removes anything, and a reader checks it after
taking its LMDB snapshot: a reader of an incomplete snapshot always detects it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from percola.errors import SnapshotTooOldError, StoreError
from percola.platform.files import is_full, no_room, open_file
from percola.store.lmdb.driver import Txn
from percola.store.lmdb.environment import Environment

_BYTES: Final = 16


class SharedSafePoint:
    """The safe point of one store, shared by all processes of the machine, forks included.

    Args:
        folder: the folder of the store's files.

    Raises StoreError if the file cannot be mapped, StoreFullError if there is no room for it.

    Attributes:
        view: a sequence of two integers: the safe point, and the number of the list of feeds.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "safe-point"
        try:
            fd = open_file(path, size=_BYTES)
            try:
                self._map = mmap.mmap(fd, _BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            if is_full(error):
                raise no_room(path) from error
            raise StoreError(f"The file {path} cannot be used: {error.strerror}.") from error
        self.view = memoryview(self._map).cast("Q")

    def raise_to(self, ts: int) -> None:
        """Raise it to `ts` if it is below; the caller must hold the store's write lock."""
        if self.view[0] < ts:
            self.view[0] = ts

    def agree_with(self, environment: Environment) -> None:
        """Reconcile the safe point with LMDB's: after a power cut either may be ahead."""

        def agree(txn: Txn) -> None:
            durable, drawn = (
                int.from_bytes(txn.get(key) or b"", "big") for key in (b"safe", b"ts")
            )
            if self.view[0] > drawn:
                # The file belongs to an earlier repository in this folder.
                self.view[0] = durable
            self.raise_to(durable)

        with environment.reading() as txn:
            durable = int.from_bytes(txn.get(b"safe") or b"", "big")
        if durable != self.view[0]:
            environment.write(agree)

    def check(self, ts: int) -> None:
        """Raise SnapshotTooOldError if `ts` is below the safe point."""
        if self.view[0] > ts:
            raise SnapshotTooOldError(ts, self.view[0])

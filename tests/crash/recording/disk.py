"""What a disk may hold after a power cut: the writes that were synced, and any part of the rest.

The model is that of a disk with sectors of 512 bytes, each of which is written whole or not at
all, under a kernel that writes back what it holds whenever it likes, in any order:

    sector    durable    pending, oldest first       after a cut: any one of them
    ------    -------    ------------------------    ----------------------------
    0         meta 6     meta 7                      meta 6, or meta 7
    24        page x     page x', page x''           page x, x' or x''
    32        page y     (none)                      page y

A sync of the file makes the newest of every sector durable; a write through a descriptor that
was opened with O_DSYNC that of its own sectors, and of these alone. A write that was under way
is pending. So pages may arrive without their meta page and the other way round, in part, torn
within a page, and in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.crash.recording.trace import Did, Event

SECTOR: Final = 512
PAGE: Final = 4096
_ZEROS: Final = bytes(SECTOR)


@dataclass
class File:
    """A file on the disk: its sectors, and its size in bytes, durable and pending."""

    durable: dict[int, bytes] = field(default_factory=dict)
    pending: dict[int, list[bytes]] = field(default_factory=dict)
    durable_size: int = 0
    size: int = 0

    def newest(self, sector: int) -> bytes:
        """The sector as a program reads it."""
        held = self.pending.get(sector)
        return held[-1] if held else self.durable.get(sector, _ZEROS)

    def write(self, offset: int, data: bytes) -> None:
        """A write that is not on disk yet."""
        at, end = offset, offset + len(data)
        while at < end:
            sector, skip = divmod(at, SECTOR)
            length = min(SECTOR - skip, end - at)
            old = self.newest(sector)
            new = old[:skip] + data[at - offset : at - offset + length] + old[skip + length :]
            self.pending.setdefault(sector, []).append(new)
            at += length
        self.size = max(self.size, end)

    def sync(self, sectors: Iterable[int] | None = None) -> None:
        """Make the newest of these sectors durable; of all, without an argument."""
        for sector in list(self.pending) if sectors is None else sectors:
            held = self.pending.pop(sector, None)
            if held:
                self.durable[sector] = held[-1]
                self.durable_size = max(self.durable_size, min(self.size, (sector + 1) * SECTOR))
        if sectors is None:
            self.durable_size = self.size

    def resize(self, size: int) -> None:
        """A change of size that is not on disk yet; a shrunk file's tail reads as zeros."""
        for sector in {*self.durable, *self.pending}:
            if sector * SECTOR >= size and self.newest(sector) != _ZEROS:
                self.pending.setdefault(sector, []).append(_ZEROS)
        self.size = size

    def image(self, chosen: dict[int, bytes], size: int) -> bytes:
        """The file's bytes, with some pending sectors in place of the durable ones."""
        whole = bytearray(size)
        for sectors in (self.durable, chosen):
            for sector, data in sectors.items():
                at = sector * SECTOR
                if at < size:
                    whole[at : at + SECTOR] = data[: size - at]
        return bytes(whole)


Fate = Callable[[random.Random, int, list[bytes]], "bytes | None"]
"""(chance, sector, its pending contents) → which of them reached the disk, or None."""


def _is_meta(sector: int) -> bool:
    """Whether it is of LMDB's first two pages: whether they arrive is what matters most."""
    return sector * SECTOR < 2 * PAGE


FATES: Final[dict[str, Fate]] = {
    "nothing unsynced": lambda rng, sector, held: None,
    "everything": lambda rng, sector, held: held[-1],
    "the meta pages alone": lambda rng, sector, held: held[-1] if _is_meta(sector) else None,
    "all but the meta pages": lambda rng, sector, held: None if _is_meta(sector) else held[-1],
    "the meta pages and any sectors": lambda rng, sector, held: (
        held[-1] if _is_meta(sector) else rng.choice([None, *held])
    ),
    "any sectors": lambda rng, sector, held: rng.choice([None, *held]),
    "nearly all sectors": lambda rng, sector, held: None if rng.random() < 0.05 else held[-1],
}


@dataclass(frozen=True)
class Remains:
    """A file after a power cut.

    Attributes:
        fate: which of the unsynced sectors reached the disk: a key of `FATES`.
        content: its bytes.
        unsynced: how many sectors had something that was not synced.
        lost: how many of them are not as the program had last written them.
    """

    fate: str
    content: bytes
    unsynced: int
    lost: int


class Disk:
    """The files of a folder, as the events of a trace make them."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}

    def apply(self, event: Event) -> None:
        """Let an event happen."""
        self.begin(event)
        self.finish(event)

    def begin(self, event: Event) -> None:
        """Let an event happen but for the end of it: what it syncs may be on disk or not."""
        if event.did is Did.OPENED:
            self.files.setdefault(event.path, File())
        elif event.did is Did.WROTE:
            self.files[event.path].write(event.offset, event.data)
        elif event.did is Did.RESIZED:
            self.files[event.path].resize(event.offset)
        elif event.did is Did.RENAMED:
            self.files[event.data.decode()] = self.files.pop(event.path)
        elif event.did is Did.REMOVED:
            self.files.pop(event.path, None)

    def finish(self, event: Event) -> None:
        """The end of an event that has begun: what it syncs is on disk."""
        if event.did is Did.SYNCED:
            self.files[event.path].sync()
        elif event.did is Did.WROTE and event.through:
            last = (event.offset + len(event.data) - 1) // SECTOR
            self.files[event.path].sync(range(event.offset // SECTOR, last + 1))

    def after_a_cut(self, path: str, rng: random.Random, fates: Iterable[str]) -> Iterator[Remains]:
        """What a file may hold if the power goes now: once for each of these fates."""
        file = self.files[path]
        for name in fates:
            chosen = {}
            lost = 0
            for sector, held in file.pending.items():
                content = FATES[name](rng, sector, held)
                lost += (file.durable.get(sector) if content is None else content) != held[-1]
                if content is not None:
                    chosen[sector] = content
            end = max(((sector + 1) * SECTOR for sector in chosen), default=0)
            least = max(file.durable_size, min(end, file.size))
            # The size may be on disk before what it makes room for: zeros until then.
            size = file.size if name == "everything" else rng.choice([least, file.size])
            yield Remains(name, file.image(chosen, size), len(file.pending), lost)


def forget_a_sync(events: Sequence[Event], path: str) -> tuple[list[Event], range]:
    """A trace in which a program forgot one sync, in the middle: a broken promise, to be found.

    Pages were written before it, and the meta page after it reached the disk. Returns the trace
    without that event, and the events from then on until the next sync of the file.
    """

    def writes(between: range, *, through: bool) -> Iterator[int]:
        for number in between:
            one = events[number]
            if one.path == path and one.did is Did.WROTE and one.through is through:
                yield number

    syncs = [n for n, one in enumerate(events) if one.did is Did.SYNCED and one.path == path]
    found = []
    for before, forgotten, following in zip(syncs, syncs[1:], syncs[2:], strict=False):
        meta = next(writes(range(forgotten, following), through=True), None)
        if meta is not None and any(writes(range(before, forgotten), through=False)):
            found.append((forgotten, range(meta, following)))
    forgotten, window = found[len(found) // 2]
    return [*events[:forgotten], *events[forgotten + 1 :]], window

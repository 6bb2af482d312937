"""Bytes as the choices of a test: a fuzzer changes them, and they always mean something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Input:
    """Takes values off the front of bytes; where they have run out, zeros follow."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next bytes, as many as there are."""
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def integer(self, size: int) -> int:
        """A number of so many bytes."""
        return int.from_bytes(self.take(size).ljust(size, b"\0"), "big")

    def chunk(self) -> bytes:
        """Up to 255 bytes."""
        return self.take(self.integer(1))

    def maybe_chunk(self) -> bytes | None:
        """Up to 255 bytes, or None."""
        return self.chunk() if self.integer(1) & 1 else None

    def text(self) -> str:
        """Up to 255 characters."""
        return self.chunk().decode("utf-8", "replace")

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integer(1) % len(options)]

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))

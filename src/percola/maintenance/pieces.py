"""Files that say whether they are whole: pieces with their lengths, and a checksum at the end.

length (4 bytes) ‖ that many bytes, … up to an empty piece, and the SHA-256 (32 bytes) of all that
came before, beginning with what the file's own format has at its beginning.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import IO, Any, Final

from percola.errors import DamagedRecordError

_LENGTH: Final = struct.Struct(">I")


class PieceWriter:
    """Writes such a file, beginning with `head`."""

    def __init__(self, out: Any, head: bytes) -> None:
        self._out = out
        self._digest = hashlib.sha256()
        self._write(head)

    def put(self, piece: bytes) -> None:
        """Write a piece, which is not empty."""
        self._write(_LENGTH.pack(len(piece)))
        self._write(piece)

    def end(self) -> None:
        """Write the end and the checksum."""
        self._write(_LENGTH.pack(0))
        self._write_all(self._digest.digest())

    def _write(self, raw: bytes) -> None:
        self._digest.update(raw)
        self._write_all(raw)

    def _write_all(self, raw: bytes) -> None:
        # A stream without a buffer, as of a socket, may take a part of it, and says how much.
        written = self._out.write(raw)
        while isinstance(written, int) and 0 < written < len(raw):
            raw = raw[written:]
            written = self._out.write(raw)


def read_pieces(stream: IO[bytes], head: bytes, what: str, most: int = 2**32) -> Iterator[bytes]:
    """The pieces after `head`, which was read; DamagedRecordError at the end if they were changed.

    `what` begins the sentence of an error; a piece has up to `most` bytes.
    """
    digest = hashlib.sha256(head)
    while True:
        prefix = _exactly(stream, _LENGTH.size, what)
        digest.update(prefix)
        (length,) = _LENGTH.unpack(prefix)
        if not length:
            break
        if length > most:
            raise DamagedRecordError(f"{what} is damaged: it was changed.")
        piece = _exactly(stream, length, what)
        digest.update(piece)
        yield piece
    if _exactly(stream, digest.digest_size, what) != digest.digest():
        raise DamagedRecordError(f"{what} is damaged: it was changed.")
    if stream.read(1):
        raise DamagedRecordError(f"{what} is damaged: it goes on after its end.")


def read_up_to(stream: IO[bytes], size: int) -> bytes:
    """So many bytes, or those up to the end: a stream without a buffer may give a part of them."""
    pieces = []
    while size and (piece := stream.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _exactly(stream: IO[bytes], size: int, what: str) -> bytes:
    raw = read_up_to(stream, size)
    if len(raw) < size:
        raise DamagedRecordError(f"{what} is damaged: it was cut short.")
    return raw

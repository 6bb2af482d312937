"""§2.3 on the wire: frames of at most a kilobyte, for timestamps, row locks and wake-ups.

    client    "percola\\n"   then HELLO: version 2, token
    server    WELCOME, or REFUSED: code, sentence     (a WELCOME repeats the version)
    client    DRAW 7: 3                               up to 3 timestamps; 0: the highest drawn
    server    DRAWN 7: first, count, source           or REFUSED 7

    frame     length u32 | kind u8 | number u32 | body     length counts what follows it

Numbers are big-endian. An answer repeats the number of its request. A client that is not greeted
with WELCOME is not connected: all else that a server says before that is a REFUSED, or a line of
text for a peer that does not speak this protocol.

The first eight bytes, HELLO, WELCOME and REFUSED stay as they are in every version; a server that
does not speak a client's version refuses it with VERSION, and the client may come back with another
one. Everything else may change with the version. Version 1 was gRPC.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

MAGIC: Final = b"percola\n"
VERSION: Final = 2
MOST: Final = 1024
"""The longest frame in bytes, its length field aside."""
TOKEN_BYTES: Final = 1000

HELLO: Final = 1
WELCOME: Final = 2
REFUSED: Final = 3
DRAW: Final = 4
DRAWN: Final = 5
ATTEND: Final = 6
WAKE_UP: Final = 7
LOCK: Final = 8
LOCKED: Final = 9
UNLOCK: Final = 10
WAKE: Final = 11
PAUSE: Final = 12
PING: Final = 13
PONG: Final = 14
IDLE: Final = 15

HEAD: Final = struct.Struct(">IBI")
_LEAST: Final = HEAD.size - 4
_DRAW: Final = struct.Struct(">IBIQ")
_DRAWN: Final = struct.Struct(">IBIQI")
_COUNT: Final = struct.Struct(">Q")
_FIRST_COUNT: Final = struct.Struct(">QI")
_VERSION: Final = struct.Struct(">H")
_MILLISECONDS: Final = struct.Struct(">I")


class Code(IntEnum):
    """Why a request, or a client, is refused."""

    STANDBY = 1
    """Another process may serve it."""
    BUSY = 2
    """This process may serve it a moment later."""
    TOKEN = 3
    VERSION = 4
    TLS = 5
    MALFORMED = 6
    """The peer sends something that this protocol does not have."""
    LIMIT = 7
    """Too many clients."""


class Frame(NamedTuple):
    """A message: its kind, the number of the request, and the rest."""

    kind: int
    number: int
    body: bytes


class FrameError(ValueError):
    """Bytes that are no frame of this protocol."""


def frame(kind: int, number: int = 0, body: bytes = b"") -> bytes:
    """A frame as it is sent."""
    return HEAD.pack(_LEAST + len(body), kind, number) + body


def split(raw: bytes) -> tuple[list[Frame], bytes]:
    """The whole frames that bytes begin with, and what remains.

    Raises FrameError as soon as the next frame's length is out of bounds.
    """
    end = len(raw)
    if end >= HEAD.size:  # One whole frame, as nearly always.
        length, kind, number = HEAD.unpack_from(raw)
        if length == end - 4 <= MOST:
            return [Frame(kind, number, raw[HEAD.size :])], b""
    found = []
    at = 0
    while end - at >= 4:
        length = int.from_bytes(raw[at : at + 4], "big")
        if not _LEAST <= length <= MOST:
            raise FrameError(f"a frame of {length:,} bytes, and not of {_LEAST} to {MOST:,}")
        stop = at + 4 + length
        if stop > end:
            break
        _, kind, number = HEAD.unpack_from(raw, at)
        found.append(Frame(kind, number, raw[at + HEAD.size : stop]))
        at = stop
    return found, raw[at:]


# --- Bodies -------------------------------------------------------------------------------


def hello(token: str, version: int = VERSION) -> bytes:
    """What a client says first."""
    return MAGIC + frame(HELLO, 0, _VERSION.pack(version) + token.encode())


def read_hello(body: bytes) -> tuple[int, bytes]:
    """The version and the token of a HELLO, or the version of a WELCOME; FrameError."""
    if len(body) < _VERSION.size:
        raise FrameError("a greeting that is cut off")
    return _VERSION.unpack_from(body)[0], body[_VERSION.size :]


def welcome() -> bytes:
    """What a server answers to a HELLO."""
    return frame(WELCOME, 0, _VERSION.pack(VERSION))


def refused(code: Code, why: str, number: int = 0) -> bytes:
    """A refusal with its sentence."""
    return frame(REFUSED, number, bytes((code,)) + why.encode()[: MOST - 100])


def read_refused(body: bytes) -> tuple[int, str]:
    """The code and the sentence of a REFUSED; FrameError.

    The code may be one of a later version.
    """
    if not body:
        raise FrameError("a refusal that is cut off")
    return body[0], printable(body[1:])


def printable(raw: bytes) -> str:
    """Text of a peer as it may be shown: one line of at most 300 printable characters."""
    text = " ".join(raw.decode(errors="replace").split())
    return "".join(c if c.isprintable() else "?" for c in text)[:300]


def draw(number: int, count: int) -> bytes:
    """Asks for up to `count` timestamps; with 0 for the highest one handed out."""
    return _DRAW.pack(_LEAST + 8, DRAW, number, count)


def read_draw(body: bytes) -> int:
    """The count of a DRAW; FrameError."""
    if len(body) != _COUNT.size:
        raise FrameError("a request for timestamps of another size")
    return int(_COUNT.unpack(body)[0])


def drawn(number: int, first: int, count: int, source: bytes) -> bytes:
    """Hands out `count` timestamps from `first` on; with 0 `first` is the highest handed out."""
    return _DRAWN.pack(_LEAST + 12 + len(source), DRAWN, number, first, count) + source


def read_drawn(body: bytes) -> tuple[int, int, bytes]:
    """First, count and source of a DRAWN; FrameError."""
    if len(body) < _FIRST_COUNT.size:
        raise FrameError("timestamps that are cut off")
    first, count = _FIRST_COUNT.unpack_from(body)
    return first, count, body[_FIRST_COUNT.size :]


def pause(number: int, milliseconds: int) -> bytes:
    """For how many milliseconds the client should send no other wake-up."""
    return frame(PAUSE, number, _MILLISECONDS.pack(milliseconds))


def read_pause(body: bytes) -> int:
    """The milliseconds of a PAUSE; FrameError."""
    if len(body) != _MILLISECONDS.size:
        raise FrameError("a pause of another size")
    return int(_MILLISECONDS.unpack(body)[0])

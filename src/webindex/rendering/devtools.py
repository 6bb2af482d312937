"""A client of Chromium's DevTools protocol over a pipe: commands, their replies, and events.

Messages are JSON, each followed by a NUL byte; the browser reads them from its file descriptor 3
and writes them to 4. There is one thread: `call` sends a command and handles events until its reply
arrives, so that a handler may itself send commands, whose replies nobody waits for (`send`).
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from webindex.errors import RenderError

__all__ = ["Connection", "RefusedError"]

Event = Callable[[str, Mapping[str, Any], str | None], None]
"""Called with an event's method, its parameters and its session."""

_LOOK: Final = 0.2
_READ: Final = 1 << 20
MOST_MESSAGE: Final = 256 << 20
"""Bytes of one message; a screenshot of the largest size is far below."""


class RefusedError(RenderError):
    """The browser does not do what a command says, as in a frame that is gone."""


class Connection:
    """One end of the pipe.

    Args:
        reading, writing: file descriptors; the connection closes them.
        on_event: called for each event, in the thread that waits.
        watch: called several times a second while something is waited for; it raises what is to
            end the waiting.
    """

    def __init__(
        self, reading: int, writing: int, on_event: Event, watch: Callable[[], object]
    ) -> None:
        self._reading = reading
        self._writing = writing
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._on_event = on_event
        self._watch = watch
        self._next_watch = 0.0
        self._number = 0
        self._received = bytearray()
        self._to_send = bytearray()
        self._replies: dict[int, Mapping[str, Any]] = {}
        self._wanted: set[int] = set()

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reading)
        os.close(self._writing)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> int:
        """Send a command, and return its number; its reply is ignored unless `call` waits."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._to_send += json.dumps(message).encode() + b"\0"
        return self._number

    def call(
        self, method: str, session: str | None = None, *, until: float, **parameters: Any
    ) -> Mapping[str, Any]:
        """Send a command, handle events until its reply arrives, and return its result.

        Raises RefusedError if the browser refuses it, RenderError if it ends, TimeoutError if it
        has not replied at `until`, a time of `time.monotonic`.
        """
        number = self.send(method, session, **parameters)
        self._wanted.add(number)
        self.wait(lambda: number in self._replies, until=until)
        reply = self._replies.pop(number)
        if "error" in reply:
            raise RefusedError(f"The browser refused {method}: {reply['error'].get('message')}.")
        result: Mapping[str, Any] = reply.get("result", {})
        return result

    def wait(self, condition: Callable[[], bool], *, until: float) -> None:
        """Handle events until a condition holds; raise what `call` raises."""
        while not condition():
            now = time.monotonic()
            if now >= self._next_watch:
                self._watch()
                # A page is hundreds of messages, and looking takes as long as many of them.
                self._next_watch = time.monotonic() + _LOOK
            if now >= until:
                raise TimeoutError
            self._turn(min(until - now, _LOOK))

    def _turn(self, seconds: float) -> None:
        """Send and receive what can be, after waiting for at most that long."""
        writing = [self._writing] if self._to_send else []
        readable, writable, _ = select.select([self._reading], writing, [], seconds)
        try:
            if writable:
                sent = os.write(self._writing, self._to_send[:_READ])
                del self._to_send[:sent]
            if readable:
                received = os.read(self._reading, _READ)
                if not received:
                    raise RenderError("The browser ended.")
                self._receive(received)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise RenderError("The browser ended.") from error

    def _receive(self, received: bytes) -> None:
        self._received += received
        if b"\0" not in received:
            if len(self._received) > MOST_MESSAGE:
                raise RenderError("The browser sent a message without an end.")
            return
        *whole, rest = bytes(self._received).split(b"\0")
        self._received = bytearray(rest)
        for one in whole:
            message = json.loads(one)
            if "id" in message:
                if message["id"] in self._wanted:
                    self._wanted.discard(message["id"])
                    self._replies[message["id"]] = message
            else:
                given = message.get("params", {})
                self._on_event(message["method"], given, message.get("sessionId"))

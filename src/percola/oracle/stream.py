"""§2.3 A client's one pending call: requests to one oracle on a stream, one after the other.

A stream is set up once. A request on it costs half as much as a separate call, on both sides: most
of a call's cost is its headers, its deadline and starting a handler.

A stream has no deadline for each answer. A thread checks periodically whether one is overdue, and
then ends the stream; it also ends an unused stream, which would take one of the oracle's threads.

Rule P1 requires that no answer is taken for that of a later request. So a stream with an
outstanding answer is never used again: the thread that asked either reads the answer or ends the
stream.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any, Final

import grpc

from percola.oracle.messages import DRAW, SERVICE, DrawReply, DrawRequest

IDLE_SECONDS: Final = 60.0
"""Seconds after which an unused stream is ended."""


class LostError(Exception):
    """No answer came and the stream has ended; the message is the reason."""


class Conversation:
    """A stream to one oracle; for one thread at a time, except `end`.

    Args:
        channel: the connection.
        metadata: the metadata of the call, such as the token.
        seconds: the longest wait for an answer.
        idle_seconds: after how long without use the stream is ended.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        metadata: list[tuple[str, str]] | None,
        seconds: float,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._requests: SimpleQueue[DrawRequest | None] = SimpleQueue()
        draw: Any = channel.stream_stream(
            f"/{SERVICE}/{DRAW}",
            request_serializer=DrawRequest.encode,
            response_deserializer=DrawReply.decode,
        )
        self._stream = draw(iter(self._requests.get, None), metadata=metadata)
        self._guard = threading.Lock()
        self._has_ended = threading.Event()
        self._idle_seconds = idle_seconds
        self._due: float | None = None
        self._used = time.monotonic()
        self._is_overdue = False
        # Rare enough to cost nothing, and often enough to notice an overdue answer.
        self._look_seconds = min(seconds, idle_seconds) / 8
        threading.Thread(target=self._watch, name="percola-timestamps", daemon=True).start()

    def ask(self, count: int, seconds: float) -> DrawReply | None:
        """`count` timestamps; for 0 the highest one handed out. None if the stream has ended.

        With None, nothing was sent. Raises grpc.RpcError, and LostError after `seconds` or little
        more; after either, and after an interrupt, the stream has ended.
        """
        with self._guard:
            if self._has_ended.is_set():
                return None
            self._due = time.monotonic() + seconds
        try:
            self._requests.put(DrawRequest(count))
            reply: DrawReply = next(self._stream)
        except BaseException as error:
            self.end()
            if self._is_overdue and isinstance(error, grpc.RpcError):
                raise LostError(f"no answer within {seconds:g} s") from error
            if isinstance(error, StopIteration):
                raise LostError("it has ended the stream") from error
            raise
        with self._guard:
            self._used = time.monotonic()
            self._due = None
        return reply

    def end(self) -> None:
        """End the stream; a pending `ask` fails. Idempotent; may be called from any thread."""
        with self._guard:
            self._has_ended.set()
        self._stream.cancel()
        self._requests.put(None)

    def _watch(self) -> None:
        while not self._has_ended.wait(self._look_seconds):
            now = time.monotonic()
            with self._guard:
                due = self._due
                if due is None and now - self._used > self._idle_seconds:
                    self._has_ended.set()
            if due is not None and now > due:
                self._is_overdue = True
                break
        self.end()

"""§2.4 "a lightweight lock service" as a client: advisory locks and a bell between processes.

    attending      a thread reads one stream: who attends hears the bell, and keeps its locks
    try_lock       first among the threads of this process, then one call; no answer means yes
    unlock         a call that nobody waits for
    ring           the listeners here at once; a thread tells the service, one call at a time

Without the service everything goes on: rows are locked against the threads of this process only,
and the bells of others are not heard; scanning makes up for both. A service that did not answer is
left alone for a second, so that its loss does not slow scanning.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import grpc

from percola.coordination.lock_service.base import LockService
from percola.coordination.lock_service.wire import (
    ATTEND,
    CHANNEL_OPTIONS,
    RING,
    SERVICE,
    TRY_LOCK,
    UNLOCK,
    AttendRequest,
    LockReply,
    LockRequest,
    RingReply,
    RingRequest,
    Rung,
    UnlockReply,
    UnlockRequest,
)
from percola.errors import UsageError
from percola.platform.fork_safety import GRPC

LOCK_SECONDS: Final = 0.3

_GONE: Final = 1.0
"""Seconds for which a service that did not answer is not asked again."""
_RING_SECONDS: Final = 1.0
_UNLOCK_SECONDS: Final = 2.0
_ATTEND_SECONDS: Final = 3.0
_JOIN: Final = 2.0


def open_channel(address: str) -> Any:
    """A channel in the clear."""
    return grpc.insecure_channel(address, options=list(CHANNEL_OPTIONS))


class LockServiceClient(LockService):
    """Advisory locks and the bell of a repository, served beside its oracle.

    Connects when it is first used. A child of a process that has used gRPC goes on without the
    service (`percola.platform.fork_safety`).

    Args:
        addresses: `host:port` of each of the repository's oracle processes; the one that holds the
            lease is found among them.
        channel: makes a channel to an address; by default without TLS. Pass
            `percola.coordination.lock_service.wire.CHANNEL_OPTIONS` to a channel of your own:
            without them a machine that has disappeared is noticed late.
        metadata: what to send with every call, such as the oracle's token.
        lock_seconds: for how long `try_lock` waits for the service.

    Raises UsageError for options that cannot work.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        channel: Callable[[str], Any] = open_channel,
        metadata: Sequence[tuple[str, str]] | None = None,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        if not addresses or isinstance(addresses, str):
            raise UsageError("Name the address of at least one oracle, in a list.")
        if not lock_seconds > 0:
            raise UsageError("The seconds to wait for an advisory lock must be above 0.")
        self.addresses = tuple(addresses)
        self.lock_seconds = lock_seconds
        self.metadata = list(metadata) if metadata else None
        self.channel = channel
        # What a fork has copied belongs to the parent: it is neither used nor closed.
        self._connections: list[_Connection] = []
        super().__init__()

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._turns: dict[tuple[str, bytes], int] = {}
        connection = _Connection(self, self._hear)
        self._connections.append(connection)
        self._connection = connection

    def _hear(self) -> None:
        super().ring()

    @property
    def is_attended(self) -> bool:
        """Whether the service knows of this process just now."""
        return self._connection.is_attended

    def try_lock(self, table: str, row: bytes) -> bool:
        if not super().try_lock(table, row):
            return False
        turn = 0
        try:
            turn = self._connection.try_lock(_key(table, row))
        finally:
            if turn:
                self._turns[table, row] = turn
            else:
                super().unlock(table, row)
        return bool(turn)

    def unlock(self, table: str, row: bytes) -> None:
        turn = self._turns.pop((table, row), 0)
        super().unlock(table, row)
        if turn:
            self._connection.unlock(_key(table, row), turn)

    def ring(self) -> None:
        super().ring()
        self._connection.ring()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        stop = super().listen(heard)
        self._connection.attend()
        return stop

    def close(self) -> None:
        super().close()
        self._connection.close()


class _Attended(NamedTuple):
    """The one stream that is open, and where."""

    address: str
    session: str


class _Connection:
    """A process's connections, its stream and its pending ring."""

    def __init__(self, client: LockServiceClient, hear: Callable[[], None]) -> None:
        self._client = client
        self._hear = hear
        self._changed = threading.Condition(threading.Lock())
        self._channels: dict[str, Any] = {}
        self._turns = itertools.count(1)
        self._attended: _Attended | None = None
        self._stream: Any = None
        self._began = 0.0
        self._is_beginning = True
        self._gone_until = 0.0
        self._rung = threading.Event()
        self._closing = threading.Event()
        self._attending: threading.Thread | None = None
        self._ringing: threading.Thread | None = None
        if GRPC.is_barred:
            self._is_beginning = False
            self._closing.set()

    @property
    def is_attended(self) -> bool:
        return self._attended is not None

    # --- Attending ----------------------------------------------------------------------

    def attend(self) -> None:
        """Begin to attend, in the background."""
        if self._attending is None:
            with self._changed:
                if self._attending is None and not self._closing.is_set():
                    self._began = time.monotonic()
                    self._attending = _start(self._attend_forever, "percola-bell")

    def _attend_forever(self) -> None:
        addresses = self._client.addresses
        for attempt in itertools.count(1):
            if self._closing.is_set():
                return
            attended = _Attended(addresses[attempt % len(addresses)], secrets.token_hex(8))
            served = self._attend_once(attended)
            if attempt == len(addresses):
                with self._changed:
                    self._is_beginning = False
                    self._changed.notify_all()
            # Where it was served, it is asked again elsewhere at once; then a moment later.
            if not served and attempt % len(addresses) == 0:
                self._closing.wait(0.2)

    def _attend_once(self, attended: _Attended) -> bool:
        """Attend at one address until the stream breaks; whether it was attended to at all."""
        served = False
        late = threading.Timer(_ATTEND_SECONDS, lambda: stream.cancel())
        late.daemon = True
        try:
            attend = self._channel(attended.address).unary_stream(
                f"/{SERVICE}/{ATTEND}",
                request_serializer=AttendRequest.encode,
                response_deserializer=Rung.decode,
            )
            stream = attend(AttendRequest(attended.session), metadata=self._client.metadata)
            late.start()
            for _ in stream:
                if not served:
                    late.cancel()
                    served = True
                    with self._changed:
                        if self._closing.is_set():
                            stream.cancel()
                            break
                        self._attended, self._stream = attended, stream
                        self._is_beginning = False
                        self._changed.notify_all()
                # Also the first time: bells that rang meanwhile were not heard.
                self._hear()
        except (grpc.RpcError, ValueError):
            pass  # ValueError: another thread has closed the channel.
        finally:
            late.cancel()
            with self._changed:
                self._attended = self._stream = None
        return served

    def _find(self) -> _Attended | None:
        """Where to ask; None if nobody is known, or the one that is did not answer just now."""
        attended = self._attended
        if attended is None:
            self.attend()
            with self._changed:
                # Only in the beginning: later it is known whether the service is there.
                until = self._began + self._client.lock_seconds
                while self._attended is None and self._is_beginning:
                    if (left := until - time.monotonic()) <= 0:
                        return None
                    self._changed.wait(left)
                attended = self._attended
        return None if time.monotonic() < self._gone_until else attended

    def _lose(self, attended: _Attended) -> None:
        """A call came to nothing: give the stream up, and with it what the service holds for it.

        Else a lock that it gave without our hearing of it would stay.
        """
        with self._changed:
            if self._attended != attended:
                return
            stream, self._attended, self._stream = self._stream, None, None
            self._gone_until = time.monotonic() + _GONE
        stream.cancel()

    # --- Locks --------------------------------------------------------------------------

    def try_lock(self, key: bytes) -> int:
        """The turn in which the lock was taken; 0 if another process has it."""
        turn = next(self._turns)
        attended = self._find()
        if attended is None:
            return turn
        request = LockRequest(attended.session, key, turn)
        try:
            method = self._method(attended.address, TRY_LOCK, LockReply)
            reply = method(
                request, timeout=self._client.lock_seconds, metadata=self._client.metadata
            )
        except BaseException as error:
            # Also if it was interrupted: the service may have given the lock.
            self._lose(attended)
            if isinstance(error, (grpc.RpcError, ValueError)):
                return turn
            raise
        return turn if reply.taken else 0

    def unlock(self, key: bytes, turn: int) -> None:
        """Give a lock back, in the background."""
        attended = self._attended
        if attended is None:
            return
        request = UnlockRequest(attended.session, key, turn)
        try:
            method = self._method(attended.address, UNLOCK, UnlockReply)
            given = method.future(request, timeout=_UNLOCK_SECONDS, metadata=self._client.metadata)
        except ValueError:
            return

        def done(call: Any) -> None:
            if call.code() is not grpc.StatusCode.OK:
                self._lose(attended)

        given.add_done_callback(done)

    # --- The bell -----------------------------------------------------------------------

    def ring(self) -> None:
        """Tell the others, in the background; what is rung meanwhile goes into one ring."""
        self._rung.set()
        if self._ringing is None:
            with self._changed:
                if self._ringing is None and not self._closing.is_set():
                    try:
                        self._ringing = _start(self._ring_forever, "percola-ring")
                    except RuntimeError:
                        return  # No thread can be had: nobody else hears it.

    def _ring_forever(self) -> None:
        at = 0
        while True:
            self._rung.wait()
            if self._closing.is_set():
                return
            self._rung.clear()
            pause = _GONE
            for _ in self._client.addresses:
                attended = self._attended
                address = attended.address if attended else self._client.addresses[at]
                request = RingRequest(attended.session if attended else "")
                try:
                    method = self._method(address, RING, RingReply)
                    reply = method(request, timeout=_RING_SECONDS, metadata=self._client.metadata)
                    pause = reply.pause_ms / 1000
                    break
                except (grpc.RpcError, ValueError):
                    if attended:
                        self._lose(attended)
                    at = (at + 1) % len(self._client.addresses)
            if self._closing.wait(pause):
                return

    # --- Connections --------------------------------------------------------------------

    def _channel(self, address: str) -> Any:
        GRPC.begin_use("The oracle's service")
        with self._changed:
            if self._closing.is_set():
                raise ValueError("closed")
            found = self._channels.get(address)
            if found is None:
                found = self._channels[address] = self._client.channel(address)
            return found

    def _method(self, address: str, name: str, reply: Any) -> Any:
        return self._channel(address).unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda message: message.encode(),
            response_deserializer=reply.decode,
        )

    def close(self) -> None:
        """End the stream, the threads and the connections. Idempotent."""
        with self._changed:
            self._closing.set()
            self._is_beginning = False
            self._changed.notify_all()
            channels, self._channels = self._channels, {}
            stream = self._stream
        self._rung.set()
        if stream is not None:
            stream.cancel()
        for channel in channels.values():
            channel.close()
        for thread in (self._attending, self._ringing):
            if thread is not None and thread is not threading.current_thread():
                thread.join(_JOIN)


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _key(table: str, row: bytes) -> bytes:
    # Two rows of one hash share a lock, which is harmless: the locks are advisory.
    return hashlib.blake2b(table.encode() + b"\0" + row, digest_size=16).digest()

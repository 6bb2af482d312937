"""§2.4 "a lightweight lock service", client side: advisory locks and wake-ups between processes.

    session     a thread reads one stream. While it is open, the process receives wake-ups and keeps
                its locks
    try_lock    first among the threads of this process, then one call; no answer counts as taken
                by this process
    unlock      a call in the background
    wake        calls the callbacks of this process at once; a thread notifies the service, with
                one call at a time

Everything continues without the service: rows are then locked against the threads of this process
only, and wake-ups of other processes do not arrive; scanning makes up for both. A service that did
not answer is not called again for a second, so that its loss does not slow scanning.
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
    SERVICE,
    TRY_LOCK,
    UNLOCK,
    WAKE,
    AttendRequest,
    LockReply,
    LockRequest,
    UnlockReply,
    UnlockRequest,
    WakeReply,
    WakeRequest,
    WakeUp,
)
from percola.errors import UsageError
from percola.platform.fork_safety import GRPC

LOCK_SECONDS: Final = 0.3

_BACK_OFF: Final = 1.0
"""Seconds for which a service that did not answer is not called again."""
_WAKE_SECONDS: Final = 1.0
_UNLOCK_SECONDS: Final = 2.0
_ATTEND_SECONDS: Final = 3.0
_JOIN: Final = 2.0


def open_channel(address: str) -> Any:
    """A channel without TLS."""
    return grpc.insecure_channel(address, options=list(CHANNEL_OPTIONS))


class LockServiceClient(LockService):
    """Advisory locks and wake-ups of a repository, served beside its oracle.

    Connects when it is first used. A child of a process that has used gRPC continues without the
    service (`percola.platform.fork_safety`).

    Args:
        addresses: `host:port` of each of the repository's oracle processes; the client finds the
            lease holder among them.
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
        # Those that a fork has copied belong to the parent: they are neither used nor closed.
        self._connections: list[_Connection] = []
        super().__init__()

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._turns: dict[tuple[str, bytes], int] = {}
        connection = _Connection(self, self._run_callbacks)
        self._connections.append(connection)
        self._connection = connection

    def _run_callbacks(self) -> None:
        super().wake()

    @property
    def has_session(self) -> bool:
        """Whether this process has a session with the service now."""
        return self._connection.has_session

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

    def wake(self) -> None:
        super().wake()
        self._connection.wake()

    def on_wake(self, callback: Callable[[], None]) -> Callable[[], None]:
        stop = super().on_wake(callback)
        self._connection.open_session()
        return stop

    def close(self) -> None:
        super().close()
        self._connection.close()


class _Session(NamedTuple):
    """The session of the stream that is open, and its server."""

    address: str
    name: str


class _Connection:
    """A process's channels, its stream and its pending wake-up."""

    def __init__(self, client: LockServiceClient, on_wake: Callable[[], None]) -> None:
        self._client = client
        self._on_wake = on_wake
        self._changed = threading.Condition(threading.Lock())
        self._channels: dict[str, Any] = {}
        self._turns = itertools.count(1)
        self._session: _Session | None = None
        self._stream: Any = None
        self._began = 0.0
        self._is_beginning = True
        self._silent_until = 0.0
        self._wake_due = threading.Event()
        self._closing = threading.Event()
        self._reader: threading.Thread | None = None
        self._waker: threading.Thread | None = None
        if GRPC.is_barred:
            self._is_beginning = False
            self._closing.set()

    @property
    def has_session(self) -> bool:
        return self._session is not None

    # --- The session --------------------------------------------------------------------

    def open_session(self) -> None:
        """Open a session in the background, and reopen it when it ends."""
        if self._reader is None:
            with self._changed:
                if self._reader is None and not self._closing.is_set():
                    self._began = time.monotonic()
                    self._reader = _start(self._keep_session, "percola-wake-ups")

    def _keep_session(self) -> None:
        addresses = self._client.addresses
        for attempt in itertools.count(1):
            if self._closing.is_set():
                return
            session = _Session(addresses[attempt % len(addresses)], secrets.token_hex(8))
            served = self._read_stream(session)
            if attempt == len(addresses):
                with self._changed:
                    self._is_beginning = False
                    self._changed.notify_all()
            # After a session that was served, the next address is tried at once.
            if not served and attempt % len(addresses) == 0:
                self._closing.wait(0.2)

    def _read_stream(self, session: _Session) -> bool:
        """Read a session's stream until it breaks; whether the service accepted the session."""
        served = False
        late = threading.Timer(_ATTEND_SECONDS, lambda: stream.cancel())
        late.daemon = True
        try:
            attend = self._channel(session.address).unary_stream(
                f"/{SERVICE}/{ATTEND}",
                request_serializer=AttendRequest.encode,
                response_deserializer=WakeUp.decode,
            )
            stream = attend(AttendRequest(session.name), metadata=self._client.metadata)
            late.start()
            for _ in stream:
                if not served:
                    late.cancel()
                    served = True
                    with self._changed:
                        if self._closing.is_set():
                            stream.cancel()
                            break
                        self._session, self._stream = session, stream
                        self._is_beginning = False
                        self._changed.notify_all()
                # Also for the first message: wake-ups before the session did not arrive.
                self._on_wake()
        except (grpc.RpcError, ValueError):
            pass  # ValueError: another thread has closed the channel.
        finally:
            late.cancel()
            with self._changed:
                self._session = self._stream = None
        return served

    def _usable_session(self) -> _Session | None:
        """The session to use; None if there is none, or if its server has just not answered."""
        session = self._session
        if session is None:
            self.open_session()
            with self._changed:
                # Only in the beginning: later it is known whether the service is there.
                until = self._began + self._client.lock_seconds
                while self._session is None and self._is_beginning:
                    if (left := until - time.monotonic()) <= 0:
                        return None
                    self._changed.wait(left)
                session = self._session
        return None if time.monotonic() < self._silent_until else session

    def _give_up(self, session: _Session) -> None:
        """A call has failed: end the session, and with it the locks that the service holds for it.

        Otherwise a lock would stay that the service granted in an answer that was lost.
        """
        with self._changed:
            if self._session != session:
                return
            stream, self._session, self._stream = self._stream, None, None
            self._silent_until = time.monotonic() + _BACK_OFF
        stream.cancel()

    # --- Locks --------------------------------------------------------------------------

    def try_lock(self, key: bytes) -> int:
        """The turn in which the lock was taken; 0 if another process has it."""
        turn = next(self._turns)
        session = self._usable_session()
        if session is None:
            return turn
        request = LockRequest(session.name, key, turn)
        try:
            method = self._method(session.address, TRY_LOCK, LockReply)
            reply = method(
                request, timeout=self._client.lock_seconds, metadata=self._client.metadata
            )
        except BaseException as error:
            # Also after an interrupt: the service may have granted the lock.
            self._give_up(session)
            if isinstance(error, (grpc.RpcError, ValueError)):
                return turn
            raise
        return turn if reply.taken else 0

    def unlock(self, key: bytes, turn: int) -> None:
        """Release a lock, in the background."""
        session = self._session
        if session is None:
            return
        request = UnlockRequest(session.name, key, turn)
        try:
            method = self._method(session.address, UNLOCK, UnlockReply)
            reply = method.future(request, timeout=_UNLOCK_SECONDS, metadata=self._client.metadata)
        except ValueError:
            return

        def done(call: Any) -> None:
            if call.code() is not grpc.StatusCode.OK:
                self._give_up(session)

        reply.add_done_callback(done)

    # --- Wake-ups -----------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the other processes, in the background; wake-ups meanwhile are sent as one."""
        self._wake_due.set()
        if self._waker is None:
            with self._changed:
                if self._waker is None and not self._closing.is_set():
                    try:
                        self._waker = _start(self._send_wake_ups, "percola-wake")
                    except RuntimeError:
                        return  # No thread can be started: other processes are not woken.

    def _send_wake_ups(self) -> None:
        at = 0
        while True:
            self._wake_due.wait()
            if self._closing.is_set():
                return
            self._wake_due.clear()
            pause = _BACK_OFF
            for _ in self._client.addresses:
                session = self._session
                address = session.address if session else self._client.addresses[at]
                request = WakeRequest(session.name if session else "")
                try:
                    method = self._method(address, WAKE, WakeReply)
                    reply = method(request, timeout=_WAKE_SECONDS, metadata=self._client.metadata)
                    pause = reply.pause_ms / 1000
                    break
                except (grpc.RpcError, ValueError):
                    if session:
                        self._give_up(session)
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
        self._wake_due.set()
        if stream is not None:
            stream.cancel()
        for channel in channels.values():
            channel.close()
        for thread in (self._reader, self._waker):
            if thread is not None and thread is not threading.current_thread():
                thread.join(_JOIN)


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _key(table: str, row: bytes) -> bytes:
    # Two rows of one hash share a lock, which is harmless: the locks are advisory.
    return hashlib.blake2b(table.encode() + b"\0" + row, digest_size=16).digest()

"""§2.4 "a lightweight lock service": advisory locks in memory, beside the oracle.

    Attend(session)   one stream for each session: wake-ups are sent on it, and the session's
                      locks live as long as it does
    TryLock, Unlock   a lock is (session, turn), by key
    Ring              marks every session but the sender's; one thread sends the wake-ups

Only the oracle process that holds the lease serves it, so that all processes ask the same one. When
the lease moves, the sessions are ended and the locks dropped: they are advisory.

A stream takes no thread of the server's pool. Sending wake-ups takes at most a tenth of the time of
one thread, and each reply tells the sender how long to pause, which grows with the number of
sessions: the timestamps that the same process hands out are more urgent than wake-ups.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

import grpc

from percola.coordination.lock_service.wire import (
    ATTEND,
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

log = logging.getLogger("percola.oracle")

_LEASE_CHECK: Final = 0.5
"""Seconds between checks that the lease is still held; wake-ups wait no longer than this."""
_REST_FACTOR: Final = 9
"""The thread that sends rests for this many times as long as sending took."""
_PAUSE_MS: Final = 10
_SESSIONS: Final = 2000
"""The most sessions at a time."""
_SETTLED: Final = 10.0
"""Seconds for which an unused session cannot be displaced: without this, more processes than
`_SESSIONS` would displace each other without end."""
_NAME_BYTES: Final = 64
"""The longest name of a session. Percola's names and keys have 16 bytes."""
_KEY_BYTES: Final = 64
_SESSION_LOCKS: Final = 5000
_LOCKS: Final = 200_000
"""Locks of all sessions: about 70 MB."""
_WAKE_UP: Final = WakeUp()

_NOT_HERE: Final = "This oracle process does not hold the lease: its lock service is not active."
_NO_SESSION: Final = "There is no such session, or it has ended: open a new one."
_FULL: Final = f"This lock service has {_SESSIONS} sessions, which is its limit."


class _Session:
    """A client's session."""

    def __init__(
        self, name: str, send: Callable[[WakeUp | None], None], context: grpc.ServicerContext
    ) -> None:
        self.name = name
        self.send = send
        self.context = context
        self.keys: set[bytes] = set()
        self.due = True  # The first wake-up reports that the session is open.
        self.used = time.monotonic()


class _Held(NamedTuple):
    session: str
    turn: int


class LockServiceServer:
    """The locks and wake-ups of one oracle process.

    Args:
        holds: whether this process holds the oracle's lease; called for every request.
        admit: aborts a call (`context.abort`) that is not authorized.
    """

    def __init__(
        self,
        holds: Callable[[], bool],
        admit: Callable[[grpc.ServicerContext], None] = lambda context: None,
    ) -> None:
        self._holds = holds
        self._admit = admit
        self._changed = threading.Condition(threading.Lock())
        self._sessions: dict[str, _Session] = {}
        self._locks: dict[bytes, _Held] = {}
        self._sender: threading.Thread | None = None

    def handlers(self) -> grpc.GenericRpcHandler:
        """What to give to `grpc.Server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                ATTEND: grpc.unary_stream_rpc_method_handler(
                    _NonBlocking(self._attend),
                    request_deserializer=AttendRequest.decode,
                    response_serializer=WakeUp.encode,
                ),
                TRY_LOCK: _method(self._try_lock, LockRequest, LockReply),
                UNLOCK: _method(self._unlock, UnlockRequest, UnlockReply),
                WAKE: _method(self._wake, WakeRequest, WakeReply),
            },
        )

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    @property
    def locks(self) -> int:
        """How many locks are held."""
        return len(self._locks)

    # --- Sessions -----------------------------------------------------------------------

    def _attend(
        self,
        request: AttendRequest,
        context: grpc.ServicerContext,
        send: Callable[[WakeUp | None], None],
    ) -> None:
        self._check(context)
        name, session = request.session, _Session(request.session, send, context)
        if not name or len(name.encode()) > _NAME_BYTES:
            why = f"A session has a name of 1 to {_NAME_BYTES} bytes."
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        displaced: _Session | None = None
        with self._changed:
            is_taken = name in self._sessions
            is_full = not is_taken and len(self._sessions) >= _SESSIONS
            if is_full:
                displaced = min(self._sessions.values(), key=lambda other: other.used)
                is_full = session.used - displaced.used < _SETTLED
            if not (is_taken or is_full):
                if displaced is not None:
                    self._forget(displaced)
                self._sessions[name] = session
                if self._sender is None:
                    self._sender = threading.Thread(
                        target=self._send_wake_ups, name="oracle-wake-ups", daemon=True
                    )
                    self._sender.start()
                self._changed.notify_all()
        if is_taken:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "This session is open already.")
        if is_full:
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, _FULL)
        if displaced is not None:
            self._end(displaced, grpc.StatusCode.RESOURCE_EXHAUSTED, _FULL)
        if not context.add_callback(lambda: self._drop(session)):
            self._drop(session)

    def _drop(self, session: _Session) -> None:
        """A stream has ended: drop its locks."""
        with self._changed:
            self._forget(session)

    def _forget(self, session: _Session) -> None:
        # By identity: another stream may have the name by now.
        if self._sessions.get(session.name) is not session:
            return
        del self._sessions[session.name]
        for key in session.keys:
            held = self._locks.get(key)
            if held is not None and held.session == session.name:
                del self._locks[key]

    # --- Wake-ups -----------------------------------------------------------------------

    def _wake(self, request: WakeRequest, context: grpc.ServicerContext) -> WakeReply:
        self._check(context)
        with self._changed:
            for name, session in self._sessions.items():
                if name != request.session:
                    session.due = True
                else:
                    session.used = time.monotonic()
            self._changed.notify_all()
            return WakeReply(max(_PAUSE_MS, len(self._sessions)))

    def _send_wake_ups(self) -> None:
        """Send the wake-ups that are due, for as long as there are sessions."""
        rest = threading.Event()
        while True:
            with self._changed:
                due = self._take_due()
                if not due:
                    self._changed.wait(_LEASE_CHECK)
                    due = self._take_due()
                if not self._sessions:
                    self._sender = None
                    return
            if not self._holds():
                self._end_all()
                continue
            began = time.monotonic()
            for session in due:
                try:
                    session.send(_WAKE_UP)
                except Exception:
                    log.exception("a wake-up could not be sent")
                    self._drop(session)
            rest.wait(min(_LEASE_CHECK, _REST_FACTOR * (time.monotonic() - began)))

    def _take_due(self) -> list[_Session]:
        due = [session for session in self._sessions.values() if session.due]
        for session in due:
            session.due = False
        return due

    def _end_all(self) -> None:
        """End all sessions, so that their clients find the lease holder."""
        with self._changed:
            ended = list(self._sessions.values())
        for session in ended:
            self._end(session, grpc.StatusCode.FAILED_PRECONDITION, _NOT_HERE)

    def _end(self, session: _Session, code: grpc.StatusCode, why: str) -> None:
        self._drop(session)
        session.context.set_code(code)
        session.context.set_details(why)
        try:
            session.send(None)
        except Exception:
            log.exception("a stream could not be ended")

    # --- Locks --------------------------------------------------------------------------

    def _try_lock(self, request: LockRequest, context: grpc.ServicerContext) -> LockReply:
        self._check(context)
        if len(request.key) > _KEY_BYTES:
            why = f"The key of a lock has at most {_KEY_BYTES} bytes."
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        with self._changed:
            session = self._sessions.get(request.session)
            held = self._locks.get(request.key)
            taken = held is None or held.session == request.session
            if session is not None:
                session.used = time.monotonic()
                fits = len(session.keys) < _SESSION_LOCKS and len(self._locks) < _LOCKS
                if taken and (fits or held is not None):
                    self._locks[request.key] = _Held(session.name, request.turn)
                    session.keys.add(request.key)
        if session is None:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, _NO_SESSION)
        return LockReply(taken)

    def _unlock(self, request: UnlockRequest, context: grpc.ServicerContext) -> UnlockReply:
        self._check(context)
        with self._changed:
            if self._locks.get(request.key) == _Held(request.session, request.turn):
                del self._locks[request.key]
                self._sessions[request.session].keys.discard(request.key)
        return UnlockReply()

    def _check(self, context: grpc.ServicerContext) -> None:
        self._admit(context)
        if not self._holds():
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, _NOT_HERE)


class _NonBlocking:
    """Marks a handler that returns at once and sends later, as gRPC's health service does.

    Such a stream stays open without a thread of the server's pool.
    """

    experimental_non_blocking = True

    def __init__(self, behaviour: Callable[..., None]) -> None:
        self._behaviour = behaviour

    def __call__(self, *arguments: Any) -> None:
        self._behaviour(*arguments)


def _method(behaviour: Callable[..., Any], request: Any, reply: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=request.decode, response_serializer=reply.encode
    )


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
    context.abort(code, why)
    raise AssertionError("abort raises")

"""§2.4 "a lightweight lock service": advisory locks in memory, beside the oracle.

    Attend(session)   one stream for each process that attends: rings are sent on it, and its
                      locks live as long as it does
    TryLock, Unlock   a lock is (session, turn), by key
    Ring              marks every stream but the ringer's; one thread sends what is marked

Only the oracle process that holds the lease serves it, so that all processes ask the same one. When
that changes its streams are ended and its locks forgotten: they are advisory.

A stream takes no thread of the server's pool. Sending rings takes at most a tenth of the time of
one thread, and every ringer is told for how long to keep quiet, which is longer the more processes
there are: the timestamps that the same process hands out are more urgent than bells.
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

log = logging.getLogger("percola.oracle")

_LOOK: Final = 0.5
"""Seconds between looks whether the lease is still held, and so the longest that rings wait."""
_SHARE: Final = 9
"""Sending rests for so many times as long as it took."""
_QUIET_MS: Final = 10
_SESSIONS: Final = 2000
"""Processes that may attend at a time."""
_SETTLED: Final = 10.0
"""Seconds for which a session that was not used keeps its place: without, more processes than there
are places would displace each other without end."""
_NAME_BYTES: Final = 64
"""The longest name of a session. Percola's are of 16 bytes, and its keys too."""
_KEY_BYTES: Final = 64
_SESSION_LOCKS: Final = 5000
_LOCKS: Final = 200_000
"""Locks of all sessions: about 70 MB."""
_RUNG: Final = Rung()

_NOT_HERE: Final = "This oracle process does not hold the lease: its lock service is at rest."
_GONE: Final = "This session is not attended to, or not any more: attend anew."
_FULL: Final = f"It serves {_SESSIONS} sessions, which is as many as it can."


class _Attendance:
    """A process that attends."""

    def __init__(
        self, session: str, send: Callable[[Rung | None], None], context: grpc.ServicerContext
    ) -> None:
        self.session = session
        self.send = send
        self.context = context
        self.keys: set[bytes] = set()
        self.due = True  # The first ring says that it is attended to.
        self.used = time.monotonic()


class _Held(NamedTuple):
    session: str
    turn: int


class LockServiceServer:
    """The locks and the bell of one oracle process.

    Args:
        holds: whether this process holds the oracle's lease; asked with every call.
        admit: ends a call (`context.abort`) that may not be made.
    """

    def __init__(
        self,
        holds: Callable[[], bool],
        admit: Callable[[grpc.ServicerContext], None] = lambda context: None,
    ) -> None:
        self._holds = holds
        self._admit = admit
        self._changed = threading.Condition(threading.Lock())
        self._attending: dict[str, _Attendance] = {}
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
                    response_serializer=Rung.encode,
                ),
                TRY_LOCK: _method(self._try_lock, LockRequest, LockReply),
                UNLOCK: _method(self._unlock, UnlockRequest, UnlockReply),
                RING: _method(self._ring, RingRequest, RingReply),
            },
        )

    @property
    def sessions(self) -> int:
        """How many processes attend."""
        return len(self._attending)

    @property
    def locks(self) -> int:
        """How many locks are held."""
        return len(self._locks)

    # --- Attending ----------------------------------------------------------------------

    def _attend(
        self,
        request: AttendRequest,
        context: grpc.ServicerContext,
        send: Callable[[Rung | None], None],
    ) -> None:
        self._check(context)
        session, one = request.session, _Attendance(request.session, send, context)
        if not session or len(session.encode()) > _NAME_BYTES:
            why = f"A session has a name of 1 to {_NAME_BYTES} bytes."
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        displaced: _Attendance | None = None
        with self._changed:
            is_taken = session in self._attending
            is_full = not is_taken and len(self._attending) >= _SESSIONS
            if is_full:
                displaced = min(self._attending.values(), key=lambda other: other.used)
                is_full = one.used - displaced.used < _SETTLED
            if not (is_taken or is_full):
                if displaced is not None:
                    self._forget(displaced)
                self._attending[session] = one
                if self._sender is None:
                    self._sender = threading.Thread(
                        target=self._send_rings, name="oracle-bell", daemon=True
                    )
                    self._sender.start()
                self._changed.notify_all()
        if is_taken:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "A session has a name of its own.")
        if is_full:
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, _FULL)
        if displaced is not None:
            self._end(displaced, grpc.StatusCode.RESOURCE_EXHAUSTED, _FULL)
        if not context.add_callback(lambda: self._drop(one)):
            self._drop(one)

    def _drop(self, one: _Attendance) -> None:
        """A stream has ended: forget its locks."""
        with self._changed:
            self._forget(one)

    def _forget(self, one: _Attendance) -> None:
        # By identity: another stream may have the name by now.
        if self._attending.get(one.session) is not one:
            return
        del self._attending[one.session]
        for key in one.keys:
            held = self._locks.get(key)
            if held is not None and held.session == one.session:
                del self._locks[key]

    # --- The bell -----------------------------------------------------------------------

    def _ring(self, request: RingRequest, context: grpc.ServicerContext) -> RingReply:
        self._check(context)
        with self._changed:
            for session, one in self._attending.items():
                if session != request.session:
                    one.due = True
                else:
                    one.used = time.monotonic()
            self._changed.notify_all()
            return RingReply(max(_QUIET_MS, len(self._attending)))

    def _send_rings(self) -> None:
        """Send what is marked, for as long as anybody attends."""
        rest = threading.Event()
        while True:
            with self._changed:
                due = self._take_due()
                if not due:
                    self._changed.wait(_LOOK)
                    due = self._take_due()
                if not self._attending:
                    self._sender = None
                    return
            if not self._holds():
                self._end_all()
                continue
            began = time.monotonic()
            for one in due:
                try:
                    one.send(_RUNG)
                except Exception:
                    log.exception("a ring could not be sent")
                    self._drop(one)
            rest.wait(min(_LOOK, _SHARE * (time.monotonic() - began)))

    def _take_due(self) -> list[_Attendance]:
        due = [one for one in self._attending.values() if one.due]
        for one in due:
            one.due = False
        return due

    def _end_all(self) -> None:
        """Send everybody elsewhere."""
        with self._changed:
            ended = list(self._attending.values())
        for one in ended:
            self._end(one, grpc.StatusCode.FAILED_PRECONDITION, _NOT_HERE)

    def _end(self, one: _Attendance, code: grpc.StatusCode, why: str) -> None:
        self._drop(one)
        one.context.set_code(code)
        one.context.set_details(why)
        try:
            one.send(None)
        except Exception:
            log.exception("a stream could not be ended")

    # --- Locks --------------------------------------------------------------------------

    def _try_lock(self, request: LockRequest, context: grpc.ServicerContext) -> LockReply:
        self._check(context)
        if len(request.key) > _KEY_BYTES:
            why = f"The key of a lock has at most {_KEY_BYTES} bytes."
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, why)
        with self._changed:
            one = self._attending.get(request.session)
            held = self._locks.get(request.key)
            taken = held is None or held.session == request.session
            if one is not None:
                one.used = time.monotonic()
                fits = len(one.keys) < _SESSION_LOCKS and len(self._locks) < _LOCKS
                if taken and (fits or held is not None):
                    self._locks[request.key] = _Held(one.session, request.turn)
                    one.keys.add(request.key)
        if one is None:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, _GONE)
        return LockReply(taken)

    def _unlock(self, request: UnlockRequest, context: grpc.ServicerContext) -> UnlockReply:
        self._check(context)
        with self._changed:
            if self._locks.get(request.key) == _Held(request.session, request.turn):
                del self._locks[request.key]
                self._attending[request.session].keys.discard(request.key)
        return UnlockReply()

    def _check(self, context: grpc.ServicerContext) -> None:
        self._admit(context)
        if not self._holds():
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, _NOT_HERE)


class _NonBlocking:
    """Marks a handler as one that returns at once and sends later, as gRPC's health service does.

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

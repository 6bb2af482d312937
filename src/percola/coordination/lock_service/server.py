"""§2.4 "a lightweight lock service": advisory locks in memory, beside the oracle.

    ATTEND         makes the connection a session: wake-ups are sent on it, and the session's locks
                   live as long as it does
    LOCK, UNLOCK   a lock is (session, turn), by key; the turn is the number of the request
    WAKE           wakes every session but the sender's, and tells it what the wake-up is about
                   (`percola.coordination.wake_ups`)
    IDLE           this session has nothing to do. Of each row in the tables of its pool one idle
                   session of the pool is told, which then counts as busy; if all are busy, the
                   row waits for the first that is not

Every oracle process serves it, also one on standby. Clients have a session with each of them, and a
hash of the row decides which one they ask for its lock: see
`percola.coordination.lock_service.client`. So the processes know nothing of each other.

All of it runs in the thread that hands out timestamps, which are more urgent than wake-ups: sending
these takes at most a tenth of its time, a few at a time, and each answer tells the sender how long
to pause, which grows with the number of sessions.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from percola.coordination.wake_ups import EVERY_TABLE, first_of, joined, marks_of_pool, parted
from percola.rpc import frames
from percola.rpc.frames import Code, FrameError
from percola.rpc.server import Peer

_CHECK: Final = 0.5
"""Seconds between checks that sessions answer."""
_REST_FACTOR: Final = 9
"""After sending wake-ups the thread sends none for this many times as long as sending took."""
_AT_ONCE: Final = 32
"""Wake-ups that are sent before the thread looks for requests again."""
_PAUSE_MS: Final = 10
_REPORTS_A_MS: Final = 4
"""With many sessions each pauses for so long that all together send this many wake-ups a
millisecond. To receive them takes some 80 ms of the thread's time a second; telling sessions of
them is limited by `_REST_FACTOR`."""
_SESSIONS: Final = 2000
"""The most sessions at a time, or as many as half of the open files that the system permits."""
_SETTLED: Final = 10.0
"""Seconds for which an unused session cannot be displaced: without this, more processes than
`_SESSIONS` would displace each other without end."""
_KEY_BYTES: Final = 64
"""The longest key of a lock. Percola's have 16 bytes."""
_SESSION_LOCKS: Final = 5000
_LOCKS: Final = 200_000
"""Locks of all sessions: about 70 MB."""
_POOLS: Final = 16
"""The most pools at a time. Sessions of others are told of everything."""
_WAITING: Final = 512
"""The most rows that wait for an idle session. With more, all sessions are told of the tables."""
_AT_A_TIME: Final = 24
"""The most rows that one session is told of at a time: others may be idle soon."""
KNOWS_IDLE: Final = b"\1"
"""What the answer to ATTEND says. Older releases say nothing, and take IDLE for an error."""
TOLD_ALONE: Final = 1
"""The number of a wake-up that no other session of the pool is told of."""
PING_SECONDS: Final = 2.0
"""A session that is silent for so long is pinged, and dropped after as long again."""
_PING: Final = frames.frame(frames.PING)


class Sender(Protocol):
    """How peers are reached; see `percola.rpc.server.FrameServer`."""

    def send(self, peer: Peer, message: bytes) -> None:
        """Send frames."""

    def end(self, peer: Peer, message: bytes = b"") -> None:
        """End the connection; `drop` is called for it."""

    def hurry(self) -> None:
        """Call `tick` soon."""

    def keep(self, peer: Peer) -> None:
        """The lock service bounds the number of such peers."""


class _Session:
    """What belongs to a connection that receives wake-ups."""

    __slots__ = ("asked", "keys", "peer", "pinged", "pool", "unread")

    def __init__(self, peer: Peer, pool: _Pool, now: float) -> None:
        self.peer = peer
        self.pool = pool
        self.keys: set[bytes] = set()
        self.asked = now
        """When it last asked for something, as `Peer.used` but for pings."""
        self.pinged = 0.0
        """When it was pinged, if it has been silent since; 0: it was not."""
        self.unread: bytes | None = None
        """The wake-ups, as one, that it may have yet to read."""


class _Pool:
    """The sessions of a pool, and the wake-ups that they have yet to be told of.

    Those of the pool with the empty name are all told of everything.
    """

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.sessions: dict[_Session, None] = {}
        # Those that have been idle for longest come first.
        self.idle: dict[_Session, None] = {}
        self.rows: dict[tuple[int, bytes], _Session | None] = {}
        """The rows of which one session is to be told, by the marks of their tables; who sent each
        last, if that was a session."""
        self._marks = marks_of_pool(name)
        self._due: bytes | None = None
        self._but: _Session | None = None

    @property
    def has_untold(self) -> bool:
        """Whether there is something that not all sessions know."""
        return self._due is not None or bool(self.rows)

    @property
    def is_due(self) -> bool:
        """Whether a session has to be told of something now."""
        return self._due is not None or bool(self.rows and self.idle)

    def wake(self, sender: _Session | None, wake_up: bytes) -> None:
        """A wake-up has arrived."""
        if not self.sessions:
            return
        told, rows = parted(wake_up, self._marks)
        self.rows.update(dict.fromkeys(rows, sender))
        if len(self.rows) > _WAITING:
            told = joined(told, bytes(sorted({mark for mark, _ in self.rows})))
            self.rows.clear()
            sender = None  # It does not know of the others' rows.
        if told is not None:
            # Of two that wake, each is woken by the other.
            self._but = sender if self._due is None or self._but is sender else None
            self._due = joined(self._due, told)

    def note_idle(self, session: _Session) -> None:
        """A session has nothing to do: it has seen to the rows that it has sent itself, too."""
        self.idle[session] = None
        if self.rows:
            self.rows = {row: one for row, one in self.rows.items() if one is not session}

    def take_due(self) -> list[_Told]:
        """What is to be sent now, and to which session."""
        found: list[_Told] = []
        if self._due is not None:
            found = [_Told(one, self._due) for one in self.sessions if one is not self._but]
            self._due = self._but = None
        while self.rows and self.idle:
            most = min(_AT_A_TIME, -(-len(self.rows) // len(self.idle)))
            session = next(iter(self.idle))
            del self.idle[session]
            found.append(_Told(session, first_of(self.rows, most), alone=True))
        return found


class _Told(NamedTuple):
    """A wake-up for a session; `alone`: no other session is told of it."""

    session: _Session
    wake_up: bytes
    alone: bool = False


class _Held(NamedTuple):
    session: _Session
    turn: int


class LockServiceServer:
    """The locks and wake-ups of one oracle process; for one thread.

    Args:
        sender: how peers are reached.
        clock: that of `Peer.used`.
    """

    def __init__(
        self,
        sender: Sender,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._sessions: dict[_Session, None] = {}
        self._locks: dict[bytes, _Held] = {}
        self._everybody = _Pool(b"")
        self._pools = {b"": self._everybody}
        # One round of wake-ups is sent at a time; those that are asked for meanwhile are the next.
        self._round: deque[_Told] = deque()
        self._rest_until = 0.0
        self._check_at = 0.0

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    @property
    def locks(self) -> int:
        """How many locks are held."""
        return len(self._locks)

    def received(self, peer: Peer, kind: int, number: int, body: bytes) -> bytes:
        """What a request is answered; FrameError if it is none."""
        session: _Session | None = peer.state
        if kind == frames.PONG:
            return b""
        if kind not in (frames.ATTEND, frames.LOCK, frames.UNLOCK, frames.WAKE, frames.IDLE):
            raise FrameError(f"a message of an unknown kind, {kind}")
        if session is not None:
            session.asked = self._clock()
        if kind == frames.WAKE:
            return self._wake(session, number, body)
        if kind == frames.ATTEND:
            if session is not None:
                raise FrameError("a second request for a session")
            return self._attend(peer, number)
        if session is None:
            raise FrameError("a request for a lock without a session")
        if kind == frames.IDLE:
            return self._idle(session, body)
        if len(body) > _KEY_BYTES:
            raise FrameError(f"a key of a lock with more than {_KEY_BYTES} bytes")
        if kind == frames.LOCK:
            return self._lock(session, number, body)
        if self._locks.get(body) == _Held(session, number):
            del self._locks[body]
            session.keys.discard(body)
        return b""

    # --- Sessions -----------------------------------------------------------------------

    def _attend(self, peer: Peer, number: int) -> bytes:
        now = self._clock()
        if len(self._sessions) >= (most := _most_sessions()):
            full = f"This lock service has {most} sessions, which is its limit."
            oldest = min(self._sessions, key=lambda one: one.asked)
            if now - oldest.asked < _SETTLED:
                return frames.refused(Code.LIMIT, full, number)
            self._sender.end(oldest.peer, frames.refused(Code.LIMIT, full))
        peer.state = session = _Session(peer, self._everybody, now)
        self._sessions[session] = self._everybody.sessions[session] = None
        self._sender.keep(peer)
        # The first wake-up reports that the session is open, and that IDLE is understood.
        return frames.frame(frames.WAKE_UP, number, KNOWS_IDLE)

    def drop(self, peer: Peer) -> None:
        """A connection has ended: drop its locks."""
        session: _Session | None = peer.state
        if session is None:
            return
        peer.state = None
        self._sessions.pop(session, None)
        self._leave_pool(session)
        for key in session.keys:
            held = self._locks.get(key)
            if held is not None and held.session is session:
                del self._locks[key]

    # --- Locks --------------------------------------------------------------------------

    def _lock(self, session: _Session, turn: int, key: bytes) -> bytes:
        held = self._locks.get(key)
        taken = held is None or held.session is session
        if taken:
            fits = len(session.keys) < _SESSION_LOCKS and len(self._locks) < _LOCKS
            if fits or held is not None:
                self._locks[key] = _Held(session, turn)
                session.keys.add(key)
        return frames.frame(frames.LOCKED, turn, b"\1" if taken else b"\0")

    # --- Wake-ups and time --------------------------------------------------------------

    def _wake(self, session: _Session | None, number: int, wake_up: bytes) -> bytes:
        for pool in self._pools.values():
            pool.wake(session, wake_up)
        self._sender.hurry()
        return frames.pause(number, max(_PAUSE_MS, len(self._sessions) // _REPORTS_A_MS))

    def _idle(self, session: _Session, name: bytes) -> bytes:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._everybody
            if len(self._pools) <= _POOLS:
                try:
                    pool = self._pools[name] = _Pool(name)
                except ValueError as error:
                    raise FrameError(str(error)) from error
        if session.pool is not pool:
            if session.pool.has_untold:
                self._round.append(_Told(session, EVERY_TABLE))
            self._leave_pool(session)
            session.pool = pool
            pool.sessions[session] = None
        if pool is not self._everybody:
            pool.note_idle(session)
            if pool.rows:
                self._sender.hurry()
        return b""

    def _leave_pool(self, session: _Session) -> None:
        pool = session.pool
        pool.sessions.pop(session, None)
        pool.idle.pop(session, None)
        if not pool.sessions and pool is not self._everybody:
            del self._pools[pool.name]

    def tick(self) -> float:
        """Send wake-ups that are due, and look after the sessions; seconds until the next call."""
        now = self._clock()
        if now >= self._check_at:
            self._check_at = now + _CHECK
            self._check(now)
        if self._has_due() and now >= self._rest_until:
            self._send_some()
            ended = self._clock()
            self._rest_until = ended + min(_CHECK, _REST_FACTOR * (ended - now))
            now = ended
        if self._has_due():
            return max(0.0, min(self._rest_until, self._check_at) - now)
        return max(0.0, self._check_at - now)

    def _has_due(self) -> bool:
        return bool(self._round) or any(pool.is_due for pool in self._pools.values())

    def _send_some(self) -> None:
        if not self._round:
            for pool in self._pools.values():
                self._round.extend(pool.take_due())
        for _ in range(min(_AT_ONCE, len(self._round))):
            session, wake_up, alone = self._round.popleft()
            if session not in self._sessions:
                continue
            # A process that does not read is told once of each table.
            unread = session.unread if session.peer.unsent else None
            wake_up = joined(unread, wake_up)
            if alone or wake_up != unread:
                number = TOLD_ALONE if alone else 0
                self._sender.send(session.peer, frames.frame(frames.WAKE_UP, number, wake_up))
                session.unread = wake_up if session.peer.unsent else None

    def _check(self, now: float) -> None:
        """End the sessions that answer nothing."""
        for session in list(self._sessions):
            if session.peer.used >= session.pinged:
                session.pinged = 0.0
                if now - session.peer.used > PING_SECONDS:
                    session.pinged = now
                    self._sender.send(session.peer, _PING)
            elif now - session.pinged > PING_SECONDS:
                self._sender.end(session.peer)


def _most_sessions() -> int:
    # A session does not make place for others: the rest is for timestamps.
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _SESSIONS if files == resource.RLIM_INFINITY else min(_SESSIONS, files // 2)

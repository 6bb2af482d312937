"""§2.4 "a lightweight lock service", client side: advisory locks and wake-ups between processes.

    session     a thread reads one connection. While it is open, the process receives wake-ups and
                keeps its locks
    try_lock    first among the threads of this process, then one request a row, which are sent
                together and answered together; no answer counts as taken by this process
    unlock      a message a row, which is not answered
    wake        calls the callbacks of this process at once; a thread notifies the service, with
                one call at a time

Everything continues without the service: rows are then locked against the threads of this process
only, and wake-ups of other processes do not arrive; scanning makes up for both. A service that did
not answer is not called again for a second, so that its loss does not slow scanning.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from percola.coordination.lock_service.base import LockService
from percola.coordination.wake_ups import EVERY_TABLE, Place, joined, wake_up_of
from percola.errors import UsageError
from percola.rpc import frames
from percola.rpc.client import Access, Connection, LostError, RefusedError

LOCK_SECONDS: Final = 0.3

_BACK_OFF: Final = 1.0
"""Seconds for which a service that did not answer is not called again."""
_WAKE_SECONDS: Final = 1.0
_ATTEND_SECONDS: Final = 3.0
_SILENCE_SECONDS: Final = 9.0
"""Seconds without a ping or anything else after which the service is taken for lost."""
_JOIN: Final = 2.0
_NUMBERS: Final = 2**32


class LockServiceClient(LockService):
    """Advisory locks and wake-ups of a repository, served beside its oracle.

    Connects when it is first used; a child after a fork opens its own connection.

    Args:
        addresses: `host:port` of each of the repository's oracle processes; the client finds the
            lease holder among them.
        access: the oracles' token and TLS.
        lock_seconds: for how long `try_lock` waits for the service.

    Raises UsageError for options that cannot work.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        access: Access | None = None,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        if not addresses or isinstance(addresses, str):
            raise UsageError("Name the address of at least one oracle, in a list.")
        if not lock_seconds > 0:
            raise UsageError("The seconds to wait for an advisory lock must be above 0.")
        self.addresses = tuple(addresses)
        self.lock_seconds = lock_seconds
        self.access = access or Access()
        self.context = self.access.context()
        self._links: list[_Link] = []
        super().__init__()

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._turns: dict[tuple[str, bytes], int] = {}
        for inherited in self._links:
            inherited.leave_to_parent()
        self._link = _Link(self, self._run_callbacks)
        self._links = [self._link]

    @property
    def has_session(self) -> bool:
        """Whether this process has a session with the service now."""
        return self._link.has_session

    def try_lock_many(self, rows: Sequence[tuple[str, bytes]]) -> list[bool]:
        free = super().try_lock_many(rows)
        mine = [row for row, is_free in zip(rows, free, strict=True) if is_free]
        turns: list[int] = []
        try:
            turns = self._link.try_lock([_key(*row) for row in mine])
        finally:
            taken = {row: turn for row, turn in zip(mine, turns, strict=False) if turn}
            self._turns |= taken
            super().unlock_many(row for row in mine if row not in taken)
        return [is_free and row in taken for row, is_free in zip(rows, free, strict=True)]

    def unlock_many(self, rows: Iterable[tuple[str, bytes]]) -> None:
        rows = list(rows)
        turns = {row: self._turns.pop(row, 0) for row in rows}
        super().unlock_many(rows)
        self._link.unlock([(_key(*row), turn) for row, turn in turns.items() if turn])

    def wake(self, places: Iterable[Place] | None = None) -> None:
        wake_up = wake_up_of(places)
        self._run_callbacks(wake_up)
        self._link.wake(wake_up)

    def on_wake(self, callback: Callable[[bytes], None]) -> Callable[[], None]:
        stop = super().on_wake(callback)
        self._link.open_session()
        return stop

    def close(self) -> None:
        super().close()
        self._link.close()


class _Session:
    """A connection on which wake-ups come, and the requests that wait for an answer on it."""

    def __init__(self, address: str, connection: Connection) -> None:
        self.address = address
        self.connection = connection
        self._guard = threading.Lock()
        self._waiting: dict[int, _Answers] = {}
        self._is_lost = False

    def request(
        self, numbers: Sequence[int], message: bytes, seconds: float
    ) -> dict[int, frames.Frame]:
        """Send requests and wait for all answers, by the requests' numbers; LostError."""
        answers = _Answers(len(numbers))
        with self._guard:
            if self._is_lost:
                raise LostError("it has closed the connection")
            self._waiting.update(dict.fromkeys(numbers, answers))
        try:
            self.connection.send(message)
            if not answers.came.wait(seconds) or len(answers.frames) < len(numbers):
                raise LostError(f"no answer within {seconds:g} s")
        finally:
            with self._guard:
                for number in numbers:
                    self._waiting.pop(number, None)
        return answers.frames

    def answered(self, found: frames.Frame) -> None:
        """Pass an answer to the thread that waits for it."""
        with self._guard:
            answers = self._waiting.get(found.number)
        if answers is not None:
            answers.frames[found.number] = found
            if len(answers.frames) == answers.expected:
                answers.came.set()

    def lost(self) -> None:
        """The connection has ended: nothing will be answered."""
        with self._guard:
            self._is_lost = True
            waiting = list(self._waiting.values())
        for answers in waiting:
            answers.came.set()


class _Answers:
    """What a thread waits for; fewer than expected if the connection has ended."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.came = threading.Event()
        self.frames: dict[int, frames.Frame] = {}


class _Link:
    """A process's session with the service, and its pending wake-up."""

    def __init__(self, client: LockServiceClient, on_wake: Callable[[bytes], None]) -> None:
        self._client = client
        self._on_wake = on_wake
        self._changed = threading.Condition(threading.Lock())
        self._numbers = itertools.count(1)
        self._session: _Session | None = None
        # That of a process without a session, for wake-ups.
        self._alone: Connection | None = None
        self._opening: Connection | None = None
        self._began = 0.0
        self._is_beginning = True
        self._silent_until = 0.0
        self._wake_due = threading.Event()
        self._joining = threading.Lock()
        self._due_wake_up: bytes | None = None
        self._closing = threading.Event()
        self._reader: threading.Thread | None = None
        self._waker: threading.Thread | None = None

    def leave_to_parent(self) -> None:
        """In a child: close the inherited descriptors."""
        session = self._session
        for one in (session.connection if session else None, self._alone, self._opening):
            if one is not None:
                one.leave_to_parent()

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
            served = self._serve(addresses[attempt % len(addresses)])
            if attempt == len(addresses):
                with self._changed:
                    self._is_beginning = False
                    self._changed.notify_all()
            # After a session that was served, the next address is tried at once.
            if not served and attempt % len(addresses) == 0:
                self._closing.wait(0.2)

    def _serve(self, address: str) -> bool:
        """Keep a session until it breaks; whether the service accepted it."""
        session: _Session | None = None
        try:
            connection = self._connect(address)
            with self._changed:
                if self._closing.is_set():
                    connection.end()
                    return False
                self._opening = connection
            number = self._next()
            connection.ask(
                frames.frame(frames.ATTEND, number), number, frames.WAKE_UP, _ATTEND_SECONDS
            )
            session = _Session(address, connection)
            with self._changed:
                if self._closing.is_set():
                    connection.end()
                    return True
                self._session = session
                self._is_beginning = False
                self._changed.notify_all()
            # Wake-ups before the session did not arrive.
            self._on_wake(EVERY_TABLE)
            self._read(session)
        except (LostError, RefusedError):
            pass  # The next address is tried.
        finally:
            with self._changed:
                self._session = self._opening = None
            if session is not None:
                session.lost()
        return session is not None

    def _read(self, session: _Session) -> None:
        """Read what comes until the connection ends."""
        pong = frames.frame(frames.PONG)
        while True:
            found = session.connection.receive(_SILENCE_SECONDS)
            if found.kind == frames.WAKE_UP:
                self._on_wake(found.body)
            elif found.kind == frames.PING:
                session.connection.send(pong)
            elif found.kind == frames.REFUSED and not found.number:
                session.connection.end()
                return
            else:
                session.answered(found)

    def _connect(self, address: str) -> Connection:
        client = self._client
        return Connection(address, client.access, client.context, _ATTEND_SECONDS)

    def _next(self) -> int:
        # A lock that was taken four billion requests ago is not given back by a later turn.
        return next(self._numbers) % _NUMBERS

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
        """A request has failed: end the session, and with it the locks that the service holds.

        Otherwise a lock would stay that the service granted in an answer that was lost.
        """
        with self._changed:
            if self._session is not session:
                return
            self._session = None
            self._silent_until = time.monotonic() + _BACK_OFF
        session.connection.end()

    # --- Locks --------------------------------------------------------------------------

    def try_lock(self, keys: Sequence[bytes]) -> list[int]:
        """The turn in which each lock was taken; 0 if another process has it."""
        turns = [self._next() or self._next() for _ in keys]
        session = self._usable_session() if keys else None
        if session is None:
            return turns
        message = b"".join(map(frames.frame, itertools.repeat(frames.LOCK), turns, keys))
        try:
            answers = session.request(turns, message, self._client.lock_seconds)
        except BaseException as error:
            # Also after an interrupt: the service may have granted locks.
            self._give_up(session)
            if isinstance(error, LostError):
                return turns
            raise
        if any(answer.kind != frames.LOCKED for answer in answers.values()):
            self._give_up(session)  # They are refused: the lease has moved.
            return turns
        return [turn if answers[turn].body == b"\1" else 0 for turn in turns]

    def unlock(self, turns: Sequence[tuple[bytes, int]]) -> None:
        """Release locks; nobody waits for it."""
        session = self._session
        if session is not None and turns:
            try:
                session.connection.send(
                    b"".join(frames.frame(frames.UNLOCK, turn, key) for key, turn in turns)
                )
            except LostError:
                self._give_up(session)

    # --- Wake-ups -----------------------------------------------------------------------

    def wake(self, wake_up: bytes) -> None:
        """Wake the other processes, in the background; wake-ups meanwhile are sent as one."""
        with self._joining:
            self._due_wake_up = joined(self._due_wake_up, wake_up)
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
            with self._joining:
                wake_up, self._due_wake_up = self._due_wake_up, None
            if wake_up is None:
                continue  # The one before has told of it.
            pause = _BACK_OFF
            for _ in self._client.addresses:
                session = self._session
                try:
                    pause = self._send_wake_up(session, self._client.addresses[at], wake_up) / 1000
                    break
                except (LostError, RefusedError, frames.FrameError):
                    if session:
                        self._give_up(session)
                    at = (at + 1) % len(self._client.addresses)
            if self._closing.wait(pause):
                return

    def _send_wake_up(self, session: _Session | None, address: str, wake_up: bytes) -> int:
        """Send one wake-up; for how many milliseconds to send no other."""
        number = self._next()
        message = frames.frame(frames.WAKE, number, wake_up)
        if session is not None:
            answer = session.request([number], message, _WAKE_SECONDS)[number]
            if answer.kind != frames.PAUSE:
                raise LostError("it refuses")
            return frames.read_pause(answer.body)
        if self._alone is None:
            connection = self._connect(address)
            with self._changed:
                if self._closing.is_set():
                    connection.end()
                    raise LostError("closed")
                self._alone = connection
        try:
            return frames.read_pause(self._alone.ask(message, number, frames.PAUSE, _WAKE_SECONDS))
        finally:
            if self._alone.has_ended:
                self._alone = None

    def close(self) -> None:
        """End the connections and the threads. Idempotent."""
        with self._changed:
            self._closing.set()
            self._is_beginning = False
            self._changed.notify_all()
            opened = [self._opening, self._alone]
        self._wake_due.set()
        for one in opened:
            if one is not None:
                one.end()
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

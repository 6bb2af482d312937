"""§2.4: sessions of a client of the lock service, one with each process that serves it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from percola.clock import backoff
from percola.coordination.lock_service.server import KNOWS_IDLE, TOLD_ALONE
from percola.coordination.wake_ups import EVERY_TABLE, has_room, joined
from percola.platform.fork_safety import new_random
from percola.rpc import frames
from percola.rpc.client import Connection, LostError, RefusedError

_BACK_OFF: Final = 1.0
"""Seconds for which a process that did not answer is not asked again."""
_AGAIN: Final = (0.2, 2.0)
"""Seconds between attempts to open a session with a process: at first, and at most."""
_WAKE_SECONDS: Final = 1.0
_AT_A_TIME: Final = 16
"""The most wake-ups about rows that are sent without a pause. More are one about their tables."""
_FINISH_SECONDS: Final = 0.3
"""For how long closing waits for a process to take the last wake-up."""
_ATTEND_SECONDS: Final = 3.0
_SILENCE_SECONDS: Final = 9.0
"""Seconds without a ping or anything else after which a process is taken for lost."""
_JOIN: Final = 2.0
_NUMBERS: Final = 2**32


class Session:
    """A connection on which wake-ups come, and the requests that wait for an answer on it.

    Attributes:
        pool: in which the process of the service takes this one for idle; None: it does not.
    """

    def __init__(self, connection: Connection, *, knows_idle: bool) -> None:
        self.connection = connection
        self.pool: bytes | None = b""
        self.knows_idle = knows_idle
        self._guard = threading.Lock()
        self._waiting: dict[int, Answers] = {}
        self._is_lost = False

    def send(self, numbers: Sequence[int], message: bytes) -> Answers:
        """Send requests, whose numbers their answers repeat; to be passed to `wait`. LostError."""
        answers = Answers(numbers)
        with self._guard:
            if self._is_lost:
                raise LostError("it has closed the connection")
            self._waiting.update(dict.fromkeys(numbers, answers))
        try:
            self.connection.send(message)
        except BaseException:
            self._forget(numbers)
            raise
        return answers

    def wait(self, answers: Answers, seconds: float) -> dict[int, frames.Frame]:
        """Wait for all answers; those by the requests' numbers. LostError."""
        try:
            if not answers.came.wait(seconds) or len(answers.frames) < len(answers.numbers):
                raise LostError(f"no answer within {seconds:g} s")
        finally:
            self._forget(answers.numbers)
        return answers.frames

    def _forget(self, numbers: Sequence[int]) -> None:
        with self._guard:
            for number in numbers:
                self._waiting.pop(number, None)

    def answered(self, found: frames.Frame) -> None:
        """Pass an answer to the thread that waits for it."""
        with self._guard:
            answers = self._waiting.get(found.number)
        if answers is not None:
            answers.frames[found.number] = found
            if len(answers.frames) == len(answers.numbers):
                answers.came.set()

    def lost(self) -> None:
        """The connection has ended: nothing will be answered."""
        with self._guard:
            self._is_lost = True
            waiting = list(self._waiting.values())
        for answers in waiting:
            answers.came.set()


class Answers:
    """What a thread waits for; fewer than expected if the connection has ended."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.came = threading.Event()
        self.frames: dict[int, frames.Frame] = {}


class Link:
    """A process of the service: this process's session with it, opened again when it ends.

    Args:
        connect: opens a connection to the process in so many seconds.
        lock_seconds: how long to wait for its answers, and for the first session.
        on_wake: called with each wake-up that comes.
    """

    def __init__(
        self,
        address: str,
        connect: Callable[[str, float], Connection],
        lock_seconds: float,
        on_wake: Callable[[bytes], None],
    ) -> None:
        self.address = address
        self.lock_seconds = lock_seconds
        self._connect = connect
        self._on_wake = on_wake
        self._changed = threading.Condition(threading.Lock())
        self._numbers = itertools.count(1)
        self.session: Session | None = None
        self._opening: Connection | None = None
        self._began = 0.0
        self._is_beginning = True
        self._silent_until = 0.0
        self._closing = threading.Event()
        self._reader: threading.Thread | None = None

    def leave_to_parent(self) -> None:
        """In a child: close the inherited descriptors."""
        session = self.session
        for one in (session.connection if session else None, self._opening):
            if one is not None:
                one.leave_to_parent()

    def next_number(self) -> int:
        """The number of the next request; never 0."""
        # A lock that was taken four billion requests ago is not given back by a later turn.
        return next(self._numbers) % _NUMBERS or next(self._numbers) % _NUMBERS

    # --- The session --------------------------------------------------------------------

    def open_session(self) -> None:
        """Open a session in the background, and reopen it when it ends."""
        if self._reader is None:
            with self._changed:
                if self._reader is None and not self._closing.is_set():
                    self._began = time.monotonic()
                    self._reader = _start(self._keep_session, "percola-wake-ups")

    def is_usable(self) -> bool:
        """Whether there is a session, with a process that has not just failed to answer.

        Waits for the first session, up to `lock_seconds` from the moment that it was opened.
        """
        if self.session is None:
            self.open_session()
            with self._changed:
                # Only in the beginning: later it is known whether the process is there.
                until = self._began + self.lock_seconds
                while self.session is None and self._is_beginning:
                    if (left := until - time.monotonic()) <= 0:
                        return False
                    self._changed.wait(left)
        return self.session is not None and time.monotonic() >= self._silent_until

    def give_up(self, session: Session) -> None:
        """A request has failed: end the session, and with it the locks that the process holds.

        Otherwise a lock would stay that it granted in an answer that was lost.
        """
        with self._changed:
            if self.session is not session:
                return
            self.session = None
            self._silent_until = time.monotonic() + _BACK_OFF
        session.connection.end()

    def _keep_session(self) -> None:
        rng, failed = new_random(), 0
        while not self._closing.is_set():
            if self._serve():
                failed = 0  # After a session that was served, the next is tried at once.
                continue
            with self._changed:
                self._is_beginning = False
                self._changed.notify_all()
            failed += 1
            first, most = _AGAIN
            self._closing.wait(backoff(rng, failed, first=first, most=most))

    def _serve(self) -> bool:
        """Keep a session until it breaks; whether the process accepted it."""
        session: Session | None = None
        try:
            connection = self._connect(self.address, _ATTEND_SECONDS)
            with self._changed:
                if self._closing.is_set():
                    connection.end()
                    return False
                self._opening = connection
            number = self.next_number()
            said = connection.ask(
                frames.frame(frames.ATTEND, number), number, frames.WAKE_UP, _ATTEND_SECONDS
            )
            session = Session(connection, knows_idle=said == KNOWS_IDLE)
            with self._changed:
                if self._closing.is_set():
                    connection.end()
                    return True
                self.session = session
                self._is_beginning = False
                self._changed.notify_all()
            # Wake-ups before the session did not arrive.
            self._on_wake(EVERY_TABLE)
            self._read(session)
        except (LostError, RefusedError):
            pass  # It is tried again.
        finally:
            with self._changed:
                self.session = self._opening = None
            if session is not None:
                session.lost()
        return session is not None

    def _read(self, session: Session) -> None:
        """Read what comes until the connection ends."""
        pong = frames.frame(frames.PONG)
        while True:
            found = session.connection.receive(_SILENCE_SECONDS)
            if found.kind == frames.WAKE_UP:
                if found.number == TOLD_ALONE:
                    session.pool = None
                self._on_wake(found.body)
            elif found.kind == frames.PING:
                session.connection.send(pong)
            elif found.kind == frames.REFUSED and not found.number:
                session.connection.end()
                return
            else:
                session.answered(found)

    def idle(self, pool: bytes) -> None:
        """Tell the process that this one has nothing to do, unless it knows."""
        session = self.session
        if session is not None and session.knows_idle and session.pool != pool:
            session.pool = pool
            try:
                session.connection.send(frames.frame(frames.IDLE, 0, pool))
            except LostError:
                self.give_up(session)

    # --- Locks --------------------------------------------------------------------------

    def unlock(self, turns: Sequence[tuple[bytes, int]]) -> None:
        """Release locks, each by its key and the number of its request; nobody waits for it."""
        session = self.session
        if session is not None:
            try:
                session.connection.send(
                    b"".join(frames.frame(frames.UNLOCK, turn, key) for key, turn in turns)
                )
            except LostError:
                self.give_up(session)

    # --- The end ------------------------------------------------------------------------

    def end(self) -> None:
        """End the connection; the thread ends soon. Idempotent."""
        with self._changed:
            self._closing.set()
            self._is_beginning = False
            self._changed.notify_all()
            opening = self._opening
        if opening is not None:
            opening.end()

    def join(self) -> None:
        """Wait for the end of the thread, for two seconds at most."""
        _join(self._reader)


class Locking:
    """Requests for locks of one process, which are sent together."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._session = link.session
        self._turns: list[int] = []
        self._message: list[bytes] = []
        self._answers: Answers | None = None
        self._taken: frozenset[int] | None = None

    def add(self, key: bytes) -> int:
        """Add a request for a lock; its number."""
        turn = self._link.next_number()
        self._turns.append(turn)
        self._message.append(frames.frame(frames.LOCK, turn, key))
        return turn

    def send(self) -> None:
        """Send the requests; what cannot be sent counts as taken by this process."""
        if self._session is not None:
            try:
                self._answers = self._session.send(self._turns, b"".join(self._message))
            except LostError:
                self.give_up()

    def wait(self) -> None:
        """Wait for the answers; without them all counts as taken by this process."""
        if self._session is None or self._answers is None:
            return
        try:
            answers = self._session.wait(self._answers, self._link.lock_seconds)
        except LostError:
            self.give_up()
            return
        if any(one.kind != frames.LOCKED for one in answers.values()):
            self.give_up()  # They are refused.
            return
        self._taken = frozenset(turn for turn, one in answers.items() if one.body == b"\1")

    def is_taken(self, turn: int) -> bool:
        """Whether this process has the lock."""
        return self._taken is None or turn in self._taken

    def give_up(self) -> None:
        """End the session: the process may have granted locks that nobody knows of."""
        if self._session is not None:
            self._link.give_up(self._session)


class Waker:
    """Tells one process of the service of wake-ups, in the background, and that tells all others.

    By a session if there is one, else by a connection of its own: a process that only commits has
    no session. Each process begins with another one, so that they share the work.
    """

    def __init__(self, links: Sequence[Link], connect: Callable[[str, float], Connection]) -> None:
        self._links = links
        self._connect = connect
        self._at = new_random().randrange(len(links))
        self._alone: tuple[Link, Connection] | None = None
        self._due = threading.Event()
        self._guard = threading.Lock()
        self._wake_ups: list[bytes] = []
        self._closing = threading.Event()
        self._has_ended = False
        self._thread: threading.Thread | None = None

    def leave_to_parent(self) -> None:
        """In a child: close the inherited descriptor."""
        if self._alone is not None:
            self._alone[1].leave_to_parent()

    def wake(self, wake_up: bytes) -> None:
        """Wake the other processes, in the background; wake-ups meanwhile are sent as a few."""
        with self._guard:
            due = self._wake_ups
            if due and has_room(due[-1], wake_up):
                wake_up = joined(due.pop(), wake_up)
            due.append(wake_up)
            if len(due) > _AT_A_TIME:
                due[:] = [reduce(joined, due)]
        self._due.set()
        if self._thread is None:
            with self._guard:
                if self._thread is None and not self._closing.is_set():
                    try:
                        self._thread = _start(self._send_wake_ups, "percola-wake")
                    except RuntimeError:
                        return  # No thread can be started: other processes are not woken.

    def _send_wake_ups(self) -> None:
        while True:
            self._due.wait()
            with self._guard:
                wake_ups, self._wake_ups = self._wake_ups, []
                if not self._closing.is_set():
                    self._due.clear()
                elif not wake_ups or self._has_ended:
                    return
            pause = 0.0  # If there is none, the ones before have told of it.
            for wake_up in wake_ups:
                answer = self._tell(wake_up)
                pause = _BACK_OFF if answer is None else answer
                if answer is None:
                    break
            self._closing.wait(pause)

    def _tell(self, wake_up: bytes) -> float | None:
        """Tell the first process that answers; for how many seconds to send no other wake-up.

        None if none answers.
        """
        order = [*self._links[self._at :], *self._links[: self._at]]
        order.sort(key=lambda link: link.session is None)
        for link in order:
            session = link.session
            try:
                milliseconds = self._send(link, session, wake_up)
            except (LostError, RefusedError, frames.FrameError):
                if session is not None:
                    link.give_up(session)
                continue
            self._at = self._links.index(link)
            return milliseconds / 1000
        return None

    def _send(self, link: Link, session: Session | None, wake_up: bytes) -> int:
        """Send one wake-up; for how many milliseconds to send no other."""
        number = link.next_number()
        message = frames.frame(frames.WAKE, number, wake_up)
        if session is not None:
            answer = session.wait(session.send([number], message), _WAKE_SECONDS)[number]
            if answer.kind != frames.PAUSE:
                raise LostError("it refuses")
            return frames.read_pause(answer.body)
        connection = self._alone_with(link)
        try:
            return frames.read_pause(connection.ask(message, number, frames.PAUSE, _WAKE_SECONDS))
        finally:
            if connection.has_ended:
                self._alone = None

    def _alone_with(self, link: Link) -> Connection:
        """The connection to a process that there is no session with."""
        if self._alone is not None:
            if self._alone[0] is link:
                return self._alone[1]
            self._alone[1].end()
            self._alone = None
        connection = self._connect(link.address, _ATTEND_SECONDS)
        with self._guard:
            if self._has_ended:
                connection.end()
                raise LostError("closed")
            self._alone = link, connection
        return connection

    def finish(self) -> None:
        """Tell of the last commits before the end: a program may commit and close at once."""
        self._closing.set()
        self._due.set()
        _join(self._thread, _FINISH_SECONDS)

    def end(self) -> None:
        """End the connection; the thread ends soon. Idempotent."""
        with self._guard:
            self._has_ended = True
            alone = self._alone
        self._closing.set()
        self._due.set()
        if alone is not None:
            alone[1].end()

    def join(self) -> None:
        """Wait for the end of the thread, for two seconds at most."""
        _join(self._thread)


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _join(thread: threading.Thread | None, seconds: float = _JOIN) -> None:
    if thread is not None and thread is not threading.current_thread():
        thread.join(seconds)

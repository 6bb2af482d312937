"""§2.3, client side: "maintaining only one RPC pending", which carries the requests of all threads.

    thread 1   ──┐ joins ┐
    thread 2   ──┤       ├ call 7: Draw(3) ──────────────► answered: 1 and 2 and 3 go on
    thread 3   ──┘       ┘
    thread 4      joins call 8, which is sent when call 7 has been answered

Rule P1: a thread joins only a call that has not been sent, and no timestamp is kept for later: each
one drawn was requested by a thread that waits for it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from percola.clock import backoff
from percola.errors import PercolaError, RepositoryClosedError, StoreError, UsageError
from percola.oracle.base import Oracle
from percola.platform.fork_safety import at_fork, new_random
from percola.rpc import frames
from percola.rpc.client import Access, Connection, LostError, RefusedError, split_address
from percola.rpc.frames import Code

log = logging.getLogger("percola.oracle")

TIMEOUT_SECONDS: Final = 30.0
REQUEST_SECONDS: Final = 2.0
_MOST_AT_ONCE: Final = 100_000
_MOST_TO_ADVANCE: Final = 10**10
"""Timestamps that are used up to get above another one: a hundred thousand calls, some minutes."""
_NUMBERS: Final = 2**32
_TELLING_SECONDS: Final = 0.1
"""How long a try must have had for its reason to replace that of an earlier one."""
_RELAY_SECONDS: Final = (10.0, 300.0)
"""Seconds until a relay that did not answer is asked again: at first, and at most."""
_IN_VAIN: Final = frozenset((Code.TOKEN, Code.MALFORMED))


class NetworkOracle(Oracle):
    """The oracle of a repository on a network store; safe to use from many threads.

    Connects when it is first used; a child after a fork opens its own connection.

    Args:
        addresses: `host:port` of each of the repository's oracle processes.
        timeout_seconds: for how long to retry before raising an error. Should be well above the
            oracles' lease, which is how long a take-over lasts.
        request_seconds: after how long a call counts as lost and the next address is tried.
        token: the token that the oracles require; empty: none.
        roots: PEM certificates of the authorities that sign the oracles' certificates; enables TLS.
            None: no TLS. Empty: TLS with the authorities of the system.
        certificate: the client's (chain, key) in PEM, if the oracles require one.
        source: the identity that the oracles must have; empty: that of the first one to answer.
        relay: `host:port` of `percola.oracle.relay` on this machine, which is asked first, without
            TLS; empty: none. The oracles are asked while it does not answer, if it refuses, and if
            it draws for another repository.

    `timestamp` and `read_timestamp` raise StoreError if no oracle answers for `timeout_seconds`
    (twice that if they must wait for other threads' call first), or at once if one refuses the
    token, is the oracle of another repository, or went backwards. After one of the first two, the
    next call asks the next address.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
        token: str = "",
        roots: bytes | None = None,
        certificate: tuple[bytes, bytes] | None = None,
        source: str = "",
        relay: str = "",
    ) -> None:
        asked = (relay, *addresses) if relay else tuple(addresses)
        for address in asked:
            split_address(address)
        if not addresses or isinstance(addresses, str):
            raise UsageError("Name the address of at least one oracle, in a list.")
        if timeout_seconds <= 0 or request_seconds <= 0:
            raise UsageError("The seconds to wait for an oracle must be above 0.")
        self.addresses = tuple(addresses)
        self.relay = relay
        self.asked = asked
        """The addresses that are asked in turn."""
        self.timeout_seconds = timeout_seconds
        self.request_seconds = request_seconds
        self.source = source
        """The identity of the source that answered."""
        self.calls = 0
        self.drawn = 0
        self.access = Access(token, roots, certificate)
        self.context = self.access.context()
        self._closed = False
        self._start_afresh()
        at_fork(self._leave_parent)

    def _start_afresh(self) -> None:
        self._current = _Line(self)

    def _leave_parent(self) -> None:
        self._current.leave_to_parent()
        self._start_afresh()

    def timestamp(self) -> int:
        return self._line().ask(1)

    def read_timestamp(self) -> int:
        """The highest timestamp handed out by any oracle at the time of the request; draws none.

        Every commit acknowledged before the call is visible at it: its commit_ts had been handed
        out, and the answer is computed afterwards, by an oracle with a valid lease, under the lock
        under which timestamps are handed out. An oracle that has just taken over answers the limit
        that it found until it has handed out more: its predecessor handed out nothing above it. The
        snapshot does not change later either: every commit_ts at or below the answer had been drawn
        by then, so those transactions had their locks in place (rule P2), and all that are drawn
        afterwards, by any oracle, are above it.
        """
        return self._line().ask(0)

    def advance(self, ts: int) -> None:
        """See `Oracle.advance`; UsageError if it would take hours: `--above` does it at once."""
        missing = ts - self.read_timestamp()
        if missing > _MOST_TO_ADVANCE:
            raise UsageError(
                f"The oracle at {', '.join(self.addresses)} has handed out timestamps up to "
                f"{ts - missing}, and the next ones must be above {ts}: stop all oracles of this "
                f"repository, start them with --above {ts}, and run this again."
            )
        while (missing := ts - self.read_timestamp()) > 0:
            self._line().ask(min(missing, _MOST_AT_ONCE))

    def draw(self, count: int) -> tuple[int, int]:
        """Up to so many timestamps: the first, and how many; for 0 that of `read_timestamp`, and 0.

        For a single thread, which must ask for nothing else.
        """
        return self._line().draw(count, time.monotonic() + self.timeout_seconds)

    def close(self) -> None:
        """Close the connections. Later calls raise RepositoryClosedError."""
        self._closed = True
        self._current.close()

    def statistics(self) -> dict[str, int]:
        """`calls` made and timestamps `drawn` by this process."""
        return {"calls": self.calls, "drawn": self.drawn}

    def _line(self) -> _Line:
        if self._closed:
            raise _closed()
        return self._current

    # --- For the line -------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_source(self, address: str, source: str) -> None:
        """StoreError if an answer is from the oracle of another repository."""
        if not self.source:
            self.source = source
        if source != self.source:
            raise StoreError(
                f"The oracle at {address} is not the one of this repository: it hands out the "
                f"timestamps of {source}, not of {self.source}. Check the oracles' "
                "addresses; if the oracles' record was lost and made anew, restart this process."
            )


class _Batch:
    """The requests of the threads that share one call."""

    def __init__(self, previous: _Batch | None, deadline: float) -> None:
        self.previous = previous
        self.deadline = deadline
        self.count = 0
        # Made by the first thread that joins; most calls are of one thread.
        self.done: threading.Event | None = None
        self.is_done = False
        self.answer: tuple[Sequence[int], int] | None = None
        self.error: PercolaError | None = None


class _Line:
    """A process's connections and its one pending call."""

    def __init__(self, oracle: NetworkOracle) -> None:
        self._oracle = oracle
        self._guard = threading.Lock()
        self._open: _Batch | None = None
        self._newest: _Batch | None = None
        # Only the thread that makes the pending call uses the rest.
        self._connection: Connection | None = None
        self._numbers = itertools.count(1)
        self._at = 0
        self._relay_pause = _RELAY_SECONDS[0]
        self._relay_at = 0.0
        self._highest = 0
        self._rng = new_random()

    def ask(self, count: int) -> int:
        """A fresh timestamp for `count` 1, the highest one handed out for 0."""
        while True:
            batch, sends = None, False
            try:
                with self._guard:
                    batch = self._open
                    if batch is None:
                        sends = True
                        deadline = time.monotonic() + self._oracle.timeout_seconds
                        previous = self._newest
                        if previous is not None and previous.is_done:
                            previous = None
                        batch = self._open = self._newest = _Batch(previous, deadline)
                    elif batch.done is None:
                        batch.done = threading.Event()
                    place = batch.count
                    batch.count += count
                if sends:
                    self._send(batch)
                else:
                    assert batch.done is not None
                    batch.done.wait()
            finally:
                # Also after an interrupt at any place: others may have joined it, or will.
                if sends and batch is not None:
                    self._end(batch)
            if batch.answer is not None:
                drawn, last = batch.answer
                return drawn[place] if count else last
            if batch.error is not None:
                if sends:
                    raise batch.error
                # Each thread raises its own error, since each has its own traceback.
                raise type(batch.error)(*batch.error.args) from batch.error
            # The thread that was to send the batch was interrupted: join another batch.

    def _send(self, batch: _Batch) -> None:
        """Wait for the previous call, then close the batch and make its call."""
        try:
            # The sender of the previous batch may have been interrupted while it waited.
            while batch.previous is not None:
                self._await(batch.previous)
                batch.previous = batch.previous.previous
            with self._guard:
                self._open = None
            batch.answer = self._make(batch.count, batch.deadline)
        except PercolaError as error:
            batch.error = error

    def _end(self, batch: _Batch) -> None:
        """Let nobody join the batch any more, and wake its threads."""
        with self._guard:
            if self._open is batch:
                self._open = None
            batch.is_done = True
        if batch.done is not None:
            batch.done.set()

    def _await(self, batch: _Batch) -> None:
        """Wait until a batch is done, however it ends."""
        with self._guard:
            if batch.is_done:
                return
            if batch.done is None:
                batch.done = threading.Event()
        batch.done.wait()

    def _make(self, count: int, deadline: float) -> tuple[Sequence[int], int]:
        """`count` timestamps, and the highest one handed out at that time."""
        drawn: Sequence[int] = ()
        while len(drawn) < count:
            first, got = self.draw(count - len(drawn), deadline)
            more = range(first, first + got)
            drawn = (*drawn, *more) if drawn else more
        if not count:
            self.draw(0, deadline)
        return drawn, self._highest

    def draw(self, count: int, deadline: float) -> tuple[int, int]:
        """See `NetworkOracle.draw`."""
        first, got = self._call(count, deadline)
        self._rises(first, self._highest + (1 if count else 0))
        self._highest = first + got - 1 if count else first
        self._oracle.drawn += got
        return first, got

    @property
    def _is_at_relay(self) -> bool:
        return bool(self._oracle.relay) and self._at == 0

    def _rises(self, ts: int, least: int) -> None:
        """StoreError if an answer is below timestamps that this process has seen."""
        if ts < least:
            raise StoreError(
                f"The oracle at {self._oracle.asked[self._at]} went backwards: it answered "
                f"{ts} where at least {least} was to be expected. Stop the oracles; was their "
                "record restored from an older copy of the store?"
            )

    def _call(self, count: int, deadline: float) -> tuple[int, int]:
        """Ask the oracles in turn until one answers; the first timestamp, and how many."""
        oracle = self._oracle
        failed: dict[str, str] = {}
        tries = 0
        if oracle.relay and not self._is_at_relay and time.monotonic() >= self._relay_at:
            self._leave()
            self._at = 0
        while True:
            address = oracle.asked[self._at]
            left = max(0.05, deadline - time.monotonic())
            try:
                first, got, source = self._ask(address, count, min(oracle.request_seconds, left))
                if self._is_at_relay and oracle.source not in ("", source):
                    raise RefusedError(Code.MALFORMED, "it draws for another repository")
            except (LostError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.code in _IN_VAIN:
                    if not self._is_at_relay:
                        self._move_on()
                        raise StoreError(_refused(address, error)) from error
                    told = str(error).rstrip(".")
                    log.warning("the relay at %s cannot be used: %s", address, told)
                # The last try may have had too little time to find out anything.
                if left >= _TELLING_SECONDS or address not in failed:
                    failed[address] = str(error).rstrip(".")
                trouble = error
                if self._is_at_relay:
                    self._relay_at = time.monotonic() + self._relay_pause
                    self._relay_pause = min(2 * self._relay_pause, _RELAY_SECONDS[1])
            else:
                if self._is_at_relay:
                    self._relay_pause = _RELAY_SECONDS[0]
                try:
                    oracle.check_source(address, source)
                except StoreError:
                    self._move_on()
                    raise
                return first, got
            if oracle.is_closed:
                raise _closed()
            tries += 1
            # Also where this was the last try: the next call would begin with the same one.
            self._move_on()
            left = deadline - time.monotonic()
            if left <= 0:
                told = "; ".join(f"{one}: {why}" for one, why in failed.items())
                raise StoreError(
                    f"No oracle handed out a timestamp for {oracle.timeout_seconds:g} s "
                    f"({told}). Is 'percola oracle' running there?"
                ) from trouble
            if tries % len(oracle.asked) == 0:
                rounds = tries // len(oracle.asked)
                time.sleep(min(left, backoff(self._rng, rounds, first=0.02, most=0.3)))

    def _ask(self, address: str, count: int, seconds: float) -> tuple[int, int, str]:
        """Ask an oracle on the open connection, or on a new one: first, count, source.

        A connection that was idle may have been ended by the oracle: then a new one is tried once.
        """
        oracle = self._oracle
        oracle.calls += 1
        while True:
            connection = self._connection
            is_new = connection is None
            if connection is None:
                connection = self._connect(address, seconds)
            number = next(self._numbers) % _NUMBERS
            try:
                body = connection.ask(frames.draw(number, count), number, frames.DRAWN, seconds)
                first, got, source = frames.read_drawn(body)
                if (got > 0) != (count > 0) or got > count:
                    raise frames.FrameError("another number of timestamps than was asked for")
            except frames.FrameError as error:
                connection.end()
                raise LostError(f"it sent {error}") from error
            except LostError as error:
                if is_new or oracle.is_closed or error.is_late:
                    raise
                continue
            finally:
                if connection.has_ended:
                    self._connection = None
            return first, got, source.decode("ascii", "replace")

    def _connect(self, address: str, seconds: float) -> Connection:
        oracle = self._oracle
        access, context = oracle.access, oracle.context
        if self._is_at_relay:
            access, context = Access(access.token), None
        made = Connection(address, access, context, seconds)
        with self._guard:
            if oracle.is_closed:
                made.end()
                raise _closed()
            self._connection = made
        return made

    def _move_on(self) -> None:
        """Have the next address asked from now on: this one may refuse for ever."""
        self._leave()
        self._at = (self._at + 1) % len(self._oracle.asked)
        if self._is_at_relay and time.monotonic() < self._relay_at:
            self._at = 1

    def _leave(self) -> None:
        """Give up the connection to an oracle that refuses, for the next address."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()

    def close(self) -> None:
        """End the connection; a call under way fails."""
        with self._guard:
            connection = self._connection
        if connection is not None:
            connection.end()

    def leave_to_parent(self) -> None:
        """In a child of a fork: close the inherited connection."""
        if self._connection is not None:
            self._connection.leave_to_parent()


def _closed() -> RepositoryClosedError:
    return RepositoryClosedError("This repository has been closed; open it again.")


def _refused(address: str, error: RefusedError) -> str:
    why = str(error).rstrip(".")
    if error.code == Code.TOKEN:
        return (
            f"The oracle at {address} refuses this client: {why}. Use the token that it was "
            "started with."
        )
    return f"What listens at {address} does not answer as an oracle does: {why}."

"""§2.3, client side: "maintaining only one RPC pending", which carries the requests of all threads.

    thread 1   ──┐ joins ┐
    thread 2   ──┤       ├ call 7: Draw(3) ──────────────► answered: 1 and 2 and 3 go on
    thread 3   ──┘       ┘
    thread 4      joins call 8, which is sent when call 7 has been answered

Rule P1: a thread joins only a call that has not been sent, and no timestamp is kept for later: each
one drawn was requested by a thread that waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc

from percola.clock import backoff
from percola.errors import PercolaError, RepositoryClosedError, StoreError, UsageError
from percola.oracle.base import Oracle
from percola.oracle.messages import TOKEN_HEADER, DrawReply
from percola.oracle.stream import Conversation, LostError
from percola.platform.fork_safety import GRPC, at_fork, keep_inherited, new_random

TIMEOUT_SECONDS: Final = 30.0
REQUEST_SECONDS: Final = 2.0
_MOST_AT_ONCE: Final = 100_000

_OPTIONS: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_Code = grpc.StatusCode
_IN_VAIN: Final = frozenset(
    (
        _Code.UNAUTHENTICATED,
        _Code.PERMISSION_DENIED,
        _Code.UNIMPLEMENTED,
        _Code.INVALID_ARGUMENT,
    )
)


class NetworkOracle(Oracle):
    """The oracle of a repository on a network store; safe to use from many threads.

    Connects when it is first used. A child of a process that has used it gets a StoreError
    (`percola.platform.fork_safety`).

    Args:
        addresses: `host:port` of each of the repository's oracle processes.
        timeout_seconds: for how long to retry before raising an error. Should be well above the
            oracles' lease, which is how long a take-over lasts.
        request_seconds: after how long a call counts as lost and the next address is tried.
        token: the token that the oracles require; empty: none.
        roots: PEM certificates of the authorities that sign the oracles' certificates; enables TLS.
            None: no TLS. Empty: TLS with the authorities that gRPC comes with.
        certificate: the client's (chain, key) in PEM, if the oracles require one.
        source: the identity that the oracles must have; empty: that of the first one to answer.

    `timestamp` and `read_timestamp` raise StoreError if no oracle answers for `timeout_seconds`
    (twice that if they must wait for other threads' call first), or at once if one refuses the
    token, is the oracle of another repository, or went backwards.
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
    ) -> None:
        for address in addresses:
            host, colon, port = address.rpartition(":")
            if not (colon and host and port.isdigit() and 0 < int(port) < 2**16):
                raise UsageError(f"An oracle's address is HOST:PORT, not {address!r}.")
        if not addresses or isinstance(addresses, str):
            raise UsageError("Name the address of at least one oracle, in a list.")
        if timeout_seconds <= 0 or request_seconds <= 0:
            raise UsageError("The seconds to wait for an oracle must be above 0.")
        self.addresses = tuple(addresses)
        self.timeout_seconds = timeout_seconds
        self.request_seconds = request_seconds
        self.source = source
        """The identity of the source that answered."""
        self.calls = 0
        self.drawn = 0
        self._metadata = [(TOKEN_HEADER, f"Bearer {token}")] if token else None
        self._roots, self._certificate = roots, certificate
        self._closed = False
        self._start_afresh()
        at_fork(self._leave_parent)

    def _start_afresh(self) -> None:
        self._current = _Line(self)

    def _leave_parent(self) -> None:
        # The parent's connections are neither used nor closed in the child.
        keep_inherited(self._current)
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
        while (missing := ts - self.read_timestamp()) > 0:
            self._line().ask(min(missing, _MOST_AT_ONCE))

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

    @property
    def metadata(self) -> list[tuple[str, str]] | None:
        """The metadata of every call: the token, if there is one."""
        return self._metadata

    def channel(self, address: str, options: Sequence[tuple[str, int]] = _OPTIONS) -> Any:
        """A channel to one of the oracles; it connects when it is used."""
        if self._roots is None:
            return grpc.insecure_channel(address, options=options)
        chain, key = self._certificate or (None, None)
        credentials = grpc.ssl_channel_credentials(self._roots or None, key, chain)
        return grpc.secure_channel(address, credentials, options=options)

    def check_source(self, address: str, source: str) -> None:
        """StoreError if an answer is from the oracle of another repository."""
        if not self.source:
            self.source = source
        if source != self.source:
            raise StoreError(
                f"The oracle at {address} is not the one of this repository: it hands out the "
                f"timestamps of {source}, not of {self.source}. Check the oracles' addresses."
            )


class _Batch:
    """The requests of the threads that share one call."""

    def __init__(self, previous: _Batch | None, deadline: float) -> None:
        self.previous = previous
        self.deadline = deadline
        self.count = 0
        self.done = threading.Event()
        self.answer: tuple[list[int], int] | None = None
        self.error: PercolaError | None = None


class _Line:
    """A process's connections and its one pending call."""

    def __init__(self, oracle: NetworkOracle) -> None:
        self._oracle = oracle
        self._guard = threading.Lock()
        self._open: _Batch | None = None
        self._newest: _Batch | None = None
        # Only the thread that makes the pending call uses the rest.
        self._channels: dict[str, Any] = {}
        self._talk: Conversation | None = None
        self._at = 0
        self._highest = 0
        self._rng = new_random()

    def ask(self, count: int) -> int:
        """A fresh timestamp for `count` 1, the highest one handed out for 0."""
        while True:
            with self._guard:
                batch, sends = self._open, False
                if batch is None:
                    sends = True
                    deadline = time.monotonic() + self._oracle.timeout_seconds
                    batch = self._open = _Batch(self._newest, deadline)
                    self._newest = batch
                place = batch.count
                batch.count += count
            if sends:
                self._send(batch)
            else:
                batch.done.wait()
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
        """Wait for the previous call, then close the batch, make its call and wake its threads."""
        try:
            # The sender of the previous batch may have been interrupted while it waited.
            while batch.previous is not None:
                batch.previous.done.wait()
                batch.previous = batch.previous.previous
            with self._guard:
                self._open = None
            batch.answer = self._make(batch.count, batch.deadline)
        except PercolaError as error:
            batch.error = error
        finally:
            with self._guard:
                if self._open is batch:
                    self._open = None
            batch.done.set()

    def _make(self, count: int, deadline: float) -> tuple[list[int], int]:
        """`count` timestamps, and the highest one handed out at that time."""
        oracle = self._oracle
        drawn: list[int] = []
        while len(drawn) < count:
            reply = self._call(count - len(drawn), deadline)
            self._rises(reply.first, self._highest + 1)
            drawn.extend(range(reply.first, reply.first + reply.count))
            self._highest = drawn[-1]
        if count:
            oracle.drawn += count
            return drawn, self._highest
        last = self._call(0, deadline).first
        self._rises(last, self._highest)
        self._highest = last
        return drawn, last

    def _rises(self, ts: int, least: int) -> None:
        """StoreError if an answer is below timestamps that this process has seen."""
        if ts < least:
            raise StoreError(
                f"The oracle at {self._oracle.addresses[self._at]} went backwards: it answered "
                f"{ts} where at least {least} was to be expected. Stop the oracles; was their "
                "record restored from an older copy of the store?"
            )

    def _call(self, count: int, deadline: float) -> DrawReply:
        """Ask the oracles in turn until one answers or the deadline has passed."""
        oracle = self._oracle
        failed: dict[str, str] = {}
        tries = 0
        while True:
            address = oracle.addresses[self._at]
            left = max(0.05, deadline - time.monotonic())
            seconds = min(oracle.request_seconds, left)
            try:
                answer = self._ask(address, count, seconds)
                oracle.check_source(address, answer.source)
                return answer
            except LostError as error:
                failed[address] = str(error)
                trouble = error
            except grpc.RpcError as error:
                if error.code() in _IN_VAIN:
                    raise StoreError(_refused(address, error)) from error
                failed[address] = _reason(error)
                trouble = error
            if oracle.is_closed:
                raise _closed()
            tries += 1
            left = deadline - time.monotonic()
            if left <= 0:
                told = "; ".join(f"{one}: {why}" for one, why in failed.items())
                raise StoreError(
                    f"No oracle handed out a timestamp for {oracle.timeout_seconds:g} s "
                    f"({told}). Is 'percola oracle' running there?"
                ) from trouble
            self._at = (self._at + 1) % len(oracle.addresses)
            if tries % len(oracle.addresses) == 0:
                rounds = tries // len(oracle.addresses)
                time.sleep(min(left, backoff(self._rng, rounds, first=0.02, most=0.3)))

    def _ask(self, address: str, count: int, seconds: float) -> DrawReply:
        """Ask an oracle on the open stream, or on a new one; every failure ends the stream."""
        oracle = self._oracle
        oracle.calls += 1
        while True:
            talk = self._talk or self._begin(address)
            answer = talk.ask(count, seconds)
            if answer is not None:
                return answer
            self._talk = None

    def _begin(self, address: str) -> Conversation:
        GRPC.begin_use("The oracle")
        oracle = self._oracle
        with self._guard:
            if oracle.is_closed:
                raise _closed()
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = oracle.channel(address)
            self._talk = Conversation(channel, oracle.metadata, oracle.request_seconds)
            return self._talk

    def close(self) -> None:
        """Close the channels; a call under way fails."""
        with self._guard:
            if self._talk is not None:
                self._talk.end()
            for channel in self._channels.values():
                channel.close()


def _closed() -> RepositoryClosedError:
    return RepositoryClosedError("This repository has been closed; open it again.")


def _refused(address: str, error: Any) -> str:
    if error.code() is _Code.UNAUTHENTICATED:
        return (
            f"The oracle at {address} refuses this client: {_reason(error)}. Use the token that "
            "it was started with."
        )
    return f"What listens at {address} does not answer as an oracle does: {_reason(error)}."


def _reason(error: Any) -> str:
    details = str(error.details() or "").strip().partition("\n")[0][:300].rstrip(".")
    return f"{error.code().name}: {details}"

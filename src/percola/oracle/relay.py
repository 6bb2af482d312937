"""§2.3 "each Percolator worker maintains only one pending RPC to the oracle", for a whole machine.

In Python a worker is a process of one core, so that a machine has many of them, each with a pending
call. A relay beside them draws for all: whatever has come while one call to the oracle was under
way goes into the next. A call costs the oracle as much as before, and it gets one at a time from a
machine.

Rule P1 as in a client (`percola.oracle.client`): a request is answered from a call that was sent
after it had come, and so is one for the highest timestamp handed out.

A relay keeps nothing. Its clients go on with the oracles if it ends, refuses or does not answer,
and return to it later.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from percola.errors import PercolaError, UsageError
from percola.oracle.client import NetworkOracle
from percola.oracle.server import is_loopback, split_listen
from percola.rpc import frames
from percola.rpc.frames import Code, FrameError
from percola.rpc.server import FrameServer, Peer

log = logging.getLogger("percola.oracle")

UPSTREAM_SECONDS: Final = 1.0
"""Seconds that a call to the oracles may take: less than a client waits for its answer."""
_IDLE: Final = 60.0
_QUIET_SECONDS: Final = 60.0
"""Seconds for which failures are logged once."""
_MOST_AT_ONCE: Final = 100_000
"""The most timestamps of a call: a client that asks for more does not use up the oracles' range."""
_LOCKS: Final = (frames.ATTEND, frames.LOCK, frames.UNLOCK, frames.WAKE, frames.IDLE)


class _Request(NamedTuple):
    peer: Peer
    number: int
    asked: int
    """How many timestamps; 0: the highest one handed out."""


class OracleRelay(Collector):
    """A server that draws timestamps from a repository's oracles for the processes of a machine.

    Starts with `start`, ends with `stop` or a `with` block. Also its own metrics: `requests` of
    clients, `calls` to the oracles and `failures` of these, `timestamps`, `connections`.

    Args:
        oracle: where it draws; closed with this. It should give up after `UPSTREAM_SECONDS`.
        listen: `host:port` of loopback; port 0 takes a free one, see `address`.
        token: the token that clients must show; empty: none.

    Raises UsageError for an address beyond loopback, StoreError if it cannot listen there.
    """

    def __init__(self, oracle: NetworkOracle, listen: str, *, token: str = "") -> None:
        host, port = split_listen(listen, "A relay", "127.0.0.1:7071")
        if not is_loopback(host):
            raise UsageError(
                f"A relay is for the processes of its own machine, and does without TLS: let it "
                f"listen at 127.0.0.1:{port}, not at {listen}, and start one on each machine."
            )
        self._oracle = oracle
        self._server = FrameServer(listen, self, token=token)
        self.address = self._server.address
        """The address it listens on, as `host:port`."""
        self._waiting: deque[_Request] = deque()
        self._log_at = 0.0
        self.requests = 0
        self.calls = 0
        self.failures = 0
        self.timestamps = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def __enter__(self) -> OracleRelay:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> OracleRelay:
        """Start serving."""
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop serving, and close the client of the oracles. Idempotent."""
        self._server.stop()
        self._oracle.close()

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        for name, told, count in (
            ("requests", "Requests of clients", self.requests),
            ("calls", "Calls to the oracles", self.calls),
            ("failures", "Calls that no oracle answered in time", self.failures),
            ("timestamps", "Timestamps handed out", self.timestamps),
        ):
            yield CounterMetricFamily("percola_relay_" + name, told, value=count)
        yield GaugeMetricFamily(
            "percola_relay_connections",
            "Clients that are connected",
            value=self._server.connections,
        )

    # --- Called by the thread that serves -------------------------------------------------

    def received(self, peer: Peer, kind: int, number: int, body: bytes) -> bytes:
        """Remember a request for the next call; FrameError if it is none."""
        if kind in _LOCKS:
            return frames.refused(Code.STANDBY, "A relay serves timestamps alone.", number)
        if kind != frames.DRAW:
            raise FrameError(f"a message of an unknown kind, {kind}")
        self.requests += 1
        self._waiting.append(_Request(peer, number, frames.read_draw(body)))
        # Once what has come from other clients was read as well.
        self._server.hurry()
        return b""

    def ended(self, peer: Peer) -> None:
        """A connection has ended."""

    def tick(self) -> float:
        """Answer what has come by one call; seconds until the next call of this."""
        # While this waits for the oracle, requests of the next call come.
        if self._waiting:
            self._answer()
        return 0.0 if self._waiting else _IDLE

    def _answer(self) -> None:
        # What that is too little for waits for the next call.
        wanted = min(sum(one.asked for one in self._waiting), _MOST_AT_ONCE)
        self.calls += 1
        try:
            first, got = self._oracle.draw(wanted)
        except PercolaError as error:
            self.failures += 1
            # Nobody else says so: its clients go on with the oracles.
            if (now := time.monotonic()) >= self._log_at:
                self._log_at = now + _QUIET_SECONDS
                log.warning("%s", error)
            waiting, self._waiting = self._waiting, deque()
            for one in waiting:
                # Its client asks the oracles by itself.
                self._server.send(one.peer, frames.refused(Code.BUSY, str(error), one.number))
            return
        source = self._oracle.source.encode()
        self.timestamps += got
        last = first + got - 1 if got else first
        # Those for which it was not enough wait for the next call, in their order.
        while self._waiting and (got or not self._waiting[0].asked):
            one = self._waiting.popleft()
            given = min(one.asked, got)
            answer = frames.drawn(one.number, first if given else last, given, source)
            self._server.send(one.peer, answer)
            first, got = first + given, got - given

"""§2.3 "The timestamp oracle is a server": the service in front of `Ranges`.

    OracleServer     the service, and the thread that keeps the record in the store
    serve runs one until SIGTERM or SIGINT, for the command line

Any number of processes serve a repository. One of them hands out timestamps; the others are on
standby, refuse with STANDBY and take over if it fails. The record in the store alone determines
which one (`percola.oracle.ranges`).

One thread answers all clients (`percola.rpc.server`), from memory. A request that must wait for the
next range waits in a list, and no other request waits for it.

Each of them, also on standby, serves a share of the repository's advisory locks and wake-ups (§2.4;
`percola.coordination.lock_service`).

The resources that clients can take are bounded: connections, frames, locks. A connection above the
limit is not refused, since idle ones could then lock every client out: the connection that has been
idle longest is ended, and its client opens another when it needs one.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar

from percola.coordination.lock_service.server import LockServiceServer
from percola.errors import PercolaError, UsageError
from percola.oracle.former import FormerClients
from percola.oracle.metrics import OracleMetrics
from percola.oracle.ranges import LEASE_SECONDS, RANGE, Ranges, Refused
from percola.oracle.record import ORACLE_TABLE
from percola.rpc import frames
from percola.rpc.client import is_host, is_port
from percola.rpc.frames import Code
from percola.rpc.server import FrameServer, Peer
from percola.rpc.tls import Tls, server_context
from percola.store.base import Store

log = logging.getLogger("percola.oracle")

_FILES: Final = 65_536
"""Open files of a serving process, if the system permits as many: one for each connection."""
_DRAW_SECONDS: Final = 1.0
"""Seconds that a request waits for the next range."""
_GRACE: Final = 2.0


S = TypeVar("S", bound=AbstractContextManager[Any])
"""A server, an OracleServer or an OracleRelay, which serves in a `with` block."""


class _Waiting(NamedTuple):
    """A request that cannot be answered yet, and until when it waits."""

    peer: Peer
    number: int
    asked: int
    until: float


def check_access(listen: str, token: str, tls: Tls | None) -> None:
    """UsageError if `listen` is no address here, or would admit anyone from other machines.

    Beyond loopback clients must show a token or, with TLS, a certificate.
    """
    host, port = split_listen(listen, "An oracle", "0.0.0.0:7070")
    if not token.isprintable() or not token.isascii() or token != token.strip():
        raise UsageError("The oracle's token must be printable ASCII, with no blank around it.")
    if len(token) > frames.TOKEN_BYTES:
        raise UsageError(f"The oracle's token can have up to {frames.TOKEN_BYTES:,} bytes.")
    if is_loopback(host) or token or (tls is not None and tls.client_roots):
        return
    raise UsageError(
        f"Without a token anyone who can reach {listen} could stop the work on this repository: "
        "make one with (umask 077; openssl rand -hex 32 > FILE), start the oracle with "
        "--token-file FILE and its clients with PERCOLA_ORACLE_TOKEN_FILE=FILE, or listen at "
        f"127.0.0.1:{port}."
    )


def split_listen(listen: str, who: str, example: str) -> tuple[str, str]:
    """Host and port of where a server listens, `HOST:PORT`; else UsageError."""
    host, colon, port = listen.rpartition(":")
    if not (colon and is_host(host) and is_port(port)):
        raise UsageError(f"{who} listens at HOST:PORT, such as {example}, not {listen!r}.")
    return host, port


def is_loopback(host: str) -> bool:
    """Whether a name stands for loopback addresses only; UsageError if it stands for none here."""
    try:
        found = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), None)
    except OSError as error:
        raise UsageError(
            f"This machine finds no address for the host {host!r}: check the name, or listen at an "
            "address, such as 0.0.0.0 for all of this machine."
        ) from error
    return all(ipaddress.ip_address(str(address[0])).is_loopback for *_, address in found)


class OracleServer:
    """One oracle process's service. Starts with `start`, ends with `stop` or a `with` block.

    Args:
        store: where the record is stored; it is not closed. Its calls should time out after a third
            of the lease: one that hangs keeps the lease from being renewed.
        listen: `host:port`; port 0 takes a free one, see `address`.
        name: the process's name for people; by default the host's name and the port.
        lease, size, above: see `Ranges`.
        tls: serve with TLS; None: without.
        token: the token that clients must send; empty: none, which is allowed on loopback and with
            `tls` that requires client certificates.
        create: create the record's table first; False: it exists.

    Raises UsageError for invalid options, StoreError if it cannot listen there or the store refuses
    the table of the record.
    """

    def __init__(
        self,
        store: Store,
        listen: str,
        *,
        name: str = "",
        lease: float = LEASE_SECONDS,
        size: int = RANGE,
        above: int = 0,
        tls: Tls | None = None,
        token: str = "",
        create: bool = True,
    ) -> None:
        check_access(listen, token, tls)
        host, port = split_listen(listen, "An oracle", "0.0.0.0:7070")
        # Debian's installer gives a machine's own name the address 127.0.1.1.
        if host[:1].isalpha() and host != "localhost" and is_loopback(host):
            log.warning(
                "%s is an address of loopback on this machine, so other machines will not reach "
                "this oracle: let it listen at 0.0.0.0:%s for them",
                host,
                port,
            )
        self._lease = lease
        self._create = create
        self._store = store
        self._stopping = threading.Event()
        context = None if tls is None else server_context(tls)
        self._server = FrameServer(
            listen,
            self,
            token=token,
            context=context,
            former=lambda *given: self._former.take(*given),
        )
        self.address = self._server.address
        """The address it listens on, as `host:port`."""
        name = name or f"{socket.gethostname()}:{self.address.rpartition(':')[2]}"
        try:
            self.ranges = Ranges(
                store,
                name=name,
                lease=lease,
                size=size,
                above=above,
            )
        except UsageError:
            self._server.stop()
            raise
        self.metrics = OracleMetrics(self.ranges, self._server)
        self.lock_service = LockServiceServer(self._server)
        self._former = FormerClients(self.ranges, token, self.metrics.count_former)
        self._source = b""
        self._waiting: list[_Waiting] = []
        self._held_up: set[Peer] = set()
        self._keeper = threading.Thread(target=self._keep, name="oracle-keeper", daemon=True)

    def __enter__(self) -> OracleServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> OracleServer:
        """Start serving and keeping the record; returns once the record was read, or after a lease.

        Raises StoreError if the store refuses.
        """
        try:
            if self._create:
                self._store.create_tables([ORACLE_TABLE])
        except BaseException:
            self._server.stop()  # Releases the port.
            raise
        self._server.start()
        self._keeper.start()
        # The caller may open the repository next, which needs the record.
        until = time.monotonic() + self._lease
        while not self.ranges.source and time.monotonic() < until:
            self._stopping.wait(0.01)
        return self

    def stop(self) -> None:
        """Step down, so that a standby takes over at once, and stop. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        try:
            # First, so that no client loses its connection before another process may serve it.
            self.ranges.release()
        except PercolaError as error:
            log.warning("a standby takes over only when the lease has ended: %s", error)
        self._server.stop()
        self._former.stop()
        if self._keeper.is_alive():
            self._keeper.join(_GRACE)

    # --- The record ---------------------------------------------------------------------

    def _keep(self) -> None:
        """Call `step` until the server stops, whatever errors the store raises."""
        told, held = "", False
        while not self._stopping.is_set():
            self.ranges.wake.clear()
            try:
                pause = self.ranges.step()
                told = ""
                self._server.wake()  # Requests may wait for what it did.
            except Exception as error:
                # Safe for any error: without a renewal the lease expires.
                self.metrics.store_failures += 1
                pause = min(self._lease / 10, 0.5)
                if str(error) != told:
                    told = str(error)
                    log.warning("%s", error, exc_info=not isinstance(error, PercolaError))
            if self.ranges.holds is not held:
                held = not held
                log.info("%s", "handing out timestamps" if held else "handing out none")
            self.ranges.wake.wait(None if math.isinf(pause) else pause)

    # --- Requests: called by the thread that serves ---------------------------------------

    def received(self, peer: Peer, kind: int, number: int, body: bytes) -> bytes:
        """What a request is answered at once; FrameError if it is none."""
        if kind != frames.DRAW:
            return self.lock_service.received(peer, kind, number, body)
        count = frames.read_draw(body)
        # One that waits is not overtaken by later ones of its connection.
        answer = None if peer in self._held_up else self._answer(number, count)
        if answer is None:
            self._held_up.add(peer)
            until = time.monotonic() + _DRAW_SECONDS
            self._waiting.append(_Waiting(peer, number, count, until))
            return b""
        return answer

    def _answer(self, number: int, count: int, *, is_last: bool = False) -> bytes | None:
        """The answer to a request; None if it should wait and is not the last try."""
        ranges, metrics = self.ranges, self.metrics
        if count:
            count = min(count, ranges.size)
            found = ranges.draw(count)
        else:
            found = ranges.last()
        if isinstance(found, Refused):
            if not (found.elsewhere or is_last):
                return None
            return self._refuse(number, Code.STANDBY if found.elsewhere else Code.BUSY, found.why)
        if count:
            metrics.draws += 1
            metrics.timestamps += count
        else:
            metrics.lasts += 1
        return frames.drawn(number, found, count, ranges.source.encode())

    def _refuse(self, number: int, code: Code, why: str) -> bytes:
        self.metrics.refusals[code] += 1
        return frames.refused(code, why, number)

    def ended(self, peer: Peer) -> None:
        """A connection has ended."""
        self.lock_service.drop(peer)

    def tick(self) -> float:
        """Answer requests that waited; seconds until the next call."""
        wait = self.lock_service.tick()
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._held_up.clear()
            now = time.monotonic()
            for one in waiting:
                if one.peer.is_closed:
                    continue
                answer = None
                if one.peer not in self._held_up:
                    answer = self._answer(one.number, one.asked, is_last=now >= one.until)
                if answer is None:
                    self._held_up.add(one.peer)
                    self._waiting.append(one)
                    wait = min(wait, max(0.0, one.until - now))
                else:
                    self._server.send(one.peer, answer)
        return wait


def serve(server: S, ready: Callable[[S], object] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT, then stop. For the main thread of a process.

    `ready` is called once it listens.
    """
    _permit_files()
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        with server:
            ready(server)
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _permit_files() -> None:
    """Raise this process's limit of open files, which is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


__all__ = ["OracleServer", "Tls", "check_access", "serve"]

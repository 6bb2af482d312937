"""§2.3 "The timestamp oracle is a server": the gRPC service in front of `Ranges`.

    OracleServer     the service, and the thread that keeps the record in the store
    serve runs one until SIGTERM or SIGINT, for the command line

Any number of processes serve a repository. One of them hands out timestamps; the others are on
standby, answer FAILED_PRECONDITION and take over if it fails. The record in the store alone
determines which one (`percola.oracle.ranges`).

The process that hands out timestamps also serves the repository's advisory locks and wake-ups
(§2.4; `percola.coordination.lock_service.server`).

gRPC's health service reports SERVING for the process ("") while it runs, and for "percola.Oracle"
while it hands out timestamps. It requires no token.

The resources that clients can take are bounded: threads, streams, messages, connections. A stream
above the limit is not refused, since idle streams could then lock every client out: the stream that
has been idle longest is ended, and its client opens another when it needs one.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import math
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, NoReturn

import grpc

from percola.coordination.lock_service.server import LockServiceServer
from percola.coordination.lock_service.wire import SERVER_OPTIONS
from percola.errors import PercolaError, StoreError, UsageError
from percola.oracle.messages import (
    CHECK,
    DRAW,
    HEALTH_SERVICE,
    NOT_SERVING,
    SERVICE,
    SERVING,
    TOKEN_HEADER,
    DrawReply,
    DrawRequest,
    HealthReply,
    HealthRequest,
)
from percola.oracle.metrics import OracleMetrics
from percola.oracle.ranges import LEASE_SECONDS, RANGE, Ranges, Refused
from percola.oracle.record import ORACLE_TABLE
from percola.platform.fork_safety import GRPC
from percola.store.base import Store

log = logging.getLogger("percola.oracle")

_STREAMS: Final = 2000
"""The most client processes: each has a stream, which takes a thread that mostly waits."""
_THREADS: Final = 16
"""Threads for all other calls."""
_QUEUE: Final = 1000
"""Calls that may wait for a thread; more are refused."""
_FILES: Final = 65_536
"""Open files of a serving process, if the system permits as many: one for each connection."""
_DRAW_TIMEOUT: Final = 1.0
"""Seconds that a request waits for the next range."""
_GRACE: Final = 2.0
_OPTIONS: Final = [
    # A second process on the same port must fail, not share it.
    ("grpc.so_reuseport", 0),
    # Clients send less than a hundred bytes at a time.
    ("grpc.max_receive_message_length", 1024),
    # A process has two connections and a handful of calls on each.
    ("grpc.max_concurrent_streams", 256),
    # Unused connections, which can be opened without a token.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 120_000),
    *SERVER_OPTIONS,
]


class Tls(NamedTuple):
    """The server's certificate chain and key, both in PEM.

    `client_roots` are the authorities that must have signed clients' certificates; empty: none
    needed.
    """

    certificate: bytes
    key: bytes
    client_roots: bytes = b""


class _Stream:
    """A client's open stream."""

    __slots__ = ("context", "used")

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context = context
        self.used = time.monotonic()


def check_access(listen: str, token: str, tls: Tls | None) -> None:
    """UsageError if `listen` is not an address, or would admit anyone from other machines.

    Beyond loopback clients must show a token or, with TLS, a certificate.
    """
    host, colon, port = listen.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 2**16):
        raise UsageError(f"An oracle listens at HOST:PORT, such as 0.0.0.0:7070, not {listen!r}.")
    if not token.isprintable() or not token.isascii() or token != token.strip():
        raise UsageError("The oracle's token must be printable ASCII, with no blank around it.")
    if token or (tls is not None and tls.client_roots) or _is_loopback(host):
        return
    raise UsageError(
        f"Without a token anyone who can reach {listen} could stop the work on this repository: "
        "make one with (umask 077; openssl rand -hex 32 > FILE), start the oracle with "
        "--token-file FILE and its clients with PERCOLA_ORACLE_TOKEN_FILE=FILE, or listen at "
        f"127.0.0.1:{port}."
    )


def _is_loopback(host: str) -> bool:
    """Whether every address that a name resolves to is a loopback address."""
    try:
        found = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), None)
    except OSError:
        return False
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
        host = listen.rpartition(":")[0]
        self._lease = lease
        self._create = create
        self._expected = f"Bearer {token}".encode() if token else b""
        GRPC.begin_use("An oracle's service")
        self._server = grpc.server(
            ThreadPoolExecutor(_STREAMS + _THREADS),
            options=_OPTIONS,
            maximum_concurrent_rpcs=_STREAMS + _THREADS + _QUEUE,
        )
        self.lock_service = LockServiceServer(lambda: self.ranges.holds, self._admit)
        self._server.add_generic_rpc_handlers(
            (
                self.lock_service.handlers(),
                grpc.method_handlers_generic_handler(
                    SERVICE,
                    {
                        DRAW: grpc.stream_stream_rpc_method_handler(
                            self._draw,
                            request_deserializer=DrawRequest.decode,
                            response_serializer=DrawReply.encode,
                        )
                    },
                ),
                grpc.method_handlers_generic_handler(
                    HEALTH_SERVICE, {CHECK: _method(self._health, HealthRequest, HealthReply)}
                ),
            )
        )
        try:
            bound = (
                self._server.add_insecure_port(listen)
                if tls is None
                else self._server.add_secure_port(listen, _credentials(tls))
            )
        except RuntimeError as error:
            raise StoreError(
                f"The oracle cannot listen at {listen}: is the address this machine's, and the "
                "port free?"
            ) from error
        self.address = f"{host}:{bound}"
        """The address it listens on, as `host:port`."""
        self.ranges = Ranges(
            store,
            name=name or f"{socket.gethostname()}:{bound}",
            lease=lease,
            size=size,
            above=above,
        )
        self.metrics = OracleMetrics(self.ranges)
        self._store = store
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._streams: set[_Stream] = set()
        self._keeper = threading.Thread(target=self._keep, name="oracle-keeper", daemon=True)

    def __enter__(self) -> OracleServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> OracleServer:
        """Start serving and keeping the record; returns once the record was read, or after a lease.

        Raises StoreError if the store refuses.
        """
        self._server.start()
        try:
            if self._create:
                self._store.create_tables([ORACLE_TABLE])
        except BaseException:
            self._server.stop(None).wait(_GRACE)  # Releases the port.
            raise
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
            # First, so that later calls are refused with a status that sends clients elsewhere.
            self.ranges.release()
        except PercolaError as error:
            log.warning("a standby takes over only when the lease has ended: %s", error)
        with self._guard:
            streams = list(self._streams)
        for one in streams:
            one.context.cancel()
        self._server.stop(_GRACE).wait(_GRACE + 1)
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
            except Exception as error:
                # Safe for any error: without a renewal the lease expires.
                self.metrics.store_failures.inc()
                pause = min(self._lease / 10, 0.5)
                if str(error) != told:
                    told = str(error)
                    log.warning("%s", error, exc_info=not isinstance(error, PercolaError))
            if self.ranges.holds is not held:
                held = not held
                log.info("%s", "handing out timestamps" if held else "handing out none")
            self.ranges.wake.wait(None if math.isinf(pause) else pause)

    # --- Calls --------------------------------------------------------------------------

    def _draw(
        self, requests: Iterator[DrawRequest], context: grpc.ServicerContext
    ) -> Iterator[DrawReply]:
        self._admit(context)
        stream = self._enter(context)
        try:
            if self._stopping.is_set():
                self._abort(context, grpc.StatusCode.UNAVAILABLE, "It is stopping.")
            for request in requests:
                stream.used = time.monotonic()
                yield self._answer(request.count, context)
        finally:
            with self._guard:
                self._streams.discard(stream)

    def _enter(self, context: grpc.ServicerContext) -> _Stream:
        """Register a stream; if there are too many, end the least recently used one."""
        ended = None
        stream = _Stream(context)
        with self._guard:
            if len(self._streams) >= _STREAMS:
                ended = min(self._streams, key=lambda one: one.used)
                self._streams.discard(ended)
            self._streams.add(stream)
        if ended is not None:
            self.metrics.displaced.inc()
            ended.context.cancel()
        return stream

    def _answer(self, count: int, context: grpc.ServicerContext) -> DrawReply:
        if not count:
            last = self.ranges.last()
            if isinstance(last, Refused):
                self._refuse(context, last)
            self.metrics.lasts.inc()
            return DrawReply(last, 0, self.ranges.source)
        count = min(count, self.ranges.size)
        first = self.ranges.draw(count, _DRAW_TIMEOUT)
        if isinstance(first, Refused):
            self._refuse(context, first)
        self.metrics.draws.inc()
        self.metrics.timestamps.inc(count)
        return DrawReply(first, count, self.ranges.source)

    def _health(self, request: HealthRequest, context: grpc.ServicerContext) -> HealthReply:
        if request.service not in ("", SERVICE):
            context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {request.service!r}.")
        serves = not self._stopping.is_set() and (not request.service or self.ranges.holds)
        return HealthReply(SERVING if serves else NOT_SERVING)

    def _admit(self, context: grpc.ServicerContext) -> None:
        if not self._expected:
            return
        shown = b""
        for key, value in context.invocation_metadata():
            if key == TOKEN_HEADER:
                shown = value if isinstance(value, bytes) else value.encode()
        if not hmac.compare_digest(shown, self._expected):
            self._abort(context, grpc.StatusCode.UNAUTHENTICATED, "The token is missing or wrong.")

    def _refuse(self, context: grpc.ServicerContext, refused: Refused) -> NoReturn:
        code = grpc.StatusCode
        self._abort(
            context,
            code.FAILED_PRECONDITION if refused.elsewhere else code.UNAVAILABLE,
            refused.why,
        )

    def _abort(self, context: grpc.ServicerContext, code: grpc.StatusCode, why: str) -> NoReturn:
        self.metrics.refusals.labels(code.name).inc()
        context.abort(code, why)
        raise AssertionError("abort raises")


def serve(server: OracleServer, ready: Callable[[OracleServer], object] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT, then step down. For the main thread of a process.

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


def _method(behaviour: Callable[..., Any], request: Any, reply: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=request.decode, response_serializer=reply.encode
    )


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_server_credentials(
        [(tls.key, tls.certificate)],
        root_certificates=tls.client_roots or None,
        require_client_auth=bool(tls.client_roots),
    )

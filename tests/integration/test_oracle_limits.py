"""What a client can make an oracle process hold is bounded, and shuts no other client out.

The limits are made small here, so that a few connections reach them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Final

import grpc
import pytest
from children import Child, say
from lock_service import LOCK_SECONDS
from lock_service import Server as LockServer

import percola.coordination.lock_service.server as lock_server
import percola.oracle.server as oracle_server
from percola.coordination.lock_service import wire as lock_wire
from percola.coordination.lock_service.client import LockServiceClient
from percola.errors import UsageError
from percola.oracle import messages as wire
from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer, Tls
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., Any]

HERE: Final = "127.0.0.1:0"
STREAMS: Final = 20
SECONDS: Final = 60.0


def connection(address: str) -> Any:
    """A connection of its own, as another process has."""
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def draw_on(channel: Any, requests: Iterator[wire.DrawRequest]) -> Any:
    draw = channel.stream_stream(
        f"/{wire.SERVICE}/{wire.DRAW}",
        request_serializer=wire.DrawRequest.encode,
        response_deserializer=wire.DrawReply.decode,
    )
    return draw(requests)


class Idle:
    """Streams that were used once and are then held open, on connections of their own."""

    def __init__(self, stack: contextlib.ExitStack, address: str, number: int) -> None:
        self._never: queue.Queue[wire.DrawRequest] = queue.Queue()
        self.streams = []
        for _ in range(number):
            channel = stack.enter_context(connection(address))
            self.streams.append(draw_on(channel, self._requests()))
            assert next(self.streams[-1]).count == 1
            stack.callback(self.streams[-1].cancel)
        stack.callback(lambda: [self._never.put(wire.DrawRequest(0)) for _ in range(number)])

    def _requests(self) -> Iterator[wire.DrawRequest]:
        yield wire.DrawRequest(1)
        self._never.get()

    @property
    def ended(self) -> int:
        return sum(not one.is_active() for one in self.streams)


class Separate(NetworkOracle):
    """A client with a connection of its own, as one in another process has."""

    def channel(self, address: str, options: Any = ()) -> Any:
        return connection(address)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as held:
        yield held


@pytest.fixture
def server(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> OracleServer:
    monkeypatch.setattr(oracle_server, "_STREAMS", STREAMS)
    running = stack.enter_context(OracleServer(MemoryStore(), HERE))
    wait_until(lambda: running.ranges.holds)
    return running


# --- Who is let in ------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "unix:/tmp/oracle:0"])
def test_beyond_loopback_a_server_without_a_token_says_how_to_make_one(listen: str) -> None:
    with pytest.raises(UsageError) as caught:
        OracleServer(MemoryStore(), listen)
    said = str(caught.value)
    assert said.count(". ") == 0, "one sentence"
    assert "openssl rand -hex 32 > FILE" in said and "--token-file FILE" in said
    assert "PERCOLA_ORACLE_TOKEN_FILE=FILE" in said


def test_a_name_that_leads_beyond_loopback_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [(socket.AF_INET, 0, 0, "", (one, 0)) for one in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    with pytest.raises(UsageError, match="Without a token"):
        oracle_server.check_access("here:7070", "", None)
    del addresses[1]
    oracle_server.check_access("here:7070", "", None)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.1.2.3:0", "localhost:0"])
def test_at_loopback_a_server_needs_no_token(listen: str) -> None:
    with OracleServer(MemoryStore(), listen):
        pass


def test_beyond_loopback_certificates_of_clients_do_as_well_as_a_token() -> None:
    with OracleServer(MemoryStore(), "0.0.0.0:0", token="secret"):
        pass
    oracle_server.check_access("0.0.0.0:0", "", Tls(b"chain", b"key", b"authorities"))
    with pytest.raises(UsageError, match="Without a token"):
        oracle_server.check_access("0.0.0.0:0", "", Tls(b"chain", b"key"))


def code_of(channel: Any, name: str, request: Any, token: str = "") -> grpc.StatusCode:
    """How a call of the lock service ends, or goes on."""
    make = channel.unary_stream if name == lock_wire.ATTEND else channel.unary_unary
    call = make(f"/{lock_wire.SERVICE}/{name}", request_serializer=lambda one: one.encode())
    metadata = [(wire.TOKEN_HEADER, f"Bearer {token}")] if token else None
    try:
        answer = call(request, metadata=metadata, timeout=SECONDS)
        if name == lock_wire.ATTEND:
            next(answer)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


_CALLS: Final = {
    lock_wire.ATTEND: lock_wire.AttendRequest("me"),
    lock_wire.TRY_LOCK: lock_wire.LockRequest("me", b"k", 1),
    lock_wire.UNLOCK: lock_wire.UnlockRequest("me", b"k", 1),
    lock_wire.WAKE: lock_wire.WakeRequest("me"),
}


@pytest.mark.parametrize("name", _CALLS)
def test_the_lock_service_asks_for_the_token_of_its_oracle(
    stack: contextlib.ExitStack, wait_until: WaitUntil, name: str
) -> None:
    server = stack.enter_context(OracleServer(MemoryStore(), HERE, token="sesame"))
    wait_until(lambda: server.ranges.holds)
    channel = stack.enter_context(connection(server.address))
    for wrong in ("", "sesam", "sesame!"):
        assert code_of(channel, name, _CALLS[name], wrong) is grpc.StatusCode.UNAUTHENTICATED
    assert code_of(channel, name, _CALLS[name], "sesame") is not grpc.StatusCode.UNAUTHENTICATED
    assert server.lock_service.locks == 0


def test_the_lock_service_of_a_standby_is_at_rest(
    stack: contextlib.ExitStack, wait_until: WaitUntil
) -> None:
    store = MemoryStore()
    leader = stack.enter_context(OracleServer(store, HERE, lease=60))
    wait_until(lambda: leader.ranges.holds)
    standby = stack.enter_context(OracleServer(store, HERE, lease=60))
    channel = stack.enter_context(connection(standby.address))
    for name, request in _CALLS.items():
        assert code_of(channel, name, request) is grpc.StatusCode.FAILED_PRECONDITION


# --- Streams of timestamps ----------------------------------------------------------------


def test_idle_streams_at_the_limit_shut_no_client_out(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    idle = Idle(stack, server.address, STREAMS)
    client = NetworkOracle([server.address], timeout_seconds=SECONDS)
    stack.callback(client.close)
    assert client.timestamp() == STREAMS + 1
    assert client.calls == 1, "at once, not after a refusal"
    assert len(server._streams) == STREAMS
    assert idle.ended <= 1
    sample = server.metrics.registry.get_sample_value
    assert sample("percola_oracle_displaced_streams_total") == 1


def test_the_stream_that_makes_place_is_the_one_that_was_used_least_recently(
    server: OracleServer, stack: contextlib.ExitStack, wait_until: WaitUntil
) -> None:
    client = NetworkOracle([server.address], timeout_seconds=SECONDS)
    stack.callback(client.close)
    client.timestamp()
    idle = Idle(stack, server.address, STREAMS - 1)
    client.timestamp()
    Idle(stack, server.address, STREAMS - 1)
    wait_until(lambda: idle.ended == STREAMS - 1, seconds=5, what="their end")
    assert client.timestamp() == 2 * STREAMS + 1
    assert client.calls == 3, "its stream was not ended"


def test_more_processes_than_there_are_streams_are_all_served(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    clients = [Separate([server.address], timeout_seconds=SECONDS) for _ in range(3 * STREAMS)]
    for client in clients:
        stack.callback(client.close)
    drawn = [client.timestamp() for _ in range(2) for client in clients]
    assert drawn == sorted(set(drawn)) and len(drawn) == 6 * STREAMS
    assert len(server._streams) <= STREAMS


def test_hundreds_of_processes_at_one_address_keep_a_stream_each(
    stack: contextlib.ExitStack, wait_until: WaitUntil
) -> None:
    server = stack.enter_context(OracleServer(MemoryStore(), HERE))
    wait_until(lambda: server.ranges.holds)
    clients = [Separate([server.address], timeout_seconds=SECONDS) for _ in range(300)]
    for client in clients:
        stack.callback(client.close)
    for _ in range(2):
        for client in clients:
            client.timestamp()
    assert len(server._streams) == 300
    assert sum(client.calls for client in clients) == 600, "nobody was refused or ended"


def test_one_connection_cannot_take_all_streams(
    stack: contextlib.ExitStack, wait_until: WaitUntil
) -> None:
    server = stack.enter_context(OracleServer(MemoryStore(), HERE))
    wait_until(lambda: server.ranges.holds)
    channel = stack.enter_context(connection(server.address))
    never: queue.Queue[wire.DrawRequest] = queue.Queue()
    streams = [draw_on(channel, iter(never.get, None)) for _ in range(300)]
    stack.callback(lambda: [never.put(wire.DrawRequest(0)) for _ in range(600)])
    for one in streams:
        stack.callback(one.cancel)
    wait_until(lambda: len(server._streams) >= 256)
    # Another connection's client comes after whatever is still on its way of the first.
    client = Separate([server.address], timeout_seconds=SECONDS)
    stack.callback(client.close)
    assert client.timestamp() == 1
    assert len(server._streams) == 257


# --- Connections --------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    options = dict(oracle_server._OPTIONS)
    assert 0 < options["grpc.server_handshake_timeout_ms"] <= 30_000
    assert 0 < options["grpc.max_connection_idle_ms"] <= 300_000
    options |= {"grpc.server_handshake_timeout_ms": 200, "grpc.max_connection_idle_ms": 200}
    monkeypatch.setattr(oracle_server, "_OPTIONS", [*options.items()])
    server = stack.enter_context(OracleServer(MemoryStore(), HERE))
    host, _, port = server.address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    for said in (b"", preface):
        with socket.create_connection((host, int(port)), timeout=SECONDS) as silent:
            silent.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(4096):
                    pass


def serve_with_few_files(pipe: Connection) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    oracle_server.serve(
        OracleServer(MemoryStore(), HERE),
        lambda _: say(pipe, resource.getrlimit(resource.RLIMIT_NOFILE)),
    )


def test_an_oracle_process_takes_as_many_connections_as_the_system_permits() -> None:
    with Child(serve_with_few_files) as child:
        soft, hard = child.hear()
        most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
        assert soft == most
        child.signal(signal.SIGTERM)
        assert child.hear() is None


# --- The lock service ---------------------------------------------------------------------


def attend(channel: Any, session: str) -> Any:
    attending = channel.unary_stream(
        f"/{lock_wire.SERVICE}/{lock_wire.ATTEND}",
        request_serializer=lock_wire.AttendRequest.encode,
        response_deserializer=lock_wire.WakeUp.decode,
    )
    return attending(lock_wire.AttendRequest(session), timeout=SECONDS)


def lock_on(channel: Any) -> Callable[[lock_wire.LockRequest], lock_wire.LockReply]:
    method = channel.unary_unary(
        f"/{lock_wire.SERVICE}/{lock_wire.TRY_LOCK}",
        request_serializer=lock_wire.LockRequest.encode,
        response_deserializer=lock_wire.LockReply.decode,
    )
    return lambda request: method(request, timeout=SECONDS)  # type: ignore[no-any-return]


@pytest.mark.parametrize("length", [65, 60_000])
def test_a_key_that_is_too_long_is_refused_and_not_kept(
    server: OracleServer, stack: contextlib.ExitStack, length: int
) -> None:
    channel = stack.enter_context(connection(server.address))
    stream = attend(channel, "me")
    next(stream)
    lock = lock_on(channel)
    for turn in range(1, 4):
        with pytest.raises(grpc.RpcError) as caught:
            lock(lock_wire.LockRequest("me", os.urandom(length), turn))
        assert caught.value.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
    assert server.lock_service.locks == 0
    assert lock(lock_wire.LockRequest("me", b"k" * 64, 4)).taken
    assert server.lock_service.locks == 1
    stream.cancel()


def test_a_session_with_a_long_name_is_refused(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    channel = stack.enter_context(connection(server.address))
    for name in ("", "n" * 65, "ü" * 33):
        with pytest.raises(grpc.RpcError) as caught:
            next(attend(channel, name))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert server.lock_service.sessions == 0


@pytest.mark.parametrize("limit", ["_SESSION_LOCKS", "_LOCKS"])
def test_locks_above_the_limit_are_granted_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack, limit: str
) -> None:
    monkeypatch.setattr(lock_server, limit, 5)
    service = stack.enter_context(LockServer())
    greedy = LockServiceClient([service.address], lock_seconds=LOCK_SECONDS)
    stack.callback(greedy.close)
    for number in range(12):
        assert greedy.try_lock("t", b"%d" % number), "nobody is kept from a row"
    assert service.service.locks == 5
    assert greedy.has_session, "it was not sent away"
    for number in range(12):
        greedy.unlock("t", b"%d" % number)


def test_a_session_at_its_limit_leaves_locks_to_others(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(lock_server, "_SESSION_LOCKS", 5)
    service = stack.enter_context(LockServer())
    greedy, other = (
        LockServiceClient([service.address], lock_seconds=LOCK_SECONDS),
        LockServiceClient([service.address], lock_seconds=LOCK_SECONDS),
    )
    for one in (greedy, other):
        stack.callback(one.close)
    for number in range(12):
        greedy.try_lock("t", b"%d" % number)
    assert other.try_lock("t", b"mine")
    assert not greedy.try_lock("t", b"mine")


def test_idle_sessions_at_the_limit_shut_no_process_out_of_the_lock_service(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr(lock_server, "_SESSIONS", 10)
    monkeypatch.setattr(lock_server, "_SETTLED", 0.0)
    service = stack.enter_context(LockServer())
    channel = stack.enter_context(connection(service.address))
    idle = []
    for number in range(10):
        idle.append(attend(channel, f"idle-{number}"))
        stack.callback(idle[-1].cancel)
        next(idle[-1])
    assert lock_on(channel)(lock_wire.LockRequest("idle-0", b"k", 1)).taken
    client = LockServiceClient([service.address], lock_seconds=LOCK_SECONDS)
    stack.callback(client.close)
    assert client.try_lock("t", b"r")
    assert client.has_session
    assert (service.service.sessions, service.service.locks) == (10, 2)
    with pytest.raises(grpc.RpcError) as caught:
        next(idle[1])
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert idle[0].is_active(), "the one that was used since has kept its place"


def test_sessions_do_not_displace_each_other_without_end(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(lock_server, "_SESSIONS", 3)
    service = stack.enter_context(LockServer())
    channel = stack.enter_context(connection(service.address))
    first = [attend(channel, f"s{number}") for number in range(3)]
    for one in first:
        stack.callback(one.cancel)
        next(one)
    with pytest.raises(grpc.RpcError) as caught:
        next(attend(channel, "one more"))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert all(one.is_active() for one in first)


def test_the_end_of_a_displaced_stream_does_not_end_a_new_one_of_its_name(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr(lock_server, "_SESSIONS", 1)
    monkeypatch.setattr(lock_server, "_SETTLED", 0.0)
    service = stack.enter_context(LockServer())
    ended: list[Any] = []
    drop = service.service._drop
    monkeypatch.setattr(service.service, "_drop", ended.append)
    channel = stack.enter_context(connection(service.address))
    streams = []
    for name in ("a", "b", "a"):
        streams.append(attend(channel, name))
        stack.callback(streams[-1].cancel)
        next(streams[-1])
    # Each is told of by what displaces it, and when gRPC has ended the stream.
    wait_until(lambda: [one.name for one in ended].count("a") == 2, seconds=10)
    for one in ended:
        drop(one)
    assert lock_on(channel)(lock_wire.LockRequest("a", b"k", 1)).taken
    assert (service.service.sessions, service.service.locks) == (1, 1)
    monkeypatch.setattr(service.service, "_drop", drop)

"""What a client can make an oracle process hold is bounded, and shuts no other client out.

The limits are made small here, so that a few connections reach them.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import pytest
from children import Child, say
from lock_service import LOCK_SECONDS
from oracle_in_process import certificates, leading

import percola.coordination.lock_service.server as lock_server
import percola.oracle.server as oracle_server
import percola.rpc.greeter as greeter
import percola.rpc.server as rpc_server
from percola.coordination.lock_service.client import LockServiceClient
from percola.errors import UsageError
from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer, Tls
from percola.rpc import frames
from percola.rpc.client import Access, Connection, LostError, RefusedError
from percola.rpc.frames import Code
from percola.store.memory import MemoryStore

__all__ = ["certificates"]

WaitUntil = Callable[..., Any]

HERE: Final = "127.0.0.1:0"
CLIENTS: Final = 20
SECONDS: Final = 60.0


def connection(stack: contextlib.ExitStack, address: str, token: str = "") -> Connection:
    """A connection of its own, as another process has."""
    made = Connection(address, Access(token), None, SECONDS)
    stack.callback(made.end)
    return made


def draw_on(one: Connection, number: int = 1) -> int:
    """Draw a timestamp."""
    body = one.ask(frames.draw(number, 1), number, frames.DRAWN, SECONDS)
    return frames.read_drawn(body)[0]


def attend(one: Connection) -> None:
    """Open a session."""
    one.ask(frames.frame(frames.ATTEND, 1), 1, frames.WAKE_UP, SECONDS)


def lock_on(one: Connection, key: bytes, turn: int = 2) -> bool:
    """Take a lock."""
    return one.ask(frames.frame(frames.LOCK, turn, key), turn, frames.LOCKED, SECONDS) == b"\1"


def ended(connections: list[Connection]) -> list[Connection]:
    """Those that the server has ended."""
    return [one for one in connections if one._poll.poll(0) and not one._socket.recv(1000)]


@pytest.fixture
def server(stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> OracleServer:
    monkeypatch.setattr(rpc_server, "CLIENTS", CLIENTS)
    return stack.enter_context(leading())


# --- Who is let in ------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
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


@pytest.mark.parametrize("listen", ["oracle.invalid:7070", "unix:/tmp/oracle:0"])
def test_a_host_that_this_machine_cannot_find_is_no_question_of_a_token(listen: str) -> None:
    for token in ("", "secret"):
        with pytest.raises(UsageError, match="finds no address for the host") as caught:
            oracle_server.check_access(listen, token, None)
        assert listen.rpartition(":")[0] in str(caught.value)


def test_a_machine_whose_own_name_leads_to_loopback_says_that_others_do_not_reach_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for listen in ("localhost:0", "127.0.0.1:0"):
        OracleServer(MemoryStore(), listen, token="secret").stop()
    assert not caplog.records
    own = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: own)
    OracleServer(MemoryStore(), "db1:0", token="secret").stop()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "db1 is an address of loopback" in record.getMessage()
    assert "0.0.0.0:0" in record.getMessage()


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


_REQUESTS: Final = {
    frames.ATTEND: frames.WAKE_UP,
    frames.LOCK: frames.LOCKED,
    frames.WAKE: frames.PAUSE,
    frames.DRAW: frames.DRAWN,
}


@pytest.mark.parametrize("token", ["", "sesam", "sesame!"])
def test_without_the_token_nothing_is_served(stack: contextlib.ExitStack, token: str) -> None:
    server = stack.enter_context(leading(token="sesame"))
    with pytest.raises(RefusedError, match="token is missing or wrong") as caught:
        connection(stack, server.address, token)
    assert caught.value.code == Code.TOKEN
    # Nor what is sent behind a greeting without waiting for the answer.
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as hasty:
        hasty.sendall(frames.hello(token) + frames.draw(1, 1))
        raw = b"".join(iter(lambda: hasty.recv(1000), b""))
    assert [one.kind for one in frames.split(raw)[0]] == [frames.REFUSED]
    assert draw_on(connection(stack, server.address, "sesame")) == 1


def test_a_standby_serves_locks_and_wake_ups_and_no_timestamps(stack: contextlib.ExitStack) -> None:
    store = MemoryStore()
    leader = stack.enter_context(leading(store=store, lease=60))
    standby = stack.enter_context(OracleServer(store, HERE, lease=60))
    one = connection(stack, standby.address)
    with pytest.raises(RefusedError) as caught:
        one.ask(frames.draw(1, 1), 1, frames.DRAWN, SECONDS)
    assert caught.value.code == Code.STANDBY
    listening, loading = (connection(stack, standby.address) for _ in range(2))
    listening.ask(frames.frame(frames.ATTEND, 1), 1, frames.WAKE_UP, SECONDS)
    assert lock_on(listening, b"k") and standby.lock_service.locks == 1
    loading.ask(frames.frame(frames.WAKE, 1), 1, frames.PAUSE, SECONDS)
    assert listening.receive(SECONDS).kind == frames.WAKE_UP
    assert leader.lock_service.sessions == 0


# --- Connections --------------------------------------------------------------------------


def test_idle_connections_at_the_limit_shut_no_client_out(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    idle = [connection(stack, server.address) for _ in range(CLIENTS)]
    for one in idle:
        draw_on(one)
    client = NetworkOracle([server.address], timeout_seconds=SECONDS)
    stack.callback(client.close)
    assert client.timestamp() == CLIENTS + 1
    assert client.calls == 1, "at once, not after a refusal"
    assert server._server.connections == CLIENTS
    assert len(ended(idle)) == 1
    sample = server.metrics.registry.get_sample_value
    assert sample("percola_oracle_displaced_connections_total") == 1


def test_the_connection_that_makes_place_is_the_one_that_was_used_least_recently(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    client = connection(stack, server.address)
    draw_on(client)
    idle = [connection(stack, server.address) for _ in range(CLIENTS - 1)]
    for one in (*idle, client):
        draw_on(one, 2)
    for _ in range(CLIENTS - 1):
        draw_on(connection(stack, server.address))
    assert len(ended(idle)) == CLIENTS - 1
    assert draw_on(client, 3) == 2 * CLIENTS + 1, "its connection was not ended"


def test_both_sides_of_a_connection_notice_that_the_other_machine_has_gone(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    """Machines that vanish send nothing: the system has to ask."""
    client = connection(stack, server.address)
    draw_on(client)
    [peer] = server._server._peers.values()
    for end in (client._socket, peer.socket):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, between, count = (
            end.getsockopt(socket.IPPROTO_TCP, one)
            for one in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + between * count <= 60
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000


def test_more_processes_than_there_are_connections_are_all_served(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    clients = [NetworkOracle([server.address], timeout_seconds=SECONDS) for _ in range(3 * CLIENTS)]
    for client in clients:
        stack.callback(client.close)
    drawn = [client.timestamp() for _ in range(2) for client in clients]
    assert drawn == sorted(set(drawn)) and len(drawn) == 6 * CLIENTS
    assert server._server.connections <= CLIENTS


def test_sessions_do_not_count_among_the_connections_that_make_place(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    sessions = [connection(stack, server.address) for _ in range(CLIENTS)]
    for one in sessions:
        attend(one)
    others = [connection(stack, server.address) for _ in range(2 * CLIENTS)]
    assert draw_on(others[-1]) == 1
    assert server.lock_service.sessions == CLIENTS
    assert server._server.connections == 2 * CLIENTS


def test_a_peer_that_says_nothing_is_ended_and_more_than_the_limit_end_the_oldest(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack
) -> None:
    assert 0 < greeter.GREETING_SECONDS <= 30
    monkeypatch.setattr(greeter, "GREETING_SECONDS", 0.2)
    server = stack.enter_context(OracleServer(MemoryStore(), HERE))
    host, _, port = server.address.rpartition(":")
    # Not even with part of a greeting; every half a second there is a look.
    for said in (b"", frames.MAGIC, frames.hello("x")[:-1]):
        with socket.create_connection((host, int(port)), timeout=SECONDS) as silent:
            silent.sendall(said)
            assert not silent.recv(4096)
    monkeypatch.setattr(greeter, "GREETING_SECONDS", SECONDS)
    monkeypatch.setattr(greeter, "STRANGERS", 3)
    began = time.monotonic()
    silents = [
        stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
        for _ in range(5)
    ]
    assert not silents[0].recv(1) and not silents[1].recv(1)
    assert draw_on(connection(stack, server.address)) == 1
    assert time.monotonic() - began < SECONDS / 2


def test_a_peer_that_resets_a_connection_as_tls_begins_shuts_nobody_out(
    monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack, certificates: Path
) -> None:
    looked, reset = threading.Event(), threading.Event()
    look = greeter.Greeter._look

    def look_late(self: Any, stranger: Any) -> None:
        looked.set()
        assert reset.wait(SECONDS)
        look(self, stranger)

    monkeypatch.setattr(greeter.Greeter, "_look", look_late)
    chain, key = ((certificates / name).read_bytes() for name in ("server.pem", "server.key"))
    server = stack.enter_context(OracleServer(MemoryStore(), HERE, tls=Tls(chain, key)))
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as peer:
        peer.sendall(b"\x16\x03\x01")
        assert looked.wait(SECONDS)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reset.set()
    access = Access(roots=chain)
    stack.callback(Connection(f"localhost:{port}", access, access.context(), SECONDS).end)
    assert server._server.refused == 1


def test_a_peer_that_reads_no_answer_is_not_read_from_and_others_do_not_wait(
    server: OracleServer, stack: contextlib.ExitStack
) -> None:
    deaf = connection(stack, server.address)
    deaf._socket.settimeout(0.5)
    sent = 0
    many = frames.draw(1, 1) * 1000
    with contextlib.suppress(TimeoutError):
        while sent < 100_000_000:
            sent += deaf._socket.send(many)
    assert sent < 100_000_000
    [peer] = server._server._peers.values()
    assert len(peer.unsent) < 20_000 and len(peer.rest) < 5_000
    assert draw_on(connection(stack, server.address)) > 1
    # Once it reads it is served again.
    deaf._socket.settimeout(SECONDS)
    got = 0
    while got < 1_000_000:
        got += len(deaf._socket.recv(65_536))


def serve_with_few_files(pipe: Pipe) -> None:
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


def serve_with_few_files_for_good(pipe: Pipe) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
    oracle_server.serve(
        OracleServer(MemoryStore(), HERE), lambda running: say(pipe, running.address)
    )


def test_sessions_leave_open_files_for_timestamps_where_the_system_permits_few(
    stack: contextlib.ExitStack,
) -> None:
    child = stack.enter_context(Child(serve_with_few_files_for_good))
    address = child.hear()
    for _ in range(60):
        attend(connection(stack, address))
    for _ in range(30):
        with pytest.raises(RefusedError, match="60 sessions, which is its limit"):
            attend(connection(stack, address))
    clients = [NetworkOracle([address]) for _ in range(40)]
    for client in clients:
        stack.callback(client.close)
    assert [client.timestamp() for client in clients] == list(range(1, 41))


# --- The lock service ---------------------------------------------------------------------


@pytest.mark.parametrize("length", [65, 1000])
def test_a_key_that_is_too_long_is_refused_in_words_and_not_kept(
    server: OracleServer, stack: contextlib.ExitStack, length: int
) -> None:
    one = connection(stack, server.address)
    attend(one)
    with pytest.raises(RefusedError, match="key of a lock with more than 64 bytes") as caught:
        lock_on(one, bytes(length))
    assert caught.value.code == Code.MALFORMED
    assert server.lock_service.locks == 0
    with pytest.raises(LostError):
        lock_on(one, b"k")
    other = connection(stack, server.address)
    attend(other)
    assert lock_on(other, b"k" * 64) and server.lock_service.locks == 1


@pytest.mark.parametrize("limit", ["_SESSION_LOCKS", "_LOCKS"])
def test_locks_above_the_limit_are_granted_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, server: OracleServer, stack: contextlib.ExitStack, limit: str
) -> None:
    monkeypatch.setattr(lock_server, limit, 5)
    greedy = LockServiceClient([server.address], lock_seconds=LOCK_SECONDS)
    other = LockServiceClient([server.address], lock_seconds=LOCK_SECONDS)
    for one in (greedy, other):
        stack.callback(one.close)
    for number in range(12):
        assert greedy.try_lock("t", b"%d" % number), "nobody is kept from a row"
    assert server.lock_service.locks == 5
    assert greedy.sessions, "it was not sent away"
    if limit == "_SESSION_LOCKS":
        assert other.try_lock("t", b"mine")
        assert not greedy.try_lock("t", b"mine")
    for number in range(12):
        greedy.unlock("t", b"%d" % number)


def test_idle_sessions_at_the_limit_shut_no_process_out_of_the_lock_service(
    monkeypatch: pytest.MonkeyPatch, server: OracleServer, stack: contextlib.ExitStack
) -> None:
    monkeypatch.setattr(lock_server, "_SESSIONS", 5)
    monkeypatch.setattr(lock_server, "_SETTLED", 0.0)
    idle = [connection(stack, server.address) for _ in range(5)]
    for one in idle:
        attend(one)
    assert lock_on(idle[0], b"k")
    client = LockServiceClient([server.address], lock_seconds=LOCK_SECONDS)
    stack.callback(client.close)
    assert client.try_lock("t", b"r")
    assert client.sessions
    assert (server.lock_service.sessions, server.lock_service.locks) == (5, 2)
    told = idle[1].receive(SECONDS)
    assert told.kind == frames.REFUSED
    assert frames.read_refused(told.body)[0] == Code.LIMIT
    assert not ended([idle[0]]), "the one that was used since has kept its place"

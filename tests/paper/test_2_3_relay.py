"""§2.3: "maintaining only one RPC pending to the oracle", for all processes of a machine."""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from oracle_in_process import HERE, Held, leading, server
from stores import DEADLINE, all_at_once, in_thread

import percola.oracle.client as client_module
from percola.errors import StoreError, UsageError
from percola.oracle.client import NetworkOracle
from percola.oracle.relay import OracleRelay
from percola.oracle.server import OracleServer
from percola.rpc import frames
from percola.rpc.client import Access, Connection, LostError, RefusedError
from percola.rpc.frames import Code
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., object]

__all__ = ["server"]

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def relay_to(stack: ExitStack, *addresses: str, listen: str = HERE) -> OracleRelay:
    return stack.enter_context(OracleRelay(NetworkOracle(addresses), listen))


def client_of(stack: ExitStack, relay: str, *addresses: str) -> NetworkOracle:
    """A client as each process of a machine has one, with a call pending of its own."""
    made = NetworkOracle(addresses or [NOWHERE], relay=relay)
    stack.callback(made.close)
    return made


def unread(relay: OracleRelay) -> int:
    """On how many connections something has come that was not read yet."""
    sockets = [peer.socket for peer in relay._server._peers.values()]
    return len(select.select(sockets, [], [], 0)[0])


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about relays."""
    return [one.getMessage() for one in caplog.records if "relay" in one.getMessage()]


def test_p1_what_comes_while_a_call_is_under_way_shares_the_next_one(
    server: OracleServer, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    relay = relay_to(stack, server.address)
    clients = [client_of(stack, relay.address) for _ in range(9)]
    before = [client.timestamp() for client in clients]
    assert before == sorted(before)
    calls, timestamps = relay.calls, relay.timestamps
    held = Held(server, monkeypatch)
    first = in_thread(clients[0].timestamp)
    assert held.came.acquire(timeout=DEADLINE)
    others = [in_thread(client.timestamp) for client in clients[1:6]]
    reads = [in_thread(client.read_timestamp) for client in clients[6:]]
    wait_until(lambda: unread(relay) == 8)
    held.release()
    assert first.result(DEADLINE) == max(before) + 1, "it takes nobody else's"
    assert held.came.acquire(timeout=DEADLINE)
    assert held.counts == [1, 5]
    held.release()
    drawn = sorted(one.result(DEADLINE) for one in others)
    assert drawn == list(range(max(before) + 2, max(before) + 7))
    assert all(one.result(DEADLINE) == drawn[-1] for one in reads)
    assert (relay.calls - calls, relay.timestamps - timestamps) == (2, 6)


def test_p1_a_timestamp_is_above_all_that_was_had_before_with_a_relay_or_without(
    server: OracleServer, stack: ExitStack
) -> None:
    relay = relay_to(stack, server.address)
    clients = [client_of(stack, relay.address, server.address) for _ in range(4)]
    clients += [client_of(stack, "", server.address) for _ in range(2)]
    drawn: list[int] = []

    def draw(client: NetworkOracle) -> None:
        for _ in range(60):
            floor = max(drawn, default=0)
            ts = client.timestamp()
            read = client.read_timestamp()
            assert ts > floor and read >= ts
            drawn.append(ts)

    # Two threads of each client, which share its call.
    assert all_at_once([lambda one=one: draw(one) for one in clients * 2]) == [None] * 12  # type: ignore[misc]
    assert sorted(drawn) == list(range(1, 721)), "none is drawn in vain, and none twice"
    assert relay.requests > relay.calls


def test_requests_for_more_than_a_range_are_answered_in_parts(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    server = stack.enter_context(OracleServer(MemoryStore(), HERE, size=3))
    wait_until(lambda: server.ranges.holds)
    relay = relay_to(stack, server.address)
    clients = [client_of(stack, relay.address) for _ in range(9)]
    drawn = [client.timestamp() for client in clients]
    held = Held(server, monkeypatch)
    asked = [in_thread(clients[0].timestamp)]
    assert held.came.acquire(timeout=DEADLINE)
    asked += [in_thread(client.timestamp) for client in clients[1:]]
    wait_until(lambda: unread(relay) == 8)
    held.release(20)
    drawn += [one.result(DEADLINE) for one in asked]
    drawn += [client.timestamp() for client in clients]
    assert len(set(drawn)) == 27 and min(drawn[9:]) > max(drawn[:9])


def test_clients_go_on_with_the_oracles_when_a_relay_ends_and_return_when_it_is_back(
    server: OracleServer, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_RELAY_SECONDS", (0.05, 0.1))
    relay = relay_to(stack, server.address)
    client = client_of(stack, relay.address, server.address)
    drawn = [client.timestamp()]
    assert relay.timestamps == 1
    relay.stop()
    drawn += [client.timestamp(), client.timestamp()]
    again = relay_to(stack, server.address, listen=relay.address)
    end = time.monotonic() + DEADLINE
    while not again.timestamps:
        assert time.monotonic() < end, "it never asks the relay again"
        drawn.append(client.timestamp())
    assert drawn == list(range(1, len(drawn) + 1))


def test_a_relay_that_is_not_there_is_asked_ever_more_seldom(
    server: OracleServer, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    tried: list[float] = []
    connect = client_module.Connection

    def connecting(address: str, *rest: object) -> Connection:
        if address == NOWHERE:
            tried.append(now[0])
        return connect(address, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(client_module, "Connection", connecting)
    client = client_of(stack, NOWHERE, server.address)
    monkeypatch.setattr(client_module.time, "monotonic", lambda: now[0])
    for _ in range(2000):
        client.timestamp()
        now[0] += 1
    waits = [round(later - earlier) for earlier, later in itertools.pairwise(tried)]
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300, 300, 300]


def test_a_relay_that_hangs_is_asked_once_while_the_oracles_change(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    relay = f"127.0.0.1:{hangs.getsockname()[1]}"
    tried: list[str] = []
    connect = client_module.Connection

    def connecting(address: str, *rest: object) -> Connection:
        tried.append(address)
        return connect(address, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(client_module, "Connection", connecting)
    client = NetworkOracle([NOWHERE], relay=relay, timeout_seconds=1, request_seconds=0.1)
    stack.callback(client.close)
    with pytest.raises(StoreError, match=rf"{relay}: no answer"):
        client.timestamp()
    assert tried.count(NOWHERE) > 2
    assert tried.count(relay) == 1


def test_a_relay_without_an_oracle_refuses_and_its_clients_ask_the_oracles(
    server: OracleServer, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = NetworkOracle([NOWHERE], timeout_seconds=0.1)
    relay = stack.enter_context(OracleRelay(upstream, HERE))
    assert client_of(stack, relay.address, server.address).timestamp() == 1
    assert (relay.failures, relay.timestamps) == (1, 0)
    assert client_of(stack, relay.address, server.address).timestamp() == 2
    assert relay.failures == 2
    said = [one.getMessage() for one in caplog.records]
    assert [NOWHERE in line for line in said] == [True], "once a minute"
    lost = NetworkOracle([NOWHERE], relay=relay.address, timeout_seconds=0.3)
    stack.callback(lost.close)
    with pytest.raises(StoreError, match=rf"No oracle .*{relay.address}: "):
        lost.timestamp()


def test_a_relay_believes_only_the_oracle_that_its_clients_believe(
    server: OracleServer, stack: ExitStack
) -> None:
    relay = relay_to(stack, server.address)
    stranger = NetworkOracle([server.address], source="another", relay=relay.address)
    stack.callback(stranger.close)
    with pytest.raises(StoreError, match="is not the one of this repository"):
        stranger.timestamp()


def test_a_relay_with_another_token_or_of_another_repository_stops_no_client(
    server: OracleServer, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    other = stack.enter_context(leading())
    strange = relay_to(stack, other.address)
    refusing = stack.enter_context(
        OracleRelay(NetworkOracle([server.address]), HERE, token="another")
    )
    assert client_of(stack, strange.address, other.address).timestamp() == 1
    for relay, why in ((strange, "draws for another repository"), (refusing, "token")):
        client = NetworkOracle([server.address], relay=relay.address, source=server.ranges.source)
        stack.callback(client.close)
        first = client.timestamp()
        assert client.timestamp() == first + 1
        assert [why in line and relay.address in line for line in told(caplog)] == [True]
        caplog.clear()


def test_a_relay_takes_a_token_serves_no_locks_and_ends_connections_that_make_no_sense(
    server: OracleServer, stack: ExitStack
) -> None:
    upstream = NetworkOracle([server.address])
    relay = stack.enter_context(OracleRelay(upstream, HERE, token="sesame"))
    stranger = NetworkOracle([NOWHERE], relay=relay.address, token="wrong", timeout_seconds=0.3)
    stack.callback(stranger.close)
    with pytest.raises(StoreError, match=rf"{relay.address}: The token is missing or wrong"):
        stranger.timestamp()
    friend = NetworkOracle([NOWHERE], relay=relay.address, token="sesame")
    stack.callback(friend.close)
    assert friend.timestamp() == 1
    one = Connection(relay.address, Access("sesame"), None, DEADLINE)
    stack.callback(one.end)
    with pytest.raises(RefusedError, match="timestamps alone") as refused:
        one.ask(frames.frame(frames.LOCK, 1, b"k"), 1, frames.LOCKED, DEADLINE)
    assert refused.value.code == Code.STANDBY
    for nonsense in (frames.frame(99, 1), frames.frame(frames.DRAW, 1, b"1")):
        other = Connection(relay.address, Access("sesame"), None, DEADLINE)
        with pytest.raises((LostError, RefusedError)):
            other.ask(nonsense, 1, frames.DRAWN, DEADLINE)
        other.end()
    assert friend.timestamp() == 2
    # Together more than a frame can ask for.
    greedy = [Connection(relay.address, Access("sesame"), None, DEADLINE) for _ in range(2)]
    for number, other in enumerate(greedy):
        other.send(frames.draw(number, 2**32 - 1))
    for other in greedy:
        first, got, _ = frames.read_drawn(other.receive(DEADLINE).body)
        assert 2 < first < first + got - 1 <= 200_002
        other.end()
    assert friend.timestamp() <= 200_003


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("7071", "listens at HOST:PORT"),
        ("127.0.0.1:99999", "listens at HOST:PORT"),
        ("127.0.0.1:²", "listens at HOST:PORT"),
        (f"127.0.0.1:{'9' * 5000}", "listens at HOST:PORT"),
        ("0.0.0.0:7071", "let it listen at 127.0.0.1:7071"),
        ("no.such.host.example:1", "finds no address for the host"),
    ],
)
def test_a_relay_listens_on_loopback_alone(listen: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        OracleRelay(NetworkOracle([NOWHERE]), listen)

"""§2.3: "maintaining only one RPC pending to the oracle", and what clients see of the service."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from oracle_in_process import HERE, Held, certificates, leading, oracle, server
from server_process import silent_port
from stores import DEADLINE, all_at_once, in_thread

from percola.coordination.lock_service.client import LockServiceClient
from percola.errors import RepositoryClosedError, StoreError, UsageError
from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer, Tls
from percola.rpc import client as rpc_client
from percola.rpc.greeter import Greeter
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., object]

__all__ = ["certificates", "oracle", "server"]


# --- Rule P1 ----------------------------------------------------------------------------


def test_threads_join_the_call_that_has_not_been_sent_and_no_other(
    server: OracleServer,
    oracle: NetworkOracle,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: WaitUntil,
) -> None:
    held = Held(server, monkeypatch)
    first = in_thread(oracle.timestamp)
    assert held.came.acquire(timeout=DEADLINE)
    # Sent already: whoever comes now waits for the next one, which goes when this is answered.
    others = [in_thread(oracle.timestamp) for _ in range(5)]
    reads = [in_thread(oracle.read_timestamp) for _ in range(3)]
    line = oracle._line()
    wait_until(lambda: line._open is not None and line._open.count == 5)
    assert held.counts == [1], "one call is pending, not two"
    held.release()
    assert first.result(DEADLINE) == 1
    assert held.came.acquire(timeout=DEADLINE)
    assert held.counts == [1, 5]
    held.release()
    assert sorted(one.result(DEADLINE) for one in others) == [2, 3, 4, 5, 6]
    assert all(one.result(DEADLINE) >= 1 for one in reads)
    assert oracle.drawn == 6


def test_p1_a_timestamp_is_above_all_that_any_thread_had_before(oracle: NetworkOracle) -> None:
    guard = threading.Lock()
    highest = 0
    drawn: list[int] = []

    def draw() -> None:
        nonlocal highest
        for _ in range(60):
            with guard:
                floor = highest
            ts = oracle.timestamp()
            read = oracle.read_timestamp()
            assert ts > floor and read >= ts
            with guard:
                drawn.append(ts)
                highest = max(highest, read)

    assert all_at_once([draw] * 8) == [None] * 8
    assert sorted(drawn) == list(range(1, 481)), "reading draws none, and none gets lost"


def test_nothing_is_drawn_that_nobody_waits_for(
    server: OracleServer, oracle: NetworkOracle
) -> None:
    other = NetworkOracle([server.address])
    assert [oracle.timestamp(), other.timestamp(), oracle.timestamp()] == [1, 2, 3]
    assert oracle.read_timestamp() == other.read_timestamp() == 3
    assert oracle.statistics() == {"calls": 3, "drawn": 2}
    other.close()


def test_at_one_moment_holds_where_nothing_is_drawn(oracle: NetworkOracle) -> None:
    assert oracle.at_one_moment(lambda: True)
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return looks > 3 or oracle.timestamp() > 0

    assert oracle.at_one_moment(look)
    assert looks == 6, "twice with timestamps drawn in between, and once without"


def test_a_call_for_more_than_a_range_is_answered_in_parts() -> None:
    with leading(size=3) as small:
        oracle = NetworkOracle([small.address])
        drawn, last = oracle._line()._make(10, float("inf"))
        assert list(drawn) == sorted(set(drawn)) and len(drawn) == 10 and last == drawn[-1]
        oracle.close()


def test_an_oracle_that_was_advanced_hands_out_nothing_below(
    server: OracleServer, oracle: NetworkOracle
) -> None:
    other = NetworkOracle([server.address])
    oracle.advance(250_000)
    assert other.timestamp() > 250_000
    before = other.timestamp()
    oracle.advance(1_000)
    assert other.timestamp() == before + 1, "it was above that already"
    other.close()


def test_an_oracle_is_not_advanced_for_hours_but_started_above(
    server: OracleServer, oracle: NetworkOracle
) -> None:
    """As for a copy of a repository whose record was lost and made anew above 2⁵⁰."""
    oracle.timestamp()
    with pytest.raises(UsageError, match=rf"{server.address} .* up to 1, .* --above {2**50}"):
        oracle.advance(2**50)
    assert oracle.timestamp() == 2, "none was used up"
    with leading(above=2**50) as higher:
        other = NetworkOracle([higher.address])
        other.advance(2**50)
        assert other.timestamp() == 2**50 + 1
        other.close()


# --- Failures ---------------------------------------------------------------------------


def test_an_interrupted_sender_lets_the_others_join_another_call(
    server: OracleServer,
    oracle: NetworkOracle,
    monkeypatch: pytest.MonkeyPatch,
    wait_until: WaitUntil,
) -> None:
    held = Held(server, monkeypatch)
    line = oracle._line()
    make = line._make
    interrupted = threading.Event()

    def once(count: int, deadline: float) -> Any:
        if count == 2 and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return make(count, deadline)

    monkeypatch.setattr(line, "_make", once)
    first = in_thread(oracle.timestamp)
    assert held.came.acquire(timeout=DEADLINE)
    outcomes: list[int | str] = []

    def draw() -> None:
        try:
            outcomes.append(oracle.timestamp())
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    threads = [threading.Thread(target=draw) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: line._open is not None and line._open.count == 2)
    held.release(3)
    assert first.result(DEADLINE) == 1
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(map(str, outcomes)) == ["2", "interrupted"]


def test_an_interrupt_just_before_a_call_is_sent_leaves_nobody_waiting_for_it(
    oracle: NetworkOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = oracle._line()

    def interrupted(batch: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(line, "_send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        oracle.timestamp()
    monkeypatch.undo()
    assert in_thread(oracle.timestamp).result(DEADLINE) == 1


def test_where_nobody_listens_it_is_one_error_that_names_every_address() -> None:
    oracle = NetworkOracle(["127.0.0.1:9", "127.0.0.1:10"], timeout_seconds=0.3)
    with pytest.raises(StoreError, match=r"127.0.0.1:9: .*127.0.0.1:10: .*'percola oracle'"):
        oracle.timestamp()
    with pytest.raises(StoreError, match=r"No oracle handed out a timestamp for 0.3 s"):
        oracle.read_timestamp()


def test_after_one_that_took_all_of_the_time_the_next_call_asks_another(
    server: OracleServer,
) -> None:
    """As a relay's, which has a second, where a look-up of the first one's name takes longer."""
    with silent_port() as silent:
        address = f"127.0.0.1:{silent}"
        oracle = NetworkOracle([address, server.address], timeout_seconds=0.3, request_seconds=0.3)
        with pytest.raises(StoreError, match=rf"{address}: no answer"):
            oracle.timestamp()
        oracle.timeout_seconds = oracle.request_seconds = DEADLINE
        assert oracle.timestamp() == 1
        oracle.close()


def test_every_thread_of_a_call_that_failed_gets_an_error_of_its_own() -> None:
    oracle = NetworkOracle(["127.0.0.1:9"], timeout_seconds=0.3)
    errors: list[BaseException] = []

    def draw() -> None:
        with pytest.raises(StoreError) as caught:
            oracle.timestamp()
        errors.append(caught.value)

    all_at_once([draw] * 4)
    assert len({id(one) for one in errors}) == 4


def test_a_standby_is_passed_over_and_takes_over_after_a_clean_stop(wait_until: WaitUntil) -> None:
    store = MemoryStore()
    with OracleServer(store, HERE, lease=60) as old, OracleServer(store, HERE, lease=60) as standby:
        wait_until(lambda: old.ranges.holds or standby.ranges.holds)
        if standby.ranges.holds:
            old, standby = standby, old
        oracle = NetworkOracle([standby.address, old.address])
        assert oracle.timestamp() == 1
        old.stop()
        wait_until(lambda: standby.ranges.holds, what="the standby, long before the lease ends")
        assert oracle.read_timestamp() == 1
        assert oracle.timestamp() == 2, "a clean stop leaves no gap"
        assert standby.metrics.registry.get_sample_value("percola_oracle_holds") == 1
        refused = standby.metrics.registry.get_sample_value(
            "percola_oracle_refusals_total", {"status": "STANDBY"}
        )
        assert refused and refused >= 1
        oracle.close()


def test_the_oracle_of_another_repository_is_refused(
    server: OracleServer, oracle: NetworkOracle
) -> None:
    with leading() as other:
        assert oracle.timestamp() == 1
        mixed = NetworkOracle([other.address], source=oracle.source)
        with pytest.raises(StoreError, match="not the one of this repository"):
            mixed.timestamp()
        mixed.close()


@pytest.mark.parametrize("token", ["", "of others"])
def test_an_oracle_of_others_stops_no_client_for_longer_than_its_own_is_away(token: str) -> None:
    """As where the address of a machine that was replaced has come to others."""
    store = MemoryStore()
    with leading(token=token) as other:
        with leading(store=store) as own:
            oracle = NetworkOracle([own.address, other.address], source=own.ranges.source)
            assert oracle.timestamp() == 1
        with pytest.raises(StoreError, match=rf"{other.address} (is not the one|refuses)"):
            oracle.timestamp()
        with leading(own.address, store):
            assert oracle.timestamp() == 2
        oracle.close()


def test_an_oracle_that_goes_backwards_is_found_out(wait_until: WaitUntil) -> None:
    store = MemoryStore()
    with OracleServer(store, HERE, above=1000) as server:
        wait_until(lambda: server.ranges.holds)
        oracle = NetworkOracle([server.address])
        assert oracle.timestamp() == 1001
        server.ranges._next = 500
        with pytest.raises(StoreError, match="went backwards: it answered 500 where at least 1002"):
            oracle.timestamp()
        with pytest.raises(StoreError, match="went backwards"):
            oracle.read_timestamp()
        oracle.close()


@pytest.mark.parametrize(
    "options",
    [
        {"addresses": []},
        {"addresses": ["host"]},
        {"addresses": [":7"]},
        {"addresses": ["h:0"]},
        {"addresses": ["h:x"]},
        {"addresses": ["h..x:1"]},
        {"addresses": "h:1"},
        {"addresses": ["h:1"], "timeout_seconds": 0},
    ],
)
def test_a_client_refuses_options_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        NetworkOracle(**options)


@pytest.mark.parametrize("listen", ["7070", "host:", ":7070", "host:99999", "host:x", "h..x:1"])
def test_a_server_refuses_an_address_that_is_none(listen: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        OracleServer(MemoryStore(), listen)


def test_a_second_server_on_the_same_port_is_refused(server: OracleServer) -> None:
    with pytest.raises(StoreError, match="cannot listen"):
        OracleServer(MemoryStore(), server.address)


def test_a_host_that_has_its_address_twice_is_listened_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = socket.getaddrinfo
    # As for a host that is in two lines of /etc/hosts.
    monkeypatch.setattr(socket, "getaddrinfo", lambda *some, **more: find(*some, **more) * 2)
    with OracleServer(MemoryStore(), HERE) as server:
        assert len(server._server._listening) == 1


def test_a_server_whose_store_refuses_lets_go_of_its_port() -> None:
    store = MemoryStore()
    store.close()
    refused = OracleServer(store, HERE)
    with pytest.raises(RepositoryClosedError):
        refused.start()
    with OracleServer(MemoryStore(), refused.address):
        pass


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    server = OracleServer(MemoryStore(), HERE)
    server.stop()
    server.stop()


def test_a_closed_client_says_so(server: OracleServer) -> None:
    oracle = NetworkOracle([server.address])
    assert oracle.timestamp() == 1
    oracle.close()
    oracle.close()
    with pytest.raises(RepositoryClosedError):
        oracle.timestamp()


def test_closing_ends_the_call_that_is_pending(
    server: OracleServer, oracle: NetworkOracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(server, monkeypatch)
    waiting = [in_thread(oracle.timestamp) for _ in range(3)]
    assert held.came.acquire(timeout=DEADLINE)
    oracle.close()
    for one in waiting:
        with pytest.raises(RepositoryClosedError):
            one.result(DEADLINE)
    held.release(3)


# --- Token, TLS -----------------------------------------------------------------


def test_a_client_without_the_token_is_refused_at_once() -> None:
    with leading(token="s3cret") as guarded:
        for token in ("", "s3cre", "s3cret!"):
            stranger = NetworkOracle([guarded.address], token=token)
            for ask in (stranger.timestamp, stranger.read_timestamp):
                with pytest.raises(StoreError, match="token"):
                    ask()
            stranger.close()
        friend = NetworkOracle([guarded.address], token="s3cret")
        assert friend.timestamp() == 1
        friend.close()
    for token in ("zwei\nzeilen", " blank", "ü"):
        with pytest.raises(UsageError, match="token"):
            OracleServer(MemoryStore(), HERE, token=token)


def test_with_tls_both_sides_show_who_they_are_and_a_mismatch_is_one_sentence(
    certificates: Path,
) -> None:
    def read(name: str) -> bytes:
        return (certificates / name).read_bytes()

    def refusal(address: str, **access: Any) -> str:
        bad = NetworkOracle([address], timeout_seconds=0.3, **access)
        with pytest.raises(StoreError, match="No oracle") as caught:
            bad.timestamp()
        bad.close()
        return str(caught.value)

    shown = (read("client.pem"), read("client.key"))
    roots = read("server.pem")
    tls = Tls(roots, read("server.key"), read("client.pem"))
    with leading("localhost:0", tls=tls, token="x") as server:
        here = server.address
        assert "PERCOLA_ORACLE_CERT" in refusal(here, roots=roots, token="x")
        others = (roots, read("server.key"))  # Of an authority that is not the clients'.
        assert "PERCOLA_ORACLE_CERT" in refusal(here, roots=roots, certificate=others)
        wrong = refusal(here, roots=read("client.pem"), certificate=shown)
        assert "certificate is not trusted (self-signed certificate): is the authority" in wrong
        by_number = here.replace("localhost", "127.0.0.1")
        assert "name this host" in refusal(by_number, roots=roots, certificate=shown)
        assert "serves with TLS: set PERCOLA_ORACLE_CA" in refusal(here)
        stranger = NetworkOracle([here], roots=roots, certificate=shown)
        with pytest.raises(StoreError, match="token"):
            stranger.timestamp()
        named = "# Behörde der Zertifikate\n".encode() + roots  # As bundles of systems have it.
        good = NetworkOracle([here], roots=named, certificate=shown, token="x")
        assert good.timestamp() == 1
        assert good.timestamp() == 2 and good.calls == 2
        lock_service = LockServiceClient([here], access=good.access, lock_seconds=DEADLINE)
        assert lock_service.try_lock("t", b"r") and server.lock_service.locks == 1
        lock_service.close()
        good.close()
    with OracleServer(MemoryStore(), "localhost:0") as plain:
        assert "does not serve with TLS" in refusal(plain.address, roots=roots)
    for broken in (Tls(roots, shown[1]), Tls(b"x", read("server.key"))):
        with pytest.raises(UsageError, match="cannot be used"):
            OracleServer(MemoryStore(), HERE, tls=broken)
    with pytest.raises(UsageError, match="authorities"):
        NetworkOracle([here], roots=b"x")


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle greets its clients after a while."""
    never, greet = threading.Event(), Greeter._greet

    def greet_from_afar(*arguments: Any) -> bool:
        never.wait(0.1)
        return greet(*arguments)

    monkeypatch.setattr(Greeter, "_greet", greet_from_afar)


@pytest.mark.usefixtures("far")
def test_of_several_addresses_of_a_name_one_that_drops_packets_leaves_time_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with leading() as server, silent_port() as silent:
        ports = (silent, int(server.address.rpartition(":")[2]))
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one)) for one in ports]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        oracle = NetworkOracle(["oracles:7070"], request_seconds=1.0, timeout_seconds=3.0)
        assert oracle.timestamp() == 1
        oracle.close()


@pytest.mark.usefixtures("far")
def test_a_name_server_that_answers_late_leaves_the_time_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(rpc_client, "time", clock)
    look_up = socket.getaddrinfo

    def late(*given: Any, **options: Any) -> Any:
        passed[0] += 5.0
        return look_up(*given, **options)

    with leading() as server:
        monkeypatch.setattr(socket, "getaddrinfo", late)
        oracle = NetworkOracle([server.address], request_seconds=2.0, timeout_seconds=2.0)
        assert oracle.timestamp() == 1
        oracle.close()

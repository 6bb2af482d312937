"""§2.3: a process asks on one connection, and no answer is taken for a later request's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oracle_in_process import HERE, Held, leading, oracle, server
from stores import DEADLINE, in_thread

from percola.errors import StoreError
from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer
from percola.rpc import frames
from percola.rpc.client import Access, Connection, LostError
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., object]

__all__ = ["oracle", "server"]


@pytest.fixture
def connection(server: OracleServer) -> Iterator[Connection]:
    made = Connection(server.address, Access(), None, DEADLINE)
    yield made
    made.end()


def asked(connection: Connection, number: int, count: int, seconds: float = DEADLINE) -> Any:
    """First and count of what a request is answered."""
    body = connection.ask(frames.draw(number, count), number, frames.DRAWN, seconds)
    return frames.read_drawn(body)[:2]


def test_requests_of_a_process_share_a_connection(
    server: OracleServer, oracle: NetworkOracle
) -> None:
    for _ in range(5):
        oracle.timestamp()
        oracle.read_timestamp()
    assert server.metrics.registry.get_sample_value("percola_oracle_connections") == 1
    assert oracle.statistics() == {"calls": 10, "drawn": 5}


def test_p1_an_answer_that_comes_too_late_is_nobodys(
    server: OracleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(server, monkeypatch)
    oracle = NetworkOracle([server.address], request_seconds=0.2, timeout_seconds=DEADLINE)
    # It asks once more when the first answer is overdue.
    drawn = in_thread(oracle.timestamp)
    for _ in range(2):
        assert held.came.acquire(timeout=DEADLINE)
    another = NetworkOracle([server.address])
    between = in_thread(another.timestamp)
    assert held.came.acquire(timeout=DEADLINE)
    held.release(1000)
    known = between.result(DEADLINE)
    first = drawn.result(DEADLINE)
    assert len({known, first}) == 2
    assert oracle.timestamp() > max(known, first), "as drawn after both"
    oracle.close()
    another.close()


def test_p1_an_interrupted_or_overdue_request_ends_its_connection(
    server: OracleServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(connection, 1, 1) == (1, 1)
    real = connection._socket

    class Interrupted:
        """Interrupts when the request is on its way."""

        def sendall(self, request: bytes) -> None:
            real.sendall(request)
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    connection._socket = Interrupted()  # type: ignore[assignment]
    with pytest.raises((KeyboardInterrupt, TypeError)):
        asked(connection, 2, 5)
    connection._socket = real
    assert connection.has_ended, "else the next one would be told what the five were told"
    with pytest.raises(LostError):
        asked(connection, 3, 1)
    held = Held(server, monkeypatch)
    late = Connection(server.address, Access(), None, DEADLINE)
    with pytest.raises(LostError, match=r"no answer within 0\.2 s"):
        asked(late, 1, 1, 0.2)
    assert late.has_ended
    held.release()


def test_an_answer_to_another_request_is_an_error(
    server: OracleServer, connection: Connection
) -> None:
    connection.send(frames.draw(1, 3))
    with pytest.raises(LostError, match="something other than the answer"):
        asked(connection, 2, 1)
    assert connection.has_ended


def test_a_connection_that_the_oracle_has_ended_is_replaced_at_once(
    server: OracleServer, oracle: NetworkOracle, wait_until: WaitUntil
) -> None:
    assert oracle.timestamp() == 1
    inner = server._server
    inner.call(lambda: [inner.end(one) for one in list(inner._peers.values())])
    wait_until(lambda: inner.connections == 0)
    calls = oracle.calls
    assert (oracle.timestamp(), oracle.calls) == (2, calls + 1), "as if it were the first"


def test_a_closed_client_leaves_no_connection_and_no_thread(
    server: OracleServer, oracle: NetworkOracle, wait_until: WaitUntil
) -> None:
    before = set(threading.enumerate())
    assert oracle.timestamp() == 1
    assert set(threading.enumerate()) == before, "it needs none"
    oracle.close()
    wait_until(lambda: server._server.connections == 0)


def test_a_request_that_the_range_does_not_hold_waits_and_no_other_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr("percola.oracle.server._DRAW_SECONDS", 0.01)
    with leading(lease=60) as server:
        step = server.ranges.step
        monkeypatch.setattr(server.ranges, "step", lambda: 60.0)  # The store does not answer.
        server.ranges._end = server.ranges._next + 3
        small = NetworkOracle([server.address])
        big = NetworkOracle([server.address], timeout_seconds=1)
        with pytest.raises(StoreError, match="next range of timestamps is being reserved"):
            big._line()._make(5, 0.0)
        monkeypatch.setattr("percola.oracle.server._DRAW_SECONDS", 2 * DEADLINE)
        waiting = in_thread(lambda: big._line()._make(5, float("inf")))
        wait_until(lambda: server._waiting)
        assert [small.timestamp(), small.read_timestamp(), small.timestamp()] == [1, 1, 2]
        assert server._waiting
        monkeypatch.setattr(server.ranges, "step", step)
        server.ranges.wake.set()
        assert list(waiting.result(DEADLINE)[0]) == [3, 4, 5, 6, 7]
        small.close()
        big.close()
        refused = server.metrics.registry.get_sample_value
        assert refused("percola_oracle_refusals_total", {"status": "BUSY"}) == 1


def test_a_server_that_stops_waits_for_no_client(
    wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = OracleServer(MemoryStore(), HERE).start()
    wait_until(lambda: server.ranges.holds)
    oracle = NetworkOracle([server.address])
    assert oracle.timestamp() == 1
    in_thread(server.stop).result(DEADLINE)
    oracle.close()

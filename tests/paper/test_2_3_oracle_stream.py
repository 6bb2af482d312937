"""§2.3: a process's requests go over one stream, and no answer is taken for a later request's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from oracle_in_process import HERE, Held, oracle, server
from stores import DEADLINE, in_thread

import percola.oracle.server
from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer
from percola.oracle.stream import Conversation, LostError
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., object]

__all__ = ["oracle", "server"]


@pytest.fixture
def channel(server: OracleServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as made:
        yield made


def asked(talk: Conversation, count: int) -> tuple[int, int]:
    """What a request is answered."""
    reply = talk.ask(count, DEADLINE)
    assert reply is not None
    return reply.first, reply.count


def test_requests_of_a_process_share_a_stream(server: OracleServer, oracle: NetworkOracle) -> None:
    for _ in range(5):
        oracle.timestamp()
        oracle.read_timestamp()
    assert len(server._streams) == 1
    assert oracle.statistics() == {"calls": 10, "drawn": 5}


def test_p1_an_answer_that_comes_too_late_is_nobodys(
    server: OracleServer, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
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
    held.go.release(1000)
    known = between.result(DEADLINE)
    first = drawn.result(DEADLINE)
    assert len({known, first}) == 2
    assert oracle.timestamp() > max(known, first), "as drawn after both"
    oracle.close()
    another.close()


def test_p1_an_interrupted_request_ends_its_stream(channel: grpc.Channel) -> None:
    talk = Conversation(channel, None, DEADLINE)
    assert asked(talk, 1) == (1, 1)
    requests, put = talk._requests, talk._requests.put

    class Interrupted:
        """Interrupts when the request is on its way."""

        def put(self, request: Any) -> None:
            put(request)
            if request is not None:
                raise KeyboardInterrupt

    talk._requests = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        talk.ask(5, DEADLINE)
    talk._requests = requests
    assert talk.ask(1, DEADLINE) is None, "else it would be told what the five were told"


def test_an_answer_that_is_overdue_ends_the_stream_in_words(
    server: OracleServer, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(server, monkeypatch)
    talk = Conversation(channel, None, 0.2)
    with pytest.raises(LostError, match=r"no answer within 0\.2 s"):
        talk.ask(1, 0.2)
    assert talk.ask(1, 0.2) is None
    held.go.release()


def test_a_stream_that_nobody_uses_ends_and_the_next_request_begins_another(
    server: OracleServer, channel: grpc.Channel, oracle: NetworkOracle, wait_until: WaitUntil
) -> None:
    talk = Conversation(channel, None, DEADLINE, idle_seconds=0.1)
    assert asked(talk, 2) == (1, 2)
    wait_until(lambda: not server._streams, what="the end of an idle stream")
    assert talk.ask(1, DEADLINE) is None
    assert oracle.timestamp() == 3
    line = oracle._line()
    assert line._talk is not None
    line._talk.end()
    calls = oracle.calls
    assert (oracle.timestamp(), oracle.calls) == (4, calls + 1), "at once, as if it were the first"


def test_a_closed_client_leaves_no_stream_and_no_thread(
    server: OracleServer, oracle: NetworkOracle, wait_until: WaitUntil
) -> None:
    before = set(threading.enumerate())

    def of_client() -> list[str]:
        names = [one.name for one in set(threading.enumerate()) - before]
        return [name for name in names if not name.startswith("ThreadPoolExecutor")]

    assert oracle.timestamp() == 1
    assert of_client()
    oracle.close()
    wait_until(lambda: not server._streams)
    wait_until(lambda: not of_client())


def test_a_server_that_stops_waits_for_no_stream(
    wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(percola.oracle.server, "_GRACE", 10 * DEADLINE)
    server = OracleServer(MemoryStore(), HERE).start()
    wait_until(lambda: server.ranges.holds)
    oracle = NetworkOracle([server.address])
    assert oracle.timestamp() == 1
    in_thread(server.stop).result(DEADLINE)
    oracle.close()

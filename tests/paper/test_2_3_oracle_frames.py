"""§2.3 on the wire: whatever a peer sends, it is told in a sentence, and others are served."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pytest
from oracle_in_process import oracle, server
from stores import DEADLINE, in_thread

from percola.errors import StoreError
from percola.oracle.client import NetworkOracle
from percola.oracle.ranges import Refused
from percola.oracle.server import OracleServer
from percola.rpc import frames
from percola.rpc.frames import Code
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., object]

__all__ = ["oracle", "server"]

HELLO: Final = frames.hello("")


def dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE)


def told(address: str, sent: bytes, *, in_pieces: bool = False) -> bytes:
    """What a server answers to bytes until it ends the connection."""
    with dialled(address) as peer:
        for piece in (sent[i : i + 1] for i in range(len(sent))) if in_pieces else (sent,):
            peer.sendall(piece)
        return b"".join(iter(lambda: peer.recv(4096), b""))


def refusal(raw: bytes) -> tuple[int, str]:
    """The code and the sentence that an answer ends with."""
    found, rest = frames.split(raw)
    assert not rest and found[-1].kind == frames.REFUSED
    return frames.read_refused(found[-1].body)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak as a client of Percola"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "speaks TLS, which this oracle does not"),
        (b"\0" * 5000, "does not speak as a client of Percola"),
        (b"percolb\n", "does not speak as a client of Percola"),
    ],
)
def test_a_stranger_reads_in_plain_text_what_it_has_reached(
    server: OracleServer, oracle: NetworkOracle, sent: bytes, said: str
) -> None:
    answer = told(server.address, sent).decode()
    assert answer.startswith("This is a timestamp oracle of Percola; your program ")
    assert said in answer and answer.count("\n") == 1
    assert oracle.timestamp() == 1


_LONG: Final = (2000).to_bytes(4, "big") + b"x" * 2000


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        (frames.hello("", 3), Code.VERSION, "speaks version 2 .*, and the client version 3: upgr"),
        (frames.hello("", 1), Code.VERSION, "speaks version 2 .*, and the client version 1: upgr"),
        (frames.MAGIC + frames.draw(1, 1), Code.MALFORMED, "something other than a greeting"),
        (frames.MAGIC + frames.frame(frames.HELLO), Code.MALFORMED, "greeting that is cut off"),
        (frames.MAGIC + _LONG, Code.MALFORMED, "a frame of 2,000 bytes, and not of 5 to 1,024"),
        (frames.MAGIC + b"\xff" * 20, Code.MALFORMED, "a frame of 4,294,967,295 bytes"),
        (HELLO + _LONG, Code.MALFORMED, "a frame of 2,000 bytes, and not of 5 to 1,024"),
        (HELLO + bytes(20), Code.MALFORMED, "a frame of 0 bytes"),
        (HELLO + frames.frame(99, 1), Code.MALFORMED, "a message of an unknown kind, 99"),
        (HELLO + frames.frame(frames.DRAW, 1, b"x"), Code.MALFORMED, "timestamps of another size"),
        (HELLO + frames.frame(frames.LOCK, 1, b"k"), Code.MALFORMED, "a lock without a session"),
        (HELLO + HELLO, Code.MALFORMED, "a frame of 1,885,696,611 bytes"),
    ],
)
def test_what_is_no_message_is_refused_in_a_sentence_whole_or_in_pieces(
    server: OracleServer, oracle: NetworkOracle, sent: bytes, code: Code, said: str
) -> None:
    for in_pieces in (False, len(sent) < 100):
        found, why = refusal(told(server.address, sent, in_pieces=in_pieces))
        assert found == code
        assert why.endswith(".")
        assert re.search(said, why)
    assert oracle.timestamp() == 1


def answered(address: str, pieces: Sequence[bytes], count: int) -> list[frames.Frame]:
    """The first answers after the welcome."""
    with dialled(address) as peer:
        for piece in pieces:
            peer.sendall(piece)
        raw = b""
        while len(frames.split(raw)[0]) < count + 1:
            raw += peer.recv(4096)
    welcome, *answers = frames.split(raw)[0]
    assert welcome.kind == frames.WELCOME
    return answers


def test_requests_in_one_piece_or_byte_by_byte_are_answered_in_order(server: OracleServer) -> None:
    sent = HELLO + frames.draw(7, 2) + frames.draw(8, 0) + frames.draw(9, 2**63)
    source = server.ranges.source.encode()
    most = server.ranges.size
    first = 1
    for pieces in ([sent], [sent[i : i + 1] for i in range(len(sent))]):
        answers = answered(server.address, pieces, 3)
        assert [one.number for one in answers] == [7, 8, 9]
        assert [frames.read_drawn(one.body) for one in answers] == [
            (first, 2, source),
            (first + 1, 0, source),
            (first + 2, most, source),
        ]
        first += 2 + most


def test_a_request_that_waits_is_not_overtaken_by_later_ones_of_its_connection(
    server: OracleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, refusals = server.ranges.draw, iter(range(2))

    def draw_later(count: int) -> int | Refused:
        busy = next(refusals, None) is not None
        return Refused(elsewhere=False, why="The range is used up.") if busy else draw(count)

    monkeypatch.setattr(server.ranges, "draw", draw_later)
    sent = HELLO + frames.draw(7, 2) + frames.draw(8, 0) + frames.draw(9, 1)
    answers = answered(server.address, [sent], 3)
    assert next(refusals, None) is None
    assert [one.number for one in answers] == [7, 8, 9]
    assert [frames.read_drawn(one.body)[0] for one in answers] == [1, 2, 3]


def test_random_bytes_from_many_peers_leave_the_server_serving(
    server: OracleServer, oracle: NetworkOracle, wait_until: WaitUntil
) -> None:
    threads = threading.active_count()

    def stranger(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(10):
            begin = own.choice((b"", frames.MAGIC, HELLO, HELLO + frames.draw(1, 1)))
            with dialled(server.address) as peer:
                try:
                    peer.sendall(begin + own.randbytes(own.randrange(1, 3000)))
                    if own.random() < 0.5:
                        peer.shutdown(socket.SHUT_WR)
                        while peer.recv(4096):
                            pass
                except OSError:
                    continue  # It has been ended.

    peers = [in_thread(partial(stranger, seed)) for seed in range(8)]
    drawn = [oracle.timestamp() for _ in range(500)]
    for one in peers:
        one.result(DEADLINE)
    assert drawn == sorted(set(drawn))
    assert oracle.calls == 500, "its connection was not touched"
    # Those that have not been ended yet are; nothing of them is left.
    wait_until(lambda: server._server.connections == 1)
    wait_until(lambda: not server._server._greeter._strangers, seconds=20)
    assert threading.active_count() <= threads + 8


# --- A client with something else behind its address --------------------------------------


@pytest.fixture
def impostor() -> Iterator[tuple[str, Callable[[bytes], None]]]:
    """An address, and what to answer there to everything."""
    answer = b""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)

        def say(what: bytes) -> None:
            nonlocal answer
            answer = what

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", say
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a 'percola oracle': it answers 'HTTP/1.1 400"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18, "it speaks gRPC, as Percola 0.1"),
        (b"", "closed the connection without an answer"),
        (frames.welcome(), "closed the connection"),
        (frames.welcome() + frames.drawn(1, 5, 1, b"x"), "not asked for"),
        (b"\x10\xbf>", "not a 'percola oracle'"),
        (frames.refused(Code.LIMIT, "It is full."), r"It is full\)\. Is 'percola oracle'"),
        (frames.frame(frames.PONG), "not a 'percola oracle'"),
    ],
)
def test_a_client_says_what_it_has_found_in_place_of_an_oracle(
    impostor: tuple[str, Callable[[bytes], None]], answer: bytes, said: str
) -> None:
    address, say = impostor
    say(answer)
    oracle = NetworkOracle([address], timeout_seconds=0.2)
    with pytest.raises(StoreError, match=said) as caught:
        oracle.timestamp()
    assert str(caught.value).count("\n") == 0
    oracle.close()


def test_a_client_waits_for_a_server_that_says_nothing_no_longer_than_it_may() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        oracle = NetworkOracle([address], timeout_seconds=0.3, request_seconds=0.1)
        began = time.monotonic()
        with pytest.raises(StoreError, match=r"no answer within 0\.\d+ s"):
            oracle.timestamp()
        assert time.monotonic() - began < DEADLINE
        oracle.close()


def test_a_name_that_does_not_exist_and_a_port_where_nothing_listens_are_told_apart() -> None:
    oracle: Any = NetworkOracle(["no.such.host.invalid:7", "127.0.0.1:9"], timeout_seconds=0.2)
    with pytest.raises(StoreError, match=r"no such host; 127\.0\.0\.1:9: nothing listens there"):
        oracle.timestamp()


def test_an_address_of_ipv6_is_served_if_the_machine_has_it() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    with OracleServer(MemoryStore(), "[::1]:0") as server:
        assert server.address.startswith("[::1]:")
        oracle = NetworkOracle([server.address])
        assert oracle.timestamp() == 1
        oracle.close()
    with OracleServer(MemoryStore(), "[::]:0", token="secret") as server:
        port = server.address.rpartition(":")[2]
        for count, host in enumerate(("[::1]", "127.0.0.1"), 1):
            oracle = NetworkOracle([f"{host}:{port}"], token="secret")
            assert oracle.timestamp() == count, "all addresses of the machine are served"
            oracle.close()

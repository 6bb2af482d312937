"""Advisory locks and wake-ups: the service's rules, its messages, and what a process does alone."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from forked import in_child

import percola.coordination.lock_service.server as lock_server
from percola import RepositoryClosedError
from percola.coordination.lock_service.base import LockService
from percola.coordination.lock_service.client import LockServiceClient
from percola.coordination.lock_service.server import LockServiceServer
from percola.coordination.wake_ups import EVERY_TABLE, marks_of, pool_of, rows_of, wake_up_of
from percola.errors import UsageError
from percola.rpc import frames

# --- One process ----------------------------------------------------------------------------


def test_threads_of_a_process_keep_out_of_each_others_way() -> None:
    lock_service = LockService()
    assert lock_service.try_lock("t", b"r")
    assert not lock_service.try_lock("t", b"r")
    assert lock_service.try_lock("t", b"s") and lock_service.try_lock("u", b"r")
    lock_service.unlock("t", b"r")
    lock_service.unlock("t", b"r")
    assert lock_service.try_lock("t", b"r")


def test_a_wake_up_calls_all_callbacks_until_they_are_removed() -> None:
    lock_service = LockService()
    woken: list[str] = []
    stop = lock_service.on_wake(lambda _: woken.append("first"))
    lock_service.on_wake(lambda _: woken.append("second"))
    lock_service.wake()
    stop()
    stop()
    lock_service.wake()
    assert woken == ["first", "second", "second"]
    lock_service.close()
    lock_service.wake()
    assert len(woken) == 3
    with pytest.raises(RepositoryClosedError):
        lock_service.try_lock("t", b"r")


def test_a_child_after_a_fork_has_no_locks_and_no_listeners_of_its_parent() -> None:
    lock_service = LockService()
    assert lock_service.try_lock("t", b"r")
    woken = threading.Event()
    lock_service.on_wake(lambda _: woken.set())

    def use() -> tuple[bool, bool]:
        lock_service.wake()
        return lock_service.try_lock("t", b"r"), woken.is_set()

    assert in_child(use) == "(True, False)"
    assert not lock_service.try_lock("t", b"r")


@pytest.mark.parametrize(
    "wrong",
    [
        {"addresses": []},
        {"addresses": "a:1"},
        {"addresses": ["a..b:1"]},
        {"addresses": ["a:1"], "lock_seconds": 0},
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LockServiceClient(**wrong)


# --- The service ----------------------------------------------------------------------------


class Peer:
    """A connection as the service sees it."""

    def __init__(self) -> None:
        self.answers_pings = True
        self.state: Any = None
        self.unsent = b""
        self.used = 0.0
        self.sent: list[frames.Frame] = []
        self.has_ended = False

    def of(self, kind: int) -> int:
        """How many frames of a kind it was sent."""
        return sum(one.kind == kind for one in self.sent)


class Service:
    """The service's rules without a server, and with a clock of the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sending_takes = 0.0
        self.real = LockServiceServer(self, lambda: self.now)

    def send(self, peer: Any, message: bytes) -> None:
        self.now += self.sending_takes
        found = frames.split(message)[0]
        peer.sent += found
        if found and found[0].kind == frames.PING and peer.answers_pings:
            self.ask(peer, frames.PONG)

    def end(self, peer: Any, message: bytes = b"") -> None:
        self.send(peer, message)
        peer.has_ended = True
        self.real.drop(peer)

    def keep(self, peer: Any) -> None:
        pass

    def hurry(self) -> None:
        pass

    def ask(self, peer: Any, kind: int, number: int = 0, body: bytes = b"") -> frames.Frame | None:
        """What a request is answered."""
        peer.used = self.now
        found, _ = frames.split(self.real.received(peer, kind, number, body))
        return found[0] if found else None

    def attend(self) -> Peer:
        peer = Peer()
        peer.sent += filter(None, [self.ask(peer, frames.ATTEND, 7)])
        assert [one.kind for one in peer.sent] == [frames.WAKE_UP], "it reports that it is open"
        return peer

    def try_lock(self, peer: Peer, key: bytes, turn: int) -> bool:
        answer = self.ask(peer, frames.LOCK, turn, key)
        assert answer is not None and (answer.kind, answer.number) == (frames.LOCKED, turn)
        return answer.body == b"\1"

    def unlock(self, peer: Peer, key: bytes, turn: int) -> None:
        assert self.ask(peer, frames.UNLOCK, turn, key) is None

    def wake(self, peer: Peer | None = None, marks: bytes = b"") -> int:
        answer = self.ask(peer or Peer(), frames.WAKE, 3, marks)
        assert answer is not None
        return frames.read_pause(answer.body)

    def told(self, *peers: Peer) -> list[set[bytes]]:
        """Which rows each was told of since, in all tables."""
        self.later(1)
        found = []
        for peer in peers:
            of = [rows_of(one.body).values() for one in peer.sent if one.kind == frames.WAKE_UP]
            found.append(
                {row for rows in of for row in itertools.chain(*(r or [b"*"] for r in rows))}
            )
            peer.sent.clear()
        return found

    def later(self, seconds: float) -> None:
        """Time passes, in which the service does what is due."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + max(0.001, self.real.tick()))
        self.real.tick()


def test_a_lock_belongs_to_one_session_until_it_is_given_back_or_the_connection_ends() -> None:
    service = Service()
    one, two = service.attend(), service.attend()
    assert service.try_lock(one, b"k", 1)
    assert not service.try_lock(two, b"k", 1)
    service.unlock(two, b"k", 1)
    assert not service.try_lock(two, b"k", 2), "nobody gives back what is another's"
    service.unlock(one, b"k", 1)
    assert service.try_lock(two, b"k", 3)
    assert not service.try_lock(one, b"k", 2)
    service.real.drop(two)  # type: ignore[arg-type]
    service.real.drop(two)  # type: ignore[arg-type]
    assert service.try_lock(one, b"k", 3)
    service.real.drop(one)  # type: ignore[arg-type]
    assert service.real.locks == service.real.sessions == 0


def test_giving_back_and_taking_again_come_to_the_same_in_either_order() -> None:
    service = Service()
    one, two = service.attend(), service.attend()
    assert service.try_lock(one, b"k", 1)
    # The second taking overtakes the giving back, which nobody waits for.
    assert service.try_lock(one, b"k", 2)
    service.unlock(one, b"k", 1)
    assert not service.try_lock(two, b"k", 1)
    service.unlock(one, b"k", 2)
    assert service.try_lock(two, b"k", 2)


def test_a_lock_takes_a_session_and_a_connection_has_one() -> None:
    service = Service()
    for kind in (frames.LOCK, frames.UNLOCK):
        with pytest.raises(frames.FrameError, match="without a session"):
            service.ask(Peer(), kind, 1, b"k")
    one = service.attend()
    with pytest.raises(frames.FrameError, match="second"):
        service.ask(one, frames.ATTEND)
    with pytest.raises(frames.FrameError, match="unknown kind, 99"):
        service.ask(one, 99)
    with pytest.raises(frames.FrameError, match="more than 64 bytes"):
        service.ask(one, frames.LOCK, 1, b"k" * 65)
    assert service.try_lock(one, b"k" * 64, 1)


def test_a_wake_up_reaches_all_sessions_but_its_sender() -> None:
    service = Service()
    one, two = service.attend(), service.attend()
    for _ in range(5):
        service.wake(one)
        service.real.tick()
    service.wake(two)
    service.real.tick()
    assert (one.of(frames.WAKE_UP), two.of(frames.WAKE_UP)) == (2, 6)
    service.wake()
    service.real.tick()
    assert (one.of(frames.WAKE_UP), two.of(frames.WAKE_UP)) == (3, 7)
    # Two that wake at the same time wake each other.
    service.wake(one)
    service.wake(two)
    service.real.tick()
    assert (one.of(frames.WAKE_UP), two.of(frames.WAKE_UP)) == (4, 8)


def test_wake_ups_take_a_tenth_of_the_time_and_those_meanwhile_become_one_more() -> None:
    service = Service()
    peers = [service.attend() for _ in range(200)]
    service.sending_takes = 0.001
    began = service.now
    service.wake()
    service.real.tick()
    assert sum(one.of(frames.WAKE_UP) for one in peers) < 250, "a few at a time"
    for _ in range(500):
        service.wake()
    service.later(10)
    assert all(one.of(frames.WAKE_UP) == 3 for one in peers)
    assert service.now - began >= 10


def test_a_wake_up_names_the_tables_of_all_that_it_stands_for() -> None:
    service = Service()
    one, two = service.attend(), service.attend()
    service.wake(one, b"\x81\x90")
    service.wake(one, b"\x90\xff")
    service.real.tick()
    assert one.of(frames.WAKE_UP) == 1, "its own session's opening"
    assert two.sent[-1].body == b"\x81\x90\xff"
    service.wake(one, b"\x81")
    service.real.tick()
    assert two.sent[-1].body == b"\x81"
    service.wake(one, b"\x81")
    service.wake(one)  # As releases without marks send it: for all tables.
    service.real.tick()
    assert two.sent[-1].body == b""


def rows(*names: str, table: str = "docs") -> bytes:
    return wake_up_of([(table, name.encode()) for name in names])


def test_of_the_idle_workers_of_a_pool_one_is_told_of_each_row() -> None:
    service = Service()
    pool, other = pool_of(["index"], ["docs"]), pool_of(["count"], ["docs", "links"])
    one, two, plain, counter = (service.attend() for _ in range(4))
    for peer in (one, two):
        service.ask(peer, frames.IDLE, 0, pool)
    service.ask(counter, frames.IDLE, 0, other)
    service.told(one, two, plain, counter)
    service.wake(None, rows("a"))
    assert service.told(one, two, plain, counter) == [{b"a"}, set(), {b"a"}, {b"a"}]
    service.wake(None, rows("b"))
    assert service.told(one, two, plain, counter) == [set(), {b"b"}, {b"b"}, set()]
    # All are busy: it waits for the first that is not.
    service.wake(None, rows("c"))
    assert service.told(one, two, plain, counter) == [set(), set(), {b"c"}, set()]
    service.ask(two, frames.IDLE, 0, pool)
    service.ask(counter, frames.IDLE, 0, other)
    assert service.told(one, two, plain, counter) == [set(), {b"c"}, set(), {b"b", b"c"}]
    # What is not about rows of the pool's tables is for all, idle or not.
    service.wake(None, rows("d", table="links"))
    assert service.told(one, two, plain) == [{b"d"}, {b"d"}, {b"d"}]
    service.wake(None, marks_of(["docs"]))
    assert service.told(one, two, plain) == [{b"*"}, {b"*"}, {b"*"}]
    # One that has left the pool, as when its worker has stopped, is told as all others are.
    for peer in (one, two):
        service.ask(peer, frames.IDLE, 0, pool)
    service.ask(one, frames.IDLE, 0, b"")
    for name in ("e", "f"):
        service.wake(None, rows(name))
    assert service.told(one, two, plain) == [{b"e", b"f"}, {b"e", b"f"}, {b"e", b"f"}]


def test_many_rows_are_spread_over_the_idle_and_too_many_are_told_to_all_as_their_table() -> None:
    service = Service()
    pool = pool_of(["index"], ["docs"])
    peers = [service.attend() for _ in range(4)]
    for peer in peers:
        service.ask(peer, frames.IDLE, 0, pool)
    service.told(*peers)
    names = [f"{n}" for n in range(20)]
    service.wake(None, rows(*names))
    told = service.told(*peers)
    assert [len(one) for one in told] == [5, 5, 5, 5]
    assert set().union(*told) == {name.encode() for name in names}
    # All are busy, and more rows come than an idle one is told of at a time.
    for at in range(0, 60, 20):
        service.wake(None, rows(*(f"{n}" for n in range(at, at + 20))))
    got: set[bytes] = set()
    for _ in range(3):
        assert len(got) < 60
        service.ask(peers[0], frames.IDLE, 0, pool)
        got |= service.told(peers[0])[0]
    assert len(got) == 60
    for at in range(0, 520, 20):
        service.wake(None, rows(*(f"{n}" for n in range(at, at + 20))))
    assert service.told(*peers) == [{b"*"}] * 4
    service.wake(None, rows("a"))
    service.ask(peers[1], frames.IDLE, 0, pool)
    assert service.told(*peers) == [set(), {b"a"}, set(), set()], "the rows before are told of"


def test_one_that_ends_or_changes_its_pool_takes_no_row_with_it() -> None:
    service = Service()
    pool, other = pool_of(["index"], ["docs"]), pool_of(["count"], ["docs"])
    one, two = service.attend(), service.attend()
    # It is told as all are, and leaves them before that.
    service.wake(None, rows("a"))
    service.ask(one, frames.IDLE, 0, pool)
    service.ask(two, frames.IDLE, 0, pool)
    service.later(1)
    assert one.of(frames.WAKE_UP) > 1 and two.of(frames.WAKE_UP) > 1
    service.told(one, two)
    service.real.drop(one)  # type: ignore[arg-type]
    service.wake(None, rows("b"))
    assert service.told(one, two) == [set(), {b"b"}]
    service.wake(None, rows("c"))
    service.ask(two, frames.IDLE, 0, other)
    service.later(1)
    assert two.sent[-1].body == EVERY_TABLE, "a row waited in the pool that it has left"
    with pytest.raises(frames.FrameError, match="a pool without"):
        service.ask(two, frames.IDLE, 0, b"short")
    with pytest.raises(frames.FrameError, match="without a session"):
        service.ask(Peer(), frames.IDLE, 0, pool)


def test_a_worker_sees_to_the_rows_that_it_has_sent_itself_unless_another_is_idle_first() -> None:
    service = Service()
    pool = pool_of(["index"], ["docs"])
    one, two = service.attend(), service.attend()
    for peer in (one, two):
        service.ask(peer, frames.IDLE, 0, pool)
    service.wake(None, rows("x", "y"))
    service.told(one, two)
    service.wake(one, rows("a"))
    service.wake(two, rows("b"))
    service.ask(one, frames.IDLE, 0, pool)
    assert service.told(one, two) == [{b"b"}, set()]
    service.ask(one, frames.IDLE, 0, pool)
    service.ask(two, frames.IDLE, 0, pool)
    assert service.told(one, two) == [set(), set()]
    # What another process has changed since is told of again.
    service.wake(None, rows("x", "y"))
    service.told(one, two)
    service.wake(one, rows("a"))
    service.wake(None, rows("a"))
    service.ask(one, frames.IDLE, 0, pool)
    assert service.told(one, two) == [{b"a"}, set()]
    # One that ends has not seen to them, and of too many rows all are told.
    service.wake(one, rows("c"))
    service.real.drop(one)  # type: ignore[arg-type]
    service.ask(two, frames.IDLE, 0, pool)
    assert service.told(two) == [{b"c"}]
    for at in range(0, 520, 20):
        service.wake(two, rows(*(f"{n}" for n in range(at, at + 20))))
    assert service.told(two) == [{b"*"}]


def test_sessions_of_one_pool_too_many_are_told_of_everything() -> None:
    service = Service()
    peers = [service.attend() for _ in range(20)]
    for number, peer in enumerate(peers):
        service.ask(peer, frames.IDLE, 0, pool_of([f"{number}"], ["docs"]))
    service.told(*peers)
    for name in ("a", "b"):
        service.wake(None, rows(name))
        service.later(1)
    told = service.told(*peers)
    assert told == [{b"a"}] * 16 + [{b"a", b"b"}] * 4


def test_a_process_that_does_not_read_is_told_once_of_each_table() -> None:
    service = Service()
    slow, other = service.attend(), service.attend()
    slow.unsent = b"what it has not read"
    told = []
    for marks in (b"\x81", b"\x81", b"\x82", b"\x81\x82", b"", b"\x83", b""):
        slow.sent.clear()
        service.wake(None, marks)
        service.later(1)
        told.append(slow.sent[0].body if slow.sent else None)
    assert told == [b"\x81", None, b"\x81\x82", None, b"", None, None]
    assert other.of(frames.WAKE_UP) == 8, "one for its session, and each"
    slow.unsent = b""
    slow.sent.clear()
    service.wake(None, b"\x81")
    service.later(1)
    assert slow.sent[0].body == b"\x81", "it has read"


def test_the_more_attend_the_longer_a_process_sends_no_other_wake_up() -> None:
    service = Service()
    assert service.wake() == 10
    peers: list[Any] = [service.attend() for _ in range(200)]
    assert service.wake() == 50
    for one in peers:
        service.real.drop(one)
    assert service.wake() == 10


def test_a_session_that_answers_no_ping_is_ended_and_one_that_does_is_kept() -> None:
    service = Service()
    silent, lively = service.attend(), service.attend()
    assert service.try_lock(silent, b"k", 1)
    silent.answers_pings = False
    service.later(10)
    assert silent.has_ended and not lively.has_ended
    assert 3 <= lively.of(frames.PING) <= 5, "one for every two seconds of silence"
    assert (service.real.sessions, service.real.locks) == (1, 0)
    # The process itself was stopped for long: nobody is ended for that.
    service.now += 60
    service.real.tick()
    assert not lively.has_ended


def test_idle_sessions_at_the_limit_give_way_unless_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_server, "_SESSIONS", 3)
    service = Service()
    first = [service.attend() for _ in range(3)]
    refused = service.ask(Peer(), frames.ATTEND, 1)
    assert refused is not None and frames.read_refused(refused.body)[0] == frames.Code.LIMIT
    assert not any(one.has_ended for one in first), "they do not displace each other without end"
    service.now += 11
    assert service.try_lock(first[0], b"k", 1)
    fresh = service.attend()
    assert [one.has_ended for one in first] == [False, True, False]
    assert first[1].sent[-1].kind == frames.REFUSED
    assert service.try_lock(fresh, b"j", 1)
    assert (service.real.sessions, service.real.locks) == (3, 2)

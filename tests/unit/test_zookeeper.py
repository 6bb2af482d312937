"""What coordination through ZooKeeper decides by itself: no server runs here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import BadVersionError

from percola import ObserverMismatchError, RepositoryClosedError
from percola.coordination.observer_agreement import check_agreement
from percola.coordination.zookeeper import coordination as zookeeper
from percola.coordination.zookeeper import session as sessions
from percola.coordination.zookeeper.connection import Settings
from percola.coordination.zookeeper.coordination import Held, ZooKeeperCoordination
from percola.coordination.zookeeper.session import Session
from percola.errors import StoreError, UsageError
from percola.transactions.active_snapshots import ActiveSnapshots

SETTINGS = Settings(("127.0.0.1:9",), "/percola/test", 10.0, 0.2, 0.2, None)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hosts": []}, "at least one"),
        ({"hosts": "a:2181"}, "in a list"),
        ({"hosts": ["a"]}, "HOST:PORT, not 'a'"),
        ({"hosts": ["a:2181,b:2181"]}, "HOST:PORT"),
        ({"hosts": ["a:2181/chroot"]}, "HOST:PORT"),
        ({"hosts": ["a:0"]}, "HOST:PORT"),
        ({"hosts": ["a..b:2181"]}, "HOST:PORT"),
        ({"hosts": ["a:99999"]}, "HOST:PORT"),
        ({"root": "percola"}, "/percola/NAME, not 'percola'"),
        ({"root": "/"}, "/percola/NAME"),
        ({"root": "/percola/"}, "/percola/NAME"),
        ({"root": "/percola/../x"}, "/percola/NAME"),
        ({"session_seconds": 0}, "above 0"),
        ({"request_seconds": 0}, "above 0"),
        ({"timeout_seconds": -1}, "above 0"),
        ({"auth": ("digest", "secret")}, "USER:PASSWORD.*LOGIN_FILE"),
        ({"auth": ("digest", "shop:")}, "USER:PASSWORD"),
    ],
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ZooKeeperCoordination(**{"hosts": ["a:2181"], "root": "/percola/x", **wrong})


def test_an_address_of_the_sixth_version_is_one() -> None:
    ZooKeeperCoordination(["[::1]:2181"], "/percola/x").close()


# --- What is remembered of the living -----------------------------------------------------


class Answers:
    """In the place of a session: says what it is told to, and counts how often it was asked."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.is_reachable = True
        self.asked: list[str] = []
        self.connection = self

    def await_connection(self, seconds: float) -> bool:
        return True

    def is_own(self, token: str) -> bool:
        return False

    def is_there(self, path: str) -> bool:
        self.asked.append(path)
        if not self.is_reachable:
            raise StoreError("nobody answers")
        return path.rpartition("/")[2] in self.alive


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the coordination sees, for tests to set."""
    at = [1000.0]

    class Clock:
        monotonic = staticmethod(lambda: at[0])

    monkeypatch.setattr(zookeeper, "time", Clock)
    return at


@pytest.fixture
def asked(now: list[float]) -> Iterator[tuple[ZooKeeperCoordination, Answers]]:
    coordination = ZooKeeperCoordination(["127.0.0.1:9"], "/percola/x")
    answers = Answers()
    real, coordination._session = coordination._session, answers  # type: ignore[assignment]
    yield coordination, answers
    coordination._session = real
    coordination.close()


def test_whether_a_process_lives_is_asked_once_a_second(
    asked: tuple[ZooKeeperCoordination, Answers], now: list[float]
) -> None:
    coordination, answers = asked
    answers.alive = {"1-a"}
    for _ in range(10):
        assert coordination.is_alive("1-a")
        assert not coordination.is_alive("2-b")
    assert answers.asked == ["/percola/x/live/1-a", "/percola/x/live/2-b"]
    answers.alive = {"2-b"}
    now[0] += 0.9
    assert coordination.is_alive("1-a") and not coordination.is_alive("2-b")
    now[0] += 0.2
    assert not coordination.is_alive("1-a") and coordination.is_alive("2-b")
    assert len(answers.asked) == 4


def test_p8_who_cannot_be_asked_about_counts_as_alive_and_is_not_asked_about_at_once_again(
    asked: tuple[ZooKeeperCoordination, Answers], now: list[float]
) -> None:
    coordination, answers = asked
    answers.is_reachable = False
    assert coordination.is_alive("1-a") and coordination.is_alive("1-a")
    assert len(answers.asked) == 1
    now[0] += 1.1
    answers.is_reachable = True
    assert not coordination.is_alive("1-a")


def test_no_more_is_remembered_than_there_is_room_for(
    asked: tuple[ZooKeeperCoordination, Answers],
) -> None:
    coordination, _ = asked
    for number in range(5000):
        coordination.is_alive(f"1-{number}")
    assert len(coordination._known) <= 4096


def test_a_token_that_never_was_one_of_ours_is_dead_and_the_empty_one_alive(
    asked: tuple[ZooKeeperCoordination, Answers],
) -> None:
    coordination, answers = asked
    assert coordination.is_alive("")
    assert not any(coordination.is_alive(one) for one in ("../held", "a/b", ".", "..", "a\0"))
    assert answers.asked == []


# --- What is held back ----------------------------------------------------------------------


class Nodes:
    """In the place of a session and its connection: what stands in ZooKeeper, and each write."""

    def __init__(self) -> None:
        self.generation = 0
        self.connection = self
        self.is_connected = True
        self.standing: set[str] = set()
        self.writes: list[str] = []
        self.lose_answers = False

    def create(self, path: str, data: bytes) -> None:
        self.writes.append(f"create {_ts(path)}")
        self.standing.add(path)
        if self.lose_answers:
            raise StoreError("the answer got lost")

    def delete(self, path: str) -> None:
        self.writes.append(f"delete {_ts(path)}")
        self.standing.discard(path)

    @property
    def held(self) -> list[int]:
        return sorted(_ts(path) for path in self.standing)


def _ts(path: str) -> int:
    return int(path.rpartition("/")[2].partition("-")[0])


class Process:
    """A process's `Held`, a second at a time."""

    def __init__(self, now: list[float]) -> None:
        self.held = Held(SETTINGS)
        self.nodes = Nodes()
        self._now = now

    def after(self, *said: int) -> list[int]:
        """Say all that within a second, then look; what stands in ZooKeeper afterwards."""
        for ts in said:
            self.held.note(ts)
        self._now[0] += 1.0
        self.held.publish(self.nodes)  # type: ignore[arg-type]
        return self.nodes.held


def test_a_read_that_lasts_is_published_and_withdrawn(now: list[float]) -> None:
    process = Process(now)
    assert process.after(17) == []
    assert process.after() == [17]
    assert process.after() == [17]
    assert process.after(0) == []
    assert process.nodes.writes == ["create 17", "delete 17"]


def test_reads_that_are_shorter_than_a_second_cost_no_write_however_many(now: list[float]) -> None:
    process = Process(now)
    for second in range(1, 50):
        # The last one is under way at each look; it is never the same.
        process.after(*range(second * 1000, second * 1000 + 500))
    # The same timestamp, read at again and again with pauses: as where nothing is written.
    for _ in range(50):
        process.after(17, 0, 17)
    assert process.nodes.writes == []


def test_what_follows_a_long_read_is_covered_if_it_is_as_old(now: list[float]) -> None:
    process = Process(now)
    process.after(17)
    assert process.after() == [17]
    # 17 has ended. 30 has been read for just as long, but was not the oldest.
    assert process.after(30) == [17], "no moment without"
    assert process.after() == [30]
    assert process.nodes.writes == ["create 17", "create 30", "delete 17"]


def test_short_reads_after_a_long_one_do_not_keep_it_standing(now: list[float]) -> None:
    process = Process(now)
    process.after(17)
    process.after()
    assert process.after(30) == [17]
    assert process.after(31) == []
    assert process.after(32) == []


def test_a_long_read_is_published_however_many_short_ones_begin_meanwhile(
    now: list[float],
) -> None:
    process = Process(now)
    active = ActiveSnapshots(process.held.note)
    active.add(0, 17)
    for second in range(1, 5):
        for number in range(second * 1000, second * 1000 + 300):
            active.add(number, number)
            active.drop(number)
        assert process.after() == ([17] if second > 1 else [])
    active.drop(0)
    assert process.after() == []


def test_what_is_read_stays_published_while_older_reads_come_and_go(now: list[float]) -> None:
    process = Process(now)
    process.after(17)
    assert process.after() == [17]
    for _ in range(3):
        assert process.after(5) == [17]
        assert process.after(17) == [17]
    # An older one that lasts is published in its place.
    process.after(5)
    assert process.after() == [5]


def test_it_is_looked_at_no_more_than_once_a_second(now: list[float]) -> None:
    process = Process(now)
    process.after(17)
    for _ in range(100):
        now[0] += 0.005
        process.held.publish(process.nodes)  # type: ignore[arg-type]
    assert process.nodes.writes == []


def test_without_a_connection_one_is_asked_for_only_to_write(now: list[float]) -> None:
    process = Process(now)
    process.nodes.is_connected = False
    wanted = []
    for said in ([5], [0], [17], [], []):
        process.after(*said)
        wanted.append(process.held.publish(process.nodes))  # type: ignore[arg-type]
    assert wanted == [False, False, False, True, True]
    process.nodes.is_connected = True
    assert process.after() == [17]


def test_after_a_lost_answer_or_session_it_is_written_again(now: list[float]) -> None:
    process = Process(now)
    process.nodes.lose_answers = True
    process.after(17)
    with pytest.raises(StoreError):
        process.after()
    process.nodes.lose_answers = False
    assert process.after() == [17]
    # A session was lost, and everything that stood in it.
    process.nodes.generation += 1
    process.nodes.standing.clear()
    assert process.after() == [17]
    assert process.after(0) == []
    assert process.nodes.writes == ["create 17", "create 17", "create 17", "delete 17"]


@given(st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=30))
def test_what_is_read_for_two_seconds_stands_and_what_is_not_read_does_not(
    seconds: list[list[int]],
) -> None:
    held = Held(SETTINGS)
    said = wished = 0
    for words in seconds:
        at_last_look = said
        for ts in words:
            held.note(ts)
            said = ts
        wish = held.check()
        if set(words) <= {at_last_look}:
            assert wish == said, "the same at two looks"
        elif wish:
            # It stays for one look: it stood there, and was still read when last looked at. And as
            # long as something older is read: it may be read as well.
            assert said and wish == wished and (wish == at_last_look or wish >= said)
        wished = wish


def quickly(call: Callable[[], object]) -> object:
    began = time.monotonic()
    answer = call()
    assert time.monotonic() - began < 5
    return answer


def test_where_nobody_listens_every_wait_is_bounded_and_the_error_names_the_address() -> None:
    coordination = ZooKeeperCoordination(
        ["127.0.0.1:9", "no.such.host.invalid:2181"],
        "/percola/x",
        request_seconds=0.2,
        timeout_seconds=0.3,
    )
    uses: list[Callable[[], object]] = [
        lambda: coordination.token,
        coordination.processes,
        coordination.oldest_held,
        lambda: coordination.announce_observers({"docs.contents": ["a"]}),
    ]

    def fail() -> None:
        for use in uses:
            with pytest.raises(StoreError) as caught:
                use()
            assert "127.0.0.1:9: connection refused" in str(caught.value)
            assert "no.such.host.invalid:2181: no such host" in str(caught.value)

    quickly(fail)
    assert quickly(lambda: coordination.is_alive("1-a")) is True
    quickly(lambda: coordination.hold_back(17))
    assert coordination.try_lock("t", b"r")
    quickly(coordination.close)
    for use in (*uses, lambda: coordination.try_lock("t", b"r")):
        with pytest.raises(RepositoryClosedError):
            use()
    coordination.hold_back(18)
    coordination.wake()
    coordination.close()


def test_nothing_is_connected_and_no_thread_runs_before_it_is_needed() -> None:
    before = threading.active_count()
    coordination = ZooKeeperCoordination(["127.0.0.1:9"], "/percola/x")
    coordination.wake()
    assert coordination.try_lock("t", b"r")
    stop = coordination.on_wake(lambda _: None)
    assert threading.active_count() == before
    coordination.hold_back(17)
    assert coordination._session._needed_since is None, "a short read needs no session"
    stop()
    coordination.close()


def test_processes_agree_if_they_have_no_column_in_common_or_all_of_its_observers() -> None:
    mine = {"docs.contents": ["a", "b"], "docs.title": ["c"]}
    check_agreement({"pid": 1, "observers": {"docs.contents": ["b", "a"]}}, mine)
    check_agreement({"pid": 1, "observers": {"links.to": ["z"]}}, mine)
    check_agreement({"pid": 1}, mine)
    with pytest.raises(ObserverMismatchError, match=r"process 7 on b observes docs.title with z,"):
        check_agreement({"pid": 7, "host": "b", "observers": {"docs.title": ["z"]}}, mine)
    with pytest.raises(ObserverMismatchError, match=r"process 7 observes docs.contents with a,"):
        check_agreement({"pid": 7, "observers": {"docs.contents": ["a"]}}, mine)


class Overtaken:
    """A session with a token, which others are faster than when it announces its observers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: float) -> None:
        self.tries, self.now = 0, 1000.0
        self.session = Session(SETTINGS, lambda _: False)
        monkeypatch.setattr(sessions, "time", self)
        monkeypatch.setattr(self.session.connection, "make_folders", lambda **_: None)
        monkeypatch.setattr(self.session, "_agree", lambda _: self.tries)
        monkeypatch.setattr(self.session, "_try_write", self._try_write)
        self._times = times
        self.session._token, self.session._until = "1-a", 1e9

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _try_write(self, *_: object, **__: object) -> BadVersionError | None:
        self.tries += 1
        return BadVersionError() if self.tries <= self._times else None


def test_who_announces_beside_hundreds_of_others_gets_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a cluster's workers are started: all announce, and one at a time is not overtaken."""
    one = Overtaken(monkeypatch, 50)
    one.session.announce({"docs.contents": ["a"]})
    assert one.tries == 51 and one.session._written == one.session._described()
    assert one.now > 1010, "it has left the turn to others meanwhile"


def test_who_gets_no_turn_for_a_minute_says_so_and_who_is_closed_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = Overtaken(monkeypatch, float("inf"))
    with pytest.raises(StoreError, match="did not get a turn for 60 s: start fewer at once"):
        never.session.announce({"docs.contents": ["a"]})
    assert 1060 <= never.now < 1062
    never.session.close()
    closed = Overtaken(monkeypatch, float("inf"))
    monkeypatch.setattr(closed, "sleep", lambda _: closed.session.close())
    with pytest.raises(RepositoryClosedError):
        closed.session.announce({"docs.contents": ["a"]})
    assert closed.tries == 1

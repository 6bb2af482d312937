"""§2.2 with a real ZooKeeper: processes that are killed and stopped, and a ZooKeeper that is.

The name puts this file into the test process that starts no Spark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest
from children import Child, ask, hear, say, seconds
from server_process import silent_port
from zookeeper import TICK_SECONDS, ZooKeeper

from percola import ObserverMismatchError, Repository, RepositoryClosedError, Table, Transaction
from percola.cells import Kind
from percola.coordination.zookeeper.coordination import ZooKeeperCoordination
from percola.errors import PercolaError, StoreError
from percola.oracle.embedded import EmbeddedOracle
from percola.store.memory import MemoryStore

Wait = Callable[..., Any]

SESSION: Final = 3.0
REQUEST: Final = 3.0
TIMEOUT: Final = 5.0
GONE: Final = SESSION + 2 * TICK_SECONDS + 1.0
"""Seconds after which a dead process's token has to be seen to be gone: sessions end at ticks, and
answers are remembered for a second."""
BOUND: Final = SESSION + TIMEOUT + REQUEST + 2.0
"""Seconds after which every call has to have an answer, whatever has become of ZooKeeper."""

ROOT: Final = "/percola/test"

accounts = Table("accounts")
balance = accounts.column("balance", int)


def coordination_at(address: str, **options: Any) -> ZooKeeperCoordination:
    return ZooKeeperCoordination(
        [address],
        options.pop("root", ROOT),
        session_seconds=options.pop("session_seconds", SESSION),
        request_seconds=REQUEST,
        timeout_seconds=TIMEOUT,
        **options,
    )


@pytest.fixture
def server(tmp_path: Path, java_home: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path / "zookeeper", java_home) as running:
        yield running


@pytest.fixture
def mine(server: ZooKeeper) -> Iterator[ZooKeeperCoordination]:
    coordination = coordination_at(server.address)
    yield coordination
    coordination.close()


def live(pipe: Connection, address: str, session: float = SESSION) -> None:
    """A process that does what it is told, and answers."""
    coordination = coordination_at(address, session_seconds=session)
    while True:
        word, *arguments = hear(pipe)
        try:
            if word == "token":
                say(pipe, coordination.token)
            else:
                say(pipe, getattr(coordination, word)(*arguments))
        except PercolaError as error:
            say(pipe, error)


def refused(use: Callable[[], object]) -> str:
    """The words of the error that a use ends in, which it does in bounded time."""
    began = time.monotonic()
    with pytest.raises(StoreError) as caught:
        use()
    assert time.monotonic() - began < BOUND
    return str(caught.value)


# --- Tokens -------------------------------------------------------------------------------


def test_a_token_is_alive_as_long_as_its_process_and_gone_within_its_session(
    server: ZooKeeper, mine: ZooKeeperCoordination, wait_until: Wait
) -> None:
    began_ms = int(time.time() * 1000)
    with Child(live, server.address) as child:
        token = ask(child, "token")
        assert ask(child, "token") == token != mine.token
        assert mine.is_alive(token) and ask(child, "is_alive", mine.token)
        assert not mine.is_alive("1-nobody")
        [theirs] = [one for one in mine.processes() if one["token"] == token]
        assert began_ms <= theirs.pop("since_ms") <= time.time() * 1000
        assert theirs == {
            "token": token,
            "pid": child.pid,
            "host": os.uname().nodename,
            "observers": {},
        }
        child.kill()
        killed = time.monotonic()
        wait_until(lambda: not mine.is_alive(token))
        assert time.monotonic() - killed < GONE
        assert [one["pid"] for one in mine.processes()] == [os.getpid()]


@pytest.mark.long
def test_a_token_lives_for_many_session_time_outs(
    mine: ZooKeeperCoordination, server: ZooKeeper
) -> None:
    other = coordination_at(server.address)
    token, deaths = mine.token, 0
    end = time.monotonic() + 3 * SESSION
    pause = threading.Event()
    while time.monotonic() < end:
        assert mine.token == token
        deaths += not other.is_alive(token)
        pause.wait(0.01)
    assert not deaths
    other.close()


def test_a_token_is_given_back_on_closing_and_not_taken_again(
    server: ZooKeeper, mine: ZooKeeperCoordination
) -> None:
    other = coordination_at(server.address)
    token = other.token
    other.close()
    other.close()
    assert not mine.is_alive(token), "at once, not when the session would have ended"
    with pytest.raises(RepositoryClosedError):
        _ = other.token


def test_a_process_that_stood_still_for_too_long_never_shows_its_dead_token(
    server: ZooKeeper, mine: ZooKeeperCoordination, wait_until: Wait
) -> None:
    with Child(live, server.address) as child:
        token = ask(child, "token")
        assert ask(child, "announce_observers", {"accounts.balance": ["audit"]}) is None
        child.signal(signal.SIGSTOP)
        wait_until(lambda: not mine.is_alive(token))
        # It is the first thing that it does when it goes on.
        child.tell(("token",))
        child.signal(signal.SIGCONT)
        fresh = child.hear()
        assert isinstance(fresh, str) and fresh != token
        assert mine.is_alive(fresh)
        [theirs] = [one for one in mine.processes() if one["pid"] == child.pid]
        assert theirs["observers"] == {"accounts.balance": ["audit"]}, "announced anew"


def test_a_process_that_comes_back_when_others_disagree_with_it_gets_no_token(
    server: ZooKeeper, mine: ZooKeeperCoordination, wait_until: Wait
) -> None:
    with Child(live, server.address) as child:
        token = ask(child, "token")
        assert ask(child, "announce_observers", {"accounts.balance": ["audit"]}) is None
        child.signal(signal.SIGSTOP)
        wait_until(lambda: not mine.is_alive(token))
        mine.announce_observers({"accounts.balance": ["other"]})
        child.tell(("token",))
        child.signal(signal.SIGCONT)
        answer = child.hear()
        assert isinstance(answer, StoreError)
        assert f"process {os.getpid()}" in str(answer) and "stop the others" in str(answer)
        mine.announce_observers({})
        wait_until(lambda: isinstance(ask(child, "token"), str))


def test_a_child_after_a_fork_has_a_session_of_its_own(
    server: ZooKeeper, mine: ZooKeeperCoordination
) -> None:
    token = mine.token
    mine.announce_observers({"accounts.balance": ["audit"]})
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            own = mine.token
            said = f"{own} {mine.is_alive(token)} {mine.is_alive(own)} {len(mine.processes())}"
            os.write(writing, said.encode())
            mine.close()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        own, *rest = pipe.read().split()
    assert os.waitpid(child, 0)[1] == 0
    assert own != token and rest == ["True", "True", "2"]
    assert mine.token == token
    other = coordination_at(server.address)
    assert other.is_alive(token), "the child took nothing of its parent's with it"
    assert not other.is_alive(own)
    other.close()


# --- Observers ----------------------------------------------------------------------------


def test_a_live_process_with_other_observers_on_a_column_is_a_mismatch(
    server: ZooKeeper, mine: ZooKeeperCoordination, wait_until: Wait
) -> None:
    with Child(live, server.address) as child:
        assert ask(child, "announce_observers", {"accounts.balance": ["audit"]}) is None
        mine.announce_observers({"other.column": ["z"]})
        with pytest.raises(ObserverMismatchError, match=f"process {child.pid} on "):
            mine.announce_observers({"accounts.balance": ["other"]})
        [own] = [one for one in mine.processes() if one["pid"] == os.getpid()]
        assert own["observers"] == {"other.column": ["z"]}, "as before"
        mine.announce_observers({"accounts.balance": ["audit"]})
        mine.announce_observers({})
        token = ask(child, "token")
        child.kill()
        wait_until(lambda: not mine.is_alive(token))
        mine.announce_observers({"accounts.balance": ["other"]})


def test_a_process_whose_token_has_just_been_lost_announces_its_observers_by_another(
    mine: ZooKeeperCoordination,
) -> None:
    lost = mine.token
    mine._session.connection.delete(f"{ROOT}/live/{lost}")
    mine.announce_observers({"docs.contents": ["cluster"]})
    [process] = mine.processes()
    assert process["observers"] == {"docs.contents": ["cluster"]}
    assert process["token"] == mine.token != lost


def test_of_two_that_announce_at_once_one_sees_the_other(server: ZooKeeper) -> None:
    with Child(live, server.address) as one, Child(live, server.address) as two:
        for child in (one, two):
            ask(child, "token")
        both = 0
        for _ in range(40):
            one.tell(("announce_observers", {"accounts.balance": ["a"]}))
            two.tell(("announce_observers", {"accounts.balance": ["b"]}))
            answers = [one.hear(), two.hear()]
            assert answers.count(None) == 1, answers
            both += isinstance(next(one for one in answers if one), ObserverMismatchError)
            for child in (one, two):
                assert ask(child, "announce_observers", {}) is None
        assert both == 40


# --- What is read -------------------------------------------------------------------------


@pytest.mark.long
def test_what_a_process_reads_for_a_while_is_known_to_others_until_it_ends(
    server: ZooKeeper, mine: ZooKeeperCoordination, wait_until: Wait
) -> None:
    assert mine.oldest_held() is None
    mine.hold_back(40)
    assert mine.oldest_held() == 40, "its own counts at once"
    with Child(live, server.address) as child:
        ask(child, "hold_back", 17)
        wait_until(lambda: mine.oldest_held() == 17)
        wait_until(lambda: ask(child, "oldest_held") == 17)
        assert mine.readers(17) == [f"process {child.pid} on {socket.gethostname()}"]
        ask(child, "hold_back", 30)
        wait_until(lambda: mine.oldest_held() == 30)
        ask(child, "hold_back", 0)
        wait_until(lambda: mine.oldest_held() == 40)
        assert ask(child, "oldest_held") == 40
        ask(child, "hold_back", 5)
        wait_until(lambda: mine.oldest_held() == 5)
        child.kill()
        wait_until(lambda: mine.oldest_held() == 40)


# --- ZooKeeper goes away ------------------------------------------------------------------


def test_a_zookeeper_that_is_restarted_keeps_the_tokens(
    server: ZooKeeper, wait_until: Wait
) -> None:
    # A session that outlives the start of a server on a busy machine.
    mine = coordination_at(server.address, session_seconds=20)
    with contextlib.closing(mine), Child(live, server.address, 20.0) as child:
        theirs, ours = ask(child, "token"), mine.token
        server.kill()
        assert mine.is_alive(theirs) and mine.is_alive("1-nobody"), "P8: unknown counts as alive"
        assert seconds(lambda: mine.is_alive("1-somebody")) < REQUEST
        server.start()

        def unless_out_of_touch(token: Callable[[], object]) -> object:
            with contextlib.suppress(StoreError):
                return token()
            return None

        wait_until(lambda: unless_out_of_touch(lambda: mine.token) == ours)
        wait_until(lambda: not mine.is_alive("1-nobody"), what="an answer of the new server")
        assert mine.is_alive(theirs)
        # An error is its answer until it has found the new server too.
        wait_until(lambda: not isinstance(told := ask(child, "token"), StoreError) and told)
        assert ask(child, "token") == theirs


def test_without_zookeeper_no_commit_begins_once_the_token_may_be_dead(
    server: ZooKeeper, mine: ZooKeeperCoordination, wait_until: Wait
) -> None:
    store = MemoryStore()
    repo = Repository("memory", store, EmbeddedOracle(store), mine, [accounts], one_step=False)

    def pay(t: Transaction) -> None:
        t.set(balance, "a", (t.get(balance, "a") or 0) + 1)

    repo.run(pay)
    token = mine.token
    server.kill()
    repo.run(pay)  # The connection is lost, which is not yet a loss of the token.
    wait_until(lambda: mine._session.good_token is None)
    says = refused(lambda: repo.run(pay))
    assert "liveness token" in says and "connection refused" in says
    assert refused(lambda: mine.token) == says
    entries, _ = store.scan_kind(Kind.LOCK, "accounts", b"")
    assert entries == [], "nothing was begun"
    for use in (mine.processes, mine.oldest_held):
        assert "does not answer" in refused(use)
    # It has lost its data: it knows no sessions, and lets nobody in who has seen what it has not.
    server.forget()
    server.start()
    wait_until(lambda: mine._session.good_token is not None)
    assert mine.token != token
    assert not mine.is_alive(token)
    repo.run(pay)
    with repo.transaction() as t:
        assert t.get(balance, "a") == 3


@pytest.mark.long
def test_a_zookeeper_that_hangs_is_waited_for_in_bounds(
    server: ZooKeeper, mine: ZooKeeperCoordination, wait_until: Wait
) -> None:
    token = mine.token
    # It takes its connection for a good one for longer than this test lasts.
    trusting = coordination_at(server.address, session_seconds=20)
    assert not trusting.is_alive("1-nobody")
    server.pause()
    try:
        assert seconds(lambda: [trusting.is_alive(f"1-{n}") for n in range(50)]) < 3 * REQUEST
        assert trusting._session.connection.is_connected
        assert seconds(lambda: mine.is_alive("1-nobody")) < 2 * REQUEST
        assert mine.is_alive("1-nobody")
        # Others are not asked about one after the other, each for so long.
        assert seconds(lambda: [mine.is_alive(f"1-{n}") for n in range(50)]) < 2 * REQUEST
        assert seconds(lambda: [mine.hold_back(n) for n in range(1000)]) < REQUEST
        for use in (mine.processes, mine.oldest_held):
            refused(use)
        refused(lambda: mine.announce_observers({"accounts.balance": ["a"]}))
        wait_until(lambda: mine._session.good_token is None)
        assert "liveness token" in refused(lambda: mine.token)
        closing = coordination_at(server.address)
        assert "does not answer" in refused(lambda: closing.token)
        assert seconds(closing.close) < BOUND
    finally:
        server.resume()
    wait_until(lambda: mine._session.good_token is not None)
    assert mine.is_alive(mine.token)
    if mine.token != token:
        wait_until(lambda: not mine.is_alive(token))
    trusting.close()
    [own] = [one for one in mine.processes() if one["token"] == mine.token]
    assert own["observers"] == {}, "what was refused does not stand there"


# --- Access, and wrong addresses ----------------------------------------------------------


def test_a_root_that_belongs_to_others_is_refused_in_words(server: ZooKeeper) -> None:
    auth = ("digest", "percola:secret")
    owner = coordination_at(server.address, auth=auth)
    token = owner.token
    owner.hold_back(17)
    friend = coordination_at(server.address, auth=auth)
    assert friend.token != token and len(friend.processes()) == 2
    for wrong in (None, ("digest", "percola:guess")):
        stranger = coordination_at(server.address, auth=wrong)
        for use in (lambda: stranger.token, stranger.processes):  # noqa: B023
            says = refused(use)
            assert f"does not let this process use {ROOT}" in says and "credential" in says
        stranger.hold_back(5)
        assert stranger.is_alive(token)
        stranger.close()
    neighbour = coordination_at(
        server.address, root="/percola/other", auth=("digest", "other:word")
    )
    assert neighbour.token
    neighbour.close()
    nonsense = coordination_at(server.address, auth=("no-such-scheme", "x"))
    assert "scheme" in refused(lambda: nonsense.token)
    nonsense.close()
    friend.close()
    owner.close()


def test_servers_without_a_majority_are_an_error_in_words(tmp_path: Path, java_home: Path) -> None:
    with ZooKeeper(tmp_path / "alone", java_home, absent=2) as alone:
        lonely = coordination_at(alone.address)
        says = refused(lambda: lonely.token)
        assert f"{alone.address}: something listens there, but serves no client" in says
        assert "most of its servers" in says
        lonely.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port where packets are dropped; the driver asks servers in the order of their names."""

    def in_order(hosts: list[object]) -> None:
        pass

    monkeypatch.setattr("kazoo.protocol.connection.random.shuffle", in_order)
    with silent_port() as port:
        yield port


def test_a_server_that_drops_packets_does_not_use_up_the_wait_for_the_others(
    server: ZooKeeper, silent: int
) -> None:
    both = ZooKeeperCoordination([f"127.0.0.1:{silent}", server.address], ROOT, session_seconds=6.0)
    with contextlib.closing(both):
        assert seconds(lambda: both.token) < 5.0


def test_nor_does_one_of_several_addresses_of_a_name(
    server: ZooKeeper, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = (silent, int(server.address.rpartition(":")[2]))
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one)) for one in ports]
    look_up = socket.getaddrinfo

    def looked_up(host: str, *which: Any, **more: Any) -> Any:
        # Threads of other clients look up their own names.
        return found if host == "zookeeper" else look_up(host, *which, **more)

    monkeypatch.setattr("kazoo.protocol.connection.socket.getaddrinfo", looked_up)
    ensemble = ZooKeeperCoordination(["zookeeper:2181"], ROOT, session_seconds=9.0)
    with contextlib.closing(ensemble):
        assert seconds(lambda: ensemble.token) < 8.0

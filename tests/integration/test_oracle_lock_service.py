"""§2.4 the lock service and wake-ups with real processes, which are killed, stopped and many.

The service stands on a small gRPC server here; `percola oracle` serves it beside the timestamps.
The name puts this file into the test process that starts no Spark.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import pytest
from children import Child, ask, hear, say, seconds
from lock_service import LOCK_SECONDS, Networked, Server, live, serve
from oracle_in_process import leading
from stores import DEADLINE, in_thread

from percola import Repository, Table, Transaction, Worker, observer
from percola.coordination.lock_service import link as links
from percola.coordination.lock_service.client import LockServiceClient
from percola.coordination.lock_service.link import Answers, Session
from percola.coordination.lock_service.server import LockServiceServer
from percola.coordination.wake_ups import mark_of, rows_of
from percola.oracle.client import NetworkOracle
from percola.oracle.embedded import EmbeddedOracle
from percola.rpc import frames
from percola.rpc.client import Access, Connection
from percola.store.memory import MemoryStore

Wait = Callable[..., Any]

HASTY: Final = 0.3
"""Seconds that `try_lock` waits for a process that hangs, as by default."""
AN_HOUR: Final = 3600.0
"""Who waits for so long is seen to: no test lasts as long."""
NOTICED: Final = 10.0
"""Seconds after which a client that answers nothing has lost its locks."""


@pytest.fixture(autouse=True)
def unhurried_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up is not given up because the machine is busy."""
    monkeypatch.setattr(links, "_WAKE_SECONDS", LOCK_SECONDS)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def mine(server: Server, wait_until: Wait) -> Iterator[LockServiceClient]:
    lock_service = LockServiceClient([server.address], lock_seconds=LOCK_SECONDS)
    lock_service.on_wake(lambda _: None)
    wait_until(lambda: lock_service.sessions)
    yield lock_service
    lock_service.close()


# --- Locks --------------------------------------------------------------------------------


def test_a_row_is_locked_against_other_processes_and_threads_until_it_is_given_back(
    server: Server, mine: LockServiceClient, wait_until: Wait
) -> None:
    with Child(live, server.address) as child:
        assert mine.try_lock("t", b"r") and not mine.try_lock("t", b"r")
        assert ask(child, "try_lock", "t", b"r") is False
        assert ask(child, "try_lock", "t", b"other") is True
        assert ask(child, "try_lock", "u", b"r") is True
        assert not mine.try_lock("t", b"other")
        mine.unlock("t", b"r")
        mine.unlock("t", b"r")
        wait_until(lambda: ask(child, "try_lock", "t", b"r"))
        assert not mine.try_lock("t", b"r")
        ask(child, "unlock", "t", b"r")
        wait_until(lambda: mine.try_lock("t", b"r"))


def test_rows_that_are_locked_together_take_one_message_and_so_does_giving_them_back(
    server: Server, mine: LockServiceClient, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than the service reads at once.
    rows = [("t", b"%d" % number) for number in range(400)]
    sent: list[bytes] = []
    send = Connection.send
    monkeypatch.setattr(
        Connection, "send", lambda self, message: (sent.append(message), send(self, message))
    )
    with Child(live, server.address) as child:
        assert ask(child, "try_lock", *rows[7]) is True
        assert mine.try_lock(*rows[8])
        sent.clear()
        taken = mine.try_lock_many(rows)
        assert [row for row, was in zip(rows, taken, strict=True) if not was] == rows[7:9]
        locking = [one for one in sent if one[4] == frames.LOCK]
        assert len(locking) == 1 and len(frames.split(locking[0])[0]) == 399
        assert server.service.locks == 400
        assert not any(ask(child, "try_lock_many", rows[:7]))
        sent.clear()
        mine.unlock_many(rows)
        mine.unlock_many(rows)
        assert [one[4] for one in sent].count(frames.UNLOCK) == 1
        wait_until(lambda: server.service.locks == 1)
        assert all(ask(child, "try_lock_many", [row for row in rows if row != rows[7]]))


def test_rows_that_the_service_refuses_to_lock_are_locked_in_this_process_alone(
    server: Server, mine: LockServiceClient
) -> None:
    rows = [("t", b"a"), ("t", b"b"), ("t", b"c")]
    answer = server.service._lock
    answered: list[bytes] = []

    def once(session: Any, turn: int, key: bytes) -> bytes:
        if answered:
            return frames.refused(frames.Code.STANDBY, "This process serves no locks.", turn)
        answered.append(answer(session, turn, key))
        return answered[-1]

    server.service._lock = once  # type: ignore[method-assign]
    assert mine.try_lock_many(rows) == [True, True, True]
    assert len(answered) == 1, "the service has refused the others"
    assert mine.try_lock_many([*rows, ("t", b"d")]) == [False, False, False, True]
    mine.unlock_many(rows)
    assert mine.try_lock_many(rows) == [True, True, True]


def test_taking_and_giving_back_at_once_by_two_processes_never_gives_a_row_to_both(
    server: Server, mine: LockServiceClient, tmp_path: Path
) -> None:
    """Each writes its name while it has the row, and finds it unchanged."""
    names = tmp_path / "names"
    with Child(take_turns, server.address, names) as child:
        child.hear()
        found: list[bool] = []
        while len(found) < 30 or ask(child, "how many") < 30:
            found += turn(mine, names, "test")
        child.tell("stop")
        assert all(found) and all(child.hear())


def turn(lock_service: LockServiceClient, names: Path, name: str) -> list[bool]:
    """Whether nobody else wrote while the row was held; nothing if it was not to be had."""
    if not lock_service.try_lock("t", b"turns"):
        return []
    try:
        names.write_text(name)
        return [all(names.read_text() == name for _ in range(5))]
    finally:
        lock_service.unlock("t", b"turns")


def take_turns(pipe: Pipe, address: str, names: Path) -> list[bool]:
    lock_service = LockServiceClient([address], lock_seconds=LOCK_SECONDS)
    woken = threading.Event()
    lock_service.on_wake(lambda _: woken.set())
    assert woken.wait(30)
    say(pipe)
    found: list[bool] = []
    while True:
        if pipe.poll(0):
            if hear(pipe) == "stop":
                break
            say(pipe, len(found))
        found += turn(lock_service, names, "child")
    lock_service.close()
    return found


def test_the_locks_of_a_process_that_is_killed_are_dropped(
    server: Server, mine: LockServiceClient, wait_until: Wait
) -> None:
    with Child(live, server.address) as child:
        assert ask(child, "try_lock", "t", b"r") is True
        assert server.service.locks == 1
        assert not mine.try_lock("t", b"r")
        child.kill()
        wait_until(lambda: mine.try_lock("t", b"r"), seconds=NOTICED)


def test_the_locks_of_a_process_that_answers_nothing_are_dropped_within_seconds(
    server: Server, mine: LockServiceClient, wait_until: Wait
) -> None:
    with Child(live, server.address) as child:
        ask(child, "listen")
        assert ask(child, "try_lock", "t", b"r") is True
        child.signal(signal.SIGSTOP)
        # It closes nothing, as a machine that is gone.
        wait_until(lambda: mine.try_lock("t", b"r"), seconds=NOTICED)
        child.signal(signal.SIGCONT)
        wait_until(lambda: ask(child, "attended"), what="it to attend anew")
        assert ask(child, "try_lock", "t", b"s") is True


@pytest.mark.long
def test_an_idle_session_outlives_the_pings() -> None:
    with leading() as server:
        idle = LockServiceClient([server.address], lock_seconds=LOCK_SECONDS)
        assert idle.try_lock("t", b"r")
        broken = 0
        end = time.monotonic() + 9
        pause = threading.Event()
        while time.monotonic() < end:
            broken += server.lock_service.locks != 1
            pause.wait(0.02)
        assert not broken
        idle.close()


# --- Without the service ------------------------------------------------------------------


def hasty_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each wait for locks of a process that hangs begins, from now on."""
    begun: list[float] = []
    wait = Session.wait

    def noted(self: Session, answers: Answers, seconds: float) -> dict[int, frames.Frame]:
        if seconds == HASTY:
            begun.append(time.monotonic())
        return wait(self, answers, seconds)

    monkeypatch.setattr(Session, "wait", noted)
    return begun


def test_without_a_service_every_row_is_to_be_had_and_nobody_waits_for_it() -> None:
    alone = LockServiceClient(["127.0.0.1:9", "127.0.0.1:10"], lock_seconds=AN_HOUR)
    assert alone.try_lock("t", b"first")
    assert all(alone.try_lock("t", b"%d" % n) for n in range(200))
    assert not alone.try_lock("t", b"first"), "the threads of a process keep apart all the same"
    alone.unlock("t", b"first")
    assert alone.try_lock("t", b"first")
    woken = threading.Event()
    alone.on_wake(lambda _: woken.set())
    alone.wake()
    assert woken.is_set()
    in_thread(alone.close).result(DEADLINE)


def test_a_service_that_hangs_costs_one_time_out_a_second_and_is_found_again(
    wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Child(serve) as service:
        address = service.hear()
        mine = LockServiceClient([address], lock_seconds=HASTY)
        other = LockServiceClient([address], lock_seconds=LOCK_SECONDS)
        mine.on_wake(lambda _: None)
        wait_until(lambda: mine.sessions)
        assert other.try_lock("t", b"r")
        wait_until(lambda: not mine.try_lock("t", b"r") or mine.unlock("t", b"r"))
        service.signal(signal.SIGSTOP)
        waits, began = hasty_waits(monkeypatch), time.monotonic()
        assert mine.try_lock("t", b"s")
        assert all(mine.try_lock("t", b"%d" % n) for n in range(200))
        assert waits and len(waits) <= 2 + time.monotonic() - began
        # Nobody waits for an answer to these.
        monkeypatch.setattr(links, "_WAKE_SECONDS", AN_HOUR)
        for n in range(200):
            mine.unlock("t", b"%d" % n)
        for _ in range(10_000):
            mine.wake()
        service.signal(signal.SIGCONT)
        wait_until(lambda: mine.sessions)
        wait_until(lambda: other.sessions)
        # Whatever was asked while it hung, no row stays locked for good.
        wait_until(lambda: other.try_lock("t", b"s"))
        for lock_service in (mine, other):
            in_thread(lock_service.close).result(DEADLINE)


def test_a_service_that_hangs_only_in_locking_costs_one_time_out_a_second(
    monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    hung: list[object] = []

    def hang(*_: object) -> bytes:
        hung.append(None)
        return b""  # It never answers.

    monkeypatch.setattr(LockServiceServer, "_lock", hang)
    with Server() as server:
        hasty = LockServiceClient([server.address])
        hasty.on_wake(lambda _: None)
        wait_until(lambda: hasty.sessions)
        began = time.monotonic()
        pause = threading.Event()
        for number in range(300):
            assert hasty.try_lock("t", b"%d" % number)
            pause.wait(0.005)
        took = time.monotonic() - began
        assert hung and len(hung) <= 2 + took
        hasty.close()


def test_a_service_that_is_killed_and_started_again_is_attended_to_again(wait_until: Wait) -> None:
    with Child(serve) as first:
        address = first.hear()
        mine = LockServiceClient([address], lock_seconds=LOCK_SECONDS)
        other = LockServiceClient([address], lock_seconds=LOCK_SECONDS)
        assert mine.try_lock("t", b"r") and not other.try_lock("t", b"r")
        first.kill()
        wait_until(lambda: not (mine.sessions or other.sessions))
        assert other.try_lock("t", b"r"), "its loss forgets the locks"
        other.unlock("t", b"r")
        with Child(serve, address) as second:
            assert second.hear() == address
            wait_until(lambda: mine.sessions and other.sessions)
            assert other.try_lock("t", b"s")
            wait_until(lambda: not mine.try_lock("t", b"s") or mine.unlock("t", b"s"))
        mine.close()
        other.close()


# --- Several processes of the service ------------------------------------------------------


ROWS: Final = [("t", b"%d" % number) for number in range(120)]


def locks_of(servers: Sequence[Server]) -> list[int]:
    return [server.service.locks for server in servers]


def test_each_process_of_the_service_serves_a_share_of_the_rows_the_same_one_to_all(
    wait_until: Wait,
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(3)]
        addresses = [server.address for server in servers]
        other = stack.enter_context(Child(live, *reversed(addresses)))
        mine = LockServiceClient(addresses, lock_seconds=LOCK_SECONDS)
        stack.callback(mine.close)
        assert all(mine.try_lock_many(ROWS))
        shares = locks_of(servers)
        assert sum(shares) == len(ROWS) and min(shares) > len(ROWS) / 8
        assert not any(ask(other, "try_lock_many", ROWS))
        mine.unlock_many(ROWS[::2])
        wait_until(lambda: sum(locks_of(servers)) == len(ROWS) / 2)
        taken = ask(other, "try_lock_many", ROWS)
        assert taken == [number % 2 == 0 for number in range(len(ROWS))]


def test_the_rows_of_a_process_that_is_killed_go_to_the_others_until_it_is_back(
    wait_until: Wait,
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(2)]
        with Child(serve) as killed:
            addresses = [*(server.address for server in servers), killed.hear()]
            clients = [LockServiceClient(addresses, lock_seconds=LOCK_SECONDS) for _ in range(2)]
            for client in clients:
                stack.callback(client.close)
                client.on_wake(lambda _: None)
            wait_until(lambda: [len(client.sessions) for client in clients] == [3, 3])
            assert all(clients[0].try_lock_many(ROWS))
            before = locks_of(servers)
            clients[0].unlock_many(ROWS)
            wait_until(lambda: sum(locks_of(servers)) == 0)
            killed.kill()
            wait_until(lambda: [len(client.sessions) for client in clients] == [2, 2])
            assert all(clients[0].try_lock_many(ROWS))
            assert not any(clients[1].try_lock_many(ROWS)), "they agree on who has them now"
            lost = len(ROWS) - sum(before)
            gained = [now - was for now, was in zip(locks_of(servers), before, strict=True)]
            assert lost and min(gained) > lost / 8, "both of the others have some of them"
            clients[0].unlock_many(ROWS)
        with Child(serve, addresses[2]) as back:
            assert back.hear() == addresses[2]
            wait_until(lambda: [len(client.sessions) for client in clients] == [3, 3])
            wait_until(lambda: sum(locks_of(servers)) == 0)
            assert all(clients[1].try_lock_many(ROWS))
            assert not any(clients[0].try_lock_many(ROWS))
            assert sum(locks_of(servers)) < len(ROWS), "it has its share again"


def test_a_process_that_hangs_costs_one_time_out_and_its_rows_stay_locked_elsewhere(
    wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server() as server, Child(serve) as hangs, ExitStack() as stack:
        addresses = [server.address, hangs.hear()]
        clients = [LockServiceClient(addresses, lock_seconds=LOCK_SECONDS) for _ in range(2)]
        for client in clients:
            stack.callback(client.close)
            client.on_wake(lambda _: None)
            wait_until(lambda client=client: len(client.sessions) == 2)
            # The other one answers, however busy the machine is.
            [link] = [one for one in client._links if one.address == addresses[1]]
            link.lock_seconds = HASTY
        hangs.signal(signal.SIGSTOP)
        wait_until(lambda: " T " in Path(f"/proc/{hangs.pid}/stat").read_text(), what="it to stop")
        waits = hasty_waits(monkeypatch)
        for client in clients:
            # The first request of each finds out.
            client.try_lock_many(ROWS)
            client.unlock_many(ROWS)
        assert len(waits) == 2
        wait_until(lambda: server.service.locks == 0)
        assert all(clients[0].try_lock_many(ROWS))
        assert server.service.locks == len(ROWS)
        assert not any(clients[1].try_lock_many(ROWS))
        assert len(waits) == 2
        hangs.signal(signal.SIGCONT)


def test_a_wake_up_reaches_every_listener_whichever_process_is_told_of_it(
    wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(3)]
        addresses = [server.address for server in servers]
        listener = stack.enter_context(Child(live, *addresses))
        ask(listener, "listen")
        wait_until(lambda: ask(listener, "attended") == 3)
        for at in range(len(servers)):
            loader = LockServiceClient(addresses)
            stack.callback(loader.close)
            loader._waker._at = at
            ask(listener, "forget")
            listener.tell(["await wake-up"])
            assert listener.hear() == "waiting"
            loader.wake()
            assert listener.hear() is not None
        # With two of them gone the third is told.
        loader = LockServiceClient(addresses)
        loader._waker._at = 0
        stack.callback(loader.close)
        servers[0].stop()
        servers[1].stop()
        wait_until(lambda: ask(listener, "attended") == 1)
        ask(listener, "forget")
        listener.tell(["await wake-up"])
        assert listener.hear() == "waiting"
        loader.wake()
        assert listener.hear() is not None


def test_processes_begin_with_different_ones_when_they_tell_of_wake_ups() -> None:
    addresses = ["a:1", "b:1", "c:1"]
    clients = [LockServiceClient(addresses) for _ in range(60)]
    assert {client._waker._at for client in clients} == {0, 1, 2}


# --- Wake-ups -----------------------------------------------------------------------------


def test_a_wake_up_arrives_here_without_a_round_trip_and_elsewhere_at_once(
    server: Server, mine: LockServiceClient
) -> None:
    here: list[float] = []
    mine.on_wake(lambda _: here.append(time.monotonic()))
    with Child(live, server.address) as child:
        assert ask(child, "listen") is True
        waits = []
        for _ in range(20):
            assert ask(child, "await wake-up") == "waiting"
            del here[:]
            sent = time.monotonic()
            mine.wake()
            assert len(here) == 1, "before wake() has returned"
            waits.append(child.hear() - sent)
        # Both clocks are the machine's. Usually it is a few milliseconds.
        assert max(waits) < 20
        assert sorted(waits)[len(waits) // 2] < 0.3
        del here[:]
        child.tell(("wake",))
        assert child.hear() is None
        wait_for = threading.Event()
        for _ in range(1000):
            if here:
                break
            wait_for.wait(0.01)
        assert len(here) == 1


def test_many_wake_ups_are_a_few_calls_and_never_more_than_one_at_a_time(
    server: Server, mine: LockServiceClient, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []
    ended: list[float] = []
    at_once: list[int] = []
    under_way = 0
    go_on = threading.Event()
    waker = mine._waker
    real = waker._send

    def counted(*arguments: Any) -> int:
        nonlocal under_way
        under_way += 1
        at_once.append(under_way)
        begun.append(time.monotonic())
        try:
            assert go_on.wait(DEADLINE)
            return real(*arguments)
        finally:
            under_way -= 1
            ended.append(time.monotonic())

    monkeypatch.setattr(waker, "_send", counted)
    mine.wake()
    wait_until(lambda: begun)
    for _ in range(1000):
        mine.wake()
    go_on.set()
    wait_until(lambda: len(ended) > 1 and not waker._wake_ups)
    mine.wake()
    wait_until(lambda: len(ended) > 2 and not waker._wake_ups)
    assert len(begun) == 3, "what comes during a call is told by the next one"
    pauses = [begun[at + 1] - ended[at] for at in range(2)]
    assert min(pauses) > 0.009, "ten milliseconds lie between two"
    assert set(at_once) == {1}


def test_a_process_that_commits_and_ends_at_once_wakes_the_others(
    server: Server, mine: LockServiceClient, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It does not wait for a service that is slow; this one may be.
    monkeypatch.setattr(links, "_FINISH_SECONDS", LOCK_SECONDS)
    told: set[int] = set()
    mine.on_wake(lambda wake_up: told.update(rows_of(wake_up)))
    for tables in (["a"], ["b", "c"], ["d", "e", "f"]):
        program = LockServiceClient([server.address])
        for table in tables:
            # Later ones are due while the first is told, or in the pause after it.
            program.wake([table])
        program.close()
        wait_until(lambda tables=tables: {mark_of(one) for one in tables} <= told)


def test_the_end_does_not_wait_long_for_a_service_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "_ATTEND_SECONDS", AN_HOUR)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        program = LockServiceClient([f"127.0.0.1:{hangs.getsockname()[1]}"])
        program.wake()
        in_thread(program.close).result(DEADLINE)


def test_a_process_that_only_sends_wake_ups_opens_no_session(
    server: Server, mine: LockServiceClient
) -> None:
    woken = threading.Event()
    mine.on_wake(lambda _: woken.set())
    woken.clear()
    loader = LockServiceClient([server.address])
    loader.wake()
    assert woken.wait(30)
    assert server.service.sessions == 1
    loader.close()


# --- Idle workers -------------------------------------------------------------------------

docs = Table("docs")
text = docs.column("text", str, observed=True)
size = docs.column("size", int)


def test_one_idle_worker_is_told_of_a_changed_row_and_none_waits_for_a_scan(
    server: Server, wait_until: Wait
) -> None:
    store = MemoryStore()
    oracle = EmbeddedOracle(store)

    @observer(text)
    def measure(t: Transaction, row: str) -> None:
        t.set(size, row, len(t.get(text, row) or ""))

    def process(stack: ExitStack) -> tuple[Repository, Networked]:
        coordination = Networked(server.address)
        stack.callback(coordination.close)
        repo = Repository("memory", store, oracle, coordination, [docs], one_step=False)
        return repo, coordination

    def idle() -> int:
        return sum(len(pool.idle) for pool in server.service._pools.values())

    with ExitStack() as stack:
        loader, _ = process(stack)
        processes = [process(stack) for _ in range(3)]
        # Nothing but wake-ups tells a worker of a change.
        workers = [
            Worker(repo, [measure], threads=2, rescan=3600, sweep=3600) for repo, _ in processes
        ]
        for worker in workers:
            worker.start()
            stack.callback(worker.stop)
        wait_until(lambda: idle() == 3)
        for _, coordination in processes:
            del coordination.told[:]

        def told() -> list[int]:
            about = [[rows_of(one).values() for one in process.told] for _, process in processes]
            assert not any(None in of for one in about for of in one), "a whole table"
            return [sum(len(rows or ()) for of in one for rows in of) for one in about]

        def change(rows: list[str]) -> None:
            for row in rows:
                with loader.transaction() as t:
                    t.set(text, row, row)
            cells = [(size, row) for row in rows]
            wait_until(lambda: None not in loader.snapshot().get_many(cells))

        for n in range(60):
            change([f"a{n}"])
        assert sum(told()) == 60 and min(told()) > 0, "each row to one of them, in turn"
        # Nor are they all told of the table where many rows change at once.
        change([f"many {n:20}" for n in range(300)])
        # Who scans from one row to another may handle a row between them before anybody is told.
        wait_until(lambda: sum(told()) >= 360 and idle() == 3)
        assert sum(told()) == 360
        # Of a worker that has stopped nobody waits for an answer, nor of a process that has ended.
        workers[0].stop()
        wait_until(lambda: idle() == 2)
        change([f"b{n}" for n in range(30)])
        wait_until(lambda: idle() == 2)
        workers[1].stop()
        processes[1][1].close()
        change([f"c{n}" for n in range(30)])


def test_after_a_restart_of_the_service_one_worker_has_what_is_dedicated(wait_until: Wait) -> None:
    store = MemoryStore()
    oracle = EmbeddedOracle(store)
    measure = observer(text, name="measure", dedicated=True)(lambda t, row: None)
    with ExitStack() as stack:
        with Server() as server:
            clients, schedules = [], []
            for _ in range(2):
                coordination = Networked(server.address)
                stack.callback(coordination.close)
                repo = Repository("memory", store, oracle, coordination, [docs], one_step=False)
                clients.append(coordination.client)
                schedules.append(Worker(repo, [measure], rescan=0.001)._schedule)
            assert schedules[0].claimed() and not schedules[1].claimed()
        wait_until(lambda: not any(one.sessions for one in clients))
        assert all(one.claimed() for one in schedules), "nobody can say who has it"

        def holders() -> list[bool]:
            return [bool(one.claimed()) for one in schedules]

        with Server(server.address):
            wait_until(lambda: all(one.sessions for one in clients))
            wait_until(lambda: sum(holders()) == 1)
            before = holders()
            assert all(holders() == before for _ in range(20))
            schedules[before.index(True)].disclaim()
            wait_until(schedules[before.index(False)].claimed)


# --- A thousand ---------------------------------------------------------------------------


def test_a_thousand_sessions_take_no_thread_and_timestamps_do_not_wait_for_them(
    wait_until: Wait,
) -> None:
    with leading() as server, contextlib.ExitStack() as stack:
        before = set(threading.enumerate())
        sessions = []
        for _ in range(1000):
            session = Connection(server.address, Access(), None, LOCK_SECONDS)
            stack.callback(session.end)
            session.ask(frames.frame(frames.ATTEND, 1), 1, frames.WAKE_UP, LOCK_SECONDS)
            sessions.append(session)
        assert server.lock_service.sessions == 1000
        assert set(threading.enumerate()) <= before
        one = LockServiceClient([server.address], lock_seconds=LOCK_SECONDS)
        oracle = NetworkOracle([server.address])
        locking = [seconds(lambda n=n: one.try_lock("t", b"%d" % n)) for n in range(200)]
        assert server.lock_service.locks == 200
        assert max(locking) < LOCK_SECONDS / 2
        one.wake()
        waits = [seconds(oracle.timestamp) for _ in range(200)]
        for session in sessions:
            assert session.receive(LOCK_SECONDS).kind == frames.WAKE_UP
        assert sorted(waits)[100] < 0.1
        oracle.close()
        one.close()
        stack.close()
        wait_until(lambda: server.lock_service.sessions == 0)


# --- Access -------------------------------------------------------------------------------


def test_a_client_without_the_token_goes_on_without_the_service() -> None:
    with leading(token="s3cret") as server:
        stranger = LockServiceClient([server.address])
        access = Access("s3cret")
        friend = LockServiceClient([server.address], access=access, lock_seconds=LOCK_SECONDS)
        assert friend.try_lock("t", b"r")
        assert stranger.try_lock("t", b"r")
        assert friend.sessions and not stranger.sessions
        stranger.wake()
        for lock_service in (stranger, friend):
            in_thread(lock_service.close).result(DEADLINE)

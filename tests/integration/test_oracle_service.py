"""§2.3 with real processes: oracles that are killed, stopped and cut off, on Bigtable's emulator.

Clients in processes of their own note for each call when it began, when it ended and what it
answered, by the machine's one monotonic clock. At the end all of it is held against rule P1:
nothing twice, and whatever began after another call had ended is above it.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import pytest
from children import Child, hear, say
from emulator import Emulator, Relay, repository
from oracle_clients import SOON, await_progress, counts, run_client
from oracle_schedules import Event, broken_promises

from percola import Repository, Table, Transaction
from percola.errors import StoreError
from percola.oracle.client import NetworkOracle
from percola.oracle.record import ORACLE_TABLE, newest
from percola.oracle.server import OracleServer, serve
from percola.rpc import frames
from percola.rpc.client import Access, Connection, RefusedError
from percola.rpc.frames import Code
from percola.store.bigtable.client import Place
from percola.store.bigtable.store import BigtableStore

WaitUntil = Callable[..., Any]

LEASE: Final = 1.0
THREADS: Final = 4
CLIENTS: Final = 3

accounts = Table("accounts")
balance = accounts.column("balance", int)


# --- Processes --------------------------------------------------------------------------


def run_oracle(pipe: Pipe, place: Place, address: str, size: int) -> None:
    """An oracle process: says its address, serves until SIGTERM."""
    store = BigtableStore(place, request_seconds=1.0, timeout_seconds=1.0)
    server = OracleServer(store, address, lease=LEASE, size=size)
    serve(server, lambda running: say(pipe, running.address))


class Fleet:
    """Two oracles and a few clients of one repository."""

    def __init__(self, stack: ExitStack, place: Place, size: int = 400) -> None:
        self.place = place
        self.store = BigtableStore(place, request_seconds=1.0)
        stack.callback(self.store.close)
        self.oracles: dict[str, Child] = {}
        self._stack = stack
        self._size = size
        started = [self._start() for _ in range(2)]
        self.oracles.update((child.hear(), child) for child in started)
        self.addresses = list(self.oracles)
        self.clients = [self.start_client(self.addresses) for _ in range(CLIENTS)]
        self.progress()

    def _start(self, address: str = "127.0.0.1:0") -> Child:
        return self._stack.enter_context(Child(run_oracle, self.place, address, self._size))

    def start_again(self, address: str) -> None:
        """Another process in the place of one that was killed."""
        child = self.oracles[address] = self._start(address)
        assert child.hear() == address

    def start_client(self, addresses: list[str]) -> Child:
        return self._stack.enter_context(Child(run_client, addresses, THREADS))

    def leader(self) -> str:
        """The address of the process whose name stands in the record."""
        record = newest(self.store)
        assert record is not None and record.holder
        port = record.name.rpartition(":")[2]
        return next(address for address in self.oracles if address.endswith(f":{port}"))

    def replaced(self, old: str) -> bool:
        """Whether another one than `old` has taken over."""
        record = newest(self.store)
        return record is not None and bool(record.holder) and self.leader() != old

    def progress(self, clients: list[Child] | None = None, more: int = 40) -> None:
        """Wait until every client has been answered so often again."""
        await_progress(self.clients if clients is None else clients, more)

    def check(self) -> list[Event]:
        """End the clients; everything that they noted, which keeps rule P1."""
        for client in self.clients:
            client.tell("stop")
        events = [event for client in self.clients for event in client.hear()]
        problems = broken_promises(events)
        assert not problems, problems[:5]
        assert len(events) > 40 * CLIENTS
        return events


@pytest.fixture
def fleet(emulator: Emulator) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, emulator.place())


def serves(address: str) -> bool:
    """Whether timestamps are had there."""
    connection = Connection(address, Access(), None, SOON)
    try:
        connection.ask(frames.draw(1, 0), 1, frames.DRAWN, SOON)
    except RefusedError:
        return False
    finally:
        connection.end()
    return True


# --- P1, whatever happens to the oracles ------------------------------------------------


@pytest.mark.long
def test_a_leader_that_is_killed_is_replaced_when_its_lease_has_ended(fleet: Fleet) -> None:
    for _ in range(3):
        old = fleet.leader()
        fleet.oracles[old].kill()
        fleet.progress()
        assert fleet.leader() != old
        fleet.start_again(old)
    fleet.check()


@pytest.mark.long
def test_a_leader_that_is_stopped_and_goes_on_hands_out_nothing_once_it_was_replaced(
    fleet: Fleet, wait_until: WaitUntil
) -> None:
    """A client that knows no other address keeps asking it, and is in the queue when it goes on."""
    old = fleet.leader()
    alone = fleet.start_client([old])
    fleet.progress([alone])
    fleet.clients.append(alone)
    others = fleet.clients[:-1]
    [new] = [address for address in fleet.addresses if address != old]
    for _ in range(3):
        fleet.oracles[old].signal(signal.SIGSTOP)
        wait_until(lambda: fleet.leader() == new, what="a successor")
        fleet.progress(others)
        fleet.oracles[old].signal(signal.SIGCONT)
        fleet.progress(others)
        # Back to the first one, in the same way.
        fleet.oracles[new].signal(signal.SIGSTOP)
        wait_until(lambda: fleet.leader() == old, what="the first one again")
        fleet.progress([alone])
        fleet.oracles[new].signal(signal.SIGCONT)
        fleet.progress()
    fleet.check()


def test_requests_that_waited_for_a_stopped_leader_are_refused_once_it_was_replaced(
    fleet: Fleet, wait_until: WaitUntil
) -> None:
    """They reach it the moment that it goes on, long before it can look at the record."""
    old = fleet.leader()
    oracle = NetworkOracle(fleet.addresses)
    waiting = [Connection(old, Access(), None, SOON) for _ in range(60)]
    fleet.oracles[old].signal(signal.SIGSTOP)
    wait_until(lambda: fleet.replaced(old), what="a successor")
    known = oracle.timestamp()
    for one in waiting:
        one.send(frames.draw(1, 1))
    fleet.oracles[old].signal(signal.SIGCONT)
    answers = [one.receive(SOON) for one in waiting]
    for one in waiting:
        one.end()
    refused = [frames.read_refused(one.body)[0] for one in answers if one.kind == frames.REFUSED]
    assert set(refused) <= {Code.STANDBY, Code.BUSY}
    assert refused
    # On a machine that is very busy it may have become the leader again.
    drawn = [frames.read_drawn(one.body)[0] for one in answers if one.kind == frames.DRAWN]
    assert all(one > known for one in drawn)
    oracle.close()
    fleet.check()


def test_a_leader_that_ends_on_sigterm_hands_over_and_leaves_no_gap(
    fleet: Fleet, wait_until: WaitUntil
) -> None:
    old = fleet.leader()
    fleet.oracles[old].signal(signal.SIGTERM)
    assert fleet.oracles[old].hear() is None, "it ends without an error"
    wait_until(lambda: fleet.replaced(old), what="a successor")
    fleet.progress()
    events = fleet.check()
    drawn = sorted(event.low for event in events if event.drawn)
    # A call that was under way may have been answered to nobody: a few for each client.
    assert drawn[-1] - len(drawn) <= CLIENTS * THREADS


@pytest.mark.long
def test_without_its_store_an_oracle_stops_when_its_lease_has_ended_and_goes_on_later(
    wait_until: WaitUntil,
) -> None:
    with Emulator() as mortal, ExitStack() as stack:
        fleet = Fleet(stack, mortal.place())
        for _ in range(2):
            mortal.pause()
            try:
                wait_until(lambda: not any(map(serves, fleet.addresses)), what="the lease to end")
                before = counts(fleet.clients)
            finally:
                mortal.resume()
            fleet.progress()
            assert all(a < b for a, b in zip(before, counts(fleet.clients), strict=True))
        fleet.check()


def test_a_renewal_whose_answer_is_lost_is_recognised_and_interrupts_nothing(
    emulator: Emulator, wait_until: WaitUntil
) -> None:
    with Relay(emulator.address) as relay:
        store = BigtableStore(emulator.place(address=relay.address), request_seconds=1.0)
        with OracleServer(store, "127.0.0.1:0", lease=LEASE, size=50) as server:
            wait_until(lambda: server.ranges.holds)
            oracle = NetworkOracle([server.address])
            drawn: list[int] = []
            for lost in range(3):
                relay.cut_answer()
                while relay.cut == lost:  # Each range that is reserved is a write.
                    drawn.append(oracle.timestamp())
                wait_until(lambda: server.ranges._plan is None, what="the outcome to be known")
            drawn += [oracle.timestamp() for _ in range(100)]
            metric = server.metrics.registry.get_sample_value
            assert metric("percola_oracle_store_failures_total") == relay.cut == 3
            assert server.ranges.takeovers == 1, "it recognised its own writes"
            assert drawn == sorted(set(drawn))
            oracle.close()
        store.close()


def test_oracles_on_an_emptied_store_hand_out_nothing_and_say_so(wait_until: WaitUntil) -> None:
    with Emulator() as mortal:
        store = BigtableStore(mortal.place(), request_seconds=1.0, timeout_seconds=1.0)
        with OracleServer(store, "127.0.0.1:0", lease=LEASE) as server:
            wait_until(lambda: server.ranges.holds)
            oracle = NetworkOracle([server.address], timeout_seconds=1.0)
            assert oracle.timestamp() == 1
            mortal.kill()
            mortal.start()
            store_again = BigtableStore(store.place)
            store_again.create_tables([ORACLE_TABLE])
            wait_until(lambda: not server.ranges.holds)
            with pytest.raises(StoreError, match="No oracle"):
                oracle.timestamp()
            assert newest(store_again) is None, "it does not begin anew by itself"
            oracle.close()
            store_again.close()
        store.close()


# --- Transactions -----------------------------------------------------------------------


def move_money(pipe: Pipe, place: Place, addresses: list[str], number: int) -> int:
    """Transfers between two of four accounts until told to stop; how many were made."""
    repo = bank(place, addresses)
    rng = random.Random(number)
    stop = threading.Event()
    done = 0

    def transfer(t: Transaction) -> None:
        a, b = rng.sample("wxyz", 2)
        t.set(balance, a, (t.get(balance, a) or 0) - 1)
        t.set(balance, b, (t.get(balance, b) or 0) + 1)

    def listen() -> None:
        hear(pipe)
        stop.set()

    listener = threading.Thread(target=listen)
    listener.start()
    # Who goes on while leases run out leaves the cores to whom that is a test of.
    while not stop.wait(0.02):
        repo.run(transfer, attempts=10_000)
        done += 1
        if done == 5:
            say(pipe, "five")
        if done == 15:
            say(pipe, "fifteen")
    listener.join()
    repo.close()
    return done


def bank(place: Place, addresses: list[str]) -> Repository:
    return repository(BigtableStore(place), [accounts], NetworkOracle(addresses))


def test_transactions_go_on_with_the_next_oracle_and_lose_nothing(emulator: Emulator) -> None:
    with ExitStack() as stack:
        fleet = Fleet(stack, emulator.place())
        repo = bank(fleet.place, fleet.addresses)
        stack.callback(repo.close)
        workers = [
            stack.enter_context(Child(move_money, fleet.place, fleet.addresses, number))
            for number in range(2)
        ]
        for worker in workers:
            assert worker.hear() == "five"
        fleet.oracles[fleet.leader()].kill()
        for worker in workers:
            assert worker.hear() == "fifteen"
        for _ in range(20):
            at_one_moment = repo.snapshot()
            assert sum(at_one_moment.get(balance, name) or 0 for name in "wxyz") == 0
        for worker in workers:
            worker.tell("stop")
        made = [worker.hear() for worker in workers]
        commits = {ts for name in "wxyz" for ts, _ in repo.versions(balance, name)}
        assert len(commits) == sum(made), "every transfer that was reported is there, once"
        fleet.check()

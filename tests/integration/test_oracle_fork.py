"""Networks and `fork`: a child has connections of its own, or is told at once that it cannot.

The programs run in interpreters of their own: what has threads and forks must not be the tests'
process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from commands import answer_of
from emulator import Emulator
from lock_service import Server
from oracle_in_process import oracle, server

from percola.oracle.server import OracleServer
from percola.store.memory import MemoryStore

WaitUntil = Callable[..., object]

__all__ = ["oracle", "server"]

_FORKS = """
import os, sys
from percola.errors import StoreError

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print("in the child:", repr(error), file=sys.stderr)
            sys.stderr.flush()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

def is_refused(work):
    try:
        work()
    except StoreError as error:
        assert "does not survive a fork" in str(error), error
    else:
        raise AssertionError("used after a fork")
"""

_ORACLE = """
import threading
from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer
from percola.store.memory import MemoryStore

oracle = NetworkOracle([sys.argv[1]])
drawn = [oracle.timestamp()]

def draw():
    mine = oracle.timestamp()
    assert mine > drawn[-1] and oracle.read_timestamp() >= mine
    in_child(lambda: oracle.timestamp() > mine or os._exit(1))
    with OracleServer(MemoryStore(), "127.0.0.1:0") as server:
        while not server.ranges.holds:
            pass
        other = NetworkOracle([server.address])
        assert other.timestamp() == 1
        in_child(other.timestamp)
        other.close()
    oracle.close()

busy = threading.Event()
def draws():
    while not busy.is_set():
        oracle.timestamp()

thread = threading.Thread(target=draws)
thread.start()
for _ in range(5):
    in_child(draw)
busy.set()
thread.join()
drawn.append(oracle.timestamp())
assert oracle.statistics()["calls"] == oracle.statistics()["drawn"], "its connection has stayed"
oracle.close()
"""

_BIGTABLE = """
from percola.cells import Kind
from percola.store.base import Put, RowMutation
from percola.store.bigtable.store import BigtableStore
from percola.store.bigtable.client import Place
from percola.store.walks import walk_kind

place = Place("p", "forks", emulator=sys.argv[1])
store = BigtableStore(place)

def write(row):
    store.mutate([RowMutation("t", row, (), [Put(Kind.DATA, b"c", 5, b"v")])])

def first():
    store.create_tables(["t"])
    write(b"child")

def refused():
    other = BigtableStore(place)
    for one in (store, other):
        is_refused(lambda: one.scan_kind(Kind.DATA, "t"))
    is_refused(lambda: write(b"lost"))
    other.close()
    store.close()

in_child(first)
write(b"parent")
in_child(refused)
assert [cell.row for cell, _, _ in walk_kind(store, Kind.DATA, "t")] == [b"child", b"parent"]
"""

_LOCK_SERVICE = """
import threading
from percola.coordination.lock_service.client import LockServiceClient

lock_service = LockServiceClient([sys.argv[1]], lock_seconds=60)

def attend():
    woken = threading.Event()
    lock_service.on_wake(lambda _: woken.set())
    assert woken.wait(30)

def child():
    assert not lock_service.sessions
    attend()
    assert lock_service.try_lock("t", b"child")
    assert not lock_service.try_lock("t", b"parent"), "it is another process's"
    lock_service.close()

attend()
assert lock_service.try_lock("t", b"parent")
in_child(child)
assert lock_service.sessions
assert not lock_service.try_lock("t", b"parent")
lock_service.wake()
lock_service.close()
"""


def run(program: str, address: str) -> None:
    done = answer_of([sys.executable, "-c", _FORKS + program, address])
    assert done.code == 0, done.err


def test_a_child_asks_the_oracle_on_a_connection_of_its_own(server: OracleServer) -> None:
    run(_ORACLE, server.address)


def test_bigtable_may_be_used_by_a_child_if_its_parent_has_not() -> None:
    with Emulator() as emulator:
        run(_BIGTABLE, emulator.address)


def test_a_child_has_a_session_of_its_own_and_its_parents_stays(wait_until: WaitUntil) -> None:
    with Server() as service:
        run(_LOCK_SERVICE, service.address)
        wait_until(lambda: service.service.sessions == 0)


def test_a_child_does_not_keep_the_port_of_a_server_that_its_parent_stops() -> None:
    server = OracleServer(MemoryStore(), "127.0.0.1:0").start()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)
        os._exit(0)
    server.stop()
    with OracleServer(MemoryStore(), server.address):
        pass
    os.write(writer, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reader)
    os.close(writer)

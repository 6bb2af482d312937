"""gRPC and `fork`: a child of a process that has used Bigtable or an oracle is told so at once.

Each program runs in an interpreter of its own: what forks must not be the tests' process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from emulator import Emulator
from lock_service import Server
from oracle_in_process import oracle, server

from percola.oracle.server import OracleServer

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
from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer
from percola.store.memory import MemoryStore

oracle = NetworkOracle([sys.argv[1]])

def first():
    assert oracle.timestamp() == 1
    in_child(refused)

def refused():
    is_refused(oracle.timestamp)
    is_refused(oracle.read_timestamp)
    other = NetworkOracle([sys.argv[1]])
    is_refused(other.timestamp)
    is_refused(lambda: OracleServer(MemoryStore(), "127.0.0.1:0"))
    other.close()
    oracle.close()

in_child(first)
assert oracle.timestamp() == 2
in_child(refused)
in_child(lambda: in_child(refused))
assert oracle.timestamp() == 3
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

# Longer than the test may take: in a child nothing waits for the service.
lock_service = LockServiceClient([sys.argv[1]], lock_seconds=600)

def attend():
    woken = threading.Event()
    lock_service.on_wake(woken.set)
    assert woken.wait(30)

def first():
    attend()
    assert lock_service.try_lock("t", b"first")
    lock_service.close()

def alone():
    assert lock_service.try_lock("t", b"parent"), "it goes on without the service"
    assert not lock_service.try_lock("t", b"parent")
    assert not lock_service.has_session
    lock_service.unlock("t", b"parent")
    lock_service.on_wake(lambda: None)
    lock_service.wake()
    lock_service.close()

in_child(first)
attend()
assert lock_service.try_lock("t", b"parent")
in_child(alone)
assert lock_service.has_session
assert not lock_service.try_lock("t", b"parent")
lock_service.wake()
lock_service.close()
"""


def run(program: str, address: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKS + program, address],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr


def test_an_oracle_may_be_asked_by_a_child_if_its_parent_has_not(server: OracleServer) -> None:
    run(_ORACLE, server.address)


def test_bigtable_may_be_used_by_a_child_if_its_parent_has_not() -> None:
    with Emulator() as emulator:
        run(_BIGTABLE, emulator.address)


def test_a_child_attends_by_itself_or_goes_on_without_the_service(wait_until: WaitUntil) -> None:
    with Server() as service:
        run(_LOCK_SERVICE, service.address)
        wait_until(lambda: service.service.sessions == 0)

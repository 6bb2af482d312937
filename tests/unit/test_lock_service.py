"""Advisory locks and wake-ups: the service's rules, its messages, and what a process does alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proto_files import is_that_of

from percola import RepositoryClosedError
from percola.coordination.lock_service import wire
from percola.coordination.lock_service.base import LockService
from percola.coordination.lock_service.client import LockServiceClient
from percola.coordination.lock_service.server import LockServiceServer
from percola.errors import UsageError

WaitUntil = Callable[..., object]


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
    stop = lock_service.on_wake(lambda: woken.append("first"))
    lock_service.on_wake(lambda: woken.append("second"))
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
    lock_service.on_wake(woken.set)
    child = os.fork()
    if not child:
        try:
            lock_service.wake()
            os._exit(0 if lock_service.try_lock("t", b"r") and not woken.is_set() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert not lock_service.try_lock("t", b"r")


@pytest.mark.parametrize(
    "wrong", [{"addresses": []}, {"addresses": "a:1"}, {"addresses": ["a:1"], "lock_seconds": 0}]
)
def test_arguments_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LockServiceClient(**wrong)


# --- The service ----------------------------------------------------------------------------


class RefusedError(Exception):
    """A call was ended by the service."""


class Call:
    """A call as the service sees it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.code: Any = None
        self._ended: list[Callable[[], None]] = []
        self.wake_ups = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def abort(self, code: grpc.StatusCode, why: str) -> None:
        raise RefusedError(code.name, why)

    def add_callback(self, ended: Callable[[], None]) -> bool:
        self._ended.append(ended)
        return True

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        pass

    def send(self, message: Any) -> None:
        self.gate.wait(20)
        self.sent.append(message)
        self.wake_ups.release()

    def end(self) -> None:
        """The stream breaks."""
        for ended in self._ended:
            ended()


class Service:
    """The service's rules without a server."""

    def __init__(self) -> None:
        self.is_held = True
        self.real = LockServiceServer(lambda: self.is_held)

    def attend(self, session: str) -> Call:
        call: Any = Call()
        self.real._attend(wire.AttendRequest(session), call, call.send)
        return call

    def try_lock(self, session: str, key: bytes, turn: int) -> bool:
        call: Any = Call()
        return self.real._try_lock(wire.LockRequest(session, key, turn), call).taken

    def unlock(self, session: str, key: bytes, turn: int) -> None:
        call: Any = Call()
        self.real._unlock(wire.UnlockRequest(session, key, turn), call)

    def wake(self, session: str = "") -> int:
        call: Any = Call()
        return self.real._wake(wire.WakeRequest(session), call).pause_ms


def test_a_lock_belongs_to_one_session_until_it_is_given_back_or_the_stream_breaks() -> None:
    service = Service()
    one, two = service.attend("one"), service.attend("two")
    assert service.try_lock("one", b"k", 1)
    assert not service.try_lock("two", b"k", 1)
    service.unlock("two", b"k", 1)
    assert not service.try_lock("two", b"k", 2), "nobody gives back what is another's"
    service.unlock("one", b"k", 1)
    assert service.try_lock("two", b"k", 3)
    assert not service.try_lock("one", b"k", 2)
    two.end()
    two.end()
    assert service.try_lock("one", b"k", 3)
    one.end()
    assert service.real.locks == service.real.sessions == 0


def test_giving_back_and_taking_again_come_to_the_same_in_either_order() -> None:
    service = Service()
    service.attend("one"), service.attend("two")
    assert service.try_lock("one", b"k", 1)
    # The second taking overtakes the giving back, which nobody waits for.
    assert service.try_lock("one", b"k", 2)
    service.unlock("one", b"k", 1)
    assert not service.try_lock("two", b"k", 1)
    service.unlock("one", b"k", 2)
    assert service.try_lock("two", b"k", 2)


def test_who_does_not_attend_gets_no_lock() -> None:
    service = Service()
    with pytest.raises(RefusedError, match="FAILED_PRECONDITION"):
        service.try_lock("nobody", b"k", 1)
    gone = service.attend("one")
    gone.end()
    with pytest.raises(RefusedError, match="FAILED_PRECONDITION"):
        service.try_lock("one", b"k", 1)
    service.unlock("one", b"k", 1)
    assert service.real.locks == 0


def test_a_session_has_a_name_of_its_own() -> None:
    service = Service()
    service.attend("one")
    for name in ("one", ""):
        with pytest.raises(RefusedError, match="INVALID_ARGUMENT"):
            service.attend(name)
    assert service.try_lock("one", b"k", 1), "the first one is unharmed"


def test_without_the_lease_every_call_is_refused_and_who_attends_is_sent_away(
    wait_until: WaitUntil,
) -> None:
    service = Service()
    call = service.attend("one")
    assert call.wake_ups.acquire(timeout=60)
    assert service.try_lock("one", b"k", 1)
    service.is_held = False
    wait_until(lambda: service.real.sessions == 0)
    wait_until(lambda: call.sent[-1] is None, what="the end of the stream")
    assert call.code is grpc.StatusCode.FAILED_PRECONDITION
    assert service.real.locks == 0
    for ask in (
        lambda: service.attend("two"),
        lambda: service.try_lock("one", b"k", 2),
        lambda: service.unlock("one", b"k", 2),
        service.wake,
    ):
        with pytest.raises(RefusedError, match="FAILED_PRECONDITION"):
            ask()


def test_a_wake_up_reaches_all_sessions_but_its_sender() -> None:
    service = Service()
    one, two = service.attend("one"), service.attend("two")
    for call in (one, two):
        assert call.wake_ups.acquire(timeout=60), "the first reports that the session is open"
    for _ in range(5):
        service.wake("one")
        assert two.wake_ups.acquire(timeout=60)
    service.wake("two")
    assert one.wake_ups.acquire(timeout=60)
    assert (len(one.sent), len(two.sent)) == (2, 6)
    service.wake()
    assert one.wake_ups.acquire(timeout=60) and two.wake_ups.acquire(timeout=60)


def test_wake_ups_while_one_is_sent_become_one_more() -> None:
    service = Service()
    one, two = service.attend("one"), service.attend("two")
    for call in (one, two):
        assert call.wake_ups.acquire(timeout=60)
    one.gate.clear()
    for _ in range(500):
        service.wake("two")
    one.gate.set()
    assert one.wake_ups.acquire(timeout=60)
    # Rings are sent in order: when this one has come, all before it have.
    service.wake("one")
    assert two.wake_ups.acquire(timeout=60)
    assert 2 <= len(one.sent) <= 3


def test_the_more_attend_the_longer_a_ringer_keeps_quiet() -> None:
    service = Service()
    assert service.wake() == 10
    calls = [service.attend(f"s{number}") for number in range(50)]
    assert service.wake() == 50
    for call in calls:
        call.end()
    assert service.wake() == 10


def test_the_thread_that_sends_ends_when_nobody_attends(wait_until: WaitUntil) -> None:
    service = Service()
    for _ in range(2):
        call = service.attend("one")
        assert service.real._sender is not None
        assert call.wake_ups.acquire(timeout=60)
        call.end()
        wait_until(lambda: service.real._sender is None)


# --- Messages -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        wire.AttendRequest("abc"),
        wire.WakeUp(),
        wire.LockRequest("ü", b"\0\xff" * 100, 2**63),
        wire.LockReply(True),
        wire.LockReply(False),
        wire.UnlockRequest("s", b"k", 1),
        wire.UnlockReply(),
        wire.WakeRequest(""),
        wire.WakeReply(1000),
    ],
)
def test_the_messages_are_those_of_the_proto_file(message: Any) -> None:
    is_that_of(Path(wire.__file__).parent / "lock_service.proto", message)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_message_are_a_value_error_and_nothing_else(raw: bytes) -> None:
    for kind in (wire.LockRequest, wire.WakeReply, wire.WakeUp):
        try:
            kind.decode(raw)
        except ValueError:
            continue


def test_a_field_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="not bytes"):
        wire.LockRequest.decode(b"\x10\x01")
    with pytest.raises(ValueError, match="not a text"):
        wire.LockRequest.decode(b"\x08\x01")
    with pytest.raises(ValueError, match="not a number"):
        wire.WakeReply.decode(b"\x0a\x01a")

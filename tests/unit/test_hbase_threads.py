"""Several calls at a time: all have ended when anything is heard of them."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from percola.errors import StoreError
from percola.store.hbase.executor import Threads

DEADLINE = 60


def test_what_is_done_at_once_is_done_at_the_same_time_and_told_in_order() -> None:
    meeting = threading.Barrier(5)

    def meet(number: int) -> int:
        meeting.wait(DEADLINE)
        return number

    threads = Threads()
    assert threads.at_once([partial(meet, number) for number in range(5)]) == [*range(5)]
    threads.close()


@pytest.mark.parametrize("failing", [0, 2])
def test_who_is_told_of_a_failure_is_told_when_all_have_ended(failing: int) -> None:
    ended: list[int] = []
    failed, told = threading.Event(), threading.Event()

    def act(number: int) -> None:
        if number == failing:
            failed.set()
            raise StoreError("for a test")
        assert failed.wait(DEADLINE)
        # Long enough for the caller to be told, if he is not to wait for this one.
        assert not told.wait(0.3)
        ended.append(number)

    threads = Threads()
    with pytest.raises(StoreError, match="for a test"):
        threads.at_once([partial(act, number) for number in range(4)])
    told.set()
    assert sorted(ended) == [number for number in range(4) if number != failing]
    threads.close()


def test_when_no_thread_begins_any_more_the_caller_does_it_all() -> None:
    threads = Threads()
    threads.close()
    assert threads.at_once([threading.get_ident] * 3) == [threading.get_ident()] * 3

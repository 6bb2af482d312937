"""Ctrl-C in a program that uses Spark."""

from __future__ import annotations

import io
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from py4j import java_gateway

from percola.spark import session
from percola.spark.ctrl_c import interrupts_kept


class Thing:
    """Something to be collected."""


def collected(then: Callable[[], object]) -> None:
    """Run something in a callback that has the name and the file of Py4J's."""
    source = "(lambda wr: then())"
    callback: Any = eval(compile(source, java_gateway.__file__, "eval"), {"then": then})
    thing = Thing()
    held = weakref.ref(thing, callback)
    del thing
    assert held() is None


def test_an_interrupt_that_comes_while_a_java_object_is_collected_comes_again() -> None:
    went_on: list[bool] = []

    def work() -> None:
        with interrupts_kept():
            collected(lambda: os.kill(os.getpid(), signal.SIGINT))
            went_on.append(True)
            until = time.monotonic() + 10
            while time.monotonic() < until:
                threading.Event().wait(0.01)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert went_on


def test_any_other_interrupt_acts_at_once_and_the_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    went_on: list[bool] = []

    def work() -> None:
        with interrupts_kept():
            assert signal.getsignal(signal.SIGINT) is not before
            os.kill(os.getpid(), signal.SIGINT)
            went_on.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not went_on
    assert signal.getsignal(signal.SIGINT) is before


def test_a_thread_leaves_the_handler_as_it_is() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def look() -> None:
        with interrupts_kept():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_what_py4j_logs_is_silent_while_a_session_runs_even_once_the_root_has_a_handler() -> None:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    try:
        session._silence_py4j(True)
        try:
            logging.getLogger("py4j.clientserver").error("a socket was shut down")
            logging.getLogger("mine").error("mine")
        finally:
            session._silence_py4j(False)
        logging.getLogger("py4j.clientserver").error("later")
    finally:
        logging.getLogger().removeHandler(handler)
    assert said.getvalue() == "mine\nlater\n"

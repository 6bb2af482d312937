"""Liveness tokens, row locks, wake-ups and the observers of processes on one machine."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

import pytest
from children import Child, hear, say
from forked import Forked

from percola import ObserverMismatchError, RepositoryClosedError, RepositoryError
from percola.coordination.local.coordination import LocalCoordination
from percola.coordination.wake_ups import EVERY_TABLE, marks_of

Wait = Callable[..., object]


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[LocalCoordination]:
    coordination = LocalCoordination(tmp_path)
    yield coordination
    coordination.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LocalCoordination]:
    """Another process, as far as the folder shows: one's own FIFO is left out by its name."""
    coordination = LocalCoordination(tmp_path)
    coordination._token = "another"
    yield coordination
    coordination._token = None
    coordination.close()


def files(folder: Path, kind: str) -> list[str]:
    return sorted(os.listdir(folder / kind))


def live(pipe: Connection, folder: Path) -> None:
    """A process that does what it is told, and answers."""
    coordination = LocalCoordination(folder)
    woken = threading.Event()
    while True:
        word, *arguments = hear(pipe)
        if word == "listen":
            coordination.on_wake(lambda _: woken.set())
            say(pipe)
        elif word == "await wake-up":
            say(pipe, "waiting")
            woken.wait(30)
            say(pipe, time.monotonic() if woken.is_set() else None)
            woken.clear()
        elif word == "token":
            say(pipe, coordination.token)
        elif word == "announce":
            try:
                coordination.announce_observers(*arguments)
                say(pipe, "announced")
            except ObserverMismatchError as error:
                say(pipe, str(error))
        else:
            say(pipe, getattr(coordination, word)(*arguments))


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """Another process that does what it is told."""
    with Child(live, tmp_path) as child:
        yield child


def ask(child: Child, *words: object) -> object:
    child.tell(words)
    return child.hear()


# --- Liveness ---------------------------------------------------------------------------


def test_a_token_is_alive_as_long_as_its_process(
    mine: LocalCoordination, child: Child, tmp_path: Path
) -> None:
    token = str(ask(child, "token"))
    assert ask(child, "token") == token
    assert mine.is_alive(token)
    assert ask(child, "is_alive", mine.token)
    child.kill()
    assert not mine.is_alive(token)
    assert files(tmp_path, "live") == [mine.token]
    assert mine.is_alive(mine.token)
    assert not mine.is_alive("1-nobody")


def test_what_a_damaged_lock_names_as_its_owner_leads_to_no_other_file(
    mine: LocalCoordination, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    for token in (str(precious), "../precious", "..", ".", "a\0b"):
        assert not mine.is_alive(token)
    assert precious.exists()


def test_a_token_is_given_back_on_closing_and_not_taken_again(tmp_path: Path) -> None:
    coordination = LocalCoordination(tmp_path)
    token = coordination.token
    coordination.on_wake(lambda _: None)
    coordination.close()
    coordination.close()
    assert not coordination.is_alive(token)
    assert files(tmp_path, "live") == files(tmp_path, "wake") == []
    for use in (lambda: coordination.token, lambda: coordination.try_lock("t", b"r")):
        with pytest.raises(RepositoryClosedError):
            use()
    coordination.wake()


def tokens_one_after_the_other(pipe: Connection, folder: Path, times: int) -> None:
    say(pipe, "ready")
    for _ in range(times):
        coordination = LocalCoordination(folder)
        token = coordination.token
        # Whoever looked while the token was made may not have taken it away.
        assert (folder / "live" / token).exists()
        coordination.close()


def test_a_token_that_is_just_being_taken_is_not_mistaken_for_a_dead_one(
    mine: LocalCoordination, tmp_path: Path
) -> None:
    with Child(tokens_one_after_the_other, tmp_path, 1500) as child:
        child.hear()
        with ThreadPoolExecutor(1) as pool:
            finished = pool.submit(child.hear)
            while not finished.done():
                for token in files(tmp_path, "live"):
                    mine.is_alive(token)
            finished.result()


def test_asking_takes_no_living_process_for_dead(mine: LocalCoordination, tmp_path: Path) -> None:
    token = mine.token
    with Child(live, tmp_path) as one, Child(live, tmp_path) as two:
        for _ in range(300):
            one.tell(("is_alive", token))
            two.tell(("is_alive", token))
            assert one.hear() is two.hear() is True


def test_a_process_without_a_free_descriptor_takes_nobody_for_dead(
    mine: LocalCoordination, child: Child
) -> None:
    token = str(ask(child, "token"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        alive = mine.is_alive(token)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert alive
    assert mine.is_alive(token)


def test_the_living_processes_are_listed_with_what_they_announced(
    mine: LocalCoordination, tmp_path: Path
) -> None:
    mine.announce_observers({"docs.body": ["index"]})
    with Child(live, tmp_path) as child, Child(live, tmp_path) as dead:
        ask(child, "announce", {"docs.title": ["spell"]})
        ask(dead, "token")
        dead.kill()
        listed = {process["pid"]: process["observers"] for process in mine.processes()}
        assert listed == {
            os.getpid(): {"docs.body": ["index"]},
            child.pid: {"docs.title": ["spell"]},
        }
        assert ask(child, "processes") == mine.processes()


# --- Observers --------------------------------------------------------------------------


def test_workers_with_other_observers_on_a_column_are_refused_while_one_lives(
    mine: LocalCoordination, child: Child
) -> None:
    assert ask(child, "announce", {"docs.body": ["index", "links"]}) == "announced"
    mine.announce_observers({"docs.body": ["links", "index"], "docs.title": ["spell"]})
    with pytest.raises(ObserverMismatchError, match=rf"{child.pid}.*docs\.body.*index, links"):
        mine.announce_observers({"docs.body": ["index"]})
    child.kill()
    mine.announce_observers({"docs.body": ["index"]})
    [process] = mine.processes()
    assert process["observers"] == {"docs.body": ["index"]}


class Hesitant(LocalCoordination):
    """Stops between looking at what others announced and announcing its own."""

    pipe: Connection

    def processes(self) -> list[dict[str, object]]:
        found = super().processes()
        say(self.pipe, "looked")
        hear(self.pipe)
        return found


def hesitate(pipe: Connection, folder: Path, observers: dict[str, list[str]]) -> None:
    coordination = Hesitant(folder)
    coordination.pipe = pipe
    coordination.announce_observers(observers)
    say(pipe, "announced")
    hear(pipe)


def test_of_two_that_announce_other_observers_at_once_one_is_refused(tmp_path: Path) -> None:
    observers = {"docs.body": ["a"]}
    with Child(hesitate, tmp_path, observers) as one, Child(live, tmp_path) as two:
        assert one.hear() == "looked"
        two.tell(("announce", {"docs.body": ["b"]}))
        assert not two.speaks_within(0.5), "it did not wait for the one that announces"
        one.tell()
        assert one.hear() == "announced"
        assert str(one.pid) in two.hear()


def test_an_announcement_shorter_than_the_last_leaves_a_readable_file(
    mine: LocalCoordination, tmp_path: Path
) -> None:
    mine.announce_observers({"docs.body": ["a" * 40, "b" * 40]})
    mine.announce_observers({})
    text = (tmp_path / "live" / mine.token).read_text()
    told = json.loads(text)
    assert 0 < told.pop("since_ms") <= time.time() * 1000
    assert told == {"pid": os.getpid(), "observers": {}}


def test_a_row_lock_keeps_out_threads_and_processes_until_it_is_given_back(
    mine: LocalCoordination, child: Child
) -> None:
    assert mine.try_lock("t", b"r")
    assert not mine.try_lock("t", b"r")
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(mine.try_lock, "t", b"r").result()
    assert ask(child, "try_lock", "t", b"r") is False
    assert ask(child, "try_lock", "t", b"other") is True
    assert ask(child, "try_lock", "u", b"r") is True
    assert not mine.try_lock("t", b"other")
    mine.unlock("t", b"r")
    mine.unlock("t", b"r")
    assert ask(child, "try_lock", "t", b"r") is True
    assert not mine.try_lock("t", b"r")


def test_row_locks_vanish_with_their_process(mine: LocalCoordination, child: Child) -> None:
    assert ask(child, "try_lock", "t", b"r") is True
    assert not mine.try_lock("t", b"r")
    child.kill()
    assert mine.try_lock("t", b"r")


# --- Wake-ups ---------------------------------------------------------------------------


def test_a_wake_up_arrives_in_all_processes_at_once(mine: LocalCoordination, child: Child) -> None:
    here = threading.Event()
    mine.on_wake(lambda _: here.set())
    ask(child, "listen")
    # Nothing but the wake-up ends these waits: without it they fail.
    for _ in range(20):
        assert ask(child, "await wake-up") == "waiting"
        mine.wake()
        assert here.wait(30)
        here.clear()
        assert child.hear() is not None
    child.tell(("wake",))
    assert here.wait(30)


def test_a_stopped_listener_hears_nothing_and_others_still_do(mine: LocalCoordination) -> None:
    woken: list[str] = []
    stop = mine.on_wake(lambda _: woken.append("first"))
    mine.on_wake(lambda _: woken.append("second"))
    stop()
    stop()
    mine.wake()
    assert woken == ["second"]


def test_a_wake_up_names_its_tables_to_other_processes(
    mine: LocalCoordination, other: LocalCoordination, tmp_path: Path, wait_until: Wait
) -> None:
    told: list[bytes] = []
    mine.on_wake(told.append)
    for tables in (["docs"], ["docs", "links"], None):
        other.wake(tables)
        wait_until(lambda: told)
        assert told == [marks_of(tables)]
        told.clear()
    fifo = tmp_path / "wake" / mine.token
    fifo.write_bytes(b"!!")  # What releases without marks write.
    wait_until(lambda: told)
    assert set(told) == {EVERY_TABLE}


def test_whoever_has_many_wake_ups_to_read_takes_them_for_all_tables(
    mine: LocalCoordination, other: LocalCoordination, wait_until: Wait
) -> None:
    """There may have been no room for more."""
    told: list[bytes] = []
    held, entered = threading.Event(), threading.Event()

    def hold(marks: bytes) -> None:
        told.append(marks)
        entered.set()
        held.wait(10)

    mine.on_wake(hold)
    other.wake(["docs"])
    assert entered.wait(10)
    for _ in range(70_000):  # More than a FIFO has room for.
        other.wake(["docs"])
    other.wake(["links"])
    held.set()
    wait_until(lambda: EVERY_TABLE in told)
    assert told[0] == marks_of(["docs"])


def test_wake_ups_are_left_unread_for_as_long_as_nobody_waits_for_them(
    mine: LocalCoordination, other: LocalCoordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percola.coordination.local.coordination._LONGEST_QUIET", 1e6)
    told: list[bytes] = []
    here, elsewhere = threading.Semaphore(0), threading.Semaphore(0)
    quiet = 0.0

    def listen(marks: bytes) -> float:
        told.append(marks)
        here.release()
        return quiet

    with closing(LocalCoordination(mine._folder)) as third:
        third.on_wake(lambda _: elsewhere.release())
        stop = mine.on_wake(lambda _: None)
        mine.on_wake(listen)
        quiet = 1e6
        for _ in range(3):  # Another listener waits for each of them.
            other.wake(["docs"])
            assert here.acquire(timeout=30)
            assert elsewhere.acquire(timeout=30)
        stop()
        other.wake(["docs"])
        assert here.acquire(timeout=30)
        del told[:]
        for _ in range(3):
            other.wake(["links"])
        for _ in range(2):
            other.wake(["links"])
            assert elsewhere.acquire(timeout=30)
        mine.close()  # At once.
    assert told == []


def test_who_begins_to_listen_is_rung_from_then_on(mine: LocalCoordination, child: Child) -> None:
    mine.wake()
    ask(child, "listen")
    ask(child, "await wake-up")
    mine.wake()
    assert child.hear() is not None


def test_the_fifo_of_a_killed_process_is_removed(mine: LocalCoordination, tmp_path: Path) -> None:
    with Child(live, tmp_path) as child, Child(live, tmp_path) as other:
        ask(child, "listen")
        ask(other, "listen")
        mine.wake()
        token = str(ask(child, "token"))
        assert token in mine._fifos
        child.kill()
        mine.wake()
        assert token not in mine._fifos
        assert files(tmp_path, "wake") == [ask(other, "token")]
        assert token not in files(tmp_path, "live")
        ask(other, "await wake-up")
        mine.wake()
        assert other.hear() is not None


def test_a_killed_worker_does_not_end_a_program_that_broken_pipes_end(tmp_path: Path) -> None:
    def wake_twice(here: Forked) -> str:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        coordination = LocalCoordination(tmp_path)
        here.hear()
        coordination.wake()
        here.say(f"{len(coordination._fifos)} woken")
        here.hear()
        coordination.wake()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return f"{len(coordination._fifos)} woken, {blocked | signal.sigpending()} blocked"

    with Child(live, tmp_path) as listening, Forked(wake_twice) as waking:
        ask(listening, "listen")
        waking.say()
        assert waking.hear() == "1 woken"
        listening.kill()
        waking.say()
        assert waking.hear() == "0 woken, set() blocked"


def test_a_wake_up_is_never_written_to_a_file_that_reuses_a_closed_descriptor(
    mine: LocalCoordination, child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"

    def forget_and_open(token: str) -> None:
        mine._close_fifo(token)
        opened.append(other.open("wb"))

    opened: list[BinaryIO] = []
    write = os.write
    meanwhile: list[threading.Thread] = []

    def slow_write(fd: int, data: bytes) -> int:
        if not meanwhile:
            thread = threading.Thread(target=forget_and_open, args=(token,))
            meanwhile.append(thread)
            thread.start()
            thread.join(0.5)
        return write(fd, data)

    ask(child, "listen")
    mine.wake()
    token = str(ask(child, "token"))
    monkeypatch.setattr(os, "write", slow_write)
    mine.wake()
    meanwhile[0].join(10)
    monkeypatch.undo()
    opened[0].close()
    assert other.read_bytes() == b""


def test_closing_does_not_wait_for_a_listener_that_waits_for_it(
    tmp_path: Path, wait_until: Wait
) -> None:
    coordination = LocalCoordination(tmp_path)
    entered = threading.Event()

    def woken(_: bytes) -> None:
        entered.set()
        wait_until(lambda: not coordination._callbacks)  # the first thing that closing does
        coordination.unlock("t", b"r")

    coordination.on_wake(woken)
    # As another process does it, so that the listening thread calls `woken`.
    with (tmp_path / "wake" / coordination.token).open("wb", buffering=0) as fifo:
        fifo.write(b"!")
    assert entered.wait(10)
    closing = threading.Thread(target=coordination.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_a_wake_up_arrives_in_a_process_with_very_many_open_files(tmp_path: Path) -> None:
    with Child(listen_among_many_files, tmp_path) as child:
        child.hear()
        coordination = LocalCoordination(tmp_path)
        coordination.wake()
        assert child.hear()
        coordination.close()


def listen_among_many_files(pipe: Connection, folder: Path) -> bool:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    kept = [os.dup(0) for _ in range(1100)]
    woken = threading.Event()
    coordination = LocalCoordination(folder)
    coordination.on_wake(lambda _: woken.set())
    say(pipe, len(kept))
    answer = woken.wait(30)
    coordination.close()
    return answer


def test_a_place_that_cannot_be_looked_at_is_one_sentence(tmp_path: Path) -> None:
    mine = LocalCoordination(tmp_path)
    assert mine.token
    mine.check_place()
    (tmp_path / "live").rename(tmp_path / "moved")
    (tmp_path / "live").symlink_to("live")
    with pytest.raises(RepositoryError, match="cannot be used: Too many levels"):
        mine.check_place()
    mine.close()

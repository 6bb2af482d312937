"""§2.3 Timestamps: strictly increasing, and a reader sees every commit below its own (P1, P11)."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from stores import Ground, all_at_once

import percola
from percola import Repository, Table
from percola.cells import Kind, decode_write
from percola.oracle.embedded import EmbeddedOracle
from percola.store.lmdb.store import LmdbStore

bank = Table("bank")
bal = bank.column("bal", int)
TABLES = [bank]


# --- P1: one source ---------------------------------------------------------------------


def test_p1_a_timestamp_is_above_every_one_handed_out_before_it_was_asked_for(
    ground: Ground,
) -> None:
    """Linearizable: what one thread has received bounds what another asks for later."""
    guard = threading.Lock()
    highest = 0
    drawn: list[int] = []

    def draw() -> None:
        nonlocal highest
        for _ in range(150):
            with guard:
                floor = highest
            ts = ground.oracle.timestamp()
            assert ts > floor
            read = ground.oracle.read_timestamp()
            assert read >= ts, "a read timestamp covers what was handed out before"
            with guard:
                highest = max(highest, ts)
                drawn.append(ts)

    assert all_at_once([draw] * 6) == [None] * 6
    assert len(set(drawn)) == len(drawn) == 900, "none is handed out twice"
    assert min(drawn) >= 1


_DRAW = """
import sys
from pathlib import Path
from percola.oracle.embedded import EmbeddedOracle
from percola.store.lmdb.store import LmdbStore
oracle = EmbeddedOracle(LmdbStore(Path(sys.argv[1]), durability="relaxed"))
print("ready", flush=True)
sys.stdin.readline()
print(*[oracle.timestamp() for _ in range(300)])
"""


def test_p1_processes_draw_from_the_same_source(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _DRAW, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    drawn = [list(map(int, process.communicate(timeout=20)[0].split())) for process in processes]
    assert all(one == sorted(one) for one in drawn)
    assert len(set(drawn[0] + drawn[1])) == 600


def test_p1_timestamps_only_go_up_after_a_restart(tmp_path: Path) -> None:
    last = 0
    for _ in range(4):
        store = LmdbStore(tmp_path)
        oracle = EmbeddedOracle(store)
        assert oracle.read_timestamp() >= last
        for _ in range(3):
            ts = oracle.timestamp()
            assert ts > last
            last = ts
        store.close()


def test_p1_a_client_that_drew_much_does_not_fall_behind_one_that_drew_little(
    ground: Ground,
) -> None:
    """Scenario 8: with a range of timestamps for each client, B would lose A's update."""
    a, b = ground.repo(TABLES), ground.repo(TABLES)
    for _ in range(50):
        b.transaction(two_phase=True).rollback()
    late = b.transaction()
    assert late.get(bal, "x") is None
    a.run(lambda t: t.set(bal, "x", 1))
    late.set(bal, "x", 2)
    with pytest.raises(percola.ConflictError):
        late.commit()


# --- "Get() returns all committed writes before the transaction's start timestamp" --------


def test_every_commit_that_returned_is_visible_to_whoever_begins_after_it(ground: Ground) -> None:
    guard = threading.Lock()
    highest = 0

    def work(number: int) -> None:
        nonlocal highest
        repo = ground.repo(TABLES)
        for step in range(25):
            with guard:
                floor = highest
            t = repo.transaction(two_phase=(number + step) % 3 == 0)
            assert t.start_ts >= floor, "it must see every commit acknowledged before it began"
            t.set(bal, f"{number}", step)
            commit_ts = t.commit()
            with guard:
                highest = max(highest, commit_ts)

    assert all_at_once([lambda n=n: work(n) for n in range(6)]) == [None] * 6


def test_p11_no_reader_draws_a_start_ts_above_a_commit_and_still_misses_it(ground: Ground) -> None:
    """Scenario 17. Readers note what they saw; the write records say afterwards what was there."""
    reads: list[tuple[int, int | None]] = []
    stop = threading.Event()

    def read() -> None:
        repo = ground.repo(TABLES)
        try:
            while not stop.is_set():
                snapshot = repo.snapshot()
                reads.append((snapshot.start_ts, snapshot.get(bal, "x")))
        finally:
            stop.set()

    def write() -> None:
        repo = ground.repo(TABLES)
        try:
            for number in itertools.count():
                if stop.is_set() or (number >= 100 and len(reads) > 400):
                    break
                repo.run(lambda t: t.set(bal, "x", (t.get(bal, "x") or 0) + 1), attempts=10_000)
        finally:
            stop.set()

    outcomes = all_at_once([read, read, read, write, write])
    assert outcomes == [None] * 5
    history = [(ts, decode_write(raw)) for ts, raw in ground.entries(bal, "x", Kind.WRITE)]
    puts = [(ts, int(r.value)) for ts, r in history if r.value is not None]
    for start_ts, seen in reads:
        expected = next((value for ts, value in puts if ts <= start_ts), None)
        assert seen == expected, (start_ts, seen, puts[:5])
    assert len(reads) > 400, "the readers hardly ran"


def test_a_transactions_own_commit_is_visible_at_its_commit_ts_and_not_below(
    repo: Repository,
) -> None:
    for two_phase in (False, True):
        with repo.transaction(two_phase=two_phase) as t:
            t.set(bal, f"{two_phase}", 1)
        assert t.commit_ts is not None and t.commit_ts > t.start_ts
        assert repo.snapshot(t.commit_ts).get(bal, f"{two_phase}") == 1
        assert repo.snapshot(t.commit_ts - 1).get(bal, f"{two_phase}") is None


def test_start_timestamps_of_two_phase_transactions_are_nobody_elses(ground: Ground) -> None:
    """They name locks and rollback records: one-step transactions may share theirs."""
    repo = ground.repo(TABLES)
    two_phase: list[int] = []
    others: list[int] = []
    for number in range(30):
        t = repo.transaction(two_phase=number % 2 == 0)
        (two_phase if number % 2 == 0 else others).append(t.start_ts)
        if number % 3 == 0:
            t.set(bal, "x", number)
            others.append(t.commit())
    assert len(set(two_phase)) == len(two_phase)
    if ground.one_step:
        assert not set(two_phase) & set(others)

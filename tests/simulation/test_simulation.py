"""The protocol's rules hold under seeded schedules and faults; a failure replays and shrinks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from percola.cells import Kind
from percola.store.base import Delete, RowMutation
from percola.testing.simulation import (
    FaultKind,
    Result,
    SimulatedStore,
    Simulation,
    parse_faults,
    shrink_run,
    tell,
)
from tests.simulation.running import (
    Summary,
    command_for,
    explain,
    jobs_of,
    missing,
    run_in_processes,
    run_jobs,
)
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.bank import Bank
from tests.tree.files import ROOT

SEEDS = 252  # 12 of each workload


def trace_of(result: Result) -> list[str]:
    """Everything that happened in a run, as texts."""
    return [str(event) for event in result.trace]


# --- The claims -------------------------------------------------------------------------


def test_every_claim_holds_over_many_seeds_and_every_fault_happens() -> None:
    """The first seeds of every workload; `make simulate` runs many more."""
    names = list(WORKLOADS)
    whole = Summary()
    by_name: dict[str, int] = dict.fromkeys(names, 0)
    for part in run_in_processes(jobs_of(names, SEEDS), 2):
        for name, summary in part.items():
            whole.add(summary)
            by_name[name] += summary.seeds
    assert not whole.failures, explain(*whole.failures[0][:2])
    assert missing(names, whole) == []
    assert set(by_name.values()) <= {SEEDS // len(names), SEEDS // len(names) + 1}
    for count in ("committed", "conflicted", "failed", "unknown", "observer_runs"):
        assert whole.counts[count], (count, whole.counts)


def test_what_never_happened_is_missed() -> None:
    nothing = Summary(seeds=1)
    assert len(missing(list(WORKLOADS), nothing)) == len(FaultKind) + 13
    nothing.faults.update(kind.value for kind in FaultKind)
    assert len(missing(["bank"], nothing)) == 0
    assert "write skew" in missing(["write-skew"], nothing)[0]


# --- One seed, one history --------------------------------------------------------------


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_one_seed_replays_one_history_exactly(name: str) -> None:
    for seed in (3, 8):
        first = Simulation(WORKLOADS[name], seed).run()
        again = Simulation(WORKLOADS[name], seed).run()
        assert trace_of(first) == trace_of(again)
        # So does the list of its faults, which is how a shrunk run is replayed.
        listed = Simulation(WORKLOADS[name], seed, faults=first.faults).run()
        assert trace_of(first) == trace_of(listed)
        written = parse_faults(";".join(map(str, first.faults)))
        assert written == first.faults


DIGEST = """
import hashlib
from percola.testing.simulation import Simulation
from tests.simulation.workloads import WORKLOADS
text = "".join(str(e) for w in WORKLOADS.values() for e in Simulation(w, 5).run().trace)
print(len(text), hashlib.sha256(text.encode()).hexdigest())
"""


def test_a_history_does_not_depend_on_the_process_that_runs_it() -> None:
    """Neither on the order of hashes, nor on its id, nor on the time."""
    seen = set()
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        run = subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(run.stdout)
    assert len(seen) == 1, seen


def test_different_seeds_give_different_histories() -> None:
    assert len({"".join(trace_of(Simulation(Bank, seed).run())) for seed in range(10)}) == 10


# --- A seeded bug is found, told and shrunk ---------------------------------------------


class RemovesAnyLock(SimulatedStore):
    """Rule P5 broken: a lock is removed, and its cell committed, whoever holds it by now."""

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        broken = []
        for one in batch:
            changes = one.changes
            if any(isinstance(c, Delete) and c.kind is Kind.LOCK for c in changes) and not any(
                c.kind is Kind.NOTIFY for c in changes
            ):
                one = RowMutation(one.table, one.row, (), changes)
            broken.append(one)
        return super().mutate(broken)


# What comes of it is to show, not the broken step itself.
BROKEN: dict[str, Any] = {"make_store": RemovesAnyLock, "watches_steps": False}


def broken_run(seed: int) -> Result:
    return Simulation(Bank, seed, **BROKEN).run()


@pytest.fixture(scope="module")
def failed() -> Result:
    """The first run in which the seeded bug shows."""
    for seed in range(400):
        result = broken_run(seed)
        if result.violated is not None:
            return result
    pytest.fail("400 seeds do not find that locks are removed without a condition")


def test_a_seeded_bug_is_found_and_told_with_its_cells(failed: Result) -> None:
    assert failed.violated is not None
    story = tell(failed)
    assert f"bank, seed {failed.seed}:" in story
    assert f"VIOLATED: {failed.violated.claim}" in story
    assert "prewrites accounts['" in story
    numbered = [line for line in story.splitlines() if line[:4].strip().isdigit()]
    numbers = [int(line[:4]) for line in numbered]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    head = next(line for line in story.splitlines() if line.startswith("cell "))
    assert head.split() == ["cell", "data", "lock", "write", "notify"]
    assert "accounts['" in story[story.index(head) + len(head) :]


def test_a_failure_shrinks_to_a_smaller_one_that_replays(failed: Result) -> None:
    small = shrink_run(Bank, failed, attempts=150, **BROKEN)
    assert small.violated is not None
    # Not its trace: with fewer faults a run may go on for longer before it fails.
    assert len(small.faults) < len(failed.faults)
    assert sum(small.sizes.values()) < sum(failed.sizes.values())
    again = Simulation(
        Bank, small.seed, sizes=small.sizes, faults=small.faults, mode=small.mode, **BROKEN
    ).run()
    assert trace_of(again) == trace_of(small)
    command = command_for(small)
    assert f"--seed {small.seed}" in command
    assert all(str(fault) in command for fault in small.faults)


def test_a_step_that_breaks_a_rule_is_seen_at_once() -> None:
    seen = Simulation(Bank, 0, make_store=RemovesAnyLock).run()
    assert seen.violated is not None
    assert "(P5)" in seen.violated.claim


def test_the_same_run_with_the_bug_mended_holds(failed: Result) -> None:
    mended = Simulation(Bank, failed.seed, faults=failed.faults, sizes=failed.sizes).run()
    assert mended.violated is None


def test_a_task_that_fails_is_not_lost() -> None:
    class Broken(Bank):
        def transfer(self, client: object) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Simulation(Broken, 1).run()


def test_a_process_that_died_does_nothing_more() -> None:
    """Whatever it had on the wire may arrive, and everything else ends with it."""
    deaths = 0
    for seed in range(60):
        result = Simulation(Bank, seed, kinds=[FaultKind.DIES]).run()
        assert result.violated is None, tell(result)
        dead: set[str] = set()
        for event in result.trace:
            if event.what == "fault" and event.details[0].kind is FaultKind.DIES:
                dead.add(event.who)
                deaths += 1
            elif event.who in dead:
                assert event.what in ("arrives late", "commits in one step"), event
    assert deaths > 10


# --- The command ------------------------------------------------------------------------


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_tells_a_story_and_refuses_what_makes_no_sense() -> None:
    told = command("--workload", "bank", "--seed", "7", "--story")
    assert told.returncode == 0, told.stderr
    assert "Every claim holds." in told.stdout
    assert "client 1" in told.stdout
    refused = command("--seed", "7")
    assert refused.returncode == 2
    assert "--seed needs one --workload" in refused.stderr
    refused = command("--workload", "bank", "--seed", "7", "--faults", "nonsense")
    assert refused.returncode == 2
    assert "is not a fault" in refused.stderr


def test_a_run_in_which_a_fault_never_happens_fails() -> None:
    few = command("--seeds", "1", "--jobs", "1", "--workload", "bank")
    assert few.returncode == 1
    assert "never happened" in few.stdout


def test_jobs_are_spread_over_the_workloads() -> None:
    jobs = jobs_of(["bank", "weak"], 5, first=10)
    assert jobs == [("bank", 10), ("weak", 10), ("bank", 11), ("weak", 11), ("bank", 12)]
    assert {name: one.seeds for name, one in run_jobs(jobs[:3]).items()} == {"bank": 2, "weak": 1}

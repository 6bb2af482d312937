"""The mutants that fall within few seeds do so; and what makes a hunt worth believing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from percola.testing.simulation import FaultKind, SimulatedStore
from percola.transactions import lock_resolver as locks
from percola.transactions.lock_resolver import LockResolver
from tests.simulation.mutants import MUTANTS, RULES
from tests.simulation.mutants.hunting import Try, hunt, shrunk
from tests.simulation.mutants.mutant import Collection, Mutant, Seams
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.bank import Bank

SLOW = {
    "apart-after-the-commit-point",
    "collects-without-resolving",
    "dead-lettered-for-good",
    "batch-keeps-row-locks",
    "drops-rollback-record",
    "floor-at-once",
    "floor-passes-what-is-pending",
    "job-is-decided-before-its-state-is-looked-at",
    "joins-a-sent-call",
    "keeps-row-lock",
    "leaves-entries-above",
    "locks-go-early",
    "no-wake-up",
    "runs-for-a-node-overlap",
    "notifies-later",
    "pending-go-early",
    "one-step-draws-early",
    "prewrite-passes-rollback-record",
    "reads-while-registering",
    "rollback-records-go-early",
    "rollback-record-is-volatile",
    "rolls-forward-without-notify",
    "splits-in-silence",
    "token-decides",
    "unconditional-lock-removal",
    "walks-no-locks",
    "weak-after-commit-point",
}
"""Those that `python -m tests.simulation.mutants` alone hunts: they take a second or more."""

LONG = {
    "batch-answers-newer",
    "committing-job-is-passed",
    "failure-blocks-others",
    "keeps-rows-that-a-lock-hides",
    "looks-for-locks-last",
}
"""Those that take several seconds."""

SEEDS = 400
"""Many times what any of the others takes."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])
        for name in sorted(set(MUTANTS) - SLOW)
    ],
)
def test_the_simulation_finds_the_mutant_and_passes_without_it(name: str) -> None:
    found = hunt(MUTANTS[name], SEEDS)
    assert found.problem is None, found


def test_every_rule_of_the_protocol_has_a_mutant() -> None:
    broken = {rule for mutant in MUTANTS.values() for rule in mutant.rules}
    assert broken == set(RULES)
    assert set(MUTANTS) >= SLOW | LONG


def test_the_docs_say_how_many_mutants_faults_and_workloads_there_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "reliability.md"
    said = " ".join(page.read_text().split())
    for number, words in (
        (len(MUTANTS), f"mutants for {len(RULES)} rules"),
        (len(FaultKind), "kinds of faults."),
        (len(WORKLOADS), "workloads ("),
    ):
        assert f"{number} {words}" in said, f"docs/reliability.md does not say {number} {words}"


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_called_while_it_is_installed_and_leaves_nothing_behind(mutant: Mutant) -> None:
    assert mutant.does.endswith((".", ")"))
    before = _protocol()
    with mutant.installed() as seams:
        assert _protocol() != before or seams.factories
        assert not seams.calls
    assert _protocol() == before


def _protocol() -> list[Any]:
    """The functions that mutants replace, as they stand now."""
    found: list[Any] = []
    for mutant in MUTANTS.values():
        seams = Seams()
        mutant.put(seams)
        found += [vars(owner)[name] for owner, name, _ in seams.replaced]
    return found


def made(put: Any, **options: Any) -> Mutant:
    """A mutant of the bank."""
    collection = Collection()
    collection.mutant("sample", "P1", Bank, **options)(put)
    return collection[0]


def test_a_mutant_that_changes_nothing_survives() -> None:
    def harmless(seams: Seams) -> None:
        """Does what it replaces."""

        @seams.replaces(LockResolver, "settle")
        def settle(original: Any, *args: Any) -> None:
            original(*args)

        @seams.store
        class Same(SimulatedStore):
            def read(self, *args: Any) -> Any:
                return super().read(*args)

    found = hunt(made(harmless), 10)
    assert found.problem == "sample survived 10 seeds."
    assert found.calls > 100


def test_a_mutant_that_is_never_called_is_no_success() -> None:
    def asleep(seams: Seams) -> None:
        """Replaces what only a rolled back transaction calls."""

        @seams.replaces(locks, "decode_write")
        def decode_write(original: Any, raw: bytes) -> Any:
            raise AssertionError("nobody is in anybody's way here")

    class Idle(Bank):
        def turn(self, client: Any, number: int) -> None:
            return

    collection = Collection()
    collection.mutant("sample", "P1", Idle, kinds=(FaultKind.SLOW,))(asleep)
    problem = hunt(collection[0], 3).problem
    assert problem == "sample was never called: its workloads do not come by."


def test_a_workload_that_fails_by_itself_acquits_the_mutant() -> None:
    class Wrong(Bank):
        name = "wrong"

        def at_rest(self, repo: Any) -> None:
            self.violate("Nothing is ever right.")

    def harmless(seams: Seams) -> None:
        """Does what it replaces."""

        @seams.store
        class Same(SimulatedStore):
            def read(self, *args: Any) -> Any:
                return super().read(*args)

    collection = Collection()
    collection.mutant("sample", "P1", Wrong)(harmless)
    found = hunt(collection[0], 50)
    assert found.problem is not None
    assert "is not to blame: wrong fails" in found.problem


def test_the_story_of_a_mutant_is_shorter_than_the_run_it_was_found_in() -> None:
    class Plain(Bank):
        prefetches = False

    lost = (FaultKind.REPLY_LOST,)
    mutant = replace(MUTANTS["own-commit-not-recognised"], workloads=(Plain,), kinds=lost)
    small = shrunk(mutant, SEEDS)
    assert small is not None
    assert small.violated is not None
    found, _ = Try(Plain, small.seed, small.mode).run(mutant, mutant.kinds)
    assert found.violated is not None
    assert len(small.trace) < len(found.trace)
    # One reply that is lost is all that it takes.
    assert len(small.faults) == 1
    assert small.faults[0].kind in lost

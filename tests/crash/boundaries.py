"""kill -9 at every boundary between the changes that a program makes to its store.

A scenario is a program that is killed, what others did before it, and what must hold after it.
A dry run counts its boundaries; then it runs once for each of them, from the same beginning, and
dies there. Each part is a process of its own, which opens the repository afresh.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import percola
from percola import Repository, Table
from percola.store.base import OneStepStore
from tests.crash.killing import At, KillingStore, Say
from tests.crash.ledger import check_cells
from tests.crash.processes import Ended, Nursery

Act = Callable[[Repository, KillingStore], object]

_ATTEMPTS: Final = 3
"""How often a program is started until it comes to a boundary. It nearly always does."""


@dataclass(frozen=True)
class Death:
    """Where the program died: the boundaries that it reached, the last one included.

    `number` counts the deaths of a scenario: a check may do each time another thing first.
    """

    number: int
    reached: Sequence[str]

    def passed(self, boundary: str) -> bool:
        """Whether the program came as far as this boundary."""
        return boundary in self.reached


@dataclass(frozen=True)
class Scenario:
    """A program, and what is true once it was killed; all functions are a module's own.

    Attributes:
        name: what it is, in words.
        schema: the tables.
        act: the program that is killed at every boundary, with one process for each.
        check: asserts what must hold, as another process; it may work and write as well.
        before: programs that run first, each with the boundary to be killed at, or None.
        phases: what `act` must have been killed before and after.
        one_step: whether the repository commits in one step where it can.
    """

    name: str
    schema: Sequence[Table[Any]]
    act: Act
    check: Callable[[Repository, Death], object]
    phases: frozenset[str]
    before: Sequence[tuple[Act, str | None]] = ()
    one_step: bool = True


# --- In the processes -------------------------------------------------------------------


@contextmanager
def opened(
    folder: Path, scenario: Scenario, durability: str, say: Say, at: At | None
) -> Iterator[tuple[Repository, KillingStore]]:
    """The repository, with a store that kills this process at a boundary."""
    with percola.open(folder, schema=scenario.schema, durability=durability) as plain:
        context = plain.context
        assert isinstance(context.store, OneStepStore)
        store = KillingStore(context.store, say, at)
        # The oracle draws from the store as well: see `percola.oracle.embedded`.
        oracle = type(context.oracle)(store)  # type: ignore[call-arg]
        yield (
            Repository(
                str(folder),
                store,
                oracle,
                context.coordination,
                scenario.schema,
                one_step=scenario.one_step,
            ),
            store,
        )


def run_act(
    say: Say, act: Act, folder: Path, scenario: Scenario, durability: str, at: At | None
) -> None:
    """A program, which may die."""
    with opened(folder, scenario, durability, say, at) as (repo, store):
        store.armed = True
        act(repo, store)


def run_check(say: Say, folder: Path, scenario: Scenario, durability: str, death: Death) -> None:
    """Whoever comes next; the first look is at the cells as they were left."""
    with opened(folder, scenario, durability, say, None) as (repo, _):
        check_cells(repo)
        scenario.check(repo, death)


# --- In the test ------------------------------------------------------------------------


def kill_everywhere(
    nursery: Nursery,
    scenario: Scenario,
    folder: Path,
    *,
    durability: str = "relaxed",
    twice: bool = True,
) -> Iterator[str]:
    """Run a scenario once for each of its boundaries; yields each boundary after its check.

    Between two changes it dies twice, after the one and before the other; without `twice` once:
    to the store that is the same.

    Raises AssertionError if what must hold does not, and if a process was not killed where it
    was to be.
    """
    beginning = folder / "beginning"
    for act, boundary in scenario.before:
        at = (boundary, 0) if boundary is not None else None
        ended = nursery.run(run_act, act, beginning, scenario, durability, at)
        where = f"{scenario.name}, while preparing"
        assert not ended.failure, f"{where}:\n{ended.failure}"
        assert (boundary is not None) == ended.killed, f"{where}: not killed {boundary}"
    percola.open(beginning, schema=scenario.schema, durability=durability).close()
    boundaries = _boundaries(nursery, scenario, beginning, folder, durability)
    earlier: Counter[str] = Counter()
    for number, boundary in enumerate(boundaries):
        at = boundary, earlier[boundary]
        earlier[boundary] += 1
        if number and boundary.startswith("before ") and not twice:
            continue
        killed = folder / f"killed-{number}"
        ended = _die(nursery, scenario, beginning, killed, durability, at)
        where = f"{scenario.name}, boundary {number}, {boundary}"
        assert not ended.failure, f"{where}:\n{ended.failure}"
        assert ended.killed and ended.said[-1] == boundary, f"{where}: {_story(ended)}"
        assert ended.said.count(boundary) == earlier[boundary], f"{where}: {_story(ended)}"
        _check(nursery, scenario, killed, durability, Death(number, ended.said))
        shutil.rmtree(killed)
        yield boundary


def _boundaries(
    nursery: Nursery, scenario: Scenario, beginning: Path, folder: Path, durability: str
) -> list[str]:
    """The boundaries of a program that is not killed, by two runs of it.

    Its threads may now and then do something twice: what both runs came to is always there.
    """
    runs: list[list[str]] = []
    for name in ("dry", "again"):
        dry = _copy(beginning, folder / name)
        ended = nursery.run(run_act, scenario.act, dry, scenario, durability, None)
        assert ended.status == 0 and not ended.failure, f"{scenario.name}:\n{ended.failure}"
        runs.append(ended.said)
        death = Death(len(ended.said), [*ended.said, "the end"])
        _check(nursery, scenario, dry, durability, death)
    left = Counter(runs[0]) & Counter(runs[1])
    boundaries = []
    for boundary in runs[0]:
        if left[boundary]:
            left[boundary] -= 1
            boundaries.append(boundary)
    return boundaries


def _die(
    nursery: Nursery, scenario: Scenario, beginning: Path, copy: Path, durability: str, at: At
) -> Ended:
    """Run the program on a copy, to be killed at a boundary; again, if it did not come there."""
    for attempt in itertools.count(1):
        _copy(beginning, copy)
        ended = nursery.run(run_act, scenario.act, copy, scenario, durability, at)
        if ended.killed or ended.failure or attempt >= _ATTEMPTS:
            return ended
        shutil.rmtree(copy)
    raise AssertionError("unreachable")


def _copy(folder: Path, copy: Path) -> Path:
    # Without the kernel's locks on them the tokens are those of the dead, and they are.
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("lock.mdb", "wake"))
    return copy


def _check(
    nursery: Nursery, scenario: Scenario, folder: Path, durability: str, death: Death
) -> None:
    ended = nursery.run(run_check, folder, scenario, durability, death)
    assert ended.status == 0 and not ended.failure, (
        f"{scenario.name}: killed {death.reached[-1]} (boundary {death.number}), and then\n"
        f"{ended.failure or _story(ended)}\nThe repository is kept in {folder}."
    )


def _story(ended: Ended) -> str:
    return f"ended with status {ended.status} after {', '.join(map(str, ended.said)) or 'nothing'}"


def check_all_fired(scenario: Scenario, killed: Iterable[str]) -> Counter[str]:
    """How often the program died around each phase; AssertionError if it did not around one."""
    counts = Counter(killed)
    missing = sorted({f"after {phase}" for phase in scenario.phases} - counts.keys())
    assert not missing, f"{scenario.name}: nothing was killed {', '.join(missing)}"
    return counts

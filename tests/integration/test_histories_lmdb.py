"""What several processes saw of one LMDB repository, one of them killed: both checkers judge it."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from effort import mostly_long
from stores import Program

import percola
from percola.testing.histories.appends import check_appends
from percola.testing.histories.recorder import Outcome, Recorded, Recorder, merge, read_history
from percola.testing.histories.timestamps import check
from percola.testing.histories.violations import explain
from tests.paper.programs.history_workload import ROWS, TABLES, numbers, register

CLIENTS = 3
COMMITS = 400


def record(folder: Path, workload: str) -> list[Recorded]:
    """The history of some processes, and of one that is killed while they work."""
    store = folder / "repository"
    with percola.open(store, schema=TABLES, durability="relaxed") as repo, ExitStack() as stack:
        names = [f"p{number}" for number in range(1, CLIENTS + 1)]
        paths = {name: folder / f"{name}.jsonl" for name in [*names, "victim"]}
        programs = {
            name: stack.enter_context(
                Program(
                    "history_workload.py", store, path, name, workload,
                    0 if name == "victim" else COMMITS,
                )
            )
            for name, path in paths.items()
        }  # fmt: skip
        for program in programs.values():
            program.expect("begun", 60)
        for program in programs.values():
            program.tell("go on")
        programs["victim"].kill()
        for name in names:
            programs[name].expect("done", 60)
        # At rest: what is still in doubt is seen now, and whatever was lost is missed.
        last = Recorder("last")
        column = register if workload == "registers" else numbers
        with last.transaction(repo) as x:
            for row in ROWS:
                x.get(column, row)
    return merge([*(read_history(path) for path in paths.values()), last.history])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Recorded]]:
    """A copy of the one history that is recorded of each workload."""

    @functools.cache
    def once(workload: str) -> list[Recorded]:
        return record(tmp_path_factory.mktemp(workload), workload)

    return lambda workload: copy.deepcopy(once(workload))


@pytest.mark.parametrize("workload", mostly_long(["appends", "registers"]))
def test_what_processes_saw_is_snapshot_isolation_though_one_was_killed(
    recorded: Callable[[str], list[Recorded]], workload: str
) -> None:
    history = recorded(workload)
    outcomes = Counter(one.outcome for one in history)
    assert outcomes[Outcome.COMMITTED] >= CLIENTS * COMMITS + 20
    assert outcomes[Outcome.ABORTED] >= CLIENTS - 1, "they met, and one may have been killed"
    assert sum(one.process == "victim" for one in history) >= 20
    assert {one.two_phase for one in history if one.writes} == {True, False}
    found = check(history)
    assert not found, explain(found, len(history))
    if workload == "appends":
        found = check_appends(history)
        assert not found, explain(found, len(history))


def test_an_append_that_is_lost_from_a_real_history_is_missed(
    recorded: Callable[[str], list[Recorded]],
) -> None:
    """One committed append is taken out of all later lists: both checkers see it."""
    history = recorded("appends")
    lost, key, element = next(
        (one, key, value[-1])
        for one in history[len(history) // 2 :]
        if one.outcome is Outcome.COMMITTED
        for key, value in one.writes
        if isinstance(value, list)
    )
    for one in history:
        if one is not lost:
            for entries in (one.reads, one.writes):
                entries[:] = [
                    (name, [v for v in value if v != element])
                    if name == key and isinstance(value, list)
                    else (name, value)
                    for name, value in entries
                ]
    for found in (check(history), check_appends(history)):
        assert f"T{lost.id} (" in explain(found)

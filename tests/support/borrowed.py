"""Tests of other modules on another ground: on a store of servers, what was written for a folder.

    globals().update(protocol())
    Test_read = borrow(test_spark_read, ["test_…"], folder=…, repo=…)

The tests say what they claim where they stand. Here they become a class, with the fixtures of their
module but for those that are replaced; pytest then finds the others where it finds the class.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, TypeVar

import pytest
from stores import Ground

TESTS: Final = Path(__file__).parents[1]

_PAPER: Final = (
    "2_1_copies",
    "2_1_emptied",
    "2_1_garbage_collection",
    "2_2_joint",
    "2_2_locked_cells",
    "2_2_locks",
    "2_2_lost_replies",
    "2_2_reads",
    "2_2_transactions",
    "2_4_dedicated",
    "2_4_batches",
    "2_4_batches_observed",
    "2_4_marked_writes",
    "2_4_notifications",
    "2_4_observers",
    "2_4_worker",
    "2_5_prefetch",
    "feed",
    "feed_reach",
)

MORE: Final = (
    "2_1_cells",
    "2_1_holds",
    "2_1_old_versions",
    "2_2_joint_attempts",
    "2_2_retry",
    "2_2_transactional",
    "2_4_answered",
    "2_4_attempts",
    "2_4_batch_failures",
    "2_4_deferred",
    "2_4_failures",
    "2_4_given_up",
    "2_4_idle",
    "2_4_several_columns",
    "2_5_batching",
)
"""For a store that is quick: these are about workers and programs, and say little of the store."""


SMOKE: Final = frozenset(
    {
        "anomalies.test_lost_update",
        "anomalies.test_read_skew",
        "paper.test_2_2_lost_replies",
        "paper.test_2_2_transactions",
        "paper.test_2_4_notifications",
        "paper.test_2_4_observers",
    }
)
"""What `make test` runs of the protocol on each store; `make test-all` runs the rest."""

Marked = TypeVar("Marked", bound=Callable[..., Any])


def only_near(why: str) -> Callable[[Marked], Marked]:
    """Marks a test that would say nothing of a store on a server, and says why."""

    def mark(test: Marked) -> Marked:
        vars(test)["only_near"] = why
        return test

    return mark


def protocol(more: Iterable[str] = ()) -> dict[str, type]:
    """The protocol on a `ground`, by names of classes: all anomalies, transactions, observers."""
    anomalies = sorted(path.stem for path in (TESTS / "anomalies").glob("test_*.py"))
    names = [f"tests.anomalies.{one}" for one in anomalies if one != "test_table"]
    names += [f"tests.paper.test_{one}" for one in (*_PAPER, *more)]
    found = {}
    for name in names:
        module = importlib.import_module(name)
        made = borrow(module, _on_the_ground(module), repo=repo_of(module))
        if name.removeprefix("tests.") not in SMOKE:
            made = pytest.mark.long(made)
        found["Test_" + name.rpartition(".")[2].removeprefix("test_")] = made
    return found


def _on_the_ground(module: ModuleType) -> list[str]:
    """The tests that stand on the ground: the others say nothing of another one."""
    made = {name for name, one in vars(module).items() if isinstance(one, _FIXTURE)}
    return [
        name
        for name, one in vars(module).items()
        if name.startswith("test_")
        and not hasattr(one, "only_near")
        and {"ground", "repo", *made} & {*inspect.signature(one).parameters}
    ]


def repo_of(module: ModuleType) -> Any:
    """A fixture `repo` that is a repository with a module's tables, on the ground."""

    @pytest.fixture
    def repo(self: object, ground: Ground) -> Any:
        return ground.repo(module.TABLES)

    return repo


def borrow(
    module: ModuleType, only: Iterable[str] = (), first_case_of: Iterable[str] = (), **fixtures: Any
) -> type:
    """A module's tests as a class, or only some of them.

    Args:
        first_case_of: tests besides `only` of whose parameters the first are enough.
        fixtures: those that replace the module's own, by name: functions of `self` and others, or
            None for one that pytest is to find elsewhere.
    """
    first = set(first_case_of)
    wanted = first | set(only)
    members: dict[str, Any] = {name: one for name, one in fixtures.items() if one is not None}
    found = set()
    for name, one in vars(module).items():
        if isinstance(one, _FIXTURE):
            if name not in fixtures and one.__wrapped__.__module__ == module.__name__:
                members[name] = _fixture_of(name, one.__wrapped__)
        elif name.startswith("test_") and (not wanted or name in wanted):
            members[name] = staticmethod(_first_case(one) if name in first else one)
            found.add(name)
    assert found and (not wanted or found == wanted), f"{module.__name__} has no {wanted - found}"
    if marks := getattr(module, "pytestmark", None):
        members["pytestmark"] = marks
    return type("Test", (), {**members, "__doc__": module.__doc__})


def _first_case(test: FunctionType) -> FunctionType:
    made = FunctionType(test.__code__, test.__globals__, test.__name__, None, test.__closure__)
    made = functools.update_wrapper(made, test)
    vars(made).pop("__wrapped__")  # From which pytest would take all marks.
    [cases] = [mark for mark in vars(test)["pytestmark"] if mark.name == "parametrize"]
    vars(made)["pytestmark"] = []
    return pytest.mark.parametrize(cases.args[0], cases.args[1][:1])(made)


_FIXTURE: Final = type(pytest.fixture(lambda: None))


def _fixture_of(name: str, made: Callable[..., Any]) -> Any:
    """A fixture of a module, as one of a class."""
    assert not inspect.isgeneratorfunction(made), f"{name} would not be ended: replace it"
    wanted = list(inspect.signature(made).parameters)

    def method(self: object, request: pytest.FixtureRequest) -> Any:
        return made(**{one: request.getfixturevalue(one) for one in wanted})

    return pytest.fixture(name=name)(method)

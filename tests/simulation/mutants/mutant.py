"""A mutant: the protocol with one seeded bug, put in at the seams and taken out again."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from percola.testing.simulation import (
    FaultKind,
    Mode,
    SimulatedCoordination,
    SimulatedOracle,
    SimulatedStore,
    Workload,
)


class Seams:
    """Where a mutant puts its pieces, for one run.

    Attributes:
        factories: what the simulation makes its surroundings with.
        calls: how often a piece of the mutant was called.
        replaced: (owner, name, piece) of what it puts in the place of something.
    """

    def __init__(self) -> None:
        self.factories: dict[str, Any] = {}
        self.calls = 0
        self.replaced: list[tuple[object, str, Callable[..., Any]]] = []

    def replaces(self, owner: object, name: str) -> Callable[[Callable[..., Any]], Any]:
        """Put a function in the place of a method or function of the protocol.

        It gets what it replaces as its first argument, and then what that would be called with.
        """
        original = getattr(owner, name)

        def put(piece: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def replaced(*args: Any, **named: Any) -> Any:
                self.calls += 1
                return piece(original, *args, **named)

            self.replaced.append((owner, name, replaced))
            return piece

        return put

    def store(self, made: type[SimulatedStore]) -> type[SimulatedStore]:
        """Let every process reach the store through this class."""
        self.factories["make_store"] = self._counting(made)
        return made

    def oracle(self, made: type[SimulatedOracle]) -> type[SimulatedOracle]:
        """Let every process reach the oracle through this class."""
        self.factories["make_oracle"] = self._counting(made)
        return made

    def coordination(self, made: type[SimulatedCoordination]) -> type[SimulatedCoordination]:
        """Let every process reach the lock service through this class."""
        self.factories["make_coordination"] = self._counting(made)
        return made

    def _counting(self, made: type) -> type:
        """The same class; the methods that it has of its own count their calls."""

        def counted(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def call(*args: Any, **named: Any) -> Any:
                self.calls += 1
                return method(*args, **named)

            return call

        for name, method in list(vars(made).items()):
            if callable(method) and not name.startswith("__"):
                setattr(made, name, counted(method))
        return made

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Everything that was replaced, for as long as the block lasts."""
        with contextlib.ExitStack() as stack:
            for owner, name, replaced in self.replaced:
                stack.enter_context(mock.patch.object(owner, name, replaced))
            yield


@dataclass(frozen=True)
class Mutant:
    """A seeded bug that the simulation must find.

    Attributes:
        name: as it is called on the command line.
        rules: what it breaks; several if one alone is upheld by another.
        does: what it does wrong, in a sentence or two.
        workloads: which can show it.
        modes: how transactions commit where it can show; empty: as the seed says.
        kinds: the faults under which its workloads can tell it from a misfortune.
        put: puts its pieces in.
    """

    name: str
    rules: tuple[str, ...]
    does: str
    workloads: tuple[type[Workload], ...]
    modes: tuple[Mode, ...]
    kinds: tuple[FaultKind, ...]
    put: Callable[[Seams], None]

    @contextlib.contextmanager
    def installed(self) -> Iterator[Seams]:
        """Put it in for one run; afterwards nothing of it is left."""
        seams = Seams()
        self.put(seams)
        with seams.installed():
            yield seams


class Collection(list[Mutant]):
    """The mutants of one section, in the order in which they are written."""

    def mutant(
        self,
        name: str,
        rules: str,
        *workloads: type[Workload],
        modes: tuple[Mode, ...] = (),
        kinds: tuple[FaultKind, ...] = tuple(FaultKind),
    ) -> Callable[[Callable[[Seams], None]], Callable[[Seams], None]]:
        """Make a mutant of a function that puts its pieces in; its docstring says what it does."""

        def make(put: Callable[[Seams], None]) -> Callable[[Seams], None]:
            does = " ".join((put.__doc__ or "").split())
            self.append(Mutant(name, tuple(rules.split()), does, workloads, modes, kinds, put))
            return put

        return make


TWO_PHASE = (Mode.TWO_PHASE,)
WITH_LOCKS = (Mode.TWO_PHASE, Mode.MIXED)

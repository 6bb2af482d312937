"""A workload: the clients and observers of a simulation, and the properties to check."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from percola.cells import Cell
from percola.observers.observer import Observer
from percola.observers.runner import WorkerOptions
from percola.repository import Repository
from percola.schema import Column, Table
from percola.testing.simulation.faults import FaultKind
from percola.testing.simulation.world import ClaimViolatedError

if TYPE_CHECKING:
    from percola.testing.simulation.clients import Client
    from percola.testing.simulation.run import Simulation


class Mode(Enum):
    """How the transactions of a run commit."""

    TWO_PHASE = "two-phase"
    ONE_STEP = "one-step"
    MIXED = "mixed"

    @property
    def is_mixed(self) -> bool:
        """Whether both kinds take part."""
        return self is Mode.MIXED


Sizes = Mapping[str, tuple[int, int]]
"""The least and the most of each number that makes a workload larger."""

COMMON_SIZES: Final[Sizes] = {
    "clients": (2, 5),
    "turns": (2, 8),
    "workers": (1, 2),
}
"""How many clients, how many turns each, how many workers (if there are observers)."""


class Workload(ABC):
    """One run of a workload; derive from it, and see the package's text for an example.

    Attributes:
        name: what it is called on the command line.
        tables: the schema.
        sizes: the least and the most of each number that makes the workload larger; a run
            draws them, and shrinking makes them smaller. `COMMON_SIZES` come by themselves.
        modes: how its transactions may commit.
        pause: seconds that a client waits at most between turns.
        kinds: the kinds of faults that may happen.
        lock_ttl_seconds: the time to live of its locks.
        options: for its workers.
        prefetches: whether what past transactions read next comes along (§2.5); None: as the seed
            says.
        has_notify_table: whether notify entries have a table of their own
            (`Store.has_notify_table`); None: as the seed says.
        has_volatile_writes: whether what is not durable may be lost
            (`Store.has_volatile_writes`); None: as the seed says.
        has_feed_index: whether feeds are in the changed rows and have an index, where transactions
            commit in two phases (`Store.feed_index`); None: as the seed says.
    """

    name: ClassVar[str]
    tables: ClassVar[Sequence[Table[Any]]]
    sizes: ClassVar[Sizes] = {}
    modes: ClassVar[Sequence[Mode]] = tuple(Mode)
    pause: ClassVar[float] = 0.01
    kinds: ClassVar[Sequence[FaultKind]] = tuple(FaultKind)
    lock_ttl_seconds: ClassVar[float] = 0.15
    prefetches: ClassVar[bool | None] = None
    has_notify_table: ClassVar[bool | None] = None
    has_volatile_writes: ClassVar[bool | None] = None
    has_feed_index: ClassVar[bool | None] = False
    options: ClassVar[WorkerOptions] = WorkerOptions(
        threads=2, attempts=3, first_wait=0.02, longest_wait=0.1, timeout=1e4, rescan=0.5, sweep=0.5
    )

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def size(self, name: str) -> int:
        """A size of this run."""
        return self.simulation.sizes[name]

    def observers(self) -> Sequence[Observer[Any]]:
        """The observers that its workers run; made for each worker's life."""
        return ()

    def set_up(self, client: Client) -> None:
        """Write the initial data; no faults happen here. By default, nothing."""
        return

    @abstractmethod
    def turn(self, client: Client, number: int) -> None:
        """What a client does in its turn `number`, from 1; one in which it dies is over."""

    def recover(self, repo: Repository) -> None:
        """Undo what would keep the workers from coming to rest, such as a pause of an observer.

        Called when nothing goes wrong any more, several times, as calls in flight may still arrive.
        By default, nothing.
        """
        return

    @abstractmethod
    def at_rest(self, repo: Repository) -> None:
        """Check the final state: nothing is locked, the workers are idle.

        Raises ClaimViolatedError (`violate`) if it does not.
        """

    def patched(self) -> AbstractContextManager[Any]:
        """A context manager around the run, for constants that the workload needs smaller."""
        return contextlib.nullcontext()

    @staticmethod
    def violate(claim: str, *cells: tuple[Column[Any, Any], Any]) -> None:
        """Report a violated property, and the cells that show it."""
        raise ClaimViolatedError.of(
            claim, [Cell(c.table_name, c.table.encode_row(r), c.key) for c, r in cells]
        )

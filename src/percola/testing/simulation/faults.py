"""Faults: which can happen, how often, and which did.

A process numbers its calls, so a fault has an address: "call 12 of client 2". A run draws its
faults from its seed and lists them; the same run with the list instead, or with a part of it, is
how a failing run is shrunk.

Each seed picks the kinds of faults and how often they happen (some have none at all): a run with
all kinds at once hides bugs that need two faults of one kind.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from percola.errors import UsageError


class FaultKind(Enum):
    """Kinds of faults; the value is the name in a list of faults."""

    DIES = "dies"
    """The process dies at this call; a call in flight may still arrive later."""
    REPLY_LOST = "reply-lost"
    """The mutation takes effect, and its reply is lost."""
    CALL_LOST = "call-lost"
    """The mutation is lost, and the caller cannot tell."""
    LATE = "late"
    """The caller's call times out, and the mutation takes effect after that."""
    DUPLICATED = "duplicated"
    """The mutation takes effect, and the network delivers it once more, later."""
    SLOW = "slow"
    """The call takes long, and others overtake it."""
    PAUSED = "paused"
    """The whole process pauses for a while: a suspended machine, a long garbage collection."""
    UNREACHABLE = "unreachable"
    """The store refuses this process's calls for a while."""
    ORACLE_RESTARTED = "oracle-restarted"
    """The oracle loses what it had reserved: timestamps jump; a call under way fails."""
    TOKEN_LOST = "token-lost"
    """The others see the process as dead; it does not know."""
    CLOCK_JUMP = "clock-jump"
    """The process's wall clock jumps either way, its monotonic clock ahead."""
    TABLET_SPLIT = "tablet-split"
    """A table's tablet boundaries change."""
    WAKE_UP_LOST = "wake-up-lost"
    """A commit's wake-up reaches no worker."""
    SERVER_DIED = "server-died"
    """Servers of the store die: what was not written durably to some of the rows is lost."""


class Call(Enum):
    """Kinds of calls, as far as different things can go wrong with them."""

    MUTATE = "mutate"
    ONE_STEP = "one-step"
    READ = "read"
    ORACLE = "oracle"
    COORDINATION = "coordination"
    WAKE = "wake"


_ANYWHERE: Final = (
    FaultKind.DIES,
    FaultKind.SLOW,
    FaultKind.PAUSED,
    FaultKind.UNREACHABLE,
    FaultKind.ORACLE_RESTARTED,
    FaultKind.TOKEN_LOST,
    FaultKind.CLOCK_JUMP,
    FaultKind.TABLET_SPLIT,
    FaultKind.SERVER_DIED,
)
_OF_MUTATIONS: Final = (
    FaultKind.REPLY_LOST,
    FaultKind.CALL_LOST,
    FaultKind.LATE,
    FaultKind.DUPLICATED,
)
POSSIBLE: Final[dict[Call, frozenset[FaultKind]]] = {
    Call.MUTATE: frozenset(_ANYWHERE + _OF_MUTATIONS),
    Call.ONE_STEP: frozenset(_ANYWHERE),
    Call.READ: frozenset(_ANYWHERE),
    Call.ORACLE: frozenset(_ANYWHERE),
    Call.COORDINATION: frozenset(_ANYWHERE),
    Call.WAKE: frozenset((FaultKind.WAKE_UP_LOST,)),
}
"""What can go wrong with each kind of call."""

_BURST: Final = 0.4
"""How likely one fault is followed by another within few calls: a single fault rarely breaks a
protocol."""

_FAULT_CALLS: Final = 60
"""How many calls a fault waits for one that it can happen to."""

_RATES: Final = (0.0, 0.01, 0.03, 0.08, 0.15)


class Fault(NamedTuple):
    """One fault: call number `call` (from 1) of a process; `amount` in [0, 1) says how much."""

    process: str
    call: int
    kind: FaultKind
    amount: float

    def __str__(self) -> str:
        return f"{self.process}#{self.call}:{self.kind.value}:{self.amount:.4f}"


def parse_faults(text: str) -> list[Fault]:
    """The inverse of joining faults by `;`. Raises UsageError if `text` is not a list of faults."""
    faults = []
    for one in filter(None, text.split(";")):
        try:
            process, _, rest = one.rpartition("#")
            call, kind, amount = rest.split(":")
            faults.append(Fault(process, int(call), FaultKind(kind), float(amount)))
        except ValueError:
            raise UsageError(
                f"{one!r} is not a fault: write PROCESS#CALL:KIND:AMOUNT, as a story does."
            ) from None
    return faults


class Faults:
    """The faults of a run: those that may happen, and those that did.

    Args:
        rng: which kinds may happen, and how often, are drawn from it.
        listed: these and no others happen, instead of what would be drawn.
        kinds: what may happen at all.

    Attributes:
        rate: how likely a call is to go wrong.
        kinds: what may go wrong in this run.
        fired: what has happened, in order.
        is_over: set when no more may happen.
    """

    def __init__(
        self,
        rng: random.Random,
        listed: Sequence[Fault] | None = None,
        kinds: Iterable[FaultKind] = tuple(FaultKind),
    ) -> None:
        self.fired: list[Fault] = []
        self.is_over = False
        self.listed = None if listed is None else list(listed)
        every = tuple(kinds)
        self.rate = rng.choice(_RATES)
        # Few frequent kinds find bugs that many rare kinds do not.
        most = min(rng.choice((4, len(every))), len(every))
        self.kinds = rng.sample(every, rng.randint(min(2, most), most))

    def of(self, process: str, rng: random.Random) -> Lot:
        """The faults of one process."""
        return Lot(self, process, rng)

    def counts(self) -> Counter[FaultKind]:
        """How often each kind has happened."""
        return Counter(fault.kind for fault in self.fired)


class Lot:
    """The faults of one process, one after the other.

    Attributes:
        due: the number of the next call to ask about; later ones, too, until it has happened.
    """

    def __init__(self, faults: Faults, process: str, rng: random.Random) -> None:
        self._faults = faults
        self._process = process
        self._rng = rng
        self._next: Fault | None = None
        self._listed: list[Fault] | None = None
        if faults.listed is not None:
            mine = [fault for fault in faults.listed if fault.process == process]
            self._listed = sorted(mine, key=lambda fault: fault.call)
        self.due: float = 0
        self._draw(0)

    def happens(self, number: int, call: Call) -> Fault | None:
        """The fault that happens to this call, if one does."""
        fault = self._next
        if fault is None or self._faults.is_over:
            self.due = math.inf
            return None
        if fault.kind not in POSSIBLE[call]:
            # It waits for a call that it can happen to, but not forever.
            if number - fault.call > _FAULT_CALLS:
                self._draw(number)
            return None
        fault = fault._replace(call=number)
        self._faults.fired.append(fault)
        self._draw(number)
        return fault

    def _draw(self, after: int) -> None:
        self._next = None
        if self._listed is not None:
            if self._listed:
                self._next = self._listed.pop(0)
        elif self._faults.rate and self._faults.kinds:
            rng = self._rng
            gap = math.log(1.0 - rng.random()) / math.log(1.0 - self._faults.rate)
            if after and rng.random() < _BURST:
                gap = rng.randrange(8)
            kind = rng.choice(self._faults.kinds)
            # As it is written in a list, so that a list replays it exactly.
            amount = rng.randrange(10_000) / 10_000
            self._next = Fault(self._process, after + 1 + int(gap), kind, amount)
        self.due = math.inf if self._next is None else self._next.call

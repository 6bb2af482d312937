"""Mutants of §2.3 and of what timestamps are drawn for: P1, P2, P11."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

from percola.oracle.base import Oracle
from percola.testing.simulation import (
    Call,
    FaultKind,
    Mode,
    Process,
    SimulatedOracle,
    SimulatedStore,
)
from percola.transactions.context import TransactionContext
from percola.transactions.two_phase import TwoPhaseCommit
from tests.simulation.mutants.mutant import TWO_PHASE, Collection, Seams
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.register import Register

TIMESTAMPS = Collection()


@TIMESTAMPS.mutant("per-client-ranges", "P1", Bank, Appends, modes=TWO_PHASE)
def per_client_ranges(seams: Seams) -> None:
    """Each client reserves a range of timestamps and hands them out later: one that begins with
    a larger range does not meet what another commits below it."""

    @seams.oracle
    class Ranges(SimulatedOracle):
        def __init__(self, process: Process) -> None:
            super().__init__(process)
            self._left: list[int] = []

        def timestamp(self) -> int:
            if not self._left:
                last = super().timestamp()
                self._process.world.store.draw(40)
                self._left = list(range(last, last + 40, 2))
            return self._left.pop(0)


@TIMESTAMPS.mutant("joins-a-sent-call", "P1", Bank, Appends, Register, modes=TWO_PHASE)
def joins_a_sent_call(seams: Seams) -> None:
    """A request joins an oracle call that has been sent: it may get a timestamp below that of a
    commit which was acknowledged before the request was made."""
    replies: tuple[list[list[int]], list[list[int]]] = ([], [])  # of two machines' clients

    @seams.oracle
    class Batching(SimulatedOracle):
        def timestamp(self) -> int:
            mine = replies[sum(self._process.name.encode()) % 2]
            for left in mine:
                if left:
                    joined = left.pop(0)
                    self._process.gap()
                    return joined
            last = self._process.world.store.draw(20)
            reply = list(range(last - 19, last, 2))
            mine.append(reply)
            first = reply.pop(0)
            try:
                self._process.call(Call.ORACLE)  # The reply's way back.
            finally:
                mine.remove(reply)
            return first


@TIMESTAMPS.mutant("reuses-after-restart", "P1", Bank, Appends, Register)
def reuses_after_restart(seams: Seams) -> None:
    """After a restart the oracle goes on from what it had saved a while ago: it hands out
    timestamps that stand in the store already."""
    restarts = 0
    handed_out = 0

    @seams.oracle
    class Forgetful(SimulatedOracle):
        def timestamp(self) -> int:
            self.forget()
            return self.note(super().timestamp())

        def read_timestamp(self) -> int:
            self.forget()
            return self.note(super().read_timestamp())

        def note(self, ts: int) -> int:
            nonlocal handed_out
            handed_out = max(handed_out, ts)
            return ts

        def forget(self) -> None:
            nonlocal restarts
            world = self._process.world
            fired = world.faults.counts()[FaultKind.ORACLE_RESTARTED]
            if fired > restarts and handed_out:
                restarts = fired
                world.store._drawn = max(1, handed_out - 20)


@TIMESTAMPS.mutant("early-commit-ts", "P2", Bank, Appends, Register, modes=TWO_PHASE)
def early_commit_ts(seams: Seams) -> None:
    """commit_ts is drawn before the last prewrite was acknowledged: a reader in between has a
    larger start_ts, finds no lock yet, and misses the commit."""

    class Drawn(Oracle):
        def __init__(self, context: TransactionContext) -> None:
            self._ts = context.oracle.timestamp()

        def timestamp(self) -> int:
            return self._ts

        def read_timestamp(self) -> int:
            return self._ts

    @seams.replaces(TwoPhaseCommit, "run")
    def run(original: Any, self: Any, *args: Any) -> Any:
        self._context = dataclasses.replace(self._context, oracle=Drawn(self._context))
        return original(self, *args)


@TIMESTAMPS.mutant(
    "one-step-draws-early", "P11", Bank, Appends, Register, modes=(Mode.ONE_STEP, Mode.MIXED)
)
def one_step_draws_early(seams: Seams) -> None:
    """The one-step commit draws commit_ts before it holds the store's lock: a reader in between
    has a larger start_ts and misses the commit."""

    @seams.store
    class DrawsEarly(SimulatedStore):
        def commit_one_step(self, *args: Any) -> Any:
            commit_ts = self._inner.draw()
            self._process.gap()
            with mock.patch.object(self._inner, "draw", return_value=commit_ts):
                return self._inner.commit_one_step(*args)

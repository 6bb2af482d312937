"""All workloads, by name."""

from __future__ import annotations

from percola.testing.simulation import Workload
from tests.simulation.workloads.ahead import ReadingAhead
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.batches import Batches
from tests.simulation.workloads.chain import Chain
from tests.simulation.workloads.collapsing import Collapsing
from tests.simulation.workloads.collecting import Collecting
from tests.simulation.workloads.columns import Columns
from tests.simulation.workloads.counters import Counters
from tests.simulation.workloads.dead_letters import DeadLetters
from tests.simulation.workloads.following import Following
from tests.simulation.workloads.joint import Joint
from tests.simulation.workloads.large import Large
from tests.simulation.workloads.paused import Paused
from tests.simulation.workloads.recipes import Climbing, Joining, Summing
from tests.simulation.workloads.register import Register
from tests.simulation.workloads.skew import WriteSkew
from tests.simulation.workloads.unique import Unique
from tests.simulation.workloads.weak import Weak

WORKLOADS: dict[str, type[Workload]] = {
    one.name: one
    for one in (
        Bank,
        Appends,
        Register,
        Unique,
        WriteSkew,
        Large,
        Collapsing,
        Weak,
        Batches,
        Columns,
        Paused,
        Chain,
        Counters,
        DeadLetters,
        Collecting,
        Joint,
        Following,
        ReadingAhead,
        Summing,
        Joining,
        Climbing,
    )
}

"""Commits that a store sends by itself keep every claim, whatever becomes of what it sends."""

from __future__ import annotations

import pytest

from percola.testing.simulation import Mode, Simulation
from tests.simulation.prepared import OUTCOMES, PreparingStore, prepared
from tests.simulation.workloads import WORKLOADS

NAMES = [name for name, one in WORKLOADS.items() if Mode.TWO_PHASE in one.modes]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 40), marks=pytest.mark.long)])
def test_every_claim_holds_where_the_store_sends_commits_by_itself(seeds: range) -> None:
    OUTCOMES.clear()
    for name in NAMES:
        workload = prepared(WORKLOADS[name])
        for seed in seeds:
            result = Simulation(
                workload, seed, mode=Mode.TWO_PHASE, make_store=PreparingStore
            ).run()
            assert result.violated is None, (name, seed, result.violated)
    every = {(phase, one) for phase in ("prewrite", "commit") for one in (True, False, None)}
    assert {*OUTCOMES} == every, "nothing was lost, or refused"

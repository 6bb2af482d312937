"""kill -9 at every boundary between two changes of the store: nothing lost, nothing torn."""

from __future__ import annotations

from pathlib import Path

import pytest
from effort import mostly_long

from tests.crash.boundaries import Scenario, check_all_fired, kill_everywhere
from tests.crash.broken import BROKEN
from tests.crash.export import EXPORTS
from tests.crash.processes import Nursery
from tests.crash.scenarios import SCENARIOS


@pytest.mark.parametrize(
    "scenario", [*SCENARIOS, *mostly_long(EXPORTS)], ids=lambda one: one.name.replace(" ", "-")
)
def test_killed_at_any_boundary_all_is_as_if_it_had_not_been_there_or_had_gone_on(
    nursery: Nursery, scenario: Scenario, scratch: Path
) -> None:
    killed = kill_everywhere(nursery, scenario, scratch, twice=False)
    check_all_fired(scenario, killed)


@pytest.mark.parametrize("scenario", BROKEN, ids=lambda one: one.act.__name__.replace("_", "-"))
def test_a_seeded_bug_is_found(nursery: Nursery, scenario: Scenario, scratch: Path) -> None:
    with pytest.raises(AssertionError, match="and then"):
        for _ in kill_everywhere(nursery, scenario, scratch, twice=False):
            pass

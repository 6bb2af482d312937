"""Whatever happens to an index in its life, `webindex verify` exits with 0 afterwards.

The same scenarios run at the size of a corpus: `make corpus`.
"""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from tests.scenarios import scenarios
from tests.scenarios.crawls import captures, places, sample_crawl
from tests.scenarios.scenarios import SCENARIOS, Outcome, Scenario
from tests.scenarios.stage import Stage
from tests.scenarios.states import check_same, state_of
from tests.scenarios.updates import WEIGHTS, Updates
from webindex import tables
from webindex.crawl.warc import Revisit

# The updates wait for a few hundred commits of each of four processes, on however busy a machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Scenarios share the Spark context, and copies of one bulk load of the sample."""
    seed = random.randrange(2**32)
    folder = tmp_path_factory.mktemp("scenarios")
    return Stage(folder, sample_crawl(folder / "crawl", seed), seed, timeout=600)


def played(stage: Stage, scenario: Scenario) -> Outcome:
    """How it ended; `verify` has exited with 0 then."""
    print(f"seed {stage.seed}")  # Shown if it fails.
    try:
        outcome = scenario(stage)
    finally:
        stage.clear()
    assert outcome.verdict.code == 0
    assert outcome.captures > 0
    return outcome


def test_every_scenario_is_played_here() -> None:
    here = {name.removeprefix("test_after_") for name in globals() if name.startswith("test_after")}
    assert {name.replace("-", "_") for name in SCENARIOS} == here


@pytest.mark.long
def test_after_bulk_load(stage: Stage) -> None:
    outcome = played(stage, scenarios.bulk_load)
    assert (outcome.captures, outcome.verdict.said["live"]) == (206, 204)


@pytest.mark.long
def test_after_same_crawl_again(stage: Stage) -> None:
    assert "0 transactions downstream, 0 exports" in played(stage, scenarios.same_crawl_again).said


@pytest.mark.long
def test_after_incremental_load(stage: Stage) -> None:
    assert played(stage, scenarios.incremental_load).captures == 206


@pytest.mark.long
def test_after_recrawl(stage: Stage) -> None:
    assert played(stage, scenarios.recrawl).captures == 206


@pytest.mark.long
def test_after_removals(stage: Stage) -> None:
    assert played(stage, scenarios.removals).captures == 20


@pytest.mark.long
def test_after_random_updates(stage: Stage) -> None:
    outcome = played(stage, scenarios.random_updates)
    assert outcome.captures >= scenarios.UPDATES
    assert "killed 2 updaters and 2 workers" in outcome.said


@pytest.mark.long
def test_after_rank(stage: Stage) -> None:
    outcome = played(stage, scenarios.rank)
    assert outcome.captures == 204


@pytest.mark.long
def test_after_rebuild_then_incremental(stage: Stage) -> None:
    played(stage, scenarios.rebuild_then_incremental)


@pytest.mark.long
def test_after_shuffled_loads(stage: Stage) -> None:
    outcome = played(stage, scenarios.shuffled_loads)
    assert f"{scenarios.ORDERS} orders" in outcome.said


# --- What the scenarios rely on -------------------------------------------------------------


def test_random_updates_are_of_all_kinds_and_end_in_all_sorts_of_redirects(stage: Stage) -> None:
    pages = [one for one in captures(stage.crawl.first) if one.status == 200]
    updates = Updates(pages, stage.seed)
    answers = updates.take(scenarios.UPDATES)
    assert scenarios.UPDATES <= len(answers) < scenarios.UPDATES + 5
    assert updates.kinds.keys() == WEIGHTS.keys() and min(updates.kinds.values()) >= 10
    assert updates.near >= 50
    became = updates.became()
    assert became["a redirect through too many others"] >= 1
    assert became["a redirect that ends in a cycle"] >= 3
    assert became["a redirect through others"] >= 3
    again = Updates(pages, stage.seed)
    assert again.take(scenarios.UPDATES) == answers


def test_one_cell_that_differs_makes_two_states_differ(stage: Stage) -> None:
    one, other = stage.loaded("one"), stage.loaded("other")
    with one.opened() as repo, other.opened() as changed:
        check_same(state_of(repo), state_of(changed))
        row = next(iter(changed.snapshot().scan(tables.hosts))).key
        changed.run(lambda t: t.delete(tables.live, row))
        with pytest.raises(
            AssertionError, match=f"1 rows differ:\n  hosts {row}: only in the first"
        ):
            check_same(state_of(repo), state_of(changed))


def test_the_sample_is_crawled_again_with_pages_of_every_sort(stage: Stage) -> None:
    again = [one for _, one in places(stage.crawl.recrawl)]
    assert len(again) == 206
    assert sum(1 for one in again if isinstance(one, Revisit) and one.payload_digest) > 50
    gone = [one for _, one in places(stage.crawl.removals)]
    assert {getattr(one, "status", None) for one in gone} == {301, 404, 410}

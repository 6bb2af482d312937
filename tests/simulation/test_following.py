"""`percola check` looks at the index of feeds: what no follower would find is found by it."""

from __future__ import annotations

from percola import Repository, feed
from percola.maintenance.check import check
from percola.store.remote.feed_index import COMMITTED, PENDING, deletes
from percola.testing.simulation import Mode, SimulatedStore, Simulation
from tests.simulation.workloads.following import Following, docs, title


class Robbed(Following):
    """At rest a row is changed, and its entry in the index goes."""

    has_feed_index = True

    def at_rest(self, repo: Repository) -> None:
        super().at_rest(repo)
        store = repo.context.store
        assert isinstance(store, SimulatedStore)
        robbed: list[int] = []
        for which in (PENDING, COMMITTED):
            with repo.transaction() as t:
                t.set(title, "robbed", "x")
            assert t.commit_ts is not None
            at = t.start_ts
            if which == COMMITTED:
                assert feed.settled(repo, docs) >= t.commit_ts
                at = t.commit_ts
            assert [one.ts for one in check(repo)] == robbed
            store.mutate(deletes(which, "docs", [(at, b"robbed")]))
            robbed.append(t.commit_ts)
            assert [one.ts for one in check(repo)] == robbed
        assert {one.rule for one in check(repo)} == {"unindexed-change"}
        self.simulation.world.sightings["robbed"] += 1


def test_a_change_without_an_entry_in_the_index_is_found() -> None:
    result = Simulation(Robbed, 1, mode=Mode.TWO_PHASE, sizes={"begins": 0}).run()
    assert result.violated is None
    assert result.sightings["robbed"] == 1

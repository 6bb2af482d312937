"""From where the change feed can be followed: garbage collection, and feeds turned on later."""

from __future__ import annotations

from typing import Any

import pytest
from feeds import PLACES, TABLES, bank, other, put, sound, values
from stores import Crashed, CrashingStore, Ground, SeamStore, cell_of, stopped

from percola import Repository, SnapshotTooOldError, Table, UnknownTableError, UsageError, feed
from percola.cells import MAX_TS, Cell, Kind
from percola.errors import NoFeedError
from percola.maintenance.check import check
from percola.store.base import Store

__all__ = ["TABLES"]  # The fixture `repo` opens them.

# --- From where -------------------------------------------------------------------------


def test_below_the_safe_point_it_is_an_error_and_from_there_on_all_is_there(
    repo: Repository,
) -> None:
    at = [put(repo, "a", "b", value=value) for value in range(5)][-1]
    collected = repo.collect_garbage(retention=0)
    assert collected.changes == 10
    assert feed.since(repo, bank) == collected.safe_point >= at
    with pytest.raises(SnapshotTooOldError) as caught:
        feed.changes(repo, bank, at - 1)
    assert caught.value.safe_point == collected.safe_point
    later = put(repo, "c")
    found = list(feed.changes(repo, bank, collected.safe_point))
    assert [(one.row, one.commit_ts) for one in found] == [("c", later)]
    sound(repo)


def test_while_changes_are_read_garbage_collection_keeps_what_they_need(repo: Repository) -> None:
    begun = put(repo, "z")
    for value in range(5):
        put(repo, "a", value=value)
    reading = feed.changes(repo, bank, begun)
    # From the call on, not only from the first change on.
    assert repo.collect_garbage(retention=0).safe_point == begun
    assert values(next(reading)) == {"bal": 0}
    assert repo.collect_garbage(retention=0).safe_point == begun
    assert [values(one) for one in reading] == [{"bal": value} for value in range(1, 5)]
    assert repo.collect_garbage(retention=0).changes == 5


def test_a_hold_keeps_the_changes_after_it_between_two_readings(repo: Repository) -> None:
    put(repo, "a", value=1)
    repo.hold(feed.settled(repo, bank), 3600, name="follower")
    after = feed.settled(repo, bank)
    put(repo, "a", value=2)
    put(repo, "a", value=3)
    collected = repo.collect_garbage(retention=0)
    assert (collected.safe_point, collected.changes) == (after, 1)
    assert [values(one) for one in feed.changes(repo, bank, after)] == [{"bal": 2}, {"bal": 3}]


plain = Table("bank")
plain_bal = plain.column("bal", int)
fed = Table("bank", feed=True)
fed.column("bal", int)


def test_a_feed_that_is_turned_on_later_lists_what_everybody_writes_from_then_on(
    ground: Ground,
) -> None:
    old = ground.repo([plain])

    def write(repo: Repository, row: str, *, two_phase: bool = False) -> int:
        with repo.transaction(two_phase=two_phase) as t:
            t.set(plain_bal, row, 1)
        assert t.commit_ts is not None
        return t.commit_ts

    before = write(old, "a")
    with pytest.raises(NoFeedError, match=r"Declare it as Table\('bank', feed=True\)"):
        feed.changes(old, plain, before)
    with pytest.raises(NoFeedError):
        feed.since(old, plain)
    new = ground.repo([fed])
    since = feed.since(new, fed)
    assert since >= before
    # Also who had opened the repository before, and who declares it without.
    expected = [("b", write(old, "b")), ("c", write(new, "c")), ("d", write(old, "d"))]
    again = ground.repo([plain])
    expected += [("e", write(again, "e", two_phase=True))]
    assert again.table("bank").feed
    for repo in (old, new, again):
        found = [(one.row, one.commit_ts) for one in feed.changes(repo, plain, since)]
        assert found == expected
        assert feed.since(repo, plain) == since
    if since > 0:
        with pytest.raises(NoFeedError, match=f"since timestamp {since}: it cannot be followed"):
            feed.changes(new, fed, since - 1)
    sound(new)


@pytest.mark.parametrize(("where", "row", "after"), PLACES)
def test_turned_on_while_a_commit_is_in_flight_it_lists_that_if_it_commits_above(
    ground: Ground, where: str, row: str, after: bool
) -> None:
    seam = SeamStore(ground.store)
    t = ground.repo([plain], store=seam).transaction(two_phase=True)
    for name in "abc":
        t.set(plain_bal, name, 9)
    with stopped(seam, t.commit, where, row, after=after) as committing:
        repo = ground.repo([fed])
        since = feed.since(repo, fed)
    commit_ts = committing.result(20)
    found = [one.row for one in feed.changes(repo, fed, since)]
    assert found == (["a", "b", "c"] if commit_ts > since else [])
    assert (commit_ts > since) is (where == "prewrite")
    sound(repo)


def test_a_process_that_dies_while_it_turns_the_feed_on_leaves_that_to_the_next(
    ground: Ground,
) -> None:
    ground.repo([plain])
    store = CrashingStore(ground.store, at=2)
    store.armed = True
    with pytest.raises(Crashed):
        ground.repo([fed], store=store)
    repo = ground.repo([plain])
    since = feed.since(repo, plain)
    with repo.transaction() as t:
        t.set(plain_bal, "a", 1)
    assert [one.commit_ts for one in feed.changes(repo, plain, since)] == [t.commit_ts]


def test_what_cannot_be_asked_is_refused_with_a_sentence(repo: Repository) -> None:
    latest = put(repo, "a")
    with pytest.raises(NoFeedError, match="'other' keeps no feed"):
        feed.changes(repo, other, 0)
    with pytest.raises(UnknownTableError, match="no table 'nowhere'"):
        feed.settled(repo, "nowhere")
    for asked, said in (
        ((latest + 100,), f"no timestamp {latest + 100} yet: the last one is"),
        ((0, latest + 100), f"no timestamp {latest + 100} yet"),
    ):
        with pytest.raises(UsageError, match=said):
            feed.changes(repo, bank, *asked)
    wrong: Any = next(iter(bank.members))
    for ask in (feed.since, feed.settled, lambda repo, table: feed.settle(repo, table, 0)):
        with pytest.raises(UsageError, match="is neither a Table nor the name of one"):
            ask(repo, wrong)
    named: Any = bank.name  # As `settled` and `since` take it.
    for read in (feed.changes, feed.raw_rows):
        with pytest.raises(UsageError, match=f"'{named}' is not a Table: pass"):
            read(repo, named, 0)
    assert list(feed.changes(repo, bank, latest, latest)) == []


# --- What check says --------------------------------------------------------------------


def rules(repo: Repository) -> list[str]:
    return [finding.rule for finding in check(repo)]


def test_check_finds_a_change_that_is_not_listed_and_one_that_is_listed_wrongly(
    ground: Ground, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = put(repo, "a", "b")
    put(repo, "b", value=2)
    assert rules(repo) == []
    lists_change = type(ground.store).lists_change
    monkeypatch.setattr(
        type(ground.store),
        "lists_change",
        lambda self, cell, ts: (cell.row, ts) != (b"a", at) and lists_change(self, cell, ts),
    )
    [finding] = check(repo)
    assert (finding.rule, finding.cell.row, finding.ts) == ("unlisted-change", b"a", at)
    monkeypatch.undo()
    entries = type(ground.store).entries
    monkeypatch.setattr(
        type(ground.store),
        "entries",
        lambda self, cell, kind, low, high, limit=None: (
            []
            if kind is Kind.WRITE and (low, high) == (at, at)
            else entries(self, cell, kind, low, high, limit)
        ),
    )
    assert set(rules(repo)) == {"change-without-write"}


def test_check_asks_nothing_of_what_is_below_the_safe_point_or_older_than_the_feed(
    ground: Ground,
) -> None:
    old = ground.repo([plain])
    with old.transaction() as t:
        t.set(plain_bal, "a", 1)
    repo = ground.repo([fed])
    assert rules(repo) == []
    with repo.transaction() as t:
        t.set(plain_bal, "b", 1)
    repo.collect_garbage(retention=0)
    assert ground.store.entries(cell_of(plain_bal, "b"), Kind.WRITE, 0, MAX_TS)
    assert not ground.store.lists_change(cell_of(plain_bal, "b"), t.commit_ts or 0)
    assert rules(repo) == []


def test_check_goes_on_where_the_feed_will_begin_before_that_is_in_force(
    ground: Ground, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector announces its safe point, and may die before it comes into force."""
    put(repo, "a")
    announced = put(repo, "b")
    at = put(repo, "c")
    store = type(ground.store)
    changes, entries = store.changes, store.entries

    def changes_above(self: Store, table: str, after: int, *args: Any, **named: Any) -> Any:
        if after < announced:
            raise SnapshotTooOldError(after, announced)
        return changes(self, table, after, *args, **named)

    def nothing_written(
        self: Store, cell: Cell, kind: Kind, low: int, high: int, limit: int | None = None
    ) -> Any:
        hides = kind is Kind.WRITE and (low, high) == (at, at)
        return [] if hides else entries(self, cell, kind, low, high, limit)

    monkeypatch.setattr(store, "changes", changes_above)
    assert rules(repo) == []
    monkeypatch.setattr(store, "entries", nothing_written)
    assert rules(repo) == ["change-without-write"]

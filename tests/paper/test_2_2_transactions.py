"""§2.2 Transactions: figures 2, 3, 4 and 6, and the rules about the order of a commit."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from figure4 import history
from stores import Ground, ScriptedClock, SeamStore, cell_of, phase, put, put_all, stopped, telling

from percola import ConflictError, Repository, Table, TransactionUsedUpError
from percola.cells import Kind, Op, decode_lock, decode_write
from percola.oracle.base import Oracle
from percola.store.base import RowMutation

docs = Table("docs")
contents = docs.column("contents", str)
dups = Table("dups")
canonical = dups.column("canonical-url", str)
bank = Table("bank")
bal = bank.column("bal", int)
note = bank.column("note", str)
TABLES = [docs, dups, bank]


class ScriptedOracle(Oracle):
    """Hands out the timestamps of a figure."""

    def __init__(self, *timestamps: int) -> None:
        self._timestamps = list(timestamps)
        self._last = 0

    def timestamp(self) -> int:
        self._last = self._timestamps.pop(0)
        return self._last

    def read_timestamp(self) -> int:
        return self._last


# --- The paper's figures ----------------------------------------------------------------


def update_document(repo: Repository, url: str, body: str) -> str:
    """Figure 2's UpdateDocument; the canonical URL of the document's contents."""
    t = repo.transaction()
    t.set(contents, url, body)
    key = f"{zlib.crc32(body.encode()):08x}"
    first = t.get(canonical, key)
    if first is None:
        t.set(canonical, key, url)
    t.commit()
    return first or url


def test_figure_2_clusters_documents_by_a_hash_of_their_contents(repo: Repository) -> None:
    assert update_document(repo, "http://a/", "same") == "http://a/"
    assert update_document(repo, "http://b/", "same") == "http://a/"
    assert update_document(repo, "http://c/", "other") == "http://c/"
    rows = {row.key: row[canonical] for row in repo.snapshot().scan(dups)}
    assert sorted(rows.values()) == ["http://a/", "http://c/"]


def test_figure_2_two_urls_with_the_same_content_at_once_conflict(repo: Repository) -> None:
    first, second = repo.transaction(), repo.transaction()
    for t, url in ((first, "http://a/"), (second, "http://b/")):
        t.set(contents, url, "same")
        assert t.get(canonical, "hash") is None
        t.set(canonical, "hash", url)
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    snapshot = repo.snapshot()
    assert snapshot.get(canonical, "hash") == "http://a/"
    assert snapshot.get(contents, "http://b/") is None


def test_figure_3_reads_happen_at_start_ts_and_writes_at_commit_ts(repo: Repository) -> None:
    one, two = repo.transaction(), repo.transaction()
    one.set(bal, "x", 1)
    two.set(bal, "y", 2)
    one.commit()
    assert two.get(bal, "x") is None, "2 began before 1 committed"
    two.commit()
    three = repo.transaction()
    assert (three.get(bal, "x"), three.get(bal, "y")) == (1, 2)
    assert one.commit_ts is not None and two.commit_ts is not None
    assert two.start_ts < one.commit_ts < two.commit_ts <= three.start_ts


def test_figure_3_of_two_concurrent_writers_of_a_cell_one_aborts(repo: Repository) -> None:
    one, two = repo.transaction(), repo.transaction()
    one.set(bal, "x", 1)
    two.set(bal, "x", 2)
    two.commit()
    with pytest.raises(ConflictError) as caught:
        one.commit()
    assert caught.value.cell == cell_of(bal, "x")
    assert (caught.value.start_ts, caught.value.winner_ts) == (one.start_ts, two.commit_ts)
    assert not caught.value.locked
    assert repo.snapshot().get(bal, "x") == 2


FIGURE_4 = [
    """\
key  bal:data  bal:lock              bal:write
Bob  6:        6:                    6: data @ 5
     5: $10    5:                    5:
Joe  6:        6:                    6: data @ 5
     5: $2     5:                    5:""",
    """\
key  bal:data  bal:lock              bal:write
Bob  7: $3     7: I am primary       7:
     6:        6:                    6: data @ 5
     5: $10    5:                    5:
Joe  6:        6:                    6: data @ 5
     5: $2     5:                    5:""",
    """\
key  bal:data  bal:lock              bal:write
Bob  7: $3     7: I am primary       7:
     6:        6:                    6: data @ 5
     5: $10    5:                    5:
Joe  7: $9     7: primary @ Bob.bal  7:
     6:        6:                    6: data @ 5
     5: $2     5:                    5:""",
    """\
key  bal:data  bal:lock              bal:write
Bob  8:        8:                    8: data @ 7
     7: $3     7:                    7:
     6:        6:                    6: data @ 5
     5: $10    5:                    5:
Joe  7: $9     7: primary @ Bob.bal  7:
     6:        6:                    6: data @ 5
     5: $2     5:                    5:""",
    """\
key  bal:data  bal:lock              bal:write
Bob  8:        8:                    8: data @ 7
     7: $3     7:                    7:
     6:        6:                    6: data @ 5
     5: $10    5:                    5:
Joe  8:        8:                    8: data @ 7
     7: $9     7:                    7:
     6:        6:                    6: data @ 5
     5: $2     5:                    5:""",
]


def test_figure_4_the_transfer_from_bob_to_joe_goes_through_the_papers_five_states(
    ground: Ground,
) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo([bank], store=store, oracle=ScriptedOracle(5, 6, 7, 8), one_step=False)
    put_all(repo, bal, {"Bob": 10, "Joe": 2})
    states = [history(ground, bal, ["Bob", "Joe"])]

    def draw(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        applied = apply()
        states.append(history(ground, bal, ["Bob", "Joe"]))
        return applied

    store.hook = draw
    with repo.transaction() as t:
        bob, joe = t.get(bal, "Bob"), t.get(bal, "Joe")
        assert bob is not None and joe is not None
        t.set(bal, "Bob", bob - 7)
        t.set(bal, "Joe", joe + 7)
    for number, (state, paper) in enumerate(zip(states, FIGURE_4, strict=True), 1):
        print(f"\n{number}.\n{state}")
        assert state == paper


# --- Figure 6, line by line -------------------------------------------------------------


def test_line_7_writes_are_buffered_until_commit(ground: Ground, repo: Repository) -> None:
    t = repo.transaction()
    t.set(bal, "x", 1)
    for kind in Kind:
        assert ground.entries(bal, "x", kind) == []
    assert repo.snapshot().get(bal, "x") is None
    t.rollback()
    assert repo.snapshot().get(bal, "x") is None


def test_line_32_a_write_after_start_ts_aborts_even_one_that_did_not_change_the_value(
    repo: Repository,
) -> None:
    put(repo, bal, "x", 1)
    late = repo.transaction()
    put(repo, bal, "x", 1)
    late.set(bal, "x", 1)
    with pytest.raises(ConflictError):
        late.commit()


def test_line_34_a_lock_at_any_timestamp_aborts_the_prewrite(ground: Ground) -> None:
    store = SeamStore(ground.store)
    repo, other = ground.repo(TABLES, store=store), ground.repo(TABLES)
    early = other.transaction(two_phase=True)
    holder = repo.transaction(two_phase=True)
    holder.set(bal, "x", 1)
    with stopped(store, holder.commit, "prewrite", "x", after=True) as committing:
        for late in (early, other.transaction(two_phase=True), other.transaction()):
            late.set(bal, "x", 2)
            with pytest.raises(ConflictError) as caught:
                late.commit()
            assert caught.value.locked and caught.value.winner_ts == holder.start_ts
    committing.result(20)
    assert other.snapshot().get(bal, "x") == 1


def test_p2_commit_ts_is_requested_after_the_last_prewrite_was_acknowledged(ground: Ground) -> None:
    trace: list[str] = []

    class Noted(Oracle):
        def timestamp(self) -> int:
            trace.append("timestamp")
            return ground.oracle.timestamp()

        def read_timestamp(self) -> int:
            return ground.oracle.read_timestamp()

    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store, oracle=Noted())

    def note_down(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        applied = apply()
        trace.append(f"{phase(mutation)} {mutation.row.decode()}")
        return applied

    store.hook = note_down
    put_all(repo, bal, dict.fromkeys("abc", 1), two_phase=True)
    assert trace == [
        "timestamp",
        *("prewrite a", "prewrite b", "prewrite c"),
        "timestamp",
        *("commit a", "commit b", "commit c"),
    ]


def test_p3_no_secondary_is_prewritten_before_the_primary_is_known_to_be_locked(
    ground: Ground,
) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    locked_before: dict[str, list[int]] = {}

    def look(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "prewrite":
            locked_before[mutation.row.decode()] = ground.lock_holders(bal, "a")
        return apply()

    store.hook = look
    with repo.transaction(two_phase=True) as t:
        for row in "abc":
            t.set(bal, row, 1)
    assert locked_before == {"a": [], "b": [t.start_ts], "c": [t.start_ts]}


def test_p3_a_refused_primary_leaves_every_secondary_untouched(ground: Ground) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    loser = repo.transaction(two_phase=True)
    put(repo, bal, "a", 1)
    touched: list[str] = []
    store.hook = telling(lambda one: touched.append(f"{phase(one)} {one.row.decode()}"))
    loser.set(bal, "a", 2)
    loser.set(bal, "b", 2)
    with pytest.raises(ConflictError):
        loser.commit()
    assert touched == ["prewrite a"]


def test_p14_the_primary_is_the_first_cell_that_changes_when_the_write_set_is_final(
    ground: Ground,
) -> None:
    """A cell that is only locked is never the primary of a transaction that changes others."""
    store = SeamStore(ground.store)
    t = ground.repo(TABLES, store=store).transaction(two_phase=True)
    t.get_for_update(bal, "a")
    t.set(bal, "b", 1)
    t.delete(bal, "b")
    t.set(bal, "b", 2)
    t.set(bal, "c", 3)
    with stopped(store, t.commit, "commit", "b") as committing:
        locks = [raw for row in "abc" for _, raw in ground.entries(bal, row, Kind.LOCK)]
        assert {decode_lock(raw).primary for raw in locks} == {cell_of(bal, "b")}
    committing.result(20)
    assert ground.repo(TABLES).snapshot().get_many([(bal, row) for row in "abc"]) == [None, 2, 3]


def test_p14_two_transactions_that_want_each_others_cells_do_not_wait_for_each_other(
    ground: Ground,
) -> None:
    store, clock = SeamStore(ground.store), ScriptedClock()
    mine = ground.repo(TABLES, store=store, process="mine")
    yours = ground.repo(TABLES, process="yours", clock=clock)
    first, second = mine.transaction(two_phase=True), yours.transaction(two_phase=True)
    first.set(bal, "x", 1)
    first.set(bal, "y", 1)
    second.set(bal, "y", 2)
    second.set(bal, "x", 2)
    # `first` holds x and wants y; `second` takes y, wants x, and gives up at once.
    with stopped(store, first.commit, "prewrite", "x", after=True) as committing:
        with pytest.raises(ConflictError) as caught:
            second.commit()
        assert clock.slept == [], "it waited"
        assert caught.value.cell == cell_of(bal, "x") and caught.value.locked
        assert ground.lock_holders(bal, "y") == [], "the loser's own lock must not be in the way"
    committing.result(20)
    assert mine.snapshot().get_many([(bal, "x"), (bal, "y")]) == [1, 1]


def test_p10_after_resolving_a_lock_the_check_for_newer_writes_runs_again(ground: Ground) -> None:
    """Scenario 10: rolled forward, the lock becomes a write above our start_ts."""
    store = SeamStore(ground.store)
    dying = ground.repo(TABLES, store=store, process="dying")
    other = ground.repo(TABLES, process="other")
    holder = dying.transaction(two_phase=True)
    holder.set(bal, "primary", 1)
    holder.set(bal, "secondary", 1)
    late = [other.transaction(), other.transaction(two_phase=True)]
    with stopped(store, holder.commit, "commit", "secondary") as committing:
        ground.alive.discard("dying")
        for t in late:
            t.set(bal, "secondary", 2)
            with pytest.raises(ConflictError) as caught:
                t.commit()
            assert not caught.value.locked, "it was resolved; the write record is the conflict"
    assert committing.result(20) == caught.value.winner_ts
    assert other.snapshot().get(bal, "secondary") == 1


# --- get_for_update ---------------------------------------------------------------------


def test_get_for_update_conflicts_with_whoever_writes_the_cell_meanwhile(repo: Repository) -> None:
    put(repo, bal, "x", 1)
    for reader_first in (True, False):
        reader, writer = repo.transaction(), repo.transaction()
        assert reader.get_for_update(bal, "x") is not None
        reader.set(bal, "y", 2)
        writer.set(bal, "x", 3)
        winner, loser = (reader, writer) if reader_first else (writer, reader)
        winner.commit()
        with pytest.raises(ConflictError):
            loser.commit()


def test_get_for_update_changes_nothing_and_hides_nothing(ground: Ground, repo: Repository) -> None:
    put(repo, bal, "x", 1)
    for two_phase in (False, True):
        with repo.transaction(two_phase=two_phase) as t:
            assert t.get_for_update(bal, "x") == 1
            assert t.get_for_update(bal, "none") is None
    newest = decode_write(ground.entries(bal, "x", Kind.WRITE)[0][1])
    assert newest.op is Op.LOCK
    snapshot = repo.snapshot()
    assert (snapshot.get(bal, "x"), snapshot.get(bal, "none")) == (1, None)
    assert [row.key for row in snapshot.scan(bank)] == ["x"]


def test_get_for_update_then_set_writes_the_value(repo: Repository) -> None:
    for order in ("get first", "set first"):
        with repo.transaction() as t:
            if order == "get first":
                t.get_for_update(bal, order)
            t.set(bal, order, 5)
            assert t.get_for_update(bal, order) == 5
        assert repo.snapshot().get(bal, order) == 5


# --- A transaction is used once ---------------------------------------------------------


@pytest.mark.parametrize("end", ["committed", "rolled back", "failed", "raised"])
def test_a_transaction_that_has_ended_cannot_be_used_again(repo: Repository, end: str) -> None:
    t = repo.transaction()
    t.set(bal, "x", 1)
    if end == "committed":
        t.commit()
    elif end == "rolled back":
        t.rollback()
    elif end == "failed":
        repo.run(lambda other: other.set(bal, "x", 2))
        with pytest.raises(ConflictError):
            t.commit()
    else:
        with pytest.raises(KeyError), t:
            raise KeyError("the user's own")
    before = repo.snapshot().get(bal, "x")
    uses: list[Callable[[], object]] = [
        lambda: t.get(bal, "x"),
        lambda: t.get_many([(bal, "x")]),
        lambda: t.get_row(bank, "x"),
        lambda: list(t.scan(bank)),
        lambda: t.set(bal, "x", 9),
        lambda: t.delete(bal, "x"),
        lambda: t.get_for_update(bal, "x"),
        t.commit,
        t.__enter__,
    ]
    for use in uses:
        with pytest.raises(TransactionUsedUpError, match="Begin another one"):
            use()
    t.rollback()
    assert repo.snapshot().get(bal, "x") == before


def test_a_block_that_raises_writes_nothing_and_lets_the_error_through(repo: Repository) -> None:
    with pytest.raises(ZeroDivisionError), repo.transaction() as t:
        t.set(bal, "x", 1 // 0)
    assert repo.snapshot().get(bal, "x") is None


def test_a_transaction_without_writes_commits_at_its_start_ts_and_touches_nothing(
    repo: Repository,
) -> None:
    t = repo.transaction()
    t.get(bal, "x")
    assert t.commit() == t.start_ts

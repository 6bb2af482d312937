"""§2.4: what is promised about notifications, observer by observer (N1 to N4)."""

from __future__ import annotations

import pytest
from stores import (
    Crashed,
    CrashingStore,
    Ground,
    SeamStore,
    all_at_once,
    cell_of,
    die,
    notify,
    phase,
    put,
    telling,
)

from percola import ConflictError, Observer, Repository, Table, Transaction, Worker, observer
from percola.cells import MAX_TS, Cell, Kind, ack_column
from percola.maintenance.check import check
from percola.store.base import Put, RowMutation

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
words = docs.column("words", int)
runs = docs.column("runs", int)
recluster = docs.weak_column("recluster")
TABLES = [docs]


def write(repo: Repository, row: str, text: str, *, two_phase: bool = False) -> int:
    return put(repo, contents, row, text, two_phase=two_phase)


def notified(ground: Ground, row: str = "a") -> list[int]:
    return [ts for ts, _ in ground.entries(contents, row, Kind.NOTIFY)]


def run(repo: Repository, one: Observer[str], ground: Ground, row: str = "a") -> bool:
    """One run of an observer on a row, as a worker does it; whether it ran."""
    return one.run(repo.context, row.encode(), {cell_of(contents, row): notified(ground, row)})


def drain(repo: Repository, *observers: Observer[str]) -> Worker:
    worker = Worker(repo, observers, threads=2)
    worker.run_until_idle()
    return worker


@observer(contents)
def count_words(t: Transaction, row: str) -> None:
    """Counts the words, and how often it has done so."""
    t.set(words, row, len((t.get(contents, row) or "").split()))
    t.set(runs, row, (t.get(runs, row) or 0) + 1)


# --- N1: no write without its notify cell -----------------------------------------------


@pytest.mark.parametrize("two_phase", [False, True])
def test_n1_the_notify_cell_stands_at_commit_ts_for_a_put_and_for_a_delete(
    ground: Ground, repo: Repository, two_phase: bool
) -> None:
    first = write(repo, "a", "x", two_phase=two_phase)
    with repo.transaction(two_phase=two_phase) as t:
        t.delete(contents, "a")
        t.set(words, "a", 0)
    assert notified(ground) == [t.commit_ts, first]
    assert ground.entries(words, "a", Kind.NOTIFY) == [], "not observed"


def test_n1_the_notify_cell_is_put_with_the_write_record_or_before_the_commit_point(
    ground: Ground,
) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    together: list[set[tuple[Kind, int]]] = []

    def look(mutation: RowMutation) -> None:
        puts = {(c.kind, c.ts) for c in mutation.changes if isinstance(c, Put)}
        if any(kind in (Kind.WRITE, Kind.NOTIFY) for kind, _ in puts):
            together.append(puts)

    store.hook = telling(look)
    with repo.transaction(two_phase=True) as t:
        t.set(contents, "a", "x")
        t.set(contents, "b", "x")
    assert t.commit_ts is not None
    written, told = (Kind.WRITE, t.commit_ts), (Kind.NOTIFY, t.commit_ts)
    if ground.store.has_notify_table:
        # No mutation is of both there: those of all cells are put before the commit point.
        assert together == [{told}, {told}, {written}, {written}]
    else:
        assert together == [{written, told}] * 2


def test_n1_locking_an_observed_cell_without_changing_it_does_not_notify(
    ground: Ground, repo: Repository
) -> None:
    for two_phase in (False, True):
        with repo.transaction(two_phase=two_phase) as t:
            t.get_for_update(contents, "a")
    assert notified(ground) == []


def die_after_the_commit_point(ground: Ground) -> Repository:
    """A process dies with `a` committed and `b` still locked; another process's repository."""
    t = die(ground, TABLES, 4, contents, {"a": "one", "b": "one two"})
    assert ground.lock_holders(contents, "b") == [t.start_ts]
    [commit_ts] = notified(ground, "a")
    assert notified(ground, "b") == ([commit_ts] if ground.store.has_notify_table else [])
    return ground.repo(TABLES, process="other")


def test_n1_whoever_rolls_a_write_forward_puts_its_notify_cell(ground: Ground) -> None:
    other = die_after_the_commit_point(ground)
    assert other.snapshot().get(contents, "b") == "one two"
    assert notified(ground, "b") == notified(ground, "a")
    drain(other, count_words)
    assert other.snapshot().get_many([(words, "a"), (words, "b")]) == [1, 2]


def test_n1_a_worker_finds_what_a_dead_process_left_locked_though_nobody_reads_it(
    ground: Ground,
) -> None:
    other = die_after_the_commit_point(ground)
    drain(other, count_words)
    assert other.snapshot().get_many([(words, "a"), (words, "b")]) == [1, 2]
    assert ground.left_over(docs, Kind.LOCK) == []


# --- N2: removed at or below start_ts, after the commit ---------------------------------


def test_n2_a_write_between_an_observers_start_and_its_commit_makes_it_run_again(
    ground: Ground, repo: Repository
) -> None:
    seen: list[str | None] = []

    @observer(contents)
    def slow(t: Transaction, row: str) -> None:
        seen.append(t.get(contents, row))
        if len(seen) == 1:
            write(repo, row, "second")
        t.set(words, row, len(seen))

    first = write(repo, "a", "first")
    assert notified(ground) == [first]
    assert run(repo, slow, ground)
    [second] = notified(ground)
    assert second > first
    drain(repo, slow)
    assert seen == ["first", "second"]
    assert notified(ground) == []


def test_n2_a_run_that_does_not_commit_leaves_the_notify_cell(
    ground: Ground, repo: Repository
) -> None:
    @observer(contents)
    def loses(t: Transaction, row: str) -> None:
        t.get(words, row)
        repo.run(lambda other: other.set(words, row, 1))
        t.set(words, row, 2)

    write(repo, "a", "x")
    before = notified(ground)
    with pytest.raises(ConflictError):
        run(repo, loses, ground)
    assert notified(ground) == before


@pytest.mark.parametrize("at", [1, 2, 3])
def test_n2_the_notify_cell_goes_with_the_commit_wherever_a_crash_comes(
    ground: Ground, at: int
) -> None:
    """Prewrite and commit of the one row are all there is: both have happened, or neither.

    Where notify entries stand apart, it goes after the commit, and may outlive it.
    """
    apart = ground.store.has_notify_table
    write(ground.repo(TABLES), "a", "x")
    store = CrashingStore(ground.store, at=at)
    dying = ground.repo(TABLES, store=store, process="dying", one_step=False)
    store.armed = True
    if at <= 2 + apart:
        with pytest.raises(Crashed):
            run(dying, count_words, ground)
    else:
        assert run(dying, count_words, ground), "these were all steps"
    ground.alive.clear()
    assert len(notified(ground)) == (1 if at <= 2 + apart else 0)
    other = ground.repo(TABLES, process="other")
    assert other.snapshot().get(runs, "a") == (None if at <= 2 else 1)
    drain(other, count_words)
    assert other.snapshot().get(runs, "a") == 1
    assert notified(ground) == []


def test_n2_a_notification_above_its_start_ts_is_not_removed(
    ground: Ground, repo: Repository
) -> None:
    write(repo, "a", "x")
    later = repo.snapshot().start_ts + 100
    cell = cell_of(contents, "a")
    ground.store.mutate(
        [RowMutation("docs", b"a", (), [Put(Kind.NOTIFY, cell.column, later, b"")])]
    )
    assert run(repo, count_words, ground)
    assert notified(ground) == [later]


# --- N3: at most one commit for each change ---------------------------------------------


def test_n3_of_many_runs_for_one_change_exactly_one_commits(
    ground: Ground, repo: Repository
) -> None:
    for change in range(1, 6):
        write(repo, "a", f"change {change}")
        before = notified(ground)

        def attempt(before: list[int] = before) -> bool:
            return count_words.run(repo.context, b"a", {cell_of(contents, "a"): before})

        outcomes = all_at_once([attempt] * 8)
        committed = [one for one in outcomes if one is True]
        assert len(committed) == 1, outcomes
        assert all(one in (True, False) or isinstance(one, ConflictError) for one in outcomes)
        assert repo.snapshot().get(runs, "a") == change


def test_n3_two_runs_that_both_saw_the_change_meet_at_the_acknowledgment(
    ground: Ground, repo: Repository
) -> None:
    """They write nothing in common but c:ack_O."""
    outcomes: list[bool] = []

    @observer(contents)
    def nested(t: Transaction, row: str) -> None:
        if not outcomes:
            outcomes.append(True)
            assert run(repo, nested, ground)

    write(repo, "a", "x")
    with pytest.raises(ConflictError) as caught:
        run(repo, nested, ground)
    assert caught.value.cell.column == b"@ack:nested:contents"


def test_n3_several_changes_may_be_answered_by_one_run(ground: Ground, repo: Repository) -> None:
    """Message collapsing."""
    for number in range(10):
        write(repo, "a", "word " * number)
    assert len(notified(ground)) == 10
    drain(repo, count_words)
    snapshot = repo.snapshot()
    assert (snapshot.get(runs, "a"), snapshot.get(words, "a")) == (1, 9)
    assert notified(ground) == []


def test_n3_an_answered_change_is_not_run_again(ground: Ground, repo: Repository) -> None:
    write(repo, "a", "x")
    drain(repo, count_words)
    # A stray hint, as a crash or a late mutation may leave.
    hint = Put(Kind.NOTIFY, contents.key, repo.snapshot().start_ts, b"")
    ground.store.mutate([RowMutation("docs", b"a", (), [hint])])
    drain(repo, count_words)
    assert repo.snapshot().get(runs, "a") == 1
    assert notified(ground) == []


def test_n3_no_change_is_ever_missed_under_load(repo: Repository) -> None:
    """Writers and two workers at once: at the end each row was seen as it is at the end."""
    workers = [Worker(repo, [count_words], threads=4, rescan=30) for _ in range(2)]
    for worker in workers:
        worker.start()

    def writer(number: int) -> None:
        for step in range(15):
            row = f"row {(number + step) % 5}"
            repo.run(lambda t, r=row, n=step: t.set(contents, r, "word " * n), attempts=1000)

    assert all_at_once([lambda n=n: writer(n) for n in range(4)]) == [None] * 4
    for worker in workers:
        worker.stop()
    workers.append(drain(repo, count_words))
    rows = list(repo.snapshot().scan(docs))
    assert [row[words] for row in rows] == [len(row[contents].split()) for row in rows]
    total = sum(row[runs] for row in rows)
    counts = [worker.metrics.counts().get("observer_runs", {}) for worker in workers]
    assert sum(count.get("count_words", 0) for count in counts) == total
    assert len(rows) <= total <= 60, "more runs committed than there were changes"


# --- N4: weak notifications -------------------------------------------------------------


@pytest.mark.parametrize("together", [False, True])
def test_n4_a_run_that_writes_nothing_conflicts_with_an_older_one_that_commits_later(
    ground: Ground, repo: Repository, together: bool
) -> None:
    """Else the row would stay as the older run saw it, with no notification left."""

    def copy(t: Transaction, row: str) -> None:
        """Copies the text's length where it differs, as a careful program does."""
        length = len(t.get(contents, row) or "")
        if length != (t.get(words, row) or 0):
            t.set(words, row, length)

    def overtaken(t: Transaction, row: str) -> None:
        copy(t, row)
        # Another worker has taken the row's lock over.
        with repo.transaction() as writer:
            writer.delete(contents, row)
            writer.notify(recluster, row)
        assert observer(recluster, name="copy")(copy).run(repo.context, b"a", waiting())

    def waiting() -> dict[Cell, list[int]]:
        cell = Cell("docs", b"a", recluster.key)
        return {cell: [ts for ts, _ in ground.store.entries(cell, Kind.NOTIFY, 0, MAX_TS)]}

    with repo.transaction() as t:
        t.set(contents, "a", "text")
        t.notify(recluster, "a")
    older = observer(recluster, name="copy")(overtaken)
    run = (
        (lambda: older.run_batch(repo.context, [(b"a", waiting())], most=8))
        if together
        else (lambda: older.run(repo.context, b"a", waiting()))
    )
    with pytest.raises(ConflictError):
        run()
    drain(repo, observer(recluster, name="copy")(copy))
    assert repo.snapshot().get(words, "a") is None


def test_n4_garbage_collection_removes_the_acknowledgments_of_weak_notifications(
    ground: Ground, repo: Repository
) -> None:
    look = observer(recluster, name="look")(lambda t, row: t.get(words, row))

    for _ in range(3):
        notify(repo, recluster, "a")
        drain(repo, look)
    ack = Cell("docs", b"a", ack_column("look", recluster.key))
    assert len(ground.store.entries(ack, Kind.WRITE, 0, MAX_TS)) == 3
    assert list(check(repo)) == []
    repo.collect_garbage(retention=0)
    assert ground.store.entries(ack, Kind.WRITE, 0, MAX_TS) == []


def test_n4_a_weak_notification_writes_only_the_notify_cell(
    ground: Ground, repo: Repository
) -> None:
    for two_phase in (False, True):
        with repo.transaction(two_phase=two_phase) as t:
            t.notify(recluster, "a")
        cell = cell_of(recluster, "a")  # type: ignore[arg-type]
        entries = {
            kind: ground.store.entries(cell, kind, 0, 2**62)
            for kind in (Kind.DATA, Kind.LOCK, Kind.WRITE, Kind.NOTIFY)
        }
        assert entries.pop(Kind.NOTIFY)[0] == (t.commit_ts, b"")
        assert all(found == [] for found in entries.values())


@pytest.mark.parametrize("two_phase", [False, True])
def test_n4_fifty_threads_that_notify_one_row_at_once_never_conflict(
    ground: Ground, repo: Repository, two_phase: bool
) -> None:
    transactions = [repo.transaction(two_phase=two_phase) for _ in range(50)]
    for number, t in enumerate(transactions):
        t.set(words, f"page {number}", number)
        t.notify(recluster, "cluster")
    outcomes = all_at_once([t.commit for t in transactions])
    assert all(isinstance(one, int) for one in outcomes), outcomes
    cluster = [ts for cell, ts in ground.left_over(docs, Kind.NOTIFY) if "cluster" in cell]
    assert sorted(cluster) == sorted(outcomes)


def test_n4_fifty_threads_that_write_one_observed_cell_at_once_do_conflict(
    repo: Repository,
) -> None:
    """What weak notifications are for: the same with a strong one."""
    transactions = [repo.transaction() for _ in range(50)]
    for t in transactions:
        t.set(contents, "cluster", "again")
    outcomes = all_at_once([t.commit for t in transactions])
    assert sum(isinstance(one, int) for one in outcomes) == 1
    assert sum(isinstance(one, ConflictError) for one in outcomes) == 49


def test_n4_it_is_put_at_commit_ts_under_the_locks_and_before_the_commit_point(
    ground: Ground,
) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    trace: list[str] = []
    stood_at: list[int] = []

    def look(mutation: RowMutation) -> None:
        trace.append(f"{phase(mutation)} {mutation.row.decode()}")
        if phase(mutation) == "notify":
            stood_at.extend(change.ts for change in mutation.changes)

    store.hook = telling(look)
    with repo.transaction(two_phase=True) as t:
        t.set(words, "x", 1)
        t.set(words, "y", 1)
        t.notify(recluster, "a")
    assert trace == ["prewrite x", "prewrite y", "notify a", "commit x", "commit y"]
    assert stood_at == [t.commit_ts]


@pytest.mark.parametrize("mutations", [2, 3, 4])
def test_n4_a_crash_loses_no_weak_notification_of_a_transaction_that_committed(
    ground: Ground, mutations: int
) -> None:
    """It crashes before the notification, before the commit point, and after it."""
    store = CrashingStore(ground.store, at=mutations, count=True)
    dying = ground.repo(TABLES, store=store, process="dying")
    other = ground.repo(TABLES, process="other")
    seen: list[int | None] = []

    look = observer(recluster, name="look")(lambda t, row: seen.append(t.get(words, "x")))

    t = dying.transaction(two_phase=True)
    t.set(words, "x", 1)
    t.notify(recluster, "a")
    store.armed = True
    if mutations < 4:
        with pytest.raises(Crashed):
            t.commit()
    else:
        t.commit()
    ground.alive.discard("dying")
    drain(other, look)
    expected: dict[int, list[int | None]] = {2: [], 3: [None], 4: [1]}
    assert seen == expected[mutations], "a spurious notification costs a look and no more"
    assert ground.left_over(docs, Kind.NOTIFY) == []


def test_n4_a_weak_observer_that_is_notified_while_it_runs_runs_again(repo: Repository) -> None:
    seen: list[int] = []

    @observer(recluster)
    def look(t: Transaction, row: str) -> None:
        seen.append(t.start_ts)
        if len(seen) == 1:
            repo.run(lambda other: other.notify(recluster, row))

    repo.run(lambda t: t.notify(recluster, "a"))
    drain(repo, look)
    assert len(seen) == 2


def test_n4_many_weak_notifications_collapse_into_one_run(repo: Repository) -> None:
    seen: list[str] = []

    look = observer(recluster, name="look")(lambda t, row: seen.append(row))

    for _ in range(10):
        repo.run(lambda t: t.notify(recluster, "a"))
    drain(repo, look)
    assert seen == ["a"]

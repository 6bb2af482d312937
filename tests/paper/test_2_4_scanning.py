"""§2.4: what a scanner looks at, and when it looks again (N6, N7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benches import Bench
from stores import Ground, PassingStore, notify, put, put_all

from percola import Table, Transaction, observer
from percola.cells import Kind
from percola.coordination.wake_ups import mark_of, marks_of_pool, wake_up_of
from percola.errors import StoreError
from percola.observers.observer import Observers
from percola.observers.scanner import Scanner
from percola.store.base import Tablet

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
links = Table("links")
target = links.column("target", str, observed=True)
counts = Table("counts")
stale = counts.weak_column("stale")
TABLES = [docs, links, counts]


class Noting(PassingStore):
    """Notes in which tables notify entries were looked for, and asks for tablets."""

    def __init__(self, inner: PassingStore) -> None:
        super().__init__(inner)
        self.looks: list[str] = []
        self.ranges: list[tuple[bytes, bytes]] = []
        self.splits: list[bytes] | None = None
        self.on_look: Callable[[str], None] = lambda table: None

    def scan_kind(
        self,
        kind: Kind,
        table: str,
        start: bytes = b"",
        end: bytes = b"",
        limit: int = 256,
        **more: Any,
    ) -> Any:
        if kind is Kind.NOTIFY:
            self.looks.append(table)
            self.ranges.append((start, end))
            self.on_look(table)
        return self.inner.scan_kind(kind, table, start, end, limit, **more)

    def tablets(self, table: str) -> list[Tablet]:
        self.looks.append(f"tablets of {table}")
        if self.splits is None:
            return self.inner.tablets(table)
        return [*map(Tablet, [b"", *self.splits], [*self.splits, b""])]


class Stage(Bench):
    """A scanner of three tables, looked through one look at a time."""

    def __init__(self, ground: Ground, seed: int = 1) -> None:
        self.store = Noting(ground.store)  # type: ignore[arg-type]
        super().__init__(ground, TABLES, self.store)
        self.then: Callable[[Transaction, str], None] = lambda t, row: None
        self.woken = 0
        self._hears = True

        def note(t: Transaction, row: str) -> None:
            self.ran.append(row)
            self.then(t, row)

        observed = {"parse": contents, "count": target, "refresh": stale}
        self.scan_with(
            [observer(column, name=name)(note) for name, column in observed.items()],
            sweep=1e9,
            seed=seed,
        )

    def wake(self) -> None:
        self.woken += 1

    def hear(self, wake_up: bytes) -> None:
        if self._hears:
            super().hear(wake_up)

    def commit_elsewhere(self, *rows: str) -> None:
        """Write rows of `links`; the wake-up names them."""
        self._hears = False
        put_all(self.repo, target, dict.fromkeys(rows, "x"))
        self._hears = True
        self.hear(wake_up_of([("links", row.encode()) for row in rows]))
        self.store.ranges.clear()

    def look(self, scanner: Scanner | None = None) -> list[str]:
        """Look round once; in which tables."""
        before = len(self.store.looks)
        self.wait = (scanner or self.scanner).look()
        return sorted(self.store.looks[before:])


@pytest.fixture
def stage(ground: Ground) -> Stage:
    return Stage(ground)


ALL = ["counts", "docs", "links"]


def test_n6_what_is_clean_is_not_looked_at_again_until_there_is_news(stage: Stage) -> None:
    assert stage.look() == ALL
    assert stage.look() == []
    put(stage.repo, target, "a", "x")
    assert stage.look() == ["links"]
    assert stage.ran == ["a"]
    assert stage.wait == 0.0
    assert stage.look() == []
    with stage.repo.transaction(two_phase=True) as t:
        t.set(contents, "b", "x")
        t.notify(stale, "c")
    assert stage.look() == ["counts", "docs"]
    assert sorted(stage.ran) == ["a", "b", "c"]
    assert stage.look() == []


def test_n6_what_an_observer_notifies_is_where_its_scanner_looks_next(stage: Stage) -> None:
    def parse(t: Transaction, row: str) -> None:
        if not row.endswith("!"):
            t.set(target, row + "!", "x")

    stage.then = parse
    stage.look()
    put(stage.repo, contents, "a", "x")
    assert stage.look() == ["docs"]
    assert stage.look() == ["links"]
    assert stage.look() == []
    assert stage.ran == ["a", "a!"]


def test_n6_a_wake_up_of_another_process_is_followed_by_a_scan_of_the_tables_that_it_names(
    ground: Ground, stage: Stage
) -> None:
    stage.look()
    put(ground.repo(TABLES), target, "a", "x")
    assert stage.look() == ["links"]
    assert stage.ran == ["a"]
    assert stage.look() == []
    stage.repo.context.coordination.wake()
    assert stage.look() == ALL, "it names none"
    assert stage.look() == []


def test_n6_scanners_of_a_worker_share_what_is_clean(stage: Stage) -> None:
    other = stage.another_scanner()
    assert stage.look() == ALL
    assert stage.look(other) == []
    put(stage.repo, target, "a", "x")
    assert stage.look(other) == ["links"]
    assert stage.look() == []
    stage.clock.now += 1
    assert stage.look(other) == ALL, "one of them, once a second"
    assert stage.look() == []
    stage.clock.now += 0.9
    assert stage.look() == stage.look(other) == []
    stage.clock.now += 0.1
    assert stage.look() == ALL


def test_while_one_scanner_looks_others_wait_until_there_is_work_for_them(stage: Stage) -> None:
    other = stage.another_scanner()
    stage.look()
    meanwhile: list[tuple[list[str], float]] = []

    def look_with_the_other(table: str) -> None:
        stage.store.on_look = lambda table: None
        looked = stage.look(other)
        meanwhile.append((looked, stage.wait))

    def write(*rows: str) -> None:
        put_all(stage.repo, target, dict.fromkeys(rows, "x"))

    write("a")
    stage.store.on_look = look_with_the_other
    stage.look()
    [(looked, wait)] = meanwhile
    assert looked == [] and 0 < wait < 0.1, "it is back soon, in case there is work"
    assert stage.ran == ["a"] and stage.woken == 1, "by the commit"
    assert stage.look(other) == []

    stage.ran.clear()
    write("b", "c")
    stage.store.on_look = look_with_the_other
    stage.then = lambda t, row: look_with_the_other("") if len(stage.ran) == 1 else None
    stage.look()
    assert stage.woken == 3, "by the commit, and by the first scanner, which has found two rows"
    assert [set(looked) - {"tablets of links"} for looked, _ in meanwhile[1:]] == [set(), {"links"}]
    assert sorted(stage.ran) == ["b", "c"], "the other took the second row"
    assert stage.look() == stage.look(other) == []


def test_a_scan_that_fails_leaves_its_table_to_others(stage: Stage) -> None:
    other = stage.another_scanner()
    stage.look()

    def fail(table: str) -> None:
        raise StoreError("the store is away")

    put(stage.repo, target, "a", "x")
    stage.store.on_look = fail
    stage.look()
    stage.store.on_look = lambda table: None
    assert stage.look(other) == ["links"]
    assert stage.ran == ["a"]


def test_what_nobody_rang_for_is_found_when_it_is_time_to_look_everywhere(
    ground: Ground, stage: Stage
) -> None:
    stage.look()
    assert stage.wait == pytest.approx(1.0)
    wake, stage.repo.context.coordination.wake = stage.repo.context.coordination.wake, print  # type: ignore[method-assign]
    try:
        put(ground.repo(TABLES), target, "a", "x")
    finally:
        stage.repo.context.coordination.wake = wake  # type: ignore[method-assign]
    stage.clock.now += 0.9
    notify(stage.repo, stale, "b")
    assert stage.look() == ["counts"]
    assert stage.look() == []
    assert stage.wait == pytest.approx(0.1), "the whole second counts from the last such look"
    stage.clock.now += 0.1
    assert stage.look() == ALL
    assert stage.ran == ["b", "a"]


def test_a_table_with_a_row_that_another_scanner_works_on_is_looked_at_again(stage: Stage) -> None:
    stage.look()
    put(stage.repo, target, "a", "x")
    coordination = stage.repo.context.coordination
    assert coordination.try_lock("links", b"a")
    assert set(stage.look()) == {"links"}
    assert stage.ran == []
    assert 0 < stage.wait < 0.1
    coordination.unlock("links", b"a")
    assert stage.look() == ["links"]
    assert stage.ran == ["a"]


def test_a_row_that_another_scanner_works_on_for_long_is_looked_at_less_and_less_often(
    stage: Stage,
) -> None:
    stage.look()
    put(stage.repo, target, "a", "x")
    coordination = stage.repo.context.coordination
    assert coordination.try_lock("links", b"a")
    began, looks = stage.clock.now, 0
    while stage.clock.now < began + 60:
        stage.look()
        stage.clock.now += stage.wait
        looks += 1
    assert looks < 80, "about once a second, as in case a wake-up was lost"
    put(stage.repo, target, "b", "x")
    stage.look()
    assert stage.ran == ["b"]
    assert stage.look() and stage.wait < 0.1, "there was work meanwhile"
    coordination.unlock("links", b"a")
    stage.clock.now += stage.wait
    stage.look()
    assert stage.ran == ["b", "a"]


class TestRows:
    """Wake-ups that name rows, as those of a cluster do."""

    def test_n6_only_the_rows_that_it_names_are_scanned(self, stage: Stage) -> None:
        stage.look()
        stage.commit_elsewhere("b")
        assert stage.look() == ["links"]
        assert stage.store.ranges == [(b"b", b"b\0")]
        assert stage.ran == ["b"]
        assert stage.look() == []

    def test_where_rows_are_in_one_tablet_one_call_finds_them(self, stage: Stage) -> None:
        stage.store.splits = [b"m"]
        stage.look()
        stage.commit_elsewhere("z", "b", "n", "c", "a")
        assert stage.look() == ["links", "links", "tablets of links"]
        assert sorted(stage.store.ranges) == [(b"a", b"c\0"), (b"n", b"z\0")]
        assert sorted(stage.ran) == ["a", "b", "c", "n", "z"]
        stage.commit_elsewhere("d", "y")
        assert stage.look() == ["links", "links"], "the tablets are known for a minute"
        stage.clock.now += 61
        stage.look()
        stage.commit_elsewhere("e", "x")
        assert stage.look() == ["links", "links", "tablets of links"]

    def test_a_long_row_is_found_by_its_beginning(self, stage: Stage) -> None:
        long = "\xff" * 40 + "a row"
        stage.look()
        stage.commit_elsewhere("b" * 40 + "a row", long, long + "!")
        stage.look()
        assert sorted(stage.ran) == ["b" * 40 + "a row", long, long + "!"]

    def test_of_many_rows_the_whole_table_is_scanned(self, stage: Stage) -> None:
        stage.look()
        stage.commit_elsewhere(*(f"{number:032}" for number in range(25)))
        assert stage.look() == ["links"]
        assert stage.store.ranges == [(b"", b"")]
        assert len(stage.ran) == 25

    def test_a_row_that_another_process_works_on_is_looked_at_alone(self, stage: Stage) -> None:
        stage.look()
        coordination = stage.repo.context.coordination
        stage.commit_elsewhere("b")
        assert coordination.try_lock("links", b"b")
        stage.look()
        stage.look()
        coordination.unlock("links", b"b")
        stage.look()
        assert stage.ran == ["b"]
        assert {*stage.store.ranges} == {(b"b", b"b\0")}

    def test_rows_beside_one_that_another_process_works_on_are_served(self, ground: Ground) -> None:
        for seed in range(20):
            stage = Stage(ground, seed)
            stage.look()
            rows = [f"{seed} {letter}" for letter in "abcde"]
            held = rows[2].encode()
            stage.commit_elsewhere(*rows)
            coordination = stage.repo.context.coordination
            assert coordination.try_lock("links", held)
            for _ in range(10):
                stage.look()
            assert sorted(stage.ran) == [row for row in rows if row.encode() != held]
            coordination.unlock("links", held)
            stage.look()
            assert len(stage.ran) == len(rows)

    def test_while_one_row_waits_for_its_next_attempt_the_others_are_not_scanned(
        self, stage: Stage
    ) -> None:
        def fail_once(t: Transaction, row: str) -> None:
            if stage.ran == ["b"]:
                raise ValueError("not yet")

        stage.then = fail_once
        stage.store.splits = [b"c"]
        stage.look()
        stage.commit_elsewhere("b")
        stage.look()
        stage.commit_elsewhere("c")
        while stage.look():
            assert {*stage.store.ranges} <= {(b"b", b"b\0"), (b"c", b"c\0")}
            stage.clock.now += min(stage.wait, 0.05)
            assert len(stage.store.ranges) < 100
        assert sorted(stage.ran) == ["b", "b", "c"]

    def test_if_a_scan_is_cut_short_the_rows_are_not_forgotten(self, stage: Stage) -> None:
        def fail(table: str) -> None:
            raise StoreError("the store is away")

        stage.look()
        stage.commit_elsewhere("b")
        stage.store.on_look = fail
        stage.look()
        stage.store.on_look = lambda table: None
        assert stage.look() == ["links"]
        assert stage.ran == ["b"]


def test_scans_without_a_wake_up_go_on_once_a_store_that_was_away_is_back(stage: Stage) -> None:
    def wait_in_vain(table: str) -> None:
        stage.clock.now += 30.0
        raise StoreError("the store is away")

    stage.look()
    stage.clock.now += 1
    stage.store.on_look = wait_in_vain
    stage.look()
    stage.store.on_look = lambda table: None
    stage.clock.now += 1
    assert stage.look() == ALL
    stage.clock.now += 1
    assert stage.look() == ALL


def test_scans_without_a_wake_up_take_a_tenth_of_the_time_at_most(stage: Stage) -> None:
    def take_a_second(table: str) -> None:
        stage.clock.now += 1.0

    def stop_for_an_hour(table: str) -> None:
        stage.clock.now += 3600.0
        stage.store.on_look = lambda table: None

    stage.look()
    stage.store.on_look = take_a_second
    stage.clock.now += 1
    assert stage.look() == ALL, "it took three seconds"
    stage.clock.now += 26.9
    assert stage.look() == []
    stage.clock.now += 0.1
    stage.store.on_look = stop_for_an_hour
    assert stage.look() == ALL
    stage.clock.now += 60
    assert stage.look() == ALL


def test_a_table_that_a_stint_has_left_unfinished_is_gone_on_with(stage: Stage) -> None:
    rows = [f"{number:03}" for number in range(300)]
    put_all(stage.repo, target, dict.fromkeys(rows, "x"))

    def slow(t: Transaction, row: str) -> None:
        stage.clock.now += 0.3

    stage.then = slow
    looks = 0
    while stage.look():
        looks += 1
        assert looks < 100
    assert looks > 30, "a stint is two seconds of work"
    assert sorted(stage.ran) == rows


def test_n7_where_little_is_dirty_one_call_finds_it_and_a_random_row_begins(ground: Ground) -> None:
    rows = [f"row {number}" for number in range(8)]
    first = set()
    for seed in range(20):
        stage = Stage(ground, seed)
        put_all(stage.repo, contents, dict.fromkeys(rows, str(seed)))
        assert stage.look() == ALL
        at = rows.index(stage.ran[0])
        assert stage.ran == rows[at:] + rows[:at]
        first.add(at)
    assert len(first) > 3


def test_on_a_network_a_backlog_is_begun_anywhere_without_asking_for_tablets_again(
    ground: Ground,
) -> None:
    stage = Stage(ground)
    stage.repo = ground.repo(TABLES, store=stage.store, clock=stage.clock, prefetches=True)
    stage.scan_with([observer(target, name="count")(lambda t, row: stage.ran.append(row))])
    for _ in range(5):
        put_all(stage.repo, target, {f"{number:04}": "x" for number in range(600)})
        stage.look()
        stage.clock.now += 5
    assert len(stage.ran) >= 3000
    assert stage.store.looks.count("tablets of links") == 1


def test_a_scanner_whose_store_fails_is_not_well_until_a_look_succeeds(stage: Stage) -> None:
    def fail(table: str) -> None:
        raise StoreError("the region moves")

    assert stage.scanner.is_well
    stage.store.on_look = fail
    stage.look()
    assert not stage.scanner.is_well, "a worker that says it is idle is told of rows"
    stage.store.on_look = lambda table: None
    stage.look()
    assert stage.scanner.is_well


def test_rows_that_not_every_idle_worker_can_handle_at_once_are_told_to_all_workers() -> None:
    def run(t: Transaction, row: str) -> None: ...

    plain = [observer(one, name=one.name)(run) for one in (contents, target)]
    assert marks_of_pool(Observers(plain).pool) == {mark_of("docs"), mark_of("links")}
    assert Observers(plain).pool == Observers(plain[::-1]).pool
    another = observer(target, name="another")(run)
    assert Observers([plain[0], another]).pool != Observers(plain).pool
    for options in ({"dedicated": True}, {"rate": 5.0}):
        limited = observer(target, name="target", **options)(run)  # type: ignore[call-overload]
        assert marks_of_pool(Observers([plain[0], limited]).pool) == {mark_of("docs")}
        assert Observers([limited]).pool == b""

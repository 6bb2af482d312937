"""§2.4: observers that step back while there is other work, and which of their rows run first.

`defer=seconds`, `share=part`, `order=function`, `rate=number`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

import pytest
from benches import Bench
from stores import Ground, notify, put

from percola import ObserverError, Repository, Snapshot, Table, Transaction, Worker, observer
from percola.observers import scanner

pages = Table("pages")
body = pages.column("body", int, observed=True)
stirred = pages.weak_column("stirred")
totals = Table("totals")
changed = totals.weak_column("changed")
TABLES = [pages, totals]

SECONDS = 10.0
QUIET = 0.3


class Pages(Bench):
    """One scanner of pages and totals."""

    def __init__(self, ground: Ground, on_body: Callable[[Transaction, str], object]) -> None:
        super().__init__(ground, TABLES)

        def parse(t: Transaction, row: str) -> None:
            self.ran.append(f"parse {row}")
            on_body(t, row)

        self.scan_with(
            [
                observer(body, name="parse")(parse),
                observer(changed, name="add_up", defer=SECONDS, batch=8)(
                    lambda t, row: self.ran.append(f"add up {row}")
                ),
                observer(stirred, name="stir", defer=SECONDS)(lambda t, row: None),
            ]
        )

    def write(self, row: str, value: int) -> None:
        put(self.repo, body, row, value)

    def look(self) -> list[str]:
        """Look round once; what ran."""
        self.ran.clear()
        self.scanner.look()
        return sorted(self.ran)


def tell(t: Transaction, row: str) -> None:
    t.notify(changed, "all")


def test_a_deferred_observer_waits_while_there_is_other_work_and_runs_once_for_all(
    ground: Ground,
) -> None:
    bench = Pages(ground, tell)
    for value in range(5):
        bench.write("a", value)
        assert bench.look() == ["parse a"]
    assert bench.look() == [], "a gap in a stream of changes is no rest"
    bench.clock.now += QUIET
    assert bench.look() == ["add up all"]
    assert bench.look() == []


def test_a_deferred_observer_waits_while_another_scanner_looks_and_no_longer(
    ground: Ground,
) -> None:
    bench = Pages(ground, tell)
    bench.write("a", 1)
    assert bench.look() == ["parse a"]
    bench.clock.now += QUIET
    clean, mine = bench.schedule.clean, (bench.observers.prompt, "pages")
    bench.repo.context.wake(["pages"])
    looking = clean.begin(*mine, "another scanner")
    assert looking is not None
    assert bench.look() == [], "it may find work that comes first"
    clean.end(*mine, "another scanner", looking, frozenset())
    assert bench.look() == ["add up all"], "it found none"


def test_with_nothing_else_to_do_a_deferred_observer_runs_at_once(ground: Ground) -> None:
    bench = Pages(ground, tell)
    notify(bench.repo, changed, "all")
    assert bench.look() == ["add up all"]


def test_other_work_that_never_ends_puts_an_observer_off_for_no_longer_than_it_says(
    ground: Ground,
) -> None:
    def again(t: Transaction, row: str) -> None:
        tell(t, row)
        t.set(body, "b" if row == "a" else "a", t.start_ts)

    bench = Pages(ground, again)
    bench.write("a", 0)
    for _ in range(3):
        bench.clock.now += SECONDS * 0.9
        assert "add up all" not in bench.look()
        bench.clock.now += SECONDS * 0.2
        assert bench.look() == ["add up all"]


def test_looks_that_are_all_overdue_still_run_what_is_not_deferred(ground: Ground) -> None:
    """As where nothing wakes the worker, and `defer` is no longer than its period of rescans."""
    bench = Pages(ground, lambda t, row: None)
    bench.look()
    for value in range(3):
        bench.write("a", value)
        bench.clock.now += SECONDS
        assert bench.look() == ["parse a"]


def test_a_column_of_the_same_table_is_put_off_alone(ground: Ground) -> None:
    bench = Pages(ground, lambda t, row: t.notify(stirred, row))
    bench.write("a", 1)
    assert bench.look() == ["parse a"]
    assert [one for one in bench.repo.pending() if one == "pages.stirred"] == ["pages.stirred"]
    bench.clock.now += QUIET
    bench.look()
    assert bench.repo.pending() == {}


def test_a_worker_is_not_idle_before_its_deferred_observers_have_run(ground: Ground) -> None:
    repo: Repository = ground.repo(TABLES)
    ran: list[str] = []
    parse = observer(body, name="parse")(tell)
    add_up = observer(changed, name="add_up", defer=3600)(lambda t, row: ran.append(row))
    for value in range(20):
        put(repo, body, f"{value}", value)
    Worker(repo, [parse, add_up], threads=2).run_until_idle()
    assert set(ran) == {"all"}
    assert repo.pending() == {}


@pytest.mark.parametrize(
    ("option", "values", "message"),
    [
        ("defer", (-1, float("nan"), float("inf"), "soon"), "number of seconds, from 0"),
        ("share", (0, -1, 1.01, float("nan"), "half"), "above 0 and up to 1"),
        ("rate", (0, float("nan")), "runs a second"),
        ("order", (1,), "order"),
    ],
)
def test_an_option_that_is_no_number_of_its_kind_is_refused(
    option: str, values: tuple[object, ...], message: str
) -> None:
    for value in values:
        with pytest.raises(ObserverError, match=message):
            observer(changed, name="add_up", **{option: value})(lambda t, row: None)  # type: ignore[arg-type]


# --- A share of the time ------------------------------------------------------------------


class Shared(Pages):
    """One scanner with an observer that takes a second a run, and may take a fifth of the time."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, tell)

        def export(t: Transaction, row: str) -> None:
            self.clock.now += 1
            self.ran.append(f"export {row}")

        def parse(t: Transaction, row: str) -> None:
            self.ran.append(f"parse {row}")
            tell(t, row)

        self.scan_with(
            [
                observer(body, name="parse")(parse),
                observer(changed, name="export", share=0.2)(export),
            ]
        )


def test_an_observer_with_a_share_rests_after_a_run_while_there_is_other_work(
    ground: Ground,
) -> None:
    bench = Shared(ground)
    bench.write("a", 0)
    # They may be met in either order.
    assert "export all" in bench.look() + bench.look()
    ended = bench.clock.now
    for value in range(1, 9):
        bench.clock.now = ended + value * 0.7
        bench.write("a", value)
        looked = bench.look()
        if value * 0.7 < 4:
            assert looked == ["parse a"], "it has had its share"
    assert "export all" in bench.ran or bench.look() == ["export all"]


def test_an_observer_with_a_share_runs_at_once_if_there_is_nothing_else_to_do(
    ground: Ground,
) -> None:
    bench = Shared(ground)
    for _ in range(3):
        before = bench.clock.now
        with bench.repo.transaction() as t:
            tell(t, "a")
        assert bench.look() == ["export all"]
        assert bench.clock.now == before + 1


# --- An order, and a rate -----------------------------------------------------------------


def largest_first(t: Snapshot, rows: Sequence[str]) -> list[str]:
    return sorted(rows, key=lambda row: -(t.get(body, row) or 0))


class Ordered(Bench):
    """One scanner with an observer whose rows have an order; `ran` keeps it."""

    def __init__(self, ground: Ground, takes: float = 0.0, **options: object) -> None:
        super().__init__(ground, TABLES)

        def render(t: Transaction, row: str) -> None:
            self.clock.now += takes
            self.ran.append(row)

        options = {"order": largest_first, **options}
        self.scan_with([observer(stirred, name="render", batch=1, **options)(render)])  # type: ignore[arg-type]

    def stir(self, **rows: int) -> None:
        with self.repo.transaction() as t:
            for row, value in rows.items():
                t.set(body, row, value)
                t.notify(stirred, row)

    def look(self) -> list[str]:
        self.ran.clear()
        self.scanner.look()
        return list(self.ran)


ROWS = {f"row{n}": n * 7 % 20 for n in range(20)}
BY_VALUE = sorted(ROWS, key=lambda row: -ROWS[row])


def test_rows_run_once_each_in_the_order_that_their_observer_gives(ground: Ground) -> None:
    bench = Ordered(ground)
    bench.stir(**ROWS)
    assert bench.look() == BY_VALUE
    assert bench.look() == [] and bench.repo.pending().keys() == {"pages.body"}


def test_what_becomes_dirty_meanwhile_is_put_in_its_place(ground: Ground) -> None:
    bench = Ordered(ground, takes=3.0)  # more than a time slice
    bench.stir(**ROWS)
    assert bench.look() == BY_VALUE[:1]
    bench.stir(new=100, row0=50, **{BY_VALUE[1]: 19})
    found = [row for _ in range(21) for row in bench.look()]
    assert found == ["new", "row0", *(row for row in BY_VALUE[1:] if row != "row0")]
    assert bench.look() == []


def test_of_too_many_rows_each_part_has_the_order_and_none_is_missed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "_ORDERED", 16)  # entries, of which each row has two
    for takes in (0.0, 3.0):
        bench = Ordered(ground, takes)
        bench.stir(**ROWS)
        found = [row for _ in range(25) for row in bench.look()]
        assert sorted(found) == sorted(ROWS)
        if not takes:
            values = [ROWS[row] for row in found]
            assert sum(a < b for a, b in itertools.pairwise(values)) <= 5


@pytest.mark.parametrize(
    "order",
    [lambda t, rows: 1 / 0, lambda t, rows: ["row3", "unknown"], lambda t, rows: sys.exit(1)],
)
def test_an_order_that_fails_or_leaves_rows_out_leaves_none_undone(
    ground: Ground, order: object
) -> None:
    bench = Ordered(ground, order=order)
    bench.stir(**ROWS)
    found = bench.look()
    assert sorted(found) == sorted(ROWS)
    assert bench.repo.pending().keys() == {"pages.body"}


def test_of_an_order_that_always_fails_the_log_has_few_tracebacks(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Ordered(ground, order=lambda t, rows: 1 / 0, rate=2.0)
    bench.stir(**{f"row{n}": n for n in range(40)})
    for _ in range(30):
        bench.look()
        bench.clock.now += 0.5
    logged = [one.getMessage() for one in caplog.records if "cannot order" in one.getMessage()]
    told = [one for one in logged if "Traceback" in one]
    assert len(logged) >= 30 and len(told) == 20
    assert all("ZeroDivisionError: division by zero" in one for one in logged)


def test_no_more_runs_begin_than_the_rate_allows_and_one_answers_what_waited(
    ground: Ground,
) -> None:
    bench = Ordered(ground, rate=0.5)
    bench.stir(**ROWS)
    for at, row in enumerate(BY_VALUE[:4]):
        assert bench.look() == [row]
        bench.clock.now += 1.0
        assert bench.look() == []
        # Once more while it waits: nothing is lost, and it runs once.
        bench.stir(**{BY_VALUE[at + 1]: ROWS[BY_VALUE[at + 1]]})
        wait = bench.scanner.look()
        assert bench.ran == [] and 0.0 < wait <= 1.0
        bench.clock.now += 1.0
    for row in BY_VALUE[4:]:
        assert bench.look() == [row]
        bench.clock.now += 2.0
    assert bench.look() == [] and bench.repo.pending().keys() == {"pages.body"}


def test_a_scanner_that_another_has_overtaken_begins_no_run_above_the_rate(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Ordered(ground, rate=0.5)
    bench.stir(**ROWS)
    coordination = bench.repo.context.coordination
    try_lock = coordination.try_lock

    def overtaken(table: str, row: bytes) -> bool:
        # Another scanner of the worker begins a run after this one has found that it may.
        monkeypatch.setattr(coordination, "try_lock", try_lock)
        assert not bench.schedule.note_begun(stirred.address)
        return try_lock(table, row)

    monkeypatch.setattr(coordination, "try_lock", overtaken)
    assert bench.look() == []
    bench.clock.now += 2.0
    assert len(bench.look()) == 1


def test_no_wake_up_matters_until_a_run_may_begin_again(ground: Ground) -> None:
    bench = Ordered(ground)
    slow = observer(stirred, name="slow", rate=0.1)(lambda t, row: None)
    bench.scan_with([slow])
    assert bench.schedule.note_wake_up() == 0.0
    bench.stir(**ROWS)
    bench.look()
    bench.clock.now += 4.0
    assert bench.schedule.note_wake_up() == 6.0
    bench.clock.now += 6.0
    assert bench.schedule.note_wake_up() == 0.0
    bench.scan_with([slow, observer(body, name="prompt")(lambda t, row: None)])
    bench.stir(**ROWS)
    bench.look()
    assert bench.schedule.note_wake_up() == 0.0


def test_a_rate_holds_up_no_other_observer(ground: Ground) -> None:
    bench = Ordered(ground)

    def run(t: Transaction, row: str) -> None:
        bench.ran.append(row)

    slow = observer(stirred, name="slow", batch=1, rate=0.1)(run)
    bench.scan_with(
        [slow, observer(body, name="prompt", batch=1)(lambda t, row: run(t, f"p{row}"))]
    )
    bench.stir(**ROWS)
    found = bench.look() + bench.look()
    assert sorted(row for row in found if row[0] == "p") == sorted(f"p{row}" for row in ROWS)
    assert len(found) == len(ROWS) + 1


def with_two_columns(ground: Ground, **options: float) -> Ordered:
    """An observer of two columns, in rows of which some are dirty in one and some in the other."""
    bench = Ordered(ground)

    def run(t: Transaction, row: str) -> None:
        bench.ran.append(row)

    limited = observer(body, stirred, name="limited", batch=1, **options)(run)  # type: ignore[arg-type]
    bench.scan_with([limited, observer(changed, name="prompt")(lambda t, row: None)])
    put(bench.repo, body, "a", 1)
    notify(bench.repo, stirred, "b")
    return bench


def test_a_rate_is_that_of_all_columns_of_an_observer(ground: Ground) -> None:
    bench = with_two_columns(ground, rate=0.5)
    first = bench.look()
    assert len(first) == 1
    bench.clock.now += 1.0
    assert bench.look() == []
    bench.clock.now += 1.0
    assert sorted(first + bench.look()) == ["a", "b"]


def test_a_share_is_that_of_all_columns_of_an_observer(ground: Ground) -> None:
    bench = with_two_columns(ground, share=0.2)
    bench.schedule.note_run(body.address, 1.0)
    assert bench.schedule.resting() == {body.address, stirred.address}
    bench.clock.now += 4.0
    assert bench.schedule.resting() == frozenset()

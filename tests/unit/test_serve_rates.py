"""What workers report as throughput and percentiles, and what needs attention."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from stores import ScriptedClock

from percola.cells import Cell, LockRecord, Op
from percola.inspection import HeldLock, Process
from percola.observers.metrics import LATENCIES
from percola.observers.reports import ObserverTotals, Report
from percola.paused import PausedObserver
from percola.serve.problems import _LOCKED, _SLOW, _WAITS, problems
from percola.serve.rates import WINDOW, Rates, Speed, percentile, retention
from percola.serve.view import Lock, ObserverState, View, WorkingProcess

BUCKETS = len(LATENCIES) + 1


def report(at: float, runs: int = 0, **more: Any) -> Report:
    """A worker's report at a number of seconds, of its one observer."""
    latencies = more.pop("latencies", {})
    counts = tuple(latencies.get(place, 0) for place in range(BUCKETS))
    fields = {name: more.pop(name, 0) for name in ("conflicts", "failures")}
    totals = ObserverTotals(runs=runs, **fields, latencies=counts if latencies else ())
    return Report(1, "host", 0, int(at * 1000), 5.0, 1, {"index": totals}, **more)


class Watched:
    """Rates by a clock of our own."""

    def __init__(self) -> None:
        self.clock = ScriptedClock()
        self.rates = Rates(self.clock)

    def at(self, seconds: float, **reports: Report) -> Any:
        self.clock.now = seconds
        return self.rates.take(reports)


def test_totals_that_are_seen_for_the_first_time_are_no_rate() -> None:
    watched = Watched()
    found = watched.at(100, a=report(99, runs=1_000_000))
    assert not found.known and found.total.runs == 0
    assert found.total.recent_runs == 0 and found.total.p95 is None
    found = watched.at(104, a=report(104, runs=1_000_050))
    assert found.known and found.total.runs == found.observers["index"].runs == 10
    assert found.total.recent_runs == 50


def test_a_worker_without_news_does_nothing() -> None:
    watched = Watched()
    watched.at(100, a=report(100, runs=10))
    assert watched.at(105, a=report(105, runs=60)).total.runs == 10
    assert watched.at(110, a=report(105, runs=60)).total.runs == 10, "it may be about to report"
    assert watched.at(115, a=report(105, runs=60)).total.runs == 0
    found = Watched().at(100, a=report(1, runs=10))
    assert not found.known


def test_what_is_new_after_a_pause_happened_since_the_last_check() -> None:
    watched = Watched()
    watched.at(100, a=report(100, runs=10))
    watched.at(3600, a=report(100, runs=10))
    found = watched.at(3605, a=report(3605, runs=85))
    assert found.total.runs == pytest.approx(75 / 7.5)


def test_workers_are_added_up_and_a_stopped_one_counts_for_the_rest_of_the_minute() -> None:
    watched = Watched()
    watched.at(100, a=report(100, conflicts=1), b=report(100))
    both = {"a": report(105, runs=50, conflicts=11), "b": report(105, runs=25)}
    found = watched.at(105, **both)
    assert (found.total.runs, found.total.conflicts) == (15, 2)
    found = watched.at(106, b=both["b"])
    assert found.total.runs == 5 and found.total.recent_runs == 75
    found = watched.at(105 + WINDOW, b=both["b"])
    assert (found.total.runs, found.total.recent_runs) == (0, 75)
    assert watched.at(106 + WINDOW, b=both["b"]).total.recent_runs == 0


def test_a_percentile_is_of_the_last_minute_and_within_its_bucket() -> None:
    watched = Watched()
    watched.at(100, a=report(100, latencies={0: 1_000}))
    found = watched.at(105, a=report(105, latencies={0: 1_000, 3: 10}))
    assert found.total.p50 == pytest.approx((0.025 + 0.05) / 2)
    assert found.total.p99 == pytest.approx(0.025 + 0.025 * 0.99)
    found = watched.at(140, a=report(140, latencies={0: 1_000, 3: 10, 8: 10}))
    assert found.observers["index"].p50 == 0.05
    watched.at(200, a=report(200, latencies={0: 1_000, 3: 10, 8: 11}))
    found = watched.at(201, a=report(200, latencies={0: 1_000, 3: 10, 8: 11}))
    assert found.total.p50 == pytest.approx((1.0 + 2.5) / 2)


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ({}, 0.5, None),
        ({0: 4}, 0.5, 0.0025),
        ({BUCKETS - 1: 1}, 0.5, LATENCIES[-1]),
        ({0: 1, 2: 1}, 0.5, 0.005),
        ({0: 1, 2: 1}, 1.0, 0.025),
        ({0: 0, 4: 10}, 0.95, 0.05 + 0.05 * 0.95),
    ],
)
def test_percentile_by_buckets(counts: dict[int, int], share: float, seconds: float | None) -> None:
    found = percentile(counts, share)
    assert found == seconds if seconds is None else found == pytest.approx(seconds)


def test_store_calls_are_added_by_kind_and_unknown_where_nobody_counts_them() -> None:
    watched = Watched()
    watched.at(100, a=report(100, calls={"read": (10, 100)}), b=report(100))
    found = watched.at(105, a=report(105, calls={"read": (20, 200), "scan": (5, 5)}), b=report(100))
    assert found.calls == {"read": (2, 20), "scan": (1, 1)}
    assert Watched().at(100, b=report(100)).calls is None


def test_the_shortest_retention_counts() -> None:
    day, hour = report(1, retention=86_400.0), report(1, retention=3_600.0)
    assert retention([day, hour, report(1)]) == 3_600
    assert retention([report(1)]) is None


# --- What needs attention -----------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]


def state(**fields: Any) -> ObserverState:
    """An observer that a process runs and that has nothing to do."""
    usual: dict[str, Any] = {
        "name": "index",
        "columns": ("docs.contents",),
        "waiting": 0,
        "oldest_s": None,
        "at_least": False,
        "oldest_cell": "",
        "retrying": 0,
        "dead": 0,
        "paused": None,
        "processes": 1,
        "speed": None,
    }
    return ObserverState(**{**usual, **fields})


WORKER = WorkingProcess(Process("token", 1, {"docs.contents": ["index"]}), ())


def told(*observers: ObserverState, **fields: Any) -> list[tuple[str, str, bool]]:
    fields.setdefault("processes", [WORKER])
    found = problems(View(observers=list(observers), **fields))
    return [(one.alert, one.what, one.is_urgent) for one in found]


def lock(age_s: float) -> Lock:
    cell = Cell("docs", b"a", b"contents")
    record = LockRecord(Op.PUT, cell, "1-a", 0, 0, True, None)
    return Lock(HeldLock(cell, 1, record, False, 0.0), "a docs.contents", age_s)


def test_each_problem_is_said_above_its_threshold_and_not_below() -> None:
    assert told(state()) == []
    assert told(state(waiting=1, oldest_s=300.0)) == []
    assert told(state(waiting=1, oldest_s=301.0)) == [
        ("PercolaChangesWait", "A change has waited for index for 5 min.", True)
    ]
    assert told(state(speed=Speed(p95=60.0))) == []
    assert told(state(speed=Speed(p95=61.0)))[0][0] == "PercolaAnswersSlow"
    assert told(state(speed=Speed(recent_conflicts=20, recent_runs=20))) == []
    assert told(state(speed=Speed(recent_conflicts=21, recent_runs=20)))[0][0] == (
        "PercolaObserverConflicts"
    )
    assert told(state(speed=Speed(recent_conflicts=10))) == [], "a few are none"
    assert told(state(), locks=[lock(600.0)]) == []
    assert told(state(), locks=[lock(601.0)])[0][0] == "PercolaLocksOld"
    kept = {"retention": 3600.0, "safe_point": 1}
    assert told(state(), **kept, safe_point_s=10_800.0) == []
    assert told(state(), **kept, safe_point_s=10_801.0)[0][0] == "PercolaGarbageKept"
    assert told(state(), free_bytes=1 << 30) == []
    assert told(state(), free_bytes=1 << 29) == [("", "The disk has 512 MiB left.", True)]


def test_what_stands_still_comes_first() -> None:
    paused = PausedObserver("slow", ("docs.title",), "it harms", 0)
    found = told(state(name="slow", paused=paused, waiting=2), state(dead=3))
    assert found == [
        ("PercolaDeadLetters",
         "3 changes of index are dead-lettered: it kept failing on them.", True),
        ("PercolaObserverPaused", "slow is paused (it harms), and 2 changes wait.", False),
    ]  # fmt: skip
    assert told(state(waiting=1), processes=[]) == [
        ("PercolaNoWorker", "No worker is running. 1 change waits.", True)
    ]
    assert told(processes=[]) == [
        ("PercolaNoWorker", "No worker is running. Changes will wait.", False)
    ]
    assert told(state(), state(name="new", processes=0, waiting=2)) == [
        ("PercolaNoWorker", "No worker runs new, and 2 changes wait.", True)
    ]


def test_a_page_without_buttons_names_the_commands() -> None:
    paused = PausedObserver("slow", ("docs.title",), "", 0)
    view = View(observers=[state(dead=3), state(name="slow", paused=paused)], processes=[WORKER])
    assert [one.do for one in problems(view)] == [
        "Correct the observer or the data, then run 'percola failed retry --observer index'.",
        "Run 'percola observers resume slow' when it may run again.",
    ]
    assert [one.do for one in problems(view, can_act=True)] == [
        "Correct the observer or the data, then retry below.",
        "Resume it below when it may run again.",
    ]


def test_problems_have_the_names_and_thresholds_of_the_alerts() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "percola.rules.yml").read_text()
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    source = (ROOT / "src" / "percola" / "serve" / "problems.py").read_text()
    names = set(re.findall(r'"(Percola[A-Z]\w+)"', source))
    assert len(names) == 8
    for name in names:
        assert f"alert: {name}\n" in rules and f"### {name}\n" in runbook
    for name, threshold in {
        "PercolaChangesWait": f"> {_WAITS:.0f} ",
        "PercolaAnswersSlow": f"> {_SLOW:.0f}",
        "PercolaLocksOld": f"> {_LOCKED:.0f}",
        "PercolaGarbageKept": "> 2 * min(percola_gc_retention_seconds) + 3600",
    }.items():
        rule = rules.partition(f"alert: {name}\n")[2].partition("for:")[0]
        assert threshold in rule, (name, rule)

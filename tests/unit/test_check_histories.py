"""Whatever happens in whatever order, `check` raises no alarm: random histories that are legal."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import Crashed, CrashingStore, Ground, ScriptedClock, ScriptedCoordination, cell_of

from percola import Repository, Transaction, inspection
from percola.cells import Cell, Kind
from percola.errors import TransientError
from percola.maintenance.check import Counts, Severity, check
from percola.observers.failures import DirtyCell, Failures, Story
from percola.observers.metrics import WorkerMetrics
from tests.unit.checked import LARGE, TABLES, bal, broken, contents, measure, recluster

Changes = list[tuple[str, str, bytes]]
Step = tuple[str, object, Changes]
ROWS = ("a", "b", "c")
rows = st.sampled_from(ROWS)
write = st.one_of(
    st.tuples(st.just("put"), rows, st.sampled_from([b"small", LARGE])),
    st.tuples(st.sampled_from(["delete", "count", "lock", "notify"]), rows, st.just(b"")),
)
writes = st.lists(write, min_size=1, max_size=5)
step = st.one_of(
    st.tuples(st.just("commit"), st.booleans(), writes),
    st.tuples(st.just("die"), st.integers(0, 8), writes),
    st.tuples(st.just("stall"), st.integers(0, 8), writes),
    st.tuples(st.sampled_from(["read", "observe", "dead-lettered"]), rows, st.just([])),
    st.tuples(st.just("observe and die"), st.integers(0, 4), st.just([])),
    st.tuples(st.sampled_from(["end", "collect", "retry"]), st.just(0), st.just([])),
)


def do(t: Transaction, changes: Changes) -> None:
    for what, row, value in changes:
        if what == "put":
            t.set(contents, row, value)
        elif what == "delete":
            t.delete(contents, row)
        elif what == "count":
            t.set(bal, row, (t.get(bal, row) or 0) + 1)
        elif what == "lock":
            t.get_for_update(bal, row)
        else:
            t.notify(recluster, row)


class World:
    """Some processes on one store; those that died are known to be dead, or thought to live."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.alive: set[str] = set()
        self.clock = ScriptedClock()
        self.died = 0
        self.repo = self.process("main")

    def process(self, name: str, crash_at: int | None = None) -> Repository:
        options: dict[str, Any] = {"clock": self.clock, "lock_wait_seconds": 1.0}
        options["coordination"] = ScriptedCoordination(name, self.alive)
        if crash_at is None:
            return self.ground.repo(TABLES, **options)
        store = CrashingStore(self.ground.store, crash_at + 1)
        made = self.ground.repo(TABLES, store=store, one_step=False, **options)
        store.armed = True
        return made

    def dies(self, crash_at: int, changes: Changes, *, known: bool) -> None:
        self.died += 1
        name = f"p{self.died}"
        dying = self.process(name, crash_at)
        with contextlib.suppress(Crashed, TransientError):
            t = dying.transaction()
            do(t, changes)
            t.commit()
        if known:
            self.alive.discard(name)

    def notified(self, row: str) -> dict[Cell, list[int]]:
        entries = self.ground.entries(contents, row, Kind.NOTIFY)
        return {cell_of(contents, row): [ts for ts, _ in entries]}

    def step(self, what: str, detail: object, changes: Changes) -> None:
        repo = self.repo
        with contextlib.suppress(TransientError):
            if what == "commit":
                with repo.transaction(two_phase=bool(detail)) as t:
                    do(t, changes)
            elif what in ("die", "stall"):
                assert isinstance(detail, int)
                self.dies(detail, changes, known=what == "die")
            elif what == "end":
                self.alive.intersection_update({"main"})
            elif what == "collect":
                repo.collect_garbage(retention=0)
            elif what == "retry":
                inspection.retry_failures(repo)
            elif what == "observe and die":
                assert isinstance(detail, int)
                dying = self.process("observer", detail)
                with contextlib.suppress(Crashed):
                    measure.run(dying.context, b"a", self.notified("a"))
                self.alive.discard("observer")
            else:
                assert isinstance(detail, str)
                if what == "read":
                    repo.snapshot().get(contents, detail)
                    repo.snapshot().get(bal, detail)
                elif what == "observe":
                    measure.run(repo.context, detail.encode(), self.notified(detail))
                elif entries := self.ground.entries(contents, detail, Kind.NOTIFY):
                    once = {"attempts": 1, "first_wait": 1, "longest_wait": 1}
                    fails = Failures(repo.context, WorkerMetrics(), Random(0), **once)
                    dirty = DirtyCell.of(cell_of(contents, detail), entries)
                    answers = {dirty.cell: dirty.notified}
                    fails.failed(broken, [dirty], answers, Story.of(ValueError("x")))


walked: Counter[str] = Counter()


def live(kind: str, one_step: bool, steps: list[Step]) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        world = World(Ground(kind, one_step, folder / "ground", stack))
        for what, detail, changes in steps:
            world.step(what, detail, changes)
            counts = Counts()
            found = list(check(world.repo, counts=counts))
            assert [one for one in found if one.severity is Severity.ERROR] == []
            assert counts.unsettled == 0
            walked["left"] += counts.left
            walked["pending"] += counts.pending
            walked["failures"] += counts.failures
            walked[what] += 1
        walked["safe point"] += world.ground.store.safe_point() > 0


def hold(kind: str, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @given(st.booleans(), st.lists(step, max_size=25))
    def holds(one_step: bool, steps: list[Step]) -> None:
        live(kind, one_step, steps)

    holds()


def test_random_legal_histories_break_no_rule_in_memory() -> None:
    walked.clear()
    hold("memory", 400)
    # The histories were worth walking.
    assert min(walked[one] for one in ("left", "pending", "failures", "safe point")) > 0
    assert min(walked[one] for one in ("die", "stall", "observe and die", "collect", "retry")) > 0


def test_random_legal_histories_break_no_rule_on_lmdb() -> None:
    hold("lmdb", 25)

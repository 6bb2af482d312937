"""The change feed against a model: random histories of commits in flight, deaths and collections.

Every mutation of a commit in two phases is a place where anything else may happen: others commit,
a follower reads on, garbage is collected, the process dies. The model is told of each write record
as it is put, by whomever; at the end the follower has seen exactly that, in commit order, with the
rows as they were.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from stores import Crashed, Ground, PassingStore, ScriptedCoordination

from percola import SnapshotTooOldError, Table, TransientError, feed
from percola.cells import Cell, Kind, Op, decode_write
from percola.maintenance.check import check
from percola.store.base import OneStepConflict, OneStepStore, OneStepWrite, Put, RowMutation

docs = Table("docs", feed=True)
COLUMNS = [docs.column(name, int) for name in ("a", "b", "c")]
ROWS = ("r", "s", "t")

Writes: TypeAlias = dict[tuple[str, int], int | None]
"""(row, number of the column) → what is put, or None to delete."""


@dataclass(frozen=True)
class Commit:
    """A commit in one step."""

    writes: Writes


@dataclass(frozen=True)
class Poll:
    """The follower reads on, up to a part (in quarters) of what is settled."""

    quarters: int


@dataclass(frozen=True)
class Collect:
    """Garbage is collected; what the follower needs is held back, or not."""

    held: bool


@dataclass(frozen=True)
class Meet:
    """Somebody reads a cell, and finishes what is decided."""

    row: str
    column: int


Action: TypeAlias = Commit | Poll | Collect | Meet


@dataclass(frozen=True)
class TwoPhase:
    """A commit in two phases: what happens before each of its mutations, and where it dies."""

    writes: Writes
    between: list[list[Action]]
    dies_at: int | None
    waits: list[Action]


class Recorder(PassingStore):
    """Tells the model what is committed, and lets others in before every mutation of a commit."""

    def __init__(self, inner: OneStepStore) -> None:
        super().__init__(inner)
        self.before: Callable[[], None] = lambda: None
        self.written: dict[tuple[int, str], dict[str, int | None]] = defaultdict(dict)

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        applied = []
        for one in batch:
            self.before()
            applied += self.inner.mutate([one])
            if applied[-1] and one.table == docs.name:
                for change in one.changes:
                    if isinstance(change, Put) and change.kind is Kind.WRITE:
                        self._record(one.row, change)
        return applied

    def _record(self, row: bytes, put: Put) -> None:
        op, _, value, *_ = decode_write(put.value)
        if op in (Op.PUT, Op.DELETE):
            self._note(put.ts, row, put.column, value)

    def _note(self, ts: int, row: bytes, column: bytes, value: bytes | None) -> None:
        number = None if value is None else int(value)
        self.written[ts, row.decode()][column.decode()] = number

    def commit_one_step(
        self,
        start_ts: int,
        writes: Sequence[OneStepWrite],
        notifications: Sequence[Cell] = (),
        deletes: Sequence[tuple[Kind, Cell, int]] = (),
    ) -> int | OneStepConflict:
        outcome = self.inner.commit_one_step(start_ts, writes, notifications, deletes)
        if isinstance(outcome, int):
            for (table, row, column), op, value, _ in writes:
                if table == docs.name and op in (Op.PUT, Op.DELETE):
                    self._note(outcome, row, column, value)
        return outcome


@dataclass
class History:
    """A repository, its follower, and what both have come to."""

    ground: Ground
    alive: set[str] = field(default_factory=set)
    after: int = 0
    covered: list[tuple[int, int]] = field(default_factory=list)
    seen: list[feed.Change[str]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.store = Recorder(self.ground.store)
        self.repo = self._open("other")
        self.after = feed.since(self.repo, docs)

    def _open(self, name: str) -> Any:
        coordination = ScriptedCoordination(name, self.alive)
        return self.ground.repo([docs], store=self.store, coordination=coordination)

    def do(self, action: Action | TwoPhase) -> None:
        if isinstance(action, TwoPhase):
            self._commit_in_two_phases(action)
        elif isinstance(action, Commit):
            with suppress(TransientError), self.repo.transaction() as t:
                _write(t, action.writes)
        elif isinstance(action, Poll):
            self.poll(action.quarters)
        elif isinstance(action, Meet):
            cell = Cell(docs.name, action.row.encode(), COLUMNS[action.column].key)
            for lock_ts, raw in self.ground.store.entries(cell, Kind.LOCK, 0, 2**62):
                self.repo.context.resolver.try_resolve(cell, lock_ts, raw)
        else:
            if action.held:
                with suppress(SnapshotTooOldError):  # It has come too late already.
                    self.repo.hold(self.after, 3600, name="follower")
            else:
                self.repo.release("follower")
            self.repo.collect_garbage(retention=0)

    def poll(self, quarters: int = 4) -> None:
        settled = max(self.after, feed.settled(self.repo, docs))
        upto = self.after + (settled - self.after) * quarters // 4
        store = self.repo.context.store
        try:
            feed.check_start(self.repo, docs.name, self.after)
            found = list(feed.read_changes(store, docs.name, self.after, upto, before=True))
        except SnapshotTooOldError:
            event("the follower came too late")
            self.after = feed.since(self.repo, docs)
            return
        for one in found:
            row = docs.decode_row(one.row)
            names = tuple(name.decode() for name in one.changed)
            image: Any = {name.decode(): int(raw) for name, raw in one.values.items()}
            assert one.before is not None
            before: Any = {name.decode(): int(raw) for name, raw in one.before.items()}
            self.seen.append(feed.Change(row, one.commit_ts, names, image, None, before))
        self.covered.append((self.after, upto))
        self.after = upto

    def _commit_in_two_phases(self, action: TwoPhase) -> None:
        name = f"writer{next(self.numbers)}"
        t = self._open(name).transaction(two_phase=True)
        _write(t, action.writes)
        for other in action.waits:
            self.do(other)
        steps = itertools.count()

        def before() -> None:
            step = next(steps)
            if step == action.dies_at:
                self.alive.discard(name)
                event("a writer died")
                raise Crashed
            if step < len(action.between):
                self.store.before = lambda: None
                for other in action.between[step]:
                    self.do(other)
                self.store.before = before

        self.store.before = before
        with suppress(TransientError, Crashed):
            t.commit()
        self.store.before = lambda: None

    def judge(self) -> None:
        """The follower has seen what was written, in order, once, with the rows as they were."""
        for _ in range(2):
            self.poll()  # Twice, if it comes too late.
        assert self.ground.left_over(docs, Kind.LOCK) == []
        written = sorted(self.store.written.items())
        expected = [
            (ts, row, tuple(sorted(columns)))
            for (ts, row), columns in written
            if any(after < ts <= upto for after, upto in self.covered)
        ]
        assert [(one.commit_ts, one.row, one.changed) for one in self.seen] == expected
        state: dict[str, dict[str, int]] = {row: {} for row in ROWS}
        images, before = {}, {}
        for (ts, row), columns in written:
            before[ts, row] = state[row]
            state[row] = {**state[row], **columns}  # type: ignore[dict-item]
            state[row] = {name: value for name, value in state[row].items() if value is not None}
            images[ts, row] = state[row]
        for one in self.seen:
            image: Any = one.image
            assert image == images[one.commit_ts, one.row], (one.commit_ts, one.row)
            assert one.before == before[one.commit_ts, one.row], (one.commit_ts, one.row)
        assert [finding.message for finding in check(self.repo)] == []


def _write(t: Any, writes: Writes) -> None:
    for (row, column), value in writes.items():
        if value is None:
            t.delete(COLUMNS[column], row)
        else:
            t.set(COLUMNS[column], row, value)


_writes = st.dictionaries(
    st.tuples(st.sampled_from(ROWS), st.integers(0, len(COLUMNS) - 1)),
    st.none() | st.integers(0, 99),
    min_size=1,
    max_size=4,
)
_polls = st.builds(Poll, st.sampled_from((4, 4, 4, 2, 1)))
_actions = (
    st.builds(Commit, _writes)
    | _polls
    | st.builds(Collect, st.sampled_from((True, True, True, False)))
    | st.builds(Meet, st.sampled_from(ROWS), st.integers(0, len(COLUMNS) - 1))
)
_two_phase = st.builds(
    TwoPhase,
    _writes,
    st.lists(st.lists(_actions, max_size=3), max_size=9),
    st.none() | st.integers(0, 8),
    st.lists(_actions, max_size=2),
)
histories = st.lists(_actions | _two_phase | _two_phase, min_size=1, max_size=10)


@pytest.mark.parametrize(("kind", "examples"), [("memory", 250), ("lmdb", 30)])
def test_a_follower_sees_every_commit_once_and_in_order(
    kind: str, examples: int, tmp_path: Path
) -> None:
    folders = itertools.count()
    seen = []

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(history=histories)
    def run(history: list[Action | TwoPhase]) -> None:
        with ExitStack() as stack:
            played = History(Ground(kind, True, tmp_path / str(next(folders)), stack))
            for action in history:
                played.do(action)
            played.judge()
            seen.append(len(played.seen))

    run()
    assert sum(seen) > examples, "the histories had next to nothing to follow"

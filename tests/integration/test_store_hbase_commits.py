"""Commits that Java sends to HBase: what it sends, and what comes of what it could not do."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias

import jpype
import pytest
from hbase import LATE, HBase, failing, require_jars, send_through
from hypothesis import given
from hypothesis import strategies as st
from needs import need
from stores import ScriptedClock, cell_of

from percola import ConflictError, Repository, Table, Transaction
from percola.cells import MAX_TS, Cell, Kind, LockRecord, Op, decode_write
from percola.coordination.memory import MemoryCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import CommitRow, PreparedCommit, RowMutation
from percola.store.counting import CountedStore, StoreCalls
from percola.store.forwarding import ForwardingStore
from percola.store.hbase.commits import CELLS, prepare
from percola.store.hbase.jvm import java_class, java_objects, start
from percola.store.hbase.method_handles import OURS
from percola.store.hbase.mutations import Plan, changes_of, locks_of, looked_checks, plan
from percola.store.hbase.store import HBaseStore
from percola.store.hbase.wire import LOCK, MAX_STORED_TS
from percola.store.hbase.writes import _together
from percola.store.memory import MemoryStore
from percola.store.walks import walk_kind
from percola.transactions.two_phase import TwoPhaseCommit

accounts = Table("accounts")
balance = accounts.column("balance", str)
note = accounts.column("note", str, observed=True)
branches = Table("branches")
total = branches.column("total", str, observed=True)
TABLES: Final = [accounts, branches]

Call: TypeAlias = tuple[str, list[tuple[bytes, bytes]]]
"""A table, and the requests that are sent to it together: each a row and a message."""


# --- What is sent -----------------------------------------------------------------------


class ByMutate(ForwardingStore):
    """Notes what `mutate` sends, and says that it was applied; before that it is in memory."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.has_volatile_writes = True
        self.starts: Sequence[bytes] = [b""]
        self.sent: list[Call] | None = None

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        if self.sent is None:
            return super().mutate(batch)
        plans = [self._planned(one) for one in batch]
        for table in dict.fromkeys(one.table for one in plans):
            places = [at for at, one in enumerate(plans) if one.table == table]
            together = _together(plans, places, self.starts)
            self.sent.append(
                (table, [(plans[one.places[0]].row, b"".join(one.fields)) for one in together])
            )
        return [True] * len(batch)

    def _planned(self, mutation: RowMutation) -> Plan:
        """How a mutation is sent; of one whose row is read first, once its locks were found."""
        made = plan(mutation, False)
        if not made.looks:
            return made
        [start_ts] = {one.low for one in mutation.conditions}
        held = {(LOCK, one.column): [start_ts] for one in mutation.changes}
        locks = locks_of(mutation, held)
        changes = changes_of(mutation, locks, False)
        return Plan(mutation.table, mutation.row, changes, looked_checks(mutation, locks))


class InJava(ByMutate):
    """Notes the requests that Java sends instead."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared_cells = CELLS
        client = SimpleNamespace(
            sender=jpype.JProxy(OURS + "Sender", dict={"send": self._send}),
            commit=java_class(OURS + "Commit"),
        )
        self._calls: Any = SimpleNamespace(
            client=lambda: client,
            check_open=lambda: None,
            made=Counter(),
            region_starts=lambda table: self.starts,
            tables=_array,
        )

    def mutate(self, batch: Sequence[RowMutation]) -> list[bool]:
        assert self.sent is None, batch
        return super().mutate(batch)

    def prepare_commit(
        self, start_ts: int, lock: LockRecord, rows: Sequence[CommitRow]
    ) -> PreparedCommit | None:
        shared: Any = SimpleNamespace(view=lambda moment: SimpleNamespace(feeds=frozenset()))
        return prepare(self._calls, shared, start_ts, lock, rows)

    def _send(self, table: Any, rows: Any, messages: Any) -> Any:
        assert self.sent is not None
        self.sent.append((str(table), [*zip(map(bytes, rows), map(bytes, messages), strict=True)]))
        return _array([jpype.JArray(jpype.JByte)(0)] * len(rows))


def _array(objects: Sequence[Any]) -> Any:
    made = java_objects(len(objects))
    for at, one in enumerate(objects):
        made[at] = one
    return made


class Side(NamedTuple):
    """A repository whose store notes what it sends, and the counts of its calls."""

    repo: Repository
    store: ByMutate
    calls: StoreCalls


@pytest.fixture(scope="module")
def sides() -> tuple[Side, Side]:
    """One for `mutate` and one for Java, with the same clock, liveness token and timestamps."""
    need("javac")
    require_jars()
    start()
    oracle, clock, coordination = (
        EmbeddedOracle(MemoryStore()),
        ScriptedClock(),
        MemoryCoordination(),
    )

    def side(store: ByMutate) -> Side:
        calls = StoreCalls()
        counted = CountedStore(store, calls)
        repo = Repository(
            "noting", counted, oracle, coordination, TABLES, clock=clock, one_step=False
        )
        return Side(repo, store, calls)

    return side(ByMutate()), side(InJava())


_NAMES: Final = st.binary(min_size=1, max_size=3) | st.sampled_from([b"r" * 127, b"r" * 200])
_CELLS: Final = st.builds(
    Cell,
    st.sampled_from([one.name for one in TABLES]),
    _NAMES,
    st.sampled_from([balance.key, note.key, total.key])
    | _NAMES.map(lambda name: name.replace(b"\0", b"0")),
)
_VALUES: Final = st.none() | st.binary(max_size=3) | st.integers(100, 256).map(bytes)
_TS: Final = st.integers(1, MAX_STORED_TS)
_ANSWERS: Final = st.tuples(st.sampled_from([Kind.NOTIFY, Kind.FAILED]), st.integers(0, 9), _TS)


@given(
    values=st.dictionaries(_CELLS, _VALUES, min_size=1, max_size=10),
    answers=st.lists(_ANSWERS, max_size=4),
    cuts=st.sets(_NAMES, max_size=3),
    start_ts=_TS,
    commit_ts=_TS,
)
def test_java_sends_the_requests_that_python_sends_byte_for_byte(
    sides: tuple[Side, Side],
    values: dict[Cell, bytes | None],
    answers: list[tuple[Kind, int, int]],
    cuts: set[bytes],
    start_ts: int,
    commit_ts: int,
) -> None:
    writes = {
        cell: (int(Op.DELETE if value is None else Op.PUT), value) for cell, value in values.items()
    }
    answered = [(kind, [*writes][at % len(writes)], ts) for kind, at, ts in answers]
    for repo, store, _ in sides:
        repo.context.oracle.timestamp = lambda: commit_ts  # type: ignore[method-assign]
        store.starts, store.sent = sorted({b"", *cuts}), []
        assert TwoPhaseCommit(repo.context, start_ts, writes).run((), answered) == commit_ts
    by_mutate, in_java = sides
    assert in_java.store.sent == by_mutate.store.sent
    assert in_java.store.sent
    assert in_java.calls.counts() == by_mutate.calls.counts()


# --- What comes of it -------------------------------------------------------------------

CALLS: Final = ("lock the primary", "lock the others", "commit the primary", "commit the others")
MOVED: Final = "org.apache.hadoop.hbase.NotServingRegionException"
_numbers = itertools.count()


class Sent:
    """The calls that Java makes for commits; one of them may fail.

    Attributes:
        made: how many there were.
    """

    def __init__(self, store: HBaseStore) -> None:
        self.made = 0
        self._at, self._act = -1, (lambda send, count: send())
        send_through(store, self._send)

    def fail(self, at: int, act: Callable[[Callable[[], Any], int], Any]) -> None:
        """Have `act` make the call of this number, from 0."""
        self.made, self._at, self._act = 0, at, act

    def _send(self, send: Callable[[], Any], count: int) -> Any:
        self.made += 1
        return self._act(send, count) if self.made == self._at + 1 else send()


class Bank:
    """Transactions that write three rows in two regions of a table, and one of another table."""

    def __init__(self, store: HBaseStore) -> None:
        self.store = store
        # However slow the machine is, no lock is refreshed: that is a call more.
        self.repo = Repository(
            "hbase",
            store,
            EmbeddedOracle(MemoryStore()),
            MemoryCoordination(),
            TABLES,
            one_step=False,
            lock_ttl_seconds=600,
        )
        self.sent = Sent(store)

    def transfer(self) -> Transaction:
        """A transaction that has yet to commit, in rows that nobody has used."""
        self.sent.fail(-1, lambda send, count: send())
        number = next(_numbers)
        self.rows = [f"a{number}", f"a{number}b", f"c{number}"]
        t = self.repo.transaction()
        for row in self.rows:
            t.set(balance, row, f"{row} has")
            t.set(note, row, f"{row} is noted")
        return t

    def check_whole(self, commit_ts: int) -> None:
        """It is there once and whole, and nothing of it is left."""
        with self.repo.snapshot() as snapshot:
            found = [(snapshot.get(balance, row), snapshot.get(note, row)) for row in self.rows]
        assert found == [(f"{row} has", f"{row} is noted") for row in self.rows]
        for row in self.rows:
            for column in (balance, note):
                records = self.store.entries(cell_of(column, row), Kind.WRITE, 0, MAX_TS)
                assert [ts for ts, _ in records] == [commit_ts]
            notes = self.store.entries(cell_of(note, row), Kind.NOTIFY, 0, MAX_TS)
            assert [ts for ts, _ in notes] == [commit_ts]
        assert self.locks() == []

    def locks(self) -> list[tuple[Cell, int]]:
        return [(cell, ts) for cell, ts, _ in walk_kind(self.store, Kind.LOCK, "accounts")]


@pytest.fixture(scope="module")
def bank(hbase: HBase) -> Iterator[Bank]:
    need("javac")
    # No reply is lost but those that a test loses, however slow the machine is.
    store = hbase.store(cuts=[b"b"], request_seconds=60)
    yield Bank(store)
    store.close()


def unsent(send: Callable[[], Any], count: int) -> Any:
    """The request is lost on its way."""
    return failing(count)


def unheard(send: Callable[[], Any], count: int) -> Any:
    """The reply is lost on its way."""
    send()
    return failing(count)


def half_heard(send: Callable[[], Any], count: int) -> Any:
    """The last of the replies is lost on its way."""
    answers = send()
    answers[count - 1] = java_class(LATE)("for a test")
    return answers


def moved(send: Callable[[], Any], count: int) -> Any:
    """The regions are elsewhere."""
    return failing(count, MOVED)


def broken(send: Callable[[], Any], count: int) -> Any:
    """Java fails where no failure is expected, when all was sent."""
    send()
    raise RuntimeError("for a test")


def test_a_commit_of_one_table_makes_two_calls_a_phase(bank: Bank) -> None:
    t = bank.transfer()
    before = bank.store.statistics()["mutate"]
    commit_ts = t.commit()
    assert bank.sent.made == bank.store.statistics()["mutate"] - before == 4
    assert bank.locks() == []
    bank.check_whole(commit_ts)


@pytest.mark.parametrize("fault", [unsent, unheard, half_heard, moved, broken])
@pytest.mark.parametrize("at", range(4), ids=CALLS)
def test_a_commit_whose_call_fails_is_finished_by_python(
    bank: Bank,
    at: int,
    fault: Callable[[Callable[[], Any], int], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = bank.transfer()
    durable: list[bool] = []

    def mutate(batch: Sequence[RowMutation]) -> list[bool]:
        durable.append(all(one.durable for one in batch))
        return HBaseStore.mutate(bank.store, batch)

    monkeypatch.setattr(bank.store, "mutate", mutate)
    bank.sent.fail(at, fault)
    commit_ts = t.commit()
    assert t.unfinished is None
    # A phase is Java's again once the one before it has been finished.
    assert bank.sent.made == (at + 1 if at >= 2 else at + 3)
    if at == 0:
        # Only a first attempt is volatile: one whose reply was lost may arrive yet.
        assert durable[0] is (fault is not moved)
    bank.check_whole(commit_ts)


@pytest.mark.parametrize("row", [0, 1, 2], ids=["primary", "same region", "other region"])
@pytest.mark.parametrize("locks", [True, False], ids=["locked", "written"])
def test_a_conflict_is_found_and_nothing_of_the_commit_is_left(
    bank: Bank, row: int, locks: bool
) -> None:
    t = bank.transfer()
    other = bank.repo.transaction()
    other.set(note, bank.rows[row], "other")
    if locks:
        holder = TwoPhaseCommit(other._context, other.start_ts, other._writes)
        cells = [*other._writes]
        holder.prewrite([cells], cells[0])
    else:
        other.commit()
    with pytest.raises(ConflictError) as found:
        t.commit()
    assert found.value.cell == cell_of(note, bank.rows[row])
    assert found.value.locked is locks
    held = [(cell_of(note, bank.rows[row]), other.start_ts)] if locks else []
    assert bank.locks() == held
    if locks:
        holder.undo(cells[0])
    assert bank.locks() == []
    records = bank.store.entries(cell_of(balance, bank.rows[0]), Kind.WRITE, 0, MAX_TS)
    if row:
        assert [(ts, decode_write(raw).op) for ts, raw in records] == [(t.start_ts, Op.ROLLBACK)]
    else:
        assert records == [], "the first to be refused leaves nothing"


def test_a_commit_of_two_tables_makes_one_call_for_each(bank: Bank) -> None:
    t = bank.transfer()
    t.set(total, bank.rows[0], "of all")
    commit_ts = t.commit()
    assert bank.sent.made == 6
    bank.check_whole(commit_ts)
    assert bank.repo.snapshot().get(total, bank.rows[0]) == "of all"


@pytest.mark.parametrize("what", ["long value", "lock only", "silent", "no jar", "wide"])
def test_an_unusual_commit_is_pythons(
    bank: Bank, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = bank.transfer()
    row = bank.rows[0]
    if what == "long value":
        t.set(total, row, "long" * 100)
    elif what == "lock only":
        t.get_for_update(total, row)
    elif what == "silent":
        t = bank.repo.transaction(notify=False)
        t.set(balance, row, "silent")
    elif what == "no jar":
        monkeypatch.setattr(bank.store._calls.client(), "sender", None)
    else:
        for number in range(CELLS):
            t.set(total, f"{row}/{number}", "one of many")
    commit_ts = t.commit()
    assert bank.sent.made == 0
    if what != "silent":
        bank.check_whole(commit_ts)
    assert bank.repo.snapshot().get(balance, row) is not None
    assert bank.locks() == []

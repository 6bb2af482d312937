"""Transactions in native code do exactly what those in Python do, and most is done natively."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import engines
import pytest
from forked import in_child

import percola
from percola import Repository, Table, TransactionUsedUpError
from percola.cells import INLINE_BYTES, Cell, Kind, LockRecord, Op, encode_lock
from percola.codecs import Codec
from percola.coordination.wake_ups import marks_of
from percola.store.base import Put, RowMutation
from percola.store.lmdb.environment import Environment
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import MOST_CELLS, Transaction

texts = Table("texts")
text = texts.column("text", str)
number = texts.column("number", int)
raw = texts.column("raw", observed=True)
document = texts.column("document", percola.JSON)
member = texts.family("member", str)
weak = texts.weak_column("weak")
keyed = Table("keyed", rows=bytes)
value = keyed.column("value")
days = Table("days", rows=percola.INT64)
day = days.column("day", int)
SCHEMA: list[Any] = [texts, keyed, days]
unknown = Table("texts").column("unknown")
elsewhere = Table("elsewhere").column("column")

COLUMNS: list[Any] = [text, number, raw, document, member["a"], value, day]
WRONG: list[Any] = [weak, member, unknown, elsewhere, "text", None]
ROWS: list[Any] = ["a", "b", "ä\0", "r" * 96, "r" * 97, b"a", b"a\0", 5]
WRONG_ROWS: list[Any] = ["", b"", "\ud800", "r" * 400, None, 2**70]
VALUES: list[Any] = ["", "x", "ä", b"", b"x", 0, -7, 2**64, True, None, {"k": [1]}, 1.5, "\ud800"]
VALUES += [
    "x" * (INLINE_BYTES + 1),
    b"x" * INLINE_BYTES,
    b"x" * (INLINE_BYTES + 1),
    bytearray(b"y"),
]


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def entries_of(repo: Repository) -> list[Any]:
    store: Any = repo.context.store
    with store._environment.reading() as txn:
        trees = [list(txn.cursor(tree)) for tree in store._environment.databases]
        return [*trees, txn.get(b"ts")]


def calls_of(
    t: Transaction, other: Transaction, column: Any, row: Any, new: Any
) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
    """What is usual, and what is rare."""
    return (
        [
            lambda: t.get(column, row),
            lambda: t.set(column, row, new),
            lambda: t.delete(column, row),
        ],
        [
            lambda: t.get_for_update(column, row),
            lambda: t.get_many([(column, row), (text, "a")]),
            lambda: other.get_many([(text, "a"), (number, "b"), (column, row), (value, b"a\0")]),
            lambda: [list(one.items()) for one in t.scan(texts)],
            lambda: [list(one.items()) for one in other.scan(texts, start="a", end=row)],
            lambda: [list(one.items()) for one in other.scan(keyed, prefix=row)],
            lambda: [list(one.items()) for one in other.scan(texts, columns=[column, member])],
            lambda: list(other.get_row(texts, row).items()),
            lambda: [list(one.items()) for one in t.get_rows(texts, ["b", row, "a", row])],
            lambda: t.notify(weak, "a"),
            lambda: t.version(column, row),
            lambda: t.commit(),
            lambda: t.rollback(),
            lambda: other.set(text, "a", "other"),
        ],
    )


def play(repo: Repository, seed: int) -> Iterator[object]:
    """What random calls of random transactions come to; some of their arguments are wrong."""
    rng = random.Random(seed)

    def one_of(right: list[Any], wrong: list[Any]) -> Any:
        return rng.choice(wrong if rng.random() < 0.05 else right)

    for _ in range(60):
        t = repo.transaction(two_phase=rng.random() < 0.1, notify=rng.random() < 0.8)
        other = repo.transaction()
        for _ in range(rng.randrange(14)):
            column, row = one_of(COLUMNS, WRONG), one_of(ROWS, WRONG_ROWS)
            usual, rare = calls_of(t, other, column, row, rng.choice(VALUES))
            yield outcome(rng.choice(rare if rng.random() < 0.15 else usual))
        yield outcome(other.commit)
        yield outcome(t.commit), t.commit_ts, t.unfinished, t.start_ts
        if rng.random() < 0.1:  # What a client that died has left.
            cell = Cell("texts", b"a", b"text")
            lock = LockRecord(Op.PUT, cell, "dead", 1, 2, True, b"never")
            put = Put(Kind.LOCK, cell.column, t.start_ts, encode_lock(lock))
            yield repo.context.store.mutate([RowMutation("texts", b"a", (), [put])])


@pytest.mark.parametrize("seed", range(6))
def test_native_transactions_do_what_transactions_in_python_do(tmp_path: Path, seed: int) -> None:
    found = []
    for name in engines.ENGINES:
        folder = tmp_path / name
        with engines.using(name), percola.open(folder, SCHEMA, durability="relaxed") as repo:
            assert (repo.context.calls_natively is None) == (name == "python")
            if seed % 2:
                repo.context.store.keep_feed("texts")
            found.append((list(play(repo, seed)), entries_of(repo)))
    for native, python in zip(found[0][0], found[1][0], strict=True):
        assert native == python
    assert found[0][1] == found[1][1]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with engines.using("native"):
        repo = percola.open(tmp_path / "repo", SCHEMA, durability="relaxed")
    with repo:
        repo.run(lambda t: t.set(text, "a", "first"))
        yield repo


def test_what_is_usual_is_done_natively(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the codec of JSON is Python's."""

    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("the native code has asked Python")

    reads, writes = ["_get", "_get_many"], ["_set", "_delete", "_commit"]
    for kind, names in ((Snapshot, reads), (Transaction, writes)):
        for name in names:
            monkeypatch.setattr(kind, name, fail)
    for name in ("read", "scan", "scan_rows"):
        monkeypatch.setattr(repo.context.store, name, fail)
    told: list[bytes] = []
    repo.context.coordination.on_wake(told.append)
    for _ in range(3):
        with repo.transaction() as t:
            assert t.get(text, "a") in ("first", "second")
            t.set(text, "a", "second")
            t.set(number, "a", 5)
            t.set(document, "a", {"k": 1})
            t.set(value, b"\0", b"raw")
            t.delete(number, "b")
            assert t.get(text, "a") == "second" and t.get(number, "b") is None
    assert not told
    with repo.transaction() as t:
        t.set(raw, "a", b"observed")
    assert told == [marks_of(["texts"])]
    assert repo.pending() == {"texts.raw": 1}
    with repo.snapshot(at=t.commit_ts) as now:
        assert now.get(number, "a") == 5 and now.get(document, "a") == {"k": 1}
        assert now.get(value, b"\0") == b"raw" and now.get(raw, "a") == b"observed"
        assert now.get(number, "b") is None and now.get(text, "none") is None
        cells = ((column, row) for column, row in [(number, "a"), (text, "none"), (value, b"\0")])
        assert now.get_many(cells) == [5, None, b"raw"]
        assert now.get_row(texts, "a")[document] == {"k": 1} and not now.get_row(texts, "none")
        assert [row.key for row in now.scan(texts)] == ["a"]
        assert [row[value] for row in now.scan(keyed, prefix=b"\0")] == [b"raw"]
        # A lock above the snapshot does not matter to it.
        assert t.commit_ts is not None
        lock = LockRecord(Op.PUT, Cell("texts", b"a", b"text"), "dead", 1, 2, True, b"never")
        put = Put(Kind.LOCK, b"text", t.commit_ts + 1, encode_lock(lock))
        assert repo.context.store.mutate([RowMutation("texts", b"a", (), [put])]) == [True]
        assert now.get(text, "a") == now.get_row(texts, "a")[text] == "second"
        # One at or below is for Python to resolve.
        repo.context.store.draw(5)  # type: ignore[attr-defined]
        with repo.snapshot() as later:
            reads_of_the_locked: list[Callable[[], object]] = [
                lambda: later.get(text, "a"),
                lambda: later.get_many([(number, "a"), (text, "a")]),
                lambda: later.get_row(texts, "a"),
                lambda: list(later.scan(texts)),
            ]
            for read in reads_of_the_locked:
                with pytest.raises(AssertionError, match="has asked Python"):
                    read()


def test_a_read_of_many_begins_natively_and_goes_on_in_python(repo: Repository) -> None:
    """Where there is too much to read at once, or a cell that native code does not read."""
    rows = {f"row{i:04}": i for i in range(700)}
    with repo.transaction() as t:
        for row, i in rows.items():
            t.set(number, row, i)
            t.set(member["x"], row, row)
    with repo.transaction() as long:
        for i in range(8):
            long.set(value, b"%d" % i, b"%d" % i * 300_000)
    with repo.snapshot() as now:
        assert {row.key: row[number] for row in now.scan(texts, prefix="row")} == rows
        assert [len(row[value]) for row in now.scan(keyed)] == [300_000] * 8
        assert [row[value][:1] for row in now.scan(keyed, start=b"6")] == [b"6", b"7"]
        assert now.get_many((number, row) for row in rows) == list(rows.values())
        mixed: list[Any] = [(number, "row0001"), (member["x"], "row0002"), (number, "row0003")]
        assert now.get_many(mixed) == [1, "row0002", 3]
        with pytest.raises(percola.UnknownColumnError, match="no column"):
            now.get_many([*mixed, (unknown, "a")])


def test_a_read_of_many_that_takes_long_is_left_to_python_which_gives_up_the_gil(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(raw: bytes) -> int:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return int(raw)

    slow = Table("slow")
    cell = slow.column("cell", percola.Codec("slow", lambda value: b"%d" % value, decoded))
    left: list[int] = []
    in_python = Snapshot._get_many

    def counted(snapshot: Snapshot, cells: list[Any]) -> list[Any]:
        left.append(len(cells))
        return in_python(snapshot, cells)

    monkeypatch.setattr(Snapshot, "_get_many", counted)
    with engines.using("native"):
        repo = percola.open(tmp_path / "slow", [slow], durability="relaxed")
    with repo:
        with repo.transaction() as t:
            for i in range(40):
                t.set(cell, f"{i}", i)
        with repo.snapshot() as now:
            assert now.get_many([(cell, f"{i}") for i in range(40)]) == list(range(40))
        [rest] = left
        assert 0 < rest < 40


def test_an_observer_reads_natively_what_it_has_not_written(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own writes are Python's, since the acknowledgment is one."""

    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("the native code has asked Python")

    @percola.observer(raw)
    def reads(t: Transaction, row: str) -> None:
        t.set(number, row, 5)
        t.set(value, b"k1", b"new")
        with monkeypatch.context() as patched:
            for name in ("_get", "_get_many"):
                patched.setattr(Snapshot, name, fail)
            for name in ("scan", "scan_rows"):
                patched.setattr(repo.context.store, name, fail)
            for name in ("_set", "_delete"):
                patched.setattr(Transaction, name, fail)
            t.set(text, "b", "new")
            t.delete(number, "none")
            assert t.get(text, row) == "first"
            assert t.get_many([(value, b"k0"), (value, b"k2")]) == [b"old"] * 2
            assert t.get_row(keyed, b"k0")[value] == b"old"
            assert [one.key for one in t.get_rows(keyed, [b"k3", b"k5", b"k3"]) if one] == [
                b"k3"
            ] * 2
            assert [one.key for one in t.scan(keyed, end=b"k1")] == [b"k0"]
            assert [one.key for one in t.scan(keyed, start=b"k2")] == [b"k2", b"k3"]
        assert t.get(number, row) == 5 and t.get(text, "b") == "new"
        assert all(type(cell) is Cell for cell in t._writes)
        assert t.get_many([(value, b"k0"), (value, b"k1")]) == [b"old", b"new"]
        assert [one[value] for one in t.get_rows(keyed, [b"k1", b"k0"])] == [b"new", b"old"]
        assert [one[value] for one in t.scan(keyed, prefix=b"k")] == [
            b"old",
            b"new",
            b"old",
            b"old",
        ]
        seen.append(row)

    seen: list[str] = []
    for i in range(4):
        repo.run(lambda t, i=i: t.set(value, b"k%d" % i, b"old"))
    repo.run(lambda t: t.set(raw, "a", b"changed"))
    percola.Worker(repo, [reads]).run_until_idle()
    assert seen == ["a"]


def test_a_commit_is_listed_in_feeds_natively(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = repo.context.store
    store.keep_feed("keyed")
    repo.run(lambda t: t.set(text, "a", "finds out which tables keep one"))

    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("the native code has asked Python")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "_commit", fail)
        with repo.transaction() as t:
            t.set(text, "a", "alone")
            t.set(raw, "a", b"observed")
        with repo.transaction() as both:
            both.set(text, "b", "with one of that table")
            both.set(value, b"b\0", b"listed")
    # What Python commits, as it has notifications, say, takes native code as well.
    monkeypatch.setattr(store, "_commit_cells_natively", fail)
    with repo.transaction() as noted:
        noted.notify(weak, "a")
        noted.delete(value, b"c")
    assert [(one.commit_ts, one.row) for one in store.changes("keyed", 0, noted.commit_ts)] == [
        (both.commit_ts, b"b\0"),
        (noted.commit_ts, b"c"),
    ]


def no_row() -> str:
    raise KeyError("no row")


@pytest.mark.parametrize("address", ["memory:", "repo"])
def test_an_error_that_ends_a_snapshot_is_raised_as_it_is(tmp_path: Path, address: str) -> None:
    """The last reference to it is on the stack that the error unwinds."""
    engines.native()
    with percola.open(address if ":" in address else tmp_path / address, SCHEMA) as repo:
        for begin in (repo.snapshot, repo.transaction):
            with pytest.raises(KeyError, match="no row"):
                begin().get(text, no_row())
        assert repo.context.leases.oldest() is None


def test_many_own_writes_are_found_and_counted_as_in_python(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with repo.transaction() as t:
        for i in range(12_000):  # More than are kept natively.
            t.set(number, f"row{i % 11_000}", i)
        found = [t.get(number, f"row{i}") for i in (0, 500, 1000, 10_999)]
        assert found == [11_000, 11_500, 1000, 10_999]
        assert len(t._writes) == 11_000 < MOST_CELLS
    assert repo.snapshot().get(number, "row999") == 11_999


@pytest.mark.parametrize("engine", ["native", "python"])
def test_a_value_is_encoded_once_however_long_it_is(tmp_path: Path, engine: str) -> None:
    encoded: list[bytes] = []

    def encode(value: bytes) -> bytes:
        encoded.append(value)
        return value

    owned = Table("owned")
    own = owned.column("own", Codec("own", encode, bytes))
    with engines.using(engine), percola.open(tmp_path / "own", [owned]) as repo:
        long = b"x" * (INLINE_BYTES + 1)
        with repo.transaction() as t:
            # The short one behind the long one replaces bytes that are counted.
            for value in (b"short", long, b"behind"):
                t.set(own, "a", value)
            t.set(own, "b", long)
        assert encoded == [b"short", long, b"behind", long]
        assert repo.snapshot().get_many([(own, "a"), (own, "b")]) == [b"behind", long]


def test_a_child_of_a_fork_is_refused_what_its_parent_began(repo: Repository) -> None:
    now, t = repo.snapshot(), repo.transaction()
    assert now.get(text, "a") == t.get(text, "a") == "first"
    t.set(text, "a", "parent")

    def child() -> str:
        found = repo.run(lambda t: t.get(text, "a"))  # Opens the store, which native code needs.
        for call in (lambda: now.get(text, "a"), t.commit):
            with pytest.raises(TransactionUsedUpError, match="before this process was forked"):
                call()
        return str(found)

    assert in_child(child) == "first"
    t.commit()
    assert repo.snapshot().get(text, "a") == "parent" and now.get(text, "a") == "first"


def test_garbage_collection_waits_for_what_reads_natively(repo: Repository) -> None:
    with repo.snapshot() as now:
        for i in range(3):
            repo.run(lambda t, i=i: t.set(text, "a", f"later {i}"))
        assert repo.collect_garbage(retention=0).safe_point <= now.start_ts
        assert now.get(text, "a") == "first"
    assert repo.collect_garbage(retention=0).safe_point > now.start_ts
    # Without the registration it is refused, not answered wrongly.
    late = repo.snapshot()
    late._unregister()
    repo.run(lambda t: t.set(text, "a", "last"))
    repo.collect_garbage(retention=0)
    too_late: list[Callable[[], object]] = [
        lambda: late.get(text, "a"),
        lambda: late.get_many([(text, "a")]),
        lambda: late.get_row(texts, "a"),
        lambda: list(late.scan(texts)),
    ]
    for read in too_late:
        with pytest.raises(percola.SnapshotTooOldError):
            read()


COLLECTED_TOGETHER = """
from stores import in_memory
from percola import Table

docs = Table("docs")
text = docs.column("text", str)
repo = in_memory([docs], caches_reads=True, prefetches=True)
snapshot = repo.snapshot()
snapshot.get(text, "a")
# Python collects all of it when the program ends, and may empty it before the snapshot ends.
repo.context.prefetch.cycle = snapshot
"""


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_snapshot_that_is_collected_with_its_repository_ends_in_silence(native: str) -> None:
    support = str(Path(__file__).parents[1] / "support")
    answer = commands.python(COLLECTED_TOGETHER, PYTHONPATH=support, PERCOLA_NATIVE=native)
    assert (answer.code, answer.out, answer.err) == (0, "", "")


class Writing:
    """The lock of a process's writers, for which another thread waits once it is taken."""

    def __init__(self, environment: Any) -> None:
        self._lock: threading.Lock = environment._writing
        self._queue: Any = environment._queue
        self.signal = threading.Lock()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, blocking: bool = True) -> bool:
        taken = self._lock.acquire(blocking)
        self.signal.acquire()
        self._queue.append([lambda txn: None, None, None, self.signal])
        return taken

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_ctrl_c_during_a_commit_leaves_no_other_thread_waiting(repo: Repository) -> None:
    """Python raises it by the next call of a function of its own: the one that wakes a thread."""
    store: Any = repo.context.store
    environment: Any = store._environment
    writing = environment._writing = Writing(environment)
    interrupts = [KeyboardInterrupt]

    def promote() -> None:
        if interrupts:
            raise interrupts.pop()
        Environment._promote(environment)

    environment._promote = promote
    environment._close(environment._env)  # It is opened again, with these two.
    repo.run(lambda t: t.get(text, "a"))
    with pytest.raises(KeyboardInterrupt):
        repo.run(lambda t: t.set(text, "a", "second"))
    assert not interrupts and not writing.locked()
    assert not writing.signal.locked(), "The other thread waits for ever."
    repo.run(lambda t: t.set(text, "b", "third"))
    assert not environment._queue
    assert repo.snapshot().get(text, "a") == "second"

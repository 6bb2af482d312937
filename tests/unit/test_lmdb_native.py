"""The native engine of the store on LMDB does exactly what the Python code and py-lmdb do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import engines
import lmdb
import pytest
from children import Child
from commands import SECONDS, run

import percola
from percola import SnapshotTooOldError, StoreError, Table
from percola.cells import (
    INLINE_BYTES,
    NO_CHANGE,
    Cell,
    Kind,
    LastChange,
    LockRecord,
    Op,
    decode_write,
    encode_lock,
    encode_write,
    newest_change,
)
from percola.store.base import BLOCKED, CellState, Put, RowMutation
from percola.store.capabilities import scan_cells
from percola.store.lmdb import driver
from percola.store.lmdb.environment import Environment
from percola.store.lmdb.store import LmdbStore

ROWS = [b"a", b"a\0", b"a\0b", b"a\xff", b"b", b"b" * 300]
COLUMNS = [b"c", b"ca", b"d", b"@ack:o:c"]
LATEST = 40
CELLS = [Cell("t", row, column) for row in ROWS for column in COLUMNS]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    with engines.using("native"):
        store = LmdbStore(tmp_path, durability="relaxed")
    store.create_tables(["s", "t", "u"])
    yield store
    store.close()


def history(rng: random.Random) -> Iterator[RowMutation]:
    """Cells with records of all kinds at random timestamps, and locks; some have none."""
    for cell in rng.sample(CELLS, rng.randrange(len(CELLS) // 2, len(CELLS))):
        changes: list[Put] = []
        newest: LastChange = NO_CHANGE
        for ts in sorted(rng.sample(range(2, LATEST), rng.randrange(6))):
            op = rng.choice([Op.PUT, Op.PUT, Op.DELETE, Op.LOCK, Op.ROLLBACK])
            silent = rng.random() < 0.2
            if op is Op.PUT:
                size = rng.choice([0, 1, INLINE_BYTES, INLINE_BYTES + 1, 9000])
                value = rng.randbytes(size)
                if size > INLINE_BYTES:
                    changes.append(Put(Kind.DATA, cell.column, ts - 1, value))
                inline = value if size <= INLINE_BYTES else None
                record = encode_write(op, ts - 1, inline, silent=silent)
            elif op is Op.DELETE:
                record = encode_write(op, ts - 1, silent=silent)
            else:
                # A client that did not know the newest change has not repeated it.
                known = newest if rng.random() < 0.7 else None
                record = encode_write(op, ts - 1, last_change=known, decides=rng.random() < 0.3)
            if op in (Op.PUT, Op.DELETE):
                newest = LastChange(ts, record)
            changes.append(Put(Kind.WRITE, cell.column, ts, record))
        if rng.random() < 0.3:
            lock = LockRecord(Op.PUT, cell, "me", 1, 2, True, rng.randbytes(20))
            changes.append(Put(Kind.LOCK, cell.column, rng.randrange(1, LATEST), encode_lock(lock)))
        yield RowMutation(cell.table, cell.row, (), changes)


def in_python(store: LmdbStore, cells: list[Cell], ts: int) -> list[CellState]:
    """What the Python code of `LmdbStore.read` finds."""
    environment = store._environment
    found, environment.native = environment.native, None
    try:
        return store.read(cells, ts)
    finally:
        environment.native = found


SCANS = [
    None,
    [(b"c", False)],
    [(b"c", True)],
    [(b"d", False), (b"", True)],
    [(b"@ack:", True), (b"d", False)],
]


def scanned(store: LmdbStore, ts: int, limit: int, columns: Any) -> list[Any]:
    """All of the table, by scans of `limit` cells, and each scan's end."""
    found: list[Any] = []
    position: bytes | None = b""
    while position is not None:
        cells, position = store.scan("t", position, b"", ts, columns=columns, limit=limit)
        found += [cells, position]
    return found


def scanned_by_columns(store: LmdbStore, ts: int, limit: int) -> tuple[list[Any], ...]:
    """All of the table, column by column, in parts: the rows, the values, what is blocked."""
    rows: list[bytes] = []
    values: list[Any] = []
    blocked: list[Any] = []
    position: bytes | None = b""
    while position is not None:
        part = store.scan_columns("t", position, b"", ts, [b"d", b"c", b"none"], limit)
        assert part.rows.validate(full=True) is None
        blocked += [(len(rows) + at, place, lock) for at, place, lock in part.blocked]
        rows += part.rows.to_pylist()
        values += zip(*(column.to_pylist() for column in part.values), strict=True)
        position = part.following
    return rows, values, sorted(blocked)


def scanned_into_arrays(store: LmdbStore, ts: int, limit: int, columns: Any) -> list[Any]:
    """All of the table, cell after cell, in parts, and each part's end."""
    found: list[Any] = []
    position: bytes | None = b""
    while position is not None:
        part = scan_cells(store, "t", position, b"", ts, columns, limit)
        for array in (part.rows, part.offsets, part.columns, part.values):
            assert array.validate(full=True) is None
            found += array.to_pylist()
        position = part.following
        found += [*part.blocked, position]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_scans_find_what_the_python_code_finds(store: LmdbStore, seed: int) -> None:
    rng = random.Random(seed)
    store.mutate(list(history(rng)))
    # A cell with more versions, and a row with more columns, than are passed one by one.
    versions = [Put(Kind.WRITE, b"c", ts, encode_write(Op.PUT, ts, b"%d" % ts)) for ts in range(60)]
    others = [Put(Kind.WRITE, b"ccc%02d" % i, 5, encode_write(Op.PUT, 5, b"")) for i in range(60)]
    row = rng.choice(ROWS)
    store.mutate([RowMutation("t", row, (), [*versions[1:], *others])])
    environment = store._environment
    native = environment.native
    asked = Asked(native)
    for ts in (1, 7, LATEST // 2, LATEST):
        for limit in (1, 5, 1000):
            found = []
            for environment.native in (asked, None):
                found.append(
                    (
                        [scanned(store, ts, limit, columns) for columns in SCANS],
                        scanned_by_columns(store, ts, limit),
                        [scanned_into_arrays(store, ts, limit, columns) for columns in SCANS],
                    )
                )
            assert found[0] == found[1]
            assert found[0][0][0]
    environment.native = native
    assert asked.answers == {"scan", "scan_columns", "scan_cells"}


class Asked:
    """A native engine that must answer each call itself."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.answers: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> Any:
            result = getattr(self._engine, name)(*arguments)
            assert result is not None, f"{name} has left it to Python"
            self.answers.add(name)
            return result

        return call


def fail(*_: object) -> Any:
    raise AssertionError("the native code has asked Python")


@pytest.mark.parametrize("seed", range(8))
def test_reads_find_what_the_python_code_finds(
    store: LmdbStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.mutate(list(history(random.Random(seed))))
    store.raise_safe_point(3)
    states = set()
    slow = {column: store._reader("t", column) for column in COLUMNS}
    for ts in range(3, LATEST + 1):
        expected = in_python(store, CELLS, ts)
        one_by_one = [slow[cell.column](cell.row, ts) for cell in CELLS]
        with monkeypatch.context() as patch:
            patch.setattr(LmdbStore, "_state", fail)
            patch.setattr(LmdbStore, "_reader", lambda *_: fail)
            fast = {column: store.reader("t", column) for column in COLUMNS}
            # Many cells are read without the GIL, few with it.
            assert store.read(2 * CELLS, ts) == 2 * expected
            assert [store.read([cell], ts)[0] for cell in CELLS] == expected
            assert [fast[cell.column](cell.row, ts) for cell in CELLS] == one_by_one
        states |= {(lock is not None, value is not None) for lock, _, value in expected}
        assert all(
            found is BLOCKED if lock else found == value
            for (lock, _, value), found in zip(expected, one_by_one, strict=True)
        )
    assert states == {(True, False), (False, True), (False, False)}
    for read in (lambda: store.read(CELLS, 2), lambda: store.reader("t", b"c")(b"a", 2)):
        with pytest.raises(SnapshotTooOldError):
            read()


def entries_of(store: LmdbStore) -> list[list[tuple[bytes, bytes]]]:
    """Everything that is stored, tree by tree."""
    environment = store._environment
    with environment.reading() as txn:
        trees = [list(txn.cursor(tree)) for tree in environment.databases]
        return [*trees, [(b"ts", txn.get(b"ts") or b"")]]


def random_commit(rng: random.Random, drawn: int) -> tuple[Any, ...]:
    """The arguments of a one-step commit, which may conflict."""
    writes = []
    for cell in rng.sample(CELLS, rng.choice([0, 1, 1, 2, 5, len(CELLS)])):
        op = rng.choice([Op.PUT] * 6 + [Op.DELETE, Op.LOCK if rng.random() < 0.2 else Op.PUT])
        size = rng.choice([0, 1, 100, INLINE_BYTES, INLINE_BYTES + 1, 5000])
        value = rng.randbytes(size) if op is Op.PUT else None
        writes.append((cell, int(op), value, rng.choice([True, False, None])))
    weak = rng.sample(CELLS, rng.choice([0, 0, 2]))
    answered = [(Kind.NOTIFY, rng.choice(CELLS), rng.randrange(1, drawn + 2)) for _ in weak]
    return rng.randrange(max(0, drawn - 6), drawn + 1), writes, weak, answered


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("call", ["commit_cells", "commit"])
def test_a_commit_stores_what_the_python_code_stores(tmp_path: Path, seed: int, call: str) -> None:
    rng = random.Random(seed)
    stores = []
    for name in engines.ENGINES:
        with engines.using(name):
            stores.append(LmdbStore(tmp_path / name, durability="relaxed"))
        stores[-1].create_tables(["s", "t"])
        stores[-1].mutate(list(history(random.Random(seed))))
        stores[-1].draw(LATEST)
        stores[-1].keep_feed("t")
    # What the first commit learns: which tables keep a feed.
    assert stores[0].commit_one_step(0, []) == stores[1].commit_one_step(0, [])
    native_code, commits = stores[0]._environment.native, stores[0]._commits
    asked = Asked(commits if call == "commit" else native_code)
    outcomes = set()
    for _ in range(150):
        arguments = random_commit(rng, stores[0].last_drawn())
        engine: Any = native_code if call == "commit" else asked
        stores[0]._environment.native = engine
        whole: Any = None if call == "commit_cells" else asked
        stores[0]._commits = whole
        if rng.random() < 0.05:
            lock = LockRecord(Op.PUT, rng.choice(CELLS), "me", 1, 2, True, None)
            put = Put(Kind.LOCK, lock.primary.column, stores[0].last_drawn(), encode_lock(lock))
            mutation = RowMutation("t", lock.primary.row, (), [put])
            assert [store.mutate([mutation]) for store in stores] == [[True]] * 2
        native, python = (store.commit_one_step(*arguments) for store in stores)
        assert native == python
        drawn = [store.last_drawn() for store in stores]
        assert drawn == 2 * [stores[0]._last_drawn()]
        outcomes.add(
            "committed" if isinstance(native, int) else "locked" if native.lock else "newer"
        )
    assert entries_of(stores[0]) == entries_of(stores[1])
    assert outcomes == {"committed", "locked", "newer"} and asked.answers == {call}
    stores[0]._environment.native, stores[0]._commits = native_code, commits
    for store in stores:
        store.raise_safe_point(9)
        with pytest.raises(SnapshotTooOldError):
            store.commit_one_step(8, arguments[1])
        store.close()


def test_a_feed_that_begins_between_two_commits_has_the_second(store: LmdbStore) -> None:
    commits: Any = store._commits
    asked = Asked(commits)
    write = (Cell("t", b"r", b"c"), int(Op.PUT), b"", False)
    for whole in (commits, asked):  # The first one finds out that there is no feed.
        store._commits = whole
        store.commit_one_step(store.last_drawn(), [write])
    store._commits = commits
    store.keep_feed("t")
    assert entries_of(store)[5] == [] and asked.answers == {"commit"}
    commit_ts = store.commit_one_step(store.last_drawn(), [write])
    assert isinstance(commit_ts, int)
    assert [key[2:10] for key, _ in entries_of(store)[5]] == [commit_ts.to_bytes(8, "big")]


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"P",
        b"P\2" + bytes(12),
        b"P\0" + bytes(8),
        encode_write(Op.LOCK, 5, last_change=LastChange(3, b"P"))[:-1] + b"P",
        encode_write(Op.LOCK, 5, last_change=LastChange(3, encode_write(Op.PUT, 2, b"v"))),
        encode_write(Op.LOCK, 5, last_change=LastChange(0, encode_write(Op.PUT, 2, b"v"))),
        encode_write(Op.LOCK, 5, last_change=LastChange(3, encode_write(Op.LOCK, 2))),
        encode_write(Op.ROLLBACK, 5, decides=True),
        encode_write(Op.ROLLBACK, 5) + b"v",
        encode_write(Op.PUT, 5, b"v" * (INLINE_BYTES + 1)),
    ],
)
def test_damaged_records_are_the_python_codes_to_judge(store: LmdbStore, record: bytes) -> None:
    def put(txn: Any) -> None:
        key = store._key("t", b"r", b"c") + (2**64 - 1 - 9).to_bytes(8, "big")
        txn.put(key, record, db=store._environment.databases[0])

    def outcome(read: Any) -> object:
        try:
            return read()
        except Exception as error:
            return type(error), str(error)

    store._environment.write(put)
    cell = Cell("t", b"r", b"c")
    assert outcome(lambda: store.read([cell], 9)) == outcome(lambda: in_python(store, [cell], 9))
    fast, slow = store.reader("t", b"c"), store._reader("t", b"c")
    assert outcome(lambda: fast(b"r", 9)) == outcome(lambda: slow(b"r", 9))
    expected = outcome(lambda: newest_change([(9, record)], complete=True))
    store.draw(20)
    committed = outcome(lambda: store.commit_one_step(15, [(cell, int(Op.LOCK), None, False)]))
    if isinstance(committed, int):
        [(_, raw)] = store.entries(cell, Kind.WRITE, committed, committed)
        assert decode_write(raw).last_change == expected
    else:
        assert committed == expected


# --- The engine -------------------------------------------------------------------------


def errors_of(name: str, folder: Path) -> Iterator[tuple[type[Exception], str]]:
    """What an engine raises for calls that cannot be done."""
    with engines.using(name):
        environment = Environment(folder, [b"one"], map_bytes=1 << 20)

    def raised(call: Callable[[], object]) -> tuple[type[Exception], str]:
        with pytest.raises((lmdb.Error, StoreError)) as found:
            call()
        return found.type, str(found.value)

    with environment.reading() as txn:
        one = environment.databases[0]
        yield raised(lambda: txn.put(b"k", b"v", db=one))
        yield raised(lambda: environment.write(lambda txn: txn.put(b"k" * 600, b"v")))
        environment.close()
        yield raised(lambda: txn.get(b"k", db=one))
    with engines.using(name):
        yield raised(lambda: Environment(folder / "data.mdb" / "folder", [b"one"]))


def test_errors_are_those_of_py_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Closing waits for readers.
    monkeypatch.setattr("percola.store.lmdb.environment._TIMEOUT_SECONDS", 0.2)
    (tmp_path / "data.mdb").mkdir()
    native, python = (list(errors_of(name, tmp_path / name)) for name in engines.ENGINES)
    assert [(kind, told.replace("native", "python")) for kind, told in native] == python


def test_a_map_is_not_changed_under_a_reader(tmp_path: Path) -> None:
    with engines.using("native"):
        environment = Environment(tmp_path, [b"one"])
    env = environment._env
    assert env is not None
    with environment.reading(), pytest.raises(lmdb.InvalidParameterError):
        env.set_mapsize(1 << 30)
    environment.close()


def test_an_environment_is_open_once_in_a_process(tmp_path: Path) -> None:
    said = []
    for name in engines.ENGINES:
        with engines.using(name):
            first = Environment(tmp_path / name, [b"one"])
            with pytest.raises(StoreError) as raised:
                Environment(tmp_path / name, [b"one"])
            said.append(str(raised.value).replace(name, ""))
            first.close()
            Environment(tmp_path / name, [b"one"]).close()
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "native"),
        ({"PERCOLA_NATIVE": "0"}, "through py-lmdb; native code: PERCOLA_NATIVE=0"),
        ({"PERCOLA_NATIVE": "False "}, "through py-lmdb; native code: PERCOLA_NATIVE=False"),
        ({"LMDB_DEFAULT_LIB_VERSION": "9"}, "through py-lmdb; native code: LMDB_DEFAULT"),
    ],
)
def test_the_version_says_which_engine_is_used(variables: dict[str, str], says: str) -> None:
    engines.native()
    shown = run("--version", **variables)
    assert shown.code == 0 and shown.out.startswith("percola ")
    assert says in shown.out and shown.out.count("\n") == 1


def test_an_engine_that_was_built_for_another_version_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines.native(), "INTERFACE", 1)
    assert driver._load() == (
        None,
        "built for another version of Percola; 'make native' builds it again",
    )


table = Table("t")
count = table.column("count", int)


def increments(pipe: Connection, name: str, folder: Path, number: int) -> str:
    with engines.using(name), percola.open(folder, [table], durability="relaxed") as repo:
        for place in range(number):
            repo.run(lambda t: t.set(count, "all", (t.get(count, "all") or 0) + 1))
            with repo.transaction(two_phase=place % 2 == 0) as t:
                t.set(count, f"{name}{os.getpid()}/{place}", place)
        store = repo.context.store
        assert isinstance(store, LmdbStore)
        return "python" if store._environment.native is None else "native"


def test_processes_with_different_engines_share_a_repository(tmp_path: Path) -> None:
    engines.native()
    folder, each = tmp_path / "repo", 60
    percola.open(folder, [table], durability="relaxed").close()
    with ExitStack() as stack:
        names = list(engines.ENGINES)
        children = [stack.enter_context(Child(increments, name, folder, each)) for name in names]
        assert [child.hear() for child in children] == names
    for name in engines.ENGINES:
        with engines.using(name), percola.open(folder, [table]) as repo:
            assert repo.snapshot().get(count, "all") == each * len(children)
            assert len(list(repo.snapshot().scan(table))) == each * len(children) + 1


ENDS = """
import sys, threading
import percola
from percola import Codec, Table

folder, durability, what = sys.argv[1:]
table = Table("t")
count = table.column("count", int)
text = table.column("text", Codec("text", lambda text: text.encode(), bytes.decode))
repo = percola.open(folder, [table], durability=durability)
repo.run(lambda t: [t.set(count, f"{row:04}", row) for row in range(2000)])
begun = threading.Barrier(4)

def work(number):
    def write(t):
        t.set(count, f"x{number}", (t.get(count, f"x{number}") or 0) + 1)
        t.set(text, f"x{number}", "value" * 100)
    for at in range(10**9):
        if what == "write":
            repo.run(write)
        else:
            list(repo.snapshot().scan(table))
        if not at:
            begun.wait()

for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
begun.wait()
print("ends")
"""


@pytest.mark.parametrize("durability", ["full", "relaxed"])
@pytest.mark.parametrize("what", ["write", "scan"])
def test_a_program_may_end_while_daemon_threads_read_and_write(
    tmp_path: Path, durability: str, what: str
) -> None:
    """Python ends such threads by unwinding their stacks, which Rust answered with an abort."""
    engines.native()
    command = [sys.executable, "-c", ENDS, str(tmp_path / "repo"), durability, what]
    for _ in range(3):
        ended = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"ends\n", b"")
    with percola.open(tmp_path / "repo", [table]) as repo:
        assert len(list(repo.snapshot().scan(table))) >= 2000

"""§2.1: a model of the store interface, and random operations to compare stores with it.

The model is the shortest implementation of the interface, with plain dictionaries. A store and the
model get the same operations and must return the same results; Hypothesis finds the shortest list
of operations for which they do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from hypothesis import strategies as st

from percola.cells import (
    INLINE_BYTES,
    NO_CHANGE,
    Cell,
    Kind,
    LastChange,
    Op,
    decode_write,
    encode_write,
)
from percola.store.base import (
    NOTHING,
    CellState,
    Condition,
    Delete,
    OneStepStore,
    OneStepWrite,
    Put,
    RowMutation,
    Store,
    is_wanted,
)
from percola.store.capabilities import reader_of

ROWS: Final = (
    b"\0",
    b"a",
    b"a\0",
    b"a\0\0",
    b"a\0\1",
    b"a\0b",
    b"a\0\xff",
    b"a\1",
    b"ab",
    b"a\xff",
    b"b",
    "é/ü".encode(),
    b"\xff",
    b"\xff\xff",
)
"""Rows in byte order that a sloppy encoding of keys mixes up."""

COLUMNS: Final = (b"@ack:o:c", b"c", b"c\1", b"cd", b"c\xff", b"d:1", b"d:2", "ü".encode())
"""Columns in byte order: Percola's own, prefixes of each other, a family."""

_SCANNED: Final = (Kind.LOCK, Kind.NOTIFY, Kind.FAILED)


class StoreModel:
    """One table, in its simplest form."""

    def __init__(self) -> None:
        self.cells: dict[tuple[bytes, bytes, Kind], dict[int, bytes]] = {}

    def of(self, row: bytes, column: bytes, kind: Kind) -> dict[int, bytes]:
        """The entries of a cell in one kind, by timestamp."""
        return self.cells.get((row, column, kind), {})

    def mutate(self, mutation: RowMutation) -> bool:
        """Apply a mutation if its conditions hold; return whether they did."""
        for present, kind, column, low, high in mutation.conditions:
            held = any(low <= ts <= high for ts in self.of(mutation.row, column, kind))
            if held is not present:
                return False
        for change in mutation.changes:
            entries = self.cells.setdefault((mutation.row, change.column, change.kind), {})
            if isinstance(change, Put):
                entries[change.ts] = change.value
            else:
                entries.pop(change.ts, None)
        return True

    def state(self, row: bytes, column: bytes, ts: int) -> CellState:
        """A cell as a reader at `ts` sees it."""
        for lock in self.of(row, column, Kind.LOCK).items():
            if lock[0] <= ts:
                return lock, 0, None
        writes = self.of(row, column, Kind.WRITE)
        for commit_ts in sorted(writes, reverse=True):
            if commit_ts > ts:
                continue
            op, start_ts, value, last_change, *_ = decode_write(writes[commit_ts])
            if last_change is not None:
                if not last_change.record:
                    return NOTHING
                commit_ts = last_change.commit_ts
                op, start_ts, value, *_ = decode_write(last_change.record)
            if op in (Op.LOCK, Op.ROLLBACK):
                continue
            if op is Op.PUT and value is None:
                value = self.of(row, column, Kind.DATA)[start_ts]
            return None, commit_ts, value
        return NOTHING

    def newest_change(self, row: bytes, column: bytes) -> LastChange:
        """The newest put or delete of a cell, or the one that a newer record repeats."""
        writes = self.of(row, column, Kind.WRITE)
        for commit_ts in sorted(writes, reverse=True):
            record = decode_write(writes[commit_ts])
            if record.op in (Op.PUT, Op.DELETE):
                return LastChange(commit_ts, writes[commit_ts])
            if record.last_change is not None:
                return record.last_change
        return NO_CHANGE

    def entries(
        self, row: bytes, column: bytes, kind: Kind, low: int, high: int
    ) -> list[tuple[int, bytes]]:
        """The entries of a cell between two timestamps, newest first."""
        found = self.of(row, column, kind).items()
        return sorted((one for one in found if low <= one[0] <= high), reverse=True)

    def scan(
        self, start: bytes, end: bytes, ts: int, columns: Sequence[tuple[bytes, bool]] | None
    ) -> list[tuple[bytes, bytes, CellState]]:
        """The cells of a range that have a lock or a value, in order."""
        addresses = sorted({(row, column) for row, column, _ in self.cells})
        found = [
            (row, column, self.state(row, column, ts))
            for row, column in addresses
            if start <= row and (not end or row < end) and is_wanted(column, columns)
        ]
        return [one for one in found if one[2][0] is not None or one[2][2] is not None]

    def scan_kind(self, kind: Kind, start: bytes, end: bytes) -> list[tuple[bytes, bytes, int]]:
        """The entries of one kind in a range of rows, in order."""
        return sorted(
            (row, column, ts)
            for (row, column, its_kind), entries in self.cells.items()
            for ts in entries
            if its_kind is kind and start <= row and (not end or row < end)
        )


# --- Operations -------------------------------------------------------------------------


@dataclass(frozen=True)
class Write:
    """A write record, with a data entry if the value is too long for the record."""

    column: bytes
    commit_ts: int
    start_ts: int
    op: Op
    size: int


@dataclass(frozen=True)
class Mutate:
    """A mutation of one row: conditions, write records, other puts and deletes."""

    row: bytes
    conditions: list[Condition]
    writes: list[Write]
    changes: list[Put | Delete]


@dataclass(frozen=True)
class Look:
    """All kinds of reads: one cell, its entries, and scans of a range."""

    row: bytes
    end: bytes
    column: bytes
    kind: Kind
    scanned: Kind
    ts: int
    low: int
    columns: list[tuple[bytes, bool]] | None
    limit: int


@dataclass(frozen=True)
class Commit:
    """A transaction that commits in one step, `age` timestamps after it began."""

    age: int
    writes: list[tuple[bytes, bytes, Op, int, bool]]
    notifications: list[tuple[bytes, bytes]]
    deletes: list[tuple[Kind, bytes, bytes, int]]


Operation: TypeAlias = Mutate | Look | Commit

_ts = st.integers(1, 12) | st.sampled_from((2**32, 2**56 + 1, 2**63 - 2))
_row, _column, _kind = st.sampled_from(ROWS), st.sampled_from(COLUMNS), st.sampled_from(Kind)
_size = st.sampled_from((0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3000))
_op = st.sampled_from(Op)
_other_kind = st.sampled_from((Kind.LOCK, Kind.NOTIFY, Kind.FAILED))

_conditions = st.builds(
    lambda present, kind, column, a, b: Condition(present, kind, column, min(a, b), max(a, b)),
    st.booleans(),
    _kind,
    _column,
    _ts,
    _ts,
)
_changes = st.builds(Put, _other_kind, _column, _ts, st.binary(min_size=1, max_size=8)) | st.builds(
    Delete, st.sampled_from((*_SCANNED, Kind.WRITE)), _column, _ts
)

mutations = st.builds(
    Mutate,
    _row,
    st.lists(_conditions, max_size=2),
    st.lists(st.builds(Write, _column, _ts, _ts, _op, _size), max_size=3),
    st.lists(_changes, max_size=3),
)
looks = st.builds(
    Look,
    _row,
    _row | st.just(b""),
    _column,
    _kind,
    st.sampled_from(_SCANNED),
    _ts,
    _ts,
    st.none() | st.lists(st.tuples(_column, st.booleans()), max_size=3),
    st.integers(1, 6),
)
commits = st.builds(
    Commit,
    st.integers(0, 3),
    st.lists(
        st.tuples(
            _row, _column, st.sampled_from((Op.PUT, Op.DELETE, Op.LOCK)), _size, st.booleans()
        ),
        max_size=4,
        unique_by=lambda write: write[:2],
    ),
    st.lists(st.tuples(_row, _column), max_size=2),
    st.lists(
        st.tuples(st.sampled_from((Kind.NOTIFY, Kind.FAILED)), _row, _column, _ts), max_size=2
    ),
)


@dataclass
class Comparison:
    """A store and a model side by side, in rows of a table that begin with `prefix`."""

    store: Store
    table: str
    prefix: bytes
    model: StoreModel = field(default_factory=StoreModel)

    def do(self, operation: Operation) -> None:
        """Run the operation on both; AssertionError where they disagree."""
        if isinstance(operation, Mutate):
            self._mutate(operation)
        elif isinstance(operation, Look):
            self._look(operation)
        else:
            self._commit(operation)

    def _mutate(self, operation: Mutate) -> None:
        row = self.prefix + operation.row
        changes: list[Put | Delete] = []
        for write in operation.writes:
            value = bytes(write.size) if write.op is Op.PUT else None
            inline = value if write.size <= INLINE_BYTES else None
            record = encode_write(write.op, write.start_ts, inline)
            changes.append(Put(Kind.WRITE, write.column, write.commit_ts, record))
            if value is not None and inline is None:
                changes.append(Put(Kind.DATA, write.column, write.start_ts, value))
        # Only what the interface allows: one change per entry, one lock per cell.
        chosen: dict[tuple[Kind, bytes, int], Put | Delete] = {}
        locks = {column: set(self.model.of(row, column, Kind.LOCK)) for column in COLUMNS}
        for change in (*changes, *operation.changes):
            if change.kind is Kind.LOCK:
                if locks[change.column] - {change.ts}:
                    continue
                locks[change.column].add(change.ts)
            chosen[change.kind, change.column, change.ts] = change
        changes = list(chosen.values())
        mutation = RowMutation(self.table, row, operation.conditions, changes)
        applied = self.model.mutate(mutation)
        assert self.store.mutate([mutation]) == [applied]
        if self.store.has_notify_table and not applied:
            # Notify entries may have been put although it was refused: they are removed.
            known = self.model.cells
            for change in (one for one in changes if one.kind is Kind.NOTIFY):
                value = known.get((row, change.column, Kind.NOTIFY), {}).get(change.ts)
                entry = change[:3]
                back = Delete(*entry) if value is None else Put(*entry, value)
                self.store.mutate([RowMutation(self.table, row, (), [back])])

    def _look(self, look: Look) -> None:
        store, model, table, ts = self.store, self.model, self.table, look.ts
        cell = Cell(table, self.prefix + look.row, look.column)
        state = model.state(*cell[1:], ts)
        assert store.read([cell], ts) == [state]
        if state[0] is None:
            assert reader_of(store, cell[0], cell[2])(cell[1], ts) == state[2]
        low, high = sorted((look.low, ts))
        entries = model.entries(*cell[1:], look.kind, low, high)
        assert store.entries(cell, look.kind, low, high) == entries
        assert store.entries(cell, look.kind, low, high, look.limit) == entries[: look.limit]
        several = [
            Cell(table, row, column)
            for row in dict.fromkeys((cell.row, self.prefix + look.end))
            for column in COLUMNS
        ]
        assert store.entries_of(several, look.kind, low, high) == [
            model.entries(*one[1:], look.kind, low, high) for one in several
        ]
        start, end = cell.row, self.prefix + look.end if look.end else after(self.prefix)
        wanted = look.columns
        scanned = scan_all(store, table, start, end, ts, wanted, look.limit)
        expected = model.scan(start, end, ts, wanted)
        assert [(*found[1:], its) for found, its in scanned] == expected
        rows = list(dict.fromkeys((cell.row, self.prefix + look.end, self.prefix + b"none")))
        in_rows = scan_rows_all(store, table, rows, ts, wanted, look.limit)
        assert list(in_rows) == rows
        for row, cells in in_rows.items():
            assert [(*found[1:], its) for found, its in cells] == model.scan(
                row, row + b"\0", ts, wanted
            )
        listed = scan_kind_all(store, look.scanned, table, start, end, look.limit)
        assert [(*found[1:], its) for found, its, _ in listed] == model.scan_kind(
            look.scanned, start, end
        )

    def _commit(self, commit: Commit) -> None:
        store, model = self.store, self.model
        assert isinstance(store, OneStepStore)
        start_ts = max(0, store.last_drawn() - commit.age)
        writes: list[OneStepWrite] = [
            (self._cell(row, column), int(op), bytes(size) if op is Op.PUT else None, observed)
            for row, column, op, size, observed in commit.writes
        ]
        notified = [self._cell(*address) for address in commit.notifications]
        deletes = [(kind, self._cell(row, c), ts) for kind, row, c, ts in commit.deletes]
        outcome = store.commit_one_step(start_ts, writes, notified, deletes)
        refused = any(
            model.of(*cell[1:], Kind.LOCK)
            or max(model.of(*cell[1:], Kind.WRITE), default=0) > start_ts
            for cell, _, _, _ in writes
        )
        assert refused is not isinstance(outcome, int)
        if not isinstance(outcome, int):
            return
        assert outcome == store.last_drawn()
        for cell, op, value, observed in writes:
            inline = value if value is not None and len(value) <= INLINE_BYTES else None
            last_change = model.newest_change(cell.row, cell.column) if op == Op.LOCK else None
            record = encode_write(op, start_ts, inline, last_change, silent=observed is None)
            changes: list[Put | Delete] = [Put(Kind.WRITE, cell.column, outcome, record)]
            if value is not None and inline is None:
                changes.append(Put(Kind.DATA, cell.column, start_ts, value))
            if observed:
                changes.append(Put(Kind.NOTIFY, cell.column, outcome, b""))
            model.mutate(RowMutation(self.table, cell.row, (), changes))
        for cell in notified:
            put = Put(Kind.NOTIFY, cell.column, outcome, b"")
            model.mutate(RowMutation(self.table, cell.row, (), [put]))
        for kind, cell, ts in deletes:
            model.mutate(RowMutation(self.table, cell.row, (), [Delete(kind, cell.column, ts)]))

    def _cell(self, row: bytes, column: bytes) -> Cell:
        return Cell(self.table, self.prefix + row, column)


def after(prefix: bytes) -> bytes:
    """The first row after all those that begin with `prefix`, which does not end in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def scan_all(
    store: Store,
    table: str,
    start: bytes,
    end: bytes,
    ts: int,
    columns: Sequence[tuple[bytes, bool]] | None = None,
    limit: int = 256,
) -> list[tuple[Cell, CellState]]:
    """A whole scan, chunk by chunk, each of which must consist of whole rows."""
    found: list[tuple[Cell, CellState]] = []
    position: bytes | None = start
    while position is not None:
        chunk, following = store.scan(table, position, end, ts, columns=columns, limit=limit)
        assert chunk or following is None, "a scan answered nothing, and yet is not at its end"
        assert following is None or chunk[-1][0].row < following, "a scan cut a row in two"
        assert following is None or len(chunk) >= limit, "a scan stopped before its limit"
        found += chunk
        position = following
    return found


def scan_rows_all(
    store: Store,
    table: str,
    rows: Sequence[bytes],
    ts: int,
    columns: Sequence[tuple[bytes, bool]] | None = None,
    limit: int = 256,
) -> dict[bytes, list[tuple[Cell, CellState]]]:
    """Some rows, call by call, each of which reads the first one and keeps to its limit."""
    found: dict[bytes, list[tuple[Cell, CellState]]] = {}
    left = list(rows)
    while left:
        some = store.scan_rows(table, left, ts, columns=columns, limit=limit)
        assert left[0] in some, "the first row that was asked for was not read"
        assert set(some) <= set(left), "rows came that nobody has asked for"
        others = [len(cells) for row, cells in some.items() if row != left[0]]
        assert sum(others) - max(others, default=0) < limit, "rows came beyond the limit"
        found |= some
        left = [row for row in left if row not in some]
    return {row: found[row] for row in rows}


def scan_kind_all(
    store: Store, kind: Kind, table: str, start: bytes = b"", end: bytes = b"", limit: int = 256
) -> list[tuple[Cell, int, bytes]]:
    """A whole scan of one kind, chunk by chunk, each of which must consist of whole rows."""
    found: list[tuple[Cell, int, bytes]] = []
    position: bytes | None = start
    while position is not None:
        chunk, following = store.scan_kind(kind, table, position, end, limit)
        assert chunk or following is None, "a scan answered nothing, and yet is not at its end"
        assert following is None or chunk[-1][0].row < following, "a scan cut a row in two"
        found += chunk
        position = following
    return found

"""§2.2 A transaction's own writes among the rows that it reads: in order, and at what cost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from stores import Ground, put_all

from percola import Column, Family, Repository, Row, Table, Transaction
from percola.cells import Cell

docs = Table("docs")
title = docs.column("title", str)
links = docs.family("link", str)
other = Table("docs2")
heading = other.column("title", str)
keyed = Table("keyed", rows=bytes)
content = keyed.column("content", str)

Shown = dict[str, dict[str, str]]
Asked = list[Column[str, Any] | Family[str, Any]] | None


def shown(row: Row[str]) -> dict[str, str]:
    return {column.name: value for column, value in row.items()}


# --- What is read -----------------------------------------------------------------------


class Model:
    """What a transaction should read of `docs`: a dictionary, and nothing clever."""

    def __init__(self, stored: dict[tuple[str, str], str]) -> None:
        self.cells = dict(stored)

    def rows(self, start: str, end: str, asked: Asked) -> Shown:
        found: Shown = {}
        for (row, name), value in sorted(self.cells.items()):
            if start <= row and (not end or row < end) and self._is_asked(name, asked):
                found.setdefault(row, {})[name] = value
        return found

    @staticmethod
    def _is_asked(name: str, asked: Asked) -> bool:
        return asked is None or any(
            name.startswith("link:") if isinstance(one, Family) else name == one.name
            for one in asked
        )


COLUMNS = [title, links["p"], links["q"]]
ASKED: list[Asked] = [None, None, [title], [links], [links["q"], title], [links["p"], links]]
ROWS = ["".join(letters) for letters in itertools.product("abc", "xy", "012")]


def write_something(rng: random.Random, t: Transaction, model: Model) -> str:
    """Write one cell, or only lock it; the row."""
    column, row = rng.choice(COLUMNS), rng.choice(ROWS)
    kind = rng.random()
    if kind < 0.5:
        model.cells[row, column.name] = value = f"v{rng.random()}" * rng.choice((1, 1, 50))
        t.set(column, row, value)
    elif kind < 0.8:
        model.cells.pop((row, column.name), None)
        t.delete(column, row)
    elif kind < 0.9:
        assert t.get_for_update(column, row) == model.cells.get((row, column.name))
    else:
        # Not in this table: nothing of it may be seen.
        t.set(heading, row, "another table")
    return row


def read_something(rng: random.Random, t: Transaction, model: Model) -> None:
    asked = rng.choice(ASKED)
    kind = rng.random()
    if kind < 0.2:
        cells = [(rng.choice(COLUMNS), rng.choice(ROWS)) for _ in range(4)]
        held = [model.cells.get((row, column.name)) for column, row in cells]
        assert t.get_many(cells) == [t.get(*cell) for cell in cells] == held
    elif kind < 0.4:
        row = rng.choice(ROWS)
        expected = model.rows(row, f"{row}\0", asked)
        assert shown(t.get_row(docs, row, asked)) == expected.get(row, {})
    elif kind < 0.6:
        rows = rng.choices(ROWS, k=4)
        everything = model.rows("", "", asked)
        found = t.get_rows(docs, rows, asked)
        assert [row.key for row in found] == rows
        assert [shown(row) for row in found] == [everything.get(row, {}) for row in rows]
    elif kind < 0.8:
        low, high = sorted(rng.sample(ROWS, 2))
        scanned = list(t.scan(docs, start=low, end=high, columns=asked))
        expected = model.rows(low, high, asked)
        assert [(row.key, list(shown(row).items())) for row in scanned] == [
            (row, list(cells.items())) for row, cells in expected.items()
        ], "in order of rows, and of columns within a row"
    else:
        prefix = rng.choice(("a", "bx", "cy2"))
        expected = model.rows(prefix, f"{prefix}~", asked)
        scanned = list(t.scan(docs, prefix=prefix, columns=asked))
        assert {row.key: shown(row) for row in scanned} == expected


def test_rows_and_ranges_agree_with_a_dictionary_however_writes_and_reads_alternate(
    ground: Ground,
) -> None:
    repo = ground.repo([docs, other])
    rng = random.Random(61)
    stored: dict[tuple[str, str], str] = {}
    for _ in range(25):
        t, model = repo.transaction(), Model(stored)
        for _ in range(rng.choice((5, 60))):
            for _ in range(rng.choice((0, 1, 1, 9))):
                write_something(rng, t, model)
            read_something(rng, t, model)
        if rng.random() < 0.7:
            t.commit()
            stored = model.cells


def test_rows_that_hold_nul_and_ff_are_laid_into_place(ground: Ground) -> None:
    repo = ground.repo([keyed])
    rows = [b"a", b"a\0", b"a\0\0", b"a\0\xff", b"a\xff", b"b", b"\xff", b"\xff\xff"]
    put_all(repo, content, dict.fromkeys(rows[::2], "stored"))
    t = repo.transaction()
    for row in reversed(rows[1::2]):
        t.set(content, row, "own")
    assert [row.key for row in t.scan(keyed)] == sorted(rows)
    for low, high in itertools.product(rows, repeat=2):
        expected = [row for row in sorted(rows) if low <= row < high]
        assert [row.key for row in t.scan(keyed, start=low, end=high)] == expected
    for prefix in (b"a", b"a\0", b"a\xff", b"\xff", b"\xff\xff"):
        expected = [row for row in sorted(rows) if row.startswith(prefix)]
        assert [row.key for row in t.scan(keyed, prefix=prefix)] == expected
    assert [bool(row) for row in t.get_rows(keyed, rows)] == [True] * len(rows)


def test_a_scan_stays_in_order_and_whole_while_its_transaction_writes_and_reads(
    ground: Ground,
) -> None:
    """Scans that are half read, beside others and beside writes of rows before and after."""
    repo = ground.repo([docs, other])
    rng = random.Random(62)
    with repo.transaction() as t:
        model = Model({})
        for _ in range(40):
            write_something(rng, t, model)
    stored = model.cells
    for _ in range(40):
        t, model = repo.transaction(), Model(stored)
        for _ in range(rng.choice((0, 30))):
            write_something(rng, t, model)
        before = model.rows("", "", None)
        written: set[str] = set()
        scans: list[tuple[Iterator[Row[str]], list[str]]] = [
            (t.scan(docs), []) for _ in range(rng.choice((1, 3)))
        ]
        going = list(scans)
        while going:
            scan, seen = one = rng.choice(going)
            row = next(scan, None)
            if row is None:
                going.remove(one)
                continue
            seen.append(row.key)
            if row.key not in written:
                assert shown(row) == before[row.key]
            for _ in range(rng.choice((0, 0, 1, 4))):
                written.add(write_something(rng, t, model))
                read_something(rng, t, model)
        for _, seen in scans:
            assert seen == sorted(set(seen)), "each row once, and in order"
            assert set(before) - written <= set(seen)
        t.rollback()


def test_a_scan_ends_although_each_of_its_rows_writes_one_just_behind_it(ground: Ground) -> None:
    """The next row is always one that was written after the scan began."""
    repo = ground.repo([docs])
    t = repo.transaction()
    for row in ("a", "b", "c"):
        t.set(title, row, "first")
    for count, row in enumerate(t.scan(docs)):
        assert count < 10, "it follows its own writes"
        t.set(title, f"{row.key}+", "later")
        assert t.get_row(docs, f"{row.key}+")[title] == "later"


# --- What it costs ----------------------------------------------------------------------


class Counted(dict[Cell, tuple[int, bytes | None]]):
    """A transaction's buffer that counts how many of its cells are looked at."""

    looked_at = 0

    def _count(self, several: Any) -> Any:
        for one in several:
            self.looked_at += 1
            yield one

    def __iter__(self) -> Iterator[Cell]:
        return self._count(super().__iter__())  # type: ignore[no-any-return]

    def __reversed__(self) -> Iterator[Cell]:
        return self._count(super().__reversed__())  # type: ignore[no-any-return]

    def keys(self) -> Any:
        return self._count(super().keys())

    def values(self) -> Any:
        return self._count(super().values())

    def items(self) -> Any:
        return self._count(super().items())

    def __getitem__(self, cell: Cell) -> tuple[int, bytes | None]:
        self.looked_at += 1
        return super().__getitem__(cell)

    def get(self, cell: Cell, default: Any = None) -> Any:
        self.looked_at += 1
        return super().get(cell, default)


def counted(repo: Repository) -> tuple[Transaction, Counted]:
    t = repo.transaction()
    t._writes = writes = Counted()
    return t, writes


MANY = 3000


def test_reading_rows_looks_at_each_own_write_once_and_then_at_what_it_returns(
    ground: Ground,
) -> None:
    t, writes = counted(ground.repo([docs]))
    for i in range(MANY):
        t.set(title, f"{i:06}", "own")
    assert t.get_row(docs, "000007")[title] == "own"
    assert writes.looked_at <= 2 * MANY, "each once, to bring them in order"
    writes.looked_at = 0
    reads = 200
    for i in range(reads):
        # Each time there is something new, so that nothing can be taken for the whole.
        t.set(title, f"{10 * i:06}+", "new")
        assert t.get_row(docs, f"{10 * i:06}")[title] == "own"
        assert len(t.get_rows(docs, [f"{10 * i:06}+", "none"])) == 2
        found = list(t.scan(docs, start=f"{10 * i:06}", end=f"{10 * i + 5:06}"))
        assert len(found) == 6
    assert writes.looked_at <= 12 * reads, "what is new, and what is returned"


def test_the_first_rows_of_a_scan_do_not_wait_for_all_own_writes_of_its_range(
    ground: Ground,
) -> None:
    t, writes = counted(ground.repo([docs]))
    for i in range(MANY):
        t.set(title, f"{i:06}", "own")
    t.get_row(docs, "none")
    writes.looked_at = 0
    assert [row.key for row in itertools.islice(t.scan(docs, start="001000"), 3)] == [
        "001000",
        "001001",
        "001002",
    ]
    assert writes.looked_at <= 10


def test_writing_and_reading_single_cells_brings_nothing_in_order(ground: Ground) -> None:
    t, writes = counted(ground.repo([docs]))
    for i in range(100):
        t.set(title, f"{i:06}", "own")
        t.delete(links["p"], f"{i:06}")
        t.get(title, f"{i:06}")
    assert writes.looked_at <= 100, "one look for each read"


def test_moving_cells_into_order_costs_little_however_writes_and_reads_alternate(
    ground: Ground,
) -> None:
    """What is new at each read is merged into what is in order: a few times for each cell."""
    compared = 0

    class Row(bytes):
        """Counts comparisons."""

        def __lt__(self, other: bytes) -> bool:
            nonlocal compared
            compared += 1
            return bytes.__lt__(self, other)

    t = ground.repo([docs]).transaction()
    rng = random.Random(63)
    numbers = list(range(MANY))
    rng.shuffle(numbers)
    for number in numbers:
        t._put(Cell("docs", Row(b"%06d" % number), b"title"), b"own")
        t.get_row(docs, f"{number:06}")
    # n log² n, roughly; sorted anew each time, or put into a list one by one, it is n².
    assert compared < 150 * MANY

"""How a table is cut into ranges of rows: `percola.spark.partitioning`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import heard

from percola.cells import Kind, Op, encode_write
from percola.spark.partitioning import last_row, row_ranges
from percola.store.base import Put, RowMutation, Store
from percola.store.lmdb.store import LmdbStore
from percola.store.memory import MemoryStore
from percola.store.walks import scan_writes

_CHANGES = [Put(Kind.WRITE, b"c", 2, encode_write(Op.PUT, 1, b"v"))]


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = (
        MemoryStore() if request.param == "memory" else LmdbStore(tmp_path, durability="relaxed")
    )
    made.create_tables(["t"])
    yield made
    made.close()


def fill(store: Store, rows: list[bytes]) -> None:
    store.mutate([RowMutation("t", row, (), _CHANGES) for row in rows])


def counted(store: Store, ranges: list[tuple[bytes, bytes]]) -> list[int]:
    found = []
    for start, end in ranges:
        cells, following = scan_writes(store, "t", start, end, 10**9)
        assert following is None
        found.append(len(cells))
    return found


_KEYS = {
    "numbers behind a long beginning": [b"https://example.org/%09d" % i for i in range(20_000)],
    "hexadecimal": [b"%08x" % (i * 214_013) for i in range(20_000)],
    "most below one prefix": [b"a/%06d" % i for i in range(19_000)]
    + [bytes([98 + i % 20]) + b"%d" % i for i in range(1000)],
    "with zeros": [b"\0" * (i % 5) + b"%05d" % i for i in range(20_000)],
}


@pytest.mark.parametrize("kind", _KEYS)
def test_ranges_cover_every_row_once_and_are_about_equally_large(store: Store, kind: str) -> None:
    fill(store, sorted(_KEYS[kind]))
    for wanted in (1, 2, 8):
        ranges = row_ranges(store, "t", b"", b"", wanted)
        assert ranges[0][0] == b"" and ranges[-1][1] == b""
        assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
        counts = counted(store, ranges)
        assert sum(counts) == 20_000
        assert len(ranges) == wanted
        assert max(counts) <= 4 * 20_000 / wanted


def test_a_small_table_is_one_task_and_an_empty_one_as_well(store: Store) -> None:
    assert row_ranges(store, "t", b"", b"") == [(b"", b"")]
    fill(store, [b"%04d" % i for i in range(2000)])
    assert row_ranges(store, "t", b"", b"") == [(b"", b"")]
    assert row_ranges(store, "t", b"0100", b"0200") == [(b"0100", b"0200")]
    assert len(row_ranges(store, "t", b"0100", b"1900", 4)) == 4


@pytest.mark.parametrize(
    ("rows", "tasks"),
    [
        (8000, [1]),
        (40_000, [1, 2, 3]),
        pytest.param(200_000, [6, 7, 8], marks=pytest.mark.long),
    ],
)
def test_a_task_has_about_twenty_thousand_records_unless_there_are_more_than_for_all_tasks(
    store: Store, rows: int, tasks: list[int]
) -> None:
    fill(store, [b"page/%07d" % i for i in range(rows)])
    assert len(row_ranges(store, "t", b"", b"", most=8)) in tasks


def test_a_table_of_more_tablets_than_this_machine_has_cores_for_is_a_task_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = [b"", *(b"%02d" % at for at in range(1, 40)), b""]

    class Cut(MemoryStore):
        def tablets(self, table: str) -> list[tuple[bytes, bytes]]:
            return list(itertools.pairwise(bounds))

    monkeypatch.setattr("percola.spark.partitioning.LEAST_ROWS", 20)
    monkeypatch.setattr("percola.spark.partitioning.default_partitions", lambda: 4)
    store = Cut()
    store.create_tables(["t"])
    fill(store, [b"%02d/%d" % (at, row) for at in range(40) for row in range(10)])
    assert len(row_ranges(store, "t", b"", b"")) == 20, "small ones share a task"
    fill(store, [b"%02d/%d" % (at, row) for at in range(40) for row in range(10, 100)])
    assert row_ranges(store, "t", b"", b"") == store.tablets("t")
    assert len(row_ranges(store, "t", b"", b"", most=8)) == 8


def test_a_range_is_cut_within_its_bounds(store: Store) -> None:
    fill(store, [b"%05d" % i for i in range(10_000)])
    ranges = row_ranges(store, "t", b"02000", b"07000", 5)
    assert (ranges[0][0], ranges[-1][1]) == (b"02000", b"07000")
    counts = counted(store, ranges)
    assert len(counts) == 5 and sum(counts) == 5000 and max(counts) <= 2500


@pytest.mark.parametrize("seed", range(5))
def test_the_last_row_is_found(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    rows = sorted({rng.randbytes(rng.randint(1, 6)) for _ in range(50)})
    rows += [rows[-1] + b"\0", rows[-1] + b"\0\xff"]
    assert last_row(store, "t", b"", b"") is None
    fill(store, rows)
    for _ in range(20):
        start, end = sorted(rng.sample([b"", *rows], 2))
        expected = [row for row in rows if start <= row < end]
        assert last_row(store, "t", start, end) == (expected[-1] if expected else None)
    assert last_row(store, "t", b"", b"") == rows[-1]


def test_a_cell_with_thousands_of_versions_is_not_read_whole() -> None:
    store = MemoryStore()
    store.create_tables(["t"])
    fill(store, [b"%04d" % i for i in range(100)])
    for row in (b"0000", b"0050", b"9999"):
        versions = [Put(Kind.WRITE, b"c", ts, _CHANGES[0].value) for ts in range(3, 5003)]
        store.mutate([RowMutation("t", row, (), versions)])
    read: list[int] = []
    watched = heard(store, scan_kind=lambda found, *where: read.append(len(found[0])))
    assert row_ranges(watched, "t", b"", b"") == [(b"", b"")]
    assert max(read) < 1000

"""What the stores on HBase and Bigtable share and needs no server."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from typing import cast

import pytest
from commands import call

from percola import Schema, StoreError, Table
from percola.catalog import create_schema, reconcile, stored_schema
from percola.cells import MAX_TS, Cell, Kind
from percola.connect import cluster
from percola.oracle import server as oracle_server
from percola.oracle.record import ORACLE_TABLE
from percola.oracle.server import OracleServer
from percola.store.base import Delete, RowMutation
from percola.store.forwarding import ForwardingStore
from percola.store.memory import MemoryStore
from percola.store.remote.batches import overlapped, waves
from percola.store.remote.shared_row import SharedRow

RECORD = Cell(ORACLE_TABLE, b"timestamps", b"@record")


def address(row: bytes) -> list[tuple[str, bytes]]:
    return [("t", row)]


@pytest.mark.parametrize("seed", range(20))
def test_no_wave_has_a_row_twice_and_a_row_is_touched_in_the_order_of_the_batch(seed: int) -> None:
    rng = random.Random(seed)
    batch = [
        [(rng.choice("tu"), b"%d" % rng.randrange(6)) for _ in range(rng.randrange(3))]
        for _ in range(40)
    ]
    sent = waves(batch)
    assert sorted(at for wave in sent for at in wave) == list(range(40))
    for wave in sent:
        rows = [row for at in wave for row in set(batch[at])]
        assert len(rows) == len(set(rows))
    for row in {row for touched in batch for row in touched}:
        order = [at for wave in sent for at in wave if row in batch[at]]
        assert order == sorted(order)


def test_there_are_as_many_waves_as_the_row_that_is_touched_most_often_needs() -> None:
    assert waves([]) == []
    assert waves(address(row) for row in (b"a", b"a", b"b", b"b", b"c")) == [[0, 2, 4], [1, 3]]


def test_what_is_overlapped_is_done_by_the_same_threads_again_also_after_it_was_left() -> None:
    """On HBase each thread that has ended leaves some memory behind."""
    threads: set[threading.Thread] = set()

    def act(thing: int) -> int:
        threads.add(threading.current_thread())
        return 2 * thing

    for _ in range(50):
        assert list(overlapped(act, range(8))) == [2 * thing for thing in range(8)]
        with closing(cast("Generator[int, None, None]", overlapped(act, range(8)))) as left:
            assert next(left) == 0
    assert len(threads) <= 32
    assert all(thread.is_alive() for thread in threads)


def test_a_schema_names_no_table_before_it_was_created() -> None:
    """So one that it names and that is missing has been deleted."""

    class Failing(ForwardingStore):
        def create_tables(self, names: Iterable[str]) -> None:
            if "docs" in (wanted := list(names)):
                raise StoreError("The server has died.")
            self.inner.create_tables(wanted)

    store = Failing(MemoryStore())
    create_schema(store)
    with pytest.raises(StoreError, match="has died"):
        reconcile(store, Schema([Table("docs")]))
    assert [table.name for table in stored_schema(store)] == []


class Silent(SharedRow):
    """A shared row on a server that does not answer; each request takes half a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.asked: list[float] = []

    def now(self) -> float:
        return self.time

    def _read(self) -> Mapping[bytes, int]:
        self.asked.append(self.time)
        self.time += 30
        raise StoreError("The server does not answer.")

    def _put(self, column: bytes, ts: int) -> None:
        raise AssertionError


def test_threads_that_wait_for_the_shared_row_do_not_ask_a_silent_server_one_by_one() -> None:
    row = Silent()
    # Sixteen have finished a read while the first one asks: each waits for its turn.
    for moment in range(16):
        with pytest.raises(StoreError, match="does not answer"):
            row.view(float(moment))
    assert row.asked == [0, 30]
    with pytest.raises(StoreError):
        row.view(row.time)
    assert row.asked == [0, 30, 60], "who comes later asks again"


class Kept(ForwardingStore):
    """A store that stays when it is closed, as a server does."""

    def close(self) -> None:
        pass


def test_an_oracle_does_not_begin_at_1_where_a_repository_has_lost_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, drawn = Kept(MemoryStore()), []

    def serve_once(server: OracleServer, ready: object) -> None:
        with server:
            drawn.append(server.ranges.draw(1))

    monkeypatch.setattr(cluster, "open_store", lambda *_, **__: store)
    monkeypatch.setattr(oracle_server, "serve", serve_once)
    words = ("--repo", "hbase://zk1/shop", "oracle", "--listen", "127.0.0.1:0")
    assert call(*words).code == 0, "the oracle comes before the repository"
    create_schema(store)
    assert call(*words).code == 0
    [(version, _)] = store.entries(RECORD, Kind.DATA, 0, MAX_TS)
    gone = Delete(Kind.DATA, RECORD.column, version)
    store.mutate([RowMutation(RECORD.table, RECORD.row, (), [gone])])
    answer = call(*words)
    assert answer.code == 1
    assert "hbase://zk1/shop has a repository, but no record" in answer.err
    assert call(*words, "--above", 500).code == 0
    assert call(*words).code == 0
    assert drawn == [1, 2, 501, 502]

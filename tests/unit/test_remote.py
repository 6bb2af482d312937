"""What the stores on HBase and Bigtable share and needs no server."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from percola import Schema, StoreError, Table
from percola.catalog import create_schema, reconcile, stored_schema
from percola.store.forwarding import ForwardingStore
from percola.store.memory import MemoryStore
from percola.store.remote.batches import waves


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

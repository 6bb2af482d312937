"""§2.1: the conformance tests of a store.

The author of a store for Percola derives a class in a test module and defines how to create a
store; pytest does the rest. Each test's name states a property of the interface in
`percola.store.base`.

    class TestMyStore(StoreConformance):
        def make_store(self, folder):
            return MyStore(folder)

A store that can commit a transaction in one step derives from `OneStepConformance`, which adds
further tests. Every test uses a separate table, so a store that is expensive to create may be
shared: override the fixture `store` with one of a wider scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from percola.cells import Cell, Kind
from percola.errors import (
    RepositoryClosedError,
    RowTooLongError,
    UnknownTableError,
    ValueTooLargeError,
)
from percola.store.base import Put, RowMutation, Store
from percola.store.capabilities import reader_of, scan_cells, scan_columns
from percola.store.walks import scan_writes
from percola.testing.conformance.columns import ColumnClaims
from percola.testing.conformance.feed import FeedClaims
from percola.testing.conformance.fixtures import COLUMN, lock, numbers
from percola.testing.conformance.model import Comparison, Operation, looks, mutations, scan_kind_all
from percola.testing.conformance.rows import RowClaims
from percola.testing.conformance.safe_point import SafePointClaims
from percola.testing.conformance.scans import ScanClaims

RANDOM: Final = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)


class StoreConformance(RowClaims, ScanClaims, ColumnClaims, SafePointClaims, FeedClaims):
    """The conformance tests of `Store`."""

    # --- Limits and refusals ------------------------------------------------------------

    @pytest.mark.parametrize("fault", ["row", "value", "table"])
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_what_does_not_fit_is_refused_before_anything_of_the_batch_is_written(
        self, store: Store, table: str, fault: str, place: int
    ) -> None:
        batch = [RowMutation(table, b"%d" % i, (), [lock(COLUMN, 5)]) for i in range(2)]
        error: type[Exception]
        if fault == "row":
            row = b"r" * (store.limits.row_bytes + 1)
            with pytest.raises(RowTooLongError, match=str(store.limits.row_bytes)):
                store.check_row(table, row)
            wrong, error = RowMutation(table, row, (), [lock(COLUMN, 5)]), RowTooLongError
        elif fault == "value":
            put = Put(Kind.DATA, COLUMN, 5, bytes(store.limits.value_bytes + 1_000_000))
            wrong, error = RowMutation(table, b"v", (), [lock(COLUMN, 5), put]), ValueTooLargeError
        else:
            wrong, error = RowMutation("nowhere", b"r", (), [lock(COLUMN, 5)]), UnknownTableError
        batch.insert(place, wrong)
        with pytest.raises(error):
            store.mutate(batch)
        assert scan_kind_all(store, Kind.LOCK, table) == []

    def test_an_unknown_table_is_an_error_that_names_it(self, store: Store) -> None:
        cell = Cell("nowhere", b"r", COLUMN)
        for use in _uses(store, cell):
            with pytest.raises(UnknownTableError, match="nowhere"):
                use()

    def test_a_closed_store_refuses_every_use(self, store: Store, table: str) -> None:
        uses = _uses(store, Cell(table, b"r", COLUMN))
        for use in uses:
            use()
        store.close()
        store.close()
        more = [lambda: store.create_tables(["another"]), lambda: store.raise_safe_point(0)]
        for use in [*uses, *more]:
            with pytest.raises(RepositoryClosedError):
                use()

    # --- Against the model --------------------------------------------------------------

    @RANDOM
    @given(operations=st.lists(mutations | looks, min_size=1, max_size=25))
    def test_any_operations_give_what_a_dictionary_gives(
        self, store: Store, table: str, operations: Sequence[Operation]
    ) -> None:
        comparison = Comparison(store, table, b"%07d|" % next(numbers))
        for operation in operations:
            comparison.do(operation)


def _uses(store: Store, cell: Cell) -> list[Callable[[], object]]:
    table = cell.table
    change = RowMutation(table, cell.row, (), [Put(Kind.NOTIFY, cell.column, 1, b"")])
    return [
        lambda: store.mutate([change]),
        lambda: store.read([cell], 5),
        lambda: reader_of(store, cell[0], cell[2])(cell[1], 5),
        lambda: store.entries(cell, Kind.WRITE, 0, 5),
        lambda: store.entries_of([cell], Kind.WRITE, 0, 5),
        lambda: store.scan(table, b"", b"", 5),
        lambda: store.scan_rows(table, [cell.row], 5),
        lambda: scan_columns(store, table, b"", b"", 5, [cell.column]),
        lambda: scan_cells(store, table, b"", b"", 5, None),
        lambda: store.scan_kind(Kind.NOTIFY, table),
        lambda: scan_writes(store, table),
        lambda: store.tablets(table),
        lambda: store.keep_feed(table),
        lambda: list(store.changes(table, 0, 5)),
        lambda: store.lists_change(cell, 5),
        lambda: store.forget_changes(table, 5),
    ]

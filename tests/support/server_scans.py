"""The conformance suite for stores behind a network: of its scans a part, the rest is long."""

from __future__ import annotations

import pytest
from effort import mostly_long

from percola.store.base import Store
from percola.testing import StoreConformance
from percola.testing.conformance.columns import _SHAPES


class ServerConformance(StoreConformance):
    """Rows of all shapes are in the tables whose rows differ."""

    @pytest.mark.parametrize("shape", mostly_long(_SHAPES, 3))
    def test_columns_of_rows_that_are_all_alike_are_what_a_scan_finds(
        self, store: Store, table: str, shape: str
    ) -> None:
        super().test_columns_of_rows_that_are_all_alike_are_what_a_scan_finds(store, table, shape)

    @pytest.mark.parametrize("shape", mostly_long(_SHAPES, 3))
    def test_cells_of_rows_that_are_all_alike_are_what_a_scan_finds(
        self, store: Store, table: str, shape: str
    ) -> None:
        super().test_cells_of_rows_that_are_all_alike_are_what_a_scan_finds(store, table, shape)

    @pytest.mark.parametrize("seed", mostly_long(range(12)))
    def test_columns_of_rows_that_differ_are_what_a_scan_finds(
        self, store: Store, table: str, seed: int
    ) -> None:
        super().test_columns_of_rows_that_differ_are_what_a_scan_finds(store, table, seed)

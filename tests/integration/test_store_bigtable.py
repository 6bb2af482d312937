"""The Bigtable store keeps every promise of the contract, on Google's emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from emulator import Emulator
from hypothesis import given
from hypothesis import strategies as st
from server_scans import ServerConformance

from percola.cells import MAX_TS, Kind
from percola.store.base import Condition, Delete, Put, RowMutation, Store
from percola.store.bigtable.filters import MAX_STORED_TS
from percola.store.bigtable.store import BigtableStore
from percola.store.remote import shared_row
from percola.testing.conformance import feed as feed_claims
from percola.testing.conformance.feed import FeedClaims
from percola.testing.conformance.fixtures import COLUMN, Ground, lock, numbers, written
from percola.testing.conformance.model import Comparison, Look, Mutate, Operation, looks, mutations
from percola.testing.conformance.suite import RANDOM

# Of the timestamps that the suite tries, those that do not fit in Bigtable, and what is tried
# instead: the order stays.
_LOWERED: Final = {2**56 + 1: 2**52 + 1, 2**63 - 2: MAX_STORED_TS}


def _fits(ts: int) -> int:
    return _LOWERED.get(ts, ts)


def fitting(operation: Operation) -> Operation:
    """The operation at timestamps that Bigtable can hold."""
    if isinstance(operation, Look):
        return replace(operation, ts=_fits(operation.ts), low=_fits(operation.low))
    assert isinstance(operation, Mutate)
    return Mutate(
        operation.row,
        [one._replace(low=_fits(one.low), high=_fits(one.high)) for one in operation.conditions],
        [
            replace(one, commit_ts=_fits(one.commit_ts), start_ts=_fits(one.start_ts))
            for one in operation.writes
        ],
        [one._replace(ts=_fits(one.ts)) for one in operation.changes],
    )


class InTheEmulator(Ground):
    @pytest.fixture(autouse=True)
    def in_the_emulator(self, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.emulator = emulator
        monkeypatch.setattr(feed_claims, "_FAR", 2**52 + 1)
        # All processes must agree on it; here there is one. `faults` has the real one.
        monkeypatch.setattr(shared_row, "LEASE", 0.05)

    def make_store(self, folder: Path) -> BigtableStore:
        return self.emulator.store()


class TestFeedsOfAnEarlierRelease(InTheEmulator, FeedClaims):
    indexed = False


class TestBigtableStore(InTheEmulator, ServerConformance):
    @pytest.mark.parametrize("width", [100, 140, 250])
    @pytest.mark.parametrize("name", [b"column:%04d/a.b", b"@x-%04d#", "ü%04d".encode()])
    def test_a_row_of_many_columns_is_locked_and_committed_in_one_mutation(
        self, store: Store, table: str, width: int, name: bytes
    ) -> None:
        columns = [name % i for i in range(width)]
        if name[0] > 127:
            columns = columns[:120]
        absent = [
            Condition(False, kind, column, low, MAX_TS)
            for column in columns
            for kind, low in ((Kind.WRITE, 5), (Kind.LOCK, 0))
        ]
        prewrite = RowMutation(table, b"r", absent, [lock(column, 5) for column in columns])
        held = [Condition(True, Kind.LOCK, column, 5, 5) for column in columns]
        changes = [one for column in columns for one in written(column, 7, b"v", 5)]
        changes += [Delete(Kind.LOCK, column, 5) for column in columns]
        commit = RowMutation(table, b"r", held, changes)
        mixed = RowMutation(table, b"r", [*held, *absent[::2]], [Put(Kind.NOTIFY, COLUMN, 1, b"")])
        # One lock more or less anywhere, or a column that only looks alike, and it is refused.
        for column in (columns[0], columns[-1], columns[width // 2 % len(columns)]):
            for other in {column.replace(b".", b"x"), column + b"1", column[:-1]} - {column}:
                self.put(store, table, b"r", lock(other, 4), *written(other, 9, b"v"))
            self.put(store, table, b"r", lock(column, 4))
            assert store.mutate([prewrite, commit, mixed]) == [False, False, False]
            self.put(store, table, b"r", Delete(Kind.LOCK, column, 4))
            assert store.mutate([prewrite, prewrite, mixed]) == [True, False, True]
            self.put(store, table, b"r", *written(column, 9, b"v"))
            assert store.mutate([mixed]) == [False]
            self.put(store, table, b"r", Delete(Kind.WRITE, column, 9))
            self.put(store, table, b"r", Delete(Kind.LOCK, column, 5))
            assert store.mutate([commit, mixed]) == [False, False]
            for one in columns:
                self.put(store, table, b"r", Delete(Kind.LOCK, one, 5))
        assert store.mutate([prewrite, commit, prewrite]) == [True, True, False]

    @RANDOM
    @given(operations=st.lists((mutations | looks).map(fitting), min_size=1, max_size=25))
    def test_any_operations_give_what_a_dictionary_gives(
        self, store: Store, table: str, operations: Sequence[Operation]
    ) -> None:
        comparison = Comparison(store, table, b"%07d|" % next(numbers))
        for operation in operations:
            comparison.do(operation)

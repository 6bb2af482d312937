"""With coprocessors or without: what decides, and what is said where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hbase import HBase
from hbase_admin import Admin

from percola.cells import MAX_TS, Cell, Kind
from percola.errors import OutcomeUnknownError, StoreError
from percola.store.base import Condition, RowMutation
from percola.store.hbase.jvm import java_class
from percola.store.hbase.store import HBaseStore
from percola.store.hbase.wire import STATE
from percola.store.hbase.write_mode import ENDPOINT
from percola.store.remote import shared_row
from percola.store.remote.shared_row import SHARED_TABLE
from percola.testing.conformance.fixtures import lock, written

COLUMN = b"c"
CELL = Cell("t", b"r", COLUMN)
UNLOCKED = Condition(False, Kind.LOCK, COLUMN, 0, MAX_TS)
LOCK_IT = RowMutation("t", b"r", [UNLOCKED], [lock(COLUMN, 5)])


@pytest.fixture(scope="module")
def without(hbase: HBase) -> HBase:
    """The session's cluster, for those whose address says that coprocessors are forbidden."""
    return HBase(hbase.cluster, coprocessors=False, steady=True)


@pytest.fixture(scope="module")
def made(without: HBase) -> Iterator[HBaseStore]:
    """A repository without coprocessors, by whoever made it."""
    store = without.store()
    store.create_tables(["t"])
    yield store
    store.close()


def descriptor(store: HBaseStore, table: str) -> Any:
    """What a table is made of."""
    admin = store._calls.client().connection.getAdmin()
    try:
        return admin.getDescriptor(store._calls.name(table))
    finally:
        admin.close()


def alter(store: HBaseStore, table: str, change: Callable[[Any], Any]) -> None:
    """Change what a table is made of, as in HBase's shell."""
    builder = java_class("org.apache.hadoop.hbase.client.TableDescriptorBuilder")
    changed = builder.newBuilder(descriptor(store, table))
    change(changed)
    admin = store._calls.client().connection.getAdmin()
    admin.modifyTable(changed.build())
    admin.close()


def forbid(store: HBaseStore, *tables: str) -> None:
    """Have the servers leave out coprocessors, as `hbase.coprocessor.user.enabled` does for all."""
    for table in tables:
        alter(store, table, lambda one: one.setValue("hbase.coprocessor.user.enabled", "false"))


def test_who_opens_a_repository_that_was_made_without_coprocessors_does_without(
    hbase: HBase, made: HBaseStore
) -> None:
    # One who looks at no settings first, and one who makes a table.
    mute, second = (hbase.store(made.place.namespace) for _ in range(2))
    assert mute.mutate([LOCK_IT]) == [True]
    second.create_tables(["t", "another"])
    assert second.mutate([LOCK_IT]) == made.mutate([LOCK_IT]) == [False]
    for table in (SHARED_TABLE, "t", "another"):
        assert not descriptor(made, table).hasCoprocessor(ENDPOINT)
        assert descriptor(made, table).hasColumnFamily(STATE)


def test_a_repository_that_uses_its_coprocessor_is_refused_to_who_would_do_without(
    hbase: HBase, without: HBase
) -> None:
    store = hbase.store()
    store.create_tables([])
    with pytest.raises(StoreError, match="its servers run, and the address says coprocessors="):
        without.store(store.place.namespace).create_tables(["t"])
    assert descriptor(store, SHARED_TABLE).hasCoprocessor(ENDPOINT)


def test_a_table_of_the_other_way_is_refused(hbase: HBase, made: HBaseStore) -> None:
    stray = hbase.store(made.place.namespace)
    stray._calls.checked[SHARED_TABLE] = False
    stray._known.add(SHARED_TABLE)
    with pytest.raises(StoreError, match="other tables are written with one"):
        stray.create_tables(["t"])
    stray._calls.checked.clear()
    made.create_tables(["stray"])
    alter(made, "stray", lambda one: one.removeColumnFamily(STATE).setCoprocessor(ENDPOINT))
    with pytest.raises(StoreError, match=r":stray'.*other tables without one"):
        hbase.store(made.place.namespace).create_tables(["stray"])


def test_a_table_that_could_be_written_both_ways_is_refused(hbase: HBase, made: HBaseStore) -> None:
    made.create_tables(["both"])
    alter(made, "both", lambda one: one.setCoprocessor(ENDPOINT))
    store = hbase.store(made.place.namespace)
    with pytest.raises(StoreError, match=r"alter '.*:both', METHOD => 'table_att_unset'"):
        store.create_tables(["both"])
    with pytest.raises(StoreError, match="table_att_unset"):
        store.mutate([RowMutation("both", b"r", [UNLOCKED], [lock(COLUMN, 5)])])


def test_states_of_which_old_versions_are_kept_are_refused(hbase: HBase, made: HBaseStore) -> None:
    made.create_tables(["old"])
    Admin(made).alter("old", "s", setMaxVersions=2)
    with pytest.raises(StoreError, match=r"'s'.*VERSIONS 2.*VERSIONS => '1'"):
        hbase.store(made.place.namespace).create_tables(["old"])


def test_where_coprocessors_are_forbidden_one_is_told_and_changes_the_repository_over(
    hbase: HBase, without: HBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_row, "LEASE", 0.02)
    before = hbase.store()
    before.create_tables(["t"])
    before.mutate([LOCK_IT, RowMutation("t", b"q", (), written(COLUMN, 7, b"v", 6))])
    before.raise_safe_point(3)
    forbid(before, SHARED_TABLE, "t")

    later = hbase.store(before.place.namespace)
    with pytest.raises(StoreError, match="add coprocessors=forbidden to the repository's address"):
        later.create_tables(["t"])
    with pytest.raises(StoreError, match="coprocessors=forbidden") as caught:
        before.mutate([LOCK_IT])
    assert not isinstance(caught.value, OutcomeUnknownError)

    # Halfway: the first table only.
    without.store(before.place.namespace).create_tables([])
    with pytest.raises(StoreError, match=r"open it with coprocessors=forbidden"):
        hbase.store(before.place.namespace).create_tables(["t"])
    after = without.store(before.place.namespace)
    after.create_tables(["t"])
    assert after.mutate([LOCK_IT]) == [False]
    assert after.read([CELL._replace(row=b"q")], 9) == [(None, 7, b"v")]
    assert after.safe_point() == 3
    held = Condition(True, Kind.LOCK, COLUMN, 5, 5)
    commit = RowMutation("t", b"r", [held], written(COLUMN, 8, b"new", 5))
    assert after.mutate([commit]) == [True]
    # Who has not noticed writes nothing, until he opens it again.
    with pytest.raises(StoreError, match="open the repository again"):
        before.mutate([LOCK_IT])
    again = hbase.store(before.place.namespace)
    again.create_tables(["t"])
    assert again.mutate([LOCK_IT]) == [False]

"""An HBase whose settings would break the protocol is refused, with words on what to change."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hbase import HBase, repository
from hbase_admin import Admin
from stores import DEADLINE, all_at_once

from percola import Repository, Table
from percola.cells import Cell, Kind
from percola.coordination.memory import MemoryCoordination
from percola.errors import OutcomeUnknownError, StoreError, UnknownTableError
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import Condition, Delete, RowMutation
from percola.store.hbase.client import Place
from percola.store.hbase.jvm import java_class
from percola.store.hbase.schema import ALL_FAMILIES, ENDPOINT, check_version, create_tables
from percola.store.hbase.store import HBaseStore
from percola.store.hbase.wire import LOCK
from percola.store.remote.shared_row import SHARED_TABLE
from percola.testing.conformance.fixtures import lock, written

CLIENT = "org.apache.hadoop.hbase.client."
CELL = Cell("t", b"r", b"c")
ABSENT = Condition(False, Kind.LOCK, b"c", 0, 9)


def make_table(
    store: HBaseStore, *, without: str = "", endpoint: bool = True, **options: Any
) -> None:
    """Make the table `t` as somebody else would have made it."""
    store.create_tables([])
    calls = store._calls
    table = java_class(CLIENT + "TableDescriptorBuilder").newBuilder(calls.name("t"))
    for family in ALL_FAMILIES:
        if family.decode() != without:
            made = java_class(CLIENT + "ColumnFamilyDescriptorBuilder").newBuilder(family)
            made.setMaxVersions(1 if family == LOCK else 2**31 - 1)
            made.setNewVersionBehavior(family != LOCK)
            table.setColumnFamily(made.build())
    if endpoint:
        table.setCoprocessor(ENDPOINT)
    for setter, value in options.items():
        getattr(table, setter)(value)
    admin = calls.client().connection.getAdmin()
    admin.createTable(table.build())
    admin.close()


def alter(store: HBaseStore, table: str, change: Callable[[Any], Any]) -> None:
    """Change the settings of a table, as in HBase's shell."""
    calls = store._calls
    admin = calls.client().connection.getAdmin()
    builder = java_class(CLIENT + "TableDescriptorBuilder")
    changed = builder.newBuilder(admin.getDescriptor(calls.name(table)))
    change(changed)
    admin.modifyTable(changed.build())
    admin.close()


def test_tables_that_percola_made_are_taken_as_they_are(hbase: HBase) -> None:
    first = hbase.store()
    for store in (first, hbase.store(first.place.namespace)):
        store.create_tables(["t", "u"])
        store.create_tables(["t"])
        assert store.mutate([RowMutation("t", b"r", (), [lock(b"c", 5)])]) == [True]


def test_a_repository_whose_table_was_deleted_is_refused_and_does_not_go_on_with_an_empty_one(
    hbase: HBase,
) -> None:
    docs = Table("docs")
    first = hbase.store()
    Repository("first", first, EmbeddedOracle(first), MemoryCoordination(), [docs])
    admin = first._calls.client().connection.getAdmin()
    admin.disableTable(first._calls.name("docs"))
    second = hbase.store(first.place.namespace)
    with pytest.raises(StoreError, match=r"docs' is disabled\. Enable it: enable '.*:docs'"):
        Repository("second", second, EmbeddedOracle(second), MemoryCoordination())
    admin.deleteTable(first._calls.name("docs"))
    for tables in ([], [docs]):
        with pytest.raises(StoreError, match=r"has been deleted\..*no table 'docs'"):
            Repository("third", second, EmbeddedOracle(second), MemoryCoordination(), tables)
    assert not admin.tableExists(first._calls.name("docs"))
    admin.close()


def test_a_table_that_another_made_in_the_same_way_is_taken(hbase: HBase) -> None:
    store = hbase.store()
    make_table(store)
    store.create_tables(["t"])
    assert store.mutate([RowMutation("t", b"r", [ABSENT], [lock(b"c", 5)])]) == [True]


def test_many_that_make_the_same_tables_do_not_disturb_each_other(hbase: HBase) -> None:
    namespace = hbase.place().namespace
    stores = [hbase.store(namespace) for _ in range(4)]
    results = all_at_once([lambda s=s: s.create_tables(["t1", "t2"]) for s in stores])
    assert results == [None] * 4


@pytest.mark.parametrize(
    "lacking", ["d", *(pytest.param(one, marks=pytest.mark.long) for one in "lc")]
)
def test_a_table_without_one_of_the_families_is_refused(hbase: HBase, lacking: str) -> None:
    store = hbase.store()
    make_table(store, without=lacking)
    with pytest.raises(StoreError, match=f":t' has no column family '{lacking}'"):
        store.create_tables(["t"])


def test_a_table_without_the_coprocessor_is_refused_and_writes_nothing(hbase: HBase) -> None:
    store = hbase.store()
    make_table(store, endpoint=False)
    with pytest.raises(StoreError, match=r"alter '.*:t', METHOD => 'table_att'"):
        store.create_tables(["t"])
    # As where servers forbid it.
    with pytest.raises(StoreError, match=r"hbase\.coprocessor\.user\.enabled") as caught:
        store.mutate([RowMutation("t", b"r", [ABSENT], [lock(b"c", 5)])])
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert store.scan_kind(Kind.LOCK, "t") == ([], None)


def test_servers_that_forbid_coprocessors_are_refused_with_what_to_allow(hbase: HBase) -> None:
    before = hbase.store(tables=["t"])
    for table in (SHARED_TABLE, "t"):
        # As `hbase.coprocessor.user.enabled` in hbase-site.xml does for all tables.
        alter(before, table, lambda one: one.setValue("hbase.coprocessor.user.enabled", "false"))
    with pytest.raises(StoreError, match=r"allow it.*hbase\.coprocessor\.user\.enabled"):
        hbase.store(before.place.namespace).create_tables(["t"])
    with pytest.raises(StoreError, match=r"hbase\.coprocessor\.user\.enabled") as caught:
        before.mutate([RowMutation("t", b"r", [ABSENT], [lock(b"c", 5)])])
    assert not isinstance(caught.value, OutcomeUnknownError)


@pytest.mark.parametrize("table", [pytest.param(SHARED_TABLE, marks=pytest.mark.long), "t"])
def test_tables_written_without_coprocessors_are_refused(hbase: HBase, table: str) -> None:
    before = hbase.store(tables=["t"])
    family = java_class(CLIENT + "ColumnFamilyDescriptorBuilder").of("s")
    alter(before, table, lambda one: one.removeCoprocessor(ENDPOINT).setColumnFamily(family))
    with pytest.raises(StoreError, match="no longer supported: go on with the version"):
        hbase.store(before.place.namespace).create_tables(["t"])


def test_a_table_that_may_lose_what_was_committed_is_refused(hbase: HBase) -> None:
    store = hbase.store(tables=[])
    durability = java_class(CLIENT + "Durability").ASYNC_WAL
    make_table(store, setDurability=durability)
    with pytest.raises(StoreError, match="DURABILITY ASYNC_WAL"):
        store.create_tables(["t"])


@pytest.mark.parametrize(
    ("family", "setter", "value", "words"),
    [
        ("w", "setMaxVersions", 3, r"VERSIONS 3.*VERSIONS => '2147483647'"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (
                ("l", "setMaxVersions", 2, r"VERSIONS 2.*VERSIONS => '1'"),
                ("d", "setTimeToLive", 86_400, r"TTL 86400.*TTL => 'FOREVER'"),
                ("n", "setNewVersionBehavior", False, r"NEW_VERSION_BEHAVIOR False.*=> 'true'"),
            )
        ),
    ],
)
def test_a_family_that_drops_or_hides_entries_is_refused(
    hbase: HBase, family: str, setter: str, value: object, words: str
) -> None:
    store = hbase.store(tables=["t"])
    Admin(store).alter("t", family, **{setter: value})
    with pytest.raises(StoreError, match=f"'{family}'.*{words}"):
        hbase.store(store.place.namespace).create_tables(["t"])


@pytest.mark.long
def test_a_table_with_bloom_filters_by_column_is_refused(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    bloom = java_class("org.apache.hadoop.hbase.regionserver.BloomType").ROWCOL
    Admin(store).alter("t", "w", setBloomFilterType=bloom)
    words = r"ROWCOL.*alter '.*t', \{NAME => 'w', BLOOMFILTER => 'ROW'\}; and then: major_compact"
    with pytest.raises(StoreError, match=words):
        hbase.store(store.place.namespace).create_tables(["t"])


def test_the_files_of_a_table_have_an_index_of_rows_in_each_block(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    admin = Admin(store)
    encodings = {one: str(admin.family("t", one).getDataBlockEncoding()) for one in "dlwnfc"}
    assert encodings == dict.fromkeys("dlwnfc", "ROW_INDEX_V1")


@pytest.mark.long
def test_reads_of_many_columns_from_several_files_end_and_are_right(hbase: HBase) -> None:
    store = hbase.store(timeout_seconds=20, tables=["t"])
    admin = Admin(store)
    columns = [b"c%d" % i for i in range(12)]
    rows = [b"r%d" % i for i in range(4)]
    written_at: dict[bytes, list[int]] = {column: [0] for column in columns}
    for step in range(1, 7):
        ts = 10 * step
        some = columns[step % 3 :: 3]
        for column in some:
            written_at[column].append(ts)
        for row in rows:
            changes = [one for column in some for one in written(column, ts, b"%d" % ts)]
            store.mutate([RowMutation("t", row, (), [*changes, lock(some[0], ts + 1)])])
            store.mutate([RowMutation("t", row, (), [Delete(Kind.LOCK, some[0], ts + 1)])])
        admin.flush("t")
        for upto in range(5, ts + 10, 5):
            cells = [Cell("t", row, column) for row in rows for column in columns]
            for cell, (_, commit_ts, value) in zip(cells, store.read(cells, upto), strict=True):
                last = max(at for at in written_at[cell.column] if at <= upto)
                assert (commit_ts, value) == (last, b"%d" % last if last else None), cell


@pytest.mark.long
def test_a_table_that_is_deleted_under_our_hands_is_unknown(hbase: HBase) -> None:
    store = hbase.store(timeout_seconds=5, tables=["t"])
    assert store.mutate([RowMutation("t", b"r", [ABSENT], [lock(b"c", 5)])]) == [True]
    calls = store._calls
    admin = calls.client().connection.getAdmin()
    admin.disableTable(calls.name("t"))
    with pytest.raises(StoreError, match="t") as caught:
        store.mutate([RowMutation("t", b"q", [ABSENT], [lock(b"c", 5)])])
    assert not isinstance(caught.value, OutcomeUnknownError)
    admin.deleteTable(calls.name("t"))
    for use in (lambda: store.tablets("t"), lambda: store.read([CELL], 5)):
        with pytest.raises(UnknownTableError, match="'t'"):
            use()


def test_a_table_that_is_read_only_refuses_a_commit_with_what_to_change(hbase: HBase) -> None:
    docs = Table("docs")
    title = docs.column("title", str)
    store = hbase.store()
    repo = repository(store, [docs])
    alter(store, "docs", lambda table: table.setReadOnly(True))
    words = "READONLY => 'false'"
    for rows in ("a", "ab"):
        t = repo.transaction()
        for row in rows:
            t.set(title, row, "t")
        with pytest.raises(StoreError, match=words) as caught:
            t.commit()
        assert not isinstance(caught.value, OutcomeUnknownError)
    alter(store, "docs", lambda table: table.setReadOnly(False))
    assert store.scan_kind(Kind.LOCK, "docs") == ([], None)


def test_a_timestamp_that_does_not_fit_is_refused_with_nothing_written(hbase: HBase) -> None:
    store = hbase.store(tables=["t"])
    batch = [
        RowMutation("t", b"a", (), [lock(b"c", 5)]),
        RowMutation("t", b"b", (), [lock(b"c", 2**63 - 1)]),
    ]
    with pytest.raises(StoreError, match=str(2**63 - 2)):
        store.mutate(batch)
    assert store.scan_kind(Kind.LOCK, "t") == ([], None)


@pytest.mark.long
def test_a_quorum_where_nobody_listens_is_an_error_within_the_timeout(hbase: HBase) -> None:
    # The port of the region server speaks another language than ZooKeeper's.
    for quorum in ("127.0.0.1:9", f"127.0.0.1:{hbase.cluster.process('regionserver-1').port}"):
        store = HBaseStore(Place(quorum, "nowhere"), request_seconds=2, timeout_seconds=2)
        began = time.monotonic()
        with pytest.raises(StoreError, match=f"HBase at {quorum}.*does not answer.*ZooKeeper, "):
            store.create_tables(["t"])
        assert time.monotonic() - began < 2 * DEADLINE
        store.close()


class Watched:
    """The calls of a store, with what is asked of the master and of HBase's list of regions."""

    def __init__(self, store: HBaseStore) -> None:
        self._calls = store._calls
        self.answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)

    def client(self) -> Any:
        return SimpleNamespace(connection=SimpleNamespace(getAdmin=self._admin))

    def _admin(self) -> Any:
        admin, answers = self._calls.client().connection.getAdmin(), self.answers

        class Asked:
            def __getattr__(self, name: str) -> Any:
                def ask(*args: Any) -> Any:
                    answers[name] = getattr(admin, name)(*args)
                    return answers[name]

                return ask

        return Asked()


def test_opening_a_repository_asks_for_nothing_of_each_region(hbase: HBase) -> None:
    """A cluster may have a hundred thousand, and each task of Spark opens its repository."""
    watched: Any = Watched(hbase.store(tables=["t"]))
    check_version(watched)
    create_tables(watched, ["t"])
    assert watched.answers["getClusterMetrics"].getLiveServerMetrics().isEmpty()
    assert watched.answers["isTableEnabled"]
    assert not {"isTableAvailable", "getRegions"} & watched.answers.keys()

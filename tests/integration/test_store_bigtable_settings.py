"""A Bigtable whose settings would break the protocol is refused, with words on what to change."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from emulator import Emulator, StandIn
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.auth.transport.grpc import AuthMetadataPlugin
from google.cloud.bigtable_admin_v2 import types
from stores import DEADLINE, all_at_once

import percola.store.bigtable.store as stores_on_bigtable
from percola import Repository, Table
from percola.cells import Cell, Kind
from percola.coordination.memory import MemoryCoordination
from percola.errors import OutcomeUnknownError, StoreError, UnknownTableError
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import SYSTEM_TABLE, Condition, Put, RowMutation
from percola.store.bigtable.client import (
    DATA,
    INSTANCE_ADMIN,
    TABLE_ADMIN,
    MutateRowsRequest,
    MutateRowsResponse,
    Place,
    ReadRowsResponse,
)
from percola.store.bigtable.schema import NOTIFY_FAMILIES, ROW_FAMILIES
from percola.store.bigtable.store import BigtableStore
from percola.store.memory import MemoryStore
from percola.testing.conformance.fixtures import lock

CELL = Cell("t", b"r", b"c")


@pytest.fixture(autouse=True)
def nothing_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server may have been at the same address before."""
    monkeypatch.setattr(stores_on_bigtable, "_checked", set())


def make_table(
    emulator: Emulator, instance: str, families: dict[str, Any], name: str = "t"
) -> None:
    """Make a table as somebody else would have made it."""
    place = emulator.place(instance)
    table = types.Table(column_families=families)
    request = types.CreateTableRequest(parent=place.path, table_id=name, table=table)
    with grpc.insecure_channel(emulator.address) as channel:
        create = channel.unary_unary(
            TABLE_ADMIN + "CreateTable",
            request_serializer=types.CreateTableRequest.serialize,
            response_deserializer=types.Table.deserialize,
        )
        create(request, timeout=DEADLINE)


def family(**rule: Any) -> Any:
    return types.ColumnFamily(gc_rule=types.GcRule(**rule) if rule else None)


# --- Tables and families ----------------------------------------------------------------


def test_tables_that_percola_made_are_taken_as_they_are(emulator: Emulator) -> None:
    for _ in range(2):
        store = emulator.store("twice", tables=["t", "u"])
        store.create_tables(["t"])
        assert store.mutate([RowMutation("t", b"r", (), [lock(b"c", 5)])]) == [True]


@pytest.mark.parametrize("deleted", ["docs", "1-docs"])
def test_a_repository_whose_table_was_deleted_is_refused_and_does_not_go_on_with_an_empty_one(
    emulator: Emulator, deleted: str
) -> None:
    docs = Table("docs")
    first, second = (emulator.store(f"deleted-{deleted}") for _ in range(2))
    Repository("first", first, EmbeddedOracle(first), MemoryCoordination(), [docs])
    delete_table(emulator, f"deleted-{deleted}", deleted)
    for tables in ([], [docs]):
        with pytest.raises(StoreError, match=f"has been deleted.*'{deleted}'"):
            Repository("second", second, EmbeddedOracle(second), MemoryCoordination(), tables)


@pytest.mark.parametrize("deleted", ["store", "feeds"])
def test_a_table_of_percolas_own_that_was_deleted_is_not_made_anew(
    emulator: Emulator, deleted: str
) -> None:
    docs, more = Table("docs", feed=True), Table("more", feed=True)
    first, second = (emulator.store(f"own-{deleted}") for _ in range(2))
    oracle = EmbeddedOracle(MemoryStore())
    Repository("first", first, oracle, MemoryCoordination(), [docs])
    delete_table(emulator, f"own-{deleted}", f"0-percola-{deleted}")
    for _ in range(2):
        with pytest.raises(StoreError, match=f"has been deleted, '@percola-{deleted}', without"):
            Repository("second", second, oracle, MemoryCoordination(), [more])


def delete_table(emulator: Emulator, instance: str, table: str) -> None:
    """Delete a table as an administrator of Bigtable does."""
    with grpc.insecure_channel(emulator.address) as channel:
        delete = channel.unary_unary(
            TABLE_ADMIN + "DeleteTable",
            request_serializer=types.DeleteTableRequest.serialize,
            response_deserializer=lambda raw: raw,
        )
        path = f"{emulator.place(instance).path}/tables/{table}"
        delete(types.DeleteTableRequest(name=path), timeout=DEADLINE)


def test_many_that_make_the_same_tables_do_not_disturb_each_other(emulator: Emulator) -> None:
    stores = [emulator.store("together") for _ in range(8)]
    names = [f"t{i}" for i in range(4)]
    results = all_at_once([lambda s=s: s.create_tables(names) for s in stores])
    assert results == [None] * 8


def test_two_that_make_a_repository_at_once_find_no_table_deleted(emulator: Emulator) -> None:
    first, second = (emulator.store("at-once") for _ in range(2))
    find = first._find_table

    def find_just_before(name: str) -> None:
        try:
            find(name)
        finally:
            second.create_tables([SYSTEM_TABLE])

    first._find_table = find_just_before  # type: ignore[method-assign]
    first.create_tables([SYSTEM_TABLE])
    first.check_tables([SYSTEM_TABLE])


@pytest.mark.parametrize(("instance", "table"), [("profiles", "t"), ("i", "Family_profiles")])
def test_a_missing_table_is_unknown_whatever_the_instance_and_the_table_are_called(
    emulator: Emulator, instance: str, table: str
) -> None:
    store = emulator.store(instance)
    store.create_tables(["other"])
    with pytest.raises(UnknownTableError, match=table):
        store.check_tables([table])


EVERY = [("t", ROW_FAMILIES, one) for one in ROW_FAMILIES]
EVERY += [("1-t", NOTIFY_FAMILIES, one) for one in NOTIFY_FAMILIES]


@pytest.mark.parametrize(("name", "whole", "lacking"), EVERY)
def test_a_table_without_one_of_the_families_is_refused(
    emulator: Emulator, name: str, whole: Sequence[str], lacking: str
) -> None:
    instance = f"lacks-{lacking}"
    make_table(emulator, instance, {one: family() for one in whole if one != lacking}, name)
    with pytest.raises(
        StoreError, match=f"'{name}' has no column family '{lacking}'.*cbt .*createfamily"
    ):
        emulator.store(instance).create_tables(["t"])


@pytest.mark.parametrize(("name", "whole", "ruled"), EVERY)
@pytest.mark.parametrize("rule", [{"max_num_versions": 1}, {"max_age": {"seconds": 86_400}}])
def test_a_family_that_drops_versions_is_refused(
    emulator: Emulator, name: str, whole: Sequence[str], ruled: str, rule: dict[str, Any]
) -> None:
    instance = f"rule-{ruled}-{next(iter(rule)).replace('_', '-')}"
    families = {one: family() for one in whole} | {ruled: family(**rule)}
    make_table(emulator, instance, families, name)
    with pytest.raises(StoreError, match=f"'{ruled}'.*cbt .*setgcpolicy {name} {ruled} never"):
        emulator.store(instance).create_tables(["t"])


def test_a_table_that_is_deleted_under_our_hands_is_unknown(emulator: Emulator) -> None:
    store = emulator.store(tables=["t"])
    request = types.DeleteTableRequest(name=f"{store.place.path}/tables/t")
    with grpc.insecure_channel(emulator.address) as channel:
        delete = channel.unary_unary(
            TABLE_ADMIN + "DeleteTable", types.DeleteTableRequest.serialize, lambda data: data
        )
        delete(request, timeout=DEADLINE)
    absent = Condition(False, Kind.LOCK, b"c", 0, 9)
    for conditions in ([], [absent]):
        with pytest.raises(UnknownTableError, match="'t'"):
            store.mutate([RowMutation("t", b"r", conditions, [lock(b"c", 5)])])
    for use in (lambda: store.read([CELL], 5), lambda: store.tablets("t")):
        with pytest.raises(UnknownTableError, match="'t'"):
            use()


def test_a_timestamp_that_does_not_fit_is_refused_with_nothing_written(emulator: Emulator) -> None:
    store = emulator.store(tables=["t"])
    batch = [
        RowMutation("t", b"a", (), [lock(b"c", 5)]),
        RowMutation("t", b"b", (), [lock(b"c", 2**53 + 2**50)]),
    ]
    with pytest.raises(StoreError, match="9223372036854775"):
        store.mutate(batch)
    assert store.scan_kind(Kind.LOCK, "t") == ([], None)


# --- What only Google answers -----------------------------------------------------------


def asking(server: StandIn, **options: Any) -> BigtableStore:
    return BigtableStore(
        Place("p", "i", emulator=server.address, **options), timeout_seconds=1.0, request_seconds=2
    )


def profile(**routing: Any) -> Any:
    return types.AppProfile(**routing)


SINGLE = {"cluster_id": "c1", "allow_transactional_writes": True}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            profile(multi_cluster_routing_use_any=types.AppProfile.MultiClusterRoutingUseAny()),
            "routes to several clusters.*app-profiles update",
        ),
        (
            profile(single_cluster_routing={"cluster_id": "c1"}),
            "does not allow single-row transactions.*--transactional-writes",
        ),
    ],
)
def test_a_profile_that_does_not_route_to_one_cluster_with_transactions_is_refused(
    found: Any, words: str
) -> None:
    answers = {INSTANCE_ADMIN + "GetAppProfile": types.AppProfile.pb(found)}
    with StandIn(answers) as server:
        with pytest.raises(StoreError, match=words):
            asking(server).create_tables(["t"])
        assert server.asked == ["GetAppProfile"]


def test_a_profile_that_is_not_there_is_refused() -> None:
    with StandIn({}) as server, pytest.raises(StoreError, match="no application profile 'batch'"):
        asking(server, app_profile="batch").create_tables(["t"])


@pytest.mark.parametrize(
    "found",
    [
        types.AppProfile.pb(profile(single_cluster_routing=SINGLE)),
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
    ],
)
def test_a_right_profile_is_taken_and_one_that_cannot_be_looked_at_is_trusted(found: Any) -> None:
    with StandIn({INSTANCE_ADMIN + "GetAppProfile": found}) as server:
        with pytest.raises(StoreError, match="no Bigtable instance 'i' in the project 'p'"):
            asking(server).create_tables(["t"])
        assert server.asked == ["GetAppProfile", "ReadRows", "GetTable", "CreateTable"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "roles/bigtable.user"),
        (grpc.StatusCode.UNAUTHENTICATED, "gcloud auth application-default login"),
        (grpc.StatusCode.FAILED_PRECONDITION, "single cluster"),
    ],
)
def test_a_refusal_says_at_once_what_to_change_and_is_no_unknown_outcome(
    status: grpc.StatusCode, words: str
) -> None:
    methods = ("ReadRows", "MutateRows", "CheckAndMutateRow", "SampleRowKeys")
    answers = {DATA + name: status for name in methods} | {TABLE_ADMIN + "GetTable": status}
    with StandIn(answers) as server:
        store = asking(server)
        began = time.monotonic()
        with pytest.raises(StoreError, match=words):
            store.read([CELL], 5)
        with pytest.raises(StoreError, match=words):
            store.create_tables(["t"])
        store._known.add("t")
        absent = Condition(False, Kind.LOCK, b"c", 0, 9)
        for conditions in ([], [absent]):
            with pytest.raises(StoreError, match=words) as caught:
                store.mutate([RowMutation("t", b"r", conditions, [Put(Kind.DATA, b"c", 5, b"v")])])
            assert not isinstance(caught.value, OutcomeUnknownError)
        assert time.monotonic() - began < DEADLINE


class NoToken(Credentials):  # type: ignore[misc]
    """A login for which Google gives no token, but this error."""

    def __init__(self, error: GoogleAuthError) -> None:
        super().__init__()
        self.error = error
        self.asked = 0

    def refresh(self, request: object) -> None:
        self.asked += 1
        raise self.error


@contextmanager
def logged_in(login: NoToken) -> Iterator[BigtableStore]:
    """A store whose calls show a token of this login, in front of a server that answers nothing."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
    server.start()
    shows = grpc.metadata_call_credentials(AuthMetadataPlugin(login, None))
    credentials = grpc.composite_channel_credentials(grpc.local_channel_credentials(), shows)
    store = BigtableStore(Place("p", "i"), request_seconds=1, timeout_seconds=1)
    channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials)
    store._calls._channels = {"data": channel, "admin": channel}
    store._known.add("t")
    try:
        yield store
    finally:
        store.close()
        server.stop(None).wait(DEADLINE)


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (RefreshError("invalid_grant: Token has been expired or revoked.", {"error": "x"}), True),
        (RefreshError("Reauthentication is needed. Please run `gcloud auth …`."), True),
        (TransportError("Failed to retrieve http://metadata.google.internal."), False),
    ],
)
def test_a_login_that_has_expired_is_said_at_once_and_one_without_an_answer_is_tried_again(
    error: GoogleAuthError, stays: bool
) -> None:
    words = re.escape(f"cannot log in to the Bigtable instance p/i ({str(error.args[0])[:-1]}). ")
    login = NoToken(error)
    put = RowMutation("t", b"r", [Condition(False, Kind.LOCK, b"c", 0, 9)], [lock(b"c", 5)])
    with logged_in(login) as store:
        for act in (lambda: store.read([CELL], 5), lambda: store.create_tables(["u"])):
            login.asked = 0
            with pytest.raises(StoreError, match=words + ".*application-default login"):
                act()
            assert (login.asked == 1) is stays
        # Nothing was sent, and nothing will be: the transaction is told so.
        with pytest.raises(StoreError, match=words if stays else "may or may not") as caught:
            store.mutate([put])
        assert isinstance(caught.value, OutcomeUnknownError) is not stays


def test_of_a_row_that_is_too_long_nobody_is_told_to_change_the_profile_or_drop_versions() -> None:
    said = (
        f"Error while reading table 't' : Read returned 347MiB from row '{'r' * 400}' which "
        "exceeds the limit of 256MiB. Make sure you are setting an appropriate filter. You can "
        "also create a garbage collection policy."
    )
    with StandIn({DATA + "ReadRows": (grpc.StatusCode.FAILED_PRECONDITION, said)}) as server:
        store = asking(server)
        store._known.add("t")
        with pytest.raises(StoreError, match=r"347MiB.*percola gc.*Do not .* policy") as caught:
            store.read([CELL], 5)
        assert "profile" not in str(caught.value)


def test_what_a_quota_forbids_is_said_of_the_quota_and_not_of_a_server_that_is_silent() -> None:
    said = "Quota exceeded for quota metric 'Table Admin requests'"
    full = (grpc.StatusCode.RESOURCE_EXHAUSTED, said)
    with StandIn({DATA + "ReadRows": full, TABLE_ADMIN + "GetTable": full}) as server:
        store = asking(server)
        store._known.add("t")
        for act in (lambda: store.read([CELL], 5), lambda: store.create_tables(["u"])):
            with pytest.raises(StoreError, match=r"no more at the moment.*'Table Admin") as caught:
                act()
            assert "quota raised" in str(caught.value)
            assert "does not answer" not in str(caught.value)


def test_a_process_looks_at_the_settings_of_a_table_once_however_often_it_opens_it(
    emulator: Emulator,
) -> None:
    """As tasks of Spark do. Google lets a project look ten times a second in all."""
    looks = []
    for _ in range(3):
        store = emulator.store("looks")
        store.create_tables([SYSTEM_TABLE])
        store.create_tables(["t", "u"])
        store.check_tables(["t", "u"])
        made = store.statistics()
        looks.append(made.get("GetTable", 0) + made.get("GetAppProfile", 0))
        store.close()
    assert looks[0] > 6
    assert looks[1:] == [0, 0]


def test_a_table_is_trusted_if_it_exists_and_a_quota_forbids_to_look_at_its_settings() -> None:
    full = grpc.StatusCode.RESOURCE_EXHAUSTED
    asked = (TABLE_ADMIN + "GetTable", INSTANCE_ADMIN + "GetAppProfile")
    answers = {**dict.fromkeys(asked, full), DATA + "ReadRows": ReadRowsResponse()}
    with StandIn(answers) as server:
        store = asking(server)
        store.check_tables(["t"])
        # It, that of its notify entries, and the row that all processes share.
        assert [server.asked.count(one) for one in ("GetAppProfile", "GetTable")] == [1, 3]


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
def test_what_is_not_known_to_be_refused_is_an_unknown_outcome(status: grpc.StatusCode) -> None:
    with StandIn({DATA + "CheckAndMutateRow": status}) as server:
        store = asking(server)
        store._known.add("t")
        absent = Condition(False, Kind.LOCK, b"c", 0, 9)
        with pytest.raises(OutcomeUnknownError, match=status.name):
            store.mutate([RowMutation("t", b"r", [absent], [lock(b"c", 5)])])
        assert server.asked == ["CheckAndMutateRow"]


def statuses(*codes: int) -> Any:
    """The answer to a request for rows without conditions, of which each got one of these."""
    answer = MutateRowsResponse()
    for index, code in enumerate(codes):
        answer.entries.add(index=index).status.code = code
    return answer


@pytest.mark.parametrize(
    ("codes", "unknown"), [([0, 7], False), ([0, 14], True), ([7, 14], True), ([0], True)]
)
def test_each_row_of_a_request_has_an_answer_of_its_own(codes: list[int], unknown: bool) -> None:
    # What is unavailable is sent again, alone, and is so again.
    answers = itertools.chain([statuses(*codes)], itertools.repeat(statuses(14)))
    with StandIn({DATA + "MutateRows": answers}) as server:
        store = asking(server)
        store._known.add("t")
        batch = [RowMutation("t", row, (), [lock(b"c", 5)]) for row in (b"a", b"b")]
        with pytest.raises(StoreError) as caught:
            store.mutate(batch)
        assert isinstance(caught.value, OutcomeUnknownError) is unknown


@pytest.mark.parametrize("code", [8, 10, 14])
def test_rows_without_conditions_that_are_unavailable_are_sent_again_and_no_others(
    code: int,
) -> None:
    """As while their tablet moves: Google's clients do so, and a copy of a million rows has to."""
    answers = iter([statuses(0, code, code), statuses(code, 0), statuses(0)])
    with StandIn({DATA + "MutateRows": answers}) as server:
        store = asking(server)
        store._known.add("t")
        batch = [RowMutation("t", row, (), [lock(b"c", 5)]) for row in (b"a", b"b", b"c")]
        assert store.mutate(batch) == [True] * 3
        asked = [MutateRowsRequest.FromString(one).entries for one in server.requests]
    assert [[entry.row_key for entry in one] for one in asked] == [
        [b"a", b"b", b"c"],
        [b"b", b"c"],
        [b"b"],
    ]


def test_an_endpoint_where_nobody_listens_is_an_error_within_the_timeout() -> None:
    with StandIn({}) as server:
        address = server.address
    store = BigtableStore(Place("p", "i", emulator=address), request_seconds=1, timeout_seconds=1)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"the Bigtable instance p/i.*does not answer"):
        store.create_tables(["t"])
    assert time.monotonic() - began < DEADLINE

"""HBase's store without a server: addresses, what is sent, what comes back, what failures mean."""

from __future__ import annotations

import os
import pwd
import struct
import zipfile
from pathlib import Path
from typing import Final

import pytest
from commands import Answer, python
from hbase import require_jars
from hypothesis import given
from hypothesis import strategies as st

from percola.cells import MAX_TS, Kind
from percola.errors import (
    DamagedRecordError,
    RepositoryClosedError,
    StoreError,
    UsageError,
    ValueTooLargeError,
)
from percola.store.base import Condition, Delete, Put, RowMutation
from percola.store.hbase.client import Calls, Place, _unusable
from percola.store.hbase.errors import Failure, Meaning
from percola.store.hbase.jvm import CONF, JARS, client_jars, jvm_options, settings_folder
from percola.store.hbase.mutations import plan
from percola.store.hbase.reads import HBaseReading
from percola.store.hbase.shared_row import Shared
from percola.store.hbase.store import HBaseStore, open_hbase, place_of
from percola.store.hbase.wire import (
    MAX_STORED_TS,
    Ask,
    Change,
    Entry,
    conditions,
    get,
    get_asked,
    lock_check,
    lock_of,
    mutations,
    rows_of,
    stored_lock,
    varint,
)
from percola.testing.conformance.fixtures import lock, written

# --- Addresses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("hbase://a/ns", Place("a:2181", "ns")),
        (
            "hbase://a:2182,b.example,10.0.0.3:2183/my_ns/",
            Place("a:2182,b.example:2181,10.0.0.3:2183", "my_ns"),
        ),
        ("hbase://zk-1/p?oracle=h:7070&zookeeper=z:2181", Place("zk-1:2181", "p")),
    ],
)
def test_an_address_names_the_quorum_and_a_namespace(address: str, place: Place) -> None:
    assert place_of(address) == place
    assert open_hbase(address).place == place


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hbase://a", "not the address"),
        ("hbase:///ns", "'' in"),
        ("hbase://a,/ns", "'' in"),
        ("hbase://a:0/ns", "'a:0' in"),
        ("hbase://a:99999/ns", "'a:99999' in"),
        ("hbase://a b/ns", "'a b' in"),
        ("hbase://a/", "'' in .* namespace"),
        ("hbase://a/n-s", "'n-s' in"),
        ("hbase://a/hbase", "its own"),
        ("hbase://a/ns?x=1", "unknown option 'x'"),
        ("hbase://a/ns?zzz", "unknown option 'zzz'"),
        ("hbase://a/ns?coprocessors=forbidden", "no longer supported: leave it out"),
        ("hbase://a/ns#f", "not the address"),
    ],
)
def test_a_malformed_address_is_refused_in_words(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_hbase(address)


def test_a_deadline_that_would_let_calls_arrive_too_late_is_refused() -> None:
    for seconds in (0, -1, 61):
        with pytest.raises(UsageError, match=r"0 to 60 s"):
            HBaseStore(Place("a:2181", "n"), request_seconds=seconds)


def test_more_columns_of_a_row_than_a_server_can_check_at_once_are_refused() -> None:
    store = HBaseStore(Place("a:2181", "n"))

    def locking(row: bytes, columns: int) -> list[RowMutation]:
        puts = [Put(Kind.LOCK, b"c%d" % number, 5, b"") for number in range(columns)]
        return [RowMutation("t", row, (), puts)]

    store.check_sizes(locking(b"r", 20_000))
    with pytest.raises(ValueTooLargeError, match=r"20001 columns in the row b'r' of the table 't'"):
        store.check_sizes(locking(b"r", 20_001))
    # Each condition names the row.
    with pytest.raises(ValueTooLargeError, match=r"2000 changes with 120000000 bytes in the row"):
        store.check_sizes(locking(b"r" * 30_000, 2_000))
    store.close()


def test_percolas_own_tables_have_names_that_hbase_allows_and_users_do_not_take() -> None:
    place = Place("a:2181", "ns")
    assert place.table("@percola") == "ns:0-percola"
    assert place.table("docs") == "ns:docs"


def test_opening_starts_no_java_and_a_closed_store_says_so(tmp_path: Path) -> None:
    program = (
        "import jpype\n"
        "from percola.store.hbase.store import open_hbase\n"
        "store = open_hbase('hbase://a/ns')\n"
        "store.close()\n"
        "assert not jpype.isJVMStarted()"
    )
    assert python(program) == Answer(0, "", "")
    store = open_hbase("hbase://a/ns")
    store.close()
    with pytest.raises(RepositoryClosedError):
        store.mutate([])


def test_where_no_zookeeper_answers_the_error_says_that_the_address_is_that_of_one() -> None:
    store = open_hbase("hbase://wrong:2181/ns")
    lost = Failure(("java.io.IOException",), "x: KeeperErrorCode = ConnectionLoss for /hbase")
    said = str(store._calls.silence(lost, "looking for the table 't'"))
    assert "HBase at wrong:2181 does not answer" in said
    assert "The address is that of HBase's ZooKeeper, and none answers there: check it" in said


def test_where_no_master_is_listed_the_error_says_which_setting_may_differ() -> None:
    lost = Failure(("java.io.IOException",), "KeeperErrorCode = NoNode for /hbase/master")
    said = str(open_hbase("hbase://a:2181/ns")._calls.silence(lost, "asking for the version"))
    assert "No master is listed in that ZooKeeper" in said
    assert "zookeeper.znode.parent" in said and CONF in said


def test_what_a_quota_forbids_is_said_of_the_quota_and_not_of_a_server_that_is_silent() -> None:
    calls = open_hbase("hbase://a:2181/ns")._calls

    def of(name: str) -> Failure:
        return Failure((f"org.apache.hadoop.hbase.quotas.{name}", "java.io.IOException"), "no more")

    for name in ("QuotaExceededException", "SpaceLimitingException"):
        assert of(name).meaning is Meaning.REFUSED, "another try would be in vain"
        said = str(calls.refusal(of(name), "creating the table 't'"))
        assert "refused creating the table 't'" in said and "'describe_namespace'" in said
    assert of("RpcThrottlingException").meaning is Meaning.NOT_DONE
    said = str(calls.silence(of("RpcThrottlingException"), "reading the table 't'"))
    assert "does not answer" not in said
    assert "permits no more at the moment: reading the table 't' was tried for 30 s" in said
    assert "'list_quotas'" in said


# --- Jars -------------------------------------------------------------------------------


def test_without_jars_an_error_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(JARS, raising=False)
    with pytest.raises(StoreError, match=r"'percola hbase-jars client'"):
        client_jars()
    # As in a container, under a number of its own.
    with monkeypatch.context() as patch:
        patch.delenv("HOME")
        patch.setattr(os, "getuid", lambda: 2**31 - 3)
        with pytest.raises(StoreError, match=f"this user has none: have {JARS} name a folder"):
            client_jars()
    monkeypatch.setenv(JARS, str(tmp_path))
    # The command fetches nothing to a folder that the environment names.
    told = f"not in {tmp_path}, which {JARS} names: .*or unset it and run 'percola hbase-jars"
    with pytest.raises(StoreError, match=told):
        client_jars()
    jar = tmp_path / "hbase-shaded-client-2.6.4.jar"
    jar.touch()
    (tmp_path / "other.jar").touch()
    assert client_jars() == [jar, tmp_path / "other.jar"]


def test_a_folder_of_settings_is_the_clients_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONF, raising=False)
    assert settings_folder() == []
    monkeypatch.setenv(CONF, str(tmp_path))
    with pytest.raises(UsageError, match=f"names {tmp_path}, where there is neither"):
        settings_folder()
    (tmp_path / "hbase-site.xml").write_text("<configuration/>")
    assert settings_folder() == [str(tmp_path)]


def test_the_folder_of_settings_holds_unless_the_address_says_otherwise(tmp_path: Path) -> None:
    require_jars()
    said = {
        "hbase.security.authentication": "kerberos",
        "hbase.zookeeper.quorum": "elsewhere",
        # With either of these, HBase's client asks no server of the quorum.
        "hbase.client.zookeeper.quorum": "elsewhere",
        "hbase.client.registry.impl": "org.apache.hadoop.hbase.client.RpcConnectionRegistry",
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in said.items()
    )
    (tmp_path / "hbase-site.xml").write_text(f"<configuration>{properties}</configuration>")
    program = (
        "from percola.store.hbase.jvm import start\n"
        "from percola.store.hbase.client import _settings, Place\n"
        "start()\n"
        "found = _settings(Place('here:2181', 'ns'), 1.0, 2.0)\n"
        f"print(*(found.get(name) for name in {list(said)!r}))"
    )
    answer = python(program, **{CONF: str(tmp_path)})
    registry = "org.apache.hadoop.hbase.client.ZKConnectionRegistry"
    assert (answer.code, answer.out) == (0, f"kerberos here:2181 None {registry}\n"), answer.err


def test_stacks_that_hbases_client_prints_go_nowhere() -> None:
    require_jars()
    program = (
        "from percola.store.hbase.jvm import java_class, start\n"
        "start()\n"
        "java_class('java.io.IOException')('raised as well').printStackTrace()"
    )
    answer = python(program)
    assert (answer.code, answer.err) == (0, "")


# --- What is sent -----------------------------------------------------------------------


def fields(data: bytes) -> list[tuple[int, bytes | int]]:
    """The fields of a message: (number, bytes or number)."""
    found: list[tuple[int, bytes | int]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            found.append((tag >> 3, number()))
        else:
            size = number()
            found.append((tag >> 3, data[at : at + size]))
            at += size
    return found


@given(st.integers(0, 2**63 - 1))
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    assert fields(b"\x08" + varint(number)) == [(1, number)]


@given(
    st.binary(min_size=1, max_size=300), st.binary(max_size=20_000), st.integers(0, MAX_STORED_TS)
)
def test_puts_and_deletes_are_two_messages_for_the_row(row: bytes, value: bytes, ts: int) -> None:
    changes = [
        Change(b"w", b"c", ts, value),
        Change(b"d", b"c", 5, None),
        Change(b"w", b"e", 7, b"v"),
    ]
    puts, deletes = (fields(one) for number, one in fields(mutations(row, changes)))  # type: ignore[arg-type]
    assert puts[:2] == [(1, row), (2, 2)]
    assert deletes[:2] == [(1, row), (2, 3)]
    [(_, columns)] = puts[2:]
    assert isinstance(columns, bytes)
    entries = [fields(one) for number, one in fields(columns)[1:] if isinstance(one, bytes)]
    assert entries == [[(1, b"c"), (2, value), (3, ts)], [(1, b"e"), (2, b"v"), (3, 7)]]


def test_a_request_asks_for_families_columns_and_times() -> None:
    asked = [Ask(b"l", [b"a", b"b"]), Ask(b"w", None, 0, 9), Ask(b"d", [b"a"], 3, MAX_TS)]
    found = fields(get(b"row", asked, 2))
    assert [number for number, _ in found] == [1, 2, 2, 2, 6, 13, 13]
    ranges = [fields(one)[1] for number, one in found if number == 13 and isinstance(one, bytes)]
    assert [fields(one) for _, one in ranges if isinstance(one, bytes)] == [
        [(1, 0), (2, 10)],
        [(1, 3), (2, 2**63 - 1)],
    ]


def test_a_few_columns_are_asked_for_by_a_filter_and_named_in_no_family() -> None:
    one, few, many = ([b"c"], [b"c", b"d"], [bytes([at]) for at in range(100, 109)])
    for columns in (one, few, many[:8]):
        asked = [Ask(b"l", columns), Ask(b"w", columns, 0, 9)]
        found = fields(get(b"row", asked, 1))
        families = [fields(raw) for number, raw in found if number == 2 and isinstance(raw, bytes)]
        assert families == [[(1, ask.family)] for ask in asked], "HBase would read all versions"
        [(_, body)] = [fields(raw) for n, raw in found if n == 4 and isinstance(raw, bytes)]
        assert isinstance(body[1], bytes)
        each = [body[1]] if len(columns) == 1 else _any_of(body[1])
        assert [fields(bounds) for bounds in each] == [
            [(1, column), (2, 1), (3, column), (4, 1)] for column in columns
        ]
    for asked, versions in (
        ([Ask(b"w", few)], 2),  # Older versions are wanted.
        ([Ask(b"w", many)], 1),
        ([Ask(b"w", one), Ask(b"d", few)], 1),
        ([Ask(b"w", one), Ask(b"d", None)], 1),
    ):
        assert 4 not in [number for number, _ in fields(get(b"row", asked, versions))]


def test_a_part_of_a_family_is_asked_for_by_a_filter() -> None:
    calls = Calls(Place("a:2181", "ns"), request_seconds=1, timeout_seconds=1)
    reading = HBaseReading(calls, Shared(calls))

    def filters(*columns: tuple[bytes, bool]) -> list[bytes]:
        fields_of = fields(get_asked(b"row", reading.snapshot(columns, 9).fields))
        return [raw for number, raw in fields_of if number == 4 and isinstance(raw, bytes)]

    [alone] = filters((b"f:a", True))
    (_, name), (_, bounds) = fields(alone)
    assert isinstance(name, bytes) and name.endswith(b".ColumnRangeFilter")
    assert isinstance(bounds, bytes)
    assert fields(bounds) == [(1, b"f:a"), (2, 1), (3, b"f:b")], "the end is excluded"
    [several] = filters((b"f:", True), (b"c", False), (b"\xff", True))
    body = fields(several)[1][1]
    assert isinstance(body, bytes)
    assert [fields(one) for one in _any_of(body)] == [
        [(1, b"c"), (2, 1), (3, b"c"), (4, 1)],
        [(1, b"f:"), (2, 1), (3, b"f;")],
        [(1, b"\xff"), (2, 1)],
    ]
    assert not filters(*((b"%d:" % number, True) for number in range(9))), "they are too many"


def _any_of(filters: bytes) -> list[bytes]:
    """The bounds of each filter of a list, of which one has to let an entry pass."""
    operator, *each = fields(filters)
    assert operator == (1, 2)
    bounds = [fields(one)[1][1] for _, one in each if isinstance(one, bytes)]
    return [one for one in bounds if isinstance(one, bytes)]


# --- Locks ------------------------------------------------------------------------------


@given(st.integers(0, MAX_STORED_TS), st.binary(max_size=50))
def test_a_lock_stands_in_its_place_with_its_timestamp(ts: int, record: bytes) -> None:
    assert lock_of(stored_lock(ts, record)) == (ts, record)


def test_an_empty_place_is_no_lock_and_half_a_lock_is_damage() -> None:
    assert lock_of(b"") is None
    with pytest.raises(DamagedRecordError, match="where a lock should"):
        lock_of(b"half")


ANY = Condition(False, Kind.LOCK, b"c", 0, MAX_TS)
HELD = Condition(True, Kind.LOCK, b"c", 5, 5)


@pytest.mark.parametrize(
    ("given_conditions", "changes", "looks"),
    [
        ([ANY], [lock(b"c", 5)], False),
        ([HELD], [*written(b"c", 7, b"v", 5), Delete(Kind.LOCK, b"c", 5)], False),
        ([HELD], [lock(b"c", 5)], False),
        ([], [lock(b"c", 5)], False),
        ([], [Put(Kind.NOTIFY, b"c", 5, b""), Delete(Kind.NOTIFY, b"d", 5)], False),
        ([], [], False),
        # What the lock was is not known, or cannot be asked for, or there is nothing to change.
        ([], [Delete(Kind.LOCK, b"c", 5)], True),
        ([HELD], [Delete(Kind.LOCK, b"d", 5)], True),
        ([HELD._replace(present=False)], [lock(b"d", 5)], True),
        ([ANY._replace(present=True)], [lock(b"d", 5)], True),
        ([HELD], [], True),
        ([ANY], [Delete(Kind.LOCK, b"c", 5)], True),
    ],
)
def test_a_row_is_looked_at_first_only_where_the_conditions_do_not_say_enough(
    given_conditions: list[Condition], changes: list[Put | Delete], looks: bool
) -> None:
    made = plan(RowMutation("t", b"r", given_conditions, changes), False)
    assert made.looks is looks
    assert not (looks and made.request)


def test_a_released_lock_leaves_an_empty_place_and_no_marker() -> None:
    mutation = RowMutation("t", b"r", [HELD], [Delete(Kind.LOCK, b"c", 5)])
    empty = mutations(b"r", [Change(b"l", b"c", 1, b"")])
    expected = conditions(b"r", [lock_check(b"c", 5)]) + empty
    assert plan(mutation, False).request == expected


@pytest.mark.parametrize(
    ("changes", "durable", "logged"),
    [
        ([lock(b"c", 5), lock(b"e", 5)], False, False),
        ([lock(b"c", 5), lock(b"e", 5)], True, True),
        # Families are lost one by one.
        ([lock(b"c", 5), Put(Kind.DATA, b"c", 5, b"long")], False, True),
    ],
)
def test_only_locks_are_kept_out_of_the_log(
    changes: list[Put | Delete], durable: bool, logged: bool
) -> None:
    made = plan(RowMutation("t", b"r", [ANY], changes, durable), False)
    [sent] = [one for number, one in fields(made.request) if number == 1]
    assert isinstance(sent, bytes)
    # `MutationProto.durability`, of which 1 is SKIP_WAL.
    assert [value for number, value in fields(sent) if number == 6] == [1] * (not logged)


def test_a_feed_lists_puts_and_deletes_of_users_columns() -> None:
    changes = [*written(b"c", 5, b"v"), *written(b"@ack:o:c", 5, b"1")]
    plain = plan(RowMutation("t", b"r", (), changes), False).request
    listed = plan(RowMutation("t", b"r", (), changes), True).request
    entry = mutations(b"r", [Change(b"c", b"c", 5, b"\1")])
    [(_, columns)] = fields(fields(entry)[0][1])[2:]  # type: ignore[arg-type]
    assert isinstance(columns, bytes)
    assert columns in listed and columns not in plain


@pytest.mark.parametrize("ts", [-1, MAX_STORED_TS + 1])
def test_a_timestamp_that_does_not_fit_is_refused(ts: int) -> None:
    with pytest.raises(StoreError, match="does not fit"):
        plan(RowMutation("t", b"r", (), [lock(b"c", ts)]), False)


def block(row: bytes, entry: Entry) -> bytes:
    """A cell as HBase writes it in a block."""
    family, column, ts, value = entry
    key = struct.pack(">h", len(row)) + row + bytes([len(family)]) + family + column
    key += struct.pack(">qB", ts, 4)
    cell = struct.pack(">ii", len(key), len(value)) + key + value
    return struct.pack(">i", len(cell)) + cell


ENTRIES = st.tuples(
    st.sampled_from((b"d", b"w")), st.binary(max_size=5), st.integers(0, 99), st.binary()
)


@given(st.dictionaries(st.binary(min_size=1, max_size=4), st.lists(ENTRIES, min_size=1)))
def test_rows_are_told_apart_in_a_block_of_cells(rows: dict[bytes, list[Entry]]) -> None:
    data = b"".join(block(row, entry) for row, entries in rows.items() for entry in entries)
    assert list(rows_of(data)) == list(rows.items())


# --- Failures ---------------------------------------------------------------------------

_HBASE = "org.apache.hadoop.hbase."


@pytest.mark.parametrize(
    ("names", "text", "meaning"),
    [
        (("RegionMoved", _HBASE + "NotServingRegionException"), "", Meaning.NOT_DONE),
        (("java.net.ConnectException",), "refused", Meaning.NOT_DONE),
        ((_HBASE + "MultiActionResultTooLarge",), "Max size exceeded", Meaning.NOT_DONE),
        ((_HBASE + "DoNotRetryIOException",), "Requested row out of range 'x'", Meaning.NOT_DONE),
        ((_HBASE + "ipc.CallTimeoutException",), "", Meaning.UNKNOWN),
        ((_HBASE + "DoNotRetryIOException",), "who knows", Meaning.UNKNOWN),
        ((_HBASE + "DoNotRetryIOException",), "x.Exception: region is read only", Meaning.REFUSED),
        (("java.io.IOException",), "Connection reset", Meaning.UNKNOWN),
        ((_HBASE + "TableNotFoundException",), "t", Meaning.REFUSED),
        ((_HBASE + "security.AccessDeniedException",), "", Meaning.REFUSED),
    ],
)  # fmt: skip
def test_only_what_certainly_had_no_effect_is_sent_again(
    names: tuple[str, ...], text: str, meaning: Meaning
) -> None:
    assert Failure(names, text).meaning is meaning


def test_an_answer_that_does_not_fit_into_javas_heap_is_told_by_its_name_or_its_text() -> None:
    for names, text in (
        (("java.lang.OutOfMemoryError", "java.lang.VirtualMachineError"), "Java heap space"),
        (("java.lang.RuntimeException",), "java.lang.OutOfMemoryError: Java heap space"),
    ):
        failure = Failure(names, text)
        assert failure.is_out_of_memory and failure.meaning is Meaning.UNKNOWN
        calls = Calls(Place("a:2181", "ns"), request_seconds=1, timeout_seconds=1)
        assert "PERCOLA_HBASE_JVM_OPTIONS, to -Xmx2g" in str(calls.silence(failure, "reading"))
    assert not Failure(("java.io.IOException",), "Connection reset").is_out_of_memory


def test_java_that_does_not_start_is_an_error_that_names_the_options(tmp_path: Path) -> None:
    program = (
        "from percola.errors import PercolaError\n"
        "from percola.store.hbase import jvm\n"
        "try:\n"
        "    jvm.start()\n"
        "except PercolaError as error:\n"
        "    print(error)\n"
    )
    (tmp_path / "hbase-shaded-client-2.jar").touch()
    answer = python(program, **{JARS: str(tmp_path), "PERCOLA_HBASE_JVM_OPTIONS": "-Xnonsense"})
    assert answer.code == 0 and "-Xnonsense" in answer.out


OPENING: Final = (
    "from percola.errors import StoreError\n"
    "from percola.store.hbase.store import open_hbase\n"
    "try:\n"
    "    open_hbase('hbase://127.0.0.1:9/ns').create_tables([])\n"
    "except StoreError as error:\n"
    "    print(error)\n"
)
"""Opens a store where nobody listens, which is tried for 30 seconds."""


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("a file that is cut off", 'hbase-site.xml"]). Its jars'),
        ("a jar that is none", "Class org.apache.hadoop.hbase.TableName is not found"),
        ("no logger", "(ClassNotFoundException: org.slf4j.LoggerFactory)"),
    ],
)
def test_a_client_that_cannot_start_is_no_server_that_does_not_answer(
    tmp_path: Path, broken: str, said: str
) -> None:
    jars = require_jars()["client"]
    names = [one.name for one in jars.glob("*.jar")]
    settings = tmp_path / "settings"
    settings.mkdir()
    settings.joinpath("hbase-site.xml").write_text("<configuration/>")
    if broken == "no logger":
        names = [one for one in names if not one.startswith("slf4j")]
    elif broken == "a jar that is none":
        names = []
        tmp_path.joinpath("hbase-shaded-client-2.jar").touch()
    else:
        settings.joinpath("hbase-site.xml").write_text("<configuration><property>")
    for name in names:
        tmp_path.joinpath(name).symlink_to(jars / name)
    answer = python(OPENING, **{JARS: str(tmp_path), CONF: str(settings)})
    assert answer.out.startswith("HBase's client does not start in this process ("), answer.err
    assert said in answer.out and JARS in answer.out and CONF in answer.out


def test_java_that_runs_as_a_user_without_a_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    said = str(_unusable("LoginException: invalid null input: name"))
    assert f"the user {os.geteuid()}," in said and "/etc/passwd" in said and JARS not in said


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("", ["-XX:+UseSerialGC", "-Xmn160m"]),
        ("-Dsome=thing", ["-XX:+UseSerialGC", "-Xmn160m", "-Dsome=thing"]),
        # Two collectors are an error of Java's, and more for the new than there is a warning.
        ("-XX:+UseG1GC", ["-Xmn160m", "-XX:+UseG1GC"]),
        ("-Xmx128m", ["-XX:+UseSerialGC", "-Xmx128m"]),
        ("-XX:NewRatio=1", ["-XX:+UseSerialGC", "-XX:NewRatio=1"]),
    ],
)
def test_what_is_set_of_java_goes_before_what_it_gets_otherwise(own: str, found: list[str]) -> None:
    options = jvm_options(own.split())
    assert options[0] == "-Xmx512m"
    assert options[-len(found) :] == found
    collectors = [one for one in options if one.endswith("GC")]
    assert len(collectors) == 1


def test_names_are_resolved_though_the_client_lacks_a_resolver_it_declares(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "hbase-shaded-client-2.jar", "w") as jar:
        jar.writestr("META-INF/services/java.net.spi.InetAddressResolverProvider", "no.such.One\n")
    program = (
        "import jpype\n"
        "from percola.store.hbase import jvm\n"
        "add, of = jpype.addClassPath, jvm.java_class\n"
        "jpype.addClassPath = lambda one: (print('a jar is added'), add(one))\n"
        "jvm.java_class = lambda name: (print(name), of(name))[1]\n"
        "jvm.start()\n"
        "named = 'META-INF/services/java.net.spi.InetAddressResolverProvider'\n"
        "loader = of('java.lang.Thread').currentThread().getContextClassLoader()\n"
        "print(loader.getResource(named) is not None)\n"
        "print(of('java.net.InetAddress').getByName('localhost'))"
    )
    answer = python(program, **{JARS: str(tmp_path)})
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[-2:] == ["True", "localhost/127.0.0.1"]
    # Java before 18 looks for no resolvers: the order is looked at as well.
    assert lines.index("java.net.InetAddress") < lines.index("a jar is added")


@pytest.mark.parametrize(
    "work",
    [
        "import numpy; square = numpy.eye(400); numpy.linalg.solve(square, square)",
        # A quarter of the stack of a main thread, in frames of C.
        (
            "import ctypes; libc = ctypes.CDLL(None)\n"
            "compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)\n"
            "sizes = ctypes.c_size_t(2), ctypes.c_size_t(4)\n"
            "depth = 0\n"
            "def deeper(*two):\n"
            "    global depth\n"
            "    depth += 1\n"
            "    if depth < 1000:\n"
            "        libc.qsort((ctypes.c_int * 2)(), *sizes, deepest)\n"
            "    return 0\n"
            "import sys; sys.setrecursionlimit(10_000)\n"
            "deepest = compare(deeper); deeper()"
        ),
    ],
    ids=["numpy", "depth"],
)
def test_java_leaves_the_main_thread_its_stack(work: str, tmp_path: Path) -> None:
    (tmp_path / "hbase-shaded-client-2.jar").touch()
    program = f"from percola.store.hbase import jvm\njvm.start()\n{work}\nprint('done')"
    answer = python(program, **{JARS: str(tmp_path)})
    assert (answer.code, answer.out) == (0, "done\n"), answer.err

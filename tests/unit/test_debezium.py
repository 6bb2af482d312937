"""Changes as events in Debezium's format: their parts, their types, their schemas."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

import percola
from percola import (
    JSON,
    Repository,
    SchemaError,
    Table,
    Transaction,
    UsageError,
    Worker,
    WrongTypeError,
    feed,
    observer,
)
from percola.codecs import (
    DATE,
    FLOAT32,
    INT16,
    INT32,
    INT64,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Codec,
    array_of,
    decimal_of,
    map_of,
    struct_of,
)
from percola.debezium import Event, Events
from percola.gc.time_log import TimeLog
from percola.recipes import Sums

orders = Table("orders", feed=True)
cents = orders.column("cents", int)
note = orders.column("note", str)
tags = orders.family("tag", int)

NOON = datetime.datetime.fromisoformat("2010-10-04T12:00:00.250")
UTC_NOON = NOON.replace(tzinfo=datetime.UTC)
# Type, value, as an event has it, and the type and the name of its schema.
TYPES: dict[str, tuple[Any, Any, Any, str, str | None]] = {
    "t_bytes": (bytes, b"\xff\x00", "/wA=", "bytes", None),
    "t_str": (str, 'a "ü"', 'a "ü"', "string", None),
    "t_int": (int, -(2**63), -(2**63), "int64", None),
    "t_float": (float, 0.1, 0.1, "double", None),
    "t_nan": (float, float("-inf"), "-Infinity", "double", None),
    "t_bool": (bool, True, True, "boolean", None),
    "t_json": (JSON, {"a": [1]}, '{"a":[1]}', "string", "io.debezium.data.Json"),
    "t_int16": (INT16, -5, -5, "int16", None),
    "t_int32": (INT32, 2**31 - 1, 2**31 - 1, "int32", None),
    "t_int64": (INT64, 2**63 - 1, 2**63 - 1, "int64", None),
    "t_float32": (FLOAT32, 0.5, 0.5, "float", None),
    # The unscaled numbers 1250, and -128, which Java writes in one byte.
    "t_decimal": (
        *(decimal_of(38, 2), Decimal("12.50"), "BOI=", "bytes"),
        "org.apache.kafka.connect.data.Decimal",
    ),
    "t_negative": (
        *(decimal_of(9), Decimal(-128), "gA==", "bytes"),
        "org.apache.kafka.connect.data.Decimal",
    ),
    "t_date": (DATE, NOON.date(), 14886, "int32", "io.debezium.time.Date"),
    "t_zoned": (
        *(TIMESTAMP, UTC_NOON, "2010-10-04T12:00:00.250000Z", "string"),
        "io.debezium.time.ZonedTimestamp",
    ),
    "t_local": (
        *(TIMESTAMP_NTZ, NOON, 1_286_193_600_250_000, "int64"),
        "io.debezium.time.MicroTimestamp",
    ),
    "t_array": (array_of(DATE), [NOON.date(), None], [14886, None], "array", None),
    "t_map": (map_of(str, INT16), {"a": 1, "b": None}, {"a": 1, "b": None}, "map", None),
    "t_pairs": (map_of(DATE, bool), {NOON.date(): True}, [[14886, True]], "map", None),
    "t_struct": (
        *(struct_of(at=TIMESTAMP_NTZ, by=str), {"at": NOON, "by": None}),
        *({"at": 1_286_193_600_250_000, "by": None}, "struct", None),
    ),
    "t_own": (Codec("own", lambda v: b"own" + v, bytes), b"!", "b3duIQ==", "bytes", None),
}
typed = Table("typed", rows=DATE, feed=True)
columns = {name: typed.column(name, one[0]) for name, one in TYPES.items()}


@pytest.fixture
def repo() -> Iterator[Repository]:
    with percola.open("memory:", [orders, typed]) as opened:
        yield opened


def values(events: Iterator[Event]) -> list[tuple[Any, Any]]:
    return [(json.loads(one.key), one.value and json.loads(one.value)) for one in events]


def test_a_row_is_created_updated_and_deleted_with_a_tombstone(repo: Repository) -> None:
    after = feed.settled(repo, orders)
    commits = []
    for change in (
        lambda t: t.set(cents, "o1", 20),
        lambda t: (t.set(note, "o1", "gift"), t.set(tags["red"], "o1", 1)),
        lambda t: t.delete(cents, "o2"),  # A row that there is not.
        lambda t: [t.delete(one, "o1") for one in (cents, note, tags["red"])],
    ):
        with repo.transaction() as t:
            change(t)
        commits.append(t.commit_ts)
    sent = pickle.loads(pickle.dumps(orders))  # As to a task of Spark.
    found = list(Events(sent, name="shop").changes(repo, after))
    created, updated, deleted, tombstone = values(iter(found))
    first = {"row": "o1", "cents": 20, "note": None, "tag": None}
    second = {"row": "o1", "cents": 20, "note": "gift", "tag": {"red": 1}}
    assert [(v["op"], v["before"], v["after"]) for _, v in (created, updated, deleted)] == [
        ("c", None, first),
        ("u", first, second),
        ("d", second, None),
    ]
    assert tombstone == ({"row": "o1"}, None) and created[0] == tombstone[0]
    assert [one.commit_ts for one in found] == [*commits[:2], commits[3], commits[3]]
    source = updated[1]["source"]
    assert source.pop("version")
    now = updated[1]["ts_ms"]
    assert abs(now - repo.context.clock.wall_ms()) < 100_000
    assert source == {
        "connector": "percola",
        "name": "shop",
        "db": "shop",
        "table": "orders",
        "ts_ms": now,  # The log of times does not have it yet.
        "snapshot": "false",
        "commit_ts": commits[1],
        "row": "o1",
        "changed": ["note", "tag:red"],
    }


def test_the_first_reading_and_chosen_columns(repo: Repository) -> None:
    with repo.transaction() as t:
        t.set(cents, "o1", 20)
        t.set(note, "o2", "no cents")
    events = Events(orders, columns=[cents], row_name="order")
    at = feed.settled(repo, orders)
    [(key, value)] = values(events.rows(repo, at))
    assert (key, value["op"], value["before"]) == ({"order": "o1"}, "r", None)
    assert value["after"] == {"order": "o1", "cents": 20}
    assert (value["source"]["commit_ts"], value["source"]["snapshot"]) == (t.commit_ts, "true")
    with repo.transaction() as t:
        t.set(note, "o1", "changed")
    log = TimeLog(repo.context.store, repo.context.clock, None)
    log.newest_older(repo.context.oracle.read_timestamp())
    [(_, value)] = values(events.changes(repo, at))
    assert (value["op"], value["before"]) == ("u", value["after"])
    assert t.commit_ts is not None
    by = repo.commit_times().of(t.commit_ts)[1]
    assert by is not None and value["source"]["ts_ms"] == int(by.timestamp() * 1000)


def test_a_row_whose_columns_are_deleted_is_gone_although_a_recipe_has_yet_to_take_it_back(
    repo: Repository,
) -> None:
    sold = Table("sold", feed=True)
    price = sold.column("price", int, observed=True)
    total = Sums("total", sold, {"price": int})

    @observer(price)
    def add_up(t: Transaction, row: str) -> None:
        now = t.get(price, row)
        total.contribute(t, row, {} if now is None else {"all": {"price": now}})

    with percola.open("memory:", [sold, *total.tables]) as shop:
        after, worker = feed.settled(shop, sold), Worker(shop, [add_up, *total.observers])
        shop.run(lambda t: t.set(price, "o1", 20))
        worker.run_until_idle()
        shop.run(lambda t: t.delete(price, "o1"))
        # None of the worker's commit, which only records that it has contributed.
        [created, deleted, tombstone] = values(Events(sold).changes(shop, after))
        assert created[1]["op"] == "c" and created[1]["after"] == {"row": "o1", "price": 20}
        assert deleted[1]["op"] == "d" and deleted[1]["before"] == {"row": "o1", "price": 20}
        assert tombstone[1] is None
        upto = feed.settled(shop, sold)
        worker.run_until_idle()  # Which takes the contribution back.
        assert not [*Events(sold).changes(shop, upto)]
        named = Events(sold, columns=[total.applied.column]).changes(shop, after)
        assert [value and value["op"] for _, value in values(named)] == ["c", "u", "d", None]


def test_each_type_has_the_encoding_and_the_schema_of_connect(repo: Repository) -> None:
    with repo.transaction() as t:
        for name, (_, value, *_) in TYPES.items():
            t.set(columns[name], NOON.date(), value)
    [(key, value)] = values(Events(typed, schemas=True).rows(repo, feed.settled(repo, typed)))
    row = {"type": "int32", "name": "io.debezium.time.Date", "version": 1, "field": "row"}
    assert key["payload"] == {"row": 14886}
    assert key["schema"]["fields"] == [row | {"optional": False}]
    assert (key["schema"]["name"], key["schema"]["type"]) == ("percola.typed.Key", "struct")
    after = value["payload"]["after"]
    assert after == {"row": 14886} | {name: one[2] for name, one in TYPES.items()}
    envelope = value["schema"]
    assert envelope["name"] == "percola.typed.Envelope"
    assert {one["field"] for one in envelope["fields"]} == value["payload"].keys()
    image = next(one for one in envelope["fields"] if one["field"] == "after")
    said = {one["field"]: (one["type"], one.get("name")) for one in image["fields"][1:]}
    assert said == {name: one[3:] for name, one in TYPES.items()}
    as_text = Events(typed, columns=[columns["t_decimal"]], decimals="string")
    [(_, value)] = values(as_text.rows(repo, feed.settled(repo, typed)))
    assert value["after"]["t_decimal"] == "12.50"


def test_what_an_event_cannot_hold_is_refused_in_a_sentence(repo: Repository) -> None:
    repo.run(lambda t: t.set(cents, "o1", 2**63))
    with pytest.raises(WrongTypeError, match=r"cents.* of 'o1' .*9223372036854775808 has more"):
        list(Events(orders).rows(repo, feed.settled(repo, orders)))
    with pytest.raises(SchemaError, match="has a column named 'note', which is what"):
        Events(orders, row_name="note")
    with pytest.raises(SchemaError, match="need a column besides the row's key"):
        Events(orders, columns=[])
    for wrong in (["cents"], cents, [Table("others").column("cents", int)]):
        with pytest.raises(UsageError, match=r"are a list|is no column or family of"):
            Events(orders, columns=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="of a Table, and not of 'orders'"):
        Events("orders")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="use precise or string"):
        Events(orders, decimals="double")

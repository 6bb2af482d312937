"""Changes in a real Kafka: the events of a topic, applied in order, give the table's rows."""

from __future__ import annotations

import datetime
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jpype
import pytest
from children import Child, hear, say
from feed_streams import docs, links, repo, size, title
from kafka_broker import KafkaBroker, commits, read, replayed, require_jars
from spark_processes import kill_all

import percola
from percola import JSON, Repository, Table, feed
from percola.codecs import DATE, TIMESTAMP, array_of, decimal_of, map_of, struct_of
from percola.debezium import Events
from percola.devcluster import jars
from percola.spark import spark_session

__all__ = ["repo"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CHANGES = Path(__file__).resolve().parents[2] / "examples" / "changes"
Wait = Callable[..., object]


@pytest.fixture(scope="module")
def broker(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), java_home) as running:
        yield running


# --- By Spark ---------------------------------------------------------------------------


def stream(pipe: Connection, folder: Path, work: Path, broker: str, jars: str) -> None:
    """In another process: the table's changes to a topic, until the test ends it."""
    config = {"spark.jars": jars, "spark.ui.enabled": "false"}
    with spark_session("local[2]", app="to Kafka", config=config) as spark:
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        frame = (
            spark.readStream.format("percola")
            .options(table="docs", envelope="debezium", maxRowsPerTrigger=100, partitions=2)
            .load(str(folder))
        )
        writer = frame.writeStream.format("kafka").option("topic", "docs")
        writer = writer.option("kafka.bootstrap.servers", broker)
        query = writer.option("checkpointLocation", str(work / "checkpoint")).start()
        say(pipe, gateway.proc.pid)
        while hear(pipe) != "stop":
            query.processAllAvailable()
            say(pipe)


def change(repo: Repository, rng: random.Random, transactions: int) -> None:
    """Transactions that insert, update and delete some of a hundred rows each."""
    for number in range(transactions):
        with repo.transaction() as t:
            for row in rng.sample([f"r{at:03}" for at in range(100)], 5):
                columns = [title, size, links["a"], links["b"]]
                if rng.random() < 0.3:
                    for one in columns:
                        t.delete(one, row)
                else:
                    one = rng.choice(columns)
                    t.set(one, row, number if one is size else f"text {number}")


def test_a_stream_that_is_killed_loses_nothing_and_repeats_harmlessly(
    repo: Repository, folder: Path, tmp_path: Path, broker: KafkaBroker, wait_until: Wait
) -> None:
    rng = random.Random(57)
    change(repo, rng, 50)
    after = feed.settled(repo, docs)
    there = {row.key for row in repo.snapshot(at=after).scan(docs)}
    connector = ",".join(map(str, require_jars(jars.SPARK_KAFKA).glob("*.jar")))
    arguments = (folder, tmp_path, broker.address, connector)
    with Child(stream, *arguments) as child:
        jvm = child.hear()
        child.tell("finish")
        child.hear()
        first = broker.records("docs")
        assert {event["op"] for _, event in read(first) if event} == {"r"}
        assert replayed(first).keys() == there
        change(repo, rng, 200)
        wait_until(
            lambda: len(broker.records("docs")) > len(first) + 150, seconds=150, what="some events"
        )
        kill_all([child.pid, jvm])
    expected = {
        (one.row, one.commit_ts)
        for one in feed.changes(repo, docs, after, before=True)
        if one.before or one.image
    }
    sent = commits(broker.records("docs")) & expected
    assert 100 < len(sent) < len(expected), "it was killed in the middle"
    # As if a batch had been sent, and the process killed before it could say so. A batch that was
    # planned and is not known as sent is planned again.
    logs = tmp_path / "checkpoint"
    known = max(int(one.name) for one in (logs / "commits").glob("[0-9]*"))
    planned = [one.name for one in (logs / "offsets").glob("[0-9]*") if int(one.name) > known]
    for log, names in (("offsets", planned), ("commits", [f"{known}"])):
        for name in names:
            (logs / log / name).unlink()
            (logs / log / f".{name}.crc").unlink(missing_ok=True)
    with Child(stream, *arguments) as child:
        jvm = child.hear()
        child.tell("finish")
        assert child.speaks_within(200)
        child.hear()
        records = broker.records("docs")
        child.tell("stop")
        child.hear()
    assert expected <= commits(records)
    events = [(key, event) for key, event in read(records) if event]
    assert len(events) > len(commits(records)), "the batch should have come twice"
    with repo.snapshot() as now:
        rows = {
            row.key: (row.get(title), row.get(size), row.family(links) or None)
            for row in now.scan(docs)
        }
    assert {key: tuple(row.values()) for key, row in replayed(records).items()} == rows
    assert {event["op"] for _, event in events} == {"r", "c", "u", "d"}
    previous: dict[str, Any] = {}
    for key, event in read(records):
        gone = key in previous and previous[key] is not None and previous[key]["op"] == "d"
        assert (event is None) == gone, "a tombstone follows each d, and nothing else"
        previous[key] = event


# --- By a program -----------------------------------------------------------------------


def test_the_example_that_publishes_goes_on_after_a_kill(
    tmp_path: Path, broker: KafkaBroker, wait_until: Wait
) -> None:
    shop = tmp_path / "changes"
    shutil.copytree(CHANGES, shop)
    program = (shop / "publish.py").read_text()
    assert "BATCH = 1000\n" in program
    (shop / "publish.py").write_text(program.replace("BATCH = 1000\n", "BATCH = 20\n"))
    place = [sys.executable, "place.py", "o0", "ann", "2000"]
    command = [sys.executable, "publish.py", broker.address]

    def publish() -> str:
        return subprocess.run(command, cwd=shop, check=True, capture_output=True, text=True).stdout

    subprocess.run(place, cwd=shop, check=True)
    assert publish() == "1 events sent\n"
    with percola.open(shop / "shop", durability="relaxed") as repo:
        orders = repo.table("orders")
        customer: Any = orders.resolve("customer")
        for number in range(10_000):
            with repo.transaction() as t:
                row = f"o{number % 700}"
                if number % 3:
                    t.set(customer, row, f"customer {number}")
                else:
                    t.delete(customer, row)
        with subprocess.Popen(command, cwd=shop) as publishing:
            wait_until(
                lambda: len(broker.records("shop.orders")) > 500, seconds=60, what="some events"
            )
            os.kill(publishing.pid, 9)
        sent = len(broker.records("shop.orders"))
        assert publish() != "0 events sent\n", "it was killed in the middle"
        assert publish() == "0 events sent\n"
        records = broker.records("shop.orders")
        assert sent < len(records)
        rows = {row.key: row[customer] for row in repo.snapshot().scan(orders) if customer in row}
        found = replayed(records)
        assert {key: row["customer"] for key, row in found.items() if row["customer"]} == rows
        assert len(rows) > 400
        assert commits(records) >= {
            (one.row, one.commit_ts)
            for one in feed.changes(repo, orders, feed.since(repo, orders), before=True)
            if one.before or one.image
        }


# --- Read by Connect --------------------------------------------------------------------

typed = Table("typed", rows=DATE, feed=True)
price = typed.column("price", decimal_of(38, 2))
raw = typed.column("raw", bytes)
facts = typed.column("facts", JSON)
at = typed.column("at", TIMESTAMP)
nested = typed.column(
    "nested", struct_of(days=array_of(DATE), prices=map_of(DATE, decimal_of(4, 1)))
)
tags = typed.family("tags", float)


def converted(pipe: Connection, classpath: str, key: str, value: str) -> tuple[str, str, list[str]]:
    """In another process, which runs Java: what Connect's own converter makes of an event."""
    jpype.startJVM("-Xmx128m", classpath=[classpath])
    made = []
    for is_key, text in ((True, key), (False, value)):
        converter = jpype.JClass("org.apache.kafka.connect.json.JsonConverter")()
        settings = jpype.JClass("java.util.HashMap")()
        settings.put("schemas.enable", "true")
        converter.configure(settings, is_key)
        struct = converter.toConnectData("topic", jpype.JArray(jpype.JByte)(text.encode())).value()
        struct.validate()
        made.append(struct)
    after = made[1].getStruct("after")
    types = [str(after.get(one.name).getClass().getSimpleName()) for one in typed.members]
    raw_bytes = bytes(after.getBytes("raw"))
    assert raw_bytes == b"\xff\x00", raw_bytes
    return str(made[0]), str(after), types


def test_connect_reads_keys_and_values_by_the_schema_that_they_say() -> None:
    day, other = datetime.date(2010, 10, 4), datetime.date(1969, 12, 31)
    with percola.open("memory:", [typed]) as repo:
        with repo.transaction() as t:
            t.set(price, day, Decimal("-123456789012345678901234567890.25"))
            t.set(raw, day, b"\xff\x00")
            t.set(facts, day, {"a": 1})
            t.set(at, day, datetime.datetime(2010, 10, 4, 12, tzinfo=datetime.UTC))
            t.set(nested, day, {"days": [day, None], "prices": {other: Decimal("-12.8")}})
            t.set(tags["x"], day, 0.5)
        [event] = Events(typed, schemas=True).rows(repo, feed.settled(repo, typed))
    assert event.value is not None
    classpath = f"{require_jars(jars.KAFKA)}/*"
    with Child(converted, classpath, event.key, event.value) as child:
        key, after, types = child.hear()
    assert key == "Struct{row=14886}"
    for part in (
        "row=14886",
        "price=-123456789012345678901234567890.25",
        'facts={"a":1}',
        "at=2010-10-04T12:00:00Z",
        "nested=Struct{days=[14886, null],prices={-1=-12.8}}",
        "tags={x=0.5}",
    ):
        assert part in after, after
    assert types == ["BigDecimal", "byte[]", "String", "String", "Struct", "HashMap"]

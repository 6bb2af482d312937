"""A Kafka broker for tests: one JVM that is its own controller (KRaft), and what a topic holds."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from needs import lack, need
from server_process import ServerProcess, free_port

from percola.devcluster import jars

_SMALL: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=INFO")


def require_jars(which: str) -> Path:
    """Fetch a set of jars that Kafka's tests need; their folder."""
    need("kafka")
    try:
        return jars.install(which)
    except jars.JarsError as error:
        lack("kafka", str(error))


class KafkaBroker(ServerProcess):
    """A broker with its data in a folder of its own. Topics are made as they are written."""

    def __init__(self, folder: Path, java_home: Path, partitions: int = 3) -> None:
        self._folder = folder
        self._java = java_home / "bin" / "java"
        self._jars = require_jars(jars.KAFKA)
        self._partitions = partitions
        super().__init__()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        controller = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": self._folder / "data",
            "num.partitions": self._partitions,
            "offsets.topic.replication.factor": 1,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [self._java, *_SMALL, "-cp", f"{self._jars}/*"]
        if not (self._folder / "data").exists():
            cluster = "MkU3OEVBNTcwNTJENDM2Qg"
            subprocess.run(
                [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", file],
                check=True,
                capture_output=True,
            )
        with open(self._folder / "out", "wb") as out:
            return subprocess.Popen(
                [*command, "kafka.Kafka", file],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _is_ready(self, connection: socket.socket) -> bool:
        return "Kafka Server started" in self._printed()

    def _printed(self) -> str:
        return (self._folder / "out").read_text(errors="replace")

    def records(self, topic: str) -> list[Record]:
        """All that a topic holds now, each partition in its order."""
        from kafka import KafkaConsumer, TopicPartition  # It takes a second.

        consumer = KafkaConsumer(bootstrap_servers=self.address, group_id=None)
        try:
            numbers = consumer.partitions_for_topic(topic) or ()
            places = [TopicPartition(topic, number) for number in sorted(numbers)]
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            consumer.seek_to_beginning(*places)
            found: list[Record] = []
            while any(consumer.position(place) < ends[place] for place in places):
                for some in consumer.poll(timeout_ms=1000).values():
                    found += [Record(one.key, one.value) for one in some]
            return found
        finally:
            consumer.close()


class Record(NamedTuple):
    """A record of a topic: the event's key, and its value, None in a tombstone."""

    key: bytes
    value: bytes | None


def replayed(records: list[Record]) -> dict[str, dict[str, Any]]:
    """The rows that applying all events in order leaves, by key, without the row's key."""
    rows: dict[str, dict[str, Any]] = {}
    for key, event in read(records):
        if event is not None:
            after = event["after"]
            if after is None:
                rows.pop(key, None)
            else:
                rows[key] = {name: value for name, value in after.items() if name != "row"}
    return rows


def commits(records: list[Record]) -> set[tuple[str, int]]:
    """Which row changed at which commit_ts."""
    return {(key, event["source"]["commit_ts"]) for key, event in read(records) if event}


def read(records: list[Record]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Each event's row and value, in the order of the topic's partitions."""
    for one in records:
        yield json.loads(one.key)["row"], one.value and json.loads(one.value)

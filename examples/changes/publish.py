"""Publish all changes since the last time to a topic of Kafka, as events in Debezium's format.

`publish.py HOST:PORT`. Kafka cannot commit a position together with events, so the position is
stored once the broker has acknowledged all events up to it. If this program is killed in between,
it sends them again, those of a row in the same order. The rows that are there at first are read
again as they were: a row that was sent and is deleted since has to get its event, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from kafka import KafkaProducer

import percola
from orders import SCHEMA, first, orders, position
from percola import Column, feed
from percola.debezium import Event, Events

NAME = "kafka"
TOPIC = "shop.orders"
BATCH = 1000
"""After about so many events the position is stored."""
KEEP_SECONDS = 7 * 24 * 3600
"""For how long after a run the changes that follow it are certainly kept."""


def publish(repo: percola.Repository, producer: KafkaProducer) -> int:
    """Send what has changed since the stored position; returns the number of events."""
    events = Events(orders, name="shop")
    now = repo.snapshot()
    after = now.get(position, NAME)
    if after is None:
        upto = now.get(first, NAME) or feed.settled(repo, orders)
        store(repo, first, upto)
    else:
        upto = max(after, feed.settled(repo, orders))  # A position never goes back.
    sent = 0
    for some in batches(
        events.rows(repo, upto) if after is None else events.changes(repo, after, upto)
    ):
        send(producer, some)
        sent += len(some)
        if after is not None:  # The rows that are there at first come in another order.
            store(repo, position, some[-1].commit_ts)
    store(repo, position, upto)
    return sent


def send(producer: KafkaProducer, events: list[Event]) -> None:
    """Send events and wait until the broker has all of them."""
    waiting = [
        producer.send(TOPIC, key=key.encode(), value=None if value is None else value.encode())
        for key, value, _ in events
    ]
    for one in waiting:
        one.get(timeout=60)  # Raises an error if it did not arrive.


def store(repo: percola.Repository, column: Column[str, int], ts: int) -> None:
    """Store a timestamp; garbage collection keeps what comes after it, for a week.

    In this order: if this is killed in between, what follows the stored one is still kept.
    """
    with repo.transaction() as t:
        t.set(column, NAME, ts)
    repo.hold(ts, KEEP_SECONDS, name=NAME)


def batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Events by the thousand, those of one transaction together."""
    some: list[Event] = []
    for event in events:
        if len(some) >= BATCH and event.commit_ts != some[-1].commit_ts:
            yield some
            some = []
        some.append(event)
    if some:
        yield some


if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo:
        producer = KafkaProducer(bootstrap_servers=sys.argv[1], acks="all", enable_idempotence=True)
        print(f"{publish(repo, producer)} events sent")
        producer.close()

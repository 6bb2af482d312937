"""Apply the changes of another database: `apply.py FILE`, an event in Debezium's format a line.

Events may come more than once, and in any order: after a restart, or from several partitions of a
topic. So the repository keeps of each row where in the other database's log its last change is, and
passes over what is not newer. It keeps that of deleted rows, too, or a late event would bring them
back, and in a table of its own, or the row would still be there with that column.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import percola
from orders import SCHEMA, cents, customer, lsn

BATCH = 100
"""Events that one transaction applies: most of the time of a small one is its commit."""


def apply(t: percola.Transaction, events: Iterable[dict[str, Any]]) -> int:
    """Apply some events; returns how many were new. Observers run for what they change."""
    new = 0
    for event in events:
        order, value = event["key"]["id"], event["value"]
        if value is None:  # After the event of a delete: it is for the topic's compaction.
            continue
        position, after = value["source"]["lsn"], value["after"]
        if position <= (t.get(lsn, order) or 0):
            continue
        t.set(lsn, order, position)
        if after is None:  # It was deleted.
            t.delete(customer, order)
            t.delete(cents, order)
        else:
            t.set(customer, order, after["customer"])
            t.set(cents, order, after["cents"])
        new += 1
    return new


def batches(lines: Iterable[str]) -> Iterator[list[dict[str, Any]]]:
    """The events of some lines, by the hundred."""
    events = (json.loads(line) for line in lines)
    while some := list(itertools.islice(events, BATCH)):
        yield some


if __name__ == "__main__":
    with percola.open("./shop", SCHEMA) as repo, Path(sys.argv[1]).open() as file:
        new = sum(repo.run(functools.partial(apply, events=some)) for some in batches(file))
        print(f"{new} events applied")

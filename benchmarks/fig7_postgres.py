"""Figure 7 on PostgreSQL: a transaction a document, from plain statements with indexes on the keys.

A document joins the cluster of the documents that share a key with it, or of several the least,
which then takes the others' documents. Transactions are serializable, so that more than one client
could run. It runs in an environment of its own, with psycopg, and prints a line of JSON a step.

    python benchmarks/fig7_postgres.py DSN PID KEYS SIZE load LABELS
    python benchmarks/fig7_postgres.py DSN PID KEYS SIZE on|off FIRST MOST PERCENT:RATE:COUNT…
    python benchmarks/fig7_postgres.py DSN PID KEYS SIZE labels FILE

Documents of 0 percent are for warming up, or for filling, and end nothing if they are not held.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# These need nothing but the standard library.
from benchmarks.fig7_steps import arrivals, cpu_of, read_keys, say, step_of
from benchmarks.fig7_texts import Bodies

psycopg: Any = importlib.import_module("psycopg")

_TABLE = (
    "create table docs (id bigint primary key, k0 bigint not null, k1 bigint not null, "
    "k2 bigint not null, body text not null, cluster bigint not null)"
)
_NEAR = "select distinct cluster from docs where k0 = %s or k1 = %s or k2 = %s"
_MOVE = "update docs set cluster = %s where cluster = any(%s)"
_ADD = "insert into docs values (%s, %s, %s, %s, %s, %s)"


def load(cursor: Any, keys: list[tuple[int, int, int]], labels: list[int]) -> None:
    """The repository as it is before the measurement."""
    bodies = Bodies()
    cursor.execute(_TABLE)
    with cursor.copy("copy docs from stdin") as copy:
        for doc, (its, label) in enumerate(zip(keys, labels, strict=True)):
            copy.write_row((doc, *its, bodies[doc], label))
    for column in ("k0", "k1", "k2", "cluster"):
        cursor.execute(f"create index on docs ({column})")
    cursor.execute("vacuum analyze docs")
    cursor.execute("checkpoint")


def add(connection: Any, cursor: Any, doc: int, its: tuple[int, int, int], body: str) -> None:
    """Cluster a document in a transaction."""
    while True:
        try:
            with connection.transaction():
                cursor.execute(_NEAR, its, prepare=True)
                near = sorted(one for (one,) in cursor.fetchall())
                into = near[0] if near else doc
                if len(near) > 1:
                    cursor.execute(_MOVE, (into, near[1:]), prepare=True)
                cursor.execute(_ADD, (doc, *its, body, into), prepare=True)
        except psycopg.errors.SerializationFailure:
            continue
        return


def main() -> None:
    """Do what the command line says."""
    dsn, server, file, size, what, *rest = sys.argv[1:]
    keys = read_keys(Path(file))
    connection = psycopg.connect(dsn, autocommit=True)
    cursor = connection.cursor()
    if what == "load":
        labels = [int(one) for one in Path(rest[0]).read_text().split()]
        load(cursor, keys[: int(size)], labels)
        return
    if what == "labels":
        cursor.execute("select id, cluster from docs")
        Path(rest[0]).write_text("".join(f"{doc} {label}\n" for doc, label in cursor))
        return
    bodies = Bodies()
    cursor.execute(f"set synchronous_commit = {what}")
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    doc, most = int(rest[0]), int(rest[1])
    for word in rest[2:]:
        percent, rate, count = word.split(":")
        held = False
        for _ in range(2):  # Another program may have had the machine for a moment.
            if held or doc + int(count) > most:
                break
            first = doc
            cpu = cpu_of(int(server)) + time.process_time()
            start, done = time.monotonic_ns(), {}
            for begin, end in arrivals(float(rate), int(count), 1):
                for at in range(first + begin, first + end):
                    add(connection, cursor, at, keys[at], bodies[at])
                    done[at] = time.monotonic_ns()
            doc += int(count)
            cpu = cpu_of(int(server)) + time.process_time() - cpu
            step = step_of(float(percent), float(rate), first, start, done, cpu)
            held = step.held
            say({**step.to_json(), "next": doc})
        if not held and float(percent):
            break


if __name__ == "__main__":
    main()

"""Phantom (P3): a range is read twice, and rows have come or gone in between. Forbidden for reads.

    Ann    scans the queue … … … … scans the queue
    Bob                   adds a row

A scan of Ann's snapshot never changes. That a transaction *writes* because of what a scan did
not find is write skew, which snapshot isolation permits: see `test_write_skew.py`.
"""

from __future__ import annotations

from stores import Gate, Ground, SeamStore, in_thread, stop_at

from percola import Repository, Table
from tests.anomalies.verdicts import Script, Verdict, judged

t = Table("t")
job = t.column("job", str)
TABLES = [t]


def put(repo: Repository, *rows: str) -> None:
    for row in rows:
        repo.run(lambda x, row=row: x.set(job, row, "job"))


def test_a_range_read_twice_has_the_same_rows(repo: Repository) -> None:
    put(repo, "queue/1", "queue/3")
    ann = repo.transaction()
    first = [row.key for row in ann.scan(t, prefix="queue/")]
    put(repo, "queue/0", "queue/2", "queue/4")
    repo.run(lambda bob: bob.delete(job, "queue/1"))
    again = [row.key for row in ann.scan(t, prefix="queue/")]
    narrower = [row.key for row in ann.scan(t, start="queue/0", end="queue/3")]
    assert first == again == ["queue/1", "queue/3"]
    assert narrower == ["queue/1"]
    assert not ann.get_row(t, "queue/2")


def test_a_scan_that_is_under_way_does_not_see_what_is_committed_meanwhile(
    repo: Repository,
) -> None:
    """Also when the scan is long, and reads the store in many pieces."""
    with repo.transaction() as x:
        for number in range(0, 2400, 2):
            x.set(job, f"{number:05}", "job")
    seen = []
    for number, row in enumerate(repo.snapshot().scan(t)):
        seen.append(row.key)
        if number % 200 == 0:
            put(repo, f"{number + 1:05}", f"{2 * number + 401:05}", "99999")
            repo.run(lambda bob, n=number: bob.delete(job, f"{2 * n + 600:05}"))
    assert seen == [f"{number:05}" for number in range(0, 2400, 2)]


def test_a_row_that_is_being_committed_is_not_overlooked_by_a_later_scan(ground: Ground) -> None:
    """Its cell has a lock and no write yet: the scan waits for it."""
    gate, store = Gate(), SeamStore(ground.store)
    bobs, annes = ground.repo(TABLES, store=store), ground.repo(TABLES)
    put(annes, "queue/1")
    store.hook = stop_at("commit", "queue/2", gate)
    bob = bobs.transaction(two_phase=True)
    bob.set(job, "queue/2", "job")
    committing = in_thread(bob.commit)
    gate.await_arrival()
    annes.run(lambda x: x.set(job, "queue/3", "job"))
    view = annes.snapshot()
    scanning = in_thread(lambda: [row.key for row in view.scan(t)])
    gate.open()
    committing.result(20)
    assert scanning.result(20) == ["queue/1", "queue/2", "queue/3"]


def play(repo: Repository) -> Verdict:
    put(repo, "queue/1", "queue/3")
    ann = repo.transaction()
    first = [row.key for row in ann.scan(t, prefix="queue/")]
    put(repo, "queue/2")
    repo.run(lambda bob: bob.delete(job, "queue/3"))
    second = [row.key for row in ann.scan(t, prefix="queue/")]
    return judged(happened=first != second, conflicted=False)


SCRIPTS = [
    Script(
        "P3",
        "Phantom",
        "Ann scans a range twice, and rows have appeared or disappeared in between.",
        play,
    )
]

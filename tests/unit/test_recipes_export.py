"""Export: every change reaches the receiver, whatever fails, and changes it once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import percola
from percola import (
    ObserverError,
    Repository,
    SchemaError,
    Snapshot,
    Table,
    Transaction,
    TransientError,
    Worker,
    WrongTypeError,
)
from percola.cells import Kind
from percola.inspection import failures, retry_failures
from percola.recipes import Entry, Export, Refused, check, export
from percola.store.base import Delete, RowMutation

offers = Table("offers")
cents = offers.column("cents", int)


class Receiver:
    """A system outside that keeps the newest epoch of each key, and fails when it is told to."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[int, int | None]] = {}
        self.applied: list[tuple[str, int]] = []
        self.calls: list[list[str]] = []
        self.fail_after: list[int] = []
        self.refuse: set[str] = set()

    def send(self, t: Transaction, entries: Sequence[Entry]) -> list[Refused]:
        self.calls.append([one.key for one in entries])
        refused = [Refused(one, "too cheap") for one in entries if one.key in self.refuse]
        for number, one in enumerate(entries):
            if self.fail_after and number == self.fail_after[0]:
                self.fail_after.pop(0)
                raise OSError("the receiver is gone")
            if one.key not in self.refuse and self.held.get(one.key, (-1, None))[0] < one.epoch:
                self.held[one.key] = (one.epoch, t.get(cents, one.key))
                self.applied.append((one.key, one.epoch))
        return refused


def opened(queue: Export) -> Repository:
    return percola.open("memory:", schema=[offers, *queue.tables])


def empty_queue() -> tuple[Repository, Export, Receiver]:
    queue = Export("out")
    return opened(queue), queue, Receiver()


def put(repo: Repository, queue: Export, **prices: int) -> int:
    with repo.transaction() as t:
        for key, price in prices.items():
            t.set(cents, key, price)
            queue.enter(t, key, {"was": price})
        return t.start_ts


def work(repo: Repository, queue: Export, receiver: Receiver, most: int = 500) -> Worker:
    observers = queue.observers(receiver.send, most=most)
    worker = Worker(repo, observers, threads=1, first_wait=0.001, retention=None)
    worker.run_until_idle()
    return worker


def left(repo: Repository, queue: Export) -> list[str]:
    with repo.snapshot() as now:
        return [row.key for row in now.scan(queue.table, columns=[queue.entry])]


def test_what_a_transaction_enters_is_exported_with_its_newest_value_and_leaves_the_queue() -> None:
    repo, queue, receiver = empty_queue()
    first = put(repo, queue, boot=9_900, cap=2_000)
    second = put(repo, queue, boot=8_000)
    with repo.snapshot() as now:
        found = list(queue.entries(now, queue.window_of(first, "boot"), "boot"))
    assert [(one.key, one.epoch, one.note) for one in found] == [
        ("boot", first, {"was": 9_900}),
        ("boot", second, {"was": 8_000}),
    ]
    work(repo, queue, receiver)
    assert {key: price for key, (_, price) in receiver.held.items()} == {
        "boot": 8_000,
        "cap": 2_000,
    }
    assert left(repo, queue) == []


def test_a_transaction_that_fails_exports_nothing() -> None:
    repo, queue, receiver = empty_queue()
    t = repo.transaction()
    queue.enter(t, "boot")
    t.rollback()
    work(repo, queue, receiver)
    assert receiver.calls == []


def test_what_was_sent_before_a_failure_is_sent_again_and_has_its_effect_once() -> None:
    repo, queue, receiver = empty_queue()
    ts = put(repo, queue, **{f"o{n}": n for n in range(10)})
    receiver.fail_after = [5, 3]
    work(repo, queue, receiver)
    assert sum(map(len, receiver.calls)) > 10, "some were sent twice"
    assert sorted(receiver.applied) == sorted((f"o{n}", ts) for n in range(10))
    assert left(repo, queue) == []


def test_a_window_with_many_entries_is_exported_in_several_runs() -> None:
    repo, queue, receiver = empty_queue()
    put(repo, queue, **{f"o{n:03}": n for n in range(25)})
    work(repo, queue, receiver, most=10)
    assert [len(call) for call in receiver.calls] == [10, 10, 5]
    assert len(receiver.held) == 25


def test_exporting_does_not_pass_over_what_it_has_just_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many cells are looked at for the last batch of a window as for the first one."""
    repo, queue, receiver = empty_queue()
    put(repo, queue, **{f"o{n:03}": n for n in range(100)})
    begun: list[str] = []
    scan = Snapshot.scan

    def noting(self: Any, table: Any, **options: Any) -> Any:
        if table is queue.table:
            begun.append(options.get("start") or options["prefix"])
        return scan(self, table, **options)

    monkeypatch.setattr(Snapshot, "scan", noting)
    work(repo, queue, receiver, most=10)
    assert [len(call) for call in receiver.calls] == [10] * 10
    # Where each began: at the last entry of the one before.
    ends = [call[-1] for call in receiver.calls]
    assert [one.split("/")[1] for one in begun if not one.endswith("/")][:9] == ends[:9]


def test_what_enters_a_window_before_the_exporters_place_in_it_is_exported_as_well() -> None:
    repo, queue, receiver = empty_queue()
    put(repo, queue, **{f"o{n:03}": n for n in range(30)})

    def send(t: Transaction, entries: Sequence[Entry]) -> list[Refused]:
        if len(receiver.calls) == 1:
            put(repo, queue, early=1)
        return receiver.send(t, entries)

    [observer] = queue.observers(send, most=10)
    Worker(repo, [observer], threads=1, retention=None).run_until_idle()
    assert len(receiver.held) == 31 and "early" in receiver.held
    assert left(repo, queue) == []


def test_workers_share_what_was_entered_in_bulk() -> None:
    """Two at a time; each call has the keys of one transaction, and a later change is a change."""
    repo, queue, receiver = empty_queue()
    for first in range(0, 40, 10):
        with repo.transaction() as t:
            for n in range(first, first + 10):
                t.set(cents, f"o{n:02}", n)
                queue.enter(t, f"o{n:02}", bulk=True)
    put(repo, queue, o05=500)
    both = threading.Barrier(2)

    def send(t: Transaction, entries: Sequence[Entry]) -> list[Refused]:
        if len(entries) == 10:
            both.wait(60)
        return receiver.send(t, entries)

    workers = [Worker(repo, queue.observers(send, workers=2), threads=1) for _ in range(3)]
    for worker in workers:
        worker.start()
    workers[0].run_until_idle()
    for worker in workers:
        worker.stop()
    assert sorted(len(call) for call in receiver.calls) == [1, 10, 10, 10, 10]
    assert {key: price for key, (_, price) in receiver.held.items()} == {
        f"o{n:02}": 500 if n == 5 else n for n in range(40)
    }


def test_a_transaction_that_commits_late_is_exported_although_later_windows_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export, "WINDOW", 4)
    repo, queue, receiver = empty_queue()
    late = repo.transaction()
    late.set(cents, "late", 1)
    queue.enter(late, "late")
    began = late.start_ts
    for number in range(5):
        put(repo, queue, clock=number)
    ts = put(repo, queue, later=2)
    assert queue.window_of(ts, "later") > queue.window_of(began, "late")
    work(repo, queue, receiver)
    late.commit()
    work(repo, queue, receiver)
    assert receiver.held.keys() == {"clock", "later", "late"}


def test_exporters_side_by_side_share_the_keys_and_each_key_has_one() -> None:
    queue = Export("out", exporters=3)
    repo = opened(queue)
    receivers = [Receiver() for _ in range(3)]
    observers = [
        queue.observers(receiver.send)[number] for number, receiver in enumerate(receivers)
    ]
    assert [one.name for one in observers] == ["out.export.0", "out.export.1", "out.export.2"]
    for round_ in range(2):
        put(repo, queue, **{f"o{n}": n + round_ for n in range(90)})
        Worker(repo, observers, threads=1, first_wait=0.001, retention=None).run_until_idle()
    shares = [set(receiver.held) for receiver in receivers]
    assert all(len(share) > 15 for share in shares)
    assert sum(map(len, shares)) == len(set.union(*shares)) == 90
    assert all(len(call) == len(set(call)) for receiver in receivers for call in receiver.calls)
    assert left(repo, queue) == []


def test_an_entry_that_is_refused_becomes_a_dead_letter_and_can_be_tried_again() -> None:
    repo, queue, receiver = empty_queue()
    ts = put(repo, queue, boot=1, cap=2_000)
    receiver.refuse = {"boot"}
    work(repo, queue, receiver)
    assert receiver.held.keys() == {"cap"}, "the others are not held up"
    assert left(repo, queue) == []
    with repo.snapshot() as now:
        [refused] = queue.refusals(now)
    assert (refused.entry.key, refused.entry.epoch, refused.why) == ("boot", ts, "too cheap")
    assert refused.entry.note == {"was": 1}
    receiver.refuse = set()
    repo.run(lambda t: queue.retry(t, refused))
    work(repo, queue, receiver)
    assert receiver.held["boot"] == (ts, 1)
    with repo.snapshot() as now:
        assert list(queue.refusals(now)) == []


def test_a_single_entry_may_be_refused_without_a_list_around_it() -> None:
    repo, queue, _ = empty_queue()
    put(repo, queue, boot=1)

    def send(t: Transaction, entries: Sequence[Entry]) -> Refused:
        return Refused(entries[0], "too cheap")

    Worker(repo, queue.observers(send), threads=1, first_wait=0.001).run_until_idle()
    assert list(failures(repo)) == []
    with repo.snapshot() as now:
        assert [one.why for one in queue.refusals(now)] == ["too cheap"]


def test_a_check_tells_of_an_entry_that_was_deleted_before_it_was_exported() -> None:
    """Be it by a transaction or in the store; entered again it is exported with its epoch."""
    repo, queue, receiver = empty_queue()
    ts = put(repo, queue, boot=1, cap=2, hat=3, wig=4)
    gone = [f"{queue.window_of(ts, key)}/{key}/{ts:020}" for key in ("cap", "wig")]
    assert check(repo, [queue]) == [], "nothing is lost while entries wait"
    with repo.transaction() as t:
        t.delete(queue.entry, gone[0])
    store = repo.context.store
    cell = repo.snapshot()._cell(queue.entry, gone[1])
    [(commit_ts, _)] = store.entries(cell, Kind.WRITE, 0, 2**62)
    removal = Delete(Kind.WRITE, cell.column, commit_ts)
    assert store.mutate([RowMutation(cell.table, cell.row, (), [removal])]) == [True]
    work(repo, queue, receiver)
    assert receiver.held.keys() == {"boot", "hat"}
    found = check(repo, [queue])
    assert [one.partition(" is missing")[0] for one in found] == [f"out[{row!r}]" for row in gone]
    assert "before 'cap' was exported" in found[0] and "out.retry(t, one)" in found[0]

    def repair(t: Transaction) -> None:
        for one in queue.lost(t):
            queue.retry(t, one)

    repo.run(repair)
    assert check(repo, [queue]) == []
    work(repo, queue, receiver)
    assert (receiver.held["cap"], receiver.held["wig"]) == ((ts, 2), (ts, 4))
    assert check(repo, [queue]) == []
    with repo.snapshot() as now:
        assert list(now.scan(queue.table)) == [], "what is exported leaves nothing"


class Response:
    """As that of `requests`, which is false if the server had an error, and has its lines."""

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[bytes]:
        return iter(())


@pytest.mark.parametrize("returned", [Response(), False, True, (5, []), {"errors": True}, "ok"])
def test_what_does_not_say_that_entries_were_taken_leaves_them_in_the_queue(returned: Any) -> None:
    repo, queue, _ = empty_queue()
    put(repo, queue, boot=1)
    observers = queue.observers(lambda t, entries: returned)
    Worker(repo, observers, threads=1, first_wait=0.001).run_until_idle()
    [failure] = failures(repo)
    assert f"has returned {returned!r}, which may say that they were not taken" in failure.error
    assert len(left(repo, queue)) == 1


@pytest.mark.parametrize("returned", [None, [], (), {}.values(), iter(())])
def test_nothing_refused_may_be_said_by_none_or_by_no_entries(returned: Any) -> None:
    repo, queue, _ = empty_queue()
    put(repo, queue, boot=1)
    Worker(repo, queue.observers(lambda t, entries: returned), threads=1).run_until_idle()
    assert left(repo, queue) == [] and list(failures(repo)) == []


@pytest.mark.parametrize("bad", [None, 1, "", "\ud800", b"b"])
def test_what_is_no_key_is_refused_also_by_exporters_side_by_side(bad: Any) -> None:
    queue = Export("out", exporters=4)
    with opened(queue).transaction() as t, pytest.raises(WrongTypeError, match="recipe"):
        queue.enter(t, bad)


def test_keys_of_any_length_and_characters_are_exported_as_they_are() -> None:
    repo, queue, receiver = empty_queue()
    keys = ["a/b", "%~", "x" * 500, "ü"]
    with repo.transaction() as t:
        for key in keys:
            queue.enter(t, key)
    work(repo, queue, receiver)
    assert sorted(receiver.held) == sorted(keys)


def test_a_queue_needs_an_exporter() -> None:
    with pytest.raises(SchemaError, match="from 1 to 1000 exporters, not 0"):
        Export("out", exporters=0)


@pytest.mark.parametrize("bad", [{"most": 0}, {"workers": 0}, {"most": "500"}, {"workers": "2"}])
def test_exporters_that_would_take_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ObserverError, match="at least one entry at a time"):
        Export("queue").observers(lambda t, entries: None, **bad)


def test_a_receiver_that_is_away_is_waited_for_if_its_error_is_transient() -> None:
    repo, queue, receiver = empty_queue()
    put(repo, queue, boot=1)
    away = iter(range(20))

    def send(t: Transaction, entries: Sequence[Entry]) -> list[Refused]:
        if next(away, None) is not None:
            raise TransientError("the receiver is away")
        return receiver.send(t, entries)

    Worker(repo, queue.observers(send), threads=1, retention=None).run_until_idle()
    assert receiver.held.keys() == {"boot"} and repo.dead_lettered() == 0


def test_what_an_exporter_gives_up_stays_in_the_queue_until_it_is_retried() -> None:
    repo, queue, receiver = empty_queue()
    put(repo, queue, boot=1)
    receiver.fail_after = [0] * 5
    work(repo, queue, receiver)
    assert receiver.held == {} and len(left(repo, queue)) == 1 and repo.dead_lettered() == 1
    assert retry_failures(repo) == 1
    work(repo, queue, receiver)
    assert receiver.held.keys() == {"boot"} and left(repo, queue) == []

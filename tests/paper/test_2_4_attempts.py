"""§2.4: failed attempts are counted at the change itself, however many fail, whoever runs (N5)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from borrowed import only_near
from stores import Ground, ScriptedClock, at_work, cell_of, heard, in_memory, put_all

from percola import Repository, Table, Transaction, Worker, observer
from percola.cells import MAX_TS, Attempts, Kind, decode_attempts, encode_attempts, encode_retry
from percola.inspection import failures
from percola.observers.failures import has_failed
from percola.store.base import Put, RowMutation
from percola.store.walks import walk_kind

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)
poke = docs.weak_column("poke")
TABLES = [docs]

QUICK = {"first_wait": 0.01, "longest_wait": 0.02, "threads": 1}


def write(repo: Repository, *rows: str, text: str = "text") -> None:
    put_all(repo, contents, dict.fromkeys(rows, text))


def test_n5_any_number_of_failing_cells_ends_within_so_many_attempts_each(
    wait_until: Callable[..., object],
) -> None:
    """More than a table of failures in memory would hold, and one that is fine among them."""
    number, attempts = 10_100, 2
    clock = ScriptedClock()
    repo = in_memory(TABLES, clock=clock)
    calls: Counter[str] = Counter()
    too_many: list[str] = []

    @observer(contents, batch=1)
    def broken(t: Transaction, row: str) -> None:
        clock.now += 0.01  # A pass takes longer than the back-off.
        calls[row] += 1
        if calls[row] > attempts:
            too_many.append(row)
        if row == "fine":
            t.set(size, row, 1)
        else:
            raise ValueError("the service is down")

    write(repo, "fine", *(f"row {n:05}" for n in range(number)))
    worker = Worker(repo, [broken], attempts=attempts, first_wait=1, longest_wait=1, threads=1)
    logging.disable(logging.CRITICAL)
    try:
        worker.start()
        wait_until(lambda: too_many or worker.is_idle(), seconds=100)
    finally:
        worker.stop()
        logging.disable(logging.NOTSET)
    assert too_many == []
    assert repo.dead_lettered() == number
    assert sum(calls.values()) == number * attempts + 1
    assert repo.snapshot().get(size, "fine") == 1


def test_n5_the_attempts_of_workers_that_have_ended_count(ground: Ground, repo: Repository) -> None:
    """Each attempt is another worker's, with a repository of its own."""
    calls: list[int] = []
    workers: list[Worker] = []

    @observer(contents)
    def broken(t: Transaction, row: str) -> None:
        calls.append(len(workers))
        workers[-1].stop(wait=False)
        raise ValueError("cannot")

    write(repo, "a")
    while not repo.dead_lettered():
        workers.append(Worker(ground.repo(TABLES), [broken], attempts=3, **QUICK))
        workers[-1].run_until_idle()
        assert len(workers) < 10
    assert calls == sorted(calls) and len(calls) == 3
    [failure] = failures(repo)
    assert failure.attempts == 3
    assert ground.left_over(docs, Kind.NOTIFY) == []


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "in between", "last"])
def test_n5_a_cell_that_changes_before_each_attempt_is_dead_lettered_all_the_same(
    ground: Ground, repo: Repository, place: int
) -> None:
    """And what waits of it does not grow with its changes, whichever of its observers fails."""
    calls: list[int] = []
    waiting: list[int] = []
    letters: list[int] = []

    @observer(contents)
    def broken(t: Transaction, row: str) -> None:
        calls.append(t.version(contents, row))
        letters.append(repo.dead_lettered())
        waiting.append(len(ground.left_over(docs, Kind.NOTIFY)))
        if len(calls) < 30:
            write(repo, "a", text=f"text {len(calls)}")
            write(repo, "a", text=f"text {len(calls)}, once more")
            raise ValueError("cannot")

    others = [observer(contents, name=name)(lambda t, row: None) for name in ("one", "two")]
    write(repo, "a")
    worker = Worker(repo, [*others[:place], broken, *others[place:]], attempts=3, **QUICK)
    worker.run_until_idle()
    assert len(set(calls)) == 30, "each change is tried at once"
    assert max(waiting) <= 6
    assert letters[3:29] == [1] * 26 and letters[:3] == [0] * 3
    assert list(failures(repo)) == [], "the run that has answered them all takes the letter away"
    assert ground.left_over(docs, Kind.NOTIFY) == []


def test_n5_another_worker_does_not_try_again_what_is_dead_lettered_beside_unfinished_work(
    ground: Ground, repo: Repository
) -> None:
    """The column's other observer has not dealt with the change yet: its notify entry stands."""
    calls: list[str] = []
    workers: list[Worker] = []
    other = ground.repo(TABLES)

    @observer(contents)
    def broken(t: Transaction, row: str) -> None:
        calls.append(row)
        raise ValueError("cannot")

    @observer(contents)
    def contended(t: Transaction, row: str) -> None:
        t.set(size, row, 1)
        if len(workers) == 1:
            other.run(lambda t: t.set(size, row, 0))
            if repo.dead_lettered():
                workers[0].stop(wait=False)

    write(repo, "a")
    for _ in range(2):
        workers.append(Worker(ground.repo(TABLES), [broken, contended], attempts=2, **QUICK))
        workers[-1].run_until_idle()
    assert calls == ["a", "a"]
    assert repo.snapshot().get(size, "a") == 1
    assert [one.observer for one in failures(repo)] == ["broken"]
    assert ground.left_over(docs, Kind.NOTIFY) == []


def test_n5_a_mark_without_the_failed_entry_is_not_believed(
    ground: Ground, repo: Repository
) -> None:
    """A worker has died between the two, on a store where no mutation is atomic over both."""
    calls: list[str] = []

    @observer(contents)
    def broken(t: Transaction, row: str) -> None:
        calls.append(row)
        raise ValueError("cannot")

    fine = observer(contents, name="fine")(lambda t, row: t.set(size, row, 1))

    write(repo, "a")
    context = repo.context
    [(cell, ts, _)] = walk_kind(context.store, Kind.NOTIFY, "docs")
    mark = Put(Kind.NOTIFY, cell.column, ts, encode_attempts({"broken": Attempts(2, None)}))
    context.store.mutate([RowMutation("docs", cell.row, (), [mark])])
    Worker(repo, [broken, fine], attempts=2, **QUICK).run_until_idle()
    assert calls == ["a"]
    assert [(one.observer, one.attempts) for one in failures(repo)] == [("broken", 3)]
    assert repo.snapshot().get(size, "a") == 1
    assert ground.left_over(docs, Kind.NOTIFY) == []


def test_n5_a_change_that_another_worker_has_answered_is_not_dead_lettered(
    ground: Ground, repo: Repository
) -> None:
    """Two runs of one change: the row's advisory lock, which nothing depends on, was lost."""
    nested: list[Worker] = []

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        if not nested:
            ground.coordination.unlock("docs", row.encode())
            nested.append(Worker(ground.repo(TABLES), [measure], **QUICK))
            nested[0].run_until_idle()
            raise ValueError("too late")
        t.set(size, row, 1)

    write(repo, "a")
    worker = Worker(repo, [measure], attempts=1, **QUICK)
    worker.run_until_idle()
    assert list(failures(repo)) == []
    assert repo.snapshot().get(size, "a") == 1
    assert worker.metrics.counts().get("observer_dead_lettered", {}) == {}


@only_near("it counts calls")
def test_n6_a_cell_that_waits_for_its_next_attempt_costs_a_scan_nothing_more(
    ground: Ground, wait_until: Callable[..., object]
) -> None:
    looked: list[Kind] = []  # At single cells, under their rows' locks.
    store = heard(ground.store, entries=lambda _, cell, kind, *where: looked.append(kind))
    repo = ground.repo(TABLES, store=store)
    calls: list[str] = []

    @observer(contents)
    def broken(t: Transaction, row: str) -> None:
        calls.append(row)
        raise ValueError("cannot")

    rows = [f"row {n}" for n in range(100)]
    write(repo, *rows)
    worker = Worker(repo, [broken], first_wait=600, longest_wait=600, rescan=0.01, threads=1)
    with at_work(worker):
        wait_until(lambda: len(calls) >= 100)
        looks = looked.count(Kind.NOTIFY)
        write(repo, "new row")
        wait_until(lambda: "new row" in calls, what="a scan that passes all that wait")
        assert looked.count(Kind.NOTIFY) <= looks + 2
    assert Counter(calls) == Counter([*rows, "new row"])


def test_n5_a_clock_that_is_ahead_delays_no_attempt_for_long(
    ground: Ground, wait_until: Callable[..., object]
) -> None:
    """The first attempt's worker lives in the future; the second one's does not wait for that."""
    ahead = ScriptedClock()
    ahead.now += 86_400.0
    calls: list[str] = []
    workers: list[Worker] = []

    @observer(contents)
    def broken(t: Transaction, row: str) -> None:
        calls.append(row)
        workers[-1].stop(wait=False)
        raise ValueError("cannot")

    first = ground.repo(TABLES, clock=ahead)
    write(first, "a")
    options: dict[str, Any] = {"attempts": 2, "first_wait": 5, "threads": 1, "rescan": 0.05}
    workers.append(Worker(first, [broken], **options))
    workers[0].run_until_idle()
    repo = ground.repo(TABLES, clock=ScriptedClock())
    workers.append(Worker(repo, [broken], **options))
    workers[1].start()
    try:
        wait_until(repo.dead_lettered, seconds=5)
    finally:
        workers[1].stop()
    assert calls == ["a", "a"]
    assert repo.dead_lettered() == 1


def test_n5_a_row_that_has_failed_joins_no_batch_of_another_worker(
    ground: Ground, repo: Repository
) -> None:
    ran: list[tuple[Transaction, str]] = []

    @observer(poke, batch=32)
    def broken(t: Transaction, row: str) -> None:
        ran.append((t, row))  # Two transactions that commit in one step may share a start_ts.
        if row == "bad":
            raise ValueError("cannot")
        t.set(size, row, 1)

    rows = ["bad", *(f"row {n}" for n in range(5))]
    with repo.transaction() as t:
        for row in rows:
            t.notify(poke, row)
    # What a worker that has ended since left behind.
    cell = cell_of(contents, "bad")._replace(column=poke.key)
    [(ts, _)] = ground.store.entries(cell, Kind.NOTIFY, 0, MAX_TS)
    put = Put(Kind.NOTIFY, poke.key, ts, encode_attempts({"broken": Attempts(1, 1)}))
    ground.store.mutate([RowMutation("docs", b"bad", (), [put])])

    worker = Worker(repo, [broken], attempts=3, **QUICK)
    worker.run_until_idle()
    bad = [id(t) for t, row in ran if row == "bad"]
    assert len(bad) == 2 and not {*bad} & {id(t) for t, row in ran if row != "bad"}
    assert worker.metrics.counts().get("observer_batches_split", {}) == {}
    [failure] = failures(repo)
    assert (failure.cell.row, failure.attempts) == (b"bad", 3)


def test_each_failed_attempt_is_logged_with_its_traceback(
    repo: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        raise ValueError("cannot measure")

    write(repo, "a")
    Worker(repo, [measure], attempts=3, **QUICK).run_until_idle()
    logged = [one.getMessage() for one in caplog.records if one.name == "percola.worker"]
    for number, message in enumerate(logged[:3], 1):
        assert f"measure failed on docs['a'].contents, attempt {number} of 3" in message
        assert "Traceback (most recent call last)" in message
        assert message.endswith("ValueError: cannot measure")
    assert len(logged) == 4 and "dead-lettered" in logged[3]


@pytest.mark.parametrize("messages", ["cannot measure {}", "cannot measure {}:\n not the {}"])
def test_where_many_rows_fail_in_one_place_the_log_has_few_tracebacks(
    repo: Repository, caplog: pytest.LogCaptureFixture, messages: str
) -> None:
    """As while a service does not answer that an observer asks: gigabytes an hour, otherwise."""

    @observer(contents, batch=1)
    def measure(t: Transaction, row: str) -> None:
        if row == "other":
            raise LookupError("of another kind")
        said = messages.format(row, row)
        cause = KeyError(said) if "\n" in said else None
        raise ValueError(said) from cause

    rows = [f"{number:02}" for number in range(40)]
    write(repo, *rows, "other")
    Worker(repo, [measure], attempts=1, **QUICK).run_until_idle()
    logged = [one.getMessage() for one in caplog.records if " failed on " in one.getMessage()]
    told = [one for one in logged if "Traceback" in one]
    assert len(logged) == 41 and len(told) == 21
    assert sum(one.endswith("LookupError: of another kind") for one in told) == 1
    for row in rows:
        [line] = [one for one in logged if f"docs['{row}'].contents, attempt 1 of 1" in one]
        assert f"ValueError: cannot measure {row}" in line
    assert all("\n" not in one for one in logged if one not in told)


def test_what_moves_or_hides_text_in_a_failures_message_is_written_out_in_the_log(
    repo: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    """It may quote a page, and the log be read at a terminal."""

    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        raise ValueError("cannot measure \x1b[2J\u202e")

    write(repo, "a")
    Worker(repo, [measure], attempts=1, **QUICK).run_until_idle()
    failed, dead = (one.getMessage() for one in caplog.records if one.name == "percola.worker")
    for message in (failed, dead):
        assert message.endswith("ValueError: cannot measure \\x1b[2J\\u202e")
        assert message.replace("\n", "").isprintable()
    [failure] = failures(repo)
    assert "\x1b[2J\u202e" in failure.traceback, "as it was"


def test_attempts_are_what_was_recorded_and_damage_is_none() -> None:
    some = {"index": Attempts(2, 1_700_000_000_000), "rank": Attempts(5, None)}
    assert decode_attempts(encode_attempts(some)) == some
    for damaged in (b"", b"\xff", b"7", b"[1]", b'{"a": 1}', b'{"a": [1]}', b'{"a": ["1", 2]}'):
        assert decode_attempts(damaged) == {}


def test_what_is_tried_again_joins_batches_until_it_fails() -> None:
    assert not has_failed(b"")
    assert not has_failed(encode_retry("index", 8))
    again = decode_attempts(encode_retry("index", 8))
    assert has_failed(encode_attempts({**again, "index": Attempts(1, 5)}))

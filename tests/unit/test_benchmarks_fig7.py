"""Figure 7's documents, clusters and arithmetic, and that a mistake in a clustering is found."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from rich.console import Console

import percola
from benchmarks import fig7, fig7_percola
from benchmarks.fig7 import Line
from benchmarks.fig7_documents import ClusterError, Documents, Shape, canonical, check, expected
from benchmarks.fig7_report import Report, break_even, cross_over
from benchmarks.fig7_spark import Batch, Pass
from benchmarks.fig7_steps import (
    Notes,
    Step,
    count_notes,
    nearest_rank,
    plan,
    read_keys,
    read_notes,
    step_of,
    write_keys,
)
from benchmarks.fig7_stream import keeps_up
from percola import Observer, Transaction, Worker, observer

Join = Callable[[Transaction, str], None]
Keys = Sequence[tuple[int, int, int]]

# --- Documents and clusters ---------------------------------------------------------------


def test_the_clusters_are_those_of_the_paper() -> None:
    shape = Shape.of(expected(Documents(50_000).keys(0, 50_000)))
    assert shape.mean == pytest.approx(3.3, abs=0.05)
    assert shape.with_others == pytest.approx(0.93, abs=0.005)
    assert shape.largest < 30


def test_a_documents_keys_follow_from_its_number_alone() -> None:
    documents = Documents(1000)
    assert documents.keys(0, 50)[20:30] == documents.keys(20, 30)
    found = list(itertools.chain(*documents.keys(0, 1000)))
    assert all(0 <= key < 1 << 63 for key in found)


def test_keys_of_different_kinds_never_meet_by_accident() -> None:
    kinds = list(zip(*Documents(20_000).keys(0, 20_000), strict=True))
    for one, other in itertools.combinations(kinds, 2):
        assert not set(one) & set(other)


def test_union_find_brings_together_what_any_key_connects() -> None:
    # 0 and 1 by the first key, 1 and 3 by the third; 2 has the key of 0 in another place.
    keys = [(1, 10, 20), (1, 11, 21), (10, 1, 22), (4, 12, 21)]
    assert expected(keys) == [0, 0, 2, 0]


def test_clusters_are_compared_whatever_they_are_called() -> None:
    assert canonical({0: "x", 1: "y", 2: "x"}) == {0: 0, 1: 1, 2: 0}
    check("a system", [(1, 2, 3), (4, 5, 6), (7, 8, 3)], {0: "x", 1: "y", 2: "x"})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({0: 0, 1: 1}, "2 of 3 documents have a cluster"),
        ({0: 0, 1: 1, 2: 2}, "the first is 2, with 2 in place of 0"),
        ({0: 0, 1: 0, 2: 0}, "the first is 1, with 0 in place of 1"),
    ],
)
def test_a_missing_document_or_wrong_cluster_is_found(labels: dict[int, int], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        check("a system", [(1, 2, 3), (4, 5, 6), (7, 8, 3)], labels)


def cluster(keys: Keys, join: Join, order: Sequence[int], batch: int) -> dict[int, str]:
    """What an observer makes of documents that come in an order, one after the other."""
    made: Observer[str] = observer(fig7_percola.keys, name="join", batch=batch)(join)
    with percola.open("memory:", fig7_percola.SCHEMA) as repo:
        worker = Worker(repo, [made], threads=1)
        for begin in range(0, len(order), batch):
            with repo.transaction() as t:
                for doc in order[begin : begin + batch]:
                    packed = fig7_percola._KEYS.pack(*keys[doc])
                    t.set(fig7_percola.keys, fig7_percola.row_of(doc), packed)
            worker.run_until_idle()
        assert not repo.dead_lettered()
        return {
            int(row.key): row[fig7_percola.cluster]
            for row in repo.snapshot().scan(fig7_percola.docs, columns=[fig7_percola.cluster])
        }


@pytest.mark.parametrize("batch", [1, 32])
def test_the_observer_clusters_as_union_find_in_any_order(batch: int) -> None:
    keys = Documents(300).keys(0, 300)
    order = random.Random(batch).sample(range(300), 300)
    check("the observer", keys, cluster(keys, fig7_percola.join, order, batch))


class Altered:
    """A transaction in which a method is another."""

    def __init__(self, transaction: Transaction, **methods: Callable[..., object]) -> None:
        self._transaction = transaction
        self._methods = methods

    def __getattr__(self, name: str) -> object:
        return self._methods.get(name) or getattr(self._transaction, name)


def forgets_to_move(t: Transaction, row: str) -> None:
    """As the observer, but a cluster that comes into another keeps its documents."""

    def put(column: Any, at: str, value: str) -> None:
        if column is not fig7_percola.cluster or at == row:
            t.set(column, at, value)

    fig7_percola.join(cast(Transaction, Altered(t, set=put)), row)


def forgets_a_key(t: Transaction, row: str) -> None:
    """As the observer, but it finds nothing in the third index table."""

    def get_many(cells: Iterable[tuple[Any, str]]) -> list[Any]:
        cells = list(cells)
        third = [column is fig7_percola.firsts[2] for column, _ in cells]
        return [None if one else v for one, v in zip(third, t.get_many(cells), strict=True)]

    fig7_percola.join(cast(Transaction, Altered(t, get_many=get_many)), row)


@pytest.mark.parametrize("join", [forgets_to_move, forgets_a_key])
def test_a_mistake_in_the_observer_is_found(join: Join) -> None:
    keys = Documents(300).keys(0, 300)
    found = cluster(keys, join, random.Random(1).sample(range(300), 300), 1)
    with pytest.raises(ClusterError):
        check("the observer", keys, {doc: found[doc] for doc in range(300)})


# --- Steps ------------------------------------------------------------------------------------


def test_a_step_lasts_long_enough_for_ten_documents_but_not_for_ever() -> None:
    assert plan(360_000, (0.1, 1.0, 100.0), 8.0) == [
        (0.1, 0.1, 3),
        (1.0, 1.0, 10),
        (100.0, 100.0, 800),
    ]


def test_delays_are_counted_from_when_each_document_was_due() -> None:
    second = 1_000_000_000
    done = {7: 5 * second, 8: 5 * second, 9: 8 * second}
    step = step_of(1.0, 2.0, 7, 4 * second, done, 0.6)
    assert step.delays == (500.0, 1000.0, 3000.0)
    assert step.seconds == 4.0 and step.throughput == 0.75
    assert step.cpu_ms == pytest.approx(200.0)
    assert not step.held, "the last was due after one second, and done after four"
    assert step_of(1.0, 2.0, 7, 4 * second, {**done, 9: 5 * second}, 0.0).held


def test_a_stream_whose_delay_grows_and_grows_does_not_keep_up() -> None:
    # Micro-batches of two seconds, and then the same as a queue that grows by half a second each.
    steady = [2.0 + (at % 20) / 10 for at in range(400)]
    assert keeps_up(steady)
    assert not keeps_up([one + at / 40 for at, one in enumerate(steady)])
    assert keeps_up([0.7]) and not keeps_up([0.7, 0.8, 0.9, 5.0])


@pytest.fixture
def bytewax(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program for Bytewax, which has an environment of its own, with stand-ins for it."""
    bases = ("StatelessSourcePartition", "StatelessSinkPartition", "DynamicSource", "DynamicSink")
    for name in ("operators", "dataflow", "inputs", "outputs", "testing"):
        module = MagicMock(**dict.fromkeys(bases, object))
        monkeypatch.setitem(sys.modules, f"bytewax.{name}", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "benchmarks.fig7_bytewax", raising=False)
    return importlib.import_module("benchmarks.fig7_bytewax")


@pytest.fixture
def postgresql(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program for PostgreSQL, likewise."""
    monkeypatch.setitem(sys.modules, "psycopg", MagicMock())
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "benchmarks.fig7_postgres", raising=False)
    return importlib.import_module("benchmarks.fig7_postgres")


def test_a_peer_tries_a_rate_that_is_not_held_once_more_and_then_no_other(
    bytewax: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(bytewax, "say", said.append)
    steps = [[percent, 1e9, 2.0] for percent in (1.0, 10.0, 100.0, 300.0)]
    part = bytewax.Arrivals([(0, 1, 2)] * 20, 2, steps)
    late = iter([False, True, False, True, True])
    while True:
        try:
            given = [doc for _, (doc, _) in part.next_batch()]
        except StopIteration:
            break
        if given and given[0] >= 2 and part.steps:
            at = time.monotonic_ns() + 60 * 10**9 * next(late)
            part.done.update(dict.fromkeys(given, at))
    told = [(one["percent"], one["held"]) for one in said]
    assert told == [(1.0, True), (10.0, False), (10.0, True), (100.0, False), (100.0, False)]


def test_bytewax_does_not_copy_its_state_while_documents_arrive(
    bytewax: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [])
    words = [str(tmp_path / "keys"), "0", "0", str(tmp_path / "labels")]
    monkeypatch.setattr(sys, "argv", ["fig7_bytewax.py", *words])
    bytewax.main()
    # It copies all of it at the end of an epoch; a whole run takes minutes.
    (ran,) = bytewax.testing.run_main.call_args_list
    assert ran.kwargs["epoch_interval"] >= timedelta(hours=6)


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(one) for one in range(1, 201)]
    assert [nearest_rank(values, share) for share in (5, 50, 95, 99)] == [10, 100, 190, 198]
    assert nearest_rank([7.0], 5) == nearest_rank([7.0], 99) == 7.0


def test_notes_keep_the_first_time_and_leave_out_half_a_record(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "one.notes")
    notes.add([4, 5], 100)
    notes.add([5, 6], 200)
    with (tmp_path / "two.notes").open("wb") as file:
        file.write(bytes(7))
    assert count_notes(tmp_path) == 4
    assert read_notes(tmp_path, 5) == {5: 100, 6: 200}


def test_keys_are_read_as_they_were_written(tmp_path: Path) -> None:
    keys = Documents(100).keys(0, 100)
    write_keys(tmp_path / "keys", keys)
    assert read_keys(tmp_path / "keys") == keys


# --- The batch, cross-over and break-even -----------------------------------------------------


def line(*steps: Step, system: str = "a system") -> Line:
    """What a system made of steps."""
    return Line(system, "full", [one.to_json() for one in steps])


def test_a_batch_delays_by_the_rest_of_a_pass_and_the_whole_next_one() -> None:
    batch = Batch.of([Pass(100, 11.0, 1.0), Pass(100, 13.0, 1.0), Pass(300, 32.0, 1.0)])
    assert (batch.fixed, batch.each) == (pytest.approx(2.0), pytest.approx(0.1))
    assert batch.seconds(100, 0.0) == pytest.approx(12.0)
    assert batch.delays(100, 0.0)["p50"] == pytest.approx(18_000)
    # At five a second, a pass of 24 seconds takes the repository and the 120 that came meanwhile.
    assert batch.seconds(100, 5.0) == pytest.approx(24.0)
    assert batch.saturation == pytest.approx(10.0)
    assert batch.seconds(100, 10.0) == float("inf")


def test_a_system_crosses_a_batch_where_it_saturates_or_is_slower() -> None:
    batch = Batch(fixed=10.0, each=0.0)
    quick = Step(100.0, 1.0, 10, 10.0, True, 1.0, (5.0,))
    slow = Step(200.0, 2.0, 10, 10.0, True, 1.0, (16_000.0,))
    late = Step(400.0, 4.0, 10, 4.0, False, 1.0, (9_000.0,))
    assert cross_over(line(quick), batch, 3600) is None
    assert cross_over(line(quick, slow), batch, 3600) == 200.0
    found = line(quick, late)
    assert found.saturation() == 250.0, "it did 2.5 of 4 a second"
    assert cross_over(found, batch, 3600) == 250.0
    assert cross_over(found, Batch(fixed=0.0, each=1.0), 3600) is None, "the batch saturated before"


def test_the_table_tells_of_how_many_documents_the_percentiles_are() -> None:
    few = Step(1.0, 2.78, 22, 8.0, True, 1.0, (5.0,))
    console = Console(width=120, record=True, file=io.StringIO())
    passes = [Pass(10_000, 1.0, 1.0)]
    report = Report(10_000, [line(few)], {"a job": Batch(1.0, 0.0)}, {"a job": passes}, {})
    report.show(console)
    lines = console.export_text().splitlines()
    told = next(one.split() for one in lines if "system, full" in one)
    assert told[-7:] == ["1", "2.78", "22", "5", "5", "5", "5"]


def test_the_figures_are_json_where_a_batch_has_saturated_too() -> None:
    steps = [Step(1.0, 2.0, 10, 5.0, True, 1.0, (5.0,)), Step(9.0, 0.5, 10, 5.0, True, 1.0, (5.0,))]
    passes = [Pass(100, 1.0, 1.0)]
    report = Report(100, [line(*steps)], {"a job": Batch(1.0, 1.0)}, {"a job": passes}, {})
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    batch = {one["percent"]: one for one in found["steps"] if one["system"] == "Spark, a job"}
    assert not batch[1.0]["held"] and "p50" not in batch[1.0]
    assert batch[9.0]["held"] and batch[9.0]["p50"] == pytest.approx(303_000)
    report.show(Console(file=io.StringIO()))


def test_a_pass_breaks_even_at_the_share_that_costs_as_much_by_itself() -> None:
    passes = [Pass(1000, 1.0, 4.0), Pass(1000, 1.0, 6.0), Pass(2000, 1.0, 99.0)]
    assert break_even(50.0, passes, 1000) == pytest.approx(0.1)


# --- Peers ------------------------------------------------------------------------------------


def test_postgresql_warms_up_in_the_program_that_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[Sequence[str]] = []

    def lines(command: Sequence[str]) -> list[dict[str, Any]]:
        commands.append(command)
        if command[-2] == "labels":
            keys = comparison._keys
            told = (f"{doc} {label}\n" for doc, label in enumerate(expected(keys)))
            Path(command[-1]).write_text("".join(told))
        steps = [word.split(":") for word in command if ":" in word]
        return [{"percent": float(percent), "next": 900} for percent, _, _ in steps]

    server = MagicMock()
    server.return_value.__enter__.return_value = MagicMock(dsn="dsn", pid=1, version="15")
    monkeypatch.setattr(fig7.postgres, "environment", lambda *_: Path("python"))
    monkeypatch.setattr(fig7.postgres, "running", server)
    monkeypatch.setattr(fig7, "_lines", lines)
    size = fig7.Size(500, (100.0, 300.0), (), 1.0, 1)
    comparison = fig7.Comparison(tmp_path, size, lambda _: None)
    comparison._keys = comparison.documents.keys(0, 600)
    comparison.postgres(expected(comparison._keys[:500]))
    measured = [one for one in commands if any(word.startswith("300.0:") for word in one)]
    assert len(measured) == 2, "in each durability"
    for command in measured:
        assert [word.split(":")[0] for word in command if ":" in word] == ["0", "100.0", "300.0"]
    for one in comparison.lines:
        assert [step["percent"] for step in one.steps] == [100.0, 300.0]


def test_a_peer_that_fails_on_the_way_shows_no_figures_that_were_not_checked(
    tmp_path: Path,
) -> None:
    comparison = fig7.Comparison(tmp_path, fig7.QUICK, lambda _: None)
    comparison.lines.append(Line("Percola", "full"))

    def measure() -> None:
        comparison.lines.append(Line("PostgreSQL", "relaxed"))
        raise fig7.postgres.PeerError("fig7_postgres.py failed: no space left.")

    comparison.attempt("PostgreSQL", measure)
    assert [one.system for one in comparison.lines] == ["Percola"]
    assert comparison.missing == {"PostgreSQL": "fig7_postgres.py failed: no space left."}


def test_postgresql_has_documents_for_each_rate_twice_in_both_durabilities(
    postgresql: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    comparison = fig7.Comparison(tmp_path, fig7.QUICK, lambda _: None)
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(postgresql, "say", said.append)
    monkeypatch.setattr(postgresql, "add", lambda *_: None)
    monkeypatch.setattr(postgresql, "cpu_of", lambda _: 0.0)
    monkeypatch.setattr(postgresql, "read_keys", lambda _: [(1, 2, 3)] * comparison.total)
    monkeypatch.setattr(
        postgresql, "arrivals", lambda _, count, __: ((at, at + 1) for at in range(count))
    )
    held = itertools.cycle([False, True])

    def step(percent: float, rate: float, first: int, start: int, done: Any, cpu: float) -> Step:
        return Step(percent, rate, len(done), 1.0, next(held) and bool(percent), cpu, (1.0,))

    monkeypatch.setattr(postgresql, "step_of", step)
    count = comparison.size.documents
    for commit in ("off", "on"):
        words = ["0:1e9:20", *fig7._words(comparison.steps)]
        command = ["dsn", "1", "keys", str(count), commit, str(count), str(comparison.total)]
        monkeypatch.setattr(sys, "argv", ["fig7_postgres.py", *command, *words])
        said.clear()
        postgresql.main()
        count = max(one["next"] for one in said)
        held_at = [one["percent"] for one in said if one["held"]]
        assert held_at == [percent for percent, _, _ in comparison.steps], commit


def test_a_server_that_is_unpacked_by_half_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: Sequence[str], cwd: object = None, **_: object) -> Any:
        if command[0] == "apt-get":
            Path(str(cwd), f"{command[-1]}.deb").touch()
        elif command[0] == "dpkg-deb":
            made = Path(command[-1], "usr/lib/postgresql/15/bin")
            if made.exists():
                raise KeyboardInterrupt
            made.mkdir(parents=True)
            (made / "postgres").touch()
        return MagicMock(returncode=0, stdout="Depends: postgresql-15")

    monkeypatch.setattr(fig7.postgres.shutil, "which", str)
    monkeypatch.setattr(fig7.postgres.subprocess, "run", run)
    with pytest.raises(KeyboardInterrupt):
        fig7.postgres._unpack(tmp_path / "peers" / "postgresql")
    assert not list((tmp_path / "peers").rglob("postgres"))


def test_a_peer_is_installed_once_however_many_benchmarks_ask_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []
    given: list[Path] = []

    def ask() -> None:
        given.append(fig7.postgres.environment("peer", ["package"]))

    other = threading.Thread(target=ask)

    def run(command: Sequence[str], **_: object) -> Any:
        made.append(command[1])
        (tmp_path / "peer").mkdir(exist_ok=True)
        if len(made) == 1:
            other.start()
            other.join(0.5)  # It waits for this one; if it did not, it would be through by then.
        return MagicMock(returncode=0)

    monkeypatch.setattr(fig7.postgres, "PEERS", tmp_path)
    monkeypatch.setattr(fig7.postgres.subprocess, "run", run)
    monkeypatch.setattr(fig7.postgres.shutil, "which", str)
    ask()
    other.join()
    assert made == ["venv", "pip"]
    assert given == [tmp_path / "peer" / "bin" / "python"] * 2

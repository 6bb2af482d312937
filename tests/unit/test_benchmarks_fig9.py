"""Figure 9's brokerage keeps its invariants, and a mistake in it is found."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

import percola
from benchmarks import fig9 as benchmark
from benchmarks import fig9_brokerage as fig9
from benchmarks import fig10_brokerage as fig10
from benchmarks import fig10_faults
from benchmarks.fig9_emulator import Emulator, Facts, InvariantError, Size, check, check_reads
from percola import Observer, StoreError, Transaction, Worker, observer

SIZE = Size(20)


def traded(
    brokerage: type[fig9.PercolaBrokerage] = fig9.PercolaBrokerage,
    add_up: Observer[str] = fig9.add_up,
) -> tuple[Facts, list[int]]:
    """What two clients and a worker leave; the orders, results and feeds that were told."""
    with percola.open("memory:", fig9.SCHEMA) as repo:
        fig9.load(repo, SIZE)
        emulators = [Emulator(brokerage(repo, client), SIZE, client) for client in range(2)]
        for _ in range(300):
            for emulator in emulators:
                emulator.step()
        Worker(repo, [add_up]).run_until_idle()
        told = [{"times": one.times} for one in emulators]
        return fig9.facts(repo), benchmark._counts(told)


def test_what_clients_and_the_observer_leave_holds_the_invariants() -> None:
    facts, counts = traded()
    assert counts[1] > 20 and counts[2] > 2
    check(facts, SIZE, *counts)


def forgetting(column: object) -> type[fig9.PercolaBrokerage]:
    """A brokerage whose transactions do not write a column."""

    class Forgetting(fig9.PercolaBrokerage):
        def _run(self, function: Callable[[Transaction], fig9.T]) -> fig9.T:
            def run(t: Transaction) -> fig9.T:
                found = function(t)
                for cell in [one for one in t._writes if (one.table, one.column) == column]:
                    del t._writes[cell]
                return found

            return super()._run(run)

    return Forgetting


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (fig9.done, "completed trades"),
        (fig9.happened, "trade history"),
        (fig9.paid, "cash"),
        (fig9.balance, "balances"),
        (fig9.change, "holding history"),
        (fig9.quantity, "holdings"),
        (fig9.amount, "commissions"),
        (fig9.of_account, "trades by account"),
        (fig9.of_security, "trades by security"),
        (fig9.volume, "volumes of securities"),
    ],
    ids=repr,
)
def test_a_transaction_that_forgets_a_write_is_found(
    column: percola.Column[str, object], told: str
) -> None:
    facts, counts = traded(forgetting(column.address))
    with pytest.raises(InvariantError, match=f"The {told} are"):
        check(facts, SIZE, *counts)


def test_an_observer_that_leaves_out_a_client_is_found() -> None:
    @observer(fig9.due, name="commissions")
    def one_client(t: Transaction, broker: str) -> None:
        t.set(fig9.commission, broker, t.get(fig9.amount, f"{broker}/000") or [0, 0])

    facts, counts = traded(add_up=one_client)
    with pytest.raises(InvariantError, match="The commissions are"):
        check(facts, SIZE, *counts)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("", ""),
        ("by_account", "The trades in a Trade-Status are not .*: 0 and not"),
        ("by_security", "The trades in a Trade-Lookup are not .*: 0 and not"),
        ("accounts", "The accounts in a Customer-Position are not .*: 0 and not"),
        ("done", "The prices in a Trade-Status are"),
        ("holdings", "The values in a Market-Watch are not .*: 0 and not"),
        ("balance", "The cash and values in a Customer-Position are"),
        ("price", "The names and prices in a Security-Detail are"),
    ],
)
def test_reads_that_do_not_find_what_there_is_are_found(
    monkeypatch: pytest.MonkeyPatch, mistake: str, told: str
) -> None:
    with percola.open("memory:", fig9.SCHEMA) as repo:
        fig9.load(repo, SIZE)
        brokerage = fig9.PercolaBrokerage(repo, 0)
        emulator = Emulator(brokerage, SIZE, 0)
        for _ in range(300):
            emulator.step()
        facts = fig9.facts(repo)
        if mistake == "accounts":
            monkeypatch.setattr(brokerage, "customer_position", lambda _: [])
        elif mistake == "price":
            monkeypatch.setattr(brokerage, "security_detail", lambda _: ("Security 0", 1))
        elif mistake:
            # Another table or column, which has no such row.
            other = fig9.paid if mistake in ("done", "balance") else fig9.cash
            monkeypatch.setattr(fig9, mistake, other)
        if not told:
            check_reads(brokerage, facts, SIZE)
        else:
            with pytest.raises(InvariantError, match=told):
                check_reads(brokerage, facts, SIZE)


def test_a_lost_trade_is_found() -> None:
    facts, (orders, results, feeds) = traded()
    with pytest.raises(InvariantError, match="The trades are"):
        check(facts, SIZE, orders + 1, results, feeds)


def test_conflicts_of_the_warm_up_count_no_more_than_its_transactions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Conflicting:
        """Each of its transactions conflicts once."""

        conflicts = 0

        def __getattr__(self, name: str) -> Callable[..., tuple[int, int]]:
            def once(*_: object) -> tuple[int, int]:
                self.conflicts += 1
                return 0, 100

            return once

    emulator = Emulator(cast(Any, Conflicting()), SIZE, 0)
    # Each look at the clock takes a second: five of twenty seconds of work, and fifteen before.
    monkeypatch.setattr("benchmarks.fig9_emulator.time.monotonic", itertools.count().__next__)
    monkeypatch.setattr("sys.stdin", io.StringIO("5 15\n"))
    emulator.serve()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    block = benchmark._block([told], 1.0)
    assert sum(told["warm"].values()) > 10
    assert block["conflicts"] == block["transactions"] > 0


class Dead(benchmark.Process):
    """A process that says that it is ready, and dies."""

    def __init__(self, *_: object) -> None:
        super().__init__([sys.executable, "-c", "print('ready')"])
        self._process.wait()


def test_a_worker_that_died_by_itself_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = benchmark.Process
    monkeypatch.setattr(benchmark, "CUSTOMERS", 20)
    monkeypatch.setattr(
        benchmark,
        "Process",
        lambda command: Dead() if command[-1] == "worker" else process(command),
    )
    with pytest.raises(benchmark.BrokerageError, match="ended early"):
        benchmark.on_percola(str(tmp_path / "repository"), benchmark.PERCOLA[0], 1, 0.2)


def test_a_process_with_more_to_say_than_a_pipe_holds_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, "_DEADLINE", 10.0)
    program = "import sys; print('ready', flush=True); sys.stdin.read(); print('x' * 1_000_000)"
    process = benchmark.Process([sys.executable, "-c", program])
    process.end()
    assert process._process.returncode == 0


def test_a_client_that_died_by_itself_under_faults_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fig10, "Process", Dead)
    working = fig10.Brokerage("memory:", tmp_path, fig10.QUICK, SIZE)
    try:
        with pytest.raises(benchmark.BrokerageError, match="ended early"):
            working.end()
    finally:
        working.close()


def test_who_is_interrupted_while_a_client_starts_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(popen(*arguments, **options))
        return started[0]

    def interrupt(_: benchmark.Process) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark.subprocess, "Popen", start)
    monkeypatch.setattr(benchmark.Process, "hear", interrupt)
    with pytest.raises(KeyboardInterrupt):
        benchmark.Process([sys.executable, "-c", "import signal; signal.pause()"])
    ended = started[0].poll() is not None
    started[0].kill()
    started[0].wait()
    assert ended


def test_clients_that_have_started_are_ended_if_another_one_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = MagicMock()
    processes = iter([first])

    def process(*_: object) -> MagicMock:
        for one in processes:
            return one
        raise benchmark.BrokerageError("The second one has ended.")

    monkeypatch.setattr(fig10, "Process", process)
    with pytest.raises(benchmark.BrokerageError, match="The second one"):
        fig10.Brokerage("memory:", tmp_path, fig10.QUICK, SIZE)
    first.end.assert_called_once_with(kill=True)


class Connection:
    """A stand-in for psycopg's: what the server would be sent, and whether between a BEGIN and a
    COMMIT.
    """

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[tuple[str, bool]] = []
        self._begun = False
        self._fails = fails

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._begun = True
        yield
        self._begun = False

    def cursor(self) -> Connection:
        return self

    def execute(self, statement: str, *_: object, **__: object) -> Connection:
        self.sent.append((statement, self._begun))
        if self._fails:
            self._fails -= 1
            raise ConflictError
        return self

    def fetchone(self) -> tuple[int, ...]:
        return (1, 2, 3, 4)

    def fetchall(self) -> list[tuple[int, ...]]:
        return [(1, 2, 3, 4)]

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ConflictError(Exception):
    """A stand-in for psycopg's errors."""


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program for PostgreSQL, which has an environment of its own, beside a stand-in."""
    errors = SimpleNamespace(SerializationFailure=ConflictError, DeadlockDetected=ConflictError)
    monkeypatch.setitem(sys.modules, "psycopg", MagicMock(errors=errors))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "benchmarks.fig9_postgres", raising=False)
    return importlib.import_module("benchmarks.fig9_postgres")


def test_postgresql_reads_by_one_statement_that_is_not_begun_and_committed_by_others(
    postgres: Any,
) -> None:
    for name in ("trade_lookup", "trade_status", "market_watch", "security_detail"):
        connection = Connection(fails=1)
        brokerage = postgres.PostgresBrokerage(connection)
        getattr(brokerage, name)(7)
        (once, begun), again = connection.sent
        assert once.startswith("select") and not begun and again == (once, False)
        assert brokerage.conflicts == 1
    connection = Connection()
    brokerage = postgres.PostgresBrokerage(connection)
    brokerage.trade_order("t", 1, 2, 3)
    brokerage.trade_result("t")
    assert len(connection.sent) > 8 and all(begun for _, begun in connection.sent)


def test_single_statements_of_postgresql_have_the_isolation_that_is_measured(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection()
    postgres.psycopg.connect.return_value = connection
    monkeypatch.setattr(postgres.Emulator, "serve", lambda _: None)
    postgres.main(["dsn", "off", "REPEATABLE_READ", "20", "0"])
    sent = [statement for statement, _ in connection.sent]
    assert "set default_transaction_isolation = 'repeatable read'" in sent


# --- Under faults (figure 10) -------------------------------------------------------------


def told_under_faults(folder: Path, mistake: str = "") -> str:
    """A client whose every fifth transaction ends with an error; which promise is broken."""
    with percola.open("memory:", fig9.SCHEMA) as repo:
        fig9.load(repo, SIZE)
        brokerage = fig9.PercolaBrokerage(repo, 0)
        run, calls = brokerage._run, itertools.count()

        def failing(function: Callable[[Transaction], fig9.T]) -> fig9.T:
            number = next(calls)
            found = None if number % 10 == 4 else run(function)
            if number % 5 == 4:
                raise StoreError("The connection was cut.")
            return cast(fig9.T, found)

        brokerage._run = failing  # type: ignore[method-assign]
        client = fig10.Client(brokerage, SIZE, 0, log=folder / "0.log")
        for _ in range(300):
            with suppress(StoreError):
                client.step()
        if mistake == "lost":
            client._note("trade_order", "none", "")
        elif mistake == "price":
            run(lambda t: [t.set(fig9.volume, fig9.key(one), 0) for one in range(SIZE.securities)])
        elif mistake == "made up":
            run(lambda t: t.set(fig9.order, "none", [0, 0, 1]))
        Worker(repo, [fig9.add_up]).run_until_idle()
        return fig10.Told.of(folder).broken(fig9.facts(repo), SIZE)


def test_outcomes_that_a_client_does_not_know_may_be_either(tmp_path: Path) -> None:
    assert told_under_faults(tmp_path) == ""


@pytest.mark.parametrize(
    ("mistake", "found"),
    [("lost", "are lost"), ("made up", "never made"), ("price", "prices were recorded")],
)
def test_a_trade_that_is_lost_or_made_up_is_found(tmp_path: Path, mistake: str, found: str) -> None:
    assert found in told_under_faults(tmp_path, mistake)


def test_the_throughput_is_back_when_ten_seconds_have_it() -> None:
    second = 10**9
    # 100 a second for a minute, none for 20 s, half of it for 15 s, then all of it.
    rates = [(60, 100), (20, 0), (15, 50), (60, 100)]
    commits, start = [], 0
    for seconds, each in rates:
        commits += [start + one * second // each for one in range(seconds * each)]
        start += seconds * second
    opened = 82 * second
    assert fig10_faults.recovered(commits, 100.0, opened, start) == pytest.approx(13, abs=1)
    assert fig10_faults.recovered(commits, 100.0, opened, 95 * second) is None

"""`percola serve` on stores behind a network: what it shows there, and what it does not ask for."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import command, environment
from emulator import Emulator, repository
from hbase import HBase
from serve_client import TOKEN, served, words
from stores import at_work, put

import percola
from benchmarks.servers import OracleProcess
from percola import Table, Transaction, Worker, observer
from percola.inspection import failures, locks
from percola.store.counting import CountedStore, StoreCalls
from percola.transactions.two_phase import TwoPhaseCommit

pages = Table("pages")
body = pages.column("body", str, observed=True)
size = pages.column("size", int)


@observer(body)
def measure(t: Transaction, row: str) -> None:
    if t.get(body, row) == "bad":
        raise ValueError("it is bad")
    t.set(size, row, len(t.get(body, row) or ""))


def test_workers_report_calls_and_dead_letters_and_no_whole_table_is_scanned(
    wait_until: Callable[..., Any],
) -> None:
    with Emulator() as emulator:
        repo = repository(CountedStore(emulator.store(), StoreCalls()), [pages])
        worker = Worker(repo, [measure], attempts=1, threads=1, report=0.1)
        with at_work(worker), served(repo, [measure], token=TOKEN) as page:
            assert page.log_in().status_code == 303
            assert "Retry all of measure" in page.part("letters")
            numbers = iter(range(10_000))

            def told() -> Any:
                repo.run(lambda t: t.set(body, f"row {next(numbers)}", "text"))
                last = page.samples()[-1]
                return last["runs"] and last["p95"] and page.part("details")

            details = wait_until(told, what="what the worker reports", seconds=60)
            assert all(kind in details for kind in ("read", "mutate", "look"))
            repo.run(lambda t: t.set(body, "poor", "bad"))
            problem = "1 change of measure is dead-lettered since the workers started"
            wait_until(lambda: problem in page.words(), what="the dead letter", seconds=60)
            letters = page.part("letters")
            assert "Not listed" in letters and "percola failed list" in letters
            assert "Not counted" in details and "percola locks" in details
            assert "percola failed list" not in page.part("observers")
            assert [one.cell.row for one in failures(repo)] == [b"poor"]
            assert not list(locks(repo))

            # Also those from before the workers started are retried, of any observer.
            put(repo, body, "poor", "good", notify=False)
            page.act(retry_all="measure")
            wait_until(lambda: repo.snapshot().get(size, "poor") == 4, what="the retry", seconds=60)
            assert not list(failures(repo))
            assert page.act(pause="measure").status_code == 303
            assert "paused" in page.part("observers")
            page.act(resume="measure")


PROGRAM = """
from percola import Table, observer
pages = Table("pages"); body = pages.column("body", str, observed=True)
size = pages.column("size", int)

@observer(body)
def measure(t, row):
    t.set(size, row, len(t.get(body, row) or ""))
"""


@pytest.mark.long
def test_a_page_of_a_repository_on_hbase_shows_workers_of_other_processes(
    hbase: HBase, tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    with ExitStack() as stack:
        place = hbase.place()
        store = f"hbase://{place.quorum}/{place.namespace}"
        oracle = stack.enter_context(OracleProcess(store))
        address = f"{store}?oracle={oracle.address}&zookeeper={place.quorum}"
        repo = stack.enter_context(percola.open(address, [pages], lock_ttl_seconds=3600))

        def start(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                command("--repo", address, *words),
                cwd=tmp_path,
                env=environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        repo.run(lambda t: t.set(body, "poor", "bad"))
        Worker(repo, [measure], attempts=1, threads=1).run_until_idle()
        worker = start("worker", "app:measure")
        server = start("serve", "--port", "0")
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        client = stack.enter_context(httpx.Client(base_url=found[0], trust_env=False, timeout=60))
        numbers = iter(range(10_000))

        def told() -> Any:
            repo.run(lambda t: t.set(body, f"row {next(numbers)}", "text"))
            answer = client.get("/live.json").json()
            last = answer["samples"][-1]
            return last["runs"] and last["p95"] and answer

        answer = wait_until(told, what="what the worker reports", seconds=60)
        assert not answer["trouble"] and answer["samples"][-1]["failed"] == 1
        details = words(answer["parts"]["details"]["text"])
        assert f"{worker.pid} on {os.uname().nodename}" in details and "mutate" in details
        assert "measure pages.body in 1 process" in words(answer["parts"]["observers"]["text"])

        # Dead letters and locks are few in families of their own there: they are listed.
        t = repo.transaction(two_phase=True)
        t.set(size, "locked", 1)
        cells = list(t._writes)
        TwoPhaseCommit(t._context, t.start_ts, t._writes).prewrite([cells], cells[0])

        def listed() -> Any:
            parts = client.get("/live.json").json()["parts"]
            told = {name: words(one["text"]) for name, one in parts.items()}
            # The worker may hold a lock of its own for a moment.
            locked = "1 locked cell" in told["details"] and "size" in told["details"]
            return "it is bad" in told["letters"] and locked and told

        told = wait_until(listed, what="the dead letter and the lock", seconds=60)
        assert "measure poor" in told["letters"]
        t.rollback()

"""The arithmetic of the benchmarks on servers: what a fault did, what each call was for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from benchmarks import fig10_faults, servers, tablets
from benchmarks.fig8_network import _steps
from benchmarks.fig10_bank import amount_of
from benchmarks.fig10_faults import effects
from benchmarks.fig10_load import Bank, Event, Verdict
from benchmarks.lockstep import LockstepError, child
from percola import PercolaError
from percola.devcluster import Cluster, ClusterError, jars

SECOND = 10**9


def test_a_fault_is_told_by_the_longest_silence_after_it_and_by_the_rates_around_it() -> None:
    # Ten commits a second for 20 s, none for 4, then five a second for 20.
    before = [at * SECOND // 10 for at in range(200)]
    after = [24 * SECOND + at * SECOND // 5 for at in range(100)]
    events = [Event("killed", 20 * SECOND), Event("end", 44 * SECOND, is_fault=False)]
    [found] = effects(events, before + after)
    assert (found.name, found.at, found.lowest) == ("killed", 20.0, 0.0)
    assert found.without == pytest.approx(4.0)
    assert found.before == pytest.approx(10.0)
    assert found.after == pytest.approx(5.0)


def test_a_silence_that_lasts_until_the_end_counts_and_one_before_the_fault_does_not() -> None:
    events = [Event("killed", 5 * SECOND), Event("end", 9 * SECOND, is_fault=False)]
    [found] = effects(events, [0, 4 * SECOND, 6 * SECOND])
    assert found.without == pytest.approx(3.0)


def test_each_fault_has_the_time_until_the_next_one_and_what_is_mended_ends_nothing() -> None:
    events = [
        Event("one", 0),
        Event("mended", 1 * SECOND, is_fault=False),
        Event("two", 4 * SECOND),
        Event("end", 8 * SECOND, is_fault=False),
    ]
    one, two = effects(events, [0, 3 * SECOND, 5 * SECOND])
    assert one.without == pytest.approx(3.0)
    assert two.without == pytest.approx(3.0)


def test_the_calls_of_a_transaction_are_named_by_their_places() -> None:
    assert _steps(["timestamp", "mutate", "mutate", "timestamp", "mutate", "rest"]) == [
        "start_ts",
        "prewrite, primary",
        "prewrite, others",
        "commit_ts",
        "commit, primary",
        "Python",
    ]
    assert _steps(["read_timestamp", "read", "rest"]) == ["start_ts", "read", "Python"]


def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """All processes that the benchmarks' servers start from now on."""
    found: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        found.append(start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


def test_who_is_interrupted_while_an_oracle_starts_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    processes = started(monkeypatch)
    monkeypatch.setattr(servers.json, "loads", interrupt)
    waits = "print('{}', flush=True); import signal; signal.pause()"
    with pytest.raises(KeyboardInterrupt):
        servers.OracleProcess("memory:", prefix=(sys.executable, "-c", waits))
    (process,) = processes
    ended = process.poll() is not None
    process.kill()
    process.wait()
    assert ended


def test_an_oracle_or_worker_that_ends_at_once_is_told_with_its_reason() -> None:
    because = "ended at once: A memory repository lives and ends with the program"
    with pytest.raises(servers.ServerError, match=because):
        servers.OracleProcess("memory:")
    with pytest.raises(PercolaError, match=because), tablets.worker("memory:"):
        pass


def test_an_emulator_that_ends_at_once_is_told_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "scripts" / "bigtable_emulator.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho false\n")
    script.chmod(0o755)
    monkeypatch.setattr(servers, "ROOT", tmp_path)
    monkeypatch.setattr(servers, "_DEADLINE", 20.0)
    because = "false ended at once instead of listening on port"
    with pytest.raises(servers.ServerError, match=because), servers.emulator():
        pass


def test_if_the_second_oracle_does_not_start_the_first_one_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracles: list[MagicMock] = []

    def oracle(store: str) -> MagicMock:
        if oracles:
            raise servers.ServerError(f"No second oracle of {store}.")
        oracles.append(MagicMock())
        return oracles[0]

    monkeypatch.setattr(fig10_faults, "OracleProcess", oracle)
    monkeypatch.setattr(jars, "install_all", lambda: None)
    with pytest.raises(servers.ServerError), fig10_faults.with_oracles(MagicMock()):
        pass
    oracles[0].kill.assert_called_once()


def test_a_benchmark_whose_child_dies_says_so_in_a_sentence() -> None:
    # `os._exit` is given the pipe for its exit code, and dies of that.
    with pytest.raises(LockstepError, match="'_exit' failed"), child(os._exit) as pipe:
        pipe.recv()


def test_a_balance_is_the_number_before_its_mark() -> None:
    assert [amount_of(one) for one in ("93 c1.2-17", "-4 x", None)] == [93, -4, 0]


def test_commits_are_counted_by_client_once_a_line_has_its_end(tmp_path: Path) -> None:
    bank = Bank(tmp_path, "nowhere", clients=0)
    with open(tmp_path / "c1.1.jsonl", "w") as one, open(tmp_path / "c2.1.jsonl", "w") as two:
        one.write('{"outcome":"committed"}\n{"outcome":"aborted"}\n{"outcome":"comm')
        two.write('{"outcome":"committed"}\n')
        one.flush(), two.flush()
        assert (bank.commits(), bank.commits("c1")) == (2, 1)
        one.write('itted"}\n')
        one.flush()
        assert (bank.commits(), bank.commits("c1")) == (3, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"total": 5999}, "come to 5999"),
        ({"violations": "T1 read"}, "none of snapshot isolation"),
        ({"locks": 1}, "1 locks are left"),
        ({"checked": {"sound": False}}, "percola check"),
        ({"checked": {}}, "percola check"),
    ],
)
def test_a_promise_that_is_not_kept_is_named(wrong: dict[str, object], said: str) -> None:
    from collections import Counter

    good: dict[str, object] = {
        "total": 6000,
        "violations": "",
        "locks_left": 3,
        "locks": 0,
        "checked": {"sound": True},
        "outcomes": Counter(),
        "errors": [],
        "history": [],
    }
    assert Verdict(**good).broken() == []  # type: ignore[arg-type]
    [found] = Verdict(**{**good, **wrong}).broken()  # type: ignore[arg-type]
    assert said in found


def test_a_cluster_remembers_where_its_servers_are(tmp_path: Path) -> None:
    away = {"regionserver-2": ("10.0.0.3", "far")}
    cluster = Cluster(tmp_path, region_servers=2, host="10.0.0.1", away=away, first_port=21_000)
    assert cluster.quorum == "10.0.0.1:21000"
    cluster.layout.save(tmp_path)
    again = Cluster(tmp_path, away=away)
    assert again.layout == cluster.layout
    hosts = [again.layout.host_of(name) for name in ("regionserver-1", "regionserver-2", "master")]
    assert hosts == ["10.0.0.1", "10.0.0.3", "10.0.0.1"]
    with pytest.raises(ClusterError, match="host"):
        Cluster(tmp_path, host="127.0.0.1")
    with pytest.raises(ClusterError, match="Only region servers"):
        Cluster(tmp_path / "other", away={"master": ("10.0.0.3", "far")})

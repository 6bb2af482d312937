"""`locks`: which cells are locked, by which transactions, and whether their owners live."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import call, is_error, run
from joints import TABLES, TTL, joint, row, title, write
from stores import Program

import percola
from percola import LockTimeoutError, Table
from percola.cells import MAX_TS, Cell, Kind
from percola.clock import Clock
from percola.coordination.local.coordination import LocalCoordination


def test_locks_shows_transactions_their_cells_and_whether_the_owner_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "locked"
    table = Table("bank")
    table.column("bal", int, observed=True)
    percola.open(folder, schema=[table]).close()
    assert run("--repo", folder, "locks").out == "No cell is locked.\n"
    assert run("--repo", folder, "locks", "--json").json == {"locks": []}
    with Program("crashing_writer.py", folder, 3) as program:
        program.expect("stopped")
        answer = run("--repo", folder, "locks")
        lines = answer.out.splitlines()
        assert "which is alive" in lines[0] and "Nothing is wrong" not in answer.out
        assert lines[1:] == ["  bank['a'].bal  (primary)", "  bank['b'].bal", "  bank['c'].bal"]
        # A job of Spark may hold a million.
        few = call("--repo", folder, "locks", "--limit", 2).out.splitlines()
        assert few[1:] == [*lines[1:3], "  … and 1 more (--limit 0 shows all)"]
        assert call("--repo", folder, "locks", "--limit", 0).out.splitlines()[1:] == lines[1:]
        two = call("--repo", folder, "locks", "--limit", 2, "--json").json["locks"]
        assert [one["row"] for one in two] == ["a", "b"]
        live = [{"token": two[0]["owner"], "pid": 1, "host": "worker-a", "observers": {}}]
        with monkeypatch.context() as patched:  # As on a cluster.
            patched.setattr(LocalCoordination, "processes", lambda coordination: live)
            pid = two[0]["owner"].partition("-")[0]
            out = call("--repo", folder, "locks").out
            assert f"of process {pid} on worker-a, which is alive" in out
        program.kill()
    answer = run("--repo", folder, "locks")
    assert "which has ended" in answer.out and "whoever reads or writes" in answer.out
    found = run("--repo", folder, "locks", "--json").json["locks"]
    assert [(one["row"], one["is_primary"], one["owner_alive"]) for one in found] == [
        ("a", True, False),
        ("b", False, False),
        ("c", False, False),
    ]
    assert all(one["primary"]["row"] == "a" and one["age_seconds"] >= 0 for one in found)
    assert "3, 3 of them of ended processes" in run("--repo", folder, "status").out
    # Whoever reads the primary undoes it there; the other locks then name a decided primary.
    assert is_error(run("--repo", folder, "get", "a", "bal"), "no value")
    out = run("--repo", folder, "locks").out
    assert "its primary, bank['a'].bal, is decided already" in out
    for name in ("b", "c"):
        run("--repo", folder, "get", name, "bal")
    assert run("--repo", folder, "locks").out == "No cell is locked.\n"


def test_the_locks_of_a_job_of_spark_are_its_own_and_of_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no owner's token, and live by their primary, which the job refreshes."""
    where = ("--repo", tmp_path / "repo", "locks")
    with percola.open(tmp_path / "repo", TABLES, lock_wait_seconds=0.01) as repo:
        write(joint(repo), 0, [row("a", "new")])
        head, *_ = call(*where).out.splitlines()
        assert head.startswith("Transaction 4 of the job 'job', which is alive; refreshed")
        cell = Cell("docs", b"a", title.key)
        [(start_ts, raw)] = repo.context.store.entries(cell, Kind.LOCK, 0, MAX_TS)
        with pytest.raises(LockTimeoutError, match=r"\(owner a job of Spark\)"):
            repo.context.resolver.wait_out(cell, start_ts, raw)
        later = Clock.wall_ms
        monkeypatch.setattr(Clock, "wall_ms", lambda clock: later(clock) + int(TTL * 2000))
        head, *_ = call(*where).out.splitlines()
        assert (
            "the job 'job', which is silent: the next client that meets its locks undoes it" in head
        )

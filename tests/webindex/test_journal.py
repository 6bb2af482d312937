"""The journal: reports are kept for a while, and its table does not grow for ever."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from percola import Repository, Worker
from webindex import journal, tables
from webindex.reports.summary import summarise


def work(repo: Repository) -> int:
    worker = Worker(repo, [journal.trim], first_wait=0.001)
    worker.run_until_idle()
    return int(worker.metrics.counts()["observer_runs"]["trim"])


def reports(repo: Repository, kind: str) -> list[int]:
    rows = repo.snapshot().scan(tables.journal, prefix=f"{kind}/", columns=[tables.report])
    return [int(row.key.rpartition("/")[2]) for row in rows]


def write(repo: Repository, kind: str, numbers: range, **report: object) -> None:
    with repo.transaction() as t:
        for n in numbers:
            journal.keep(t, kind, n, dict(report))
        t.notify(tables.trim_due, journal.EXPORT)


def test_reports_of_exports_are_kept_for_an_hour(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "STEP", 10)
    now = time.time_ns() // 1_000_000
    old, new = now - journal.EXPORTS_MS - 60_000, now - journal.EXPORTS_MS + 600_000
    write(repo, "export", range(1, 36), at_ms=old, latency_ms=[1])
    write(repo, "export", range(36, 60), at_ms=new, latency_ms=[1])
    assert work(repo) == 4
    assert reports(repo, "export") == list(range(36, 60))
    write(repo, "export", range(60, 61), at_ms=now, latency_ms=[1])
    assert work(repo) == 1
    assert reports(repo, "export") == list(range(36, 61))


def test_a_clock_that_was_ahead_keeps_no_reports_for_longer(repo: Repository) -> None:
    now = time.time_ns() // 1_000_000
    write(repo, "export", range(1, 3), at_ms=now + 24 * journal.EXPORTS_MS, latency_ms=[1])
    write(repo, "export", range(3, 9), at_ms=now - 2 * journal.EXPORTS_MS, latency_ms=[1])
    write(repo, "export", range(9, 10), at_ms=now, latency_ms=[1])
    work(repo)
    assert reports(repo, "export") == [9]


def test_a_number_of_reports_of_loads_is_kept_and_what_older_ones_counted(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "STEP", 4)
    monkeypatch.setattr(journal, "KEPT", {"load": 5, "rank": 3})
    report = {"rejected": {"damaged": 2, "no URL": 1}, "loaded": {"unchanged": 7, "cut": 1}}
    for start in (1, 14):
        write(repo, "load", range(start, start + 13), **report)
        before = summarise(repo)
        work(repo)
        assert reports(repo, "load") == list(range(start + 8, start + 13))
        after = summarise(repo)
        assert before == after
    assert ("Cut off", "26 captures of long pages, over all loads") in after.rows()
    assert ("Cut off", "1 capture of long pages, over all loads") in replace(after, cut=1).rows()
    assert (after.rejected, after.unchanged, after.cut) == (3 * 26, 7 * 26, 26)
    write(repo, "rank", range(1, 10), run=1)
    work(repo)
    assert reports(repo, "rank") == [7, 8, 9]

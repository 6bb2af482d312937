"""`percola gc`: what it removes, what it says, and which retentions it takes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from commands import bal, call, folder, is_error, put, repo, run, title

from percola import Repository, SnapshotTooOldError

__all__ = ["folder", "repo"]


def test_gc_removes_what_nobody_reads_and_says_what(repo: Repository) -> None:
    for value in range(5):
        put(repo, bal, "Bob", value)
    repo.run(lambda t: t.set(title, "a", "x"))
    repo.run(lambda t: t.delete(title, "a"))
    answer = run("--repo", repo.address, "gc", "--retention", "0")
    assert answer.code == 0, answer
    assert "Looked at 2 cells; removed 5 superseded versions, 1 deleted cell." in answer.out
    assert f"can be read from timestamp {repo.snapshot().start_ts} on" in answer.out
    assert [value for _, value in repo.versions(bal, "Bob")] == [4]
    with pytest.raises(SnapshotTooOldError):
        repo.snapshot(1)
    again = run("--repo", repo.address, "gc", "--retention", "0")
    assert "Nothing to do: there has been no later safe point" in again.out
    told = call("--repo", repo.address, "--json", "gc", "--retention", "0").json
    assert told["complete"] is True
    assert told["versions"] == 0


def test_gc_says_who_keeps_it_from_removing_more(repo: Repository) -> None:
    put(repo, bal, "Bob", 1)
    with repo.snapshot() as snapshot:
        put(repo, bal, "Bob", 2)
        answer = run("--repo", repo.address, "gc", "--retention", "0")
        reading = f"a snapshot at {snapshot.start_ts} is still being read by process {os.getpid()}"
        assert f"Not later, because {reading} (user " in answer.out
        assert snapshot.get(bal, "Bob") == 1


def test_gc_names_a_reader_also_where_its_user_has_no_name(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as a user of no account there; a worker ended by it."""

    def fail(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("percola.platform.file_locks.pwd.getpwuid", fail)
    put(repo, bal, "Bob", 1)
    with repo.snapshot():
        put(repo, bal, "Bob", 2)
        answer = call("--repo", repo.address, "gc", "--retention", "0")
        assert f"is still being read by process {os.getpid()} (user {os.getuid()}, " in answer.out


def test_gc_names_a_reader_also_if_the_kernel_has_cut_its_name_within_a_letter(
    repo: Repository,
) -> None:
    name = Path("/proc/self/comm")
    before = name.read_bytes()
    put(repo, bal, "Bob", 1)
    with repo.snapshot():
        put(repo, bal, "Bob", 2)
        name.write_bytes("обработчик.py".encode())
        try:
            answer = call("--repo", repo.address, "gc", "--retention", "0")
        finally:
            name.write_bytes(before)
        assert f"by process {os.getpid()} (user " in answer.out and ", 'обработ" in answer.out


def test_a_hold_that_keeps_it_from_removing_more_is_listed_and_released(repo: Repository) -> None:
    where = ("--repo", repo.address)
    assert run(*where, "holds").out == "There are no retention holds.\n"
    put(repo, bal, "Bob", 1)
    held = repo.snapshot().start_ts
    put(repo, bal, "Bob", 2)
    repo.hold(held, 3600.0, name="list")  # The name of a command, too.
    repo.hold(held + 1, 3600.0, name="frame")
    assert f"'list' holds {held} back" in run(*where, "gc", "--retention", "0").out
    lines = run(*where, "holds").out.splitlines()
    assert [one.split()[:2] for one in lines[-2:]] == [
        ["list", f"{held}"],
        ["frame", f"{held + 1}"],
    ]
    listed = call(*where, "--json", "holds", "list").json["holds"]
    assert [(one["name"], one["ts"]) for one in listed] == [("list", held), ("frame", held + 1)]
    assert all(one["until_ms"] > time.time() * 1000 for one in listed)

    assert is_error(call(*where, "holds", "release", "lists"), "There is no hold 'lists'")
    assert run(*where, "holds", "release", "list").out == "Released 'list'.\n"
    assert [one.name for one in repo.holds()] == ["frame"]
    run(*where, "holds", "release", "frame")
    run(*where, "gc", "--retention", "0")
    assert [value for _, value in repo.versions(bal, "Bob")] == [2]


def test_the_first_gc_with_a_retention_begins_to_note_the_time(repo: Repository) -> None:
    put(repo, bal, "Bob", 1)
    put(repo, bal, "Bob", 2)
    # Of the second one, too, what it says has to be so.
    for _ in range(2):
        answer = call("--repo", repo.address, "gc")
        assert answer.code == 0
        assert "Nothing to remove yet: a version is removed once it has been" in answer.out
        assert "times that workers and each 'percola gc' record" in answer.out
    assert len(repo.versions(bal, "Bob")) == 2


@pytest.mark.parametrize("retention", ["soon", "5", "-1h", "1w", "", "1h30m"])
def test_a_retention_that_is_no_duration_is_refused(repo: Repository, retention: str) -> None:
    answer = call("--repo", repo.address, "gc", f"--retention={retention}")
    assert is_error(answer, "is not a duration", "24h")
    worker = call("--repo", repo.address, "worker", "a:b", f"--retention={retention}")
    assert is_error(worker, "is not a duration", "24h")

"""The commands `check`, `backup` and `restore`."""

from __future__ import annotations

import importlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import (
    SECONDS,
    Answer,
    answer_of,
    bal,
    call,
    command,
    contents,
    environment,
    folder,
    is_error,
    on_a_terminal,
    put,
    repo,
    run,
    running,
    title,
)

import percola
from percola import Repository, inspection
from percola.cells import DeadLetter, Kind, Op, encode_dead_letter, encode_write, failed_column
from percola.cli import json_output
from percola.maintenance.backup import Backup, restore
from percola.store.base import Delete, Put, RowMutation

__all__ = ["folder", "repo"]


def lose_data(repo: Repository, *rows: str) -> None:
    """Lose the data of a long title of each row, as no crash can."""
    for row in rows:
        commit_ts = put(repo, title, row, "long" * 100)
        start_ts = commit_ts - 1
        lost = RowMutation("docs", row.encode(), (), [Delete(Kind.DATA, b"title", start_ts)])
        repo.context.store.mutate([lost])


# --- check ------------------------------------------------------------------------------


def test_check_of_a_sound_repository_says_what_it_walked(folder: Path, repo: Repository) -> None:
    put(repo, contents, "a", b"body" * 100)
    put(repo, bal, "Bob", 10)
    answer = call("--repo", folder, "check")
    assert answer.code == 0 and "sound: no rule is broken" in answer.out
    told = {line.split("  ")[0]: line.split()[-1] for line in answer.out.splitlines() if line}
    assert told["rows"] == "2" and "long values" in told and "notifications" in told
    document = call("--repo", folder, "--json", "check").json
    assert document["sound"] is True and document["findings"] == []
    assert document["counts"]["rows"] == document["counts"]["writes"] == 2


def test_check_tells_what_is_broken_and_draws_the_cell(folder: Path, repo: Repository) -> None:
    lose_data(repo, "a")
    answer = run("--repo", folder, "check")
    assert answer.code == 1 and answer.err == ""
    assert "error: docs['a'].title has a write record at" in answer.out
    assert "(write-without-data)" in answer.out
    assert "docs['a'].title\n" in answer.out and "data @" in answer.out
    assert "damaged: 1 error, 0 notes" in answer.out
    document = run("--repo", folder, "check", "--json")
    assert document.code == 1
    (finding,) = document.json["findings"]
    assert finding["rule"] == "write-without-data" and finding["severity"] == "error"
    assert (finding["table"], finding["row"], finding["column"]) == ("docs", "a", "title")
    assert finding["message"] in answer.out


def test_check_shows_the_findings_asked_for_and_counts_all(folder: Path, repo: Repository) -> None:
    lose_data(repo, *"abcdefgh")
    answer = call("--repo", folder, "check", "--limit", 2)
    assert answer.code == 1
    assert answer.out.count("error: ") == 2 and "and 6 more" in answer.out
    document = call("--repo", folder, "check", "--limit", 2, "--json").json
    assert len(document["findings"]) == 2 and document["counts"]["errors"] == 8


def test_check_of_a_column_not_observed_when_written_names_the_rerun(tmp_path: Path) -> None:
    place = tmp_path / "new"
    assert call("--repo", place, "init", "--column", "shop.price:int").code == 0
    for row in ("a", "b"):
        assert call("--repo", place, "set", row, "price", "1").code == 0
    assert call("--repo", place, "init", "--column", "shop.price:int:observed").code == 0
    answer = call("--repo", place, "check")
    assert answer.code == 1 and answer.out.count("(lost-notification)") == 2
    end = answer.out.splitlines()[-1]
    assert end.startswith("The repository has 2 errors, 0 notes. They are changes without a")
    assert "'percola rerun OBSERVER'" in end and "backup" not in end
    end = call("--repo", place, "check", "--limit", 1).out.splitlines()[-1]
    assert "Those that are shown are changes without a notification" in end
    # With other errors a backup is what is left.
    with percola.open(place) as repo:
        ts = repo.context.oracle.timestamp()
        repo.context.store.mutate(
            [RowMutation("shop", b"a", (), [Put(Kind.WRITE, b"price", ts, b"junk")])]
        )
    assert "restore a backup" in call("--repo", place, "check").out


def test_check_with_notes_only_ends_well(folder: Path, repo: Repository) -> None:
    put(repo, contents, "a", b"body")
    ts = repo.context.oracle.timestamp()
    notify = RowMutation("docs", b"a", (), [Put(Kind.NOTIFY, b"contents", ts, b"")])
    repo.context.store.mutate([notify])
    answer = call("--repo", folder, "check")
    assert answer.code == 0
    assert "note: docs['a'].contents has a notify entry" in answer.out
    assert "sound: no rule is broken, 1 note" in answer.out


def test_check_survives_what_nothing_else_can_read(folder: Path, repo: Repository) -> None:
    ts = repo.context.oracle.timestamp()
    junk = [Put(Kind.WRITE, b"bal", ts, b"junk"), Put(Kind.LOCK, b"\x1b[31m", ts, b"junk")]
    repo.context.store.mutate([RowMutation("bank", b"\xff\x1b[0m", (), junk)])
    bad = encode_write(Op.PUT, ts - 1, b"no number")
    repo.context.store.mutate([RowMutation("bank", b"Bob", (), [Put(Kind.WRITE, b"bal", ts, bad)])])
    answer = run("--repo", folder, "check")
    assert answer.code == 1 and "\x1b" not in answer.out and answer.err == ""
    for rule in ("undecodable-write", "undecodable-lock", "undecodable-row", "unknown-column"):
        assert f"({rule})" in answer.out
    assert "is not int: b'no number'" in answer.out
    repo.context.store.mutate([RowMutation("bank", b"Joe", (), junk[:1])])
    assert is_error(run("--repo", folder, "history", "Joe", "bank.bal"), "percola check")


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"observer": "o"}'])
def test_a_damaged_dead_letter_is_told_in_a_sentence(
    folder: Path, repo: Repository, raw: bytes
) -> None:
    put(repo, contents, "a", b"body")
    letter = Put(Kind.FAILED, failed_column("o", b"contents"), 1, raw)
    repo.context.store.mutate([RowMutation("docs", b"a", (), [letter])])
    for words in (["failed"], ["failed", "retry", "--all"], ["status"]):
        assert is_error(run("--repo", folder, *words), "dead-letter record", "percola check")
    assert call("--repo", folder, "failed", "--json").json["error"]["kind"] == "DamagedRecordError"
    # Those before it are printed, and the error is a document of its own.
    letter = DeadLetter("o", "contents", 5, 0, "ValueError", "Traceback")
    before = Put(Kind.FAILED, failed_column("o", b"contents"), 1, encode_dead_letter(letter))
    repo.context.store.mutate([RowMutation("docs", b"A", (), [before])])
    listed, error = call("--repo", folder, "failed", "--json").lines
    assert [one["row"] for one in listed["failures"]] == ["A"] and list(error) == ["error"]


@pytest.mark.parametrize("verb", ["failed", "locks"])
def test_a_document_of_millions_is_printed_as_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """It would take gigabytes of memory, as tracebacks have kilobytes each."""
    alive, most = 0, 0

    class Document(dict[str, int]):
        def __init__(self, *_: object) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            super().__init__(ts=1)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def found(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        return (SimpleNamespace(start_ts=1) for _ in range(100))

    read = {"failed": "failures", "locks": "locks"}[verb]
    monkeypatch.setattr(inspection, read, found)
    for kind in ("failure_json", "held_lock_json"):
        monkeypatch.setattr(json_output, kind, Document)
    [listed] = call("--repo", folder, verb, "--json").json.values()
    assert len(listed) == 100 and most <= 2


def test_check_compares_derived_tables(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "from percola import Table",
        "from percola.recipes import Sums",
        "orders = Table('orders')",
        "spent = Sums('spent', orders, {'euros': int})",
        "SCHEMA = [orders, *spent.tables]",
    )
    (tmp_path / "tallied.py").write_text("\n".join(program))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tallied", raising=False)
    tallied = importlib.import_module("tallied")
    words = ("check", "--recipes", "tallied:spent")
    with percola.open(tmp_path / "shop", tallied.SCHEMA) as repo:
        for who in ("Ann", "Bob"):
            with repo.transaction() as t:
                tallied.spent.contribute(t, f"of {who}", {who: {"euros": 3}})
        answer = call("--repo", tmp_path / "shop", *words)
        assert answer.code == 0 and "what was contributed" in answer.out
        with repo.transaction() as t:
            t.set(tallied.spent.measures["euros"], "Ann", 4)
            t.set(tallied.spent.count, "Bob", 2)
    answer = call("--repo", tmp_path / "shop", *words, "--limit", 1)
    told = ["spent['Ann'] has euros = 4; it should be 3.", "1 more differences were found."]
    assert answer.code == 1 and answer.out.splitlines() == told
    document = call("--repo", tmp_path / "shop", "--json", *words).json
    assert document["sound"] is False and document["differences"][0] == told[0]
    assert len(document["differences"]) == 2
    assert is_error(call("--repo", folder, *words), "spent")
    wrong = call("--repo", tmp_path / "shop", "check", "--recipes", "tallied:SCHEMA")
    assert is_error(wrong, "Sums, Distinct, Tree, Index or Export")
    wrong = call("--repo", tmp_path / "shop", "check", "--recipes", "tallied:Sums")
    assert is_error(wrong, "Sums, Distinct, Tree, Index or Export", "It holds the class Sums")


# --- backup and restore -----------------------------------------------------------------


def test_a_backup_is_restored_and_both_say_what_they_did(
    folder: Path, repo: Repository, tmp_path: Path
) -> None:
    last = put(repo, bal, "Bob", 10)
    file, other = tmp_path / "backup", tmp_path / "other"
    answer = run("--repo", folder, "backup", file)
    assert answer.code == 0 and f"as of timestamp {last}" in answer.out and answer.err == ""
    put(repo, bal, "Bob", 11)
    answer = run("--repo", other, "restore", file)
    assert answer.code == 0 and f"timestamp {last}" in answer.out
    assert "durability relaxed" in answer.out and answer.err == ""
    assert run("--repo", other, "get", "Bob", "bal").out == "10\n"
    assert run("--repo", other, "check").code == 0
    made = call("--repo", folder, "backup", tmp_path / "second", "--json").json
    again = call("--repo", tmp_path / "third", "--json", "restore", tmp_path / "second").json
    assert made["timestamp"] == again["timestamp"] == last + 1
    assert made["file"] == str(tmp_path / "second") and again["repository"].endswith("third")


def test_a_backup_goes_through_a_pipe(folder: Path, repo: Repository, tmp_path: Path) -> None:
    put(repo, contents, "a", os.urandom(300_000))
    put(repo, bal, "Bob", 10)
    with running("--repo", folder, "backup", "-") as give:
        take = subprocess.run(
            command("--repo", tmp_path / "other", "restore", "-"),
            stdin=give.out,
            capture_output=True,
            env=environment(),
            timeout=SECONDS,
        )
        assert "Backed up" in give.err.read()
        assert give.process.wait(SECONDS) == take.returncode == 0 and b"Restored" in take.stdout
    assert call("--repo", tmp_path / "other", "get", "Bob", "bal").out == "10\n"


def test_a_backup_whose_reader_goes_away_ends_quietly(folder: Path, repo: Repository) -> None:
    put(repo, contents, "a", os.urandom(3_000_000))
    with running("--repo", folder, "backup", "-") as give:
        os.read(give.out.fileno(), 100)
        give.out.close()
        assert give.err.read() == ""
        assert give.process.wait(SECONDS) == 1


def test_a_backup_is_not_written_to_a_terminal(folder: Path) -> None:
    primary, secondary = pty.openpty()
    answer = run("--repo", folder, "backup", "-", stdout=secondary)
    os.close(secondary)
    os.close(primary)
    assert answer.code == 1 and "not text for a terminal" in answer.err


@pytest.mark.parametrize("damage", ["short", "changed", "other", "empty"])
def test_a_damaged_backup_is_refused_in_words(folder: Path, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "backup"
    assert call("--repo", folder, "backup", file).code == 0
    raw = file.read_bytes()
    changed = raw[:9000] + bytes([raw[9000] ^ 1]) + raw[9001:]
    file.write_bytes({"short": raw[:-1], "changed": changed, "other": b"x" * 99}.get(damage, b""))
    answer = call("--repo", tmp_path / "other", "restore", file)
    assert is_error(answer, "backup") and not (tmp_path / "other").exists()
    with file.open("rb") as given:
        piped = run("--repo", tmp_path / "other", "restore", "-", stdin=given.read())
    assert is_error(piped, "backup") and not (tmp_path / "other").exists()


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    assert call("--repo", folder, "backup", file).code == 0
    assert is_error(call("--repo", folder, "backup", file), "overwrites nothing")
    assert is_error(call("--repo", folder, "restore", file), "overwrites nothing")
    answer = call("--repo", folder, "--json", "backup", file)
    assert answer.code == 1 and "overwrites nothing" in answer.err
    # As of a variable that is not set: no path, not the current folder.
    assert is_error(call("--repo", folder, "backup", ""), "name of the backup's file is empty")
    assert is_error(call("--repo", tmp_path / "new", "restore", ""), "file is empty")


def test_a_backup_is_restored_to_the_folder_that_its_address_names_or_not_at_all(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("--repo", folder, "backup", "backup").code == 0
    before = sorted(tmp_path.iterdir())
    for address, words in (
        ("hbse://zk1/shop", "names no store that this version has"),
        ("HBASE://zk1/shop", "names no store that this version has"),
        ("~no-such-user/repo", "a home folder that this machine does not know"),
    ):
        assert is_error(call("--repo", address, "restore", "backup"), words), address
        assert sorted(tmp_path.iterdir()) == before
    assert call("--repo", "lmdb://./other", "restore", "backup").code == 0
    assert call("--repo", tmp_path / "other", "status").code == 0
    monkeypatch.chdir(_empty(tmp_path / "here"))
    assert is_error(call("--repo", ".", "restore", "../backup"), "is the current directory")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "here")
    assert is_error(call("--repo", "here", "restore", "backup"), "is a mount point")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_restored_repository_may_be_opened_by_others_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a worker that systemd starts every second: its files come and go."""
    assert call("--repo", folder, "backup", tmp_path / "backup").code == 0

    def restore_beside_a_worker(source: Path, address: str, **more: Any) -> Backup:
        made = restore(source, address, **more)
        (Path(address) / "gone").symlink_to("nowhere")  # As a file that vanishes before a look.
        return made

    monkeypatch.setattr("percola.cli.maintenance.restore_backup", restore_beside_a_worker)
    answer = call("--repo", tmp_path / "other", "restore", tmp_path / "backup")
    assert answer.code == 0 and "kB, durability relaxed)" in answer.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_restore_that_is_told_to_end_leaves_nothing(
    folder: Path, tmp_path: Path, wait_until: Callable[..., object], number: int
) -> None:
    """As by `timeout`, by what ends a job at its deadline, or when its terminal is closed."""
    assert call("--repo", folder, "backup", tmp_path / "backup").code == 0
    before = sorted(tmp_path.iterdir())
    # Where the tests run under nohup it is ignored, and a child inherits that.
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            command("--repo", tmp_path / "other", "restore", "-"),
            env=environment(),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    finally:
        signal.signal(signal.SIGHUP, ours)
    try:
        assert process.stdin is not None
        process.stdin.write((tmp_path / "backup").read_bytes()[:-10])
        process.stdin.flush()
        wait_until(lambda: list(tmp_path.glob("other.restoring-*/store/data.mdb")))
        process.send_signal(number)
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.communicate()
    assert sorted(tmp_path.iterdir()) == before


def test_a_restore_under_nohup_goes_on_when_its_terminal_is_closed(
    folder: Path, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    assert call("--repo", folder, "backup", tmp_path / "backup").code == 0
    raw = (tmp_path / "backup").read_bytes()
    words = command("--repo", tmp_path / "other", "restore", "-")
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(raw[:-10])
        process.stdin.flush()
        wait_until(lambda: list(tmp_path.glob("other.restoring-*/store/data.mdb")))
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(raw[-10:], timeout=SECONDS)
        assert process.returncode == 0 and b"Restored" in out
    finally:
        process.kill()
        process.communicate()


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("verb", ["backup", "restore", "copy", "status"])
def test_a_home_folder_that_nobody_has_is_told(folder: Path, tmp_path: Path, verb: str) -> None:
    nobody = "~no-such-user/x"
    arguments = {
        "backup": ["--repo", folder, "backup", nobody],
        "restore": ["--repo", tmp_path / "other", "restore", nobody],
        "copy": ["--repo", folder, "copy", nobody],
        "status": ["--repo", nobody, "status"],
    }[verb]
    assert is_error(call(*arguments), "a home folder that this machine does not know")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["backup", "-"], "The backup cannot be written: No space left"),
        (["status"], "The output cannot be written: No space left"),
        (["--json", "status"], "The output cannot be written: No space left"),
        (["observers"], "The output cannot be written: No space left"),
    ],
)
def test_a_full_disk_is_told(folder: Path, arguments: list[str], words: str) -> None:
    with open("/dev/full", "wb") as full:
        answer = run("--repo", folder, *arguments, stdout=full)
    assert answer.code == 1 and answer.err.startswith(f"Error: {words}")


@pytest.mark.parametrize("arguments", [["status"], ["--json", "status"], ["observers"]])
def test_without_standard_output_a_command_works(folder: Path, arguments: list[str]) -> None:
    """As a worker, whose supervisor may have closed it."""
    line = ["sh", "-c", 'exec "$@" >&-', "sh", *command("--repo", folder, *arguments)]
    assert answer_of(line) == Answer(0, "", "")


@pytest.mark.parametrize(
    ("closed", "arguments"),
    [
        ("<&-", ["restore", "-"]),
        ("<&-", ["set", "a", "docs.title", "-"]),
        ("<&-", ["set", "a", "docs.title", "--file", "-"]),
        (">&-", ["backup", "-"]),
    ],
)
def test_what_needs_a_stream_that_is_closed_says_so(
    folder: Path, tmp_path: Path, closed: str, arguments: list[str]
) -> None:
    """A backup to a closed stream was reported as made, and reading from one was a traceback."""
    repo = tmp_path / "new" if arguments[0] == "restore" else folder
    words = command("--repo", repo, *arguments)
    answer = answer_of(["sh", "-c", f'"$@" {closed}', "sh", *words])
    assert is_error(answer, "is closed", "name a file")
    assert not (tmp_path / "new").exists()


def test_no_file_of_a_repository_is_taken_for_a_closed_stream(folder: Path, tmp_path: Path) -> None:
    """What a library wrote to standard error could have been written into the data file."""
    (tmp_path / "listing.py").write_text(
        "import os\n"
        "def observers(repo):\n"
        "    with open('numbers', 'w') as file:\n"
        "        for number in range(3):\n"
        "            print(os.readlink(f'/proc/self/fd/{number}'), file=file)\n"
        "    return []\n"
    )
    words = command("--repo", folder, "worker", "listing:observers")
    answer_of(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words], cwd=tmp_path)
    assert (tmp_path / "numbers").read_text() == "/dev/null\n" * 3


def test_a_backup_may_be_thrown_away(folder: Path) -> None:
    words = command("--repo", folder, "backup", "-")
    answer = answer_of(["sh", "-c", '"$@" >/dev/null', "sh", *words])
    assert answer.code == 0 and "Backed up" in answer.err


def test_a_progress_bar_is_shown_on_a_terminal_only(folder: Path, tmp_path: Path) -> None:
    for arguments in (["check"], ["backup", tmp_path / "backup"]):
        shown = on_a_terminal("--repo", folder, *arguments, stream="stderr", TERM="xterm")
        assert "Checking" in shown or "Backing up" in shown

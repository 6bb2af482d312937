"""A serving index that several processes write, and that any of them may leave by kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from effort import mostly_long
from serving_documents import version

from webindex.serving import BusyIndexError, TantivyIndex
from webindex.serving.lock import only_writer

DEADLINE = 180.0

PRELUDE = """
import sys
from pathlib import Path
from serving_documents import version
from webindex.serving import *
from webindex.serving.lock import only_writer

folder = Path(sys.argv[1])

def say(line):
    print(line, flush=True)
"""


@contextmanager
def process(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program in a process of its own, and end it for certain."""
    command = [sys.executable, "-c", PRELUDE + program, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def tell(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def next_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def finish(child: subprocess.Popen[str]) -> list[str]:
    output, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0
    return output.split("\n")[:-1]


def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline, f"did not happen in time: {what}"
        threading.Event().wait(0.0005)


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    program = """
import time
name, other = sys.argv[2:]
with TantivyIndex(folder) as index:
    say("ready")
    sys.stdin.readline()
    for batch in range(25):
        puts = [version(f"{name}{batch}-{n}", 1) for n in range(10)]
        # Both write these; the one that counts by twos ends with the newer epoch.
        puts += [version(f"shared{n}", (batch + 1) * int(other)) for n in range(10)]
        index.apply(puts)
        say(time.monotonic())
"""
    with process(program, tmp_path, "a", 1) as a, process(program, tmp_path, "b", 2) as b:
        assert (next_line(a), next_line(b)) == ("ready", "ready")
        tell(a, "go")
        tell(b, "go")
        times_of_a, times_of_b = (list(map(float, finish(child))) for child in (a, b))
    with TantivyIndex(tmp_path, create=False) as index:
        own = {f"{name}{batch}-{n}": 1 for name in "ab" for batch in range(25) for n in range(10)}
        listed = list(index.clusters())
        assert dict(listed) == own | {f"shared{n}": 50 for n in range(10)}
        assert len(listed) == index.count() == 510
    # Neither had to wait until the other had written everything.
    assert times_of_a[0] < times_of_b[-1]
    assert times_of_b[0] < times_of_a[-1]


KILL_WHEN = ["any new file", ".store", "meta.json", ".pos", ".fieldnorm", ".del"]


@pytest.mark.parametrize("moment", mostly_long(KILL_WHEN, 3))
def test_a_writer_killed_in_a_batch_leaves_the_old_or_the_new_state(
    tmp_path: Path, moment: str
) -> None:
    program = """
import random
letters = random.Random(0)
texts = ["".join(letters.choices("abcdefghij ", k=2_000)) for _ in range(400)]
with TantivyIndex(folder) as index:
    for epoch in range(1, 1_000):
        say(f"begin {epoch}")
        index.apply([version(f"c{n}", epoch, texts[n]) for n in range(400)])
        say(f"end {epoch}")
"""
    with process(program, tmp_path) as child:
        for expected in ("begin 1", "end 1", "begin 2", "end 2", "begin 3"):
            assert next_line(child) == expected

        def state() -> set[tuple[str, int]]:
            names = {path.name for path in tmp_path.iterdir()}
            if moment == "meta.json":
                return {(moment, (tmp_path / moment).stat().st_ino)}
            suffix = "" if moment == "any new file" else moment
            return {(name, 0) for name in names if name.endswith(suffix)}

        before = state()
        wait_until(lambda: not state() <= before, f"a batch that writes {moment}")
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=DEADLINE)
        assert child.stdout is not None
        ended = [2] + [int(line.split()[1]) for line in child.stdout if line.startswith("end")]

    with TantivyIndex(tmp_path, create=False, lock_timeout=5.0) as index:
        epochs = Counter(epoch for _, epoch in index.clusters())
        assert len(epochs) == 1, f"a torn batch: {epochs}"
        ((epoch, count),) = epochs.items()
        assert count == index.count() == 400
        # What was reported as applied is there, and at most the batch that was cut off as well.
        assert ended[-1] <= epoch <= ended[-1] + 1

        assert index.apply([version(f"c{n}", epoch + 1) for n in range(400)]) == 400
        assert index.search("word").total == 400
        assert index.apply([version("c0", epoch)]) == 0


def test_a_writer_waits_no_longer_than_told_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    program = """
TantivyIndex(folder).apply([version("a", 1)])
with only_writer(folder, 1.0):
    say("holding")
    sys.stdin.readline()
"""
    with process(program, tmp_path) as child:
        assert next_line(child) == "holding"
        with TantivyIndex(tmp_path, lock_timeout=0.05) as hurried:
            with pytest.raises(BusyIndexError, match=r"0\.05 seconds"):
                hurried.apply([version("b", 1)])
            assert hurried.search("word").total == 1
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=DEADLINE)
        with TantivyIndex(tmp_path, lock_timeout=5.0) as patient:
            assert patient.apply([version("b", 1)]) == 1


def test_another_programs_tantivy_writer_is_reported(tmp_path: Path) -> None:
    import tantivy

    with TantivyIndex(tmp_path) as index:
        other = tantivy.Index.open(str(tmp_path)).writer(15_000_000, 1)
        with pytest.raises(BusyIndexError, match="Another program"):
            index.apply([version("a", 1)])
        del other
        assert index.apply([version("a", 1)]) == 1


def test_a_search_in_another_process_sees_what_apply_has_returned(tmp_path: Path) -> None:
    program = """
with TantivyIndex(folder) as index:
    for line in sys.stdin:
        index.apply([version(line.strip(), 1)])
        say("applied")
"""
    with TantivyIndex(tmp_path) as reader, process(program, tmp_path) as child:
        for n in range(1, 21):
            assert reader.search("word").total == n - 1
            tell(child, f"c{n}")
            assert next_line(child) == "applied"
            assert reader.search("word", limit=100).total == n
            assert reader.get(f"c{n}") is not None


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    # A limit on the size of files fails writes as a full disk does, and needs no disk.
    program = """
import random, resource
letters = random.Random(0)
text = lambda: "".join(letters.choices("abcdefghij ", k=5_000)) + " more"
with TantivyIndex(folder) as index:
    index.apply([version(f"old{n}", 1, "old") for n in range(10)])
    batch = [version(f"new{n}", 1, text()) for n in range(1_000)]
    errors = []
    for limit in (200_000, 5_000, 300, 0):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            index.apply(batch + [version("old0", 2, "changed")], [("old1", 2)])
        except IndexWriteError as error:
            errors.append(error)  # Kept: what an error refers to must not hold the index's lock.
        say(f"{index.search('old').total} {index.search('more changed').total} {index.count()}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say(len(errors))
    say(errors[0])
    say(index.apply(batch, [("old1", 2)]))
    say(index.search("more").total + index.search("old").total)
"""
    with process(program, tmp_path) as child:
        lines = finish(child)
    assert lines[:4] == ["10 0 10"] * 4
    assert lines[4] == "4"
    assert "1,001 documents" not in lines[5] and "1,002 documents" in lines[5]
    assert "The index is as it was before." in lines[5]
    assert lines[6:] == ["1001", "1009"]
    with TantivyIndex(tmp_path, create=False) as index:
        assert index.count() == 1_009


def test_processes_that_open_an_absent_index_at_once_share_one(tmp_path: Path) -> None:
    program = """
for line in sys.stdin:
    with TantivyIndex(folder / line.strip()) as index:
        index.apply([version(sys.argv[2], 1)])
    say("applied")
"""
    with process(program, tmp_path, "a") as a, process(program, tmp_path, "b") as b:
        for name in map(str, range(10)):
            tell(a, name)
            tell(b, name)
            assert (next_line(a), next_line(b)) == ("applied", "applied")
            with TantivyIndex(tmp_path / name, create=False) as index:
                assert {cluster for cluster, _ in index.clusters()} == {"a", "b"}


def test_an_index_is_not_made_while_another_process_may_be_making_it(tmp_path: Path) -> None:
    with only_writer(tmp_path, 1.0), pytest.raises(BusyIndexError):
        TantivyIndex(tmp_path, lock_timeout=0.05)
    assert not (tmp_path / "meta.json").exists()


@pytest.mark.long
def test_threads_search_while_others_apply(tmp_path: Path) -> None:
    with TantivyIndex(tmp_path) as index, ThreadPoolExecutor(4) as threads:
        written = threading.Event()

        def write(name: str) -> None:
            for n in range(20):
                index.apply([version(f"{name}{n}", 1)])

        def watch() -> list[int]:
            totals = []
            while not written.is_set():
                totals.append(index.search("word").total)
            return [*totals, index.search("word").total]

        watchers = [threads.submit(watch) for _ in range(2)]
        writers = [threads.submit(write, name) for name in "ab"]
        try:
            for writer in writers:
                writer.result(timeout=DEADLINE)
        finally:
            written.set()
        for watcher in watchers:
            totals = watcher.result(timeout=DEADLINE)
            assert totals == sorted(totals)
            assert totals[-1] == 40

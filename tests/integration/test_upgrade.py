"""A rolling upgrade: this release and the one before it work on one repository side by side.

The release before is taken from the history of the project. Its programs, workers and oracles run
in the environment of this one, from their own source. Oracles are upgraded before the other
processes (docs/scaling.md): those of this release also serve clients of the one before.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest
from commands import call, environment, run
from emulator import Emulator
from servers import Oracle
from zookeeper import ZooKeeper

import percola
from percola import Table, catalog, feed
from percola.errors import StoreError
from percola.oracle.client import NetworkOracle

WaitUntil = Callable[..., Any]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PREVIOUS: Final = "bd39d483666b77c4de1cd1896ccd566a237cf830"
"""The last commit of release 0.1."""

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = "upgraded"
SECONDS: Final = 120


class Release:
    """The programs of one release, by its source."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._variables = {"PYTHONPATH": f"{source}:{folder}"}
        self._program = folder / f"{PROGRAM}.py"
        self.is_this = source == Path(percola.__file__).parents[1]

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a Python process."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(**self._variables, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        """Run the application to its end; what it printed."""
        process = self.start(str(self._program), *arguments)
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, err) == (0, ""), err
        return out

    def load(self, address: str, who: str, first: int, last: int) -> None:
        """Load words."""
        self.run(address, "load", who, str(first), str(last))

    def answers(self, address: str) -> tuple[dict[str, int], dict[str, int]]:
        """The length of each word, and how many words have it."""
        lengths, counts = json.loads(self.run(address, "lengths"))
        return lengths, counts

    def worker(self, address: str) -> subprocess.Popen[str]:
        """Start a worker."""
        return self.start(
            *("-m", "percola.cli", "--repo", address, "worker", f"{PROGRAM}:observers")
        )

    def oracle(self, store: str, *, listen: str = "127.0.0.1:0") -> Oracle:
        """Start an oracle."""
        return Oracle(store, listen, **self._variables)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the release before."""
    made = subprocess.run(
        ["git", "archive", PREVIOUS, "src"], cwd=ROOT, capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"this is no clone with its history: {made.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


@pytest.fixture
def releases(sources: Path, tmp_path: Path) -> tuple[Release, Release]:
    """The release before, and this one."""
    shutil.copy(Path(__file__).parent / "programs" / f"{PROGRAM}.py", tmp_path)
    return Release(sources, tmp_path), Release(Path(percola.__file__).parents[1], tmp_path)


def ended(process: subprocess.Popen[str], number: int) -> None:
    """End a worker."""
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert "Traceback" not in err, err


def assert_answered(release: Release, address: str, wait_until: WaitUntil, **loaded: int) -> None:
    """All words are measured, each counted once."""
    expected = {f"{who}-{n:04}": n % 5 + 1 for who, most in loaded.items() for n in range(most)}
    counts = {str(size): list(expected.values()).count(size) for size in range(1, 6)}
    wait_until(
        lambda: release.answers(address) == (expected, counts),
        what="workers to answer every change",
        seconds=60,
    )


def test_workers_and_loaders_of_two_releases_share_a_folder(
    releases: tuple[Release, Release], tmp_path: Path, stack: ExitStack, wait_until: WaitUntil
) -> None:
    before, this = releases
    assert this.is_this and not before.is_this
    address = str(tmp_path / "repo")
    before.load(address, "old", 0, 40)
    old_worker = before.worker(address)
    stack.callback(old_worker.kill)
    assert_answered(before, address, wait_until, old=40)
    new_worker = this.worker(address)
    stack.callback(new_worker.kill)
    loads = [
        release.start(str(tmp_path / f"{PROGRAM}.py"), address, "load", who, first, last)
        for release, who, first, last in ((before, "old", "40", "140"), (this, "new", "0", "100"))
    ]
    for one in loads:
        _, err = one.communicate(timeout=SECONDS)
        assert one.returncode == 0, err
    for release in (before, this):
        assert_answered(release, address, wait_until, old=140, new=100)
    # The old worker dies; what it had begun is done by the new one.
    before.load(address, "old", 140, 180)
    ended(old_worker, signal.SIGKILL)
    assert_answered(this, address, wait_until, old=180, new=100)
    ended(new_worker, signal.SIGTERM)
    checked = run("--repo", address, "check")
    assert checked.code == 0, checked.out + checked.err
    # Back again: nothing that this release has written is in the way of the one before.
    this.load(address, "new", 100, 120)
    old_worker = before.worker(address)
    stack.callback(old_worker.kill)
    assert_answered(before, address, wait_until, old=180, new=120)
    ended(old_worker, signal.SIGTERM)


@pytest.fixture
def zookeeper(
    tmp_path: Path, java_home: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The address of a ZooKeeper, beside an emulator of Bigtable that all processes know of."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", stack.enter_context(Emulator()).address)
    return stack.enter_context(ZooKeeper(tmp_path / "zookeeper", java_home)).address


def test_oracles_are_upgraded_one_by_one_then_workers_and_all_of_it_back_again(
    releases: tuple[Release, Release], zookeeper: str, stack: ExitStack, wait_until: WaitUntil
) -> None:
    before, this = releases
    store = "bigtable://project/upgrade"
    one, two = (stack.enter_context(before.oracle(store)) for _ in range(2))
    address = f"{store}?oracle={one.address},{two.address}&zookeeper={zookeeper}"
    before.load(address, "old", 0, 20)
    workers = [before.worker(address)]
    stack.callback(workers[0].kill)
    assert_answered(before, address, wait_until, old=20)
    # A client of this release says what to do first.
    too_early = NetworkOracle([one.address], timeout_seconds=0.5)
    with pytest.raises(StoreError, match=r"gRPC, as Percola 0\.1 does: upgrade the oracles f"):
        too_early.timestamp()
    too_early.close()
    # The oracles, one after the other; clients of the release before go on.
    new = []
    for old, first in ((two, 20), (one, 30)):
        old.end(signal.SIGTERM)
        new.append(stack.enter_context(this.oracle(store, listen=old.address)))
        before.load(address, "old", first, first + 10)
    # Then workers and loaders, of which some are still old. An oracle dies meanwhile.
    workers.append(this.worker(address))
    stack.callback(workers[1].kill)
    this.load(address, "new", 0, 20)
    new[1].end(signal.SIGKILL)
    before.load(address, "old", 40, 60)
    this.load(address, "new", 20, 40)
    assert_answered(this, address, wait_until, old=60, new=40)
    checked = run("--repo", address, "check")
    assert checked.code == 0, checked.out + checked.err
    # And back: first the clients, then the oracles.
    ended(workers[1], signal.SIGKILL)
    stack.enter_context(before.oracle(store, listen=one.address))
    new[0].end(signal.SIGTERM)
    before.load(address, "old", 60, 80)
    assert_answered(before, address, wait_until, old=80, new=40)
    ended(workers[0], signal.SIGTERM)


def test_a_repository_of_the_release_before_is_followed_and_its_feeds_get_an_index_by_a_command(
    releases: tuple[Release, Release], zookeeper: str, stack: ExitStack
) -> None:
    before, this = releases
    store = "bigtable://project/followed"
    oracle = stack.enter_context(this.oracle(store))
    address = f"{store}?oracle={oracle.address}&zookeeper={zookeeper}"
    before.load(address, "old", 0, 2)
    notes = Table("notes", feed=True)
    text = notes.column("text", str)
    repo = stack.enter_context(percola.open(address, [notes]))

    def put(row: str) -> None:
        with repo.transaction() as t:
            t.set(text, row, "x")

    def followed(after: int) -> tuple[list[str], int]:
        upto = feed.settled(repo, notes)
        return [one.row for one in feed.changes(repo, notes, after, upto)], upto

    start = feed.settled(repo, notes)
    put("a")
    assert followed(start)[0] == ["a"]
    index = repo.context.store.feed_index
    assert index is not None and not index.of(["notes"])
    begun = run("--repo", address, "init", "--index-feeds")
    assert begun.code == 0 and "Its feeds have an index from now on" in begun.out, begun
    again = call("--repo", address, "--json", "init", "--index-feeds")
    assert again.code == 0 and again.json["feeds_indexed"] is False
    # The repository that was open meanwhile goes on, from where its follower was.
    put("b")
    found, upto = followed(start)
    assert found == ["a", "b"]
    put("c")
    assert followed(upto)[0] == ["c"]
    assert index.of(["notes"]) and index.is_walked("notes")
    checked = call("--repo", address, "check")
    assert checked.code == 0, checked.out + checked.err
    # What the release before reads when it opens a repository.
    program = (
        "import sys; from percola.errors import PercolaError; from percola.schema import Schema\n"
        "try: Schema.from_json(sys.argv[1])\n"
        "except PercolaError as error: print(error)\n"
    )
    reading = before.start("-c", program, catalog._newest_text(repo.context.store)[1])
    refused, _ = reading.communicate(timeout=SECONDS)
    assert "Percola 0.2 or later" in refused and "cannot be read" in refused

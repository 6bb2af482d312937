"""Power cuts: what a program wrote is recorded, and the disk is put together as a cut left it.

`record` runs writers under the recorder. `cut` goes through their trace and, at many points of
it, makes repositories of what the disk may hold then (`recording.disk`); a process of its own
opens each, reads everything and goes on working. What it found is a `Verdict`.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

import percola
from percola import PercolaError
from percola.connect.local import FORMAT
from tests.crash.journal import SCHEMA, Found, go_on, look
from tests.crash.processes import Ended, Nursery, Program
from tests.crash.recording.disk import FATES, Disk
from tests.crash.recording.trace import Did, Event, read_trace, recorded_environment

DATA: Final = "store/data.mdb"
_SECONDS: Final = 20.0


def record(
    library: Path,
    scratch: Path,
    durability: str,
    *,
    processes: int = 2,
    threads: int = 2,
    commits: int = 12,
    care: float = 0.0,
) -> list[Event]:
    """Run writer processes at the same time, one of them twice; what they did to their folder."""
    folder, trace = scratch / "recorded", scratch / "trace"
    more = recorded_environment(library, folder, trace)
    folder = folder.resolve()
    for names in (["a"], [f"p{number}-" for number in range(processes)]):
        programs = [
            Program("journal_writer.py", folder, durability, name, threads, commits, care, **more)
            for name in names
        ]
        try:
            for program in programs:
                program.expect("done")
                status = program.wait()
                assert status == 0, f"a recorded writer ended with status {status}"
        finally:
            for program in programs:
                program.kill()
    return list(read_trace(trace))


class Verdict(Enum):
    """What has become of a repository."""

    KEPT = "kept every acknowledged commit"
    LOST = "consistent, but acknowledged commits are gone"
    REFUSED = "damaged, and it says so"
    TORN = "opens, but its contents do not fit together"
    CRASHED = "whoever opens it crashes or hangs"


@dataclass(frozen=True)
class Cut:
    """A power cut and what it left.

    Attributes:
        at: the number of the event during which the power went.
        during: what that event was.
        fate: which of the unsynced sectors reached the disk.
        unsynced: how many sectors had something unsynced.
        lost: how many of them lost it.
        verdict: what the repository was found to be.
        story: what was found, in sentences.
        synced: what is missing of what had been acknowledged before the last sync.
    """

    at: int
    during: str
    fate: str
    unsynced: int
    lost: int
    verdict: Verdict
    story: str
    synced: str


@dataclass
class Told:
    """What the writers have begun, and been told is done, by some point of a trace.

    Attributes:
        begun: each writer's number that it has begun to commit.
        done: each writer's number that was acknowledged.
        latest: the highest commit_ts that was acknowledged.
        safe: the safe point of garbage collection, as far as anybody was told.
        synced: what was done when everything was last on disk.
    """

    begun: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    latest: int = 0
    safe: int = 0
    synced: dict[str, int] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        """Take an event into account."""
        if event.did is Did.SYNCED and event.path == DATA:
            self.synced = dict(self.done)
        elif event.did is Did.MARKED:
            word, *rest = event.data.decode().split()
            if word == "begin":
                self.begun[rest[0]] = int(rest[1])
            elif word == "safe":
                self.safe = max(self.safe, int(rest[0]))
            elif word == "done":
                self.done[rest[0]] = int(rest[1])
                self.latest = max(self.latest, int(rest[2]))


def examine(folder: Path) -> tuple[Found, list[str]]:
    """In a process of its own: open what a cut left, read everything, go on working."""
    with percola.open(folder, schema=SCHEMA, durability="relaxed") as repo:
        found = look(repo)
        if found.torn:
            return found, []
        further = go_on(repo, found)
    with percola.open(folder, schema=SCHEMA, durability="relaxed") as repo:
        again = look(repo)
    problems = [*further.torn, *again.torn]
    if again.reached != further.reached:
        problems.append(f"opened again it has {again.reached}, not {further.reached}")
    return found, problems


def examine_safely(_: object, folder: Path) -> tuple[str, object]:
    """The same, with an error of Percola's as an answer: it says what is wrong."""
    # A crash is an answer, too: LMDB's last words are of no interest.
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        return "found", examine(folder)
    except PercolaError as error:
        return "refused", f"{type(error).__name__}: {error}"


def cut(
    nursery: Nursery,
    events: Sequence[Event],
    scratch: Path,
    rng: random.Random,
    *,
    points: int,
    window: range | None = None,
    path: str = DATA,
) -> Iterator[Cut]:
    """Cut the power at this many points of a trace, after the repository was first opened.

    With `window` only at events whose numbers are in it.
    """
    chosen = _choose(events, path, rng, points, window or range(len(events)))
    disk, told = Disk(), Told()
    judged: dict[tuple[bytes, str], tuple[Verdict, str, str]] = {}
    for number, event in enumerate(events):
        disk.begin(event)
        if event.did is Did.MARKED:
            told.note(event)
        if number in chosen:
            for remains in disk.after_a_cut(path, rng, FATES):
                key = hashlib.sha256(remains.content).digest(), repr(told)
                if key not in judged:
                    folder = scratch / "cut"
                    # Memory that processes share goes to the disk whenever the kernel likes.
                    shared = told.safe if remains.fate == "everything" else 0
                    make_repository(folder, remains.content, safe_point=shared)
                    ended = nursery.run(examine_safely, folder, seconds=_SECONDS)
                    judged[key] = judge(ended, told)
                    shutil.rmtree(folder)
                yield Cut(
                    number, _what(event), remains.fate, remains.unsynced, remains.lost, *judged[key]
                )
        disk.finish(event)
        if event.did is Did.SYNCED:
            told.note(event)


def _choose(
    events: Sequence[Event], path: str, rng: random.Random, points: int, window: range
) -> set[int]:
    """The numbers of events to cut at: of each kind about as many, however rare it is."""
    opened = next(n for n, one in enumerate(events) if one.data == b"opened")
    kinds: dict[str, list[int]] = {}
    for number, event in enumerate(events):
        is_done = event.did is Did.MARKED and event.data.startswith(b"done")
        if number > opened and number in window and (event.path == path or is_done):
            kinds.setdefault(_what(event), []).append(number)
    chosen: set[int] = set()
    rarest_first = sorted(kinds.values(), key=len)
    for position, numbers in enumerate(rarest_first):
        share = (points - len(chosen)) // (len(rarest_first) - position)
        chosen.update(rng.sample(numbers, min(share, len(numbers))))
    return chosen


def make_repository(folder: Path, data: bytes, *, safe_point: int = 0) -> None:
    """A repository with this file; everything else in the folder is made anew when it opens."""
    (folder / "store").mkdir(parents=True)
    (folder / DATA).write_bytes(data)
    if safe_point:
        (folder / "store" / "safe-point").write_bytes(safe_point.to_bytes(8, sys.byteorder))
    description = {"format": FORMAT, "store": "lmdb", "durability": "full"}
    (folder / "percola.json").write_text(json.dumps(description) + "\n")


def _what(event: Event) -> str:
    if event.did is Did.WROTE:
        return "a synchronous write" if event.through else "a write"
    return "an acknowledgement" if event.did is Did.MARKED else "a sync"


def judge(ended: Ended, told: Told) -> tuple[Verdict, str, str]:
    """What a repository is, by what the process that opened it has found.

    Returns the verdict, its story, and what is missing of what had once been synced.
    """
    lost = "all of it"
    if ended.status < 0:
        return Verdict.CRASHED, f"signal {-ended.status} {ended.failure}", lost
    if ended.failure:
        # An error that is not one of Percola's: it found nonsense, and did not say so.
        return Verdict.TORN, ended.failure, lost
    word, answer = ended.result
    if word == "refused":
        return Verdict.REFUSED, answer, lost
    found, problems = answer
    if found.torn or problems:
        return Verdict.TORN, "; ".join([*found.torn, *problems][:5]), lost
    for writer, number in found.reached.items():
        if number > told.begun.get(writer, 0):
            return Verdict.TORN, f"{writer} has reached {number}, which it had not begun", lost
    lost = _missing(told.synced, found.reached)
    if short := _missing(told.done, found.reached):
        return Verdict.LOST, short, lost
    if found.latest < told.latest:
        return Verdict.LOST, f"timestamps go on from {found.latest}, not {told.latest}", lost
    return Verdict.KEPT, "", lost


def _missing(expected: Mapping[str, int], reached: Mapping[str, int]) -> str:
    return ", ".join(
        f"{writer} has reached {reached.get(writer, 0)}, not {number}"
        for writer, number in expected.items()
        if reached.get(writer, 0) < number
    )


def check_all_kept(cuts: Iterable[Cut]) -> list[Cut]:
    """Durability "full": AssertionError at the first cut that broke the promise."""
    made = []
    for one in cuts:
        assert one.verdict is Verdict.KEPT, (
            f"The power went at event {one.at}, during {one.during}; of {one.unsynced} unsynced "
            f"sectors {one.lost} were lost ({one.fate}): {one.verdict.value}.\n{one.story}"
        )
        made.append(one)
    return made


def check_relaxed(cuts: Iterable[Cut]) -> list[Cut]:
    """Durability "relaxed": what holds even so; AssertionError at the first cut that broke it.

    Everything is there if everything reached the disk. What had been synced is there if nothing
    later reached it. Of all else nothing is promised.
    """
    made = []
    for one in cuts:
        where = f"event {one.at}, {one.fate}: {one.verdict.value}.\n{one.story}"
        if one.lost == 0 and one.fate == "everything":
            assert one.verdict is Verdict.KEPT, where
        if one.fate == "nothing unsynced":
            assert one.verdict in (Verdict.KEPT, Verdict.LOST), where
            assert not one.synced, f"{where}\nOf what had been synced: {one.synced}"
        made.append(one)
    return made


def check_fired(cuts: Sequence[Cut], moments: Iterable[str]) -> Counter[str]:
    """How often each fate took something away that was not synced, and each moment was hit.

    AssertionError if one never did: then nothing was tested.
    """
    counts = Counter(f"lost: {one.fate}" for one in cuts if one.lost)
    counts.update(f"during {one.during}" for one in cuts)
    expected = [f"lost: {fate}" for fate in FATES if fate != "everything"]
    expected += [f"during {moment}" for moment in moments]
    silent = [one for one in expected if not counts[one]]
    assert not silent, f"these faults never fired: {'; '.join(silent)}"
    return counts


def grown_to(events: Iterable[Event]) -> int:
    """The size that the data file reached, in bytes."""
    return max(
        (one.offset + len(one.data) for one in events if one.did is Did.WROTE and one.path == DATA),
        default=0,
    )

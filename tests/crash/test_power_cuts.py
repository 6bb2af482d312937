"""A power cut at any moment takes no acknowledged commit, if the durability promised that.

What the writers did to the disk is recorded under LMDB; the disk is put together as a cut would
have left it, with any part of what was not synced, and opened.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.power import (
    DATA,
    Cut,
    Verdict,
    check_all_kept,
    check_fired,
    check_relaxed,
    cut,
    grown_to,
    record,
)
from tests.crash.processes import Nursery, scratch_folder
from tests.crash.programs.journal_writer import SMALL_MAP
from tests.crash.recording.disk import forget_a_sync
from tests.crash.recording.trace import Event, NoCompilerError, build_recorder

SEED = 20101004


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield build_recorder(folder)


@pytest.fixture(scope="module")
def full(library: Path) -> Iterator[list[Event]]:
    """What three writer processes did with durability "full", two of them at once."""
    with scratch_folder() as folder:
        yield record(library, folder, "full")


@pytest.fixture(scope="module")
def relaxed(library: Path) -> Iterator[list[Event]]:
    """The same with durability "relaxed", syncing in the background all the time."""
    with scratch_folder() as folder:
        yield record(library, folder, "relaxed", care=0.02)


def test_with_full_durability_every_acknowledged_commit_survives_any_power_cut(
    nursery: Nursery, full: list[Event], scratch: Path
) -> None:
    assert grown_to(full) > 2 * SMALL_MAP, "the map did not grow"
    cuts = check_all_kept(cut(nursery, full, scratch, random.Random(SEED), points=24))
    check_fired(cuts, ["a write", "a synchronous write", "a sync", "an acknowledgement"])


def test_relaxed_a_power_cut_leaves_what_was_synced_if_nothing_later_reached_the_disk(
    nursery: Nursery, relaxed: list[Event], scratch: Path
) -> None:
    cuts = check_relaxed(cut(nursery, relaxed, scratch, random.Random(SEED), points=15))
    check_fired(cuts, ["a write", "an acknowledgement"])
    kept = [one for one in cuts if one.fate == "nothing unsynced" and one.verdict is Verdict.LOST]
    assert kept, "every cut came just after a sync"


def first_broken(cuts: Iterator[Cut]) -> str:
    with pytest.raises(AssertionError) as broken:
        check_all_kept(cuts)
    return str(broken.value)


def test_the_check_finds_a_single_sync_that_was_forgotten(
    nursery: Nursery, full: list[Event], scratch: Path
) -> None:
    events, until_the_next = forget_a_sync(full, DATA)
    rng = random.Random(SEED)
    story = first_broken(cut(nursery, events, scratch, rng, points=9, window=until_the_next))
    assert "The power went at event" in story


def test_the_check_finds_that_relaxed_durability_does_not_promise_as_much(
    nursery: Nursery, relaxed: list[Event], scratch: Path
) -> None:
    story = first_broken(cut(nursery, relaxed, scratch, random.Random(SEED), points=24))
    assert "The power went at event" in story


def test_without_a_compiler_a_sentence_says_how_to_get_one(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("bash", "mktemp", "rm"):
        (scratch / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(scratch))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NoCompilerError, match="make setup"):
        build_recorder(scratch)

"""Clients of all sorts, killed with -9 at random: nothing is lost, nothing is torn."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.load import run_load
from tests.crash.processes import Nursery


@pytest.mark.parametrize(
    ("durability", "mixed"),
    [
        ("full", False),
        pytest.param("relaxed", False, marks=pytest.mark.long),
        pytest.param("relaxed", True, marks=pytest.mark.long),
    ],
    ids=["full", "relaxed", "relaxed, with both engines of LMDB"],
)
def test_random_kills_lose_nothing_that_was_acknowledged(
    nursery: Nursery, scratch: Path, durability: str, mixed: bool
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # Shown if it fails.
    load = run_load(nursery, scratch, durability, 3.5, random.Random(seed), mixed=mixed)
    load.check_fired()

"""Clients of all sorts, killed with -9 at random: nothing is lost, nothing is torn."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.load import run_load
from tests.crash.processes import Nursery


@pytest.mark.parametrize("durability", ["full", pytest.param("relaxed", marks=pytest.mark.long)])
def test_random_kills_lose_nothing_that_was_acknowledged(
    nursery: Nursery, scratch: Path, durability: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # Shown if it fails.
    load = run_load(nursery, scratch, durability, 3.5, random.Random(seed))
    load.check_fired()

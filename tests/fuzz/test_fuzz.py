"""Every fuzz target holds on its seeds, and on what Hypothesis makes of them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from commands import ROOT, answer_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

_EXAMPLES = {"warc": 40, "html": 60}


def changed(seeds: list[bytes], most: int) -> st.SearchStrategy[bytes]:
    """Seeds with pieces of themselves and of others cut out, doubled, overwritten and flipped."""
    piece = st.one_of(st.binary(max_size=8), st.sampled_from(seeds).map(lambda one: one[-40:]))
    edit = st.tuples(st.floats(0, 1), st.integers(0, 30), piece)

    def apply(seed: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
        for where, length, new in edits:
            at = int(where * len(seed))
            seed = seed[:at] + new + seed[at + length :]
        return seed[:most]

    return st.one_of(
        st.binary(max_size=200),
        st.builds(apply, st.sampled_from(seeds), st.lists(edit, max_size=4)),
    )


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_on_its_seeds(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for seed in [b"", *seeds]:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_on_changed_seeds(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=_EXAMPLES.get(name, 150),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(changed(list(target.seeds()), target.max_bytes))
    def holds(data: bytes) -> None:
        target.run(data)

    holds()


@pytest.mark.parametrize("name", ["cells", "keys", "values", "backup", "rpc"])
def test_a_target_holds_on_random_bytes(name: str) -> None:
    rng = random.Random(name)
    for _ in range(300):
        TARGETS[name].run(rng.randbytes(rng.randrange(120)))


@pytest.mark.long
def test_the_fuzzer_runs_a_target_and_tells_what_it_did(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "1", "--folder", str(tmp_path)]
    done = answer_of([*command, "backup"], cwd=ROOT)
    if "atheris, is not installed" in done.err:
        assert done.code == 2
        return
    assert done.code == 0, done
    assert "executions" in done.out and "fuzz: 1 targets, 0 failed." in done.out
    assert list((tmp_path / "backup" / "corpus").iterdir())

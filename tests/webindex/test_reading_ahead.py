"""Behind a network the chain of observers reads for whole batches: far fewer calls, one result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chains import Chain, moved, naming, of
from from_scratch import again, gone, recrawl, sample
from stores import ScriptedClock

from percola import Repository
from percola.clock import Clock
from percola.coordination.memory import MemoryCoordination
from percola.oracle.embedded import EmbeddedOracle
from percola.store.counting import MUTATE, CountedStore, StoreCalls
from percola.store.memory import MemoryStore
from webindex import tables
from webindex.sample import CHANGED_URL
from webindex.serving import TantivyIndex


@contextmanager
def open_counted(
    folder: Path, *, prefetches: bool, clock: Clock | None = None
) -> Iterator[tuple[Chain, StoreCalls]]:
    """An index on a store that is read as one behind a network, and the count of its calls."""
    memory, calls = MemoryStore(), StoreCalls()
    with (
        TantivyIndex(folder, create=True) as index,
        Repository(
            "counted",
            CountedStore(memory, calls),
            EmbeddedOracle(memory),
            MemoryCoordination(),
            tables.SCHEMA,
            one_step=False,
            clock=clock,
            caches_reads=prefetches,
            prefetches=prefetches,
        ) as repo,
    ):
        yield Chain(repo, index, []), calls


def observers_reads(calls: StoreCalls) -> Counter[str]:
    """The calls that change nothing, by observer; looks for work are left out, for they depend
    on time."""
    found: Counter[str] = Counter()
    for (caller, kind), count in calls.counts().items():
        if caller and kind != MUTATE:
            found[caller] += count.calls
    return found


@pytest.mark.long
def test_reading_ahead_takes_a_tenth_of_the_reads_and_ends_in_the_same(tmp_path: Path) -> None:
    reads = {}
    for prefetches in (False, True):
        # No batch ends because a machine is slow.
        options: Any = {"prefetches": prefetches, "clock": ScriptedClock()}
        with open_counted(tmp_path / f"{prefetches}", **options) as (chain, calls):
            chain.load(sample())
            chain.work(threads=1)
            chain.check()
            reads[prefetches] = observers_reads(calls)
    plain, ahead = reads[False], reads[True]
    # Now and then the exporter conflicts with the others: taking back the locks of hundreds of
    # documents takes three reads each, ahead or not.
    del plain["export"], ahead["export"]
    assert ahead.total() * 12 <= plain.total(), (plain, ahead)
    # How many depends on where the scanner begins and what the exporter does meanwhile: those of
    # `assemble` were 8.7 to 13.4 times fewer in twenty runs. `join` knows only after a second round
    # which clusters are around a page, and asks then whether these are large: 10.6 to 12.7 times.
    for name, factor in (("join", 10), ("assemble", 7), ("count", 17)):
        assert ahead[name] * factor <= plain[name], (name, plain, ahead)


@pytest.mark.parametrize("threads", [1, pytest.param(3, marks=pytest.mark.long)])
def test_pages_that_change_go_and_name_others_end_in_the_same(tmp_path: Path, threads: int) -> None:
    with open_counted(tmp_path / "search", prefetches=True) as (chain, _):
        pages = [one for one in sample() if one.status == 200]
        chain.load(sample())
        chain.work(threads)
        chain.load(recrawl())
        chain.load([gone(one) for one in pages[:20]])
        chain.load([moved(one, pages[40].url) for one in pages[20:30]])
        copies = [again(one, headers=naming(one, CHANGED_URL)) for one in pages[30:40]]
        chain.load(copies)
        chain.work(threads)
        chain.check()
        # And back: clusters split, redirects end.
        chain.load([again(one, seconds=7200) for one in pages[:40]])
        chain.work(threads)
        chain.check()
        assert chain.document(of(CHANGED_URL).url)

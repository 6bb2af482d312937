"""What happens to an index in its life. After each of these, `webindex verify` exits with 0.

A scenario is a function of a `Stage`; it raises AssertionError, or says what there is to be said
besides what `verify` said.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from percola import Repository
from tests.scenarios.changes import sorted_by_change
from tests.scenarios.crawls import in_pieces, places, shuffled
from tests.scenarios.stage import Judgement, Site, Stage, wait_for
from tests.scenarios.states import State, check_same, state_of
from tests.scenarios.traces import Trace
from tests.scenarios.updates import WEIGHTS, Updates
from tests.scenarios.updating import Updating
from tests.scenarios.writing import write_answers
from webindex import tables
from webindex.crawl.warc import Capture, read_captures
from webindex.page.urls import normalise

UPDATES: Final = 2000
UPDATERS: Final = 4
KILLED: Final = 2
ORDERS: Final = 3


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended well: how many captures were loaded, and what else is to be said."""

    captures: int
    said: str
    verdict: Judgement


Scenario = Callable[[Stage], Outcome]


# --- Loads --------------------------------------------------------------------------------


def bulk_load(stage: Stage) -> Outcome:
    """Everything is loaded at once, and then worked off."""
    base = stage.bulk()
    captures = base.report["loaded"]["written"]
    assert captures > 0
    verdict = base.site.verify(stage.crawl.first)
    seconds = base.load_seconds + base.work_seconds
    return Outcome(
        captures,
        f"{captures / seconds:,.0f} captures a second: loaded in {base.load_seconds:.1f} s, worked "
        f"off in {base.work_seconds:.1f} s; {_counted(base.trace)}",
        verdict,
    )


def incremental_load(stage: Stage) -> Outcome:
    """Piece after piece is loaded while what came before is being worked off."""
    pieces = in_pieces(stage.crawl.first, stage.folder / "pieces", 5)
    site = stage.empty("incremental")
    captures = exports = 0
    with site.at_work() as (repo, workers):
        for number, piece in enumerate(pieces):
            if number:
                # Every other piece meets an index at rest, the rest one that is being worked on.
                met = repo.is_idle if number % 2 else partial(_has_exported, repo, exports)
                wait_for(met, workers, stage.timeout)
                exports = _exports(repo)
            captures += site.load([piece])["loaded"]["written"]
    assert exports >= len(pieces) - 1
    verdict = site.verify(pieces)
    # What it comes to is what the bulk load has come to.
    _check_same([site, stage.bulk().site])
    said = f"{len(pieces)} loads; {exports} exports before the last one began"
    return Outcome(captures, said, verdict)


def same_crawl_again(stage: Stage) -> Outcome:
    """The same files once more: nothing is written, nobody has work, nothing is exported."""
    site = stage.loaded("again")
    before = site.now()
    with site.at_work() as (repo, _):
        exports = _exports(repo)
        report = site.load(stage.crawl.first)
        assert not repo.pending(), "a load of what is there already has made work"
    loaded = report["loaded"]
    assert loaded["written"] == 0 and loaded["same"] > 0, loaded
    trace = site.trace(before)
    written = sum(trace.transactions.values(), Counter[str]())
    assert written == {"journal.report": 1}, f"cells were written: {written}"
    with site.opened() as repo:
        assert _exports(repo) == exports
    return Outcome(
        loaded["same"],
        f"{loaded['same']:,} captures were there; 0 transactions downstream, 0 exports",
        site.verify(stage.crawl.first),
    )


def shuffled_loads(stage: Stage) -> Outcome:
    """All three crawls in random orders: they all end in the same state."""
    rng = random.Random(f"orders {stage.seed}")
    sites = []
    captures = 0
    for number in range(ORDERS):
        name = f"order-{number}"
        files: Sequence[Path] = stage.crawl.all
        if number:
            files = shuffled(files, stage.folder / f"{name}-files", 3, rng)
        site = stage.empty(name)
        if number == ORDERS - 1:
            site.load(files)
            site.work()
        else:
            with site.at_work():
                for file in files:
                    loaded = site.load([file])["loaded"]
                    captures += loaded["written"] + loaded["older"]
        sites.append(site)
    rows = _check_same(sites)
    # They are the same: what holds for one holds for all.
    verdict = sites[-1].verify(files)
    return Outcome(captures, f"{ORDERS} orders, the same {rows:,} rows in all of them", verdict)


# --- Crawls that come later ---------------------------------------------------------------


def recrawl(stage: Stage) -> Outcome:
    """Pages are crawled again: those that show the same cause no work, the others little."""
    site = stage.loaded("recrawl")
    with site.opened() as repo:
        same, changed = sorted_by_change(repo, stage.crawl.recrawl, stage.folder / "sorted")
    assert same.captures and changed.captures, "there are pages of both sorts in a recrawl"

    # First those that show what they showed before.
    before = site.now()
    began = time.monotonic()
    with site.at_work() as (repo, _):
        exports = _exports(repo)
        report = site.load([same.file])
        assert report["loaded"]["written"] + report["loaded"]["unchanged"] > 0
    trace = site.trace(before)
    downstream = sum(trace.downstream.values(), Counter[str]())
    assert not downstream, f"pages that had not changed caused work: {downstream}"
    assert trace.runs == {"parse": report["loaded"]["written"]}, trace.runs
    with site.opened() as repo:
        assert _exports(repo) == exports

    # Then the others.
    before = site.now()
    with site.at_work():
        site.load([changed.file])
    seconds = time.monotonic() - began
    work = site.trace(before)
    assert work.downstream and work.exports
    verdict = site.verify([*stage.crawl.first, *stage.crawl.recrawl])
    base = stage.bulk()
    done = len(trace.transactions) + len(work.transactions)
    cells = trace.cells + work.cells
    return Outcome(
        same.captures + changed.captures,
        f"{same.captures:,} pages show what they showed: {len(trace.downstream)} transactions "
        f"downstream of the parser, 0 exports; {changed.captures:,} changed: "
        f"{_counted(work)}. All of it took {done / len(base.trace.transactions):.1%} of the "
        f"transactions, {cells / base.trace.cells:.1%} of the cells and {seconds:.1f} s of the "
        f"{base.load_seconds + base.work_seconds:.1f} s of loading everything anew",
        verdict,
    )


def removals(stage: Stage) -> Outcome:
    """Pages are found gone, or moved: they leave the index, and their links with them."""
    site = stage.loaded("removals")
    with site.opened() as repo:
        live, documents = _count(repo)
    before = site.now()
    with site.at_work() as (repo, _):
        report = site.load(stage.crawl.removals)
    with site.opened() as repo:
        live_after, documents_after = _count(repo)
    assert live_after < live, "no page has left the index"
    verdict = site.verify([*stage.crawl.first, *stage.crawl.removals])
    return Outcome(
        report["loaded"]["written"],
        f"{live - live_after:,} of {live:,} pages left, {documents - documents_after:,} of "
        f"{documents:,} documents; {_counted(site.trace(before))}",
        verdict,
    )


# --- Random updates -----------------------------------------------------------------------


def random_updates(stage: Stage, number: int = UPDATES) -> Outcome:
    """Four processes load random updates at once; two of them and two workers are killed."""
    site = stage.loaded("updates")
    updates = Updates(_pool(stage), stage.seed)
    answers = updates.take(number)
    never = [kind for kind in WEIGHTS if not updates.kinds[kind]]
    assert not never, f"no update of the kinds {never}"
    dealt = [answers[part::UPDATERS] for part in range(UPDATERS)]
    files = []
    for part, some in enumerate(dealt):
        file = stage.folder / "updates" / f"updates-{part}.warc.gz"
        files.append((file, write_answers(file, some)))
    before = site.now()
    with site.at_work() as (repo, workers):
        updating = Updating(repo, workers, stage.seed, stage.timeout)
        stage.show("updating")
        updating.run(files, updaters=KILLED, workers=KILLED)
    verdict = site.verify([*stage.crawl.first, *(file for file, _ in files)])
    became = updates.became()
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in updates.kinds.most_common())
    redirects = ("through others", "through too many others", "that ends in a cycle")
    ends = ", ".join(f"{became[f'a redirect {one}']} × a redirect {one}" for one in redirects)
    return Outcome(
        len(answers),
        f"{kinds}; {updates.near:,} near-duplicates; in the end {ends}; killed "
        f"{updating.killed['updaters']} updaters and {updating.killed['workers']} workers, which "
        f"left {updating.left} locks; {_counted(site.trace(before))}",
        verdict,
    )


def _pool(stage: Stage) -> list[Capture]:
    """Captures of the pages that the updates are about."""
    rng = random.Random(f"pool {stage.seed}")
    found = [
        place
        for place, one in places(stage.crawl.first)
        if isinstance(one, Capture) and one.status == 200
    ]
    pool: dict[str, Capture] = {}
    for file, offset, length in sorted(rng.sample(found, min(stage.pool, len(found)))):
        for one in read_captures(file, start=offset, end=offset + length):
            if isinstance(one, Capture):
                pool[normalise(one.url)] = one
    return list(pool.values())


# --- Jobs ---------------------------------------------------------------------------------


def rank(stage: Stage) -> Outcome:
    """PageRank elects canonical pages anew; a second run finds nothing that has moved."""
    site = stage.loaded("rank")
    with site.opened() as repo:
        elected = _canonicals(repo)
    report = site.rank()
    assert report["pages"] > 0 and report["written"] == report["pages"], report
    site.work()
    with site.opened() as repo:
        moved = sum(1 for url in _canonicals(repo) if url not in elected)
    verdict = site.verify(stage.crawl.first)
    before = site.now()
    again = site.rank()
    site.work()
    trace = site.trace(before)
    assert again["written"] == 0, again
    assert not trace.exports, "a second run that moved no rank has exported documents"
    return Outcome(
        report["pages"],
        f"{report['edges']:,} links, {report['iterations']} steps, {report['seconds']:.1f} s; "
        f"{moved:,} clusters have another canonical page; a second run wrote {again['written']}",
        verdict,
    )


def rebuild_then_incremental(stage: Stage) -> Outcome:
    """The batch computation fills an empty repository; the observers go on from there."""
    site = stage.empty("rebuilt")
    report = site.rebuild(stage.crawl.first)
    site.verify(stage.crawl.first)
    _check_same([site, stage.bulk().site])
    before = site.now()
    site.work()
    idle = site.trace(before)
    assert not idle.transactions, f"a rebuilt index has work to do: {idle.transactions}"
    with site.at_work():
        later = [*stage.crawl.recrawl, *stage.crawl.removals]
        captures = site.load(later)["loaded"]["written"]
    assert site.trace(before).downstream
    verdict = site.verify(stage.crawl.all)
    # The other way round: what the observers made in many steps, they make at once.
    other = stage.loaded("not-rebuilt")
    with other.at_work():
        other.load(later)
    _check_same([site, other])
    return Outcome(
        captures,
        f"rebuilt in {report['seconds']:.1f} s, then {captures:,} captures of later crawls: the "
        "same as without a rebuild",
        verdict,
    )


# --- What is in a repository ----------------------------------------------------------------


def _exports(repo: Repository) -> int:
    with repo.snapshot() as now:
        return sum(1 for _ in now.scan(tables.journal, prefix="export/"))


def _has_exported(repo: Repository, before: int) -> bool:
    return _exports(repo) > before


def _count(repo: Repository) -> tuple[int, int]:
    """Live pages, and documents."""
    with repo.snapshot() as now:
        pages = sum(1 for _ in now.scan(tables.pages, columns=[tables.fingerprint]))
        return pages, sum(1 for _ in now.scan(tables.clusters, columns=[tables.document]))


def _canonicals(repo: Repository) -> set[str]:
    with repo.snapshot() as now:
        found = now.scan(tables.clusters, columns=[tables.document])
        return {row[tables.document]["url"] for row in found}


def _check_same(sites: Sequence[Site]) -> int:
    """AssertionError unless all hold the same; how many rows that is."""
    first: State | None = None
    for site in sites:
        site.stage.show("comparing")
        with site.opened() as repo:
            state = state_of(repo)
        if first is not None:
            check_same(first, state)
        first = state
    assert first
    return len(first)


def _counted(trace: Trace) -> str:
    return f"{len(trace.transactions):,} transactions, {trace.cells:,} cells"


SCENARIOS: Final[dict[str, Scenario]] = {
    "bulk-load": bulk_load,
    "same-crawl-again": same_crawl_again,
    "incremental-load": incremental_load,
    "recrawl": recrawl,
    "removals": removals,
    "random-updates": random_updates,
    "rank": rank,
    "rebuild-then-incremental": rebuild_then_incremental,
    "shuffled-loads": shuffled_loads,
}
"""All of them, by name."""

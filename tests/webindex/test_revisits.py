"""Revisit records: a page becomes what its revisit refers to, in whatever order both are loaded."""

from __future__ import annotations

import itertools
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from effort import tries
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_captures import bare, captured, day, in_groups, revisit
from warc_files import Crawl

import percola
from percola import JSON, Repository, Table, Worker
from webindex import tables
from webindex.batch import crawl
from webindex.batch.crawl import Newest, Said
from webindex.crawl.warc import Capture, Revisit, read_captures
from webindex.load import settling
from webindex.load.revisits import MOST_EARLIER, MOST_IDENTICAL, payload_id, report_of
from webindex.load.settling import offer, settle, wake
from webindex.load.transaction import Loaded, describe, load_captures, load_from
from webindex.observers.parse import parse
from webindex.page.urls import page_row
from webindex.workers.processes import open_repository

A, B, C = (f"https://example.org/{name}" for name in "abc")
EMPTY = "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"


def gone(url: str, at: float) -> Capture:
    return captured(url, at, "gone", status=404, body=b"")


def load(repo: Repository, *records: Capture | Revisit) -> Loaded:
    return load_captures(repo, records, "crawl.warc.gz")


def work(repo: Repository) -> dict[str, int]:
    worker = Worker(repo, [parse, settle, offer, wake], first_wait=0.001)
    worker.run_until_idle()
    runs = worker.metrics.counts().get("observer_runs", {})
    return {name: int(count) for name, count in runs.items() if count}


def process(repo: Repository, *records: Capture | Revisit) -> None:
    """Load records in one transaction, and work them off."""
    load(repo, *records)
    work(repo)


def body(repo: Repository, url: str) -> str | None:
    found = repo.snapshot().get(tables.body, page_row(url))
    return None if found is None else zlib.decompress(found).decode().removeprefix("<p>")


def capture(repo: Repository, url: str) -> dict[str, Any]:
    found = repo.snapshot().get(tables.capture, page_row(url))
    assert found is not None
    return found


def unresolved(repo: Repository, url: str) -> int:
    return repo.snapshot().get(tables.unresolved, page_row(url)) or 0


# --- The three ways in which an index would be stale --------------------------------------------

BY = {
    "by digest": lambda text, refers: (text, None),
    "by reference": lambda text, refers: (None, refers),
    "by both": lambda text, refers: (text, refers),
}
by = pytest.mark.parametrize("how", BY.values(), ids=BY)
order = pytest.mark.parametrize("late", [False, True], ids=["original first", "original last"])


def loaded_in_order(repo: Repository, late: bool, *records: Capture | Revisit) -> None:
    for one in reversed(records) if late else records:
        process(repo, one)


@by
@order
def test_a_url_known_only_as_a_revisit_of_another_becomes_live(
    repo: Repository, how: Any, late: bool
) -> None:
    loaded_in_order(repo, late, captured(A, 1, "tea"), revisit(B, 2, *how("tea", (A, 1))))
    assert body(repo, B) == "tea" and unresolved(repo, B) == 0
    assert capture(repo, B)["status"] == 200
    assert capture(repo, B)["original"]["url"] == A
    assert repo.snapshot().get(tables.fingerprint, page_row(B)) is not None


@by
@order
def test_a_page_whose_new_content_is_that_of_another_page_gets_it(
    repo: Repository, how: Any, late: bool
) -> None:
    load(repo, captured(B, 1, "milk"))
    loaded_in_order(repo, late, captured(A, 2, "tea"), revisit(B, 3, *how("tea", (A, 2))))
    assert (body(repo, B), unresolved(repo, B)) == ("tea", 0)


@by
@pytest.mark.parametrize("seed", range(6))
def test_a_page_back_at_its_first_version_has_that_text(
    repo: Repository, how: Any, seed: int
) -> None:
    versions = captured(A, 1, "first"), captured(A, 2, "second")
    records = [*versions, revisit(A, 3, *how("first", (A, 1)))]
    for one in random.Random(seed).sample(records, 3):
        process(repo, one)
    assert body(repo, A) == "first"
    assert load(repo, captured(A, 4, "third")) == Loaded(written=1)
    work(repo)
    assert body(repo, A) == "third"
    process(repo, captured(A, 2.5, "between"))
    assert body(repo, A) == "third"


def test_each_time_a_page_is_back_at_what_it_was_is_the_date_of_a_change(repo: Repository) -> None:
    def changed() -> str:
        found = repo.snapshot().get(tables.fingerprint, page_row(A))
        assert found is not None
        return str(found["changed"])[:10]

    said = [
        captured(A, 1, "one"),
        captured(A, 2, "two"),
        revisit(A, 3, "one"),
        revisit(A, 4, "two"),
    ]
    said += [revisit(A, 5, "two"), revisit(A, 6, "one"), revisit(A, 7, "two")]
    dates = []
    for one in said:
        process(repo, one)
        dates.append(changed())
    assert dates == [f"2024-01-{day:02}" for day in (3, 4, 5, 6, 6, 8, 9)]
    with repo.transaction() as t:  # As after a change of the parser.
        t.delete(tables.outline, page_row(A))
        t.set(tables.capture, page_row(A), t.get(tables.capture, page_row(A)))
    work(repo)
    assert changed() == dates[-1]


def test_a_revisit_of_what_is_already_there_causes_no_work(repo: Repository) -> None:
    process(repo, captured(A, 1, "tea"))
    before, pending = capture(repo, A), repo.pending()
    assert load(repo, revisit(A, 2, "tea", (A, 1)), revisit(A, 3, "tea")) == Loaded(unchanged=2)
    assert load(repo, bare(revisit(A, 4, None, (A, 1)))) == Loaded(unchanged=1)
    assert repo.pending() == pending and capture(repo, A) == before


def test_a_revisit_without_headers_has_those_of_its_original(repo: Repository) -> None:
    hidden = captured(A, 1, "tea", headers={"content-type": "text/html", "x-robots-tag": "noindex"})
    process(repo, hidden, bare(revisit(B, 2, "tea")), revisit(C, 2, "tea"))
    assert (capture(repo, B)["robots"], capture(repo, C)["robots"]) == ("noindex", None)


def test_a_revisit_whose_server_names_no_type_has_that_of_its_original(
    repo: Repository, saved: Callable[..., Path]
) -> None:
    http = [("Content-Type", "html")]
    crawl = Crawl().add(A, b"<html><p>green tea", http=http)
    crawl.add(A, b"", http=http, kind="revisit", WARC_Date="2025-01-02T03:04:05Z")
    original, again = read_captures(saved(crawl.data))
    assert isinstance(original, Capture) and isinstance(again, Revisit)
    process(repo, original, replace(again, payload_digest=original.payload_digest))
    assert repo.snapshot().get(tables.text, page_row(A)) == "green tea"


def test_a_page_that_now_asks_not_to_be_indexed_is_not_the_same_as_before(repo: Repository) -> None:
    load(repo, captured(A, 1, "tea"))
    headers = {"content-type": "text/html", "x-robots-tag": "noindex"}
    process(repo, revisit(A, 2, "tea", headers=headers))
    assert (capture(repo, A)["robots"], body(repo, A)) == ("noindex", "tea")


def test_a_page_that_is_gone_is_back_by_a_revisit(repo: Repository) -> None:
    process(repo, captured(A, 1, "tea"), gone(A, 2), revisit(A, 3, "tea"))
    assert (capture(repo, A)["status"], body(repo, A)) == (200, "tea")


def test_an_error_page_is_not_the_original_of_a_page(repo: Repository) -> None:
    process(repo, gone(A, 1), revisit(B, 2, "gone"))
    assert body(repo, B) is None and unresolved(repo, B) == 1


def test_a_digest_decides_against_a_reference_to_something_else(repo: Repository) -> None:
    process(repo, captured(A, 1, "tea"), captured(C, 1, "milk"), revisit(B, 2, "milk", (A, 1)))
    assert body(repo, B) == "milk"


def test_a_reference_in_whole_seconds_finds_a_capture_in_milliseconds(repo: Repository) -> None:
    exact = replace(captured(A, 1, "tea"), date=day(1) + timedelta(milliseconds=345))
    process(repo, exact, revisit(B, 2, None, (A, 1)))
    assert body(repo, B) == "tea"


def test_an_empty_payload_needs_no_original_and_makes_no_row_that_all_share(
    repo: Repository,
) -> None:
    load(repo, replace(captured(A, 1, ""), payload_digest=EMPTY, body=b""))
    process(repo, replace(revisit(B, 1, ""), payload_digest=EMPTY))
    assert (body(repo, B), unresolved(repo, B)) == ("", 0)
    now = repo.snapshot()
    assert not list(now.scan(tables.payloads)) and not list(now.scan(tables.waiting))


def test_digests_are_the_same_in_base_32_and_in_hexadecimal() -> None:
    assert payload_id("sha1:DA39A3EE5E6B4B0D3255BFEF95601890AFD80709") == EMPTY
    assert payload_id("SHA1:3i42h3s6nnfq2msvx7xzkyayscx5qbyj") == EMPTY
    assert payload_id("sha256:ABCD") == "sha256:abcd"
    assert payload_id(None) is payload_id("sha1:") is payload_id("nothing") is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("url", [A, B])
def test_a_reference_to_an_older_capture_of_the_same_payload_is_resolved_in_any_order(
    repo: Repository, order: Sequence[int], url: str
) -> None:
    records = [captured(B, 1, "tea"), captured(B, 2, "tea"), revisit(url, 3, None, (B, 1))]
    for place in order:
        process(repo, records[place])
    assert (body(repo, url), unresolved(repo, url)) == ("tea", 0)
    assert url == B or capture(repo, A)["original"]["date"] == "2024-01-03T00:00:00.000000Z"


def test_of_identical_captures_the_newest_dates_are_kept(repo: Repository) -> None:
    for n in random.Random(1).sample(range(MOST_IDENTICAL + 5), MOST_IDENTICAL + 5):
        load(repo, captured(A, n, "tea"))
    assert len(capture(repo, A)["identical"]) == MOST_IDENTICAL
    pending = repo.pending()
    assert load(repo, captured(A, MOST_IDENTICAL, "tea"), captured(A, 0, "tea")).older == 2
    assert repo.pending() == pending
    oldest = MOST_IDENTICAL + 4 - MOST_IDENTICAL
    process(repo, revisit(B, 50, None, (A, oldest)), revisit(C, 50, None, (A, oldest - 1)))
    assert (body(repo, B), unresolved(repo, C)) == ("tea", 1)


# --- What cannot be resolved ----------------------------------------------------------------------


def test_a_revisit_without_its_original_is_counted_until_that_arrives(repo: Repository) -> None:
    load(repo, captured(B, 1, "milk"))
    result = load(repo, revisit(B, 3, "tea", (A, 2)))
    assert result == Loaded(unchanged=1, unresolved=1)
    work(repo)
    assert (body(repo, B), unresolved(repo, B)) == ("milk", 1)
    process(repo, captured(A, 2, "tea"))
    assert (body(repo, B), unresolved(repo, B)) == ("tea", 0)


def test_an_original_that_was_overwritten_before_it_was_parsed_is_still_found(
    repo: Repository,
) -> None:
    process(repo, revisit(B, 9, "tea"))
    load(repo, captured(A, 1, "tea"))
    process(repo, captured(A, 2, "milk"))
    assert (body(repo, A), body(repo, B)) == ("milk", "tea")


def test_an_original_loaded_after_a_newer_capture_of_its_page_is_found(repo: Repository) -> None:
    process(repo, revisit(B, 9, "tea"), captured(A, 2, "milk"))
    assert load(repo, captured(A, 1, "tea")) == Loaded(older=1)
    work(repo)
    assert (body(repo, A), body(repo, B)) == ("milk", "tea")


def test_nothing_waits_any_more_for_what_a_newer_capture_has_overtaken(repo: Repository) -> None:
    process(repo, revisit(B, 2, "tea", (A, 1)))
    assert list(repo.snapshot().scan(tables.waiting, columns=[tables.waits_for]))
    process(repo, captured(B, 3, "milk"))
    now = repo.snapshot()
    assert not list(now.scan(tables.waiting, columns=[tables.waits_for]))
    assert unresolved(repo, B) == 0
    assert now.get(tables.revisited, page_row(B)) is None


def test_no_empty_cell_is_left_when_the_last_earlier_capture_is_dropped(repo: Repository) -> None:
    process(repo, captured(B, 1, "tea"), captured(C, 1, "milk"), revisit(B, 2, "milk", (C, 1)))
    assert repo.snapshot().get(tables.earlier, page_row(B))
    load(repo, captured(B, 3, "tea"))
    assert repo.snapshot().get(tables.earlier, page_row(B)) is None


def test_pages_that_share_a_payload_are_told_of_it_step_by_step(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "WAKE_STEP", 3)
    urls = [f"https://example.org/{n}" for n in range(10)]
    process(repo, *(revisit(url, 2, "tea") for url in urls))
    load(repo, captured(A, 1, "tea"))
    assert work(repo)["wake"] == 4
    assert [body(repo, url) for url in urls] == ["tea"] * 10


def test_another_page_with_a_payload_that_is_known_tells_nobody(repo: Repository) -> None:
    load(repo, *(revisit(f"https://example.org/{n}", 2, "tea") for n in range(10)))
    holders = sorted((A, B, C), key=crawl.page_id)
    process(repo, captured(holders[0], 1, "tea"))
    load(repo, captured(holders[1], 1, "tea"), captured(holders[2], 1, "tea"))
    assert "wake" not in work(repo)


# --- What is kept of a page is bounded ------------------------------------------------------------


def kept(repo: Repository, url: str) -> list[str]:
    earlier = repo.snapshot().get(tables.earlier, page_row(url)) or {}
    return sorted(one["date"][8:10] for one in earlier.values())


@pytest.mark.parametrize("seed", range(4))
def test_the_newest_captures_are_kept_whatever_order_they_come_in(
    repo: Repository, seed: int
) -> None:
    for n in random.Random(seed).sample(range(9), 9):
        load(repo, captured(A, n, f"version {n}"))
    assert kept(repo, A) == [f"{n + 2:02}" for n in range(8 - MOST_EARLIER, 8)]
    now = repo.snapshot()
    page = now.get_row(tables.pages, page_row(A), [tables.earlier_body])
    assert len(page.family(tables.earlier_body)) == MOST_EARLIER
    assert len(list(now.scan(tables.payloads))) == MOST_EARLIER + 1


def test_a_capture_is_kept_beyond_the_bound_while_a_revisit_refers_to_it(repo: Repository) -> None:
    process(repo, captured(A, 0, "tea"), revisit(B, 1, "tea"))
    for n in range(1, 9):
        load(repo, captured(A, n, f"version {n}"))
    process(repo, revisit(C, 9, "tea"))
    assert body(repo, B) == body(repo, C) == "tea" and kept(repo, A)[0] == "02"
    load(repo, captured(B, 10, "milk"), captured(C, 10, "milk"))
    process(repo, captured(A, 11, "last"))
    assert "02" not in kept(repo, A)


# --- Concurrent loaders ---------------------------------------------------------------------------

_PAIRS = {
    "another page's revisit": (captured(A, 1, "tea"), revisit(B, 2, "tea")),
    "a reference": (captured(A, 1, "tea"), revisit(B, 2, None, (A, 1))),
    "the page's own": (captured(B, 1.5, "milk"), revisit(B, 2, "tea")),
    "an older capture": (captured(B, 0.5, "tea"), revisit(B, 2, "tea")),
}


@pytest.mark.parametrize("pair", _PAIRS.values(), ids=_PAIRS)
@pytest.mark.parametrize("first", [0, 1])
def test_neither_of_two_loaders_at_once_loses_the_revisit(
    repo: Repository, pair: tuple[Capture, Revisit], first: int
) -> None:
    process(repo, captured(B, 1, "tea" if pair[0].url == B and pair[0].date > day(1) else "milk"))
    loaders = [repo.transaction(), repo.transaction()]
    for loader, one in zip(loaders, pair, strict=True):
        load_from(loader, [("crawl.warc.gz", one)])
    for place in (first, 1 - first):
        try:
            loaders[place].commit()
        except percola.ConflictError:
            load(repo, pair[place])
        work(repo)
    assert (body(repo, B), unresolved(repo, B)) == ("tea", 0)


def test_loaders_and_workers_at_once_come_to_what_one_comes_to(repo: Repository) -> None:
    records: list[Capture | Revisit] = []
    for n in range(30):
        original, other = (f"https://example.org/{name}{n}" for name in "or")
        records += captured(original, 1, f"text {n}"), captured(original, 2, f"later {n}")
        records += revisit(other, 3, f"text {n}"), revisit(original, 4, f"text {(n + 1) % 30}")
    random.Random(5).shuffle(records)
    parts = [records[place::3] for place in range(3)]

    def loader(part: Sequence[Capture | Revisit]) -> None:
        for at in range(0, len(part), 4):
            load(repo, *part[at : at + 4])

    with ThreadPoolExecutor(4) as threads:
        working = threads.submit(work, repo)
        list(threads.map(loader, parts))
        working.result()
    work(repo)
    assert state(repo) == from_scratch(records)


# --- Any order, split in any way, and the batch computation ---------------------------------------


class State(NamedTuple):
    """What a page is: its capture without what depends on time and place, its body, and what of
    it is unresolved."""

    capture: tuple[tuple[str, str], ...] | None
    body: str | None
    unresolved: int
    reports: tuple[str, ...]


_LEFT_OUT = frozenset({"file", "offset", "length", "loaded_ms", "original", "payload", "identical"})


def _state(
    seen: dict[str, Any] | None, body: bytes | None, missing: int, reports: Sequence[Any]
) -> State:
    shown = seen and tuple(sorted((k, str(v)) for k, v in seen.items() if k not in _LEFT_OUT))
    text = zlib.decompress(body).decode() if body is not None and seen is not None else None
    return State(shown or None, text, missing, tuple(one["date"] for one in reports))


def state(repo: Repository) -> dict[str, State]:
    return {
        row.key: _state(
            row.get(tables.capture),
            row.get(tables.body),
            row.get(tables.unresolved) or 0,
            (row.get(tables.revisited) or {"reports": []})["reports"],
        )
        for row in repo.snapshot().scan(tables.pages)
    }


def from_scratch(records: Sequence[Capture | Revisit]) -> dict[str, State]:
    """What the batch computation of `webindex verify` and `rebuild` makes of the records."""
    said: defaultdict[str, list[Said]] = defaultdict(list)
    for one in records:
        if isinstance(one, Revisit):
            said[page_row(one.url)].append(Said(None, b"", report_of(one, one.url, "f")))
        else:
            described = describe(one, one.url, "f")
            said[page_row(one.url)].append(Said(described, zlib.compress(one.body), None))
    known = {row: crawl._known(found) for row, found in said.items()}
    asked: defaultdict[str, list[str]] = defaultdict(list)
    offered: defaultdict[str, list[Any]] = defaultdict(list)
    for item in known.items():
        for key, row in set(crawl._asked(item)):
            asked[key].append(row)
        for key, whose in crawl._offered(item):
            offered[key].append(whose)
    answers: defaultdict[str, list[Any]] = defaultdict(list)
    for key in asked:
        for row, answer in crawl._answers((key, (asked[key], offered[key]))):
            answers[row].append(answer)
    found: dict[str, State] = {}
    for row, one_page in known.items():
        [(_, (value, elsewhere))] = crawl._decided((row, ([one_page], answers[row])))
        made: Newest = value
        if elsewhere is not None:
            there, digest = elsewhere
            copied = crawl._body_found((there, ((digest, row), known[there])))
            made = crawl._with_body(((made, elsewhere), copied[1]))
        found[row] = _state(made.capture, made.body, made.unresolved, made.reports)
    return found


_urls = st.sampled_from([A, B, C])
_texts = st.sampled_from(["x", "y", "z"])
_captures = st.builds(
    lambda url, at, text, robots, digest: captured(
        url,
        at,
        text,
        headers={"content-type": "text/html", **({"x-robots-tag": robots} if robots else {})},
        **({} if digest else {"payload_digest": None}),
    ),
    _urls,
    st.integers(0, 9),
    _texts,
    st.sampled_from(["", "noindex"]),
    st.integers(0, 5),
) | st.builds(gone, _urls, st.integers(0, 9))
_revisits = st.builds(
    lambda url, at, text, refers, headers: (
        revisit(url, at, text, refers) if headers else bare(revisit(url, at, text, refers))
    ),
    _urls,
    st.integers(0, 9),
    st.none() | _texts,
    st.none() | st.tuples(_urls, st.integers(0, 9)),
    st.booleans(),
)


def loaded_somehow(records: Sequence[Capture | Revisit], seed: int) -> dict[str, State]:
    order = random.Random(seed)
    with percola.open("memory:", schema=tables.SCHEMA) as repo:
        for group in in_groups(records, order):
            load(repo, *group)
            if order.random() < 0.5:
                work(repo)
        work(repo)
        return state(repo)


@settings(max_examples=tries(150), deadline=None)
@given(st.lists(_captures, max_size=7), st.lists(_revisits, max_size=5), st.integers(0, 10**6))
@example([captured(A, 1, "x"), captured(A, 2, "y")], [revisit(A, 3, "x")], 1)
@example([captured(A, 1, "x"), captured(B, 2, "y")], [revisit(B, 3, None, (A, 1))], 1)
@example([captured(B, 2, "x"), captured(B, 1, "x")], [revisit(A, 0, None, (B, 1))], 9)
@example(
    [captured(B, 1, "x", payload_digest=None), captured(B, 1, "x")], [bare(revisit(A, 1, "x"))], 0
)
def test_any_order_in_any_number_of_loads_ends_in_what_the_batch_computation_finds(
    captures: list[Capture], revisits: list[Revisit], seed: int
) -> None:
    records = [*captures, *revisits]
    wanted = from_scratch(records)
    assert loaded_somehow(records, seed) == wanted
    assert loaded_somehow(records, seed + 1) == wanted


@settings(max_examples=50, deadline=None)
@given(st.lists(_captures | _revisits, max_size=9), st.integers(0, 10**6))
def test_loading_the_same_again_changes_nothing(
    records: list[Capture | Revisit], seed: int
) -> None:
    order = random.Random(seed)
    with percola.open("memory:", schema=tables.SCHEMA) as repo:
        process(repo, *records)
        before = state(repo)
        process(repo, *order.sample(records, len(records)))
        assert state(repo) == before


# --- Repositories of earlier versions -------------------------------------------------------------


def made_by_an_earlier_version(folder: Path, one: Capture) -> None:
    """A repository with the tables and the cells that there were before revisits referred."""
    pages = Table("pages")
    for name in ("capture", "links"):
        pages.column(name, JSON, observed=True)
    bodies = pages.column("body", bytes)
    older = [pages if table is tables.pages else table for table in tables.SCHEMA]
    older = [table for table in older if table.name not in tables.ADDED]
    described = {k: v for k, v in describe(one, one.url, "crawl.warc.gz").items() if k != "cut"}
    row = page_row(one.url)
    with percola.open(folder, schema=older) as repo, repo.transaction() as t:
        t.set(pages.resolve("capture"), row, described)  # type: ignore[arg-type]
        t.set(bodies, row, zlib.compress(one.body))


def test_a_repository_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    first = captured(A, 1, "tea")
    made_by_an_earlier_version(tmp_path / "repo", first)
    with open_repository(str(tmp_path / "repo")) as repo:
        assert load(repo, revisit(B, 2, None, (A, 1)), revisit(C, 2, "tea")).unresolved == 1
        work(repo)
        assert (body(repo, B), body(repo, C), unresolved(repo, C)) == ("tea", None, 1)
        assert load(repo, first) == Loaded(same=1)
        work(repo)
        assert (body(repo, C), unresolved(repo, C)) == ("tea", 0)

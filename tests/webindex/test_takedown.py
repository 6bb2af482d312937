"""Takedown: `webindex remove` takes pages out of everything, and keeps them out."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from chains import WORDS, Chain, moved, naming, page
from commands import Answer
from effort import mostly_long
from from_scratch import again, mentions
from hypothesis import given
from hypothesis import strategies as st
from rendered_site import PNG, load_site, png
from warc_files import DATE, Crawl
from web_commands import call

from percola import ConflictError, Observer, Repository, Worker, WorkerOptions
from percola.cells import Kind
from percola.store.walks import walk_kind
from webindex import tables
from webindex.batch import crawl
from webindex.batch.crawl import Known, Newest
from webindex.crawl.warc import Capture, Resource, Revisit, read_captures
from webindex.load.removals import Rules, Scope, all_rules, rules_for, rules_in, scope_of
from webindex.load.resources import keep_resources
from webindex.load.revisits import as_capture, report_of
from webindex.load.tasks import Split
from webindex.load.transaction import Loaded, describe, load_captures, load_from
from webindex.observers.clustering import join
from webindex.observers.inlinks import invert
from webindex.observers.parse import parse
from webindex.observers.redirects import resolve
from webindex.page.urls import host, normalise, page_id, page_row, surt, url_of_row
from webindex.rendering import tables as rendering
from webindex.rendering.dependencies import ask_page, ask_resource
from webindex.reports import tell
from webindex.takedown import removing
from webindex.takedown.removing import Removed, remove, unblock
from webindex.workers.processes import build_observers

HOST = "leak.example"
URL = f"https://{HOST}/secret"
ELSEWHERE = "https://other.example/page"
CSS_USE = "p { background: url(red.png) }"
FUTURE = timedelta(days=365 * 50)
NAMES = {"url": URL, "host": HOST, "prefix": URL[:-2]}
"""How the page, or more with it, is named to be removed."""


def url(name: str) -> Scope:
    return scope_of("url", name)


def take_down(chain: Chain, *scopes: Scope, **options: Any) -> Removed:
    """Remove, and forget the captures that were loaded of it."""
    removed = remove(chain.repo, chain.index, scopes, **options)
    forget(chain, *scopes)
    return removed


def forget(chain: Chain, *scopes: Scope) -> None:
    chain.loaded = [
        one for one in chain.loaded if not any(scope.covers(one.url) for scope in scopes)
    ]


def leaks(chain: Chain) -> list[str]:
    return mentions(chain.repo, HOST) + chain.found("zebra")


def secret(seconds: float = 0.0, **changes: Any) -> Capture:
    links = f'<a href="{ELSEWHERE}">zebra</a><a href="https://third.example/">third</a>'
    one = page(URL, f"<title>Zebra</title><p>{WORDS} zebra {links}", seconds)
    return replace(one, payload_digest="sha1:ZEBRA", **changes)


def other(name: str = ELSEWHERE, text: str = "lion") -> Capture:
    return page(name, f"<title>{text}</title><p>{WORDS} {text}")


# --- Gone from everything ---------------------------------------------------------------------


def test_a_removed_page_is_found_by_no_search_and_named_in_no_table(empty: Chain) -> None:
    empty.process([secret(), other()])
    assert empty.found("zebra") == [URL, ELSEWHERE] and mentions(empty.repo, URL)
    removed = take_down(empty, url(URL))
    assert (removed.pages, removed.captures, removed.links) == (1, 1, 2)
    assert (removed.documents, removed.pending) == (1, 1)
    empty.work()
    assert not leaks(empty)
    empty.check()


def test_its_report_says_that_a_page_was_removed_or_is_blocked(empty: Chain) -> None:
    def said() -> list[str]:
        return tell(empty.repo, empty.index, URL).reasons

    empty.process([secret()])
    take_down(empty, url(URL))
    assert said()[0] == "It was removed: only captures made after that are loaded."
    take_down(empty, url(URL), block=True)
    assert said()[0] == "It is blocked: no capture of it is loaded."
    unblock(empty.repo, [url(URL)])
    assert said() == ["No capture of this page was loaded, and no page links to it."]


def test_a_removed_page_leaves_the_disk_with_garbage_collection(empty: Chain) -> None:
    empty.process([secret()])
    take_down(empty, url(URL))
    empty.work()
    empty.repo.collect_garbage(retention=0)
    store = empty.repo.context.store
    left = [
        cell
        for table in tables.SCHEMA
        for kind in Kind
        for cell, _, _ in walk_kind(store, kind, table.name)
        if surt(URL).encode() in cell.row and table is not tables.removals
    ]
    assert not left


@pytest.mark.parametrize("worked", [True, False], ids=["processed", "just loaded"])
def test_a_page_is_removed_at_any_stage(chain: Chain, worked: bool) -> None:
    """As a capture with earlier ones, as a redirect, as the target of one, and not yet parsed."""
    chain.process([secret(), moved(other("https://leak.example/old"), URL), other()])
    chain.load([secret(seconds=60.0), again(other(), seconds=60.0, body=b"<p>changed")])
    if worked:
        chain.work()
    assert take_down(chain, scope_of("host", HOST)).pages == 2
    chain.verify()
    assert not leaks(chain)


def test_another_page_of_the_cluster_is_elected(empty: Chain) -> None:
    twin = replace(secret(), url="https://leak.example/secret/longer")
    pointing = page(ELSEWHERE, f'<title>x</title><p>{WORDS} lion <a href="{URL}">here</a>')
    empty.process([secret(), twin, pointing])
    assert empty.document(twin.url)["url"] == URL
    assert remove(empty.repo, empty.index, [url(URL)], dry_run=True).alike == [twin.url]
    assert twin.url in run(empty, "remove", URL, "--dry-run").out
    assert take_down(empty, url(URL)).alike == [twin.url]
    empty.work()
    assert twin.url in empty.found("zebra") and URL not in empty.found("zebra")
    assert empty.document(twin.url)["duplicates"] == []
    empty.check()


def test_the_canonical_page_of_others_is_removed_and_they_are_shown(empty: Chain) -> None:
    copy = other(f"{URL}/print", "zebra")
    empty.process([secret(), replace(copy, headers=naming(copy, URL))])
    assert empty.document(copy.url)["url"] == URL
    assert take_down(empty, url(URL)).alike == [copy.url]
    empty.verify()
    assert copy.url in empty.found("zebra") and URL not in empty.found("zebra")


def test_a_host_is_removed_and_the_rest_is_as_if_it_had_never_been_loaded(chain: Chain) -> None:
    hosts = Counter(host(one.url) for one in chain.loaded)
    name, _ = hosts.most_common()[len(hosts) // 2]
    assert take_down(chain, scope_of("host", name)).pages > 1
    chain.verify()


@pytest.mark.parametrize("some", [5, 6], ids=["all but one", "all"])
def test_pages_of_a_large_cluster_leave_nothing_in_its_summary(empty: Chain, some: int) -> None:
    pages = [replace(secret(), url=f"https://{HOST}/{number}") for number in range(6)]
    with mock.patch.object(tables, "LARGE_CLUSTER", 4):
        empty.process(pages)
        gone = [url(one.url) for one in pages[:some]]
        take_down(empty, *gone)
        empty.work()
        assert not any(mentions(empty.repo, scope.name) for scope in gone)
        empty.check()


def test_a_prefix_is_removed_and_nothing_beside_it(chain: Chain) -> None:
    made = [f"https://leak.example/{n}" for n in ("a", "ab", "b", "a/b?c", f"a/{'x' * 500}")]
    chain.load([page(one, f"<title>{n}</title><p>{WORDS} {n}") for n, one in enumerate(made)])
    chain.process([page("https://leak.example:8443/a", "<title>port</title><p>port")])
    removed = take_down(chain, scope_of("prefix", "https://leak.example/a"))
    assert removed.pages == 4 and removed.missing == []
    chain.verify()


def test_a_host_covers_schemes_and_ports_and_a_url_covers_itself_alone() -> None:
    twins = ("http://a.example/x", "https://a.example:8443/x", "https://a.example/x/")
    others = ("https://www.a.example/x", "https://a.example.org/x")
    covered = {
        kind: [one for one in (*twins, *others) if scope_of(kind, text).covers(one)]
        for kind, text in (
            ("host", "a.example"),
            ("url", "https://a.example/x"),
            ("prefix", "https://a.example/x"),
        )
    }
    assert covered == {"host": [*twins], "url": [], "prefix": ["https://a.example/x/"]}


def test_a_long_prefix_finds_rows_that_are_cut(empty: Chain) -> None:
    long = f"https://leak.example/{'x' * 400}"
    empty.process([page(f"{long}/1", "<p>one"), page(f"{long[:-1]}y", "<p>two")])
    assert take_down(empty, scope_of("prefix", long)).pages == 1
    empty.verify()


@given(
    st.sampled_from(["http", "https"]),
    st.sampled_from(["a.example", "www.a.example:8443", "10.0.0.1", "[::1]:81", "localhost"]),
    st.text("abc/?=.&+:)", max_size=30),
)
def test_a_row_gives_its_url_back(scheme: str, name: str, tail: str) -> None:
    made = normalise(f"{scheme}://{name}/{tail}")
    assert url_of_row(page_row(made)) == made


def test_a_row_that_was_cut_gives_no_url() -> None:
    assert url_of_row(page_row(f"https://a.example/{'x' * 400}")) is None
    assert url_of_row("settings") is None


# --- Kept out ---------------------------------------------------------------------------------


def test_the_same_crawl_does_not_restore_a_removed_page_and_a_later_one_does(empty: Chain) -> None:
    empty.process([secret(), other()])
    take_down(empty, url(URL))
    assert load_captures(empty.repo, [secret(), other()], "x") == Loaded(same=1, refused=1)
    empty.verify()
    empty.verify([secret(date=datetime.now(UTC) + timedelta(days=1))])
    assert empty.found("zebra")


@pytest.mark.parametrize("kind", NAMES)
def test_a_blocked_page_does_not_come_back_with_a_later_crawl(empty: Chain, kind: Any) -> None:
    empty.process([secret(), other()])
    take_down(empty, scope_of(kind, NAMES[kind]), block=True)
    later = secret(date=datetime.now(UTC) + FUTURE)
    assert load_captures(empty.repo, [secret(), later], "x") == Loaded(refused=2)
    report = Revisit(URL, later.date, "sha1:ZEBRA", 0, 10, None, None, 200, {})
    assert load_captures(empty.repo, [report], "x") == Loaded(refused=1)
    empty.verify()
    assert not leaks(empty)


def test_a_block_can_be_put_on_pages_that_were_never_loaded(empty: Chain) -> None:
    removed = remove(empty.repo, empty.index, [scope_of("host", HOST)], block=True)
    assert (removed.pages, removed.missing) == (0, [HOST])
    assert load_captures(empty.repo, [secret()], "x") == Loaded(refused=1)


def test_a_capture_dated_in_the_future_is_not_restored_by_the_same_crawl(empty: Chain) -> None:
    one = secret(date=datetime.now(UTC) + FUTURE)
    empty.process([one])
    take_down(empty, scope_of("host", HOST))
    assert load_captures(empty.repo, [one], "x") == Loaded(refused=1)
    other = replace(one, url=f"{URL}/other")
    assert load_captures(empty.repo, [other], "x") == Loaded(written=1)


def test_a_removal_without_block_leaves_a_block_in_place(empty: Chain) -> None:
    remove(empty.repo, empty.index, [url(URL)], block=True)
    remove(empty.repo, empty.index, [url(URL)])
    with empty.repo.snapshot() as now:
        assert [one.until for one in all_rules(now)] == [None]


def test_a_lifted_block_lets_the_page_be_loaded_again(empty: Chain) -> None:
    scopes = [url(URL), scope_of("host", HOST), scope_of("prefix", URL)]
    remove(empty.repo, empty.index, scopes, block=True)
    assert unblock(empty.repo, [*scopes, url(ELSEWHERE)]) == scopes
    with empty.repo.snapshot() as now:
        assert not list(all_rules(now))
    empty.verify([secret()])


def test_rules_of_some_urls_decide_as_all_rules_do(empty: Chain) -> None:
    wider = [scope_of("host", "www.b.example"), scope_of("prefix", "https://c.example/d")]
    remove(empty.repo, empty.index, wider, block=True)
    remove(empty.repo, empty.index, [url(URL)])
    dates = ["2020-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"]
    expected = {
        URL: [True, False],
        f"{URL}/below": [False, False],
        "http://www.b.example:81/": [True, True],
        "https://b.example/": [False, False],
        "https://c.example/def": [True, True],
        "https://c.example/": [False, False],
    }
    with empty.repo.snapshot() as now:
        every, some = rules_in(now), rules_for(now, expected)
    for rules in (every, some):
        assert {u: [rules.refuses(u, d) for d in dates] for u in expected} == expected


# --- Beside loaders and workers -----------------------------------------------------------------

RECORDS: dict[str, Callable[[], Capture | Revisit]] = {
    "a capture": secret,
    "a revisit": lambda: Revisit(
        URL, secret().date, "sha1:ZEBRA", 0, 10, ELSEWHERE, secret().date, 200, {}
    ),
    "a report that names no original": lambda: Revisit(
        URL, secret().date, None, 0, 10, None, None, 304, None
    ),
}


@pytest.mark.parametrize("there", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("kind", NAMES)
def test_what_a_loader_writes_that_began_before_the_removal_is_erased(
    empty: Chain, kind: Any, record: Callable[[], Capture | Revisit], there: bool
) -> None:
    empty.load([other()])
    if there:
        load_captures(empty.repo, [again(secret(), seconds=-60.0)], "x")
    empty.work()
    loading = empty.repo.transaction()
    load_from(loading, [("x", record())])
    remove(empty.repo, empty.index, [scope_of(kind, NAMES[kind])], block=True)
    try:
        loading.commit()
    except ConflictError:
        assert there
    else:
        assert not there and mentions(empty.repo, URL)
    empty.verify()
    assert not leaks(empty)


def test_what_is_loaded_and_processed_just_before_the_removal_is_found_by_its_scan(
    empty: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the loader nor `parse` could see the removal."""
    enter = removing._enter

    def late(*given: Any, **options: Any) -> None:
        empty.process([secret()])
        enter(*given, **options)

    monkeypatch.setattr(removing, "_enter", late)
    assert take_down(empty, scope_of("host", HOST)).pages == 1
    empty.verify()
    assert not leaks(empty)


@pytest.mark.parametrize("late", [parse, join, invert, resolve], ids=lambda one: one.name)
def test_an_observer_that_has_read_a_page_writes_nothing_after_its_removal(
    empty: Chain, late: Observer[str]
) -> None:
    empty.load([secret() if late is not resolve else moved(secret(), ELSEWHERE), other()])
    if late is not parse:
        options = WorkerOptions(threads=1, warn_unobserved=False)
        Worker(empty.repo, [parse], options).run_until_idle()
    run = empty.repo.transaction()
    late(run, page_row(URL))
    assert take_down(empty, url(URL)).pages == 1
    with pytest.raises(ConflictError):
        run.commit()
    empty.verify()
    assert not leaks(empty)


def test_earlier_captures_are_erased_if_a_newer_one_came_in_time(empty: Chain) -> None:
    """A loader that did not see the removal, and then one with a capture that is not refused."""
    loading = empty.repo.transaction()
    load_from(loading, [("x", secret())])
    remove(empty.repo, empty.index, [url(URL)])
    loading.commit()
    newer = other(URL, "tiger")
    newer = replace(newer, date=datetime.now(UTC) + FUTURE, payload_digest="sha1:TIGER")
    empty.verify([newer])
    with empty.repo.snapshot() as now:
        row = now.get_row(tables.pages, page_row(URL))
        assert row.get(tables.earlier) is None and not row.family(tables.earlier_body)
        assert len(list(now.scan(tables.payloads))) == 1


# --- Interrupted ------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from webindex.load.removals import scope_of
from webindex.takedown import removing
from webindex.workers.processes import open_index, open_repository

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

at = int(sys.argv[3])
removing.PAGES = 1
if not at:
    removing._rows = die
with open_repository(sys.argv[1]) as repo, open_index(repo) as index:
    scopes = [scope_of("host", sys.argv[2])]
    removing.remove(repo, index, scopes, note=lambda done: done == at and die())
"""


@pytest.mark.parametrize("at", mostly_long([1, 0, 3]))
def test_a_killed_removal_leaves_whole_pages_and_the_same_command_completes_it(
    chain: Chain, at: int
) -> None:
    made = [f"https://{HOST}/{n}" for n in range(6)]
    links = "".join(f'<a href="{one}">zebra</a>' for one in made)
    chain.process([page(one, f"<title>{one}</title><p>{WORDS} {links}") for one in made])
    command = [sys.executable, "-c", KILLED, chain.repo.address, HOST, str(at)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    chain.work()
    with chain.repo.snapshot() as now:
        rows = now.scan(tables.pages, columns=[tables.capture])
        left = {row[tables.capture]["url"] for row in rows} & set(made)
    assert len(left) == len(made) - at
    every = chain.loaded
    chain.loaded = [one for one in every if host(one.url) != HOST or one.url in left]
    chain.check()
    assert take_down(chain, scope_of("host", HOST)).pages == len(left)
    chain.verify()
    assert not leaks(chain)


# --- What others have stays ---------------------------------------------------------------------


def holders(repo: Repository) -> set[str]:
    with repo.snapshot() as now:
        return {row[tables.held] for row in now.scan(tables.payloads)}


def test_a_payload_that_another_page_has_stays_there_for_revisits(empty: Chain) -> None:
    same = replace(secret(), url=ELSEWHERE)
    empty.process([secret(), same])
    assert holders(empty.repo) == {URL, ELSEWHERE}
    take_down(empty, url(URL))
    assert holders(empty.repo) == {ELSEWHERE}
    third = "https://third.example/"
    date = same.date + timedelta(seconds=60)
    report = Revisit(third, date, "sha1:ZEBRA", 0, 10, None, None, 200, same.headers)
    load_captures(empty.repo, [report], "x")
    empty.work()
    found = empty.repo.snapshot().get(tables.capture, page_row(third))
    assert found is not None and found["original"]["url"] == ELSEWHERE
    assert empty.found("zebra") == [third]


@pytest.mark.parametrize("payload", ["sha1:ZEBRA", None], ids=["by digest", "by reference"])
def test_a_page_that_was_a_revisit_of_the_removed_one_keeps_its_copy(
    empty: Chain, payload: str | None
) -> None:
    empty.load([secret()])
    date = secret().date
    report = Revisit(
        ELSEWHERE, date + timedelta(seconds=60), payload, 0, 10, URL, date, 200, secret().headers
    )
    load_captures(empty.repo, [report], "x")
    empty.work()
    before = empty.repo.snapshot().get_row(tables.pages, page_row(ELSEWHERE))
    assert before.get(tables.body)
    remove(empty.repo, empty.index, [url(URL)])
    runs = empty.work()
    assert runs["settle"] == 1
    after = empty.repo.snapshot().get_row(tables.pages, page_row(ELSEWHERE))
    assert dict(after.items()) == dict(before.items())
    assert empty.found("zebra") == [ELSEWHERE]


def test_revisits_of_a_removed_page_wait_no_more(empty: Chain) -> None:
    """Those by which it referred to others: its rows in `waiting` and `payloads` go."""
    date = secret().date
    empty.load([other()])
    report = Revisit(URL, date, "sha1:NONE", 0, 10, ELSEWHERE, date, 200, {})
    load_captures(empty.repo, [report], "x")
    empty.work()
    assert mentions(empty.repo, URL)
    assert take_down(empty, url(URL)).pages == 1
    empty.work()
    assert not leaks(empty)


def work_with_resources(chain: Chain) -> None:
    """All but rendering."""
    observers = build_observers(chain.index, resources=True)
    Worker(chain.repo, observers, threads=1, warn_unobserved=False).run_until_idle()


def test_resources_of_a_removed_host_go_with_their_bodies_unless_shared(
    empty: Chain, tmp_path: Path
) -> None:
    red, blue = png(255, 0, 0), png(0, 0, 255)
    files: dict[str, Any] = {
        URL: '<link rel="stylesheet" href="main.css"><img src="red.png">zebra',
        f"https://{HOST}/main.css": "p { background: url(blue.png) }",
        f"https://{HOST}/red.png": red,
        f"https://{HOST}/blue.png": blue,
        "https://other.example/blue.png": blue,
        ELSEWHERE: '<img src="blue.png">',
    }
    load_site(empty.repo, tmp_path, files)
    work_with_resources(empty)
    with empty.repo.transaction() as t:
        # As the renderer, which needs a browser.
        asked = {f"https://{HOST}/red.png": "1"}
        about = {"url": URL, "asked": asked, "history": [{"at_ms": 5}]}
        t.set(rendering.about, page_row(URL), about)
        t.set(rendering.earlier["5"], page_row(URL), b"thumbnail of an earlier image")
        t.set(rendering.image, page_row(URL), b"image")
        t.set(rendering.thumbnail, page_row(URL), b"thumbnail")
        use = f"{page_id(f'https://{HOST}/red.png')}/seen/{page_id(URL)}"
        t.set(rendering.used_by, use, URL)
    removed = remove(empty.repo, empty.index, [scope_of("host", HOST)], block=True)
    assert (removed.pages, removed.resources, removed.images) == (1, 3, 1)
    work_with_resources(empty)
    assert not leaks(empty)
    with empty.repo.snapshot() as now:
        left = [row.family(rendering.holder) for row in now.scan(rendering.bodies)]
        assert [set(one.values()) for one in left] == [{"https://other.example/blue.png"}]
        assert [row[rendering.used_by] for row in now.scan(rendering.uses)] == [ELSEWHERE]
        of_images = [rendering.about, rendering.image, rendering.thumbnail, rendering.earlier]
        assert list(now.scan(rendering.renders, columns=of_images)) == []
    load_site(empty.repo, tmp_path, files)
    work_with_resources(empty)
    assert not mentions(empty.repo, HOST)


@pytest.mark.parametrize("late", [ask_page, ask_resource], ids=lambda one: one.name)
def test_an_observer_that_has_read_what_a_document_uses_enters_nothing_after_its_removal(
    empty: Chain, tmp_path: Path, late: Observer[str]
) -> None:
    name = URL if late is ask_page else f"https://{HOST}/main.css"
    load_site(empty.repo, tmp_path, {name: '<img src="red.png">' if late is ask_page else CSS_USE})
    asking = empty.repo.transaction()
    late(asking, page_row(name))
    assert remove(empty.repo, empty.index, [scope_of("host", HOST)]).missing == []
    with pytest.raises(ConflictError):
        asking.commit()


def test_a_page_that_is_being_rendered_leaves_no_image_after_its_removal(
    empty: Chain, tmp_path: Path
) -> None:
    load_site(empty.repo, tmp_path, {URL: "zebra"})
    rendered = empty.repo.transaction()
    rendered.set(rendering.about, page_row(URL), {"url": URL, "asked": {}})
    remove(empty.repo, empty.index, [url(URL)])
    with pytest.raises(ConflictError):
        rendered.commit()


def test_a_resource_that_a_loader_writes_that_began_before_the_removal_is_erased(
    empty: Chain, tmp_path: Path
) -> None:
    name = f"https://{HOST}/red.png"
    keep_resources(empty.repo)
    capture = resource(tmp_path, name)
    loading = empty.repo.transaction()
    load_from(loading, [("x", capture)])
    remove(empty.repo, empty.index, [scope_of("host", HOST)])
    loading.commit()
    assert mentions(empty.repo, HOST)
    work_with_resources(empty)
    assert not mentions(empty.repo, HOST)
    assert not list(empty.repo.snapshot().scan(rendering.bodies))


def test_dead_letters_of_removed_pages_are_dropped(empty: Chain) -> None:
    empty.load([secret(), other()])

    def fails(t: Any, row: str) -> None:
        raise ValueError("zebra")

    failing = Observer(tables.capture, fails, "parse")
    options = WorkerOptions(threads=1, attempts=1, warn_unobserved=False)
    Worker(empty.repo, [failing], options).run_until_idle()
    assert empty.repo.dead_lettered() == 2
    take_down(empty, url(URL))
    assert empty.repo.dead_lettered() == 1
    empty.work()
    assert not leaks(empty)


def resource(folder: Path, name: str) -> Resource:
    made = Crawl().add(name, png(255, 0, 0), http=PNG)
    path = folder / "one.warc.gz"
    path.write_bytes(made.data)
    [found] = read_captures(path, max_resource=1 << 20)
    assert isinstance(found, Resource)
    return found


# --- From scratch -------------------------------------------------------------------------------


def test_the_computation_from_scratch_leaves_out_refused_records(tmp_path: Path) -> None:
    path = tmp_path / "crawl.warc.gz"
    made = Crawl()
    for day in (1, 3):
        made.add(URL, b"<p>zebra", WARC_Date=f"2024-01-0{day}T00:00:00Z")
    made.add(ELSEWHERE, b"<p>lion")
    path.write_bytes(made.data)
    rules = Rules({URL: "2024-01-02T00:00:00.000000Z"})
    part = [Split(str(path), 0, path.stat().st_size)]
    found = [(row, said.capture) for row, said in crawl._read(False, 1 << 20, rules, [part])]
    dates = [(row, capture["date"][:10]) for row, capture in found if capture is not None]
    assert dates == [(page_row(URL), "2024-01-03"), (page_row(ELSEWHERE), DATE[:10])]


@pytest.mark.parametrize("payload", ["sha1:ZEBRA", None], ids=["by digest", "by reference"])
def test_the_computation_from_scratch_takes_a_copy_only_where_no_original_is_left(
    payload: str | None,
) -> None:
    original = describe(secret(), URL, "f")
    refers = Revisit(ELSEWHERE, secret(60).date, payload, 0, 10, URL, secret().date, 200, None)
    report = report_of(refers, ELSEWHERE, "f")
    copy = as_capture(report, original)
    known = Known([], [report], None)

    def decided(*candidates: dict[str, Any]) -> Newest:
        offered = [(page_id(one["url"]), one) for one in candidates]
        [(_, (value, _))] = crawl._decided((page_row(ELSEWHERE), ([known], offered)))
        return value

    assert decided(copy).capture == copy and decided(copy).unresolved == 0
    changed = decided(copy, {**original, "robots": "noindex"}).capture
    assert changed is not None and changed["robots"] == "noindex"
    assert decided().unresolved == 1
    unlike = {**copy, "payload": "sha1:LION", "original": {**copy["original"], "date": "2020"}}
    assert decided(unlike).unresolved == 1


# --- The commands -------------------------------------------------------------------------------


def run(chain: Chain, name: str, *words: str) -> Answer:
    return call(name, "--repo", chain.repo.address, *words)


def test_the_command_reports_what_went(empty: Chain) -> None:
    empty.process([secret(), other()])
    nothing = f"https://{HOST}/nothing"
    said = run(empty, "remove", URL, nothing, "--block", "--json")
    assert said.code == 0, said
    assert said.json == {
        "scopes": {"url": [URL, nothing]},
        "blocked": True,
        "dry_run": False,
        "missing": [nothing],
        "pages": 1,
        "captures": 1,
        "links": 2,
        "documents": 1,
        "pending": 1,
        "resources": 0,
        "sitemaps": 0,
        "images": 0,
        "alike": [],
    }
    empty.work()
    said = run(empty, "remove", "--host", HOST)
    assert said.code == 0, said
    assert "Removed" in said.out and f"Nothing was there of {HOST}." in said.out
    assert "none of them" in said.out


def test_a_dry_run_counts_the_same_and_changes_nothing(empty: Chain) -> None:
    empty.process([secret(), other()])
    words = ["remove", URL, "--host", HOST, "--prefix", f"https://{HOST}/", "--json"]
    dry = run(empty, *words, "--dry-run").json
    with empty.repo.snapshot() as now:
        assert not list(now.scan(tables.removals))
    empty.check()
    done = run(empty, *words).json
    assert dry == done | {"dry_run": True, "pending": 0} and done["pages"] == 1


def test_blocks_are_listed_and_lifted(empty: Chain) -> None:
    assert "Nothing was removed." in run(empty, "blocks").out
    long = f"https://{HOST}/a{'b' * 200}"
    run(empty, "remove", URL, "--prefix", long)
    run(empty, "remove", "--host", HOST, "--block")
    listed = run(empty, "blocks").out.splitlines()
    assert f"host {HOST}  blocked" in listed
    for name in (f"url {URL}", f"prefix {long}"):  # Nothing of a line is cut off.
        [line] = [one for one in listed if one.startswith(f"{name}  removed, up to captures of ")]
        assert line.endswith("Z")
    told = run(empty, "blocks", "--json").json
    assert [(set(one) & {"url", "host", "prefix"}, one["blocked"]) for one in told] == [
        ({"prefix"}, False),
        ({"host"}, True),
        ({"url"}, False),
    ]
    assert "1 removal lifted" in run(empty, "unblock", "--host", HOST).out
    assert run(empty, "unblock", "--host", HOST).out == f"The host {HOST} was not removed.\n"
    unknown = run(empty, "unblock", "--host", HOST, "--json").json
    assert unknown == {"lifted": [], "unknown": [{"host": HOST}]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name one or more URLs, or a --host, or a --prefix."),
        (["leak.example"], "is not an absolute URL"),
        (["--host", "a b"], "a b"),
        (["--prefix", "https://leak.example/a?"], "give the prefix in that form"),
        (["--prefix", "https://leak.example/a?utm_source=x"], "give the prefix in that form"),
    ],
)
@pytest.mark.parametrize("command", ["remove", "unblock"])
def test_a_mistake_is_one_sentence(
    empty: Chain, command: str, words: list[str], message: str
) -> None:
    said = run(empty, command, *words)
    assert said.code and message in said.err
    with empty.repo.snapshot() as now:
        assert not list(now.scan(tables.removals))


def test_remove_waits_until_running_workers_have_changed_search(empty: Chain) -> None:
    empty.process([secret()])
    worker = Worker(empty.repo, build_observers(empty.index), threads=1, first_wait=0.001)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        removed = remove(empty.repo, empty.index, [url(URL)], wait=60.0)
    finally:
        worker.stop()
        thread.join()
    assert (removed.documents, removed.pending) == (1, 0)
    assert not empty.found("zebra")


@pytest.mark.parametrize("worked", ["nothing", "all but the export"])
def test_a_repeated_removal_still_says_what_search_shows(empty: Chain, worked: str) -> None:
    empty.process([secret(), other(), moved(page(f"https://{HOST}/old", ""), ELSEWHERE)])
    assert take_down(empty, scope_of("host", HOST)).pending == 2
    if worked != "nothing":
        observers = [one for one in build_observers(empty.index) if one.name != "export"]
        Worker(empty.repo, observers, threads=1, warn_unobserved=False).run_until_idle()
    assert URL in empty.found("zebra")
    again = take_down(empty, scope_of("host", HOST))
    assert (again.pages, again.documents, again.pending) == (0, 0, 2)
    assert "2 still to change" in run(empty, "remove", "--host", HOST).out
    empty.work()
    assert take_down(empty, scope_of("host", HOST)).pending == 0

"""What the web index adds to the page of `percola serve`, and that it is right whoever works."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from from_scratch import sample
from site_client import Page, Served, article, empty, made, served

from percola import Observer, Worker, WorkerOptions
from tests.support.children import Child, hear
from webindex import reports as story
from webindex import tables
from webindex.load.resources import keep_resources
from webindex.load.transaction import load_captures
from webindex.page.urls import page_row
from webindex.rendering import tables as rendering
from webindex.site import exports
from webindex.site.exports import ExportLog
from webindex.workers.processes import build_observers, open_index, open_repository

__all__ = ["empty"]

WaitUntil = Callable[..., Any]


def asked(site: Served, number: int = 0) -> dict[str, Any]:
    answer = site.client.get("/live.json", params={"since": str(number)})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def more(site: Served) -> dict[str, Any]:
    """What the web index adds to the last sample."""
    found: dict[str, Any] = asked(site)["samples"][-1]["more"]
    return found


def part(site: Served, name: str) -> Page:
    """A part of the page, as its script gets it."""
    return Page(asked(site)["parts"][name]["text"])


def elsewhere(pipe: Connection, folder: Path) -> None:
    """Another process: loads when it is told to, then works when it is told to."""
    with open_repository(str(folder)) as repo, open_index(repo) as index:
        hear(pipe)
        load_captures(repo, sample()[:30], "sample.warc.gz")
        pipe.send(("said", "loaded"))
        hear(pipe)
        Worker(repo, build_observers(index), threads=2).run_until_idle()
        pipe.send(("said", "worked"))
        hear(pipe)


def test_what_other_processes_do_is_seen_in_the_samples(
    empty: Served, wait_until: WaitUntil
) -> None:
    with Child(elsewhere, Path(empty.repo.address)) as child:
        first = asked(empty)["samples"][-1]
        assert first["more"]["documents"] == 0 and first["waiting"] == {}
        child.tell()
        assert child.hear() == "loaded"
        loaded = wait_until(
            lambda: [one for one in asked(empty)["samples"] if one["waiting"]], what="dirty cells"
        )[0]
        assert loaded["waiting"] == {"parse": len({c.url for c in sample()[:30]})}
        child.tell()
        assert child.hear() == "worked"

        def done() -> Any:
            answer = asked(empty)
            last = answer["samples"][-1]
            return answer if last["more"]["documents"] and not last["waiting"] else None

        answer = wait_until(done, what="the documents in a sample")
        samples = answer["samples"]
        assert samples[-1]["more"]["documents"] == empty.index.count() > 10
        assert samples[-1]["last_ts"] == empty.repo.snapshot().start_ts
        pairs = itertools.pairwise(samples)
        commits = sum(b["timestamps"] * (b["at_ms"] - a["at_ms"]) / 1000 for a, b in pairs)
        assert commits == pytest.approx(samples[-1]["last_ts"] - samples[0]["last_ts"], rel=0.05)
        assert any(one["more"]["searchable"] for one in samples)
        shares = [samples[-1]["more"][f"export_p{share}"] for share in (50, 95, 99)]
        assert shares[0] > 0 and shares == sorted(shares)
        assert str(child.pid) in part(empty, "details").words("#processes")
        child.tell()
        child.hear()


def test_every_page_that_became_searchable_is_counted_once(
    empty: Served, wait_until: WaitUntil
) -> None:
    before = asked(empty)["samples"][-1]["number"]
    for number in range(6):
        empty.process(made(f"https://a.example/{number}", article(f"Number {number}")))

    def made_searchable() -> float:
        pages = 0.0
        for one, other in itertools.pairwise(asked(empty)["samples"]):
            if other["number"] > before:
                pages += other["more"]["searchable"] * (other["at_ms"] - one["at_ms"]) / 1000
        return pages

    wait_until(lambda: made_searchable() > 5.5, what="six pages in the samples")
    assert made_searchable() == pytest.approx(6, abs=0.2)


def test_the_live_page_has_its_numbers_without_a_script(empty: Served) -> None:
    empty.load(*(made(f"https://a.example/{n}", article(f"Page {n}", f"text {n}")) for n in "abc"))
    page = empty.page("/live")
    numbers = dict(zip(page.all(".tile dt"), page.all(".tile dd"), strict=True))
    assert numbers["Changes waiting"] == "3" and numbers["Documents in search"] == "0"
    rows = page.css("#observers tbody tr")
    assert [row.attributes["data-key"] for row in rows] == [
        one.name for one in build_observers(empty.index)
    ]
    first = [cell.text(separator="|") for cell in rows[0].css("td")]
    assert first[0] == "parse|pages.capture|to be parsed" and first[2] == "3"
    assert len(page.css(".plot")) == 6 and page.css_first("noscript") is not None
    assert "No worker is running. 3 changes wait." in page.words(".verdict")
    assert "webindex work" in page.words(".verdict")


def test_live_pages_are_what_the_counters_of_hosts_say(
    empty: Served, wait_until: WaitUntil
) -> None:
    urls = [f"https://a.example/{number}" for number in range(60)]
    empty.load(*(made(url, article(url, url)) for url in urls))
    empty.process(
        made(urls[0], "", seconds=60, status=404), made("https://b.example/", "", status=404)
    )
    wait_until(lambda: more(empty)["pages"] == 59, what="the count of live pages")
    rows = list(empty.repo.snapshot().scan(tables.hosts))
    assert len(rows) < 59, "no two pages share a counter"


def test_other_machines_are_shown_no_tracebacks_processes_and_locks(tmp_path: Path) -> None:
    for host, shown in (("127.0.0.1", True), ("0.0.0.0", False)):
        with served(tmp_path / host, host) as site:
            page = site.client.get("/live").text
            parts = site.client.get("/live.json").json()["parts"]
            assert ('data-part="details"' in page, "details" in parts) == (shown, shown)
            assert ('data-part="letters"' in page, "letters" in parts) == (shown, shown)
            assert ("percola serve" in page) is not shown
            assert "summary" in parts


def test_every_step_of_the_chain_has_words(empty: Served) -> None:
    observers = build_observers(empty.index, resources=True)
    columns = {repr(column) for one in observers for column in one.columns}
    assert story.STEPS.keys() == columns | {repr(rendering.render_due)}


def test_pages_that_wait_to_be_rendered_wait_for_a_known_observer(tmp_path: Path) -> None:
    with open_repository(str(tmp_path / "repo"), create=True) as repo:
        keep_resources(repo)
    with served(tmp_path / "repo") as site:
        load_captures(site.repo, sample()[:1], "sample.warc.gz")
        assert asked(site)["samples"][-1]["waiting"] == {"ask_page": 1, "parse": 1}
        Worker(site.repo, build_observers(site.index, resources=True)).run_until_idle()
        page = Page(site.client.get("/live").text).words()
    assert "no observer is known" not in page
    assert "to be rendered, by 'webindex work --render'" in page


def test_a_failure_is_counted_and_listed_with_its_page(
    empty: Served, wait_until: WaitUntil
) -> None:
    url = "https://a.example/"
    empty.load(made(url, article("Alpha")))
    with empty.repo.transaction() as t:
        t.set(tables.body, page_row(url), b"this was never compressed")
    empty.work()
    wait_until(lambda: asked(empty)["samples"][-1]["failed"], what="it")
    letters = part(empty, "letters")
    [observer, cell, attempts, _, error] = letters.all("#letters tbody td")
    assert (observer, cell, attempts) == ("parse", f"{url} pages.capture", "5")
    assert error.startswith("zlib.error: ") and "Traceback" in error
    assert letters.link("#letters a") == f"/page?url={quote(url, safe='')}"


def test_a_page_that_cannot_be_rendered_is_listed_with_its_page(
    empty: Served, wait_until: WaitUntil
) -> None:
    def fails(t: Any, row: str) -> None:
        raise ValueError("The page crashed its tab.")

    url = "https://a.example/tea?kind=green"
    with empty.repo.transaction() as t:
        t.notify(rendering.render_due, page_row(url))
    rendering_fails = Observer(rendering.render_due, fails, "render")
    options = WorkerOptions(threads=1, attempts=1, warn_unobserved=False)
    Worker(empty.repo, [rendering_fails], options).run_until_idle()
    wait_until(lambda: asked(empty)["samples"][-1]["failed"], what="it")
    letters = part(empty, "letters")
    assert letters.all("#letters tbody td")[:2] == ["render", f"{url} renders.due"]
    assert letters.link("#letters a") == f"/page?url={quote(url, safe='')}"


def test_a_trouble_of_the_repository_is_said_and_passes(
    empty: Served, wait_until: WaitUntil
) -> None:
    with empty.repo.transaction() as t:
        t.set(tables.live, "new.example/00", {"pages": 3, "indexable": 3})
    wait_until(lambda: more(empty)["pages"] == 3, what="the pages")
    serving = Path(empty.repo.address) / "serving"
    serving.rename(serving.with_name("away"))
    trouble = wait_until(lambda: asked(empty)["trouble"], what="the trouble")
    assert "search index" in trouble
    # What was known by then still stands beside it: nothing claims that there are no pages.
    assert "Live pages3" in part(empty, "index").words()
    os.rename(serving.with_name("away"), serving)
    wait_until(lambda: not asked(empty)["trouble"], what="its end")


def test_the_export_log_finds_where_its_window_begins_in_a_long_journal(
    empty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_FIRST_LOOK", 8)
    monkeypatch.setattr(exports, "_OVERLAP", 4)
    now_ms = 10_000_000_000
    old = now_ms - exports.WINDOW_MS - 60_000
    for number in range(60):
        at_ms = old + number if number < 50 else now_ms - 1_000
        empty.repo.run(
            lambda t, at=at_ms, n=number: t.set(  # type: ignore[misc]
                tables.report, f"export/{t.start_ts:020}", {"at_ms": at, "latency_ms": [n, n]}
            )
        )
    log = ExportLog()
    assert log.read(empty.repo.snapshot(), now_ms) == 20
    assert log._beginning(empty.repo.snapshot(), now_ms - exports.WINDOW_MS) > 10
    assert log.read(empty.repo.snapshot(), now_ms) == 0
    speed = log.latency(now_ms, 60_000)
    assert speed is not None and (speed.count, speed.p50, speed.p99) == (20, 55, 59)
    assert log.newest_ms() == now_ms - 1_000
    # A report that was begun earlier and committed later is not missed; what is old is let go.
    for _ in range(3):
        empty.repo.run(lambda t: t.set(tables.report, "load/of something else", {}))
    assert log.read(empty.repo.snapshot(), now_ms) == 0
    ts = empty.repo.snapshot().start_ts - 2
    late = {"at_ms": now_ms, "latency_ms": [7]}
    empty.repo.run(lambda t: t.set(tables.report, f"export/{ts:020}", late))
    assert log.read(empty.repo.snapshot(), now_ms) == 1
    assert log.read(empty.repo.snapshot(), now_ms + exports.WINDOW_MS + 1) == 0
    assert log.newest_ms() is None
    empty.repo.run(lambda t: t.set(tables.report, f"export/{t.start_ts:020}", {"other": 1}))
    assert log.read(empty.repo.snapshot(), now_ms) >= 0

"""The live view is right whoever loads and works, because it asks the repository alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from from_scratch import sample
from site_client import Served, article, empty, made

from percola import Worker
from tests.support.children import Child, hear
from webindex import reports as story
from webindex import tables
from webindex.load.transaction import load_captures
from webindex.observers.documents import assemble
from webindex.page.urls import page_row
from webindex.site import exports, live
from webindex.site.exports import ExportLog
from webindex.site.live import Sample, Sampler, since
from webindex.workers.processes import build_observers, open_index, open_repository

__all__ = ["empty"]

WaitUntil = Callable[..., Any]


def asked(site: Served, number: int = 0) -> dict[str, Any]:
    answer = site.client.get("/live.json", params={"since": str(number)})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


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
        assert first["documents"] == 0 and first["waiting"] == {}
        child.tell()
        assert child.hear() == "loaded"
        loaded = wait_until(
            lambda: [one for one in asked(empty)["samples"] if one["waiting"]], what="dirty cells"
        )[0]
        assert loaded["waiting"] == {"pages.capture": len({c.url for c in sample()[:30]})}
        child.tell()
        assert child.hear() == "worked"

        def done() -> Any:
            answer = asked(empty)
            last = answer["samples"][-1]
            return answer if last["documents"] and not last["waiting"] else None

        answer = wait_until(done, what="the documents in a sample")
        samples, view = answer["samples"], answer["view"]
        assert samples[-1]["documents"] == empty.index.count() > 10
        assert samples[-1]["last_ts"] == empty.repo.snapshot().start_ts
        pairs = itertools.pairwise(samples)
        commits = sum(b["commits"] * (b["at_ms"] - a["at_ms"]) / 1000 for a, b in pairs)
        assert commits == pytest.approx(samples[-1]["last_ts"] - samples[0]["last_ts"], rel=0.05)
        assert any(one["searchable"] for one in samples)
        assert 0 < samples[-1]["p50"] <= samples[-1]["p95"] <= samples[-1]["p99"]
        assert child.pid in [one["pid"] for one in view["processes"]]
        child.tell()
        child.hear()


def test_every_page_that_became_searchable_is_counted_once(
    empty: Served, wait_until: WaitUntil
) -> None:
    before = asked(empty)["samples"][-1]["number"]
    for number in range(6):
        empty.load(made(f"https://a.example/{number}", article(f"Number {number}")))
        empty.work()

    def made_searchable() -> float:
        pages = 0.0
        for one, other in itertools.pairwise(asked(empty)["samples"]):
            if other["number"] > before:
                pages += other["searchable"] * (other["at_ms"] - one["at_ms"]) / 1000
        return pages

    wait_until(lambda: made_searchable() > 5.5, what="six pages in the samples")
    assert made_searchable() == pytest.approx(6, abs=0.2)


def test_only_the_samples_after_the_last_one_are_sent(empty: Served) -> None:
    first = asked(empty)["samples"]
    newest = first[-1]["number"]
    assert all(one["number"] > newest for one in asked(empty, newest)["samples"])
    # A page that was opened before the server was started anew gets everything.
    assert asked(empty, newest + 1_000)["samples"][0]["number"] == 1
    for odd in ("-1", "x", "9" * 40):
        assert empty.client.get("/live.json", params={"since": odd}).json()["samples"]


def test_the_live_page_has_its_numbers_without_a_script(empty: Served) -> None:
    empty.load(*(made(f"https://a.example/{n}", article(f"Page {n}", f"text {n}")) for n in "abc"))
    page = empty.page("/live")
    numbers = dict(zip(page.all(".tile dt"), page.all(".tile dd"), strict=True))
    assert numbers["Changes waiting"] == "3" and numbers["Documents in search"] == "0"
    waits = page.css("#steps tbody tr")
    assert [row.attributes["data-column"] for row in waits] == list(
        dict.fromkeys(repr(one.column) for one in build_observers(empty.index))
    )
    first = [cell.text() for cell in waits[0].css("td")]
    assert first == ["parse", "to be parsed", "pages.capture", "3"]
    assert len(page.css(".plot")) == 4 and page.css_first("noscript") is not None


def test_live_pages_are_what_the_counters_of_hosts_say(
    empty: Served, wait_until: WaitUntil
) -> None:
    urls = [f"https://a.example/{number}" for number in range(60)]
    empty.load(*(made(url, article(url, url)) for url in urls))
    empty.load(
        made(urls[0], "", seconds=60, status=404), made("https://b.example/", "", status=404)
    )
    empty.work()
    wait_until(lambda: asked(empty)["view"]["pages"] == 59, what="the count of live pages")
    rows = list(empty.repo.snapshot().scan(tables.hosts))
    assert len(rows) < 59, "no two pages share a counter"


def test_every_step_of_the_chain_has_words(empty: Served) -> None:
    assert story.STEPS.keys() == {repr(one.column) for one in build_observers(empty.index)}


def test_a_failure_is_counted_and_listed_with_its_page(
    empty: Served, wait_until: WaitUntil
) -> None:
    url = "https://a.example/"
    empty.load(made(url, article("Alpha")))
    with empty.repo.transaction() as t:
        t.set(tables.body, page_row(url), b"this was never compressed")
    empty.work()
    answer = wait_until(lambda: (a := asked(empty))["samples"][-1]["failed"] and a, what="it")
    [one] = answer["view"]["failures"]
    assert (one["observer"], one["url"], one["attempts"]) == ("parse", url, 5)
    assert "pages.capture" in one["cell"] and "zlib.error" in one["error"]


def test_the_oldest_change_is_as_old_as_its_capture(empty: Served, wait_until: WaitUntil) -> None:
    empty.load(made("https://a.example/", article("Alpha")))
    row = page_row("https://a.example/")
    loaded = (empty.repo.snapshot().get(tables.capture, row) or {})["loaded_ms"]
    answer = wait_until(lambda: (a := asked(empty))["samples"][-1]["waiting"] and a, what="it")
    last = answer["samples"][-1]
    assert last["oldest_s"] == pytest.approx((last["at_ms"] - loaded) / 1000)
    assert answer["view"]["oldest_column"] == "pages.capture"
    assert not answer["view"]["oldest_at_least"]


def test_a_change_in_a_cluster_ages_from_the_sample_that_first_saw_it(
    empty: Served, wait_until: WaitUntil
) -> None:
    asked(empty)
    empty.load(made("https://a.example/", article("Alpha")))
    before_assembling = [one for one in build_observers(empty.index)[:-1] if one is not assemble]
    Worker(empty.repo, before_assembling, threads=1).run_until_idle()
    answer = wait_until(
        lambda: (a := asked(empty))["samples"][-1]["oldest_s"] >= 1 and a, what="its age"
    )
    assert answer["view"]["oldest_column"] == "clusters.changed"
    first = next(one for one in answer["samples"] if one["waiting"] == {"clusters.changed": 1})
    last = answer["samples"][-1]
    assert last["oldest_s"] == pytest.approx((last["at_ms"] - first["at_ms"]) / 1000, abs=0.01)


def test_a_trouble_of_the_repository_is_said_and_passes(
    empty: Served, wait_until: WaitUntil
) -> None:
    with empty.repo.transaction() as t:
        t.set(tables.live, "new.example/00", {"pages": 3, "indexable": 3})
    before = wait_until(lambda: (v := asked(empty)["view"])["pages"] and v, what="the pages")
    serving = Path(empty.repo.address) / "serving"
    serving.rename(serving.with_name("away"))
    view = wait_until(lambda: (v := asked(empty)["view"])["trouble"] and v, what="the trouble")
    assert "search index" in view["trouble"]
    # What was known by then still stands beside it: nothing claims that nobody works here.
    assert {**view, "trouble": ""} == before
    os.rename(serving.with_name("away"), serving)
    wait_until(lambda: not asked(empty)["view"]["trouble"], what="its end")


def test_a_defect_is_said_logged_and_outlived(
    empty: Served,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> int:
        raise KeyError("a secret of the server")

    monkeypatch.setattr(ExportLog, "read", broken)
    trouble = wait_until(lambda: asked(empty)["view"]["trouble"], what="the trouble")
    assert "server's output" in trouble and "secret" not in trouble
    assert "a secret of the server" in caplog.text
    monkeypatch.undo()
    wait_until(lambda: not asked(empty)["view"]["trouble"], what="its end")


def test_samples_are_seldom_while_nobody_looks(
    empty: Served, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr(live, "_LOOKED_AT", 0.01)
    monkeypatch.setattr(live, "_UNATTENDED", 30.0)
    monkeypatch.setattr(live, "_ATTENTION", 0.5)
    monkeypatch.setattr(live, "_SHARE", 0)
    sampler = Sampler(empty.repo, empty.index)
    sampler.start()
    try:
        wait_until(lambda: len(sampler.look()[0]) > 5, what="samples while somebody looks")
        # Attention fades, and the next sample does not come.
        held: list[int] = []

        def settled() -> bool:
            held.append(len(sampler._samples))
            return len(held) > 200 and held[-200] == held[-1]

        wait_until(settled, what="the end of the samples")
        count = len(sampler._samples)
        assert len(sampler.look()[0]) > count, "who looks again gets a new one at once"
    finally:
        sampler.stop()


def test_the_samples_kept_are_bounded_and_found_by_number() -> None:
    samples = [Sample(n, n, n, 0, {}, 0, 0.0) for n in range(5, 15)]
    assert [one.number for one in since(samples, 12)] == [13, 14]
    assert since(samples, 14) == since([], 0) == since(samples, 99) == []
    assert len(since(samples, 0)) == 10
    assert Sampler.__doc__ and live.KEPT <= 3_600


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

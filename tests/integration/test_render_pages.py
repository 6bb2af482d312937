"""Pages rendered from a repository: which are, why, and what becomes of one that cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import lack, need
from rendered_site import SITE, follow, load_site, png

import percola
from percola import Repository, Worker, inspection
from webindex import tables
from webindex.errors import NoBrowserError, RenderError
from webindex.page.urls import page_row
from webindex.rendering import tables as rendering
from webindex.rendering.browser import Bounds, Browser, Rendered, find_browser
from webindex.rendering.render import ATTEMPTS, render_url, render_with
from webindex.workers.processes import NICENESS, open_repository, running

FILES = {
    "styled": '<link rel=stylesheet href="main.css"><p>words',
    "framed": '<iframe src="styled"></iframe>',
    "plain": '<p>words<img src="missing.png">',
    "main.css": "@import 'base.css';",
    "base.css": "body { background: #00ff00 }",
}
"""`framed` uses the stylesheets only through its frame: what the browser asked for tells."""


@pytest.fixture
def repo() -> Iterator[Repository]:
    with percola.open("memory:", schema=tables.SCHEMA) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need("browser")
    try:
        executable = find_browser()
    except NoBrowserError as error:
        lack("browser", str(error))
    with Browser(Bounds(width=320, height=240, seconds=120), executable) as started:
        yield started


def work(repo: Repository, browser: Browser) -> None:
    follow(repo)
    render = [render_with(browser)]
    options: Any = {"threads": 1, "attempts": ATTEMPTS, "first_wait": 0.001}
    Worker(repo, render, warn_unobserved=False, **options).run_until_idle()


def made(repo: Repository) -> dict[str, int]:
    """The pages that have an image, each with the timestamp at which it was made."""
    now = repo.snapshot()
    found = {}
    for row in now.scan(rendering.renders, columns=[rendering.about]):
        version = now.version(rendering.about, row.key)
        found[row[rendering.about]["url"].removeprefix(SITE)] = version
    return found


def again(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in after if before.get(name) != after[name]}


def about(repo: Repository, name: str) -> dict[str, Any]:
    found = repo.snapshot().get(rendering.about, page_row(SITE + name))
    assert found is not None
    return found


def small_image(repo: Repository, name: str) -> bytes | None:
    return repo.snapshot().get(rendering.thumbnail, page_row(SITE + name))


def earlier_images(repo: Repository, name: str) -> dict[str, bytes]:
    row = repo.snapshot().get_row(rendering.renders, page_row(SITE + name), [rendering.earlier])
    return dict(row.family(rendering.earlier))


def test_exactly_the_pages_are_rendered_again_whose_resources_changed(
    repo: Repository, tmp_path: Path, browser: Browser
) -> None:
    load_site(repo, tmp_path, FILES)
    work(repo, browser)
    first, thumbnail = made(repo), small_image(repo, "styled")
    assert set(first) == {"styled", "framed", "plain"}
    assert about(repo, "plain")["asked"] == {SITE + "missing.png": None}
    assert SITE + "base.css" in about(repo, "framed")["asked"]
    load_site(repo, tmp_path, {"base.css": "body { background: #0000ff }"}, day=2)
    work(repo, browser)
    second = made(repo)
    assert again(first, second) == {"styled", "framed"}
    told = about(repo, "styled")
    assert [one["url"] for one in told["because"]] == [SITE + "base.css"]
    [past] = told["history"]
    assert earlier_images(repo, "styled") == {str(past["at_ms"]): thumbnail}
    assert small_image(repo, "styled") != thumbnail
    load_site(repo, tmp_path, {"missing.png": png(255, 0, 0)}, day=3)
    work(repo, browser)
    third = made(repo)
    assert again(second, third) == {"plain"}
    # Due, but nothing that they show has changed.
    load_site(repo, tmp_path, {"base.css": "body { background: #0000ff }"}, day=4)
    work(repo, browser)
    assert again(third, made(repo)) == set()
    load_site(repo, tmp_path, {"styled": None}, day=5)
    work(repo, browser)
    assert set(made(repo)) == {"framed", "plain"}
    assert small_image(repo, "styled") is None and earlier_images(repo, "styled") == {}


def test_urls_are_found_in_the_spelling_of_the_crawl(
    repo: Repository, tmp_path: Path, browser: Browser
) -> None:
    """Chromium asks for `%7C` and `%5E` in a path where the markup has `|` and `^`."""
    shown = '<img src="red^.png"><img src="blue%7C.png"><img src="lost|.png">'
    images = {"red^.png": png(255, 0, 0), "blue%7C.png": png(0, 0, 255)}
    load_site(repo, tmp_path, {"page|^": shown, **images})
    work(repo, browser)
    asked = about(repo, "page|^")["asked"]
    assert {url for url, digest in asked.items() if digest is not None} == {
        SITE + name for name in images
    }
    load_site(repo, tmp_path, {"lost|.png": png(1, 2, 3)}, day=2)
    work(repo, browser)
    assert about(repo, "page|^")["asked"][f"{SITE}lost|.png"] is not None


def test_the_pages_of_a_stylesheet_are_rendered_by_links_and_no_faster_than_the_rate(
    repo: Repository, tmp_path: Path, browser: Browser, wait_until: Callable[..., object]
) -> None:
    links = {"page3": 9, "page1": 4, "page0": 3, "page2": 0}
    pages = dict.fromkeys(links, '<link rel=stylesheet href="main.css"><p>words')
    load_site(repo, tmp_path, {**pages, "main.css": "body { background: #00ff00 }"})
    with repo.transaction() as t:
        for name, number in links.items():
            t.set(tables.tally, page_row(SITE + name), {"links": number, "anchors": {}})
    follow(repo)
    worker = Worker(repo, [render_with(browser, 1e-6)], threads=1, warn_unobserved=False)
    worker.start()
    wait_until(lambda: made(repo))
    worker.stop()
    assert set(made(repo)) == {"page3"}, "the next one is due in days"
    work(repo, browser)
    made_at = made(repo)
    assert sorted(made_at, key=made_at.__getitem__) == [*links]


def test_a_renderer_and_its_browser_have_a_lower_priority_than_workers(
    tmp_path: Path, browser: Browser, wait_until: Callable[..., object]
) -> None:
    with open_repository(str(tmp_path / "index"), create=True) as repo:
        load_site(repo, tmp_path, {"plain": "<p>words"})
        follow(repo)
        with running(repo.address, 1, command=["run-renderer"]) as renderers:
            renderers.wait_ready()
            [process] = renderers.processes
            started = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert started
            lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
            for pid in [process.pid, *map(int, started)]:
                assert os.getpriority(os.PRIO_PROCESS, pid) == lower
            wait_until(lambda: made(repo))


def test_a_page_that_cannot_be_rendered_is_dead_lettered_with_the_reason(
    repo: Repository, tmp_path: Path, browser: Browser
) -> None:
    load_site(repo, tmp_path, {"good": "<p>words", "bad": "<p>words"})
    bounds, render = browser.bounds, browser.render

    class Hanging:
        """The browser, but that it gives one page no time."""

        version = browser.version

        def render(self, url: str, answers: Any) -> Any:
            short = Bounds(width=320, height=240, seconds=1e-6)
            browser.bounds = short if url.endswith("bad") else bounds
            try:
                return render(url, answers)
            finally:
                browser.bounds = bounds

    work(repo, Hanging())  # type: ignore[arg-type]
    assert set(made(repo)) == {"good"}
    [failure] = inspection.failures(repo)
    assert (failure.observer, failure.attempts) == ("render", ATTEMPTS)
    assert failure.error.endswith("The page took longer than 1e-06 s to render.")


def test_pages_wait_for_a_browser_that_does_not_start_and_are_not_dead_lettered(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_site(repo, tmp_path, {"one": "<p>words", "other": "<p>words"})
    monkeypatch.setattr("webindex.rendering.render._WAIT", 0.0)
    starts = iter([False] * (2 * ATTEMPTS + 1))

    class Replaced:
        """A browser that is not there while its next version is installed."""

        @property
        def version(self) -> str:
            if not next(starts, True):
                raise NoBrowserError("The browser does not start.")
            return "the next one"

        def render(self, url: str, answers: Any) -> Rendered:
            return Rendered(png(0, 0, 0), png(0, 0, 0), 320, 240)

    work(repo, Replaced())  # type: ignore[arg-type]
    assert next(starts, None) is None
    assert set(made(repo)) == {"one", "other"} and not list(inspection.failures(repo))


def test_one_page_is_rendered_on_demand(repo: Repository, tmp_path: Path, browser: Browser) -> None:
    load_site(repo, tmp_path, {**FILES, "moved": "->/styled"})
    told, image, small = repo.run(lambda t: render_url(t, SITE + "styled", browser))
    assert image[:8] == small[:8] == b"\x89PNG\r\n\x1a\n" and told["width"] == 320
    kept = repo.snapshot().get(rendering.image, page_row(SITE + "styled"))
    assert kept == image
    for name, reason in [("none", "There is no capture"), ("moved", "an answer of status 301")]:
        with pytest.raises(RenderError, match=reason):
            repo.run(lambda t, name=name: render_url(t, SITE + name, browser))  # type: ignore[misc]

"""A page's image: beside its search result, in its report, and why it was made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rendered_site import SITE, load_site, png
from rich.console import Console
from site_client import Served, article, empty
from web_commands import call

from percola import Worker
from webindex.cli.explain import print_story
from webindex.rendering.browser import Answer, Rendered
from webindex.rendering.render import render_with
from webindex.reports import tell
from webindex.workers.processes import build_observers

__all__ = ["empty"]

WHOLE, SMALL = png(0, 128, 0, 40), png(0, 128, 0, 10)
PAGE, STYLE, LOST = SITE + "fields", SITE + "main.css", SITE + "lost.png"


class Painter:
    """Asks for what the page uses, as a browser does, and paints a square."""

    version = "painter 1"

    def render(self, url: str, answers: Callable[[str], tuple[str | None, Answer | None]]) -> Any:
        asked = {}
        for one in (STYLE, LOST):
            name, answer = answers(one)
            assert name is not None
            asked[name] = None if answer is None else answer.digest
        return Rendered(WHOLE, SMALL, 1024, 2000, cut=True, asked=asked)


def paint(site: Served, folder: Path, files: dict[str, Any], day: int = 1) -> None:
    load_site(site.repo, folder, files, day)
    painter: Any = Painter()
    observers = [*build_observers(site.index, resources=True), render_with(painter)]
    Worker(site.repo, observers, threads=1).run_until_idle()


@pytest.fixture
def painted(empty: Served, tmp_path: Path) -> Served:
    used = '<link rel=stylesheet href="main.css"><img src="lost.png">'
    files = {"fields": article("Golden fields") + used, "main.css": "body { color: #000 }"}
    paint(empty, tmp_path, files)
    return empty


def test_a_result_shows_the_thumbnail_of_its_page(painted: Served) -> None:
    found = painted.page("/", q="golden fields")
    [image] = found.css(".hit .thumbnail img")
    answer = painted.client.get(str(image.attributes["src"]))
    assert answer.headers["content-type"] == "image/png"
    assert answer.content == SMALL


def test_a_result_without_an_image_shows_none(empty: Served, tmp_path: Path) -> None:
    load_site(empty.repo, tmp_path, {"fields": article("Golden fields")})
    empty.work()
    found = empty.page("/", q="golden fields")
    assert len(found.css(".hit")) == 1
    assert found.css(".hit img") == []
    assert found.css(".pictured") == []


def test_the_report_shows_the_image_and_what_it_was_made_of(painted: Served) -> None:
    page = painted.story(PAGE)
    said = page.words(".picture")
    assert "1,024 × 2,000 pixels, the page is longer, from the capture of 2024-01-01" in said
    assert "and 2 resources." in said
    assert "Rendered first at" in said
    assert "1 resource was never captured" in said
    assert LOST in said
    assert painted.client.get(page.link(".picture a")).content == WHOLE


def test_the_report_says_why_a_page_was_rendered_again(painted: Served, tmp_path: Path) -> None:
    paint(painted, tmp_path, {"main.css": "body { color: #fff }"}, day=2)
    page = painted.story(PAGE)
    first, second = page.all(".picture .list li")
    # Beside the sentence of the earlier image is its thumbnail.
    [image] = page.css(".picture .list li img")
    assert painted.client.get(str(image.attributes["src"])).content == SMALL
    assert first.startswith("Rendered again at ")
    assert f"because {STYLE} changed with its capture of 2024-01-02" in first
    assert second.startswith("Rendered first at ")
    paint(painted, tmp_path, {"main.css": None, "lost.png": png(1, 2, 3)}, day=3)
    newest = painted.story(PAGE).all(".picture .list li")[0]
    assert f"{STYLE} changed with its capture of 2024-01-03" in newest
    assert f"{LOST} changed with its capture of 2024-01-03" in newest


def test_the_terminal_says_the_same(painted: Served) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        print_story(console, tell(painted.repo, painted.index, PAGE), 10)
    said = captured.get()
    assert "1,024 x 2,000 pixels, the page is longer, with 2 resources" in said
    assert "Rendered first at" in said
    assert f"not captured: {LOST}" in said


def test_an_image_is_sent_again_only_if_it_has_changed(painted: Served, tmp_path: Path) -> None:
    first = painted.client.get("/image", params={"url": PAGE})
    assert first.headers["cache-control"] == "private, no-cache"
    tag = {"If-None-Match": first.headers["etag"]}
    weak = {"If-None-Match": f'"another", W/{first.headers["etag"]}'}
    for has in (tag, weak):
        again = painted.client.get("/image", params={"url": PAGE}, headers=has)
        assert (again.status_code, again.content) == (304, b"")
    paint(painted, tmp_path, {"main.css": "body { color: #fff }"}, day=2)
    other = painted.client.get("/image", params={"url": PAGE}, headers=tag)
    assert (other.status_code, other.content) == (200, WHOLE)


@pytest.mark.parametrize(
    ("url", "status", "sentence"),
    [
        (SITE + "nowhere", 404, "This page has no image: 'webindex work --render' makes it."),
        ("ftp://example.org/", 400, "ftp"),
        ("", 400, "URL"),
    ],
)
def test_what_has_no_image_is_told_in_a_sentence(
    painted: Served, url: str, status: int, sentence: str
) -> None:
    assert sentence in painted.page("/image", status=status, url=url).words("main")


def test_a_page_that_is_gone_has_no_image(painted: Served, tmp_path: Path) -> None:
    paint(painted, tmp_path, {"fields": None}, day=2)
    assert painted.story(PAGE).css(".picture") == []
    painted.page("/image", status=404, url=PAGE)


def test_a_page_that_asks_for_it_is_shown_without_image_and_snippet(
    painted: Served, tmp_path: Path
) -> None:
    assert painted.page("/", q="golden fields").css(".hit .snippet")
    asking = article("Golden fields", "A violet hedgehog").replace(
        "<title>", '<meta name="robots" content="noarchive, nosnippet"><title>'
    )
    paint(painted, tmp_path, {"fields": asking}, day=2)
    found = painted.page("/", q="golden fields")
    assert len(found.css(".hit")) == 1
    assert found.css(".hit img") == []
    assert found.css(".hit .snippet") == []
    told = tell(painted.repo, painted.index, PAGE)
    assert told.asks == ["noarchive", "nosnippet"]
    assert told.picture is None and told.excerpt == ""
    for small in ({}, {"small": "1"}):
        answer = painted.client.get("/image", params={"url": PAGE, **small})
        assert answer.status_code == 404 and "noarchive" in answer.text
    # The terminal, and programs.
    for words in (["golden"], ["--json", "golden"]):
        found = call("search", "--repo", painted.repo.address, *words).out
        assert "Golden fields" in found and "hedgehog" not in found


@pytest.mark.parametrize("then", [None, "->/elsewhere"], ids=["gone", "moved"])
def test_the_image_of_a_page_that_is_gone_is_not_shown_while_nobody_renders(
    painted: Served, tmp_path: Path, then: str | None
) -> None:
    load_site(painted.repo, tmp_path, {"fields": then}, day=2)
    Worker(painted.repo, build_observers(painted.index, resources=True)).run_until_idle()
    assert painted.story(PAGE).css(".picture") == []
    painted.page("/image", status=404, url=PAGE)

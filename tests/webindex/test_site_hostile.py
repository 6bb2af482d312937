"""Whatever a page, its address or a link to it holds, the site shows it as text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hostile_pages import (
    ANCHOR,
    OTHER,
    QUOTED,
    RUNNING,
    SOURCE,
    TARGET,
    TEXT,
    TITLE,
    TURNED,
    hostile,
)
from rich.console import Console
from site_client import Page, Served, empty, made, served

from webindex import tables
from webindex.cli.explain import print_story
from webindex.page.urls import normalise, page_row
from webindex.reports import tell

__all__ = ["empty"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("hostile") / "repo") as one:
        one.load(
            made(SOURCE, hostile(TITLE, TEXT)),
            made(TARGET, hostile(TITLE, "target " + TEXT)),
            made(OTHER, hostile(TURNED, "other " + TEXT)),
            made(OTHER + "/copy", hostile(TURNED, "other " + TEXT)),
            made(MOVED, "", status=301, to=TARGET),
            made(NAMING, hostile(TITLE, "naming " + TEXT).replace("<title>", NAMES, 1)),
        )
        one.work()
        # One that cannot be parsed, to have a traceback shown too.
        broken = made("https://evil.example/<b>broken</b>", hostile(TITLE, TEXT))
        one.load(broken)
        with one.repo.transaction() as t:
            t.set(tables.body, page_row("https://evil.example/%3Cb%3Ebroken%3C/b%3E"), b"<script>")
        one.work()
        yield one


MOVED, NAMING = "https://evil.example/moved/<i>", "https://evil.example/naming"
NAMES = f'<link rel="canonical" href="{escape(QUOTED)}"><title>'


def pages_of(site: Served) -> Iterator[tuple[str, Page]]:
    """Every sort of page, with something hostile in each place it can have."""
    asked = [
        ("/", {"q": "malevolence"}),
        ("/", {"q": TITLE}),
        ("/", {"q": ANCHOR, "host": ANCHOR, "lang": ANCHOR}),
        ("/", {"q": TURNED}),
        ("/", {"q": "malevolence", "page": ANCHOR}),
        ("/page", {"url": ANCHOR}),
        ("/page", {"url": RUNNING}),
        ("/live", {}),
        ("/" + ANCHOR, {}),
    ]
    urls = [SOURCE, TARGET, OTHER, OTHER + "/copy", "https://evil.example/<b>broken</b>"]
    urls += [MOVED, NAMING]
    asked += [("/page", {"url": url, "q": ANCHOR, "in": ANCHOR}) for url in urls]
    for path, parameters in asked:
        answer = site.client.get(path, params=parameters)
        assert answer.status_code in (200, 400, 404), answer.text
        yield f"{path} {parameters}", Page(answer.text)


def test_nothing_hostile_becomes_markup(site: Served) -> None:
    """Elements, attributes and addresses are those of the templates and no others."""
    seen = 0
    for name, page in pages_of(site):
        for node in page.every():
            seen += 1
            if node.tag == "script":
                assert node.attributes.keys() <= {"src", "defer"} and not node.text(), name
            assert node.tag not in ("img", "style", "iframe", "object", "embed", "base"), name
            assert node.tag != "b" and node.attributes.get("http-equiv") is None, name
            for attribute, value in node.attributes.items():
                assert not attribute.startswith("on") and attribute != "style", (name, attribute)
                if attribute in ("href", "src", "action") and value is not None:
                    parts = urlsplit(value)
                    assert parts.scheme in ("", "http", "https"), (name, value)
                    assert value.startswith(("/", "#")) or parts.scheme, (name, value)
                    assert not value.startswith("//"), (name, value)
                    if parts.scheme:
                        rel = set((node.attributes["rel"] or "").split())
                        assert rel == {"noopener", "noreferrer", "nofollow"}, (name, value)
    assert seen > 1_000


def test_hostile_text_is_shown_as_it_is(site: Served) -> None:
    found = site.page("/", q="malevolence")
    assert any(title.startswith("</title><script>window.hacked=1") for title in found.all("h2"))
    assert any("onerror=" in text for text in found.all(".snippet"))
    story = site.story(SOURCE)
    assert story.words("h1").startswith("</title><script>") and "{{7*7}}" in story.words("h1")
    assert ANCHOR in story.words("#out-links")
    assert site.page("/", q=ANCHOR).css_first("#q").attributes["value"] == ANCHOR  # type: ignore[union-attr]


def test_hostile_addresses_in_sentences_lead_to_stories_and_nowhere_else(site: Served) -> None:
    target = normalise(TARGET)
    for url, kind in ((MOVED, "redirect"), (NAMING, "canonical")):
        page = site.story(url)
        assert page.words(".way .tag:first-child") == kind
        assert target in page.all(".standing .url"), page.html
        for link in page.css(".standing a, .way a"):
            assert (link.attributes["href"] or "").startswith(
                "/page?url=https%3A%2F%2Fevil.example"
            )
    pointing = site.story(TARGET).all("section[aria-labelledby=pointing-title] .url")
    assert sorted(pointing) == sorted(map(normalise, (MOVED, NAMING)))


def test_a_terminal_is_shown_nothing_that_turns_it(site: Served) -> None:
    written = io.StringIO()
    for url in (SOURCE, OTHER, MOVED, NAMING):
        story = tell(site.repo, site.index, url)
        print_story(Console(file=written, width=100, soft_wrap=True), story, 20)
    text = written.getvalue()
    assert "txt\ufffdgpj.exe" in text and "window.hacked=1" in text
    assert not set("\u202e\u202c\u2066\u2069\x1b\x07\u2028") & set(text)


def test_nothing_turns_the_direction_of_what_stands_beside_it(site: Served) -> None:
    turned = 0
    for name, page in pages_of(site):
        text = page.html or ""
        for bad in "\u202e\u202d\u202a\u202b\u202c\u2066\u2067\u2068\u2069\x1b\x07\u2028\x00":
            assert bad not in text, (name, bad)
        turned += text.count("txt\ufffdgpj.exe")
    assert turned > 5, "the hostile text was shown, without what turns it"


def test_what_is_written_from_right_to_left_begins_at_the_right(empty: Served) -> None:
    """Of a block with dir=auto the browser looks at the text, without that in <bdi>."""
    html = (
        "<!doctype html><title>נשיא המדינה</title><p>" + "נשיא המדינה ביקר אתמול בדרום הארץ. " * 9
    )
    empty.process(made("https://he.example/", html))
    found = empty.page("/", q="המדינה")
    for page, block in ((found, "h2"), (found, ".snippet"), (empty.story("he.example"), "h1")):
        [node] = page.css(f"{block}[dir=auto]")
        assert node.attributes["lang"] == "he" and not node.css("bdi"), block
    assert "Hebrew" in found.all(".meta span") and "Hebrew" in found.all(".filters bdi")


def test_what_scripts_are_given_is_json_that_no_browser_takes_for_a_page(site: Served) -> None:
    answer = site.client.get("/live.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    letters = json.loads(answer.text)["parts"]["letters"]["text"]
    assert "https://evil.example/%3Cb%3Ebroken%3C/b%3E" in letters


def test_our_own_scripts_make_no_markup_from_text() -> None:
    root = Path(__file__).resolve().parents[2] / "src"
    folders = [root / "webindex" / "site" / "static", root / "percola" / "serve" / "static"]
    scripts = [file.read_text() for folder in folders for file in folder.glob("*.js")]
    assert len(scripts) == 2
    for text in scripts:
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "document.write",
        ):
            assert forbidden not in text


def test_no_template_switches_escaping_off() -> None:
    root = Path(__file__).resolve().parents[2] / "src"
    folders = [root / "webindex" / "site", root / "percola" / "serve"]
    templates = [file for folder in folders for file in folder.glob("templates/*.html")]
    assert len(templates) > 15
    for file in templates:
        text = file.read_text()
        assert "|safe" not in text.replace(" ", "") and "autoescape" not in text, file

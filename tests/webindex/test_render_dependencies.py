"""Which pages a change makes due: exactly those that use what has changed, however they use it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rendered_site import SITE, TYPES, follow, load_site, made_due, png, rows

import percola
from percola import Repository, Transaction, Worker
from webindex import tables
from webindex.page.urls import page_id, page_row
from webindex.rendering import dependencies
from webindex.rendering import tables as rendering
from webindex.rendering.browser import Rendered
from webindex.rendering.css import decode_css, references_in
from webindex.rendering.references import references_of_page, references_of_style
from webindex.rendering.render import render_with

LINKED = '<link rel="stylesheet" href="/{}">'
FILES = {
    "": LINKED.format("main.css"),
    "red": LINKED.format("main.css") + '<img src="red.png">',
    "moved": LINKED.format("old.css"),
    "plain": "<p>words",
    "framed": '<iframe src="red"></iframe>',
    "main.css": '@import "base.css"; body { color: red }',
    "base.css": "@import url(deep.css);",
    "deep.css": "@import 'main.css'; p { background: url(blue.png) }",
    "old.css": "->/base.css",
    "red.png": png(255, 0, 0),
    "blue.png": png(0, 0, 255),
}


Due = Callable[..., set[str]]


@pytest.fixture
def due_after(repo: Repository, tmp_path: Path) -> Due:
    """Loads captures of one day; the rows of the pages that are to be rendered then."""

    def load(files: dict[str, Any], day: int = 1) -> set[str]:
        load_site(repo, tmp_path, files, day)
        return made_due(repo)

    return load


@pytest.mark.parametrize(
    ("css", "expected"),
    [
        ("@import 'a.css'; @import url(b.css) print;", ["a.css", "b.css"]),
        ('@import "a.css" supports(display: grid);', ["a.css"]),
        ("p { background: URL( 'a b.png' ) , url(c.png) }", ["a b.png", "c.png"]),
        ("/* url(no.png) */ a { b: 'url(no.png)' } i { c: url(yes.png) }", ["yes.png"]),
        ('p { content: "a\\"b url(no.png)" } q { c: url("y\\65s.png") }', ["yes.png"]),
        ("@namespace url(http://www.w3.org/1999/xhtml); a{b:url(x)}", ["x"]),
        ("@font-face { src: url(a.woff2) format('woff2'), url(b.woff) }", ["a.woff2", "b.woff"]),
        ('p { filter: url(#blur); x: url() ; y: url("") }', []),
        ("/* never closed url(a.png)", []),
        ("p { a: 'never closed\n} q { b: url(yes.png) }", ["yes.png"]),
        ("a { b: url(unclosed.png", ["unclosed.png"]),
    ],
)
def test_references_of_a_stylesheet(css: str, expected: list[str]) -> None:
    assert list(references_in(css)) == expected


@pytest.mark.parametrize("piece", ["url(", "'", "/*", "@import ", "\\", "url('\\", '"\\\n'])
def test_a_stylesheet_is_read_in_linear_time(piece: str) -> None:
    """A quadratic scan of these would take hours."""
    list(references_in(piece * (1_000_000 // len(piece))))


def test_a_stylesheet_has_the_charset_that_it_declares() -> None:
    assert decode_css(b"\xef\xbb\xbfa{}", "text/css; charset=latin1") == "a{}"
    assert decode_css("ä".encode("latin-1"), "text/css; charset=latin1") == "ä"
    assert decode_css(b'@charset "latin1";\xe4', "text/css").endswith("ä")
    assert decode_css(b"\xc3\xa4", "text/css; charset=none-such") == "ä"


@pytest.mark.parametrize("charset", ["undefined", "idna", "punycode"])
def test_a_charset_of_python_alone_dead_letters_no_stylesheet(
    charset: str, repo: Repository, due_after: Due, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TYPES, ".css", [("Content-Type", f"text/css; charset={charset}")])
    assert due_after({"": FILES[""], "main.css": FILES["main.css"]}) == rows([""])
    assert due_after({"main.css": "a{}"}, day=2) == rows([""])
    assert repo.dead_lettered() == 0
    assert decode_css(b"\xc3\xa4", f"text/css; charset={charset}") == "ä"


def test_references_of_a_page() -> None:
    html = """
      <base href="/in/"><link rel="Stylesheet" href="a.css"><link rel=canonical href="no">
      <style>@import 'b.css';</style><p style="background: url(c.png)">
      <img src=d.png srcset="e.png 1x, f.png 2x"><picture><source srcset="g.png"></picture>
      <video poster=h.png src=no.mp4></video><object data=i.svg></object><iframe src=j></iframe>
      <svg><image href="k.png"/><use xlink:href="l.svg#part"/></svg>
      <input type=image src=m.png><input type=text src=no.png><table background=n.png></table>
      <img src="data:image/png;base64,AA"><img src="a.css"><script src="no.js"></script>
      <a href="no.html">x</a><img src="http://[bad/">
    """
    capture = {"url": f"{SITE}page", "content_type": "text/html", "digest": "1"}
    found = references_of_page(capture, html.encode())
    names = [*"bcdefghijklmn"]
    assert found[0] == f"{SITE}in/a.css"
    assert [url.removeprefix(f"{SITE}in/").split(".")[0] for url in found[1:]] == names
    assert references_of_page({**capture, "content_type": "text/plain"}, html.encode()) == []
    many = "".join(f"<img src={n}.png>" for n in range(3000))
    assert len(references_of_page(capture, many.encode())) == 1000


def test_a_stylesheet_s_references_are_relative_to_itself() -> None:
    found = references_of_style(f"{SITE}a/b.css", "text/css", b"p { x: url(c.png) url(../d.png) }")
    assert found == [f"{SITE}a/c.png", f"{SITE}d.png"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("main.css", ["", "red", "moved"]),
        ("base.css", ["", "red", "moved"]),
        ("deep.css", ["", "red", "moved"]),
        ("blue.png", ["", "red", "moved"]),
        ("old.css", ["moved"]),
        ("red.png", ["red"]),
        ("plain", ["plain"]),
        ("red", ["red", "framed"]),
        ("unknown.css", []),
    ],
)
def test_a_change_makes_exactly_the_pages_due_that_use_it(
    due_after: Due, changed: str, expected: list[str]
) -> None:
    """Directly, through `@import` (here in a circle), a redirect, or a frame."""
    assert due_after(FILES) == rows(name for name in FILES if "." not in name)
    again = FILES.get(changed, "a{}")
    new = "/* new */" + again if isinstance(again, str) else png(0, 255, 0)
    assert due_after({changed: new}, day=2) == rows(expected)


def test_the_order_of_loading_does_not_matter(tmp_path: Path) -> None:
    names = ["red", "main.css", "base.css", "deep.css"]
    for order in itertools.permutations(names):
        with percola.open("memory:", schema=tables.SCHEMA) as repo:
            for name in (*order, "blue.png"):
                load_site(repo, tmp_path, {name: FILES[name]})
                due = made_due(repo)
        assert due == rows(["red"]), order


def test_what_is_missing_makes_its_pages_due_when_it_arrives(due_after: Due) -> None:
    due_after({"red": FILES["red"], "plain": FILES["plain"]})
    assert due_after({"red.png": FILES["red.png"]}) == rows(["red"])
    assert due_after({"red.png": None}, day=2) == rows(["red"])


def test_a_resource_that_is_not_used_any_more_makes_nothing_due(due_after: Due) -> None:
    due_after(FILES)
    due_after({"main.css": "a{}", "red": "<p>no image"}, day=2)
    assert due_after({"red.png": png(1, 2, 3), "deep.css": "b{}"}, day=3) == rows(["moved"])


def test_the_same_again_makes_nothing_due(due_after: Due) -> None:
    due_after(FILES)
    assert due_after(FILES) == set()


def test_uses_are_what_the_newest_captures_ask_for(repo: Repository, tmp_path: Path) -> None:
    load_site(repo, tmp_path, FILES)
    load_site(repo, tmp_path, {"red": "->/plain", "main.css": "c{}"}, day=2)
    follow(repo)
    now = repo.snapshot()
    uses = now.scan(rendering.uses, columns=[rendering.used_by])
    expected = {}
    for user, kind, used in [
        ("", "page", "main.css"),
        ("red", "part", "plain"),
        ("moved", "page", "old.css"),
        ("framed", "page", "red"),
        ("base.css", "part", "deep.css"),
        ("deep.css", "part", "main.css"),
        ("deep.css", "part", "blue.png"),
        ("old.css", "part", "base.css"),
    ]:
        expected[f"{page_id(SITE + used)}/{kind}/{page_id(SITE + user)}"] = SITE + user
    assert {row.key: row[rendering.used_by] for row in uses} == expected


def test_a_stylesheet_of_many_pages_is_spread_in_steps(
    monkeypatch: pytest.MonkeyPatch, due_after: Due
) -> None:
    pages = {f"page{n}": LINKED.format("main.css") for n in range(25)}
    due_after({**pages, "main.css": "a{}"})
    monkeypatch.setattr(dependencies, "SPREAD_STEP", 7)
    assert due_after({"main.css": "b{}"}, day=2) == rows(pages)


class Recorder:
    """In place of a browser: notes which pages are rendered."""

    version = "none"

    def __init__(self) -> None:
        self.urls: list[str] = []

    def render(self, url: str, answers: object) -> Rendered:
        self.urls.append(url)
        return Rendered()


def test_of_the_pages_of_a_stylesheet_the_highest_ranked_and_most_linked_are_rendered_first(
    repo: Repository, tmp_path: Path
) -> None:
    pages = {f"page{n}": LINKED.format("main.css") for n in range(40)}
    load_site(repo, tmp_path, {**pages, "main.css": "a{}"})
    follow(repo)
    dice = random.Random(5)
    ranks = {name: dice.choice([0.0, 0.5, 3.0]) for name in pages}
    links = {name: dice.randrange(5) for name in pages}
    with repo.transaction() as t:
        for name in pages:
            row = page_row(SITE + name)
            if ranks[name]:
                t.set(tables.rank, row, {"value": ranks[name], "run": 1})
            if links[name]:
                t.set(tables.tally, row, {"links": links[name], "anchors": {}})
    for day in (2, 3):
        load_site(repo, tmp_path, {"main.css": f"a{{ order: {day} }}"}, day=day)
        follow(repo)
    assert repo.pending()["renders.due"] == len(pages)
    browser = Recorder()
    render = render_with(browser)  # type: ignore[arg-type]
    Worker(repo, [render], threads=1, warn_unobserved=False).run_until_idle()
    assert sorted(browser.urls) == sorted(SITE + name for name in pages)
    order = [(-ranks[name], -links[name]) for name in (u.removeprefix(SITE) for u in browser.urls)]
    assert order == sorted(order)


class Asking(Recorder):
    """In place of a browser: asks for a stylesheet."""

    def render(self, url: str, answers: Any) -> Rendered:
        self.urls.append(url)
        name, answer = answers(f"{SITE}main.css")
        return Rendered(asked={name: None if answer is None else answer.digest})


def test_a_page_is_rendered_again_when_only_a_type_or_a_charset_was_corrected(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, days = page_row(f"{SITE}page.html"), itertools.count(1)

    def renders(html: str, css: str) -> bool:
        """Whether a crawl that got these types for the same bytes has the page rendered again."""
        monkeypatch.setitem(TYPES, ".html", [("Content-Type", html)])
        monkeypatch.setitem(TYPES, ".css", [("Content-Type", css)])
        files = {"page.html": LINKED.format("main.css"), "main.css": "a{}"}
        load_site(repo, tmp_path, files, day=next(days))
        follow(repo)
        browser = Asking()
        render = render_with(browser)  # type: ignore[arg-type]
        Worker(repo, [render], threads=1, warn_unobserved=False).run_until_idle()
        return bool(browser.urls)

    assert renders("text/html; charset=latin-1", "text/css")
    assert renders("text/html; charset=utf-8", "text/css")
    assert renders("text/html; charset=utf-8", "text/css; charset=utf-8")
    assert not renders("text/html;charset=UTF-8", "text/css; charset=utf-8")

    def as_earlier_versions_had_it(t: Transaction) -> None:
        about = t.get(rendering.about, page)
        assert about is not None
        asked = {url: told.partition(" ")[0] for url, told in about["asked"].items()}
        t.set(
            rendering.about,
            page,
            {**about, "page": about["page"].partition(" ")[0], "asked": asked},
        )

    repo.run(as_earlier_versions_had_it)
    assert not renders("text/html; charset=utf-8", "text/css; charset=utf-8")


def test_a_page_that_begins_to_use_a_resource_while_it_changes_is_due(
    repo: Repository, tmp_path: Path, due_after: Due
) -> None:
    """`reach` has read the uses before the page entered its own: the page is due by itself."""
    due_after({"red.png": FILES["red.png"], "plain": "<p>", "red": FILES["red"]})
    load_site(repo, tmp_path, {"red.png": png(9, 9, 9)}, day=2)
    spreading = repo.transaction()
    dependencies.spread.function(spreading, page_id(f"{SITE}red.png"))
    load_site(repo, tmp_path, {"plain": '<img src="red.png">'}, day=2)
    asking = repo.transaction()
    dependencies.ask_page.function(asking, page_row(f"{SITE}plain"))
    asking.commit()
    spreading.commit()
    assert made_due(repo) == rows(["plain", "red"])


@pytest.mark.parametrize(
    ("srcset", "expected"),
    [
        ("a.png 320w,b.png 640w,c.png 1024w", ["a", "b", "c"]),
        ("a.png,b.png 2x", ["a.png,b"]),
        ("a.png, b.png 2x", ["a", "b"]),
        (" ,, a.png 1x , b.png", ["a", "b"]),
        ("a.png calc(1,2) 1x,b.png", ["a", "b"]),
        ("a.png (", ["a"]),
        ("", []),
    ],
)
def test_a_srcset_is_split_as_browsers_split_it(srcset: str, expected: list[str]) -> None:
    capture = {"url": f"{SITE}page", "content_type": "text/html", "digest": "1"}
    found = references_of_page(capture, f'<img srcset="{srcset}">'.encode())
    assert [url.removeprefix(SITE).removesuffix(".png") for url in found] == expected


@pytest.mark.parametrize(
    "kind", ["text/html, text/html; charset=utf-8", "text/html charset=utf-8", None]
)
def test_a_page_is_followed_whose_content_type_is_not_as_it_should_be(kind: str | None) -> None:
    capture = {"url": f"{SITE}page", "content_type": kind, "digest": "1"}
    assert references_of_page(capture, b"<img src=a.png>") == [f"{SITE}a.png"]

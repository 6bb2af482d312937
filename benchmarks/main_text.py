"""The main text of a generated page, found by its generator's own markup.

The labels of the benchmark `duplicates` rest on this, so it shares nothing with `webindex`: the
parser is the one of Python's standard library, and what is content and what is navigation is told
by the names of the generator's elements, not by a heuristic.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

__all__ = ["GENERATORS", "Generator", "Main", "Paragraph", "Piece", "main_text"]


@dataclass(frozen=True, slots=True)
class Generator:
    """How the pages of a documentation generator are marked up.

    Each element is written as in CSS: `main`, `div.contents`, `section#main-content`. The first
    of `content` that a page has is its main content; `without` lists the elements inside of it
    that are navigation.
    """

    name: str
    content: tuple[str, ...]
    without: tuple[str, ...] = ()


GENERATORS: Final = {
    one.name: one
    for one in (
        Generator(
            "Javadoc",
            ("main", "body"),
            (
                "div.topNav",
                "div.bottomNav",
                "div.subNav",
                "div.skipNav",
                "div.fixedNav",
                "div.navPadding",
                "p.legalCopy",
                "header",
                "nav",
                "footer",
                "noscript",
            ),
        ),
        Generator("Doxygen", ("div.contents",), ("div.ttc", "div.directory-nav")),
        Generator(
            "Sphinx",
            ("main", "div.body", "div#docs-body", "div.document"),
            ("a.headerlink", "div.sphinxsidebar", "div.prev-next-area", "a.left-prev"),
        ),
        Generator("rustdoc", ("section#main-content", "main"), ("div.search-container", "nav")),
        Generator("gi-docgen", ("section#main",), ("nav",)),
        Generator(
            "gtk-doc", ("div.refentry", "div.chapter", "body"), ("table.navigation", "div.footer")
        ),
        Generator("Texinfo", ("body",), ("div.header", "div.nav-panel", "table.nav-panel")),
        Generator(
            "Haddock", ("div#content",), ("div#package-header", "div#table-of-contents", "a.link")
        ),
        Generator("EDoc", ("div#content", "body"), ("div.topbar", "aside", "div.footer")),
        Generator("Scaladoc", ("body",), ("div#mbrsel", "div#tooltip", "div#textfilter")),
        Generator("pydoctor", ("div#main", "body"), ("nav", "div#search-results-container")),
        Generator("OCamldoc", ("body",), ("div.navbar",)),
        Generator("QDoc", ("div.mainContent", "body"), ("div.sidebar", "div.navigationbar")),
    )
}

_VOID: Final = frozenset(
    "area base br col embed hr img input link meta param source track wbr".split()  # noqa: SIM905
)
_SILENT: Final = ("script", "style", "template", "head")
# What stands in these is a name, a title or code: no edit of prose changes it.
_NAMES: Final = frozenset("a code dt h1 h2 h3 h4 h5 h6 pre th tt".split())  # noqa: SIM905
_BLOCKS: Final = frozenset(
    "address article aside blockquote body dd div dl dt fieldset figure footer form h1 h2 h3 h4 h5"  # noqa: SIM905
    " h6 header hr li main nav ol p pre section table tbody td tfoot th thead tr ul".split()
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Text between two tags: where it stands in the markup, and whether it is plain prose."""

    start: int
    end: int
    prose: bool


@dataclass(frozen=True, slots=True)
class Paragraph:
    """What a `p` element holds, without its tags; it holds no other block."""

    start: int
    end: int


@dataclass(slots=True)
class Main:
    """The main content of a page.

    `text` has every run of whitespace as one space. `tag` is the start tag of the element that
    holds it; `spans` are the slices of the markup inside of that, navigation cut out. `pieces` and
    `paragraphs` are where an edit may be made.
    """

    text: str = ""
    tag: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    paragraphs: list[Paragraph] = field(default_factory=list)

    @property
    def words(self) -> int:
        """How many words the text has."""
        return len(self.text.split())


def main_text(markup: str, generator: Generator) -> Main | None:
    """The main content of a page; None if the page has none of the generator's elements."""
    for content in generator.content:
        reader = _Reader(markup, content, generator.without)
        if reader.found:
            return reader.main
    return None


def _selector(text: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"(\w+)(?:([.#])([\w-]+))?", text)
    assert match is not None, text
    return match[1], {".": "class", "#": "id"}.get(match[2] or "", ""), match[3] or ""


def _fits(tag: str, attributes: dict[str, str | None], selector: tuple[str, str, str]) -> bool:
    name, attribute, value = selector
    if tag != name or not attribute:
        return tag == name
    held = attributes.get(attribute) or ""
    return value in held.split() if attribute == "class" else value == held


class _Reader(HTMLParser):
    """One pass over a page, which keeps what stands in one element."""

    def __init__(self, markup: str, content: str, without: tuple[str, ...]) -> None:
        super().__init__(convert_charrefs=False)
        self.main = Main()
        self.found = False
        self._content = _selector(content)
        self._without = [_selector(one) for one in without]
        self._lines = [0, *(one.end() for one in re.finditer("\n", markup))]
        # Elements of the content's own name that are open, and of the name of what is left out.
        self._inside = 0
        self._silent = ("", 0)
        self._from = 0
        self._parts: list[str] = []
        self._code = 0
        self._paragraph: int | None = None
        self._end = len(markup)
        self._markup = markup
        self.feed(markup)
        self.close()
        if self._inside:
            self._leave(self._end)
        self.main.text = " ".join("".join(self._parts).split())

    def _at(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column

    def _leave(self, at: int) -> None:
        """What is kept ends here."""
        if at > self._from and not self._silent[1]:
            self.main.spans.append((self._from, at))
        self._from = at

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        at = self._at()
        attributes = dict(attrs)
        if not self._inside:
            if not self.found and _fits(tag, attributes, self._content):
                self.found, self._inside = True, 1
                self.main.tag = self.get_starttag_text() or ""
                self._from = at + len(self.main.tag)
            return
        if tag == self._content[0]:
            self._inside += 1
        name, depth = self._silent
        if depth:
            if tag == name:
                self._silent = name, depth + 1
            return
        if tag not in _VOID and (
            tag in _SILENT or any(_fits(tag, attributes, one) for one in self._without)
        ):
            self._leave(at)
            self._silent = tag, 1
            self._parts.append(" ")
            self._paragraph = None
            return
        if tag in _NAMES:
            self._code += 1
        if tag in _BLOCKS or tag == "br":
            self._parts.append(" ")
        if tag == "p":
            self._paragraph = at + len(self.get_starttag_text() or "")
        elif tag in _BLOCKS:
            self._paragraph = None

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # HTML knows no empty elements but the void ones: `<div/>` opens one.
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._inside or tag in _VOID:
            return
        at = self._at()
        name, depth = self._silent
        if depth and tag == name:
            self._silent = name, depth - 1
            if depth == 1:
                self._from = self._markup.find(">", at) + 1 or self._end
        if tag == self._content[0]:
            self._inside -= 1
            if not self._inside:
                self._leave(at)
                return
        if depth:
            return
        if tag in _NAMES:
            self._code = max(0, self._code - 1)
        if tag in _BLOCKS:
            self._parts.append(" ")
        if tag == "p" and self._paragraph is not None:
            self.main.paragraphs.append(Paragraph(self._paragraph, at))
        if tag in _BLOCKS:
            self._paragraph = None

    def _keep(self, text: str, length: int, *, prose: bool) -> None:
        if self._inside and not self._silent[1]:
            self._parts.append(text)
            at = self._at()
            if prose:
                self.main.pieces.append(Piece(at, at + length, not self._code))

    def handle_data(self, data: str) -> None:
        self._keep(data, len(data), prose=True)

    def handle_entityref(self, name: str) -> None:
        self._keep(html.unescape(f"&{name};"), 0, prose=False)

    def handle_charref(self, name: str) -> None:
        self._keep(html.unescape(f"&#{name};"), 0, prose=False)

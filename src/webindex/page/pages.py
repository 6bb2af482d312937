"""Parses a page's bytes into text, title, language, links and directives.

`parse` is a pure function and never fails on a body, however malformed.

    page = parse(body, "https://example.org/", "text/html; charset=utf-8")
    page.title, page.text, page.language, page.links, page.text_hash

The steps are in separate modules: bytes to markup (`markup`), links (`links`), duplicate keys
(`fingerprints`). Observers act on directives (drop a page, follow a canonical link); here they are
only read. `parse_capture` does the same for a row of the repository.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from html import unescape
from typing import Any, Final, Literal

import pycld2
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_mime
from resiliparse.parse.html import HTMLTree
from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, LexborNode

from webindex.page import fingerprints
from webindex.page.link_header import canonical_of
from webindex.page.links import Link, base_of, extract_links, plain_links
from webindex.page.markup import (
    MAX_BODY,
    decode,
    markup_of,
    media_type,
    with_whole_head,
    xml_markup_of,
)
from webindex.page.outer_blocks import outer_blocks
from webindex.page.text import collapse
from webindex.page.urls import in_charset, normalise, resolve
from webindex.pdf.reading import Reading, digest_of, reading_in

__all__ = [
    "MAX_HEADINGS",
    "MAX_REFRESH_SECONDS",
    "MAX_TITLE",
    "Link",
    "Page",
    "parse",
    "parse_capture",
]

MAX_TITLE: Final = 300
"""Characters kept of a title."""

MAX_HEADINGS: Final = 500
"""Headings kept of a page, in document order."""

MAX_REFRESH_SECONDS: Final = 10.0
"""A refresh with a longer delay is not a redirect but a page that reloads."""

_LANGUAGE_SAMPLE = 8_000
_XML_TYPES = frozenset({"application/xhtml+xml", "application/xml", "text/xml"})
_HTML_TYPES = _XML_TYPES | {"text/html"}
_UNKNOWN_TYPES = frozenset({"", "application/octet-stream", "unknown/unknown"})
# Possessive throughout: an attribute of ten thousand spaces must not make this one backtrack.
_REFRESH = re.compile(
    r"\s*+([0-9]*+)(?:\.[0-9.]*+)?+(?:\s*+[;,]|\s++)\s*+(?:url\s*+=\s*+)?+"
    r"(?:'([^']*+)|\"([^\"]*+)|(.*+))",
    re.IGNORECASE | re.DOTALL,
)
_LANGUAGE_TAG = re.compile(r"\s*([a-zA-Z]{2,3})(?![a-zA-Z0-9])")
_NO_LANGUAGE = frozenset({"un", "und", "mul", "zxx", "xxx", "zzb", "zze", "zzh", "zzp"})
# CLD2 keeps codes that ISO 639 has since replaced.
_CURRENT_CODES = {"iw": "he", "jw": "jv", "in": "id", "ji": "yi", "mo": "ro"}
# What a site puts around the text of a page.
_AROUND_TAGS = (
    *("nav", "header", "footer", "address", "aside", "form", "button", "select"),
    *("script", "style", "noscript", "template", "svg"),
)
_AROUND_ROLES = ("navigation", "banner", "contentinfo", "search", "tooltip")
_AROUND = ", ".join([*_AROUND_TAGS, *(f"body [role={role}]" for role in _AROUND_ROLES)])
_NAMED = ", ".join(
    f"body {tag}[{name}]" for tag in ("div", "ul", "table", "p") for name in ("class", "id")
)
_AROUND_NAME = re.compile(
    r"(?:^|[^a-z])(?:nav|navbar|navpath|navrow|nav(?:igation)?(?:header|footer)|navigation"
    r"|navigationbar|tabs|menu|sidebar"
    r"|breadcrumbs?|prev-?next|pager|pagination|footer|header|banner|toc|search|skip|tooltips?|ttc)"
    r"\d*(?![a-z])|(?:^|[^a-zA-Z])(?:top|bottom|sub|fixed|main|side)Nav"
)
_COMMENTS = ", ".join(
    f"body {tag}[{name}]"
    for tag in ("div", "section", "aside", "ol", "ul")
    for name in ("class", "id")
)
_COMMENTS_NAME = re.compile(
    r"(?:^|[^a-z])(?:comments?(?:[-_]?(?:list|area|section|thread|wrap(?:per)?|container))?"
    r"|disqus|respond|replies)(?![a-z])",
    re.IGNORECASE,
)
_SHOWN: Final = ("pre", "table", "blockquote")
"""What the text of a page may be in although it is in a figure."""

_LONGEST_READING: Final = 100
"""Characters of what stands above a word to say how it is read."""

_HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")
_UNFOLDING: Final = ", ".join(f"{tag} > button:only-child" for tag in _HEADINGS)
_BULLETS: Final = ("•", "‣", "⁃")
# All the text between two tags.
_LONE: Final = re.compile(r">\s*+((?:[^<&\s]|&#?\w{1,31};){1,2})(?=\s*+<)")

# Blocks that the extraction of text takes for words within a line.
_BLOCK_END: Final = re.compile(r"</(?:summary|legend|dialog|search|menu|dir)>", re.IGNORECASE)
_OF_THE_PAGE: Final = "main, article, [role=main], h1"
"""What an element around a page's own text contains, whatever its name."""

_SOME_TEXT: Final = 200
"""Characters of paragraphs that a page has besides its comments, or these are its text."""

_MUCH_TEXT: Final = 500
"""Characters of paragraphs with which an element may be the text of a page, whatever its name."""

_WEIGHED: Final = 20
"""Elements around much text that are measured: of thousands, one within the other, each has all."""

_FEW_LINKED: Final = 0.2
"""Of a list that is text, a smaller share is the text of links; or up to half, within sentences."""

_DEEPEST_LIST: Final = 16
"""Lists in more lists than that are left as they are."""

_OF_TEXTS: Final = "pre, table, dl"
"""What is in no menu: Javadoc has all of a page's sections in lists."""

_OF_WIDGETS: Final = "h1, h2, h3, h4, h5, h6, img, form, select, script"
"""What is in a list of teasers, or of the parts of a page's frame."""

# X-Robots-Tag directives that take a value; any other word before a colon is a robot's name.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
# The rest of a date behind a comma, as in "unavailable_after: Wed, 25 Jun 2031 15:00:00 GMT".
_AFTER_WEEKDAY = re.compile(r"\s*[0-9]{1,2}[ -][A-Za-z]{3,9}[ -][0-9]{2,4} [0-9]{1,2}:")


@dataclass(frozen=True, slots=True)
class Page:
    """A parsed page. Strings hold no NUL and no lone surrogate; all URLs are normalised."""

    url: str
    title: str
    """From ``<title>``, else the first ``<h1>``; at most `MAX_TITLE` characters, maybe empty."""

    text: str
    """The visible main text in one line, without navigation as far as it can be recognised."""

    outer_blocks: Mapping[str, Any] | None
    """See `outer_blocks.outer_blocks`; None for a page that is not HTML."""

    language: str | None
    """ISO 639 code (``de``): detected, else declared by the page, else by its `Content-Language`
    header; None if there is none of these."""

    noindex: bool
    nofollow: bool
    noarchive: bool
    nosnippet: bool
    """What robots are asked; a ``max-snippet`` of 0 is ``nosnippet``."""

    canonical: str | None
    """Target of ``<link rel=canonical>`` in the head, else in the HTTP `Link` header, on whichever
    host; None if absent or contradictory. It may be the page itself."""

    refresh: str | None
    """Target of a refresh within `MAX_REFRESH_SECONDS` to another page: by the HTTP header, else by
    ``<meta http-equiv=refresh>``."""

    links: tuple[Link, ...]
    headings: tuple[str, ...]
    """Texts of its headings, and of the terms that it defines (``<dt>``) unless they are links to
    other pages: at most `MAX_HEADINGS`, each of `MAX_TITLE` characters."""

    linked: float
    """The share of its text, navigation aside, that is the text of links to other pages; rounded
    to hundredths."""

    text_hash: str
    """See `fingerprints.text_hash`."""

    heading: str | None
    """See `fingerprints.heading`; None for a page that is compared by its bytes alone."""

    sketch: fingerprints.Sketch | None
    """See `fingerprints.Sketch`; None for such a page."""

    document: Reading | None = None
    """What was read from a PDF document; None for a page of another kind."""

    @property
    def outline(self) -> dict[str, Any]:
        """The value of `pages.outline`."""
        return {"headings": list(self.headings), "linked": self.linked}


def parse(
    body: bytes,
    url: str,
    content_type: str | None,
    x_robots_tag: str | None = None,
    link_header: str | None = None,
    content_language: str | None = None,
    refresh_header: str | None = None,
) -> Page:
    """Parse the body of a response, decoded from its transfer and content encodings.

    Args:
        body: at most `markup.MAX_BODY` bytes are used, except for the hash of the bytes.
        url: absolute URL of the page; normalised here.
        content_type: value of the `Content-Type` header. Without one the type is guessed from the
            bytes. HTML, XML and plain text are read, and of a PDF document what its `body` says
            was read; any other type gives a page without text and links.
        x_robots_tag: value of the `X-Robots-Tag` header; several headers joined by newlines (or
            commas, as long as none of them names a robot).
        link_header: value of the `Link` header, several joined by commas: see `link_header`.
        content_language: value of the `Content-Language` header; ignored if it lists several.
        refresh_header: value of the `Refresh` header; several joined by newlines.

    Raises:
        BadUrlError: `url` is not an absolute http or https URL. Nothing else is raised.
    """
    url = normalise(url)
    asked = _header_directives(x_robots_tag or "")
    from_header = canonical_of(link_header, url) if link_header else None
    language = _code(content_language) if content_language and "," not in content_language else None
    refreshes = [(one, url) for one in (refresh_header or "").split("\n")]
    read = reading_in(body)
    if read is not None:
        nofollow = _asks(asked, "nofollow")
        return _page(
            digest_of(body).encode(),  # Of the document: short ones are one if they are the same.
            url,
            collapse(read.title)[:MAX_TITLE],
            collapse(read.text),
            _code(read.language or "") or language,
            asked,
            canonical=from_header,
            refresh=_refresh(refreshes, url),
            links=plain_links(read.links, url, nofollow=nofollow),
            document=read,
        )
    kind = _media_type(body, content_type)
    if kind not in _HTML_TYPES:
        text = collapse(decode(body, content_type)) if kind == "text/plain" else ""
        refresh = _refresh(refreshes, url)
        return _page(body, url, "", text, language, asked, canonical=from_header, refresh=refresh)

    markup, codec = (xml_markup_of if kind in _XML_TYPES else markup_of)(body, content_type)
    markup = with_whole_head(markup)
    # Without mutation events parsing takes a fifth of the time; nothing here needs them.
    tree = LexborHTMLParser(markup, options=LexborDocumentOptions.WO_EVENTS)
    if _remove_readings(tree):
        markup = tree.html or markup
    head = tree.head
    metas = _children(head, "meta")
    for name, content in ((a.get("name"), a.get("content")) for a in metas):
        if content and name and name.strip().lower() == "robots":
            asked |= _words(content)

    base = base_of(tree, url, codec)
    refreshes += [
        (in_charset(attributes.get("content") or "", codec), base)
        for attributes in metas
        if (attributes.get("http-equiv") or "").strip().lower() == "refresh"
    ]
    relations = [
        {**a, "href": in_charset(href, codec)}
        for a in _children(head, "link")
        if a.get("rel") and (href := a.get("href"))
    ]
    title, declared = _title(tree), _declared_language(tree)
    links = extract_links(
        tree,
        base,
        url,
        nofollow=_asks(asked, "nofollow"),
        alternates=_alternates(relations, base),
        codec=codec,
    )
    _unwrap_forms(tree)
    # Before what surrounds the text is removed: a heading may be in a block named "header".
    main_heading = _main_heading(tree)
    extracted, text = _main_text(_without_surroundings(tree) or markup)
    headings, linked = _outline(tree)
    return _page(
        body,
        url,
        title,
        text,
        declared or language,
        asked,
        canonical=_canonical(relations, base, from_header),
        refresh=_refresh(refreshes, url),
        links=links,
        headings=headings,
        linked=linked,
        own=(main_heading, _own_text(tree)),
        blocks=outer_blocks(extracted, text),
    )


def parse_capture(capture: Mapping[str, Any], body: bytes) -> Page:
    """Parse a page as the repository stores it: `pages.capture`, and its decompressed body.

    All code that parses a stored capture calls this, so that the same headers are used everywhere.
    """
    return parse(
        body,
        capture["url"],
        capture["content_type"],
        capture["robots"],
        capture.get("link"),
        capture.get("language"),
        capture.get("refresh"),
    )


def _page(
    body: bytes,
    url: str,
    title: str,
    text: str,
    declared_language: str | None,
    asked: Set[str],
    *,
    canonical: str | None = None,
    refresh: str | None = None,
    links: tuple[Link, ...] = (),
    headings: tuple[str, ...] = (),
    linked: float = 0.0,
    own: tuple[str, str] | None = None,
    document: Reading | None = None,
    blocks: Mapping[str, Any] | None = None,
) -> Page:
    """Assemble the page; `own` is the main heading and text to compare, if not `text`."""
    main_heading, compared = own or ("", text)
    words = fingerprints.tokens(compared)
    heading = fingerprints.heading(title)
    name = fingerprints.own_name(main_heading, heading)
    sketch = fingerprints.sketch(compared, words, heading, name)
    return Page(
        url=url,
        title=title,
        text=text,
        outer_blocks=blocks,
        language=_detect_language(text) or declared_language,
        noindex=_asks(asked, "noindex"),
        nofollow=_asks(asked, "nofollow"),
        noarchive="noarchive" in asked,
        nosnippet=not asked.isdisjoint({"nosnippet", "max-snippet:0"}),
        canonical=canonical,
        refresh=refresh,
        links=links,
        headings=headings,
        linked=linked,
        text_hash=fingerprints.text_hash(compared, words, body, name),
        heading=fingerprints.heading_key(heading) if sketch is not None else None,
        sketch=sketch,
        document=document,
    )


def _media_type(body: bytes, content_type: str | None) -> str:
    named = media_type(content_type)
    if named not in _UNKNOWN_TYPES:
        return named
    return "text/html" if detect_mime(body).startswith("text/") else "application/octet-stream"


def _main_text(markup: str) -> tuple[str, str]:
    """The main text, with one block a line and in one line."""
    markup = _LONE.sub(_told_apart, _BLOCK_END.sub(r"\g<0><br>", markup))
    tree = HTMLTree.parse(markup)
    # With formatting, adjacent blocks and table cells stay separate; whitespace is collapsed later.
    extracted = extract_plain_text(
        tree, preserve_formatting=True, main_content=True, list_bullets=False, alt_texts=False
    )
    main = collapse(extracted)
    if len(fingerprints.tokens(main[: 20 * fingerprints.MIN_TOKENS])) < fingerprints.MIN_TOKENS:
        # An index or a table of contents consists of links, which the heuristics take for
        # navigation.
        extracted = extract_plain_text(
            tree, preserve_formatting=True, list_bullets=False, alt_texts=False
        )
        main = collapse(extracted)
    return extracted, main


def _told_apart(lone: re.Match[str]) -> str:
    """A short text by itself, so that the extraction keeps it; and a space for a symbol.

    The extraction drops what takes three bytes by itself, with the spaces around it: bullets and
    arrows, but also dashes, a Chinese letter and "où". A character without width makes a text
    longer, and `collapse` removes it.
    """
    text = unescape(lone[1])
    if text.isascii() or len(text.encode("utf-8", "replace")) != 3:
        return lone[0]
    is_symbol = text in _BULLETS or unicodedata.category(text[-1]) in ("Sm", "So")
    return "> " if is_symbol else f"{lone[0]}\u2060"


def _remove_readings(tree: LexborHTMLParser) -> bool:
    """Remove how words are read, as it is written above them; whether there was any.

    Between the letters of a word, it would hide the word from a search.
    """
    removed, read = False, 0
    for node in tree.css("ruby rt, ruby rp, ruby rtc"):
        size = len(node.text())
        read += size
        if read > MAX_BODY:  # They lie within each other.
            break
        if size <= _LONGEST_READING:  # One that is not closed has the rest of the page.
            node.decompose()
            removed = True
    return removed


def _without_surroundings(tree: LexborHTMLParser) -> str | None:
    """Remove comments, closed dialogs, and elements that their tags or names call navigation.

    Returns the markup, or None if there were none. A table of contents stays: of some chapters it
    is the text.
    """
    removed = _unname_sections(tree)
    removed |= _remove_comments(tree)
    navigation = tree.css("nav, body [role=navigation], dialog:not([open])")
    for node in navigation:
        node.decompose()
    removed |= _unwrap_figures(tree)
    removed |= _unwrap_buttons(tree)
    removed |= _remove_named(tree, but="toc")
    removed |= _unwrap_lists(tree)
    return tree.html if removed or navigation else None


def _unname_sections(tree: LexborHTMLParser) -> bool:
    """Take their ids from headings and from sections of a text; whether there were any.

    Generators make them from the words of the headings: a section about comments is "comments".
    """
    found = tree.css("h2[id], h3[id], h4[id], h5[id], h6[id]")
    for node in tree.css("section[id] > section[id], div.section[id] > div.section[id]"):
        above = node.parent
        if above is not None and _begins_with_heading(above) and _begins_with_heading(node):
            found.append(node)
    for node in found:
        del node.attrs["id"]
    return bool(found)


def _begins_with_heading(node: LexborNode) -> bool:
    child = node.first_child
    while child is not None and child.tag in ("-text", "-comment", "span"):
        child = child.next
    return child is not None and child.tag in _HEADINGS


def _remove_comments(tree: LexborHTMLParser) -> bool:
    """Remove what readers have written below a text; whether there was any."""
    found = [node for node in tree.css(_COMMENTS) if _COMMENTS_NAME.search(_names(node))]
    whole = _paragraphs(tree.body) if found else 0
    comments: list[LexborNode] = []
    within: set[int] = set()
    left, weighed = whole, 0
    for node in found:
        # A name such as "has-comments" may belong to an element around the whole page.
        if (
            weighed == _WEIGHED
            or node.mem_id in within
            or node.css_first("main, [role=main], h1") is not None
        ):
            continue
        inside = _paragraphs(node)
        if whole - inside >= _SOME_TEXT:
            comments.append(node)
            within.update(one.mem_id for one in node.css(_COMMENTS))
            left -= inside
        else:
            weighed += 1
    # All together: in a discussion, each of them is next to the others.
    if left < _SOME_TEXT:
        return False
    for node in comments:
        node.decompose()
    return bool(comments)


def _names(node: LexborNode) -> str:
    return " ".join(filter(None, map(node.attributes.get, ("class", "id"))))


def _paragraphs(node: LexborNode | None) -> int:
    """How many characters the paragraphs of an element have."""
    return 0 if node is None else sum(len(one.text()) for one in node.css("p"))


def _most_of(tree: LexborHTMLParser) -> float:
    """An element around the page's own text has more characters of paragraphs than this."""
    return max(_MUCH_TEXT, _paragraphs(tree.body) / 2)


def _outline(tree: LexborHTMLParser) -> tuple[tuple[str, ...], float]:
    """The headings and the share of linked text; see `Page`."""
    body = tree.body
    if body is None:
        return (), 0.0
    elsewhere = 'a[href]:not([href^="#"])'
    headings: dict[str, None] = {}
    read = 0
    for node in tree.css("h1, h2, h3, h4, h5, h6, dt"):
        # Of headings within each other, each has the text of all that it holds.
        if len(headings) == MAX_HEADINGS or read > MAX_BODY:
            break
        words = node.text(separator=" ")
        read += len(words)
        if node.tag != "dt" or node.css_first(elsewhere) is None:
            headings[collapse(words)[:MAX_TITLE].strip(" ¶#")] = None
    headings.pop("", None)
    size = max(1, len(collapse(body.text(separator=" "))))
    linked = 0
    for node in body.css(elsewhere):
        linked += len(collapse(node.text(separator=" ")))
        if linked >= size:
            break
    return tuple(headings), round(min(1.0, linked / size), 2)


def _remove_named(tree: LexborHTMLParser, but: str | None = None) -> bool:
    """Remove elements whose names say that they are around a page's own text; whether there were.

    None that is named `but`.
    """
    named = [
        (node, found[0])
        for node in tree.css(_NAMED)
        if (found := _AROUND_NAME.search(names := _names(node))) and but not in names.split()
    ]
    most = _most_of(tree) if named else 0
    removed, weighed = False, 0
    # One that is removed leaves nothing to be measured in those within it, which come after it.
    for node, name in named:
        # A name such as "with-sidebar" may belong to an element around the whole page, or around
        # its text.
        if node.css_first(_OF_THE_PAGE) is not None:
            continue
        # Besides the tabs, it has what they show.
        if name.endswith("tabs") and node.css_first("[role=tabpanel]") is not None:
            continue
        if weighed < _WEIGHED and _paragraphs(node) > most:
            weighed += 1
            continue
        node.decompose()
        removed = True
    return removed


def _unwrap_forms(tree: LexborHTMLParser) -> None:
    """Replace a form around the page, such as ASP.NET's, by what is in it: it is no search form."""
    forms = tree.css("form")
    most = _most_of(tree) if forms else 0
    for form in forms:
        if form.css_first(_OF_THE_PAGE) is not None or _paragraphs(form) > most:
            form.unwrap()


def _unwrap_figures(tree: LexborHTMLParser) -> bool:
    """Replace figures of code, tables and quotations by what is in them; whether there were any.

    The extraction of text leaves figures out, as pictures with their captions.
    """
    found = tree.css(", ".join(f"figure > {at}{tag}" for at in ("", "div > ") for tag in _SHOWN))
    for node in found:
        above = node.parent
        if above is not None and above.tag != "figure":
            above = above.parent
        if above is not None and above.tag == "figure":  # Another one in it may have replaced it.
            above.unwrap()
    return bool(found)


def _unwrap_buttons(tree: LexborHTMLParser) -> bool:
    """Replace buttons that are all of a heading by their text; whether there were any.

    Who presses one unfolds what is below, as the answer to a question. The extraction of text
    leaves buttons out.
    """
    found = tree.css(_UNFOLDING)
    for node in found:
        if node.parent is not None and collapse(node.parent.text()) == collapse(node.text()):
            node.unwrap()
    return bool(found)


def _unwrap_lists(tree: LexborHTMLParser) -> bool:
    """Replace lists that are text by their items; whether there were any.

    The extraction of text takes those near the body for navigation, whatever is in them, and others
    if a fifth of them is the text of links.
    """
    found = False
    for node in _lists(tree):
        size = len(collapse(node.text(separator=" ")))
        if size and (node.css_first(_OF_TEXTS) is not None or _is_text(node, size)):
            node.unwrap()
            found = True
    return found


def _lists(tree: LexborHTMLParser) -> list[LexborNode]:
    """The lists of a page, but for those in very many others: each is walked with all it holds."""
    found: list[LexborNode] = []
    levels: dict[int, int] = {}  # How many lists there are at or above a node.
    for node in tree.css("ul"):
        passed: list[LexborNode] = []
        above: LexborNode | None = node
        while above is not None and above.mem_id not in levels:
            passed.append(above)
            above = above.parent
        level = 0 if above is None else levels[above.mem_id]
        for one in reversed(passed):
            level += one.tag == "ul"
            levels[one.mem_id] = level
        if level <= _DEEPEST_LIST:
            found.append(node)
    return found


def _is_text(node: LexborNode, size: int) -> bool:
    """Whether a list of so many characters is neither a menu nor a list of teasers."""
    if node.css_first(_OF_WIDGETS) is not None:
        return False
    linked = sum(len(collapse(one.text(separator=" "))) for one in node.css("a[href]"))
    return linked <= _FEW_LINKED * size or (2 * linked <= size and not _begins_with_links(node))


def _begins_with_links(node: LexborNode) -> bool:
    """Whether most items of a list begin with a link, as those of a menu or of teasers do."""
    items, begin = 0, 0
    item = node.first_child
    while item is not None:
        if item.tag == "li":
            items += 1
            link = item.css_first("a[href]")
            begin += link is not None and collapse(item.text(separator=" ")).startswith(
                collapse(link.text(separator=" "))
            )
        item = item.next
    return 2 * begin > items


def _main_heading(tree: LexborHTMLParser) -> str:
    """The first heading that is not in an element around a page's own text."""
    # Of headings that lie within each other, none looks again at what is above the outer one.
    framed: set[int] = set()
    for node in tree.css("h1, .title"):
        passed = []
        above: LexborNode | None = node
        while above is not None and not (
            above.mem_id in framed
            or above.tag in _AROUND_TAGS
            or above.attributes.get("role") in _AROUND_ROLES
        ):
            passed.append(above.mem_id)
            above = above.parent
        if above is None:
            return collapse(node.text(separator=" "))
        framed.update(passed)
    return ""


def _own_text(tree: LexborHTMLParser) -> str:
    """The text of a page without its site's frame.

    Unlike `_main_text`, each element is judged on its own, by its tag and by the names that authors
    give to such elements, and never by the rest of the page: so the text is the same where another
    site shows it with another menu. Removes these elements from the tree.
    """
    for node in tree.css(_AROUND):
        node.decompose()
    _remove_named(tree)
    body = tree.body
    return collapse(body.text(separator=" ")) if body is not None else ""


def _title(tree: LexborHTMLParser) -> str:
    for where in ("head > title", "body title:not(svg title)", "h1"):
        node = tree.css_first(where)
        if node is not None and (title := collapse(node.text(separator=" "))):
            return title[:MAX_TITLE].rstrip()
    return ""


def _children(head: LexborNode | None, tag: str) -> list[dict[str, str | None]]:
    """Attributes of the head's own children: a body may contain text by visitors."""
    if head is None:
        return []
    found = []
    node = head.first_child
    while node is not None:
        if node.tag == tag:
            found.append(node.attributes)
        node = node.next
    return found


def _relation(attributes: dict[str, str | None]) -> frozenset[str]:
    return frozenset((attributes.get("rel") or "").lower().split())


def _canonical(
    relations: list[dict[str, str | None]], base: str, from_header: str | None
) -> str | None:
    named = {resolve(base, a["href"] or "") for a in relations if "canonical" in _relation(a)}
    if named <= {None}:
        return from_header
    return named.pop() if len(named) == 1 else None


def _alternates(relations: list[dict[str, str | None]], base: str) -> list[str]:
    """Versions of the page in other languages (`hreflang`): links, no duplicates."""
    declared = [a for a in relations if a.get("hreflang") and "alternate" in _relation(a)]
    found = (resolve(base, a["href"] or "") for a in declared)
    return [target for target in found if target is not None]


def _refresh(said: Iterable[tuple[str, str]], url: str) -> str | None:
    """The target of the first readable refresh; each comes with the URL it is relative to."""
    for content, base in said:
        match = _REFRESH.match(content)
        if match is None:
            continue
        delay = float(match[1] or 0)
        href = match[2] or match[3] or match[4]
        target = resolve(base, href) if href else None
        return target if target != url and delay <= MAX_REFRESH_SECONDS else None
    return None


def _header_directives(header: str) -> set[str]:
    """The directives of an X-Robots-Tag to every robot, as `_words` has them."""
    said: set[str] = set()
    for line in header.splitlines():
        for_all = True
        for part in line.split(","):
            name, colon, directive = part.partition(":")
            if colon and name.strip().lower() not in _VALUED and not _AFTER_WEEKDAY.match(part):
                # A robot's name applies to the rest of the line.
                for_all = name.strip() == "*"
                part = directive
            if for_all:
                said |= _words(part)
    return said


def _asks(said: Set[str], directive: Literal["noindex", "nofollow"]) -> bool:
    return not said.isdisjoint({directive, "none"})


def _words(content: str) -> set[str]:
    """Directives: ``noindex``, ``max-snippet:0``. Some authors leave out the commas."""
    said = " ".join(content.lower().split()).replace(" :", ":").replace(": ", ":")
    return set(re.split("[ ,;]", said))


def _detect_language(text: str) -> str | None:
    if not text:
        return None
    try:
        reliable, _, details = pycld2.detect(text[:_LANGUAGE_SAMPLE], isPlainText=True)
    except pycld2.error:  # characters it cannot read
        return None
    return _code(str(details[0][1])) if reliable else None


def _declared_language(tree: LexborHTMLParser) -> str | None:
    root = tree.root
    if root is None:
        return None
    attributes = root.attributes
    return _code(attributes.get("lang") or attributes.get("xml:lang") or "")


def _code(tag: str) -> str | None:
    """The primary code of a language tag: ``pt`` of ``pt-BR``."""
    match = _LANGUAGE_TAG.match(tag)
    if match is None:
        return None
    code = match[1].lower()
    return None if code in _NO_LANGUAGE or code == "xx" else _CURRENT_CODES.get(code, code)

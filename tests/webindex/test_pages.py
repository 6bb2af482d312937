"""Pages: what is read from real and from broken HTML."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields

import pytest
from from_scratch import sample
from hypothesis import example, given, settings
from hypothesis import strategies as st
from selectolax.lexbor import LexborNode

from webindex.crawl.warc import Capture
from webindex.page import links, pages
from webindex.page.fingerprints import Sketch
from webindex.page.links import Link
from webindex.page.pages import MAX_TITLE, Page, parse
from webindex.page.text import collapse
from webindex.page.urls import BadUrlError, normalise

URL = "https://shop.example.org/tea/green.html"
HTML = "text/html; charset=utf-8"

SHOP = """<!DOCTYPE html>
<html lang="en-GB"><head><meta charset="utf-8">
<title>Green tea
   &mdash; Leaf &amp; Kettle</title>
<link rel="canonical" href="/tea/green?utm_source=self">
<link rel="alternate" hreflang="de-DE" href="https://de.example.org/tee">
<link rel="alternate" hreflang="x-default" href="/">
<link rel="alternate" type="application/rss+xml" href="/feed.xml">
<script>document.write("<p>not a text</p>")</script><style>p { color: green }</style>
</head><body>
<nav><ul><li><a href="/">Home</a><li><a href="/tea/">All teas</a></ul></nav>
<main><h1>Green tea</h1>
<p>Green tea is made from leaves that are heated soon after the harvest, so that they keep
their colour. It was first brewed in China, and it is now grown in many countries of Asia.</p>
<p hidden>Discount code for employees</p>
<dialog id=letter><p>Subscribe to our letter about tea, and never miss an offer again!</p></dialog>
<dialog open><p>The shop is closed on Monday.</p></dialog>
<table><tr><td>Origin</td><td>Japan</td></tr><tr><td>Grade</td><td>First flush</td></tr></table>
<p>Pour the water at seventy degrees, wait for two minutes, and <a href="pot.html">use a
small pot</a>. <a href="http://ads.example/kettle" rel="sponsored">Buy a kettle</a></p></main>
<footer>Copyright, imprint and <a href="/terms" rel="nofollow">terms</a></footer></body></html>
"""


def read(head: str = "", body: str = "") -> Page:
    return parse(f"<html><head>{head}</head><body>{body}</body></html>".encode(), URL, HTML)


@pytest.fixture(scope="module")
def captures() -> dict[str, Capture]:
    return {one.url: one for one in sample() if one.body}


def real(captures: dict[str, Capture], url: str) -> Page:
    return parse(captures[url].body, url, captures[url].content_type)


def test_a_page_of_a_shop_is_read_as_a_visitor_sees_it() -> None:
    page = parse(SHOP.encode(), URL, HTML)
    assert page.url == URL
    assert page.title == "Green tea — Leaf & Kettle"
    assert "Green tea is made from leaves that are heated soon after the harvest" in page.text
    assert "Origin Japan Grade First flush" in page.text
    assert "The shop is closed" in page.text
    for unseen in ("not a text", "color", "Discount", "Subscribe", "All teas", "imprint"):
        assert unseen not in page.text
    assert page.language == "en"
    assert page.canonical == "https://shop.example.org/tea/green"
    assert page.links == (
        Link("https://shop.example.org/", ("Home",), "follow"),
        Link("https://shop.example.org/tea/", ("All teas",), "follow"),
        Link("https://shop.example.org/tea/pot.html", ("use a small pot",), "follow"),
        Link("http://ads.example/kettle", ("Buy a kettle",), "sponsored"),
        Link("https://shop.example.org/terms", ("terms",), "nofollow"),
        Link("https://de.example.org/tee", (), "alternate"),
    )
    assert not page.noindex and not page.nofollow and page.refresh is None
    assert page.text_hash.startswith("text:") and page.sketch is not None


@pytest.mark.parametrize(
    ("around", "alike"),
    [
        ('<div class="header"><div class="title">{}</div></div>', False),
        ("<h1>{}</h1>", False),
        # That of the site.
        ("<header><h1>{}</h1></header>", True),
        ('<div role="banner"><p><span class="title">{}</span></p></div>', True),
    ],
)
def test_a_main_heading_counts_where_it_is_not_in_the_frame_of_the_site(
    around: str, alike: bool
) -> None:
    members = "".join(f"<tr><td>member{n}</td><td>inherited</td></tr>" for n in range(200))

    def sketched(name: str) -> Sketch:
        found = parse(
            f"<title>Wings: Member List</title>{around.format(name + ' Member List')}"
            f"<table><tr><td>Of {name}</td></tr>{members}</table>".encode(),
            f"http://docs.example/{name}",
            "text/html",
        ).sketch
        assert found is not None
        return found

    assert sketched("Beetle").is_near(sketched("Butterfly")) is alike


@pytest.mark.parametrize("heading", ["", "<h1>Runbook</h1>"])
def test_a_form_around_the_page_hides_nothing_of_it_and_one_for_searches_does(heading: str) -> None:
    tag = "div" if heading else "p"
    steps = "".join(
        f"<{tag}>Step {n}: the operator drains node {n} and restarts its service.</{tag}>"
        for n in range(12)
    )

    def read(state: str, around: str, search: str) -> Page:
        inner = f'<input type="hidden" value="{state}">{heading}{steps}'
        page = f"<body><form>Look for {search} <input></form>{around.format(inner)}</body>"
        return parse(f"<title>Runbook</title>{page}".encode(), URL, HTML)

    plain = read("a", "<div>{}</div>", "words")
    for state, search in (("a", "words"), ("b", "names")):
        page = read(state, "<form id=aspnetForm>{}</form>", search)
        assert (page.text_hash, page.sketch) == (plain.text_hash, plain.sketch)
    assert plain.text_hash.startswith("text:")


def test_tables_code_and_quotations_in_figures_are_text_and_captions_of_pictures_are_not() -> None:
    text = "<p>Green tea is made from leaves that are heated soon after the harvest.</p>" * 4
    figures = (
        "<figure class=wp-block-table><table><tr><td>Sencha</td></tr></table></figure>"
        "<figure class='highlight sh'><pre>brew --cold</pre></figure>"
        "<figure><div><pre>pour()</pre><pre>wait()</pre></div><figcaption>Code</figcaption></figure>"
        "<figure><blockquote><p>Tea is nought but this</blockquote><figcaption>Rikyu</figure>"
        "<figure><img src=pot.png><figcaption>A pot of clay</figcaption></figure>"
    )
    page = read(body=f"<main><h1>Tea</h1>{text}{figures}{text}</main>")
    assert all(one in page.text for one in ("Sencha", "brew --cold", "pour() wait()"))
    assert "Tea is nought but this" in page.text
    assert "clay" not in page.text


@pytest.mark.parametrize(
    ("depth", "gone"), [(0, {"Start", "Teapots", "whistles", "clay"}), (5, {"Start", "Teapots"})]
)
def test_lists_are_text_unless_they_are_menus_or_teasers(
    captures: dict[str, Capture], depth: int, gone: set[str]
) -> None:
    text = "<p>Green tea is made from leaves that are heated soon after the harvest.</p>" * 4
    lists = (
        "<ul><li>Sencha, steamed<ul><li>Fukamushi, for longer</ul><li>Hojicha, <b>roasted</b></ul>",
        "<ul><li>Grown in <a href=/uji>Uji</a><li>Sold by <a href=/all>all the shops</a></ul>",
        "<ul><li><h3>Prices</h3><table><tr><td><a href=/cup>A cup of any tea</a><td>2</table></ul>",
        "<ul><li><a href=/>Start</a><li><a href=/tea>Teapots</a> (new)</ul>",
        "<ul><li><img src=a.png>A kettle that whistles</ul><ul><li><h3>Cups</h3>Of clay</ul>",
    )
    page = read(body=f"{'<div>' * depth}<h1>Tea</h1>{text}{''.join(lists)}{text}")
    for said in ("steamed Fukamushi, for longer Hojicha, roasted", "Uji Sold by all", "any tea 2"):
        assert said in page.text
    assert not gone & set(page.text.split())
    page = real(captures, "https://www.postgresql.org/docs/15/intro-whatis.html")
    assert "complex queries foreign keys triggers" in page.text


@pytest.mark.parametrize("name", ["comments", "search", "menu", "footer", "navigation"])
def test_sections_with_the_names_of_their_headings_are_text(name: str) -> None:
    text = "<p>Green tea is made from leaves that are heated soon after the harvest.</p>" * 9

    for tag in ("section", "div"):
        inner = (
            f"<{tag} class=section id={name}><span id=index-1></span><h2>On {name}</h2>Of kettles"
        )
        outer = f"<{tag} class=section id=tea><h1>Tea</h1>{text}{inner}</{tag}>{text}</{tag}>"
        page = read(body=f"<div role=main>{outer}<h2 id={name}>Of a {name}</h2>{text}</div>")
        assert f"On {name} Of kettles" in page.text and f"Of a {name}" in page.text
    page = read(body=f"<section id=main><h1>Tea</h1>{text}<div id={name}>Of pots</div></section>")
    assert "pots" not in page.text


def test_what_tabs_show_is_text_and_the_tabs_of_a_site_are_not() -> None:
    text = "<p>Green tea is made from leaves that are heated soon after the harvest.</p>" * 4
    tabs = "<ul class=tabs role=tablist><li role=tab>Kyusu</li><li role=tab>Gaiwan</li></ul>"
    shown = f"<div class=tabs-container>{tabs}<div role=tabpanel><pre>brew --cold</pre></div></div>"
    menu = "<div class=tabs><div><a href=/>Start</a></div></div>"
    pages_of = [read(body=f"{menu}<h1>Tea</h1>{text}{one}{text}") for one in (shown, "")]
    assert "brew --cold" in pages_of[0].text and "Start" not in pages_of[0].text
    assert pages_of[0].text_hash != pages_of[1].text_hash


def test_a_heading_that_unfolds_a_text_is_text_and_a_button_beside_a_heading_is_not() -> None:
    around = "<p>Green tea is made from leaves that are heated soon after the harvest.</p>" * 4
    unfolding = (
        "<h3>\n<button aria-expanded=false>How long?</button><!-- x --></h3><p>Two minutes.</p>"
    )
    page = read(
        body=f"<main>{around}{unfolding}<h3>Water <button>Copy</button></h3>{around}</main>"
    )
    assert "harvest. How long? Two minutes. Water Green" in page.text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<b>茶</b>道", "茶道"),
        # How a word is read would stand within it.
        ("<ruby>茶<rp>(<rt>ちゃ<rp>)</rp>道<rt>どう</rt></ruby>", "茶道"),
        ("<table><tr><td>月<td> 火 <td>水</table>", "月 火 水"),
        ("<b>차</b>를", "차를"),
        ("<em>là</em> <a href=/>o&ugrave;</a>", "là où"),
        ("<i>x²</i>", "x²"),
        ("<i>&#33590;</i>", "茶"),
        ("<span>•</span><span>→</span>tea", "tea"),
        ("<b>black</b> — <b>green</b>&mdash;<b>white</b>", "black — green—white"),
        ("<b>black</b><i>▶</i><b>white</b> 5<i>€</i>", "black white 5€"),
    ],
)
def test_short_words_by_themselves_are_text_and_signs_are_not(markup: str, text: str) -> None:
    around = "<p>Green tea is made from leaves that are heated soon after the harvest.</p>" * 4
    page = read(body=f"<main>{around}<div>begin {markup} end</div>{around}</main>")
    found = page.text.partition("begin")[2].partition("end")[0]
    assert found.split() == text.split()
    assert page.outer_blocks is not None and page.outer_blocks["size"] == len(page.text)


@pytest.mark.parametrize("tag", ["summary", "legend"])
def test_words_of_two_blocks_stay_apart(tag: str) -> None:
    around = "details" if tag == "summary" else "fieldset"
    page = read(body=f"<{around}><{tag}>How long</{tag}>Two minutes</{around}>")
    assert page.text == "How long Two minutes"


def test_a_word_is_whole_where_the_author_says_that_it_may_be_divided() -> None:
    page = parse(
        b"<title>Donau&shy;dampf&shy;schiff</title><h1>Die Donau&#8203;dampf</h1><p>Das "
        b"Donau&shy;dampf&shy;schiff <a href=/x>bind&#8288;TextDomain&#65279;Codeset</a>",
        URL,
        HTML,
    )
    assert (page.title, page.headings) == ("Donaudampfschiff", ("Die Donaudampf",))
    assert "Das Donaudampfschiff bindTextDomainCodeset" in page.text
    assert page.links[0].anchors == ("bindTextDomainCodeset",)


def test_whitespace_and_navigation_do_not_change_the_text_hash() -> None:
    reindented = SHOP.replace("\n", "\r\n   ").replace("All teas", "Every tea")
    other = parse(reindented.encode(), URL, HTML)
    assert other.text_hash == parse(SHOP.encode(), URL, HTML).text_hash
    changed = parse(SHOP.replace("seventy", "eighty").encode(), URL, HTML)
    assert changed.text_hash != other.text_hash


# Real pages ------------------------------------------------------------------------------------


def test_a_real_page_of_sqlite(captures: dict[str, Capture]) -> None:
    page = real(captures, "https://www.sqlite.org/about.html")
    assert page.title == "About SQLite"
    assert page.language == "en"
    assert "SQLite is an in-process library that implements a self-contained" in page.text
    assert "function toggle_" not in page.text
    targets = {link.url: link for link in page.links}
    assert "https://www.sqlite.org/mostdeployed.html" in targets
    assert all(normalise(url) == url for url in targets)


def test_a_real_page_of_postgresql(captures: dict[str, Capture]) -> None:
    page = real(captures, "https://www.postgresql.org/docs/15/tutorial-start.html")
    assert page.title == "Chapter 1. Getting Started"
    assert page.language == "en"
    assert any("1.2. Architectural Fundamentals" in link.anchors for link in page.links)


@pytest.mark.parametrize(
    ("url", "language", "words"),
    [
        ("https://httpd.apache.org/docs/2.4/fr/handler.html", "fr", "gestionnaire"),
        ("https://httpd.apache.org/docs/2.4/de/mpm.html", "de", "für"),
        ("https://httpd.apache.org/docs/2.4/ko/handler.html", "ko", "핸들러"),
    ],
)
def test_real_pages_in_other_languages_and_charsets(
    captures: dict[str, Capture], url: str, language: str, words: str
) -> None:
    page = real(captures, url)
    assert page.language == language
    assert words in page.text
    assert "\ufffd" not in page.title + page.text


def test_every_page_of_the_sample_has_a_title_a_text_a_language_and_links(
    captures: dict[str, Capture],
) -> None:
    pages = [real(captures, url) for url in captures]
    assert len(pages) > 190
    for page in pages:
        assert page.title and page.language and page.links, page.url
        assert len(page.text) > 100, page.url


def test_real_pages_that_are_cut_or_damaged_are_still_read(captures: dict[str, Capture]) -> None:
    generator = random.Random(5)
    for url in sorted(captures)[::10]:
        whole = captures[url].body
        cut = whole[: generator.randrange(len(whole))]
        noisy = bytearray(whole)
        for _ in range(50):
            noisy[generator.randrange(len(noisy))] = generator.randrange(256)
        for body in (cut, bytes(noisy), whole[::-1], whole + whole):
            for label in ("text/html", "text/html; charset=shift_jis", None):
                assert_storable(parse(body, url, label))


# Title, language, text ---------------------------------------------------------------------------


def test_the_title_is_cleaned_and_has_substitutes() -> None:
    assert read("<title> a\n\tb &#0;&amp; c </title>").title.split() == ["a", "b", "\ufffd&", "c"]
    assert read("", "<title>late</title><h1>heading</h1>").title == "late"
    heading = "<svg><title>icon</title></svg><h1>The <i>heading</i></h1>"
    assert read("", heading).title == "The heading"
    assert read("<title> </title>").title == ""
    assert len(read(f"<title>{'x' * 10_000}</title>").title) == MAX_TITLE


@pytest.mark.parametrize(
    ("lang", "body", "language"),
    [
        ("en", "Der Server beantwortet Anfragen und führt darüber ein genaues Protokoll.", "de"),
        ("pt-BR", "ok", "pt"),
        ("iw", "123", "he"),
        ("DEU", "", "deu"),
        ("", "ok", None),
        ("x-klingon", "ok", None),
        ("und", "ok", None),
        ("english", "ok", None),
    ],
)
def test_the_language_is_detected_or_else_declared(
    lang: str, body: str, language: str | None
) -> None:
    page = parse(f"<html lang='{lang}'><body><p>{body}</p></html>".encode(), URL, HTML)
    assert page.language == language


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("fr-CA", "fr"),
        (" DE ", "de"),
        ("en, fr", None),
        ("", None),
        ("und", None),
        ("français", None),
        (None, None),
    ],
)
def test_the_header_says_the_language_where_the_page_does_not(
    header: str | None, language: str | None
) -> None:
    def of(body: bytes, kind: str = HTML) -> str | None:
        return parse(body, URL, kind, content_language=header).language

    assert of(b"<p>ok") == of(b"ok", "text/plain") == language
    assert of(b"<html lang=ko><p>ok") == "ko"
    assert of("<p>Der Server beantwortet Anfragen und führt darüber Protokoll.".encode()) == "de"


def test_characters_that_the_language_detector_rejects_are_no_obstacle() -> None:
    german = "Der Server beantwortet Anfragen und führt darüber ein genaues Protokoll."
    page = read(body=f"<p>{german}\x01\x7f\ufdd0\uffff</p>")
    assert page.text == german
    assert page.language == "de"
    assert read(body=f"<p>{german} \U0001fffe</p>").language is None


def test_a_page_that_is_all_links_keeps_its_words() -> None:
    entries = "".join(f"<li><a href=/{i}>entry number {i}</a>" for i in range(60))
    page = read("<title>Index</title>", f"<ul>{entries}</ul>")
    assert "entry number 7" in page.text
    assert page.text_hash.startswith("text:")


# Media types and broken input ------------------------------------------------------------------


def test_plain_text_is_text_and_has_no_links() -> None:
    body = b"Read <a href=/x>this</a>,\n\n  please. \xc3\xa9"
    page = parse(body, URL, "text/plain; charset=utf-8")
    assert page.text == "Read <a href=/x>this</a>, please. é"
    assert page.links == () and page.title == ""


def test_other_media_types_have_neither_text_nor_links() -> None:
    for body, label in [
        (b"%PDF-1.4 <a href=/x>words</a>", "application/pdf"),
        (b"%PDF-1.4 <a href=/x>words</a>", None),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", None),
        (SHOP.encode(), "application/json"),
    ]:
        page = parse(body, URL, label)
        assert page.text == "" and page.links == (), label
        assert page.text_hash.startswith("bytes:")


def test_without_a_media_type_markup_is_recognised() -> None:
    for label in (None, "", "application/octet-stream", "; charset=utf-8"):
        assert parse(SHOP.encode(), URL, label).title == "Green tea — Leaf & Kettle"


def test_a_page_needs_a_url_of_its_own() -> None:
    with pytest.raises(BadUrlError, match="not an absolute URL"):
        parse(SHOP.encode(), "/tea", HTML)
    page = parse(SHOP.encode(), "HTTPS://SHOP.example.org/x#y", HTML)
    assert page.url == "https://shop.example.org/x"


def assert_storable(page: Page) -> None:
    for text in strings(page):
        assert "\0" not in text
        text.encode("utf-8")
    for one in (page.title, page.text):
        assert one == " ".join(one.split())
    for url in [page.canonical, page.refresh, *(link.url for link in page.links)]:
        assert url is None or normalise(url) == url


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from strings(one)
    elif isinstance(value, Page | Link):
        for field in fields(value):
            yield from strings(getattr(value, field.name))


_pieces = st.sampled_from(
    """<html <head> <body> <title> </title> <p> </p> <div </div> <a href="/x"> </a> <a href=' rel=
    <base href="x:y"> <meta name=robots content=" <link rel=canonical href= <!-- --> <![CDATA[ ]]>
    <script> </script> <style> <svg> </svg> <math> <template> <table> <td> <select> <option>
    <textarea> <plaintext> <frameset> <noscript> <img alt=" <h1> &#0; &#xD800; &#x110000; &nbsp;
    &amp &#xFFFF; http:// https://[ <?xml </ < > " ' = / \x00 \x0c \ufeff \ufffe 中文 é""".split()  # noqa: SIM905
)
_broken_html = st.lists(st.one_of(_pieces, st.text(max_size=5), st.just(" ")), max_size=40).map(
    lambda pieces: "".join(pieces).encode("utf-8", "surrogatepass")
)
_labels = st.one_of(
    st.none(),
    st.sampled_from(
        ["text/html", "text/plain", "text/html; charset=utf-16", "text/html; charset="]
    ),
    st.text(max_size=30),
)


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.binary(max_size=400), _broken_html), _labels, st.text(max_size=30))
@example(b"", None, "")
@example(b"\xff\xfe", "text/html", "")
@example(b"<title>\xed\xa0\x80</title>\xed\xb0\x80", "text/html; charset=utf-8", "")
@example(b"<p>" + b"\xd8\x00" * 40, "text/html; charset=utf-16be", "")
@example(b"\0" * 1000, "text/html", "")
def test_parse_never_fails_and_its_strings_can_be_stored(
    body: bytes, content_type: str | None, header: str
) -> None:
    assert_storable(parse(body, URL, content_type, header, header, header))


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 10_000 + b"<a href=/x>words</a>" + b"</div>" * 10_000,
        b"<div>" * 300_000 + b"<a href=/x>words</a>",
        b"<ul><li>" * 200_000 + b"<a href=/x>words</a>",
        b"<span/>" * 200_000 + b"<a href=/x>words</a>",
        b"<b><p>" * 200_000 + b"<a href=/x>words</a>",
        b"<p " + b" ".join(b"a%d=1" % i for i in range(200_000)) + b"><a href=/x>words</a>",
        b"<p title='" + b"x" * 1_500_000 + b"'><a href=/x>words</a>",
        b"<br>" * 300_000 + b"<a href=/x>words</a>",
        (b"<i" * 7000 + b">") * 100 + b"<a href=/x>words</a>",
        b"<meta http-equiv=refresh content='" + b" " * 16_000 + b"x'><a href=/x>words</a>",
        b"<div>" + b"<meta " * 600_000 + b"</head><a href=/x>words</a>",
    ],
    ids=[
        "deep",
        "deeper",
        "lists",
        "self-closed",
        "formatting",
        "attributes",
        "value",
        "breaks",
        "angles",
        "spaces",
        "metas",
    ],
)
def test_hostile_markup_neither_stalls_nor_hides_the_page(body: bytes) -> None:
    page = parse(body, URL, HTML)
    assert page.text == "words"
    assert [link.url for link in page.links] == ["https://shop.example.org/x"]


def test_few_of_the_lists_within_each_other_are_walked_with_all_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []
    before = pages._is_text
    monkeypatch.setattr(pages, "_is_text", lambda *list_: looks.append(list_) or before(*list_))
    body = b"<ul><li>" * 500 + b"<a href=/x>words</a>"
    assert parse(body, URL, HTML).text == "words"
    assert 0 < len(looks) < 20


HERONS = "<p>Of herons and other birds that stand in the water all day long.</p>" * 20
REMARKS = "<p>First! I have never seen a bird like this one, thanks for sharing it.</p>" * 60


@pytest.mark.parametrize(
    "comments",
    [
        f"<div id=comments>{REMARKS}</div>",
        f"<ol class='commentlist big'><li><article class=comment>{REMARKS}</article></ol>",
        f"<section class=comments-area>{REMARKS}<div class=comment-list>{REMARKS}</div></section>",
        f"<div id=disqus_thread>{REMARKS}</div>",
    ],
)
def test_comments_are_not_the_text_even_where_they_are_most_of_the_page(comments: str) -> None:
    body = f"<body><div class=has-comments><h1>Herons</h1><div>{HERONS}</div>{comments}</div>"
    page = parse(body.encode(), URL, HTML)
    assert page.text.count("herons") == 20
    assert "First!" not in page.text


@pytest.mark.parametrize("around", ["{}", "<div class=comment-list>{}</div>"])
@pytest.mark.parametrize("number", [1, 6])
def test_comments_are_the_text_of_a_page_that_has_no_other(number: int, around: str) -> None:
    one = f"<div class=comment>{REMARKS[: len(REMARKS) // number]}</div>"
    body = f"<body><h1>Thread</h1><p>Herons?</p>{around.format(one * number)}"
    assert parse(body.encode(), URL, HTML).text.count("First!") == 60


def test_an_element_around_the_text_is_not_navigation_whatever_its_name() -> None:
    cookies = "<p>We use cookies to show you what you like, and ask you to agree to it.</p>" * 6
    hashes = set()
    for bird in ("herons", "storks"):
        page = read(
            body=f"<div>{cookies}</div><h1>{bird}</h1><div class='body with sidebar'>"
            f"{HERONS.replace('herons', bird)}</div><div class=sidebar>Most read</div>"
        )
        assert page.text.count(bird) >= 20 and "Most read" not in page.text
        hashes.add(page.text_hash)
    assert len(hashes) == 2


@pytest.mark.parametrize("tag", ["html", "body"])
@pytest.mark.parametrize("role", ["navigation", "banner"])
def test_a_page_is_not_the_frame_of_its_site_whatever_its_role(tag: str, role: str) -> None:
    page = parse(f"<{tag} role={role}><p>{HERONS}".encode(), URL, HTML)
    assert page.text.count("herons") >= 20 and page.sketch is not None


@pytest.mark.parametrize("name", ["menu", "comments"])
def test_elements_within_each_other_do_not_each_have_their_text_measured(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    measured = 0

    def count(node: LexborNode | None) -> int:
        nonlocal measured
        measured += (size := paragraphs(node))
        return size

    paragraphs = pages._paragraphs
    monkeypatch.setattr(pages, "_paragraphs", count)
    parse(f"<body>{f'<div class={name}>' * 500}{HERONS}".encode(), URL, HTML)
    size = len(HERONS) - HERONS.count("<p>") * len("<p></p>")
    assert size < measured < 50 * size


@pytest.mark.parametrize("tags", ["<h1><div>", "<dl><dt>", "<a href=/x><table><td>", "<ul>"])
def test_elements_within_each_other_do_not_each_have_their_text_read(
    monkeypatch: pytest.MonkeyPatch, tags: str
) -> None:
    read = 0

    def count(text: str) -> str:
        nonlocal read
        read += len(text)
        return collapse(text)

    for module in (pages, links):
        monkeypatch.setattr(module, "collapse", count)
        monkeypatch.setattr(module, "MAX_BODY", 2 * len(HERONS), raising=False)
    page = parse(f"<title>Birds</title><body>{tags * 400}{HERONS}".encode(), URL, HTML)
    assert page.text.count("herons") == 20
    assert len(HERONS) < read < 50 * len(HERONS)


def test_headings_within_each_other_do_not_each_look_at_all_that_is_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    class Counted(tuple[str, ...]):
        def __contains__(self, tag: object) -> bool:
            nonlocal looks
            looks += 1
            return super().__contains__(tag)

    monkeypatch.setattr(pages, "_AROUND_TAGS", Counted(pages._AROUND_TAGS))
    parse(f"<body><nav>{'<div class=title>' * 500}{HERONS}".encode(), URL, HTML)
    assert 500 <= looks < 3 * 500


def test_headings_and_defined_terms_are_kept_and_navigation_is_no_text() -> None:
    words = "Of herons and other birds that stand in the water all day long. " * 20
    body = (
        "<title>T</title><body><div class=navheader><a href=p.html>Prev</a> Chapter 8</div>"
        f"<h1>8.1. Herons</h1><p>{words}</p><dl><dt>legs (int)<a href=#legs>¶</a></dt><dd>two</dd>"
        "<dt><a href=other.html>An entry</a></dt></dl><h2>Wings</h2><nav><a href=x>Home</a></nav>"
        "<p><a href=more.html>More</a></p><div class=navfooter><a href=n.html>Next</a></div>"
    )
    page = parse(body.encode(), "https://a.example/", "text/html; charset=utf-8")
    assert page.headings == ("8.1. Herons", "legs (int)", "Wings")
    assert not {"Prev", "Next", "Home"} & set(page.text.split()) and "herons" in page.text
    assert 0 < page.linked < 0.05
    links = "".join(f"<li><a href={number}.html>An entry {number}</a>" for number in range(50))
    assert parse(links.encode(), "https://a.example/", "text/html").linked > 0.9

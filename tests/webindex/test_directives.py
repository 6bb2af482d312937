"""What a page says of itself: robots directives, its canonical page, a refresh, its versions."""

from __future__ import annotations

import pytest

from webindex.page.links import Link
from webindex.page.pages import Page, parse, parse_capture

URL = "https://shop.example.org/tea/green.html"
HTML = "text/html; charset=utf-8"


def read(
    head: str = "", body: str = "", robots: str | None = None, link: str | None = None
) -> Page:
    markup = f"<html><head>{head}</head><body>{body}</body></html>"
    return parse(markup.encode(), URL, HTML, robots, link)


@pytest.mark.parametrize(
    ("content", "noindex", "nofollow"),
    [
        ("noindex", True, False),
        ("NoFollow , noarchive", False, True),
        ("noindex nofollow", True, True),
        ("index;nofollow", False, True),
        ("none", True, True),
        ("all, index", False, False),
        ("noindexing", False, False),
        ("", False, False),
    ],
)
def test_robots_directives_of_the_page(content: str, noindex: bool, nofollow: bool) -> None:
    page = read(f'<meta NAME=" Robots" content="{content}">', "<a href=/x>x</a>")
    assert (page.noindex, page.nofollow) == (noindex, nofollow)
    assert page.links[0].rel == ("nofollow" if nofollow else "follow")


@pytest.mark.parametrize(
    "before",
    [
        '<noscript><img src="https://count.example/tr?id=1"></noscript>',
        "<noscript><iframe src=//tags.example></iframe></noscript>",
        "<NOSCRIPT class=x><div><p>Turn scripts on</p></div></NoScript >",
        "<!-- </head> --><script>'</head><p>'</script><noscript><p></noscript>",
        # Without it, as in more heads than one would think.
        "<img src=/pixel>",
        "\ufeff",
        "&nbsp;",
        "\xa0",
        "<!-- menu -->\ufeff",
        '<div></div><script>write("<body></head>")</script>',
        '<meta name=a content="Shop > Tea"><meta property=b content="Shop > Tea">',
        "<div class=styles><style>p {}</style></div><!-- <meta name=robots content=nofollow> -->",
    ],
)
def test_what_a_head_has_of_the_body_does_not_end_what_directs_robots(before: str) -> None:
    page = read(
        f"{before}<title>Tea</title><meta name=robots content=noindex>"
        "<link rel=canonical href=/tea><link rel=alternate hreflang=de href=/tee>",
        "<p>green <noscript>or <a href=/black>black</a></noscript> tea",
    )
    assert (page.noindex, page.canonical) == (True, "https://shop.example.org/tea")
    assert not page.nofollow
    assert [one.url.rpartition("/")[2] for one in page.links] == ["black", "tee"]
    assert page.title == "Tea" and page.text.startswith("green")


def test_of_two_titles_of_a_head_the_first_one_counts() -> None:
    for between in ("", "<div></div>"):
        assert read(f"<title>Tea</title>{between}<title>Water</title>").title == "Tea"


def test_a_head_behind_several_byte_order_marks_is_one() -> None:
    body = b"\xef\xbb\xbf" * 3 + b"<!DOCTYPE html><meta name=robots content=noindex><p>green tea"
    found = parse(body, "https://shop.example.org/", "text/html")
    assert found.noindex and found.text == "green tea"


def test_a_noscript_element_without_an_end_hides_nothing() -> None:
    assert read("<noscript><title>Tea</title>", "<p>green tea").text == "green tea"


@pytest.mark.parametrize(
    ("header", "noindex", "nofollow"),
    [
        ("noindex", True, False),
        ("NONE", True, True),
        ("noarchive, nofollow", False, True),
        ("googlebot: noindex, nofollow", False, False),
        ("googlebot: noindex\nnofollow", False, True),
        ("noindex nofollow", True, True),
        ("googlebot: noindex nofollow", False, False),
        ("*: noindex", True, False),
        ("unavailable_after: 25 Jun 2030 15:00:00 GMT, noindex", True, False),
        ("unavailable_after: Wed, 25 Jun 2031 15:00:00 GMT, noindex", True, False),
        ("unavailable_after: Sunday, 06-Nov-31 08:49:37 GMT, nofollow", False, True),
        ("360Spider: noindex", False, False),
        ("max-snippet: 10", False, False),
        (":,:,,\n:", False, False),
    ],
)
def test_robots_directives_of_the_header(header: str, noindex: bool, nofollow: bool) -> None:
    page = read(robots=header)
    assert (page.noindex, page.nofollow) == (noindex, nofollow)


def test_robots_directives_for_another_robot_are_not_ours() -> None:
    page = read(
        '<meta name=googlebot content="noindex, nofollow"><meta name=robots-x content=none>',
        robots="googlebot: noindex\n otherbot: none, nofollow\nunavailable_after: x",
    )
    assert not page.noindex and not page.nofollow


@pytest.mark.parametrize(
    ("asked", "noarchive", "nosnippet"),
    [
        ("noarchive", True, False),
        ("NoSnippet, noarchive", True, True),
        ("max-snippet: 0", False, True),
        ("max-snippet:0,nofollow", False, True),
        ("max-snippet:50", False, False),
        ("none", False, False),
        ("index, archive", False, False),
    ],
)
def test_a_page_asks_for_no_copy_and_no_snippet_by_markup_and_header(
    asked: str, noarchive: bool, nosnippet: bool
) -> None:
    markup = f'<head><meta name="robots" content="{asked}"></head>words'
    for page in (
        parse(markup.encode(), URL, "text/html"),
        parse(b"words", URL, "text/html", asked),
        parse(b"words", URL, "text/plain", f"*: {asked}\nother: noarchive, nosnippet"),
    ):
        assert (page.noarchive, page.nosnippet) == (noarchive, nosnippet)


def test_what_visitors_wrote_into_the_body_directs_nothing() -> None:
    page = read(
        body="<p>comment<meta name=robots content=noindex><link rel=canonical href=/evil>"
        "<meta http-equiv=refresh content='0;url=/evil'>"
    )
    assert not page.noindex and page.canonical is None and page.refresh is None


@pytest.mark.parametrize(
    ("head", "canonical"),
    [
        ("<link rel=canonical href=/a#x>", "https://shop.example.org/a"),
        (
            "<link rel='shortlink CANONICAL' href=https://other.example/a>",
            "https://other.example/a",
        ),
        ("<link rel=canonical href=/a><link rel=canonical href=/a>", "https://shop.example.org/a"),
        ("<link rel=canonical href=/a><link rel=canonical href=/b>", None),
        ("<link rel=canonical href=file:///srv/a.html>", None),
        ("<link rel=canonical href=''>", None),
        ("<link rel=canonical>", None),
        ("<base href=https://b.example/d/><link rel=canonical href=a>", "https://b.example/d/a"),
    ],
)
def test_the_canonical_link(head: str, canonical: str | None) -> None:
    assert read(head).canonical == canonical


@pytest.mark.parametrize(
    ("head", "canonical"),
    [
        ("", "https://shop.example.org/header"),
        ("<base href=/b/>", "https://shop.example.org/header"),
        ("<link rel=canonical href=file:///a>", "https://shop.example.org/header"),
        ("<link rel=canonical href=/a>", "https://shop.example.org/a"),
        # Markup that contradicts itself is no reason to believe a header.
        ("<link rel=canonical href=/a><link rel=canonical href=/b>", None),
    ],
)
def test_a_canonical_link_of_the_header_counts_if_the_markup_has_none(
    head: str, canonical: str | None
) -> None:
    assert read(head, link='<../header>; rel="canonical"').canonical == canonical


def test_a_page_without_markup_has_the_canonical_link_of_its_header() -> None:
    page = parse(b"words", URL, "text/plain", None, "</a>; rel=canonical")
    assert page.canonical == "https://shop.example.org/a"


def test_versions_in_other_languages_are_links_without_words() -> None:
    page = read(
        """<link rel=alternate hreflang=de href=/de> <link rel=alternate hreflang=de-AT href=/de>
        <link rel="ALTERNATE home" hreflang=fr href=/fr#x> <link rel=alternate href=/feed>
        <link hreflang=it rel=chapter href=/it> <link rel=alternate hreflang=en href=green.html>
        <link rel=alternate hreflang=ko href=mailto:a@b><link rel=alternate hreflang href=/no>
        <meta name=robots content=nofollow>""",
        "<a href=/fr>en français</a>",
    )
    assert page.links == (
        Link("https://shop.example.org/fr", ("en français",), "nofollow"),
        Link("https://shop.example.org/de", (), "alternate"),
    )


def test_a_capture_is_parsed_with_all_of_its_headers() -> None:
    capture = {"url": URL, "content_type": HTML, "robots": "noindex"}
    more = {"link": "</a>; rel=canonical", "language": "ko", "refresh": "1; /b"}
    page = parse_capture({**capture, **more}, b"<p>ok")
    assert page == parse(b"<p>ok", URL, HTML, "noindex", "</a>; rel=canonical", "ko", "1; /b")
    assert page.refresh == "https://shop.example.org/b"
    told = (page.noindex, page.canonical, page.language)
    assert told == (True, "https://shop.example.org/a", "ko")


@pytest.mark.parametrize(
    ("content", "target"),
    [
        ("0; url=/new", "https://shop.example.org/new"),
        ("3;URL='next.html'", "https://shop.example.org/tea/next.html"),
        ("0.5 , url = &quot;/q&quot; ", "https://shop.example.org/q"),
        ("0;/bare", "https://shop.example.org/bare"),
        (" ;url=/soon", "https://shop.example.org/soon"),
        ("60; url=/later", None),
        ("0; url=green.html#x", None),
        ("0", None),
        ("0; url=", None),
        ("0; url=javascript:go()", None),
        ("soon; url=/x", None),
        ("", None),
    ],
)
def test_a_meta_refresh_to_another_page(content: str, target: str | None) -> None:
    assert read(f'<meta http-equiv="Refresh" content="{content}">').refresh == target


def test_a_refresh_by_header_comes_first_and_knows_nothing_of_the_base_element() -> None:
    markup = b"<base href=/root/><meta http-equiv=refresh content='0;url=by-markup'>"

    def refresh(header: str | None) -> str | None:
        return parse(markup, URL, HTML, refresh_header=header).refresh

    assert refresh("0; url=by-header") == "https://shop.example.org/tea/by-header"
    assert refresh("0; url=/first\n0; url=/second") == "https://shop.example.org/first"
    assert refresh("60; url=/later") is None
    for unusable in (None, "", "soon"):
        assert refresh(unusable) == "https://shop.example.org/root/by-markup"
    plain = parse(b"words", URL, "text/plain", refresh_header="0;/new")
    assert plain.refresh == "https://shop.example.org/new"


def test_the_base_element_moves_all_relative_links() -> None:
    page = read(
        "<base target=_blank><base href='//cdn.example/root/'><base href=/ignored/>",
        "<a href=a>a</a><a href=/b>b</a>",
    )
    urls = [link.url for link in page.links]
    assert urls == ["https://cdn.example/root/a", "https://cdn.example/b"]
    without = read("<base href='javascript:x'>", "<a href=a>a</a>")
    assert without.links[0].url == "https://shop.example.org/tea/a"

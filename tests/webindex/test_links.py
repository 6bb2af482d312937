"""Links: targets, anchor texts and how far the author vouches for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from webindex.page.links import (
    MAX_ANCHOR,
    MAX_ANCHORS,
    MAX_LINKS,
    Link,
    extract_links,
    plain_links,
)
from webindex.page.pages import parse
from webindex.rendering.references import references_of_page

PAGE = "https://example.org/guide/start.html"


def links_of(
    markup: str, base: str = PAGE, *, nofollow: bool = False, alternates: tuple[str, ...] = ()
) -> tuple[Link, ...]:
    tree = LexborHTMLParser(markup)
    return extract_links(tree, base, PAGE, nofollow=nofollow, alternates=alternates)


def test_links_come_in_document_order_with_their_anchor_texts() -> None:
    assert links_of(
        """
        <p>See <a href="next.html">the
          next  <em>chapter</em></a> or <a href=/>home</a>,
        <map><area href="//maps.example/area" alt="The area"></map>
        """
    ) == (
        Link("https://example.org/guide/next.html", ("the next chapter",), "follow"),
        Link("https://example.org/", ("home",), "follow"),
        Link("https://maps.example/area", ("The area",), "follow"),
    )


def test_links_to_the_page_itself_and_to_no_page_are_left_out() -> None:
    assert not links_of(
        """
        <a href="#top">top</a> <a href="start.html">self</a> <a href="">empty</a>
        <a href="start.html#x">part of self</a> <a href="?">self</a> <a href>none</a>
        <a href="https://EXAMPLE.org:443/guide/start.html?utm_source=menu">self</a>
        <a href="mailto:a@example.org">mail</a> <a href="javascript:go()">run</a> <a>no href</a>
        <a href="http://[">broken</a> <template><a href="in-template.html">t</a></template>
        """
    )


def test_the_frames_of_a_frameset_are_links() -> None:
    assert links_of(
        """
        <html><head><title>API</title></head><frameset cols="20%,80%"><frame name="packages"
        src="overview-frame.html"><frame src="overview-summary.html#top"><frame src="#x"></frameset>
        """
    ) == (
        Link("https://example.org/guide/overview-frame.html", (), "follow"),
        Link("https://example.org/guide/overview-summary.html", (), "follow"),
    )
    assert not links_of('<iframe src="https://ads.example/"></iframe>')


def test_with_another_base_a_fragment_leads_to_the_base() -> None:
    found = links_of('<a href="#x">there</a><a href="a">a</a>', base="https://example.net/b/")
    assert [link.url for link in found] == ["https://example.net/b/", "https://example.net/b/a"]


def test_links_to_one_page_merge_and_keep_distinct_anchors_in_order() -> None:
    assert links_of(
        """
        <a href="a.html">First</a> <a href="a.html#part">Second</a> <a href="./a.html">First</a>
        <a href="a.html?utm_source=x"></a>
        """
    ) == (Link("https://example.org/guide/a.html", ("First", "Second"), "follow"),)


def test_an_image_speaks_for_a_link_without_text() -> None:
    found = links_of(
        """
        <a href=1><img src=x.png alt="A  red
        fox"></a> <a href=2><img alt="ignored">Text</a> <a href=3><img src=y.png></a>
        """
    )
    assert [link.anchors for link in found] == [("A red fox",), ("Text",), ()]


def test_words_of_neighbouring_blocks_in_a_link_do_not_run_together() -> None:
    assert links_of("<a href=1><div>Title</div><div>Subtitle</div></a>")[0].anchors == (
        "Title Subtitle",
    )


def test_rel_values_are_told_apart() -> None:
    found = links_of(
        """
        <a href=1>a</a> <a href=2 rel=NoFollow>b</a> <a href=3 rel="external ugc">c</a>
        <a href=4 rel=sponsored>d</a> <a href=5 rel="ugc nofollow">e</a> <a href=6 rel=next>f</a>
        """
    )
    rels = [link.rel for link in found]
    assert rels == ["follow", "nofollow", "ugc", "sponsored", "nofollow", "follow"]


@pytest.mark.parametrize(
    ("charset", "query"),
    [
        ("windows-1251", "%F7%E0%E9&b=%26%2332209%3B"),
        ("Shift_JIS", "%84%89%84p%84z&b=%92%83"),
        ("gb2312", "%A7%E9%A7%D1%A7%DB&b=%B2%E8"),
        ("utf-8", "%D1%87%D0%B0%D0%B9&b=%E7%B7%91"),
    ],
)
def test_a_query_is_in_the_charset_of_its_page(charset: str, query: str) -> None:
    other = "茶" if charset in ("Shift_JIS", "gb2312") else "緑"
    markup = f"""<link rel=canonical href="/c?a=чай">
        <meta http-equiv=refresh content="9;url=?a=чай">
        <a href="/чай?a=чай&amp;b={other}#чай">tea</a><img src="/i?a=чай">"""
    codec = {"gb2312": "gbk"}.get(charset, charset)
    body = markup.encode(codec, "xmlcharrefreplace")
    page = parse(body, PAGE, f"text/html; charset={charset}")
    first = query.partition("&")[0]
    [link] = page.links
    assert link.url == f"https://example.org/%D1%87%D0%B0%D0%B9?a={query}"
    assert page.canonical == f"https://example.org/c?a={first}"
    assert page.refresh == f"{PAGE}?a={first}"
    capture = {"url": PAGE, "content_type": f"text/html; charset={charset}"}
    assert references_of_page(capture, body) == [f"https://example.org/i?a={first}"]


def test_in_a_document_without_markup_a_host_may_lack_its_scheme() -> None:
    written = ("www.example.com", " WWW.Example.com/tea#top", "www.txt", "www.example/x.html")
    assert [one.url for one in plain_links(written, PAGE)] == [
        *("http://www.example.com/", "http://www.example.com/tea"),
        *("https://example.org/guide/www.txt", "https://example.org/guide/www.example/x.html"),
    ]


def test_one_plain_link_outweighs_marked_ones() -> None:
    assert links_of("<a href=1 rel=nofollow>a</a><a href=1 rel=ugc>b</a>")[0].rel == "ugc"
    assert links_of("<a href=1 rel=nofollow>a</a><a href=1>b</a>")[0].rel == "follow"


def test_a_nofollow_page_marks_all_its_links() -> None:
    found = links_of("<a href=1>a</a><a href=2 rel=ugc>b</a>", nofollow=True)
    assert [link.rel for link in found] == ["nofollow", "nofollow"]


def test_alternates_follow_the_links_and_an_ordinary_link_wins() -> None:
    de, fr, home = (f"https://example.org/{path}" for path in ("de", "fr", ""))
    found = links_of(
        "<a href=/>home</a><a href=/fr rel=nofollow>fr</a>", alternates=(de, PAGE, fr, de, home)
    )
    assert found == (
        Link(home, ("home",), "follow"),
        Link(fr, ("fr",), "nofollow"),
        Link(de, (), "alternate"),
    )


def test_alternates_have_what_room_the_links_leave() -> None:
    others = tuple(f"https://example.org/v{n}" for n in range(MAX_LINKS + 5))
    many = "".join(f"<a href=/{n}>page {n}</a>" for n in range(MAX_LINKS - 3))
    found = links_of(many, alternates=("https://example.org/0", *others))
    assert len(found) == MAX_LINKS
    assert [link.url for link in found if link.rel == "alternate"] == list(others[:3])
    assert len(links_of("", alternates=others)) == MAX_LINKS


def test_numbers_and_lengths_are_capped() -> None:
    many = "".join(f"<a href=/{i}>page {i}</a>" for i in range(MAX_LINKS + 50))
    found = links_of(many + "<a href=/0>again</a>")
    assert len(found) == MAX_LINKS
    assert found[0].anchors == ("page 0", "again")
    assert found[-1].url == f"https://example.org/{MAX_LINKS - 1}"
    assert links_of(f"<a href=1>{'word ' * 100}</a>")[0].anchors == (
        ("word " * 100)[:MAX_ANCHOR].rstrip(),
    )
    same = "".join(f"<a href=1>name {i}</a>" for i in range(MAX_ANCHORS + 5))
    assert links_of(same)[0].anchors == tuple(f"name {i}" for i in range(MAX_ANCHORS))


def strings(found: tuple[Link, ...]) -> Iterator[str]:
    for link in found:
        yield link.url
        yield from link.anchors


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_href_and_anchor_give_strings_that_can_be_stored(href: str, anchor: str) -> None:
    markup = f'<a href="{href}">{anchor}</a><a href=x>{anchor}</a>'
    for text in strings(links_of(markup)):
        text.encode("utf-8")
        assert "\0" not in text
        assert text == " ".join(text.split())

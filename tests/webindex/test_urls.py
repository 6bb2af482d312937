"""URLs: one spelling for each page, and rows and ids that never collide."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webindex.page.urls import (
    MAX_ROW_BYTES,
    MAX_URL_BYTES,
    BadUrlError,
    host,
    normalise,
    page_id,
    page_row,
    registrable_domain,
    resolve,
    surt,
)

_labels = st.text("abcxyz019-_", min_size=1, max_size=8)
_hosts = st.one_of(
    st.lists(_labels, min_size=1, max_size=4).map(".".join),
    st.sampled_from(["bücher.example", "EXAMPLE.org.", "127.0.0.1", "[2001:db8::1]", "0x7f.1"]),
)
_tails = st.text(
    st.one_of(st.sampled_from("/?&=%.#~;,+:@!|*()'\" \\"), st.sampled_from("aZ7é中\u202e")),
    max_size=40,
)
_escapes = st.sampled_from(["", "%7E", "%2e%2e/", "%%37E", "%c3%a9", "?utm_source=x&b", "?&&"])
# What is removed or rewritten, in any order: one step may not make work for another.
_steps = st.lists(
    st.sampled_from(
        [
            *("/", ";", "a", "..", ".", "/.", "/..", "?", "&", "=", "%", "%zz", "%7E", "%6a"),
            *("%2e", "%2E", "%3b", "jsessionid=", ";jsessionid=9.n1", ";JSESSIONID=!"),
            *("/(S(abcdefghijklmnopqrstuvwx))", "utm_x=1", "%75tm_y=2", "PHPSESSID=3"),
        ]
    ),
    max_size=9,
).map("".join)
raw_urls = st.builds(
    "{}://{}{}/{}{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    _hosts,
    st.sampled_from(["", ":80", ":443", ":8080"]),
    _escapes,
    st.one_of(_tails, _steps),
)


def normalised_or_none(url: str) -> str | None:
    try:
        return normalise(url)
    except BadUrlError:
        return None


@pytest.mark.parametrize(
    ("given_url", "expected"),
    [
        ("HTTP://WWW.Example.ORG", "http://www.example.org/"),
        ("https://example.org:443/a", "https://example.org/a"),
        ("http://example.org:443/a", "http://example.org:443/a"),
        ("https://example.org/a#part", "https://example.org/a"),
        ("https://example.org/a/../b/./c", "https://example.org/b/c"),
        ("https://example.org/?", "https://example.org/"),
        ("https://example.org./", "https://example.org/"),
        ("https://user:secret@example.org/", "https://example.org/"),
        ("https://bücher.example/ä?ö=ü", "https://xn--bcher-kva.example/%C3%A4?%C3%B6=%C3%BC"),
        ("https://example.org/%7euser/%e4", "https://example.org/~user/%E4"),
        ("  https://example.org/a\n\tb ", "https://example.org/ab"),
        ("https:\\\\example.org\\a", "https://example.org/a"),
        ("https://0x7f.1/", "https://127.0.0.1/"),
        ("https://[2001:DB8:0::1]:8443/", "https://[2001:db8::1]:8443/"),
        # An escape beside a broken one is left alone.
        ("https://example.org/%%37E", "https://example.org/%%37E"),
    ],
)
def test_spellings_of_one_url_become_one(given_url: str, expected: str) -> None:
    assert normalise(given_url) == expected


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("utm_source=mail&utm_medium=x", ""),
        ("id=7&gclid=abc&page=2", "id=7&page=2"),
        ("FBCLID=abc&UTM_Campaign=y&b=1&a=2", "b=1&a=2"),
        ("mc_eid=1&mc_cid=2&msclkid=3&x", "x"),
        ("gclidx=1&futm_source=2", "gclidx=1&futm_source=2"),
        ("a=1&a=1&a=0", "a=1&a=1&a=0"),
        ("q=utm_source", "q=utm_source"),
        ("%75tm_source=1&a=%7e", "a=~"),
        ("id=1&PHPSESSID=8a7b&x=2", "id=1&x=2"),
        ("osCsid=1&zenid=2&JSESSIONID=3&a", "a"),
        ("sid=1&s=2&session=3&sessionid=4", "sid=1&s=2&session=3&sessionid=4"),
    ],
)
def test_tracking_parameters_go_and_all_others_stay_in_order(query: str, kept: str) -> None:
    expected = "https://example.org/p" + ("?" + kept if kept else "")
    assert normalise(f"https://example.org/p?{query}") == expected


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/shop/item;jsessionid=0A1B2C.node-1!2~3?id=7", "/shop/item?id=7"),
        ("/a;JSessionID=1/b;x=2;jsessionid=3;y=4", "/a/b;x=2;y=4"),
        ("/;jsessionid=", "/"),
        ("/%3Bjsessionid=1", "/%3Bjsessionid=1"),
        ("/a;jsessionids=1;xjsessionid=2", "/a;jsessionids=1;xjsessionid=2"),
        ("/a;jsessionid=x%20y", "/a;jsessionid=x%20y"),
        ("/app/(S(lit3py55t21z5v55vlm25s55))/orders.aspx", "/app/orders.aspx"),
        ("/(s(LIT3PY55t21z5v55vlm25s55))/", "/"),
        ("/(S(lit3py55t21z5v55vlm25s55));jsessionid=1/a", "/a"),
        ("/(S(short))/orders.aspx", "/(S(short))/orders.aspx"),
        ("/x(S(lit3py55t21z5v55vlm25s55))/a", "/x(S(lit3py55t21z5v55vlm25s55))/a"),
        ("/a/..;jsessionid=1/b", "/a/..;jsessionid=1/b"),
    ],
)
def test_session_ids_in_the_path_go(path: str, kept: str) -> None:
    assert normalise(f"https://example.org{path}") == f"https://example.org{kept}"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/b/.hidden/../c", "/b/c"),
        ("/b/.hidden/./c", "/b/.hidden/c"),
        ("/b/.hidden/.", "/b/.hidden/"),
        ("/b/.hidden/..", "/b/"),
        ("/b/.hidden/../../../../c", "/c"),
        ("/b/.hidden/...", "/b/.hidden/..."),
        ("/b//.hidden/../..", "/b/"),
    ],
)
def test_dots_are_resolved_behind_names_that_begin_with_one(path: str, expected: str) -> None:
    assert normalise(f"https://example.org{path}") == f"https://example.org{expected}"


def test_http_and_https_and_www_are_different_pages() -> None:
    urls = ["http://example.org/", "https://example.org/", "https://www.example.org/"]
    assert len({normalise(url) for url in urls}) == 3
    assert len({page_row(normalise(url)) for url in urls}) == 3


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("/relative", "not an absolute URL"),
        ("", "not an absolute URL"),
        ("https://", "not an absolute URL"),
        ("https://exa mple.org/", "not an absolute URL"),
        ("https://example.org:99999/", "not an absolute URL"),
        ("https://example.org/\ud800", "not an absolute URL"),
        ("mailto:someone@example.org", "'mailto'"),
        ("javascript:void(0)", "'javascript'"),
        ("file:///etc/passwd", "'file'"),
        ("ftp://example.org/", "'ftp'"),
        ("https://a,b.example/", "neither a DNS name"),
        ("https://a..example/", "neither a DNS name"),
        ("https://" + "a." * 130 + "example/", "neither a DNS name"),
        ("https://example.org/" + "a" * MAX_URL_BYTES, "longer than 8192 bytes"),
        ("https://example.org/" + "é" * 2000, "longer than 8192 bytes"),
    ],
)
def test_what_cannot_be_a_page_is_refused_with_a_sentence(bad: str, says: str) -> None:
    with pytest.raises(BadUrlError) as refused:
        normalise(bad)
    message = str(refused.value)
    assert says in message
    assert message.endswith(".")
    assert message.isprintable()
    assert len(message) < 300


@settings(max_examples=1000)
@given(raw_urls)
def test_normalising_twice_changes_nothing(raw: str) -> None:
    once = normalised_or_none(raw)
    if once is not None:
        assert normalise(once) == once
        assert once.isascii()


@settings(max_examples=1000)
@given(st.text(max_size=60))
def test_any_href_resolves_to_a_normalised_url_or_to_none(href: str) -> None:
    found = resolve("https://example.org/dir/page?x=1", href)
    assert found is None or normalise(found) == found


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("", "https://example.org/dir/page?x=1"),
        ("#top", "https://example.org/dir/page?x=1"),
        ("other.html#x", "https://example.org/dir/other.html"),
        ("../up", "https://example.org/up"),
        ("?x=2", "https://example.org/dir/page?x=2"),
        ("//cdn.example/a", "https://cdn.example/a"),
        ("http://example.net", "http://example.net/"),
        (" spaced.html\n", "https://example.org/dir/spaced.html"),
        ("javascript:void(0)", None),
        ("mailto:a@example.org", None),
        ("data:text/html,x", None),
        ("http://[", None),
        ("\ud800", None),
        ("a" * (MAX_URL_BYTES + 1), None),
    ],
)
def test_an_href_means_what_it_means_in_a_browser(href: str, expected: str | None) -> None:
    assert resolve("https://example.org/dir/page?x=1", href) == expected


def test_a_base_that_is_no_url_is_an_error_not_a_missing_link() -> None:
    with pytest.raises(BadUrlError):
        resolve("not a url", "page.html")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://www.example.com/path?query", "com,example,www)/path?query"),
        ("http://www.example.com/path?query", "com,example,www+http)/path?query"),
        ("https://www.example.com:8443/", "com,example,www:8443)/"),
        ("http://example.com:8080/", "com,example+http:8080)/"),
        ("https://127.0.0.1/", "127.0.0.1)/"),
        ("https://[2001:db8::1]:8443/", "[2001:db8::1]:8443)/"),
        ("https://localhost/", "localhost)/"),
    ],
)
def test_the_surt_of_a_url(url: str, expected: str) -> None:
    assert surt(url) == expected


def test_a_domain_and_its_hosts_sort_together() -> None:
    site = ["https://example.org/z", "https://a.example.org/", "http://www.example.org/"]
    others = ["https://example.com/", "https://examplf.org/", "https://aexample.org/"]
    ordered = sorted(map(surt, site + others))
    places = [ordered.index(surt(url)) for url in site]
    assert max(places) - min(places) == len(site) - 1


def url_of_surt(key: str) -> str:
    match = re.fullmatch(r"(\[.*?\]|[^+:)]*)(\+http)?(:\d+)?\)(/.*)", key)
    assert match is not None
    name = match[1]
    if name[0] != "[" and not re.fullmatch(r"\d+(\.\d+){3}", name):
        name = ".".join(reversed(name.split(",")))
    return f"{'http' if match[2] else 'https'}://{name}{match[3] or ''}{match[4]}"


@settings(max_examples=1000)
@given(raw_urls)
def test_a_surt_leads_back_to_its_url_and_so_to_no_other(raw: str) -> None:
    url = normalised_or_none(raw)
    if url is not None:
        assert url_of_surt(surt(url)) == url


@given(st.text(string.ascii_letters + string.digits + "/?=", max_size=500))
def test_every_row_keeps_the_limit(tail: str) -> None:
    url = normalise(f"https://example.org/{tail}")
    for limit in (64, 100, MAX_ROW_BYTES):
        row = page_row(url, limit)
        assert len(row.encode()) <= limit
        assert (len(row) == limit) == (len(surt(url)) + 3 >= limit)
        assert re.match(r"[0-9a-f]{2}/org,example\)/", row)


def test_long_urls_that_differ_only_at_the_end_have_different_rows() -> None:
    start = "https://example.org/" + "a" * 8000
    rows = {page_row(f"{start}{i}") for i in range(1000)}
    assert len(rows) == 1000
    assert {len(row) for row in rows} == {MAX_ROW_BYTES}


def test_a_short_url_made_to_look_like_the_row_of_a_long_one_has_another_row() -> None:
    long_row = page_row("https://example.org/" + "a" * 1000)
    forged = "https://example.org" + long_row.split(")", 1)[1]
    assert surt(forged) == long_row.split("/", 1)[1]
    assert page_row(forged)[3:] != long_row[3:]


def test_the_pages_of_one_site_spread_over_the_table() -> None:
    rows = [page_row(f"https://example.org/page-{i}") for i in range(5120)]
    by_prefix = Counter(row[:2] for row in rows)
    assert len(by_prefix) == 256
    assert max(by_prefix.values()) < 60


def test_a_limit_too_small_for_a_useful_row_is_refused() -> None:
    with pytest.raises(ValueError, match="64 or more"):
        page_row("https://example.org/", 63)


def test_ids_and_rows_are_the_same_in_every_version() -> None:
    url = "https://example.org/page?x=1"
    assert page_id(url) == "4cc7ffd049f523c0e87d30d2182948b1"
    assert page_row(url) == "4c/org,example)/page?x=1"


@pytest.mark.parametrize(
    "url",
    ["HTTPS://example.org/", "https://example.org", "https://example.org/#x", "", "ftp://a/", "/a"],
)
def test_a_url_that_was_not_normalised_gets_no_row(url: str) -> None:
    for function in (surt, page_id, page_row, host, registrable_domain):
        with pytest.raises(BadUrlError, match="normalise first"):
            function(url)


@pytest.mark.parametrize(
    ("url", "name", "domain"),
    [
        ("https://www.example.co.uk:8080/", "www.example.co.uk", "example.co.uk"),
        ("https://a.b.example.com/", "a.b.example.com", "example.com"),
        ("https://user.github.io/", "user.github.io", "user.github.io"),
        ("https://co.uk/", "co.uk", "co.uk"),
        ("https://localhost/", "localhost", "localhost"),
        ("https://127.0.0.1/", "127.0.0.1", "127.0.0.1"),
        ("https://[2001:db8::1]/", "[2001:db8::1]", "[2001:db8::1]"),
        (
            "https://www.xn--bcher-kva.example/",
            "www.xn--bcher-kva.example",
            "xn--bcher-kva.example",
        ),
    ],
)
def test_host_and_registrable_domain(url: str, name: str, domain: str) -> None:
    assert host(url) == name
    assert registrable_domain(url) == domain

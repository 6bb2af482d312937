"""Pointers: which page a capture names in its place, and whether it is one to be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webindex.page.pages import parse_capture
from webindex.page.pointers import Pointer, is_live, pointer_of, pointer_of_capture
from webindex.page.urls import normalise

URL = "https://shop.example.org/tea/green.html"
NEW = "https://shop.example.org/new"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_points_to_its_location(status: int) -> None:
    assert pointer_of(URL, status, "/new", None, None) == Pointer("redirect", NEW)


@pytest.mark.parametrize("status", [200, 204, 300, 304, 305, 306, 399, 404, 410, 503, 999])
def test_other_statuses_redirect_nowhere(status: int) -> None:
    assert pointer_of(URL, status, "/new", None, None) is None


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (NEW, NEW),
        ("../new#part", NEW),
        (" /new?utm_source=x ", NEW),
        ("HTTP://Other.Example:80/x", "http://other.example/x"),
        ("//other.example", "https://other.example/"),
        ("/new\n/new#again\n", NEW),
        ("/new\n/other", None),
        ("/new\nmailto:a@example.org", None),
        ("green.html#part", None),
        ("", None),
        ("#", None),
        (None, None),
        ("ftp://example.org/", None),
        ("javascript:go()", None),
        ("http://[", None),
        ("http:///", None),
        ("\ud800", None),
        ("/" + "a" * 9000, None),
    ],
)
def test_where_a_location_leads(location: str | None, target: str | None) -> None:
    expected = Pointer("redirect", target) if target else None
    assert pointer_of(URL, 301, location, None, None) == expected


@pytest.mark.parametrize(
    ("canonical", "accepted"),
    [
        (NEW, True),
        ("http://example.org/", True),
        ("https://m.shop.example.org:8443/", True),
        (URL, False),
        ("https://example.com/tea", False),
        ("https://notexample.org/", False),
        (None, False),
    ],
)
def test_a_canonical_page_is_accepted_within_the_registrable_domain(
    canonical: str | None, accepted: bool
) -> None:
    expected = Pointer("canonical", canonical) if accepted and canonical else None
    assert pointer_of(URL, 200, None, None, canonical) == expected
    assert pointer_of(URL, 404, None, None, canonical) is None


def test_hosts_of_different_people_under_one_suffix_speak_for_themselves_only() -> None:
    mine, theirs = "https://me.github.io/a", "https://you.github.io/a"
    assert pointer_of(mine, 200, None, None, theirs) is None
    assert pointer_of("https://a.co.uk/", 200, None, None, "https://b.co.uk/") is None


def test_a_refresh_outweighs_a_canonical_page_and_may_leave_the_domain() -> None:
    elsewhere = "https://elsewhere.example/"
    assert pointer_of(URL, 200, None, elsewhere, NEW) == Pointer("redirect", elsewhere)
    assert pointer_of(URL, 200, None, URL, NEW) is None


def capture(status: int = 200, **headers: str | None) -> dict[str, Any]:
    nothing = {"location": None, "link": None, "robots": None, "language": None}
    nothing["refresh"] = None
    return {"url": URL, "status": status, "content_type": "text/html", **nothing, **headers}


@pytest.mark.parametrize(
    ("found", "body", "pointer", "live"),
    [
        (capture(), b"<p>words", None, True),
        (capture(299), b"", None, True),
        (capture(301, location="/new"), b"", ("redirect", NEW), False),
        (capture(404), b"", None, False),
        (
            capture(),
            b"<meta http-equiv=refresh content='0;url=/new'><link rel=canonical href=/b>",
            ("redirect", NEW),
            False,
        ),
        (capture(), b"<meta http-equiv=refresh content='0;url=green.html'>", None, True),
        (capture(refresh="0;url=/new"), b"<p>words", ("redirect", NEW), False),
        (capture(refresh="60;url=/new"), b"<p>words", None, True),
        (capture(), b"<link rel=canonical href=/new>", ("canonical", NEW), True),
        (capture(link="</new>; rel=canonical"), b"<p>words", ("canonical", NEW), True),
        (
            capture(link="</other>; rel=canonical"),
            b"<link rel=canonical href=/new>",
            ("canonical", NEW),
            True,
        ),
    ],
)
def test_what_a_capture_points_to_and_whether_it_is_live(
    found: dict[str, Any], body: bytes, pointer: tuple[str, str] | None, live: bool
) -> None:
    page = parse_capture(found, body) if 200 <= found["status"] < 300 else None
    expected = {"kind": pointer[0], "url": pointer[1]} if pointer else None
    assert pointer_of_capture(found, page) == expected
    assert is_live(found, page) == live


_targets = st.one_of(st.none(), st.sampled_from([URL, NEW, "https://a.example/"]))


@given(st.integers(200, 999), st.one_of(st.none(), st.text(max_size=40)), _targets, _targets)
def test_a_pointer_is_a_normalised_url_and_never_the_page_itself(
    status: int, location: str | None, refresh: str | None, canonical: str | None
) -> None:
    pointer = pointer_of(URL, status, location, refresh, canonical)
    if pointer is not None:
        assert pointer.url == normalise(pointer.url) != URL
        assert pointer.kind == "redirect" or (status < 300 and refresh is None)

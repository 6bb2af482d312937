"""The `Link` header: what RFC 8288 says, and what is sent instead."""

from __future__ import annotations

import pytest
from effort import tries
from hypothesis import example, given, settings
from hypothesis import strategies as st

from webindex.page.link_header import canonical_of, names_canonical
from webindex.page.urls import normalise

URL = "https://shop.example.org/tea/green.html"
A = "https://shop.example.org/a"


@pytest.mark.parametrize(
    ("header", "canonical"),
    [
        ('<https://shop.example.org/a>; rel="canonical"', A),
        ("</a>;rel=canonical", A),
        ("<../a#x>; REL = Canonical ; title=x", A),
        ('  ,, </b>; rel=next , </a>; title="one, <two>; rel=canonical\\"" ; rel="canonical"', A),
        ('</a>; title="x\\"; anchor=y; \\"z"; rel=canonical', A),
        ("</a>; rel='canonical'", None),
        ('</a>; rel="shortlink CANONICAL"', A),
        ('</a>; rel="shortlink canonicalised"', None),
        ("</a>; rel=can\\onical", None),
        ('</a>; rel="can\\onical"', A),
        ("</a>; rel=canonical, </a#again>; rel=canonical", A),
        ("</a>; rel=canonical, </b>; rel=canonical", None),
        # Only the first rel counts, and a link of another page is none of this one.
        ("</b>; rel=next; rel=canonical, </a>; rel=canonical; rel=next", A),
        ('</b>; rel=canonical; anchor="/other", </a>; rel=canonical', A),
        ("</b>; anchor; rel=canonical", None),
        ("</b>; ANCHOR=''; rel=canonical", None),
        # What follows the first thing that is no link is ignored.
        ("</a>; rel=canonical, nonsense, </b>; rel=canonical", A),
        ("nonsense, </a>; rel=canonical", None),
        ("</a; rel=canonical", None),
        ('</a>; title="never closed; rel=canonical', None),
        ("</a>; x==;; =y; rel=canonical", A),
        ("</a>; ; rel=canonical", A),
        ("<>; rel=canonical", URL),
        ("<file:///srv/a.html>; rel=canonical", None),
        ("<http://[>; rel=canonical", None),
        ("</größe>; rel=canonical", "https://shop.example.org/gr%C3%B6%C3%9Fe"),
        ("</a>; rel=next", None),
        ("", None),
    ],
)
def test_the_canonical_page_of_a_header(header: str, canonical: str | None) -> None:
    assert canonical_of(header, URL) == canonical


def test_a_header_names_a_canonical_page_whether_or_not_that_can_be_used() -> None:
    assert names_canonical("<file:///a>; rel=canonical")
    assert names_canonical("</a>; rel=canonical, </b>; rel=canonical")
    assert not names_canonical("</canonical>; rel=next")
    assert not names_canonical("</a>; rel=canonical; anchor=x")


_pieces = st.sampled_from(["<", ">", ";", ",", "=", '"', "\\", " ", "rel", "canonical", "anchor"])
_headers = st.one_of(
    st.text(max_size=60),
    st.lists(st.one_of(_pieces, st.text(max_size=3)), max_size=30).map("".join),
)


@settings(max_examples=tries(500))
@given(_headers)
@example("</\ud800>; rel=canonical")
def test_any_header_has_a_canonical_page_that_is_normalised_or_none(header: str) -> None:
    found = canonical_of(header, URL)
    assert found is None or (normalise(found) == found and names_canonical(header))


_token = st.text("abcxyz-*", min_size=1, max_size=6)
_plain = st.tuples(_token.filter(lambda name: name not in ("rel", "anchor")), _token).map("=".join)
_quoted = st.tuples(_token, st.text(max_size=12)).map(
    lambda one: one[0] + '="' + one[1].replace("\\", "\\\\").replace('"', '\\"') + '"'
)
_parameters = st.lists(st.one_of(_plain, _quoted, _token), max_size=4)


@settings(max_examples=tries(500))
@given(st.lists(st.tuples(_token, _parameters), max_size=3), _parameters, _parameters)
def test_other_links_and_parameters_never_hide_the_canonical_one(
    others: list[tuple[str, list[str]]], before: list[str], after: list[str]
) -> None:
    links = [f"</{path}>" + "".join(f" ;{one}" for one in more) for path, more in others]
    named = "</a>" + "".join(f";{one}" for one in [*before, 'rel="canonical"', *after])
    assert canonical_of(" , ".join([*links, named]), URL) == A


@pytest.mark.parametrize(
    "header",
    [
        "</a>; rel=canonical" + "; x" * 100_000,
        "<" * 200_000 + "rel=canonical",
        "</a>;" + " " * 200_000 + "canonical",
        '</a>; rel="' + "\\" * 200_001 + "canonical",
        "</a>; rel=next, " * 20_000 + "canonical",
    ],
)
@pytest.mark.timeout(60)
def test_a_header_made_to_be_slow_is_not(header: str) -> None:
    assert canonical_of(header, URL) in (None, A)

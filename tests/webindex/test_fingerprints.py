"""Fingerprints: equal texts, similar texts, and pages too short to compare by their words."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webindex.fingerprints import MIN_TOKENS, NEAR, bands, hamming, simhash, text_hash, tokens
from webindex.pages import Page, parse
from webindex.sample import sample_path
from webindex.warc import Capture, read_captures

LONG = " ".join(f"word{i}" for i in range(MIN_TOKENS))
SHORT = " ".join(f"word{i}" for i in range(MIN_TOKENS - 1))


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return [
        parse(one.body, one.url, one.content_type)
        for one in read_captures(sample_path())
        if isinstance(one, Capture) and one.body
    ]


def test_tokens_are_lower_case_words_and_single_chinese_or_japanese_characters() -> None:
    assert tokens("The café, ISO-8859 Über_alles!") == ["the", "café", "iso", "8859", "über_alles"]
    assert tokens("東京タワー 333m") == ["東", "京", "タ", "ワ", "ー", "333m"]
    assert tokens("아파치 서버") == ["아파치", "서버"]


def test_pages_with_enough_words_are_equal_if_their_texts_are() -> None:
    assert text_hash(LONG, tokens(LONG), b"one") == text_hash(LONG, tokens(LONG), b"other")
    other = LONG + " more"
    assert text_hash(other, tokens(other), b"one") != text_hash(LONG, tokens(LONG), b"one")


def test_short_pages_are_equal_only_if_their_bytes_are() -> None:
    words = tokens(SHORT)
    assert text_hash(SHORT, words, b"one") == text_hash(SHORT, words, b"one")
    assert text_hash(SHORT, words, b"one") != text_hash(SHORT, words, b"other")
    assert simhash(words) is None


def test_fingerprints_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert text_hash(LONG, tokens(LONG), b"") == "text:9897f9d76d92b99e2173a5c89ab09f2e"
    assert text_hash("", [], b"") == "bytes:99aa06d3014798d86001c324468d497f"
    assert simhash(tokens(LONG)) == 8373279929857708587


def test_a_changed_word_in_a_long_real_page_is_a_near_duplicate(pages: list[Page]) -> None:
    generator = random.Random(2007)
    near = far = 0
    for page in pages:
        words = tokens(page.text)
        if len(words) < 500:
            continue
        before = simhash(words)
        words[generator.randrange(len(words))] = "changed"
        after = simhash(words)
        assert before is not None and after is not None
        near += hamming(before, after) <= NEAR
        far += hamming(before, after) > NEAR
    assert near + far > 50
    assert near > 10 * far


def test_a_passage_that_is_repeated_counts_once() -> None:
    words = [f"word{i}" for i in range(1000)]
    once, often = simhash(words), simhash(words + ["buy", "now", "cheap"] * 1000)
    assert once is not None and often is not None
    assert hamming(once, often) <= NEAR


def test_no_two_different_pages_of_the_sample_are_near_duplicates(pages: list[Page]) -> None:
    known = {page.text: page.simhash for page in pages if page.simhash is not None}
    texts = list(known)
    close = [
        (one[:60], other[:60])
        for i, one in enumerate(texts)
        for other in texts[:i]
        if hamming(known[one], known[other]) <= NEAR
    ]
    assert len(texts) > 100
    assert close == []


def test_the_sample_has_duplicates_and_they_share_their_hash(pages: list[Page]) -> None:
    at = {page.url: page for page in pages}
    front = at["https://www.sqlite.org/"], at["https://www.sqlite.org/index.html"]
    assert front[0].text_hash == front[1].text_hash
    assert len({page.text_hash for page in pages}) < len(pages)


@given(
    st.integers(0, 2**64 - 1), st.lists(st.integers(0, 63), min_size=0, max_size=NEAR, unique=True)
)
def test_near_duplicates_share_a_band(fingerprint: int, flipped: list[int]) -> None:
    other = fingerprint
    for bit in flipped:
        other ^= 1 << bit
    assert hamming(fingerprint, other) == len(flipped)
    assert any(a == b for a, b in zip(bands(fingerprint), bands(other), strict=True))


def test_the_bands_are_the_whole_fingerprint() -> None:
    assert bands(0x1111_2222_3333_4444) == (0x4444, 0x3333, 0x2222, 0x1111)

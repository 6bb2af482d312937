"""Fingerprints: equal texts, similar texts, and pages too short to compare by their words."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import xxhash
from from_scratch import sample
from hypothesis import given
from hypothesis import strategies as st

from webindex.page.fingerprints import (
    MIN_TOKENS,
    Sketch,
    heading,
    own_name,
    sketch,
    text_hash,
    tokens,
)
from webindex.page.pages import Page, parse

LONG = " ".join(f"word{i}" for i in range(MIN_TOKENS))
SHORT = " ".join(f"word{i}" for i in range(MIN_TOKENS - 1))


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    return [parse(one.body, one.url, one.content_type) for one in sample() if one.body]


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
    assert sketch(SHORT, words, "title", "") is None


def test_fingerprints_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert text_hash(LONG, tokens(LONG), b"") == "text:9897f9d76d92b99e2173a5c89ab09f2e"
    assert text_hash("", [], b"") == "bytes:99aa06d3014798d86001c324468d497f"
    known = sketch(LONG, tokens(LONG), "title", "name")
    assert known is not None
    assert xxhash.xxh3_64_hexdigest(known.pack()) == "1f3280c4d5d931bb"
    assert xxhash.xxh3_64_hexdigest(" ".join(known.bands).encode()) == "e1e172b8999a84c8"


def sketched(text: str, title: str = "On oolong", main_heading: str = "") -> Sketch:
    plain = heading(title)
    found = sketch(text, tokens(text), plain, own_name(main_heading, plain))
    assert found is not None
    return found


def article(*words: str, of: int = 300) -> str:
    """A text about tea, and some more words."""
    rng = random.Random(of)
    drawn = " ".join(f"w{rng.randrange(of // 2)}x" for _ in range(of))
    return f"oolong {drawn} {' '.join(words)}"


def test_a_changed_word_of_prose_in_a_long_real_page_is_a_near_duplicate(pages: list[Page]) -> None:
    generator = random.Random(2007)
    seen = 0
    for page in pages:
        words = tokens(page.text)
        if len(words) < 300:
            continue
        before = sketch(page.text, words, page.title, "")
        prose = [n for n, one in enumerate(words) if one.isalpha() and f" {one} " in page.text]
        words[generator.choice(prose)] = "changed"
        after = sketch(page.text, words, page.title, "")
        assert before is not None and after is not None
        assert before.is_near(after) and after.is_near(before)
        assert not set(before.bands).isdisjoint(after.bands)
        seen += 1
    assert seen > 50


@pytest.mark.parametrize(
    ("mine", "its"), [("kettle", "teacup"), ("TeaPot", "TeaCup")], ids=["words", "names"]
)
def test_pages_that_each_repeat_a_word_of_their_own_are_no_near_duplicates(
    mine: str, its: str
) -> None:
    one = sketched(article(f"{mine} pours", f"see {mine}"))
    other = sketched(article(f"{its} pours", f"see {its}"))
    assert not one.is_near(other) and not other.is_near(one)
    assert one.is_near(sketched(article(f"{mine} pours", f"see {mine}", "and water")))


def test_pages_with_other_main_headings_are_no_near_duplicates() -> None:
    text = article()
    one = sketched(text, main_heading="Tea pot")
    assert not one.is_near(sketched(text, main_heading="Tea cup"))
    assert one.is_near(sketched(text)), "only what both have is compared"


def test_a_banner_around_a_text_leaves_it_a_near_duplicate_and_another_half_does_not() -> None:
    one = sketched(article())
    assert one.is_near(sketched(article(*(f"banner{n}" for n in range(20)))))
    assert not one.is_near(sketched(article(*(f"more{n}" for n in range(120)))))


def test_a_page_under_the_title_of_its_site_must_be_more_alike() -> None:
    banner = article(*(f"banner{n}" for n in range(20)))
    assert not sketched(article(), "Our site").is_near(sketched(banner, "Our site"))
    assert sketched(article(), "Our site").is_near(sketched(article("one"), "Our site"))


def test_dates_and_numbers_leave_a_text_a_near_duplicate() -> None:
    one = sketched(article("updated 12 May 2024, version 1.2.3", "and 2.0.0b1 or 2.0.0b1"))
    assert one.is_near(
        sketched(article("updated 3 June 2025, version 1.4.7", "and 2.0.5rc2 or 2.0.5rc2"))
    )


def test_headings_ignore_dates_and_versions() -> None:
    assert heading("Tea 3.12.0 API") == heading("Tea 3.14.2 API") == "tea # api"
    assert heading("Tea Server Version 2.4") == heading("Tea Server Version 2.7")
    assert heading("News of May 2024") == heading("News of June 2025")
    assert heading("Vector 2") != heading("Vector 3")
    notes = "Tea 1.4.3 release notes — Tea 3.2.25 documentation"
    assert heading(notes) == heading("Tea 1.4.3 release notes — Tea 4.0.1 documentation")
    assert heading(notes) != heading("Tea 1.4.4 release notes — Tea 3.2.25 documentation")
    assert heading("Index (<)") != heading("Index (>)")


PROSE = "oolong " + " ".join("".join(random.Random(n).choices("abcdef", k=7)) for n in range(150))


@pytest.mark.parametrize("name", ["TeaPot", "tea_pot", "getTea", "pot2tea"])
def test_each_of_two_pages_with_an_identifier_of_its_own_is_a_page_of_its_own(name: str) -> None:
    one, other = sketched(f"{PROSE} {name}"), sketched(f"{PROSE} {name}Lid")
    assert not one.is_near(other) and not other.is_near(one)
    assert one.is_near(sketched(f"{PROSE} an added sentence")), "an editor may have replaced it"
    twice = sketched(f"{PROSE} {name} or {name}")
    assert not twice.is_near(sketched(PROSE)) and not sketched(PROSE).is_near(twice)


def test_an_identifier_that_is_nearly_all_that_differs_is_the_subject_of_a_page() -> None:
    method, virtual = sketched(f"{PROSE} gtk_tea_pour"), sketched(f"{PROSE} pour")
    assert not method.is_near(virtual) and not virtual.is_near(method)
    assert not method.is_near(sketched(PROSE)) and not sketched(PROSE).is_near(method)
    assert sketched(f"{PROSE} see gtk_tea_pour too").is_near(sketched(PROSE))


SHORT_PROSE = " ".join(PROSE.split()[:36])


def test_a_short_page_repeats_no_word_and_has_no_identifier_that_the_other_one_lacks() -> None:
    plain = sketched(SHORT_PROSE)
    assert plain.is_near(sketched(f"{SHORT_PROSE} an added sentence"))
    for words in ("module of a module", "with get_tea in it"):
        other = sketched(f"{SHORT_PROSE} {words}")
        assert not plain.is_near(other) and not other.is_near(plain)
        assert sketched(PROSE).is_near(sketched(f"{PROSE} {words}")), "a longer page may"


def test_main_headings_ignore_dates_and_versions() -> None:
    text = article()
    one = sketched(text, main_heading="tea-1.2.3: Release notes of May 2024")
    assert one.is_near(sketched(text, main_heading="tea-1.4.0: Release notes of June 2025"))


@pytest.mark.parametrize(
    "around",
    [
        "<address>Generated by a program 1.9</address>",
        '<div class="prev-next-area"><a href="a">previous</a> <a href="b">next</a></div>',
        '<ul class="pagination"><li>Page 3 of 5</li></ul>',
        '<div class="navigationbar"><ul><li>Tea 5.15</li></ul></div>',
        '<div class="ttc" id="a"><div class="ttdoc">What a pot is</div></div>',
        '<div role="tooltip">What a pot is</div>',
    ],
)
def test_what_a_site_or_generator_puts_around_a_text_is_not_compared(around: str) -> None:
    head = "<title>Pots</title><h1>Pots</h1>"
    one, other = (
        parse(f"{head}<p>{PROSE}</p>{more}".encode(), "https://a.example/", "text/html")
        for more in ("", around)
    )
    assert one.text_hash == other.text_hash
    more = parse(f"{head}<p>{PROSE}</p><p>What a pot is</p>".encode(), one.url, "text/html")
    assert more.text_hash != one.text_hash


def test_ordinals_versions_and_words_in_other_case_are_no_identifiers() -> None:
    for mine, its in (("HTML Tea", "XML Cup"), ("12th 10am", "13th 11am"), ("v2 rc1", "v3 beta4")):
        assert sketched(f"{PROSE} {mine}").is_near(sketched(f"{PROSE} {its}"))


def test_no_two_different_pages_of_the_sample_are_near_duplicates(pages: list[Page]) -> None:
    known = {page.text_hash: page for page in pages if page.sketch is not None}
    close = [
        (one.url, other.url)
        for one, other in combinations(known.values(), 2)
        if one.heading == other.heading
        and one.sketch is not None
        and other.sketch is not None
        and one.sketch.is_near(other.sketch)
    ]
    assert len(known) > 100
    assert close == []


words_of_pages = st.lists(st.integers(0, 2**29 - 1), min_size=1, max_size=1500, unique=True)


@given(words_of_pages, words_of_pages, st.booleans())
def test_nearness_is_the_same_from_both_pages_and_survives_storing(
    mine: list[int], its: list[int], alike: bool
) -> None:
    if alike:
        its = [*mine[3:], *its[:3]]
    one, other = (
        Sketch(200, 0, True, tuple(sorted(word << 3 for word in set(words)))[:1024])
        for words in (mine, its)
    )
    assert one.is_near(other) == other.is_near(one)
    assert one.is_near(one)
    assert Sketch.unpack(one.pack()) == one

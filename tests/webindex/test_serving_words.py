"""Texts are split into words by Python where it finds what Tantivy's regular expressions find."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tantivy
from from_scratch import sample
from hypothesis import given
from hypothesis import strategies as st

from webindex.serving.content import (
    _NAME,
    _NAMED,
    _OTHERS,
    _WORD,
    LONGEST_WORD_BYTES,
    Analyzers,
    _folded,
)

ANALYZERS = Analyzers()
PLAIN = [one for one in map(chr, range(0x2C00)) if not _OTHERS.search(one)]


def found(pattern: str, text: str) -> list[str]:
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(pattern)).build().analyze(text)


def assert_split_alike(text: str) -> None:
    folded = _folded(text)
    assert ANALYZERS.split(text) == found(_WORD, folded)
    assert ANALYZERS.identifiers(text) == found(_NAME, text)
    assert ANALYZERS.name(text) == " ".join(
        ANALYZERS._folding.analyze(" ".join(found(_NAMED, folded)))
    )
    places = ANALYZERS.places(folded, ANALYZERS.words(text))
    assert ANALYZERS.words(text) == [word for _, _, word in places]
    assert [folded[start:end] for start, end, _ in places] == [
        word for word in ANALYZERS.split(text) if len(word.encode()) < LONGEST_WORD_BYTES
    ]
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(places))


def test_every_plain_character_has_the_same_meaning_for_python_and_tantivy() -> None:
    assert len(PLAIN) > 4000
    for each in ("a{}b c", "{} a", "a1{} "):
        assert_split_alike("\n".join(each.format(one) for one in PLAIN))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pg_dump $HOME x86_64 and 2024 of I/O, naïve; ½ Ⅷ ²x",
        "ΕΛΛΗΝΙΚΆ и русский текст",
        "e\u0301tude re\u0301sume\u0301 utf8\u0301_x",  # Marks belong to words.
        "東京 タワー 한국어 ภาษาไทย mixed東京text",
        "w" * 81 + " w " + "w" * 80 + " w " + "w" * 79 + " short",
    ],
)
def test_texts_are_split_as_tantivy_splits_them(text: str) -> None:
    assert_split_alike(text)


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("aB1_$ é\u0301東\u05d0½-\t"))
def test_any_text_is_split_as_tantivy_splits_it(text: str) -> None:
    assert_split_alike(text)


def test_real_pages_are_split_as_tantivy_splits_them() -> None:
    for one in sample()[::10]:
        assert_split_alike(one.body.decode("utf-8", "replace"))

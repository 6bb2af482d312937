"""What the site asks of the search index beyond hits: counts by host and language, respelling."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_documents import document as any_document

from webindex.serving import IndexReadError, TantivyIndex
from webindex.serving.spelling import differences, nearest, respell

document = partial(any_document, host="a.example")


def test_hits_are_counted_by_host_and_language_with_and_without_filters(
    index: TantivyIndex,
) -> None:
    index.apply(
        [
            document("1", "word one"),
            document("2", "word two"),
            document("3", "word three", language="de"),
            document("4", "word four", host="b.example", language="de"),
            document("5", "word five", host="c.example", language=None),
            document("6", "other six", host="c.example"),
        ]
    )
    assert index.facet("host", "word") == [("a.example", 3), ("b.example", 1), ("c.example", 1)]
    assert index.facet("language", "word") == [("de", 2), ("en", 2)]
    assert index.facet("host", "word", limit=1) == [("a.example", 3)]
    without = [("a.example", 2), ("b.example", 1), ("c.example", 1)]
    assert index.facet("host", "word -three") == without
    assert index.facet("host", "word", language="de") == [("a.example", 1), ("b.example", 1)]
    assert index.facet("language", "word", host="a.example") == [("en", 2), ("de", 1)]
    for host, count in index.facet("host", "word", language="en"):
        assert index.search("word", host=host, language="en").total == count
    for nothing in ("absent", "", "-x"):
        assert index.facet("host", nothing) == []


def test_what_was_deleted_or_replaced_is_not_counted(index: TantivyIndex) -> None:
    index.apply([document("1", "word"), document("2", "word"), document("3", "word")])
    index.apply([document("1", "word", host="b.example", epoch=2)], [("2", 2)])
    assert index.facet("host", "word") == [("a.example", 1), ("b.example", 1)]


def test_a_misspelt_word_becomes_the_nearest_one_that_documents_have(index: TantivyIndex) -> None:
    index.apply(
        [
            document("1", "the query planner of the database"),
            document("2", "the query optimizer of the database"),
            document("3", "café queries"),
        ]
    )
    assert index.suggest("qeury planer") == "query planner"
    assert index.suggest('databse "exact phrse" -optimzer') == 'database "exact phrse" -optimzer'
    assert index.suggest("uqery") == "query"
    assert index.suggest("cafè") is None, "accents do not make another word"
    for right in ("query planner", "database", "", "-", "qry", "zzzzzzzz", "mod_rewrte"):
        assert index.suggest(right) is None


def test_words_of_deleted_and_replaced_documents_are_not_suggested(index: TantivyIndex) -> None:
    # Of so many in one segment, a few that go cause no merge.
    index.apply(
        [
            document("1", "a quackenbush"),
            document("2", "a whippletree"),
            *(document(f"other {n}", f"word{n}") for n in range(100)),
        ]
    )
    assert index.suggest("quackenbish") == "quackenbush"
    assert index.suggest("whipplatree") == "whippletree"
    index.apply([document("2", "nothing of the sort", epoch=2)], [("1", 2)])
    assert index.suggest("quackenbish") is None and index.suggest("whipplatree") is None


def test_a_suggestion_needs_an_index_that_can_be_read(index: TantivyIndex, tmp_path: Path) -> None:
    (tmp_path / "index").rename(tmp_path / "away")
    with pytest.raises(IndexReadError):
        index.suggest("word")
    with pytest.raises(IndexReadError):
        index.facet("host", "word")


def test_of_words_as_near_the_most_frequent_is_meant() -> None:
    def begins(prefix: str) -> list[tuple[str, int]]:
        found = [("table", 5), ("cable", 50), ("tablet", 9), ("tables", 90), ("taxable", 900)]
        return [(word, count) for word, count in found if word.startswith(prefix)]

    assert nearest("tabel", begins) == "table"
    assert nearest("tablez", begins) == "tables"
    assert nearest("tabular", begins) is None
    assert nearest("wordless", begins) is None


def test_only_single_words_are_asked_about() -> None:
    asked: list[str] = []

    def better(word: str) -> str | None:
        asked.append(word)
        return None

    assert respell("unknown -excluded abc", lambda text: [text], better) is None
    assert asked == ["unknown"]


def test_only_the_misspelt_word_is_replaced_and_not_the_same_letters_elsewhere() -> None:
    def respelt(query: str) -> str | None:
        better = {"wich": "which", "lnux": "linux"}.get
        return respell(query, str.split, better)

    assert respelt("wich  sandwich") == "which sandwich"
    assert respelt('wich "wich sand" -wich') == 'which "wich sand" -wich'
    assert respelt("lnux wich") == "linux which"
    assert respelt('plain   "wich"') is None


@pytest.mark.parametrize(
    ("one", "other", "steps"),
    [("word", "word", 0), ("word", "wrod", 1), ("word", "words", 1), ("word", "wold", 1),
     ("word", "ord", 1), ("", "abc", 3), ("planer", "planner", 1), ("ca", "abc", 3)],
)  # fmt: skip
def test_differences_are_counted_by_letters(one: str, other: str, steps: int) -> None:
    assert differences(one, other) == steps


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_differences_go_both_ways_and_are_bounded(one: str, other: str) -> None:
    steps = differences(one, other)
    assert steps == differences(other, one)
    assert abs(len(one) - len(other)) <= steps <= max(len(one), len(other))
    assert (steps == 0) == (one == other)

"""Queries that are more than words, and what a page is worth beside its words."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import serving_documents as documents_of
from hypothesis import given
from hypothesis import strategies as st

from webindex.page.urls import host
from webindex.serving import NotAnIndexError, SearchResults, ServingDocument, TantivyIndex
from webindex.serving.content import MOST_AUTHORITY, authority, url_words
from webindex.serving.tantivy import documents


def document(url: str, text: str = "", **fields: Any) -> ServingDocument:
    return documents_of.document(url, text, url=url, host=host(url), **fields)


def found(results: SearchResults) -> list[str]:
    return [hit.url for hit in results.hits]


# --- A URL --------------------------------------------------------------------------------

PAGE = "https://www.example.org/docs/start.html"


@pytest.fixture
def site(index: TantivyIndex) -> TantivyIndex:
    about = "www.example.org docs start html " * 5
    index.apply(
        [
            document(
                PAGE,
                "How to begin",
                duplicates=("http://mirror.example.com/begin?page=1",),
                aliases=("https://example.org/old", "https://short.example/s/"),
            ),
            document("https://example.net/about", about, title="docs start html", rank=500.0),
            document("https://www.example.org/", "Home of the docs, not of the start", rank=50.0),
        ]
    )
    return index


@pytest.mark.parametrize(
    "query",
    [
        PAGE,
        f"  {PAGE}  ",
        "www.example.org/docs/start.html",
        "example.org/docs/start.html",
        "http://www.example.org/docs/start.html",
        "HTTPS://WWW.Example.ORG:443/docs/start.html#top",
        f"{PAGE}?utm_source=mail",
        "http://mirror.example.com/begin?page=1",
        "mirror.example.com/begin?page=1",
        "https://example.org/old",
        "short.example/s",
    ],
)
def test_a_url_finds_its_page_first_also_by_duplicates_redirects_and_other_spellings(
    site: TantivyIndex, query: str
) -> None:
    assert found(site.search(query))[0] == PAGE


def test_what_a_url_says_is_found_after_its_page(site: TantivyIndex) -> None:
    results = site.search("www.example.org/docs/start.html")
    assert found(results) == [PAGE, "https://example.net/about"]
    assert results.total == 2
    assert found(site.search("www.example.org"))[0] == "https://www.example.org/"


def test_filters_and_counts_hold_for_a_url_as_well(site: TantivyIndex) -> None:
    assert found(site.search(PAGE, host="example.net")) == ["https://example.net/about"]
    assert found(site.search(PAGE, host="www.example.org")) == [PAGE]
    assert site.search(PAGE, language="de").total == 0
    assert dict(site.facet("host", PAGE)) == {"example.net": 1, "www.example.org": 1}


@pytest.mark.parametrize(
    "query", ["https://example.org/nowhere", "http://[broken/", "a..b", ".", "ftp://example.org/"]
)
def test_what_is_no_url_of_a_page_is_only_words(site: TantivyIndex, query: str) -> None:
    assert PAGE not in found(site.search(query))


def test_a_url_among_other_words_is_words(site: TantivyIndex) -> None:
    assert found(site.search(f"begin {PAGE}")) == []
    assert found(site.search("begin -example.net")) == [PAGE]


# --- The words of URLs --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://www.sqlite.org/lang_vacuum.html", "sqlite.org/lang_vacuum"),
        ("http://example.org/a/b.PHP?id=3", "example.org/a/b?id=3"),
        ("https://example.org/caf%C3%A9/men%C3%BC", "example.org/café/menü"),
        ("https://xn--bcher-kva.example/", "bücher.example/"),
        ("https://xn--\u00ff.example/", "xn--\u00ff.example/"),
        ("https://example.org/html/", "example.org/html/"),
    ],
)
def test_a_url_is_searched_by_the_words_that_tell_it_from_others(url: str, words: str) -> None:
    assert url_words(url) == words


def test_words_of_host_and_path_find_a_page_and_those_of_every_url_do_not(
    index: TantivyIndex,
) -> None:
    index.apply([document("https://www.xn--bcher-kva.example/lang_vacuum/caf%C3%A9.html")])
    for query in ("vacuum", "lang_vacuum", "bücher", "café"):
        assert index.search(query).total == 1, query
    for query in ("https", "www", "html", "c3"):
        assert index.search(query).total == 0, query


# --- Words that are not finished ----------------------------------------------------------


@pytest.fixture
def words(index: TantivyIndex) -> TantivyIndex:
    index.apply(
        [
            document("https://a.example/1", "postgres is a database"),
            document("https://a.example/2", "postgresql is another one"),
            document("https://b.example/3", "the post office", title="Post"),
            document("https://b.example/4", "ポスト"),
        ]
    )
    return index


def test_the_last_word_finds_what_begins_with_it_if_no_page_has_it_as_it_is(
    words: TantivyIndex,
) -> None:
    assert sorted(found(words.search("postg"))) == ["https://a.example/1", "https://a.example/2"]
    assert found(words.search("database postg")) == ["https://a.example/1"]
    assert found(words.search("postg -database")) == []
    assert found(words.search("-database postg")) == ["https://a.example/2"]
    assert words.facet("host", "postg") == [("a.example", 2)]
    [hit] = words.search("another postg").hits
    assert [run for run, matched in hit.snippet if matched] == ["postgresql", "another"]


@pytest.mark.parametrize("query", ["post", "postg database", '"postg"', "po", "is -postg x"])
def test_other_words_are_never_stretched(words: TantivyIndex, query: str) -> None:
    stretched = {"https://a.example/1", "https://a.example/2"}
    assert not stretched & set(found(words.search(query)))


def test_a_misspelt_last_word_is_still_respelt(words: TantivyIndex) -> None:
    assert words.search("databsae").total == 0
    assert words.suggest("databsae") == "database"


# --- What a page is worth -----------------------------------------------------------------


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.integers(0, 10**9))
def test_authority_grows_with_the_rank_and_is_bounded(one: float, other: float, links: int) -> None:
    low, high = sorted((one, other))
    assert 1 <= authority(low, 0) <= authority(high, 0) <= MOST_AUTHORITY
    assert 1 <= authority(0.0, links) <= authority(10.0, 0)
    if one > 0:
        assert authority(one, links) == authority(one, 0)


def test_once_there_is_a_rank_it_alone_counts(index: TantivyIndex) -> None:
    index.apply(
        [
            document("https://a.example/many", "words", inlinks=10_000, rank=0.2),
            document("https://a.example/good", "words", inlinks=3, rank=8.0),
            document("https://a.example/new", "words", inlinks=30),
            document("https://a.example/unknown", "words"),
        ]
    )
    order = [url.rpartition("/")[2] for url in found(index.search("words"))]
    assert order == ["good", "new", "many", "unknown"]


# --- Words in other forms, names, and what a page is called ------------------------------------


@pytest.mark.parametrize(
    ("language", "text", "query"),
    [
        ("en", "it indexes the pages", "indexed page"),
        ("de", "die Häuser der Stadt", "haus"),
        ("fr", "les chevaux continuaient", "continuer"),
        ("ta", "பழைய புத்தகத்தை படித்தேன்", "புத்தகங்கள்"),
        (None, "it indexes the pages", "indexes"),
    ],
)
def test_a_word_is_found_in_its_other_forms_by_the_language_of_the_page(
    index: TantivyIndex, language: str | None, text: str, query: str
) -> None:
    index.apply([document("https://a.example/1", text, language=language)])
    assert index.search(query).total == 1
    [hit] = index.search(query).hits
    assert any(matched for _, matched in hit.snippet)
    assert index.search(f'"{query}"').total == (text.count(query) > 0), "quoted, as it is"


@pytest.mark.parametrize(
    ("language", "text", "query"),
    [
        ("fr", "la verbosité du serveur", "verbosite"),
        ("pt", "a configuração do servidor", "configuracao"),
        ("es", "la configuración del servidor", "configuracion"),
        ("en", "where résumés are kept", "resumes"),
    ],
)
def test_a_word_is_found_without_its_accents_where_its_stem_is_another_one(
    index: TantivyIndex, language: str, text: str, query: str
) -> None:
    index.apply([document("https://a.example/1", text, language=language)])
    assert index.search(query).total == 1


def test_another_language_has_other_forms(index: TantivyIndex) -> None:
    index.apply([document("https://a.example/1", "die Häuser", language="en")])
    index.apply([document("https://a.example/2", "ein Hund", language="de")])
    assert index.search("haus die").total == 0


def test_little_words_need_not_be_there_unless_there_are_no_others(index: TantivyIndex) -> None:
    index.apply(
        [document("https://a.example/1", "sorting lists"), document("https://b.example/", "how")]
    )
    assert found(index.search("how do I sort a list?")) == ["https://a.example/1"]
    assert index.search("how do I sort a list?").words == 2
    assert found(index.search("how")) == ["https://b.example/"]
    assert index.search('"how" sort').total == 0


@pytest.mark.parametrize("query", ["the who ?", "? the who", "the – who", "the 🎉 who", "the -x ?"])
def test_what_has_no_word_in_it_does_not_make_little_words_needless(
    index: TantivyIndex, query: str
) -> None:
    index.apply([document("https://a.example/1", "the who"), document("https://b.example/", "x")])
    assert found(index.search(query)) == ["https://a.example/1"]


@pytest.mark.parametrize("name", ["__init__", "$libdir", "stat_io", "$1"])
def test_an_identifier_is_found_before_what_has_its_parts(index: TantivyIndex, name: str) -> None:
    parts = name.strip("_$").replace("_", " ")
    index.apply(
        [
            document("https://a.example/parts", f"{parts} " * 9, title=parts),
            document("https://a.example/longer", f"pg_{name.strip('$_')}_x " * 9),
            document("https://a.example/name", f"a long text that mentions ({name}) once " * 3),
        ]
    )
    assert found(index.search(name))[0] == "https://a.example/name"


@pytest.mark.parametrize(
    "fields",
    [
        {"title": "8.15. Red herons — The manual"},
        {"title": "Birds", "headings": ("Herons", "Red herons")},
        {"title": "Birds", "anchors": (("red herons", 2), ("Next", 90))},
    ],
)
def test_what_is_called_like_the_query_comes_first(
    index: TantivyIndex, fields: dict[str, Any]
) -> None:
    index.apply(
        [
            document("https://a.example/much", "red herons " * 30, title="On red herons and more"),
            document("https://a.example/called", "of birds and red herons", **fields),
        ]
    )
    assert found(index.search("red herons"))[0] == "https://a.example/called"


@pytest.mark.parametrize("name", ["os.path", "Node.js", "pg_hba.conf"])
def test_what_is_called_like_a_query_that_may_be_a_url_comes_first(
    index: TantivyIndex, name: str
) -> None:
    index.apply(
        [
            document("https://a.example/much", f"{name} " * 30, title=f"On {name} and {name}"),
            document("https://a.example/called", "of other things", title=f"{name} — The manual"),
        ]
    )
    assert found(index.search(name))[0] == "https://a.example/called"


def test_a_long_list_of_links_comes_after_what_it_lists_and_navigation_is_worth_nothing(
    index: TantivyIndex,
) -> None:
    listed = "herons, wrasse, " * 1000
    index.apply(
        [
            document("https://a.example/genindex", listed, title="Index of herons", linked=0.95),
            document("https://a.example/herons", "Of all birds, herons are tall. " * 3),
            document("https://a.example/next", "Other birds", anchors=(("Next", 900),)),
        ]
    )
    assert found(index.search("herons"))[0] == "https://a.example/herons"
    assert index.search("next").total == 1, "by its address alone"


# --- Dates ----------------------------------------------------------------------------------


def test_hits_can_be_those_changed_since_a_day_and_the_newest_first(index: TantivyIndex) -> None:
    for number, changed in enumerate(["2023-12-31T23:59:59Z", "2024-03-01T10:00:00Z", ""]):
        text = "heron " * (3 - number)
        index.apply([document(f"https://a.example/{number}", text, changed=changed)])
    urls = [f"https://a.example/{number}" for number in (1, 0, 2)]
    assert found(index.search("heron", newest=True)) == urls
    assert found(index.search("heron", since=date(2024, 1, 1))) == urls[:1]
    assert found(index.search("heron", since=date(2023, 12, 31), newest=True)) == urls[:2]
    assert index.facet("host", "heron", since=date(2024, 1, 1)) == [("a.example", 1)]
    assert index.search("heron").hits[0].changed == "2023-12-31T23:59:59Z"


class _OfEqualDatesAny:
    """A searcher that orders documents of one date otherwise for each number of hits.

    As Tantivy's own may where an index has several segments.
    """

    def __init__(self, searcher: Any) -> None:
        self._searcher = searcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._searcher, name)

    def search(self, query: Any, limit: int, offset: int = 0, **how: Any) -> Any:
        if how.get("order_by_field") is None:
            return self._searcher.search(query, limit=limit, offset=offset, **how)
        found = self._searcher.search(query, limit=1_000, **how)
        dates = self._searcher.fast_field_values("changed", [one for _, one in found.hits])
        chance = random.Random(limit + offset)
        order = sorted(range(len(dates)), key=lambda at: (-dates[at], chance.random()))
        hits = [found.hits[at] for at in order[offset : offset + limit]]
        return SimpleNamespace(hits=hits, count=found.count)


def test_pages_by_date_have_every_hit_once_though_many_have_one_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TantivyIndex(tmp_path) as index:
        dates = [f"2024-01-0{1 + number % 3}" for number in range(20)]
        for batch in (0, 10):
            some = enumerate(dates[batch : batch + 10], batch)
            index.apply(
                [
                    document(f"https://a.example/{number}", "heron", changed=one)
                    for number, one in some
                ]
            )
        searcher = index._searcher
        monkeypatch.setattr(index, "_searcher", lambda: _OfEqualDatesAny(searcher()))
        pages = [
            index.search("heron", newest=True, limit=3, offset=offset) for offset in range(0, 21, 3)
        ]
    hits = [hit for page in pages for hit in page.hits]
    assert {page.total for page in pages} == {20}
    assert [hit.changed for hit in hits] == sorted(dates, reverse=True)
    assert len({hit.cluster for hit in hits}) == 20


# --- A query that is still typed ----------------------------------------------------------------


def test_a_query_is_completed_to_names_of_pages_and_to_words_beside_those_typed(
    index: TantivyIndex,
) -> None:
    index.apply(
        [
            document("https://a.example/1", "make a table", title="3. Create Table — Manual"),
            document("https://a.example/2", "make tablets", title="Create Tablespace"),
            document("https://a.example/3", "tabby cats", title="Cats"),
        ]
    )
    assert index.complete("Create Tab")[:2] == ["create table", "create tablespace"]
    assert index.complete("make tab") == ["make table", "make tablets"]
    assert index.complete("tab")[:3] == ["tabby", "table", "tablets"]
    for query in ("", "ta", "make tab ", "zzz", "-", '"make tab"', "\ud800tab("):
        assert index.complete(query) == [], query
    # Vowels of many scripts are marks.
    index.apply([document("https://a.example/4", "हिन्दी में", title="हिन्दी व्याकरण", language="hi")])
    assert index.complete("हिन्दी") == ["हिन्दी व्याकरण", "हिन्दी"]


def test_a_query_is_not_completed_to_what_only_deleted_documents_have(index: TantivyIndex) -> None:
    index.apply(
        [
            document("https://a.example/1", "zebulon was there", title="Zebulon Quackenbush"),
            document("https://a.example/2", "zebuline is a word", title="Zebra"),
            # Of so many in one segment, one that goes causes no merge.
            *(document(f"https://b.example/{n}", f"word{n}") for n in range(100)),
        ]
    )
    found_first = index.complete("zebul")
    # OpenSearch does not list words.
    assert found_first in (["zebulon quackenbush", "zebuline", "zebulon"], ["zebulon quackenbush"])
    index.apply([], [("https://a.example/1", 2)])
    assert index.complete("zebul") == [one for one in found_first if one == "zebuline"]
    assert found(index.search("zebulon")) == [], "it is no beginning of another word"
    index.apply([document("https://a.example/3", "zebulons are many")])
    assert found(index.search("zebulon")) == ["https://a.example/3"], "it is unfinished now"


# --- The format ---------------------------------------------------------------------------


def test_an_index_of_another_format_is_refused_in_one_sentence_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "FORMAT", documents.FORMAT - 1)
    with TantivyIndex(tmp_path) as old:
        old.apply([document(PAGE, "words")])
    monkeypatch.undo()
    for create in (True, False):
        with pytest.raises(NotAnIndexError, match="made by another program or version") as caught:
            TantivyIndex(tmp_path, create=create)
        assert f"format is {documents.FORMAT}" in str(caught.value)
        assert "'webindex reindex'" in str(caught.value)
    monkeypatch.setattr(documents, "FORMAT", documents.FORMAT - 1)
    with TantivyIndex(tmp_path, create=False) as old:
        assert old.search("words").total == 1


# --- When no document has all the words -----------------------------------------------------


@pytest.fixture
def fruit(index: TantivyIndex) -> TantivyIndex:
    texts = {
        "one": "apple",
        "two": "apple banana",
        "three": "apple banana cherry",
        "side": "green apple pie and banana and cherry",
    }
    index.apply([document(f"https://{name}.org/", text) for name, text in texts.items()])
    return index


def test_the_documents_with_the_most_words_are_found_if_none_has_all(fruit: TantivyIndex) -> None:
    asked = "apple banana cherry damson elder"
    assert fruit.search(asked).total == 0
    results = fruit.search(asked, partly=True)
    assert sorted(found(results)) == ["https://side.org/", "https://three.org/"]
    assert (results.total, results.words, results.matched) == (2, 5, 3)
    assert fruit.facet("host", asked) == []
    assert dict(fruit.facet("host", asked, partly=True)) == {"side.org": 1, "three.org": 1}


def test_a_document_with_all_the_words_leaves_the_others_out(fruit: TantivyIndex) -> None:
    results = fruit.search("apple banana", partly=True)
    assert "https://one.org/" not in found(results)
    assert (results.total, results.words, results.matched) == (3, 2, 2)
    assert results == fruit.search("apple banana")


def test_documents_with_less_than_half_of_the_words_are_not_found(fruit: TantivyIndex) -> None:
    assert fruit.search("apple damson", partly=True).matched == 1
    assert fruit.search("apple damson elder", partly=True).total == 0
    assert fruit.search("damson", partly=True).total == 0


def test_a_phrase_and_what_is_excluded_stay_required(fruit: TantivyIndex) -> None:
    results = fruit.search('"green apple" banana damson', partly=True)
    assert found(results) == ["https://side.org/"]
    assert (results.words, results.matched) == (3, 2)
    assert fruit.search('"apple green" banana damson', partly=True).total == 0
    without = fruit.search("banana cherry damson -pie", partly=True)
    assert found(without) == ["https://three.org/"]


def test_a_filter_does_not_change_how_many_words_are_required(fruit: TantivyIndex) -> None:
    """Else the numbers beside the filters would count other documents than they lead to."""
    assert fruit.search("apple banana cherry", host="one.org", partly=True).total == 0

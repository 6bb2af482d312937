"""What a serving index promises to exporters and to whoever searches."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from serving_documents import document

from webindex.serving import (
    DamagedIndexError,
    IndexReadError,
    IndexWriteError,
    InvalidDocumentError,
    NotAnIndexError,
    SearchResults,
    ServingDocument,
    ServingError,
    TantivyIndex,
)
from webindex.serving.query import Clause, parse_query
from webindex.serving.snippet import runs_of, spans_of


def found(results: SearchResults) -> list[str]:
    return [hit.cluster for hit in results.hits]


# Applying


def test_a_document_comes_back_as_it_was_put(index: TantivyIndex) -> None:
    put = ServingDocument(
        cluster="c1",
        epoch=2**63 - 1,
        url="https://例え.example/?q=<b>&x='\"",
        title="Ünïcode 🦀 \x00 title",
        text="line\r\nbreaks\ttabs \u202e and 한국어",
        language=None,
        host="例え.example",
        anchors=(("здесь", 3), ("", 1)),
        duplicates=("http://a.example/", "http://b.example/"),
        inlinks=4,
        rank=0.25,
        aliases=("http://old.example/a?b=%20",),
    )
    assert index.apply([put]) == 1
    assert index.get("c1") == put
    assert index.get("c") is None


def test_applying_the_same_batch_twice_leaves_one_document_of_each(index: TantivyIndex) -> None:
    batch = [document("a", "apple"), document("b", "apple")]
    deletes = [("gone", 3)]
    assert index.apply(batch, deletes) == 3
    assert index.apply(batch, deletes) == 0
    assert index.count() == 2
    assert index.search("apple").total == 2


def test_a_stale_put_never_replaces_a_newer_document(index: TantivyIndex) -> None:
    index.apply([document("a", "new", epoch=5)])
    assert index.apply([document("a", "old", epoch=4)]) == 0
    assert found(index.search("new")) == ["a"]
    assert found(index.search("old")) == []
    assert index.apply([document("a", "latest", epoch=6)]) == 1
    assert found(index.search("latest")) == ["a"]
    assert found(index.search("new")) == []


def test_a_deletion_outlives_the_older_puts_that_arrive_after_it(index: TantivyIndex) -> None:
    index.apply([document("a", "word", epoch=5)])
    assert index.apply([], [("a", 4)]) == 0
    assert index.count() == 1
    assert index.apply([], [("a", 5)]) == 1
    assert index.apply([document("a", "word", epoch=5)]) == 0
    assert (index.count(), index.get("a"), found(index.search("word"))) == (0, None, [])
    assert list(index.clusters()) == []
    assert index.apply([document("a", "word", epoch=6)]) == 1
    assert list(index.clusters()) == [("a", 6)]


def test_the_newest_change_of_a_cluster_in_one_batch_wins(index: TantivyIndex) -> None:
    puts = [document("a", "two", epoch=2), document("a", "one", epoch=1), document("b", epoch=1)]
    assert index.apply(puts, [("a", 1), ("b", 2)]) == 2
    assert list(index.clusters()) == [("a", 2)]
    assert found(index.search("two")) == ["a"]


def test_epochs_survive_reopening(tmp_path: Path) -> None:
    with TantivyIndex(tmp_path) as index:
        index.apply([document("a", "new", epoch=7)], [("b", 7)])
    with TantivyIndex(tmp_path, create=False) as index:
        assert index.apply([document("a", "old", epoch=6), document("b", "old", epoch=6)]) == 0
        assert list(index.clusters()) == [("a", 7)]


def test_clusters_lists_every_document_once(index: TantivyIndex) -> None:
    batch = [document(f"c{n}", "text", epoch=n) for n in range(500)]
    index.apply(batch)
    index.apply([], [(f"c{n}", 1_000) for n in range(0, 500, 5)])
    listed = list(index.clusters())
    assert sorted(listed) == sorted((f"c{n}", n) for n in range(500) if n % 5)
    assert index.count() == 400


def test_many_small_batches_leave_few_files_to_search(index: TantivyIndex, tmp_path: Path) -> None:
    for n in range(40):
        index.apply([document(f"c{n}", "word")])
    segments = json.loads((tmp_path / "index" / "meta.json").read_text())["segments"]
    assert index.search("word").total == 40
    assert len(segments) <= 10


# Searching


def test_title_and_anchors_rank_over_the_body(index: TantivyIndex) -> None:
    filler = "the server reads its configuration at start "
    linked = (("server start", 20),)
    index.apply(
        [
            document("body", filler + "rewrite " + filler, title="Server start", anchors=linked),
            document("title", filler + filler, title="Rewrite", anchors=linked),
            document("anchor", filler + filler, title="Module", anchors=(("rewrite rules", 20),)),
        ]
    )
    assert found(index.search("rewrite")) == ["title", "anchor", "body"]


def test_links_do_not_outweigh_a_page_about_the_words(index: TantivyIndex) -> None:
    filler = "many other things are said on this long page " * 20
    index.apply(
        [
            document("about", "how to tune vacuum", title="Vacuum tuning", inlinks=2),
            document("home", filler + "vacuum", title="Home", inlinks=10_000, rank=50.0),
        ]
    )
    assert found(index.search("vacuum")) == ["about", "home"]


def test_every_word_is_needed_and_a_minus_excludes(index: TantivyIndex) -> None:
    index.apply([document("a", "red apple pie"), document("b", "red cherry pie")])
    assert sorted(found(index.search("red pie"))) == ["a", "b"]
    assert found(index.search("red apple")) == ["a"]
    assert found(index.search("pie -apple")) == ["b"]
    assert found(index.search("pie --apple")) == found(index.search("pie apple")) != ["b"]
    assert found(index.search('"red pie"')) == []
    assert found(index.search('"cherry pie"')) == ["b"]
    assert index.search("-apple") == SearchResults((), 0)


def test_words_joined_by_punctuation_are_found_whole_and_in_part(index: TantivyIndex) -> None:
    index.apply([document("a", "use std::vector in mod_rewrite"), document("b", "vector of std")])
    assert found(index.search("std::vector")) == ["a"]
    assert found(index.search("mod_rewrite")) == ["a"]
    assert found(index.search("rewrite")) == ["a"]
    assert found(index.search("https://example.org/b")) == ["b"]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Un café près de la forêt", "cafe PRES"),
        ("Un cafe pres", "café"),
        (unicodedata.normalize("NFD", "résumé"), "résumé"),
        ("résumé", unicodedata.normalize("NFD", "résumé")),
        ("Die Straße", "strasse"),
        ("Настройка сервера", "НАСТРОЙКА"),
        ("서버는 요청을 처리합니다", "서버"),
        ("アパッチのサーバーを設定する", "サーバー"),
        ("全文検索エンジンについて", "検索エンジン"),
        ("数据库管理系统", "管理"),
        ("ภาษาไทยไม่มีช่องว่าง", "ไทย"),
        ("हिन्दी में लिखा", "हिन्दी"),
        ("\uff21\uff22\uff23 full width", "abc"),
        ("İSTANBUL'da bir gün", "istanbul"),
        ("istanbul", "İstanbul"),
        ("Η ΟΔΟΣ", "οδός"),
        ("ἐν ἀρχῇ", "εν αρχη"),
        ("Ещё раз", "еще"),
        ("Росси\u0301я", "россия"),
        ("كـــتاب جديد", "كتاب"),
        ("كِتَاب", "كتاب"),
        ("שָׁלוֹם עולם", "שלום"),
        ('נשיא ארה"ב ביקר אתמול בצה"ל', 'ארה"ב בצה"ל'),
        ("a turntable for 12 and 7 inches", '12" turntable 7"'),
        ("Das Donaudampfschiff", "donau\u00addampf\u200bschiff"),
    ],
)
def test_words_of_many_languages_are_found(index: TantivyIndex, text: str, query: str) -> None:
    index.apply([document("there", text), document("other", "nothing of the kind")])
    assert found(index.search(query)) == ["there"]


def test_letters_in_another_order_are_not_a_word(index: TantivyIndex) -> None:
    index.apply([document("a", "索検と버서")])
    assert found(index.search("検索")) == []
    assert found(index.search("서버")) == []


def test_host_and_language_filter_and_the_total_counts_all_pages(index: TantivyIndex) -> None:
    index.apply(
        [document(f"e{n}", "word", host="a.example") for n in range(30)]
        + [document(f"d{n}", "word", host="b.example", language="de") for n in range(3)]
        + [document("x", "word", host="b.example", language=None)]
    )
    assert index.search("word", limit=5).total == 34
    assert sorted(found(index.search("word", host="b.example"))) == ["d0", "d1", "d2", "x"]
    assert index.search("word", host="b.example", language="de").total == 3
    assert index.search("word", host="nowhere.example").total == 0
    pages = [found(index.search("word", limit=10, offset=n)) for n in (0, 10, 20, 30, 40)]
    assert [len(page) for page in pages] == [10, 10, 10, 4, 0]
    assert len({cluster for page in pages for cluster in page}) == 34


HOSTILE = [
    *('"', '"never closed', 'apple"', "title:apple", "nofield:apple", "apple:", "AND"),
    *("AND OR NOT", "apple AND", "(apple", "[a TO", "{* TO *}", "apple^", "apple~9999", "/.*/"),
    *("*", "+-apple", "\\", "deleted:true", "\x00\ud800\uffff apple", "<script>alert(1)</script>"),
    *("", " \t\n", "-" * 10_000, "a " * 10_000, "検" * 10_000, "x" * 100_000),
]


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_no_query_is_an_error(index: TantivyIndex, query: str) -> None:
    index.apply([document("a", "apple title nofield alert script 1")], [("gone", 1)])
    results = index.search(query)
    assert found(results) in ([], ["a"])


def test_stray_syntax_only_separates_words(index: TantivyIndex) -> None:
    index.apply([document("a", "error no such file")])
    for query in ["error: no such file", '"error no such', "error AND file", "(error) [file]"]:
        assert found(index.search(query)) == ["a"], query


def test_a_query_is_read_as_words_phrases_and_exclusions() -> None:
    assert parse_query('red "apple pie" -cherry -"ice cream" e-mail AND') == [
        Clause("red"),
        Clause("apple pie", quoted=True),
        Clause("cherry", excluded=True),
        Clause("ice cream", excluded=True, quoted=True),
        Clause("e-mail"),
    ]


@pytest.mark.parametrize(
    "arguments", [{"limit": 0}, {"limit": 1_001}, {"offset": -1}, {"offset": 9_001}]
)
def test_a_page_outside_the_limits_is_refused(
    index: TantivyIndex, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="must be within"):
        index.search("word", **arguments)


# Snippets


def test_a_snippet_marks_the_words_and_leaves_escaping_to_the_caller(index: TantivyIndex) -> None:
    text = "ä" * 50 + " filler" * 100 + " the <b>Café</b> & the forêt. " + "filler " * 100
    index.apply([document("a", text)])
    (hit,) = index.search("cafe foret").hits
    assert [run for run, matched in hit.snippet if matched] == ["Café", "forêt"]
    shown = "".join(run for run, _ in hit.snippet)
    assert shown in text and "<b>Café</b> & the" in shown and len(shown) <= 250


def test_a_snippet_marks_phrases_not_their_single_letters(index: TantivyIndex) -> None:
    index.apply([document("a", "ンとエと検と索の検索エンジンと mod rewrite mod_rewrite")])
    (hit,) = index.search("検索エンジン mod_rewrite").hits
    marked = [run for run, matched in hit.snippet if matched]
    assert marked == ["検索エンジン", "mod rewrite", "mod_rewrite"]


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        (
            "数字的次数，据说库存数据很多。" * 20 + "那里没有。" * 200 + "数据库管理",
            "数据库",
            "数据库",
        ),
        ("ยาวมาก บทนำ " * 200 + "ภาษาไทยไม่มีช่องว่าง", "ภาษาไทย", "ภาษาไทย"),
        (
            "the server may start here. " * 60 + "filler " * 300 + "start the server",
            '"start the server"',
            "start the server",
        ),
        ("önce " * 300 + "İstanbul'da bir gün", "istanbul", "İstanbul"),
        ("вступление " * 300 + "ещё Росси\u0301я", "россия", "Росси\u0301я"),
        ("مقدمة " * 300 + "هذا كِتَابٌ جديد", "كتاب", "كِتَابٌ"),
        ("הקדמה " * 300 + "שָׁלוֹם עולם", "שלום", "שָׁלוֹם"),
        # Words that have all letters of a phrase, or that go on with a mark.
        ("one filename, no email. " * 60 + "a file name", '"file name"', "file name"),
        ("an email. " * 200 + "an e-mail", "e-mail", "e-mail"),
        ("वे करें। " * 200 + "यह कर है", "कर", "कर"),
        ("वे हैं किताब। " * 200 + "यह है किताब", '"है किताब"', "है किताब"),
        # Other words that begin alike, and more of them than a library takes for one.
        ("the https and httpx of http. " * 60 + "filler " * 99 + "start httpd", "httpd", "httpd"),
        (" ".join(f"httpd{n}" for n in range(1_500)) + " start httpd here", "httpd", "httpd"),
    ],
)
def test_a_snippet_shows_the_place_that_matches_in_any_script(
    index: TantivyIndex, text: str, query: str, marked: str
) -> None:
    index.apply([document("a", text, language=None)])
    (hit,) = index.search(query).hits
    assert [run for run, matched in hit.snippet if matched] == [marked]
    assert "".join(run for run, _ in hit.snippet) in text


def test_a_hit_by_its_title_shows_how_the_text_begins(index: TantivyIndex) -> None:
    text = "How it begins. " * 50
    index.apply([document("a", text, title="Zebra 斑马"), document("b", title="Zebra 斑马")])
    for query in ("zebra", "斑马"):
        snippets = {hit.cluster: hit.snippet for hit in index.search(query).hits}
        assert snippets["a"] == (("How it begins. " * 13 + "How", False),), "no part of a word"
        assert snippets["b"] == ()
    index.apply([document("c", "始まり " + "文" * 300, title="Quagga")])
    [hit] = index.search("quagga").hits
    assert len(hit.snippet[0][0]) == 200


def test_marks_that_touch_or_overlap_are_one_run() -> None:
    words = [(2, 3, "a"), (4, 5, "b"), (6, 7, "c"), (8, 9, "a")]
    spans = spans_of(words, {("a", "b"): 0, ("b", "c"): 1})
    runs = runs_of("é a b c a", [(start, end) for start, end, _ in spans])
    assert runs == (("é ", False), ("a b c", True), (" a", False))


def test_a_hit_carries_what_a_page_of_results_shows(index: TantivyIndex) -> None:
    told: dict[str, Any] = {"duplicates": ("http://m.example/",), "inlinks": 9, "rank": 2.5}
    index.apply([document("a", "word", title="T", **told)])
    (hit,) = index.search("word").hits
    assert (hit.rank, hit.aliases) == (2.5, ())
    assert (hit.url, hit.title, hit.host) == ("https://example.org/a", "T", "example.org")
    assert (hit.duplicates, hit.inlinks, hit.language) == (("http://m.example/",), 9, "en")
    assert hit.score > 0


# Bad input and bad folders


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": ""},
        {"cluster": "x" * 1_001},
        {"cluster": "\ud800"},
        {"epoch": -1},
        {"epoch": 2**63},
        {"inlinks": -1},
        {"rank": float("nan")},
    ],
    ids=str,
)
def test_a_document_that_no_index_can_hold_is_refused(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"cluster": "a", **change}
    with pytest.raises(InvalidDocumentError):
        document(**fields)


def test_a_bad_delete_refuses_the_whole_batch(index: TantivyIndex) -> None:
    with pytest.raises(InvalidDocumentError):
        index.apply([document("a")], [("", 1)])
    assert index.count() == 0


def test_lone_surrogates_become_the_replacement_character() -> None:
    assert document("a", "x\ud800y").text == "x\ufffdy"


def test_a_very_long_text_is_held_and_found(index: TantivyIndex) -> None:
    text = "começo " + "palavra " * 1_000_000 + "x" * 100_000 + " fim"
    index.apply([document("a", text)])
    assert found(index.search("fim")) == ["a"]
    held = index.get("a")
    assert held is not None and held.text == text


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotAnIndexError, match=r"notes\.txt"):
        TantivyIndex(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_reader_does_not_make_an_index(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NotAnIndexError):
            TantivyIndex(folder, create=False)
    assert os.listdir(tmp_path) == []


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAnIndexError, match="file"):
        TantivyIndex(tmp_path / "file")


def test_another_programs_index_is_not_taken_for_ours(tmp_path: Path) -> None:
    import tantivy

    tantivy.Index(tantivy.SchemaBuilder().add_text_field("x").build(), path=str(tmp_path))
    with pytest.raises(NotAnIndexError, match="another program or version"):
        TantivyIndex(tmp_path)


@pytest.mark.parametrize("damage", ["broken meta.json", "no meta.json", "short file"])
def test_a_damaged_index_says_so_and_what_to_do(tmp_path: Path, damage: str) -> None:
    with TantivyIndex(tmp_path) as index:
        index.apply([document("a", "word")])
    if damage == "broken meta.json":
        (tmp_path / "meta.json").write_text('{"segments": [')
    elif damage == "no meta.json":
        (tmp_path / "meta.json").unlink()
    else:
        (store,) = tmp_path.glob("*.store")
        os.truncate(store, 10)
    with pytest.raises(DamagedIndexError, match="reindex"):
        TantivyIndex(tmp_path)


@pytest.mark.parametrize("kind", ["store", "fast", "pos", "term"])
def test_an_index_of_which_a_file_lost_its_beginning_says_so(tmp_path: Path, kind: str) -> None:
    with TantivyIndex(tmp_path) as index:
        index.apply([document("a", "word")])
    (file,) = tmp_path.glob(f"*.{kind}")
    content = file.read_bytes()
    file.write_bytes(content[len(content) // 2 :])
    with (
        pytest.raises(DamagedIndexError, match=r"damaged: .*reindex"),
        TantivyIndex(tmp_path) as index,
    ):
        index.search("word")


def test_an_index_that_is_damaged_while_it_is_open_says_so(
    index: TantivyIndex, tmp_path: Path
) -> None:
    index.apply([document("a", "word")])
    (tmp_path / "index" / "meta.json").write_text("")
    calls = (
        lambda: index.search("word"),
        lambda: index.get("a"),
        lambda: list(index.clusters()),
        lambda: index.apply([document("b")]),
    )
    for call in calls:
        with pytest.raises(DamagedIndexError, match="reindex"):
            call()


def test_an_index_whose_folder_is_gone_says_so(index: TantivyIndex, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(IndexReadError, match="Could not search, for"):
        index.search("word")
    with pytest.raises(IndexWriteError, match="batch of 1 "):
        index.apply([document("a")])


def test_a_closed_index_says_so(index: TantivyIndex) -> None:
    index.close()
    index.close()
    for call in (lambda: index.apply([document("a")]), lambda: index.search("a")):
        with pytest.raises(ServingError, match="closed"):
            call()

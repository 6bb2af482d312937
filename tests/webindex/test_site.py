"""The site answers searches, refuses in sentences, and lets nothing but our own page run."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest
from site_client import CANONICAL, DUPLICATE, Page, Served, article, empty, made, served, site
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from percola import RepositoryError
from percola.serve import HEADERS, MAX_TARGET, Names, duration, is_loopback, listen, make_server
from webindex.serving import SearchResults
from webindex.serving.located import LocatedIndex
from webindex.serving.naming import telling
from webindex.serving.query import MAX_CHARACTERS
from webindex.serving.tantivy.index import emptied
from webindex.site import app, shown
from webindex.site.app import THREADS
from webindex.site.searching import HITS, pages
from webindex.text_format import harmless

__all__ = ["empty", "site"]


# --- Searching ------------------------------------------------------------------------------


def test_the_first_page_has_one_field_with_the_focus_and_says_how_much_there_is(
    site: Served,
) -> None:
    page = site.page("/")
    (field,) = page.css("input[type=search]")
    assert "autofocus" in field.attributes
    assert page.css_first(f"label[for={field.attributes['id']}]") is not None
    assert "role" not in field.attributes, "without the script there are no completions"
    assert f"{site.index.count()} documents to search" in page.words(".welcome")
    assert not page.css(".hit")


def test_a_hit_shows_title_address_marked_words_language_links_and_its_duplicates(
    site: Served,
) -> None:
    page = site.page("/", q='"self-contained" database engine')
    hit = next(one for one in page.css(".hit") if CANONICAL in (one.html or ""))
    link = hit.css_first("h2 a")
    assert link is not None and link.text().strip() == "SQLite Home Page"
    assert link.attributes["href"] == CANONICAL
    assert set((link.attributes["rel"] or "").split()) == {"noopener", "noreferrer", "nofollow"}
    held = next(h for h in site.index.search("self-contained").hits if h.url == CANONICAL)
    text = " ".join(hit.text().split())
    assert "English" in text and f"{held.inlinks} links lead here" in text
    assert telling(held.anchors)[0][0] in [quoted.text() for quoted in hit.css(".said q")]
    assert "1 duplicate folded in" in text and DUPLICATE in (hit.html or "")
    assert "self-contained" in {mark.text().lower() for mark in hit.css(".snippet mark")}
    (field,) = page.css("input[type=search]")
    assert field.attributes["value"] == '"self-contained" database engine'


def test_pages_of_results_have_every_hit_once_and_keep_query_and_filter_in_the_address(
    site: Served,
) -> None:
    total = site.index.search("the", host="www.sqlite.org").total
    assert total > 2 * HITS
    page = site.page("/", q="the", host="www.sqlite.org")
    assert f"{total} documents" in page.words(".total")
    found = page.all(".hit h2")
    stories = [node.attributes["href"] for node in page.css(".hit .story")]
    while following := [
        node.attributes["href"] or ""
        for node in page.css(".paging a")
        if node.text() == str(len(stories) // HITS + 1)
    ]:
        assert "q=the" in following[0] and "host=www.sqlite.org" in following[0]
        page = site.page(following[0])
        found += page.all(".hit h2")
        stories += [node.attributes["href"] for node in page.css(".hit .story")]
    assert len(stories) == len(set(stories)) == total
    assert page.css_first("ol.hits").attributes["start"] != "1"  # type: ignore[union-attr]


def test_hosts_and_languages_are_counted_offered_and_taken_away_again(site: Served) -> None:
    page = site.page("/", q="index")
    offered = {
        node.text(deep=True).split()[0]: (node.attributes["href"] or "", node)
        for node in page.css(".filters a")
    }
    link, node = offered["www.sqlite.org"]
    expected = site.index.search("index", host="www.sqlite.org").total
    assert node.css_first(".number").text() == str(expected)  # type: ignore[union-attr]
    filtered = site.page(link)
    assert filtered.words(".total").startswith(f"{expected} documents")
    # The other hosts are still offered, with what they would have.
    hosts = ".filters section:first-child bdi"
    assert set(filtered.all(hosts)) == set(page.all(hosts))
    assert page.all(hosts)[0] != filtered.all(hosts)[0] == "www.sqlite.org", "seen in any window"
    assert filtered.link(".chip") == filtered.link(".filters .chosen") == "/?q=index"
    german = site.page("/", q="server", lang="de")
    assert german.css(".hit")
    assert {"German"} == set(german.all(".hit .meta > span:nth-of-type(1)"))


def test_nothing_found_says_what_to_try_and_what_may_have_been_meant(site: Served) -> None:
    page = site.page("/", q="databse optimzier", exactly="1")
    assert "Nothing found" in page.words(".total")
    assert page.words(".meant") == "Did you mean database optimizer?"
    assert "leave out a word" in page.words(".nothing")
    filtered = site.page("/", q="zzzzqqq", host="www.sqlite.org")
    assert filtered.link(".nothing li a") == "/?q=zzzzqqq"


def test_a_misspelt_query_shows_what_was_meant_and_leads_back(site: Served) -> None:
    page = site.page("/", q="databse optimzier")
    assert "These results are for database optimizer" in page.words(".meant")
    assert page.all(".hit h2") == site.page("/", q="database optimizer").all(".hit h2")
    exact = site.page(page.link(".meant a"))
    assert not exact.css(".hit") and "exactly=1" in page.link(".meant a")


def test_similar_words_are_looked_for_once_a_page(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def suggest(index: LocatedIndex, query: str) -> str | None:
        asked.append(query)
        return suggested(index, query)

    suggested = LocatedIndex.suggest
    monkeypatch.setattr(LocatedIndex, "suggest", suggest)
    page = site.page("/", q="databse zzzzqqq xxxxqqq")
    assert page.words(".meant") == "Did you mean database zzzzqqq xxxxqqq?"
    assert asked == ["databse zzzzqqq xxxxqqq"]


def test_hits_of_one_site_are_folded_on_a_page_and_stay_within_reach(site: Served) -> None:
    page = site.page("/", q="server")
    whole = [hit.url for hit in site.index.search("server", limit=HITS).hits]
    shown_whole = page.css(".hit h2 a")
    folded = page.css(".more li:not(:last-child) > a:first-child")
    assert folded and len(shown_whole) + len(folded) == HITS
    assert {node.attributes["href"] for node in [*shown_whole, *folded]} == set(whole)
    link = page.link(".more li:last-child a")
    assert "host=" in link
    assert not site.page(link).css(".more"), "of one site there is nothing to fold"


def test_hits_are_filtered_and_sorted_by_date_and_a_date_that_is_none_is_refused(
    site: Served,
) -> None:
    page = site.page("/", q="index")
    day = page.all(".hit time")[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", day)
    newest = site.page(page.link(".order a"))
    days = newest.all(".hit time")
    assert days == sorted(days, reverse=True)
    assert page.all(".filters section:last-child a")[0] == "in the last week"
    assert "since=" in page.link(".filters section:last-child a")
    none = site.page("/", q="index", since="2999-12-31")
    assert "Nothing found" in none.words(".total")
    assert "with these filters" in none.words(".nothing")
    assert none.link(".chip") == "/?q=index"
    assert none.all(".filters section:last-child a")[0] == "since 2999-12-31"
    assert none.link(".filters .chosen") == "/?q=index"
    assert site.page("/", q="index", since=day, lang="en").css(".hit")
    assert "is no date" in site.page("/", status=400, q="index", since="soon").words("main")


def test_what_is_typed_is_completed(site: Served) -> None:
    answer = site.client.get("/complete.json", params={"q": "Create Tab"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert all(words.startswith(("create tab", "Create tab")) for words in answer.json())
    assert answer.json()
    assert answer.headers["cache-control"] == "private, max-age=60", "for who deletes a letter"
    assert site.client.get("/complete.json").json() == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("?!", "There is no word in your query"),
        ("AND", "There is no word in your query"),
        ("x" * 100, "There is no word in your query that can be looked for"),
        ("-index", "only says what to leave out"),
    ],
)
def test_a_query_without_a_word_to_look_for_is_told_so(
    site: Served, query: str, sentence: str
) -> None:
    assert sentence in site.page("/", q=query).words(".total")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"q": "x" * (MAX_CHARACTERS + 1)}, "Your query has 501 characters and may have 500"),
        ({"q": "word " * 33}, "Your query has 33 words and phrases and may have 32"),
        ({"q": "index", "page": "0"}, "There is no page '0' of results"),
        ({"q": "index", "page": "x"}, "There is no page 'x' of results"),
        ({"q": "index", "page": "99999"}, "pages go from 1 to 901"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(
    site: Served, parameters: dict[str, str], words: str
) -> None:
    page = site.page("/", status=400, **parameters)
    assert words in page.words("main")
    [field] = page.css("#q")
    assert field.attributes["value"] == parameters["q"].strip(), "it can be changed"
    assert "maxlength" not in field.attributes, "a browser would cut off the rest and say nothing"


def test_a_page_beyond_the_last_one_leads_back(site: Served) -> None:
    page = site.page("/", q="index", page="800")
    assert page.link(".nothing a") == "/?q=index"


def test_an_empty_index_says_how_to_fill_it(empty: Served) -> None:
    assert "webindex load" in empty.page("/").words(".welcome")
    assert "Nothing found" in empty.page("/", q="index").words(".total")


def test_a_change_is_found_by_the_next_search(empty: Served) -> None:
    empty.process(made("https://a.example/", article("Alpha", "an unrepeatable xylograph")))
    assert empty.page("/", q="xylograph").all(".hit h2") == ["Alpha"]
    empty.process(made("https://a.example/", article("Alpha", "something else"), seconds=60))
    assert not empty.page("/", q="xylograph").css(".hit")


@pytest.mark.parametrize("query", ['"', "((", "a AND", 'a "b', "title:x^9", "\x00", "\ud800", "%"])
def test_no_query_breaks_the_page(site: Served, query: str) -> None:
    answer = site.client.get("/", params={"q": query.encode("utf-8", "surrogatepass")})
    assert answer.status_code == 200 and Page(answer.text).css_first("input[type=search]")


def test_paging_shows_both_ends_and_the_neighbourhood() -> None:
    assert pages(1, 1, str) == []
    assert [name for name, _ in pages(10, 20, str)] == (
        "1 … 7 8 9 10 11 12 13 … 20".split()  # noqa: SIM905
    )
    assert [link for name, link in pages(2, 3, str)] == ["1", "", "3"]


# --- What every answer carries, and who gets one --------------------------------------------

ANYTHING = [
    ("/", 200),
    ("/?q=index", 200),
    (f"/page?url={CANONICAL}", 200),
    ("/page", 200),
    ("/page?url=mailto://x", 400),
    ("/live", 200),
    ("/live.json", 200),
    ("/static/site.css", 200),
    ("/static/../app.py", 404),
    ("/static/%2e%2e/app.py", 404),
    ("/static/nothing.js", 404),
    ("/nothing", 404),
]


@pytest.mark.parametrize(("path", "status"), ANYTHING)
def test_every_answer_carries_the_headers_that_keep_scripts_out(
    site: Served, path: str, status: int
) -> None:
    answer = site.client.get(path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = dict(part.strip().split(" ", 1) for part in answer.headers[CSP].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"


CSP = "content-security-policy"


@pytest.mark.parametrize("path", [path for path, status in ANYTHING if "static" not in path])
def test_no_page_has_a_script_or_a_style_of_its_own(site: Served, path: str) -> None:
    for node in Page(site.client.get(path).text).every():
        if node.tag == "script":
            assert not node.text() and (node.attributes["src"] or "").startswith("/static/")
        assert node.tag != "style"
        assert not [name for name in node.attributes if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/", "/live.json", "/static/site.css"])
def test_the_site_can_only_be_read(site: Served, method: str, path: str) -> None:
    answer = site.client.request(method, path)
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD"
    assert answer.headers[CSP] == HEADERS["Content-Security-Policy"]


def test_answers_on_a_kept_connection_do_not_wait_for_acknowledgments() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # what asyncio asks for before it sets NODELAY


def test_head_is_answered_without_a_body(site: Served) -> None:
    answer = site.client.head("/?q=index")
    assert answer.status_code == 200 and not answer.content


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:x", "a b", "192.168.0.1"]
)
def test_who_calls_the_server_by_another_name_learns_nothing(site: Served, host: str) -> None:
    for path in ("/?q=index", "/live.json", "/static/percola/live.js"):
        answer = site.client.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert "does not answer to the name" in answer.text and "SQLite" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:80", "127.0.0.1:8080", "[::1]:8080"])
def test_loopback_has_several_names(site: Served, host: str) -> None:
    assert site.client.get("/", headers={"Host": host}).status_code == 200


def test_a_server_for_others_answers_to_addresses_and_to_names_it_was_given() -> None:
    names = Names("0.0.0.0", ("Index.example", "shop.example.:8443"))
    assert all(map(names.allow, ["10.0.0.7:8080", "[fe80::1]", "index.example", "localhost"]))
    assert names.allow("shop.example:8443") and names.allow("shop.example"), "whatever the port"
    assert not any(map(names.allow, ["evil.example", None, "", "x\ny"]))
    assert Names("192.168.0.1").allow("192.168.0.1") and is_loopback("127.0.0.9")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")


def test_an_address_that_is_too_long_is_not_read(site: Served) -> None:
    answer = site.client.get("/", params={"q": "x" * MAX_TARGET})
    assert answer.status_code == 414 and f"{MAX_TARGET:,} bytes" in answer.text


def test_a_request_that_outlives_the_server_is_told_so_and_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture, wait_until: Callable[..., object]
) -> None:
    asked, answered = Event(), Event()

    def wait(request: Request) -> Response:
        asked.set()
        answered.wait()
        return Response("too late")

    server = make_server(Starlette(routes=[Route("/", wait)]))
    server.config.timeout_graceful_shutdown = 0
    with listen("127.0.0.1", 0) as listening, ThreadPoolExecutor(2) as threads:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        serving = threads.submit(server.run, sockets=[listening])
        reader = threads.submit(httpx.get, address, timeout=60, trust_env=False)
        try:
            assert asked.wait(60)
            server.should_exit = True
            wait_until(lambda: "timeout graceful shutdown" in caplog.text, what="the end")
        finally:
            answered.set()
        assert reader.result().status_code == 503
        serving.result()
    assert not [one for one in caplog.records if one.exc_info]


# --- When something is wrong ----------------------------------------------------------------


def test_a_defect_shows_a_sentence_and_no_traceback(
    site: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_until: Callable[..., object],
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a secret of the server")

    monkeypatch.setattr(app, "search", broken)
    answer = site.client.get("/?q=x")
    assert answer.status_code == 500 and answer.headers[CSP] == HEADERS["Content-Security-Policy"]
    assert "could not be made" in answer.text
    assert "secret" not in answer.text and "Traceback" not in answer.text
    # The operator reads it, a moment after the answer has gone.
    wait_until(lambda: "a secret of the server" in caplog.text, what="the server's log")


def test_an_error_of_the_repository_is_its_sentence(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RepositoryError("The store cannot be read: <b>input/output error</b>.")

    monkeypatch.setattr(app.story, "tell", broken)
    page = site.story(CANONICAL, status=503)
    assert page.words(".sentence") == "The store cannot be read: <b>input/output error</b>."


def test_while_the_search_index_does_not_answer_the_live_view_does(
    site: Served, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., object]
) -> None:
    waiting, answered = [], Event()

    def search(*_: object, **__: object) -> SearchResults:
        waiting.append(True)
        answered.wait()
        return SearchResults((), 0)

    monkeypatch.setattr(LocatedIndex, "search", search)
    with ThreadPoolExecutor(2 * THREADS) as readers:
        found = [readers.submit(site.client.get, "/?q=index") for _ in range(2 * THREADS)]
        try:
            wait_until(lambda: len(waiting) == THREADS, what="searches that are not answered")
            for path in ("/live", "/live.json", "/static/site.css"):
                assert site.client.get(path, timeout=20).status_code == 200
            assert len(waiting) == THREADS
        finally:
            answered.set()
        assert {one.result().status_code for one in found} == {200}


def test_a_repository_that_is_gone_or_replaced_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    with served(folder) as site:
        site.process(made("https://a.example/", article("Alpha")))
        assert site.page("/", q="Alpha").css(".hit")
        folder.rename(tmp_path / "elsewhere")
        for path in ("/", "/page?url=https://a.example/", "/live"):
            assert f"The repository {folder} is gone" in site.page(path, status=503).words("main")
        assert site.client.get("/live.json").status_code == 503
        assert site.client.get("/static/site.css").status_code == 200
        folder.mkdir()
        shutil.copy(tmp_path / "elsewhere" / "percola.json", folder)
        assert "has been replaced" in site.page("/", status=503).words("main")
        shutil.rmtree(folder)
        (tmp_path / "elsewhere").rename(folder)
        assert site.page("/", q="Alpha").css(".hit")


def test_a_search_index_that_is_gone_is_named(tmp_path: Path) -> None:
    with served(tmp_path / "repo") as site:
        (tmp_path / "repo" / "serving").rename(tmp_path / "away")
        said = site.page("/", status=503, q="x").words(".sentence")
        assert "search index" in said and "'webindex reindex' makes it anew" in said
        (tmp_path / "away").rename(tmp_path / "repo" / "serving")
        assert "Nothing found" in site.page("/", q="x").words(".total")


def test_an_index_that_was_emptied_does_not_say_that_no_page_has_a_word(folder: Path) -> None:
    with served(folder) as site:
        with emptied(folder / "serving"):
            pass
        for page in (site.page("/", q="index"), site.page("/")):
            said = page.words("main")
            assert "is empty, and the repository has documents" in said
            assert "No document has" not in said and "webindex load" not in said


# --- How things are written -----------------------------------------------------------------


def test_control_characters_and_turns_of_direction_are_seen_and_do_nothing() -> None:
    assert harmless("a\x00b\u202ec\u2066d\x1b[31m\x85\ud800") == "a�b�c�d�[31m��"
    assert harmless("שלום\u200f, a\u200db\tc\n") == "שלום\u200f, a\u200db\tc\n"


def test_a_url_is_read_in_steps_and_never_misleads() -> None:
    assert shown.crumbs("https://e.org/a/%C3%A9t%C3%A9?q=%E4%B8%AD") == ["e.org", "a", "été?q=中"]
    # Slashes, spaces, and what cannot be seen stay as they are written.
    assert shown.crumbs("http://e.org/a%2Fb%20c%E2%80%AEd%FF") == [
        "http://e.org",
        "a%2Fb%20c%E2%80%AEd%FF",
    ]
    assert shown.brief("https://e.org/a/b", "https://e.org/", 30) == "a/b"
    assert shown.brief("https://f.org/a/b", "https://e.org/", 30) == "f.org/a/b"
    assert shown.brief("https://e.org/" + "x" * 40, "https://e.org/", 10) == "…" + "x" * 9
    assert shown.brief("https://e.org/", "https://e.org/x", 10) == "/"


def test_only_web_pages_are_linked() -> None:
    assert shown.web_link("https://e.org/") and shown.web_link("http://e.org/")
    assert not shown.web_link("javascript:alert(1)") and not shown.web_link("//e.org/")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0042, "4.2 ms"),
        (0.25, "250 ms"),
        (1.25, "1.2 s"),
        (42, "42 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (1e6, "12 days"),
    ],
)
def test_time_spans_have_one_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words

"""The command line answers in sentences, tables and JSON, and never with a traceback."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Answer, answer_of, environment
from from_scratch import compute, gone, recrawl, sample
from site_client import CANONICAL, DUPLICATE, article, made
from web_commands import call, command, is_error, run

import percola
from percola import Repository
from webindex import tables
from webindex.load.report import LoadReport
from webindex.load.transaction import load_captures
from webindex.observers.parse import parse
from webindex.page.urls import page_row
from webindex.sample import CHANGED_URL, CHANGED_WORDS, sample_path
from webindex.workers.processes import open_repository


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    with open_repository(str(folder)) as opened:
        yield opened


# --- search -------------------------------------------------------------------------------


def test_search_shows_title_url_snippet_duplicates_and_in_links(worked_off: Path) -> None:
    answer = call("search", "--repo", worked_off, "small", "fast", "self-contained")
    assert (answer.code, answer.err) == (0, "")
    lines = [line.rstrip() for line in answer.out.splitlines()]
    [start] = [n for n, line in enumerate(lines) if f"{CANONICAL}  " in line]
    end = lines.index("", start) if "" in lines[start:] else len(lines)
    assert re.fullmatch(r" +\d+  SQLite Home Page", lines[start - 1])
    assert re.search(r"\b\d+ links lead here · en · 1 duplicate$", lines[start])
    assert "self-contained" in " ".join(lines[start + 1 : end])
    assert lines[end - 1] == f"     = {DUPLICATE}"
    assert "\x1b" not in answer.out


def test_search_as_json_has_all_that_is_shown(worked_off: Path) -> None:
    found = call("search", "--repo", worked_off, "--json", "small fast self-contained").json
    [hit] = [one for one in found["hits"] if one["url"] == CANONICAL]
    assert found["query"] == "small fast self-contained"
    assert found["total"] >= len(found["hits"])
    assert hit["duplicates"] == [DUPLICATE]
    assert hit["title"] == "SQLite Home Page" and hit["inlinks"] > 10
    assert {words.lower() for words, match in hit["snippet"] if match} >= {"small", "fast"}


def test_a_program_searches_as_the_manual_shows(
    worked_off: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manual = Path(__file__).resolve().parents[2] / "docs" / "webindex.md"
    [program] = re.findall(
        r"^```python\n(import percola\nfrom webindex.*?)^```$", manual.read_text(), re.M | re.S
    )
    exec(program.replace("./index", str(worked_off)), {})
    *hits, last = capsys.readouterr().out.splitlines()
    options = ("--host", "www.postgresql.org", "--limit", 20)
    expected = call("search", "--repo", worked_off, "--json", *options, "query planner").json
    assert [line.split()[0] for line in hits] == [hit["url"] for hit in expected["hits"]]
    assert hits and last.startswith(f"{expected['total']} [('en', ")


def test_search_can_be_limited_in_number_host_and_language(worked_off: Path) -> None:
    answer = call("search", "--repo", worked_off, "--limit", 2, "index")
    assert re.match(r"\d+ pages found, the best 2:", answer.out)
    answer = call("search", "--repo", worked_off, "--limit", 2, "--newest", "index")
    assert re.match(r"\d+ pages found, the newest 2:", answer.out)
    options = ("--host", "httpd.apache.org", "--language", "ko", "--json", "--limit", 100)
    found = call("search", "--repo", worked_off, *options, "Apache").json
    assert found["total"] == len(found["hits"]) >= 10
    assert {(hit["host"], hit["language"]) for hit in found["hits"]} == {("httpd.apache.org", "ko")}
    shouted = ("--host", "HTTPD.Apache.org.", "--language", "KO-kr", *options[4:])
    assert call("search", "--repo", worked_off, *shouted, "Apache").json == found
    wrong = call("search", "--repo", worked_off, "--host", "https://httpd.apache.org/", "Apache")
    assert is_error(wrong, "is not the name of a host, as in 'www.example.com'")


def test_search_leaves_out_words_with_a_dash(worked_off: Path) -> None:
    def total(*words: str) -> int:
        return int(call("search", "--repo", worked_off, "--json", *words).json["total"])

    both, without = total("sqlite", "license"), total("sqlite", "-license")
    # A page that only has another form of the word is found with it, and is not left out.
    assert both > 0 and total("sqlite") > without >= total("sqlite") - both
    assert total("-license", "sqlite", "--limit", "3") == without
    answer = call("search", "--repo", worked_off, "sqlite", "--limit", "-1", "license")
    assert answer.code == 2 and "-1 is not in the range" in answer.err
    assert total('sqlite -"public domain"') == total("sqlite", '-"public domain"') > 0


def test_search_that_finds_nothing_says_so(worked_off: Path) -> None:
    answer = call("search", "--repo", worked_off, "pangolin", "[bold]sesquipedalian[/]")
    assert answer == Answer(0, "Nothing found for 'pangolin [bold]sesquipedalian[/]'.\n", "")
    found = call("search", "--repo", worked_off, "--json", "pangolin").json
    assert found == {"query": "pangolin", "total": 0, "words": 1, "matched": 1, "hits": []}
    limited = call("search", "--repo", worked_off, "--language", "xh", "sqlite")
    assert limited.out == "Nothing found for 'sqlite' with these options.\n"


@pytest.mark.parametrize("words", ['"', "((", 'a:"b', "[/]", "-", "AND", "*?^~", "\udcff", " "])
def test_search_takes_whatever_is_typed(worked_off: Path, words: str) -> None:
    assert call("search", "--repo", worked_off, words).code == 0


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("x" * 501, "Your query has 501 characters and may have 500"),
        ("sqlite " * 33, "Your query has 33 words and phrases and may have 32"),
    ],
)
def test_a_query_of_which_a_part_would_be_ignored_is_refused(
    worked_off: Path, query: str, words: str
) -> None:
    assert is_error(call("search", "--repo", worked_off, query.strip()), words)


@pytest.mark.parametrize(
    ("query", "words"), [("", "There is no word"), ("-sqlite", "only says what to leave out")]
)
def test_a_query_without_a_word_to_look_for_is_told_so(
    worked_off: Path, query: str, words: str
) -> None:
    answer = call("search", "--repo", worked_off, query)
    assert answer.code == 0 and words in answer.out


# --- explain ------------------------------------------------------------------------------


def test_explain_says_who_stands_for_a_duplicate_and_why(worked_off: Path) -> None:
    answer = call("explain", "--repo", worked_off, DUPLICATE)
    assert (answer.code, answer.err) == (0, "")
    for part in (
        "In search, under another page\n",
        f"It is one document with {CANONICAL}, which stands for it.\n",
        f"Its text is that of {CANONICAL}.\n",
        "Its URL is longer: 33 characters against 23.\n",
        "Links to it count for the page that stands for it.\n",
        "status 200  sample.warc.gz@",
        f"  * {CANONICAL}\n",
        f"    {DUPLICATE}\n        Its text is that of {CANONICAL}.\n",
        "Links that lead here: ",
    ):
        assert part in answer.out, part
    found = call("explain", "--repo", worked_off, "--json", DUPLICATE).json
    assert found["canonical"] == CANONICAL and found["size"] == 2
    assert [one["url"] for one in found["members"]] == [CANONICAL, DUPLICATE]
    assert found["known"] and len(found["versions"]) == 1


def test_explain_lists_some_links_and_says_how_many_there_are(worked_off: Path) -> None:
    found = call("explain", "--repo", worked_off, "--json", "--links", 1_000, DUPLICATE).json
    links = found["in_links"]
    assert links["total"] == len(links["first"]) == links["kinds"]["follow"] > 20
    # One of the links is from the page that stands for it, and so not from elsewhere.
    assert [one["url"] for one in links["first"] if not one["counts"]] == [CANONICAL]
    assert found["document_in_links"] >= links["total"] - 1
    answer = call("explain", "--repo", worked_off, "--links", 3, DUPLICATE)
    said = answer.out[answer.out.index("Links to this URL (") : answer.out.index("\n\nLinks that")]
    assert said.startswith(f"Links to this URL ({links['total']} follow)\n")
    shown = [line.split()[0] for line in said.splitlines()[1:4]]
    assert shown == [one["url"] for one in links["first"][:3]]
    assert said.endswith(f"… and {links['total'] - 3} more (--links shows more)")
    fewer = call("explain", "--repo", worked_off, "--json", "--links", 0, DUPLICATE).json
    assert fewer["in_links"] == {**links, "first": []}


def test_explain_of_a_page_without_duplicates(worked_off: Path) -> None:
    found = call("explain", "--repo", worked_off, "--json", CHANGED_URL + "#fragment").json
    assert (found["url"], found["size"]) == (CHANGED_URL, 1)
    assert found["reasons"] == ["No other page is one document with it: it stands for itself."]


def test_explain_shows_what_is_left_out_of_a_text(worked_off: Path) -> None:
    whole = call("explain", "--repo", worked_off, "--json", CANONICAL).json
    motto = "Small. Fast. Reliable. Choose any three."
    assert whole["left_out"] == [motto] and motto not in whole["excerpt"]
    said = call("explain", "--repo", worked_off, CANONICAL).out
    assert f"Left out of its text, as its host repeats it\n  {motto}\n" in said


def test_explain_of_an_unknown_page_tells_whether_something_links_to_it(worked_off: Path) -> None:
    answer = call("explain", "--repo", worked_off, "https://nowhere.example/")
    assert (answer.code, answer.err) == (1, "")
    assert "No capture of this page was loaded, and no page links to it." in answer.out
    answer = call("explain", "--repo", worked_off, "https://www.apache.org/")
    assert answer.code == 1
    assert re.search(r"No capture of this page was loaded, but \d+ pages link to it\.", answer.out)


def test_explain_follows_a_page_that_is_gone(repo: Repository, folder: Path) -> None:
    [page] = [one for one in sample() if one.url == DUPLICATE]
    load_captures(repo, [gone(page)], "later.warc.gz")
    answer = call("work", "--repo", folder, "--until-idle", "--processes", 1)
    assert answer.code == 0
    found = call("explain", "--repo", folder, "--json", DUPLICATE).json
    versions = [(one["status"], one["file"]) for one in found["versions"]]
    assert versions == [(404, "later.warc.gz"), (200, "sample.warc.gz")]
    assert found["canonical"] is None and found["members"] == [] and found["known"]
    [reason] = found["reasons"]
    assert reason.startswith("Its newest capture answered with status 404: the page is gone")


def test_explain_says_what_has_not_been_worked_off(tmp_path: Path) -> None:
    with open_repository(str(tmp_path / "repo"), create=True) as repo:
        load_captures(repo, sample()[:1], "sample.warc.gz")
    answer = call("explain", "--repo", tmp_path / "repo", sample()[0].url)
    assert answer.code == 0
    assert "The page waits to be parsed." in answer.out
    assert "'webindex work' works that off." in answer.out


# --- summary ------------------------------------------------------------------------------


def test_summary_counts_what_the_index_holds(repo: Repository, folder: Path) -> None:
    found = call("summary", "--repo", folder, "--json").json
    now = repo.snapshot()
    pages = list(now.scan(tables.pages, columns=[tables.fingerprint]))
    assert found["pages"] == found["indexable"] == len(pages) == 204
    assert (found["hosts"], found["redirects"], found["ranked"]) == (3, 1, None)
    sizes = [len(row.family(tables.member)) for row in now.scan(tables.clusters)]
    assert found["clusters"] == len(sizes) == sum(number for *_, number in found["sizes"])
    assert [1, 1, sizes.count(1)] in found["sizes"]
    assert found["documents"] + found["duplicates"] == 204
    hidden = made("https://hidden.example/", article("Hidden"), robots="noindex")
    load_captures(repo, [hidden], "later.warc.gz")
    assert call("work", "--repo", folder, "--until-idle", "--processes", 1).code == 0
    found = call("summary", "--repo", folder, "--json").json
    assert (found["hosts"], found["pages"], found["indexable"]) == (4, 205, 204)
    assert (found["clusters"], found["documents"], found["duplicates"]) == (184, 183, 21)
    report = {"rejected": {"damaged": 2}, "loaded": {"unavailable": 3, "unchanged": 4}}
    with repo.transaction() as t:
        t.set(tables.report, f"load/{t.start_ts:020}", report)
        for run, ranked in ((7, 100), (1_000, 204)):
            told = {"run": run, "started_ms": 0, "pages": ranked, "edges": 5, "written": 6}
            t.set(tables.report, f"rank/{run:020}", {**told, "error": None, "seconds": 1.0})
    found = call("summary", "--repo", folder, "--json").json
    assert (found["rejected"], found["unavailable"], found["unchanged"]) == (2, 3, 4)
    assert (found["ranked"]["run"], found["ranked"]["pages"]) == (1_000, 204)
    answer = call("summary", "--repo", folder)
    for part in (
        "Pages +205 of 4 hosts\n",
        "Not to be indexed +1 of these\n",
        r"Clusters +184: \d+ of one page, \d+ of 2",
        "Documents +183, with 21 duplicates folded in",
        "Ranks +computed 1970-01-01 00:00:00 UTC, over 204 pages",
        "Rejected records +2 over all loads\n",
        "Say nothing of a page +3 over all loads, as server errors do\n",
        "Reported as unchanged +4 over all loads\n",
    ):
        assert re.search(part, re.sub(" +\n", "\n", answer.out)), (part, answer.out)


# --- work ---------------------------------------------------------------------------------


def test_work_until_idle_ends_with_a_summary(repo: Repository, folder: Path) -> None:
    load_captures(repo, recrawl(), "recrawl.warc.gz")
    answer = run("work", "--repo", folder, "--processes", 2, "--until-idle", "--json")
    assert (answer.code, answer.err) == (0, "")
    numbers = answer.json
    latency = numbers.pop("latency")
    cells = compute([*sample(), *recrawl()]).cells
    tallies = [value for (_, _, column), value in cells.items() if column == "tally"]
    assert numbers["links"] == sum(one["links"] for one in tallies) > 1_000
    assert numbers["linked_pages"] == len(tallies) > 150
    expected = {"pages": 204, "documents": 183, "duplicates": 21, "rejected": 0, "dead_lettered": 0}
    assert {name: numbers[name] for name in expected} == expected
    assert latency["count"] == 1 and 0 < latency["p50"] == latency["p99"] < 60_000
    assert CHANGED_URL in call("search", "--repo", folder, CHANGED_WORDS).out

    # Nothing is left to do, and so nothing took any time.
    answer = run("work", "--repo", folder, "--until-idle", "--processes", 1)
    assert answer.code == 0
    assert "183, with 21 duplicates folded in" in answer.out
    assert "Loaded to searchable" not in answer.out


def test_work_goes_on_past_what_it_cannot_process_and_says_so(
    repo: Repository, folder: Path
) -> None:
    load_captures(repo, recrawl(), "recrawl.warc.gz")
    with repo.transaction() as t:
        t.set(tables.body, page_row(CHANGED_URL), b"this was never compressed")
    work = ("work", "--repo", folder, "--until-idle", "--processes", 1)
    answer = run(*work, tracebacks=True)
    assert answer.code == 3
    assert "1 change is dead-lettered after repeated failures" in answer.out
    assert f"percola --repo {folder} failed" in answer.out
    assert answer.err.count("Traceback (most recent call last)") >= 5
    assert "parse failed on pages[" in answer.err and "attempt 5 of 5" in answer.err
    answer = call(*work, "--json")
    assert answer.code == 3 and answer.json["dead_lettered"] == 1


def test_work_until_idle_says_which_documents_the_search_index_refuses(
    repo: Repository, folder: Path
) -> None:
    """It ended with 0, and nobody was told of a document that is not in search."""
    with repo.transaction() as t:
        row = f"{tables.exports.window_of(t.start_ts, 'c17')}/c17/{t.start_ts:020}"
        said = {"key": "c17", "note": None, "why": "it is larger than a request may be."}
        t.set(tables.exports.refused, row, said)
    answer = call("work", "--repo", folder, "--until-idle")
    assert answer.code == 3
    told = "refuses 1 document, for example: it is larger than a request may be. 'webindex reindex'"
    assert told in answer.out
    answer = call("work", "--repo", folder, "--until-idle", "--json")
    assert answer.code == 3 and answer.json["refused"] == 1


def test_work_until_idle_does_not_wait_for_a_paused_observer(
    repo: Repository, folder: Path
) -> None:
    """It waited for ever."""
    load_captures(repo, recrawl(), "recrawl.warc.gz")
    repo.pause_observer(parse, reason="a test")
    work = ("work", "--repo", folder, "--until-idle", "--processes", 1)
    answer = run(*work)
    assert answer.code == 4
    assert f"Changes wait for parse, paused: see 'percola --repo {folder} observers'." in answer.out
    repo.resume_observer("parse")
    answer = run(*work)
    assert (answer.code, answer.err) == (0, "") and "paused" not in answer.out


# --- Mistakes -----------------------------------------------------------------------------

COMMANDS = [
    ("search", "word"),
    ("explain", "https://example.org/"),
    ("work", "--until-idle"),
    ("summary", "--json"),
]


@pytest.mark.parametrize("name_and_argument", COMMANDS, ids=lambda one: one[0])
def test_no_repository_and_a_wrong_folder_are_one_sentence(
    tmp_path: Path, name_and_argument: tuple[str, str]
) -> None:
    name, argument = name_and_argument
    missing = tmp_path / "missing"
    assert is_error(call(name, "--repo", missing, argument), str(missing), "webindex load")
    assert not missing.exists()
    (tmp_path / "notes.txt").write_text("mine")
    assert is_error(call(name, "--repo", tmp_path, argument), "not a repository", "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]
    file = tmp_path / "notes.txt"
    assert is_error(call(name, "--repo", file, argument), "is a file")


@pytest.mark.parametrize("url", ["www.sqlite.org", "ftp://x.org/", "https://[", ""])
def test_a_bad_url_is_one_sentence(worked_off: Path, url: str) -> None:
    assert is_error(call("explain", "--repo", worked_off, url))


def test_a_damaged_search_index_is_one_sentence(folder: Path) -> None:
    (folder / "serving" / "meta.json").write_text("{")
    for name, argument in (("search", "word"), ("work", "--until-idle")):
        assert is_error(call(name, "--repo", folder, argument), "damaged", "reindex")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "place of the search index is empty"),
        ("http://[x/pages", "is no URL"),
        ("https://me:secret@\u2100.example/pages", "is no URL"),
    ],
)
def test_a_place_of_the_search_index_that_is_none_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    answer = call("reindex", "--repo", folder, "--index", place)
    assert is_error(answer, said) and "secret" not in answer.err


def test_files_that_cannot_be_loaded_are_one_sentence_and_make_no_repository(
    tmp_path: Path,
) -> None:
    repo = tmp_path / "repo"
    assert is_error(call("load", "--repo", repo, tmp_path / "missing.warc"), "missing.warc")
    (tmp_path / "text.warc").write_text("no WARC")
    assert is_error(call("load", "--repo", repo, tmp_path / "text.warc"), "text.warc")
    assert not repo.exists()


@pytest.mark.parametrize("command", [("load",), ("rebuild",), ("verify", "--crawl")])
def test_a_file_without_a_name_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(sample_path().parent)
    assert is_error(call(*command, "", "--repo", tmp_path / "repo"), "names of WARC files is empty")
    assert not (tmp_path / "repo").exists()


def test_a_file_whose_name_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    name = os.fsdecode(b"caf\xe9.warc.gz")
    (tmp_path / "crawl" / name).write_bytes(sample_path().read_bytes())
    answer = call("load", "--repo", tmp_path / "repo", tmp_path / "crawl")
    assert is_error(answer, repr(name)[1:-1], "is not in UTF-8", "Nothing was loaded")


@pytest.mark.parametrize("command", [("load",), ("rebuild",)])
def test_a_folder_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    (tmp_path / "crawl").mkdir()
    monkeypatch.setattr("webindex.load.job.os.listdir", refuse)
    answer = call(*command, "--repo", tmp_path / "repo", tmp_path / "crawl")
    assert is_error(answer, f"{tmp_path / 'crawl'} cannot be read: Permission denied")


def test_a_load_says_how_many_rejected_records_it_does_not_describe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = LoadReport(1, 1, 0, rejected=Counter({"damaged": 12}), messages=["at byte 0"] * 10)
    monkeypatch.setattr("webindex.load.job.load", lambda *args, **options: report)
    load = ("load", "--repo", "repo", "crawl.warc")
    assert "2 rejected records more, not described here." in call(*load).out
    report.rejected["damaged"] = 10
    assert "not described" not in call(*load).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("search", "--nonsense", "word"), "--nonsense"),
        (("search", "--limit", "0", "word"), "0 is not in the range"),
        (("search", "--language", "English", "word"), "'English' is no code of a language"),
        (("search", "--language", "", "word"), "'' is no code of a language"),
        (("search",), "WORDS"),
        (("explain",), "URL"),
        (("explain", "https://a.org/", "https://b.org/"), "unexpected extra argument"),
        (("work", "--workers", "0"), "0 is not in the range"),
        (("work", "--workers", "many"), "many"),
        (("work", "--processes", "0"), "0 is not in the range"),
        (("work", "--processes", "1", "--workers", "2"), "--processes works without Spark"),
        (("work", "--processes", "1", "--master", "local[2]"), "--processes works without Spark"),
        (("load",), "FILES"),
        (("crawl",), "crawl"),
    ],
)
def test_a_misspelt_command_is_told_what_is_wrong(
    worked_off: Path, arguments: tuple[str, ...], words: str
) -> None:
    name, *rest = arguments
    answer = call(name, *(("--repo", worked_off) if name != "crawl" else ()), *rest)
    assert answer.code == 2 and answer.out == ""
    assert words in answer.err and "Usage: " in answer.err


def test_without_a_repository_it_says_how_to_name_one() -> None:
    answer = call("search", "word")
    assert answer.code == 2 and "'--repo'" in answer.err


def test_the_repository_can_be_named_in_the_environment(worked_off: Path) -> None:
    answer = run("search", "self-contained", WEBINDEX_REPO=str(worked_off))
    assert answer.code == 0 and CANONICAL in answer.out


@pytest.mark.parametrize("name", [None, "load", "work", "search", "explain", "summary"])
def test_every_command_has_help(name: str | None) -> None:
    answer = call(*([name] if name else []), "--help")
    assert answer.code == 0 and "Usage: " in answer.out and "run-worker" not in answer.out


# --- Terminals and pipes ------------------------------------------------------------------


def in_terminal(columns: int, *arguments: object) -> tuple[int, str]:
    """Run a command in a terminal of this width; its exit code and what it showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shell = environment(TERM="xterm-256color")
    del shell["COLUMNS"]
    process = subprocess.Popen(
        command(*arguments), env=shell, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        with contextlib.suppress(OSError):  # how a terminal says that nobody is left to write
            while piece := os.read(ours, 65536):
                shown += piece
        return process.wait(60), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_narrow_terminal_breaks_nothing(worked_off: Path) -> None:
    code, shown = in_terminal(30, "search", "--repo", worked_off, "self-contained")
    assert code == 0 and "Traceback" not in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert plain != shown, "a terminal gets colours"
    # What one copies from a terminal stays whole.
    assert CANONICAL in plain and DUPLICATE in plain and "SQLite Home Page" in plain


def test_work_shows_its_progress_on_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    with open_repository(str(folder), create=True) as repo:
        load_captures(repo, sample()[:60], "sample.warc.gz")
    code, shown = in_terminal(60, "work", "--repo", folder, "--processes", 1, "--until-idle")
    assert code == 0 and "Traceback" not in shown
    assert re.search(r"\d+ to (parse|invert|count|cluster|assemble)", shown)
    assert "Clusters" in shown


def test_a_reader_that_has_had_enough_hears_no_complaint(worked_off: Path) -> None:
    line = command("search", "--repo", worked_off, "index")
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=environment(), stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def test_an_empty_name_of_a_repository_is_one_sentence() -> None:
    # As of a variable that is not set.
    assert is_error(call("summary", "--repo", ""), "'' names no folder")


def test_what_the_encoding_of_the_output_lacks_is_escaped(worked_off: Path) -> None:
    korean = "https://httpd.apache.org/docs/2.4/ko/invoking.html"
    line = ("search", "--repo", worked_off, "apache 프로세스")
    told = run(*line, PYTHONIOENCODING="ascii")
    assert told.code == 0 and korean in told.out and r"\uc544\ud30c\uce58" in told.out
    whole, escaped = (run(*line, "--json", PYTHONIOENCODING=one) for one in ("utf-8", "latin-1"))
    assert escaped.code == 0 and escaped.out.isascii() and escaped.json == whole.json
    # An argument that is not in UTF-8.
    assert run(*line[:-1], "--json", "caf\udce9").json["query"] == "caf\udce9"


@pytest.mark.parametrize(
    "words", [("search", "index"), ("summary", "--json"), ("frontier", "--format", "seeds")]
)
def test_a_full_disk_is_one_sentence(worked_off: Path, words: tuple[str, ...]) -> None:
    name, *more = words
    with open("/dev/full", "wb") as full:
        answer = answer_of(command(name, "--repo", worked_off, *more), stdout=full)
    assert answer.code == 1 and "Traceback" not in answer.err
    assert answer.err == "Error: The output cannot be written: No space left on device.\n"


def test_an_index_whose_clusters_follow_older_rules_is_refused(tmp_path: Path) -> None:
    address = str(tmp_path / "repo")
    older = percola.Table("keys")
    older.column("near", bytes)
    others = [one for one in tables.SCHEMA if one is not tables.keys]
    percola.open(address, schema=[older, *others]).close()
    for create in (False, True):
        with pytest.raises(percola.NotARepositoryError, match="older version of Percola"):
            open_repository(address, create=create)


def test_a_load_prints_nothing_of_a_record_that_turns_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "crawl.warc at byte 0: not a page: it is a/\x1b]0;mine\x07\u202eb"
    report = LoadReport(1, 1, 0, rejected=Counter({"not a page": 1}), messages=[said])
    monkeypatch.setattr("webindex.load.job.load", lambda *args, **options: report)
    out = call("load", "--repo", "repo", "crawl.warc").out
    assert "not a page: it is a/" in out and not set("\x1b\x07\u202e") & set(out)

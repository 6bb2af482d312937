"""Runs of `webindex crawl-docs`: interrupted, repeated, in folders of others, short of packages."""

from __future__ import annotations

import shutil
from pathlib import Path

import commands
import pytest
from fake_debs import SQLITE, contents, deb, fake_apt, prose, quiet
from web_commands import call, is_error

from webindex.corpus import CorpusError, building
from webindex.corpus.answers import Answer
from webindex.corpus.building import Wanted, build

# --- interruption, and folders of others --------------------------------------------------


def test_an_interrupted_run_leaves_no_corpus_and_is_begun_anew(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "corpus"
    original = Answer.body
    asked: list[str] = []

    def interrupted(answer: Answer) -> bytes:
        asked.append(answer.url)
        if len(asked) == 50:
            raise KeyboardInterrupt
        return original(answer)

    with monkeypatch.context() as patch:
        patch.setattr(Answer, "body", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build(folder, Wanted(split=4_000), cache=cache, step=quiet)
    assert len(asked) == 50 and list(folder.glob("crawl-*.part"))
    assert not contents(folder) and not (folder / "manifest.json").exists()
    build(folder, Wanted(), cache=cache, step=quiet)
    build(tmp_path / "other", Wanted(), cache=cache, step=quiet)
    assert contents(folder) == contents(tmp_path / "other") != {}
    assert {one.suffix for one in folder.iterdir()} == {".gz", ".json"}


def test_an_interruption_between_the_renames_is_begun_anew_too(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "corpus"
    build(folder, Wanted(), cache=cache, step=quiet)
    whole = contents(folder)
    (folder / "manifest.json").unlink()
    (folder / building.UNFINISHED).touch()
    (folder / "crawl-007.warc.gz").write_bytes(b"of a run with other settings")
    build(folder, Wanted(), cache=cache, step=quiet)
    assert contents(folder) == whole


def test_a_corpus_that_is_there_is_left_as_it_is(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "corpus"
    assert build(folder, Wanted(), cache=cache, step=quiet)["made_now"]
    before = {one: one.stat().st_mtime_ns for one in folder.iterdir()}
    shutil.rmtree(cache)
    assert not build(folder, Wanted(), cache=cache, step=quiet)["made_now"]
    assert before == {one: one.stat().st_mtime_ns for one in folder.iterdir()}
    with pytest.raises(CorpusError, match="holds another corpus"):
        build(folder, Wanted(seed=2), cache=cache, step=quiet)


def test_two_runs_do_not_make_one_corpus(tmp_path: Path, cache: Path) -> None:
    refused = []

    def second(what: str, done: int, of: int) -> None:
        if not refused:
            with pytest.raises(CorpusError, match="Another run is making a corpus") as error:
                build(tmp_path / "corpus", Wanted(), cache=cache, step=quiet)
            refused.append(error)

    build(tmp_path / "corpus", Wanted(), cache=cache, step=second)
    assert refused and contents(tmp_path / "corpus")


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "crawl-000.warc.gz").write_text("precious")
    with pytest.raises(CorpusError, match=r"is not empty \(it has 'crawl-000.warc.gz'\)"):
        build(tmp_path / "home", Wanted(), cache=cache, step=quiet)
    assert (tmp_path / "home" / "crawl-000.warc.gz").read_text() == "precious"


# --- what cannot be had -------------------------------------------------------------------


def crawl_docs(*arguments: object) -> commands.Answer:
    return call("crawl-docs", *arguments)


def test_a_damaged_package_is_named_and_the_rest_goes_on(tmp_path: Path, cache: Path) -> None:
    [sqlite] = cache.glob("sqlite3-doc*")
    sqlite.write_bytes(b"!<arch>\nno more")
    answer = crawl_docs(tmp_path / "corpus", "--cache", cache, "--json")
    manifest = answer.json
    assert answer.code == 0 and [one["name"] for one in manifest["packages"]] == [
        "postgresql-doc-15"
    ]
    said = " ".join(manifest["not_to_be_had"])
    assert "sqlite3-doc 3.40-1: sqlite3-doc_3.40-1_all.deb is damaged" in said
    assert "python3.11-doc" in said and "no apt-get here" in said


def test_a_newest_version_without_documents_gives_way_to_the_one_before(
    tmp_path: Path, cache: Path
) -> None:
    deb(cache, "sqlite3-doc", "3.41-1", {"usr/share/doc/moved/index.html": prose("moved")})
    manifest = build(tmp_path / "corpus", Wanted(packages="sqlite3-doc"), cache=cache, step=quiet)
    assert manifest["packages"][0]["version"] == "3.40-1"
    assert "sqlite3-doc 3.41-1: it has no HTML documents" in manifest["not_to_be_had"][0]


def test_an_older_version_that_has_vanished_costs_the_recrawl_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = "".join(
        f"sqlite3-doc | {version} | somewhere bookworm/main amd64 Packages\n"
        for version in ("3.40-2", "3.40-1")
    )
    monkeypatch.setenv("PATH", fake_apt(tmp_path / "bin", offers, tmp_path / "mirror"))
    deb(tmp_path / "mirror", "sqlite3-doc", "3.40-2", {f"{SQLITE}/index.html": prose("sqlite")})
    answer = crawl_docs(tmp_path / "corpus", "--packages", "sqlite3-doc")
    assert (answer.code, answer.err) == (0, "")
    assert "sqlite3-doc 3.40-1: Version '3.40-1' for 'sqlite3-doc' was not found." in answer.out
    assert "No real recrawl, for only one version can be had: sqlite3-doc." in answer.out
    assert (tmp_path / "corpus" / "packages" / "sqlite3-doc_3.40-2_all.deb").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "No package can be had"),
        (["--packages", "nonsense"], "No package nonsense is known here"),
        (["--packages", ","], "--packages names no package"),
    ],
)
def test_nothing_at_all_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert is_error(crawl_docs(tmp_path / "corpus", *arguments), sentence)


def test_the_command_tells_a_person_what_was_made(tmp_path: Path, cache: Path) -> None:
    answer = crawl_docs(tmp_path / "corpus", "--cache", cache, "--recrawl")
    assert (answer.code, answer.err) == (0, "")
    for words in ("postgresql-doc-15", "15.10-1", "1 of 32", "seeded-recrawl", "Made in", "MB in"):
        assert words in answer.out
    answer = crawl_docs(tmp_path / "corpus", "--cache", cache, "--recrawl")
    assert answer.code == 0 and "Was there already" in answer.out

"""A search index that was lost comes back from the repository: `webindex reindex`."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from chains import Chain
from from_scratch import gone, sample
from web_commands import call, is_error

from percola import Repository, Worker
from percola.recipes import Entry
from webindex import tables
from webindex.cli.reindex import move, reindex
from webindex.errors import WorkingError
from webindex.observers.export import export_to
from webindex.sample import CHANGED_URL
from webindex.serving import BusyIndexError, NotAnIndexError, TantivyIndex
from webindex.serving.located import search_place
from webindex.serving.tantivy.documents import FORMAT
from webindex.serving.tantivy.index import emptied
from webindex.workers.processes import open_repository


def shown(index: TantivyIndex) -> list[tuple[str, int, float]]:
    """All that a search for common words says."""
    hits = index.search("the OR a OR of", limit=1000).hits
    return sorted((hit.url, hit.inlinks, round(hit.score, 4)) for hit in hits)


def documents(repo: Repository) -> int:
    return sum(1 for _ in repo.snapshot().scan(tables.clusters, columns=[tables.document]))


def test_what_is_lost_comes_back_as_it_was_and_once(chain: Chain) -> None:
    before, folder = shown(chain.index), search_place(chain.repo)
    assert len(before) > 100
    chain.index.close()
    shutil.rmtree(folder)
    chain.index = TantivyIndex(folder)
    assert shown(chain.index) == []
    entered: list[int] = []
    assert reindex(chain.repo, entered.append) == documents(chain.repo) == entered[-1]
    assert set(chain.work()) == {"export"}
    assert [url for url, *_ in shown(chain.index)] == [url for url, *_ in before]
    chain.check()
    # Nothing is entered twice over, and what is there already may come again.
    reindex(chain.repo)
    chain.work()
    assert [url for url, *_ in shown(chain.index)] == [url for url, *_ in before]
    chain.check()


def test_documents_that_change_or_go_meanwhile_are_exported_as_they_are_then(chain: Chain) -> None:
    # Entered, and only then removed: the exporter finds no document of that cluster any more.
    reindex(chain.repo)
    [captured] = [one for one in sample() if one.url == CHANGED_URL]
    assert any(url == CHANGED_URL for url, *_ in shown(chain.index))
    chain.process([gone(captured)])
    assert all(url != CHANGED_URL for url, *_ in shown(chain.index))
    chain.check()


def test_the_command_says_how_many_and_a_half_built_index_is_refused(
    worked_off: Path, folder: Path, tmp_path: Path
) -> None:
    shutil.rmtree(folder / "serving")
    said = call("search", "--repo", folder, "--json", "percolator")
    assert said.code == 0 and said.json["hits"] == []
    assert "serving is empty" in said.err and "'webindex reindex'" in said.err
    said = call("search", "--repo", worked_off, "nowheretobefound")
    assert "Nothing found" in said.out and said.err == ""
    said = call("reindex", "--repo", folder, "--json")
    assert (said.code, said.json) == (0, {"documents": 183})
    said = call("reindex", "--repo", folder)
    assert said.out == "183 documents to export: the workers write them to search.\n"
    with open_repository(str(folder)) as repo, repo.transaction() as t:
        t.set(tables.report, "rebuild", {"state": "failed", "pid": 1})
    assert is_error(call("reindex", "--repo", folder), "half built")
    assert is_error(call("reindex", "--repo", tmp_path / "nowhere"), "There is no repository")


@pytest.mark.parametrize("left", ["nothing of meta", "another format"])
def test_an_index_that_is_refused_is_named_with_the_way_out(folder: Path, left: str) -> None:
    meta = folder / "serving" / "meta.json"
    if left == "nothing of meta":
        meta.unlink()
    else:
        meta.write_text(meta.read_text().replace(f"format_{FORMAT}", "format_1"))
    assert is_error(call("search", "--repo", folder, "word"), "'webindex reindex'")
    # Running it is that way out.
    assert is_error(call("reindex", "--repo", folder), "with --empty")
    said = call("reindex", "--repo", folder, "--empty")
    assert (said.code, said.out[:24]) == (0, "183 documents to export:")
    with TantivyIndex(folder / "serving") as index, open_repository(str(folder)) as repo:
        assert index.count() == 0 and repo.pending() == {"outbox.ready": 1}


def test_an_index_is_emptied_while_others_write_and_search(chain: Chain) -> None:
    before, folder = shown(chain.index), Path(search_place(chain.repo))
    old = {name for name in os.listdir(folder) if name[0] != "."} - {"meta.json"}
    (folder / ".new-killed").mkdir()
    with TantivyIndex(folder, lock_timeout=0.0) as other:
        # A worker that would write before all documents are entered has to wait.
        with emptied(folder), pytest.raises(BusyIndexError):
            other.apply([], [("cluster", 1)])
        assert shown(chain.index) == shown(other) == []
    assert {*old, ".new-killed"}.isdisjoint(os.listdir(folder))
    reindex(chain.repo)
    chain.work()
    assert [url for url, *_ in shown(chain.index)] == [url for url, *_ in before]
    chain.check()
    # Whatever happens before the end, nothing is taken away; nor is what belongs to others.
    with pytest.raises(KeyError), emptied(folder):
        raise KeyError
    (folder / "letter.txt").touch()
    with pytest.raises(NotAnIndexError, match=r"letter\.txt"), emptied(folder):
        pass
    assert len(shown(chain.index)) == len(before)


def test_documents_of_another_state_of_the_repository_are_removed_or_named(
    worked_off: Path, folder: Path
) -> None:
    with open_repository(str(folder)) as repo, TantivyIndex(folder / "serving") as index:
        [document] = index.get_many([next(index.clusters())[0]])
        index.apply([replace(document, cluster="unknown", epoch=1)])
        assert call("reindex", "--repo", folder).code == 0
        Worker(repo, [export_to(index)], warn_unobserved=False).run_until_idle()
        assert index.get("unknown") is None and index.count() == 183
        index.apply([replace(document, epoch=2**60)])
        said = call("reindex", "--repo", folder)
        assert is_error(said, "has 1 document that is later than all")
    # Nor is it moved to such an index, whose documents it would take out.
    with open_repository(str(worked_off)) as repo:
        with pytest.raises(WorkingError, match="is later than all"):
            move(repo, str(folder / "serving"))
        assert search_place(repo) == str(worked_off / "serving")


def test_an_index_is_not_moved_to_that_of_another_repository(
    worked_off: Path, tmp_path: Path
) -> None:
    place = tmp_path / "theirs"
    with open_repository(str(worked_off)) as repo, TantivyIndex(worked_off / "serving") as mine:
        [document] = mine.get_many([next(mine.clusters())[0]])
        with TantivyIndex(place) as theirs:
            theirs.apply([replace(document, cluster="theirs", epoch=1)])
            with pytest.raises(WorkingError, match="1 document, and none of this repository"):
                move(repo, str(place))
            assert theirs.get("theirs") is not None
        assert search_place(repo) == str(worked_off / "serving")


def test_what_the_old_index_has_refused_is_tried_with_the_new_one(
    chain: Chain, tmp_path: Path
) -> None:
    cluster = next(chain.index.clusters())[0]
    with chain.repo.transaction() as t:
        entry = Entry(f"{tables.exports.window_of(1, cluster)}/{cluster}/{1:020}", cluster, 1, None)
        value = {"key": cluster, "note": None, "why": "it is too long."}
        t.set(tables.exports.refused, entry.row, value)
    with TantivyIndex(tmp_path / "new") as index:
        move(chain.repo, str(tmp_path / "new"))
        Worker(chain.repo, [export_to(index)], warn_unobserved=False).run_until_idle()
        assert index.count() == documents(chain.repo)
    assert not list(tables.exports.refusals(chain.repo.snapshot()))

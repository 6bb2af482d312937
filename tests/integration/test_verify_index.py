"""`webindex verify`: silent where the index is right, loud for each invariant where it is not."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from linked_crawl import ELSEWHERE, SITE, crawl, html, load, words, work
from pyspark.sql import SparkSession
from warc_files import Crawl

from percola import NotARepositoryError, Observer, Repository, Transaction, UsageError, Worker
from percola.cells import Kind
from percola.store.base import SYSTEM_TABLE
from percola.store.walks import walk_kind
from webindex import tables
from webindex.batch.compare import KEPT
from webindex.batch.verdict import Verdict
from webindex.batch.verify import verify
from webindex.cli.verify import verify_command
from webindex.crawl.warc import NotAWarcError, Sitemap
from webindex.load.recrawls import plan, rank_moved
from webindex.load.transaction import load_captures
from webindex.observers import inlinks
from webindex.observers.documents import tell
from webindex.observers.frontier import listed_row
from webindex.observers.texts import part_of, plant
from webindex.page.urls import block_row, host, page_id, page_row
from webindex.serving import TantivyIndex
from webindex.serving.content import Analyzers
from webindex.serving.located import search_place
from webindex.serving.tantivy.documents import to_stored
from webindex.workers.processes import build_observers, open_index, open_repository

pytestmark = pytest.mark.timeout(900)


def overlook(repo: Repository) -> None:
    """Have everything that is dirty taken for seen: nobody repairs what a test has broken."""
    with open_index(repo) as index:
        idle = [Observer(one.column, _nothing, one.name) for one in build_observers(index)]
    Worker(repo, idle, threads=1).run_until_idle()


def _nothing(t: Transaction, row: Any) -> None:
    pass


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The crawl as a file."""
    path = tmp_path_factory.mktemp("crawl") / "linked.warc.gz"
    path.write_bytes(crawl().data)
    return path


@pytest.fixture(scope="module")
def worked_off(tmp_path_factory: pytest.TempPathFactory, crawled: Path) -> Path:
    """A closed repository with the crawl loaded, worked off and ranked: copy it to change it."""
    folder = tmp_path_factory.mktemp("index") / "repo"
    with (
        open_repository(str(folder), create=True) as repo,
        mock.patch.object(tables, "LARGE_CLUSTER", 2),
    ):
        load(repo, crawled)
        listed = "".join(f"<url><loc>{SITE}/{path}</loc></url>" for path in ("p0", "next-1", "new"))
        body = f"<urlset>{listed}</urlset>".encode()
        sitemap = Sitemap(f"{SITE}/sitemap.xml", datetime.now(UTC), "sitemap", body, 0, 1)
        load_captures(repo, [sitemap], str(crawled))
        with mock.patch.object(inlinks, "LARGE", 2):  # some pages of this small crawl are
            work(repo)

        def texts_apart(t: Transaction) -> None:
            """Have the texts of the links to a large page where those of more texts are."""
            row = page_row(f"{SITE}/old")
            assert t.get(tables.large, row) == 1
            t.set(tables.large, row, 2)
            plant(t, row, (t.get(tables.tally, row) or {})["anchors"])

        repo.run(texts_apart)

        def ranks(t: Transaction) -> None:
            for path in ("/p1-copy", "/p2"):
                rank = {"value": 3.0, "run": t.start_ts, "links": 4}
                t.set(tables.rank, page_row(SITE + path), rank)
                rank_moved(t, page_row(SITE + path), rank)
                tell(t, page_row(SITE + path))
            # Pages that are newer than that run, as observers come to know of them.
            for path in ("/p4", "/short-1", "/short-2"):
                row = page_row(SITE + path)
                t.set(tables.rank_run, row[:2], t.start_ts)
                t.notify(tables.inlinks_changed, row)

        repo.run(ranks)
        work(repo)
        large = [
            row[tables.size] for row in repo.snapshot().scan(tables.clusters) if tables.size in row
        ]
        assert large == [4]
        interim = {
            row.key: row[tables.rank]["value"]
            for row in repo.snapshot().scan(tables.pages, columns=[tables.rank])
            if "interim" in row[tables.rank]
        }
        # /p2 and /p1-copy vouch for many pages, but of these only for the first.
        assert interim == {
            page_row(f"{SITE}/p4"): pytest.approx(0.15 + 0.85 * 3.0 / 4),
            page_row(f"{SITE}/short-1"): 0.15,
            page_row(f"{SITE}/short-2"): 0.15,
        }
    return folder


@pytest.fixture
def repo(worked_off: Path, tmp_path: Path) -> Iterator[Repository]:
    folder = tmp_path / "repo"
    shutil.copytree(worked_off, folder)
    with open_repository(str(folder)) as opened:
        yield opened


def broken(verdict: Verdict) -> set[tuple[int, str, str, str]]:
    """Every difference, by invariant, table, row and part."""
    assert all(one.differing <= KEPT for one in verdict.judged), "more than are described"
    return {(one.invariant, d.table, d.row, d.part) for one in verdict.judged for d in one.first}


def test_an_index_that_was_worked_off_holds_all_invariants(
    spark: SparkSession, worked_off: Path, crawled: Path
) -> None:
    verdict = verify(worked_off, spark=spark, quiet=True)
    assert verdict.sentences() == []
    assert verdict.holds and verdict.broken == [] and verdict.unfinished == []
    # Each of them was looked at, and on the crawl that is described.
    without_resources = verdict.judged[:14]
    assert all(one.checked and not one.note for one in without_resources)
    assert all(one.compared > 5 for one in without_resources if one.invariant != 11)
    assert not any(one.checked for one in verdict.judged[14:])
    with open_repository(str(worked_off)) as repo, repo.snapshot() as now:
        # It writes nothing, not even that it reads: no hold outlives it.
        assert not list(walk_kind(repo.context.store, Kind.DATA, SYSTEM_TABLE, b"hold/", b"hold0"))
        members = {
            frozenset(one["url"].removeprefix(SITE) for one in row.family(tables.member).values())
            for row in now.scan(tables.clusters, columns=[tables.member])
        }
        assert verdict.clusters == len(members)
        assert verdict.live == sum(map(len, members))
        assert verdict.pages == sum(1 for _ in now.scan(tables.pages, columns=[tables.capture]))
        assert {
            frozenset({"/p1", "/p1-copy", f"{ELSEWHERE}/p1", "/by-redirect"}),
            frozenset({"/p2", "/p2-almost"}),
            frozenset({"/short-1", "/short-2"}),
            frozenset({"/short-3"}),
            frozenset({"/p3", "/print"}),
            frozenset({"/p5", "/p5-hidden"}),
            frozenset({"/chain"}),
            frozenset({"/foreign"}),
        } <= members

        def leading(path: str) -> set[str]:
            row = now.get_row(tables.aliases, page_row(SITE + path), [tables.leads_here])
            return {one["url"].removeprefix(SITE) for one in row.family(tables.leads_here).values()}

        assert leading("/p1") == {"/old", "/older", "/by-redirect"}
        assert leading("/p3") == {"/refresh", "/print"}
        # From /hop-12 on: ten redirects after the first.
        assert leading("/p4") == {f"/hop-{n}" for n in range(2, 13)}


class Bugs:
    """Cells that are changed behind the observers' backs, and where that has to be noticed."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self.expected: set[tuple[int, str, str, str]] = set()

    def seed(
        self,
        invariant: int,
        column: Any,
        row: str,
        change: Callable[[Any], Any],
        part: str = "",
        *,
        told_of: str = "",
    ) -> None:
        """Change a cell, or delete it for None; `told_of` is its row as the verdict has it."""

        def write(t: Transaction) -> None:
            value = change(t.get(column, row))
            if value is None:
                t.delete(column, row)
            else:
                t.set(column, row, value)

        self._repo.run(write)
        name = column.name + (f".{part}" if part else "")
        self.expected.add((invariant, column.table_name, told_of or row, name))


def but(name: str, value: Any) -> Callable[[Any], Any]:
    """A dictionary with another value of a field; of a number, so much more."""
    if isinstance(value, int):
        return lambda whole: {**whole, name: whole[name] + value}
    return lambda whole: {**whole, name: value}


def test_each_seeded_bug_is_caught_by_its_invariant_and_no_other(
    spark: SparkSession, repo: Repository
) -> None:
    def row(path: str) -> str:
        return page_row(SITE + path)

    def cluster(path: str) -> str:
        joined = repo.snapshot().get(tables.joined, row(path))
        assert joined is not None
        return str(joined["cluster"])

    def smallest(path: str) -> str:
        """The name of a page's cluster in the verdict."""
        members = repo.snapshot().get_row(tables.clusters, cluster(path), [tables.member])
        return min(members.family(tables.member))

    p0, p1, p4 = (page_id(f"{SITE}/p{n}") for n in (0, 1, 4))
    content = repo.snapshot().get(tables.joined, row("/p0"))
    assert content is not None
    band = next(iter(repo.snapshot().scan(tables.keys, prefix="band/"))).key
    counted = f"{host(SITE + '/')}/{p0[:2]}"

    bugs = Bugs(repo)
    bugs.seed(1, tables.fingerprint, row("/p0"), but("title", "Wrong"))
    bugs.seed(1, tables.capture, row("/p1"), but("robots", "all"), "robots")
    bugs.seed(1, tables.body, row("/gone"), lambda _: zlib.compress(b"not what was captured"))
    bugs.seed(1, tables.outer, block_row(f"{SITE}/p3"), but("size", 1))
    bugs.seed(2, tables.links, row("/p2"), lambda links: links[1:])
    bugs.seed(2, tables.pointer, row("/old"), but("kind", "canonical"))
    bugs.seed(3, tables.source[p1], row("/p2"), lambda _: None)
    bugs.seed(3, tables.inverted, row("/p3"), lambda links: links[:-1])
    bugs.seed(3, tables.points_here[p4], row("/p0"), lambda _: {"url": "u", "kind": "redirect"})
    bugs.seed(4, tables.near, band, lambda packed: packed + b"\xff" * 16)
    bugs.seed(4, tables.owner, content["content"], but("pages", 1), "pages")
    bugs.seed(4, tables.leads_here[p4], row("/p5"), lambda _: {"url": "u", "kind": "redirect"})
    bugs.seed(4, tables.resolved, row("/older"), but("hops", 1))
    bugs.seed(4, tables.joined, row("/p0"), but("target", f"{SITE}/p1"), "target")
    almost = row("/p2-almost")
    # Its other page keeps the cluster's name: of two names for one page each, the smaller one is
    # paired with the cluster that was computed, and this one is larger than any hexadecimal one.
    bugs.seed(5, tables.joined, almost, but("cluster", "nowhere"), "cluster")
    # Of /p2 with its two pages: one is enough for its name.
    name = smallest("/short-1")
    one = page_id(f"{SITE}/short-1")
    bugs.seed(6, tables.member[one], cluster("/short-1"), lambda _: None, told_of=name)
    bugs.seed(6, tables.member[p4], "empty", lambda _: {"url": "u"}, told_of="?empty")
    bugs.expected.add((6, "clusters", "?empty", "members"))
    name = smallest("/p1")
    other = but("url", f"{SITE}/p1")
    bugs.seed(7, tables.document, cluster("/p1"), other, "url", told_of=name)
    bugs.seed(7, tables.rank, row("/gone"), lambda _: {"value": 1.0, "run": 1})
    bugs.seed(7, tables.rank, row("/short-2"), but("value", 0.149))
    bugs.seed(8, tables.tally, row("/p0"), but("links", 1))
    bugs.seed(8, tables.delta["1"], row("/p0"), lambda _: {"links": 1, "anchors": {}})
    part = tables.texts[part_of("the old address")]
    bugs.seed(8, part, row("/old"), but("the old address", 1))
    bugs.seed(8, tables.best, row("/old"), lambda _: {"00": [-1, "never"]})
    bugs.seed(8, tables.large, row("/dead"), lambda _: 1)
    name = smallest("/p3")
    bugs.seed(8, tables.document, cluster("/p3"), but("inlinks", 1), "inlinks", told_of=name)
    bugs.seed(9, tables.live, counted, but("pages", 1))
    name = smallest("/p4")
    bugs.seed(10, tables.document, cluster("/p4"), but("title", "Wrong"), "title", told_of=name)
    bugs.seed(10, tables.repeated, block_row(f"{SITE}/p3"), lambda _: ["a block of none"])
    # The newest capture of /p5, as if an older one had won.
    bugs.seed(12, tables.capture, row("/p5"), but("date", "2001-01-01T00:00:00.000000Z"), "date")
    repo.run(lambda t: plan(t, row("/p5")))
    entry = next(repo.snapshot().scan(tables.frontier)).key
    bugs.seed(13, tables.uncaptured, entry, lambda _: None)
    bugs.seed(13, tables.uncaptured, "99/0/com,nowhere)/", lambda _: "https://nowhere.com/")
    bugs.seed(13, tables.uncaptured, listed_row(row("/new")), lambda _: None)
    by, part = page_id(f"{SITE}/sitemap.xml"), page_id(f"{SITE}/new")[:2]
    bugs.seed(13, tables.listed_by[by], row("/p0"), lambda _: None)
    bugs.seed(13, tables.listed_by[by], row("/next-1"), but("modified", "2026-01-01"))
    bugs.seed(13, tables.sitemap_entered[part], row("/sitemap.xml"), but("sitemap", "else"))
    listed = next(repo.snapshot().scan(tables.recrawls)).key
    bugs.seed(14, tables.recrawl_url, listed, lambda _: None)
    bugs.seed(14, tables.recrawl, row("/p4"), lambda _: "50/2025-01-01T00:00:00Z/0")
    with open_index(repo) as index:
        epochs = dict(index.clusters())
        lost, kept = cluster("/p5"), cluster("/foreign")
        stale = index.get(kept)
        assert stale is not None
        ghost = replace(stale, cluster="ghost")
        index.apply([replace(stale, epoch=stale.epoch + 1, title="Old"), ghost])
        index.apply([], [(lost, epochs[lost])])
        twice = index.get(cluster("/p4"))
    assert twice is not None
    with TantivyIndex(search_place(repo)) as folder:
        writer = folder._open_writer(15_000_000)
        writer.add_document(to_stored(twice, Analyzers()))
        writer.commit()
    bugs.expected |= {
        (10, "search", smallest("/p5"), "document"),
        (10, "search", smallest("/foreign"), "document.title"),
        (10, "search", smallest("/foreign"), "document.version"),
        (10, "search", smallest("/p4"), "document.version"),
        (10, "search", "?ghost", "document"),
    }
    overlook(repo)
    entered = {"key": "somewhere", "note": []}
    repo.run(lambda t: t.set(tables.exports.entry, "0/somewhere/1", entered))
    bugs.expected.add((11, "outbox", "", "what is left"))

    verdict = verify(repo.address, spark=spark, quiet=True)
    assert broken(verdict) == bugs.expected
    assert verdict.broken == list(range(1, 15))
    assert not verdict.holds
    assert verdict.unfinished == ["1 document waits to be exported."]
    said = "\n".join(verdict.sentences(6))
    assert f'hosts {counted}: live differs: found {{"indexable"' in said
    assert "search ?ghost: document should not be there" in said


@pytest.mark.long
def test_a_past_moment_is_judged_by_itself_and_work_that_waits_is_told_first(
    spark: SparkSession, repo: Repository, crawled: Path, tmp_path: Path
) -> None:
    past = repo.snapshot().start_ts
    later = Crawl().add(
        f"{SITE}/p1", html("Later", words(99), [("/p0", "home")]), WARC_Date="2025-05-05T00:00:00Z"
    )
    path = tmp_path / "later.warc.gz"
    path.write_bytes(later.data)
    load(repo, path)
    arguments = ["--repo", repo.address, "--json", "--crawl", str(crawled)]
    before = CliRunner().invoke(verify_command, [*arguments, "--at", str(past)])
    verdict = json.loads(before.stdout)
    # All but the present: the new capture waits to be parsed.
    assert [one["invariant"] for one in verdict["invariants"] if one["differing"]] == [11]
    assert verdict["invariants"][9]["note"] == "without the search index, which has no past"
    assert before.exit_code == 1

    now = CliRunner().invoke(verify_command, [*arguments[:2], "--most", "2"])
    assert now.exit_code == 1
    first, waiting, *_ = now.stdout.splitlines()
    assert first == "There is still work to do, so differences may settle:"
    assert waiting == "  1 changed cell of pages.capture waits for an observer."
    assert "1: pages " in now.stdout and "fingerprint differs" in now.stdout
    assert "more rows." in now.stdout

    work(repo)
    after = CliRunner().invoke(verify_command, ["--repo", repo.address])
    assert after.exit_code == 0, after.stdout
    assert "The index is what its captures make it." in after.stdout


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotARepositoryError, match="There is no repository at"):
        verify(tmp_path / "nowhere")
    with open_repository(str(tmp_path / "repo"), create=True) as repo:
        with pytest.raises(UsageError, match="There is no snapshot at 999"):
            verify(repo.address, at=999)
        with pytest.raises(NotAWarcError, match=r"nowhere\.warc"):
            verify(repo.address, crawl=[tmp_path / "nowhere.warc"])

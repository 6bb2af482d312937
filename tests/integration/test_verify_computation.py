"""The index computed from scratch, against what one can work out by hand or in a simple program."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from webindex.batch.components import smallest_of
from webindex.batch.expected import whole_index
from webindex.batch.facts import Facts
from webindex.batch.redirects import Led, follow
from webindex.observers.components import band_rows
from webindex.page.fingerprints import Sketch
from webindex.page.pointers import MAX_HOPS
from webindex.page.urls import page_id, page_row

SITE = "https://example.org"
PARTS = 2

pytestmark = pytest.mark.timeout(900)


def sketch_of(number: int) -> Sketch:
    """Of a hundred words, four are not those of the number before; tens have none in common."""
    rng = random.Random(number // 100)
    words = [rng.getrandbits(29) << 3 for _ in range(600)]
    at = 4 * (number % 100)
    return Sketch(tokens=1000, name=0, titled=True, values=tuple(sorted(words[at : at + 100])))


def live(path: str, number: int = 0, **more: Any) -> Facts:
    """A live page; its text follows from the number."""
    url = path if path.startswith("http") else SITE + path
    page = Facts(
        row=page_row(url),
        url=url,
        live=True,
        text=f"text {number}",
        served=f"text {number}",
        hash=f"text:{number:032x}",
        heading="c" * 16,
        sketch=sketch_of(number).pack(),
        title=f"title of {path}",
        language="en",
        indexable=True,
        links=[],
        pointer=None,
        rank=None,
        loaded_ms=1,
        digest="",
        captured="",
    )
    return page._replace(**more)


def redirect(path: str, target: str) -> Facts:
    """A page that redirects."""
    page = live(path, pointer=("redirect", SITE + target))
    return page._replace(live=False, text="", served="", hash="", heading=None, sketch=None)


def links(*paths: str, rel: str = "follow") -> list[list[Any]]:
    """Links to pages of the site, each with its path as the anchor."""
    return [[SITE + path, [path], rel] for path in paths]


def led(spark: SparkSession, pages: Iterable[Facts]) -> dict[str, Led]:
    """Where pages lead, by path."""
    found = follow(spark.sparkContext.parallelize(list(pages), PARTS), PARTS).collect()
    assert len({one.url for one in found}) == len(found)
    return {one.url.removeprefix(SITE): one for one in found}


def components(edges: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The smallest node of the component of each node, found one by one."""
    smallest: dict[str, str] = {}

    def root(node: str) -> str:
        while smallest.setdefault(node, node) != node:
            node = smallest[node]
        return node

    for one, other in edges:
        low, high = sorted((root(one), root(other)))
        smallest[high] = low
    return {node: root(node) for node in list(smallest)}


def test_walks_end_on_live_pages_within_the_most_hops(spark: SparkSession) -> None:
    chain = [redirect(f"/r{n}", f"/r{n + 1}" if n < 12 else "/end") for n in range(13)]
    found = led(spark, [*chain, live("/end")])
    # Page n follows 12 - n further redirects after its own.
    assert {path: one.hops for path, one in found.items()} == {
        f"/r{n}": 12 - n for n in range(13) if 12 - n <= MAX_HOPS
    }
    assert {one.end for one in found.values()} == {f"{SITE}/end"}


def test_walks_that_lead_nowhere_have_no_end(spark: SparkSession) -> None:
    pages = [
        redirect("/one", "/two"),
        redirect("/two", "/one"),
        redirect("/dangling", "/never-captured"),
        redirect("/to-gone", "/gone"),
        redirect("/gone", "/x")._replace(pointer=None),
        live("/self", pointer=("canonical", f"{SITE}/back")),
        redirect("/back", "/self"),
    ]
    found = led(spark, pages)
    assert set(found) == {"/back"}
    assert found["/back"] == Led(f"{SITE}/back", "redirect", f"{SITE}/self", 0, False)


def test_canonical_pages_count_if_they_are_plain_and_of_the_same_domain(
    spark: SparkSession,
) -> None:
    away = "https://other.net/page"
    pages = [
        live("/a", 1, pointer=("canonical", f"{SITE}/b")),
        live("/b", 2, pointer=("canonical", f"{SITE}/c")),
        live("/c", 3),
        live("/d", 4, pointer=("canonical", f"{SITE}/leaves")),
        redirect("/leaves", "/x")._replace(pointer=("redirect", away)),
        live(away, 5),
    ]
    found = led(spark, pages)
    assert {path: (one.end, one.plain, one.counts) for path, one in found.items()} == {
        "/a": (f"{SITE}/b", False, False),
        "/b": (f"{SITE}/c", True, True),
        "/d": (away, True, False),
        "/leaves": (away, True, True),
    }


@pytest.mark.parametrize("seed", range(2))
def test_components_are_those_of_the_graph(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    nodes = [f"n{number:03}" for number in range(150)]
    edges = [(rng.choice(nodes), rng.choice(nodes)) for _ in range(110)]
    found = smallest_of(spark.sparkContext.parallelize(edges, PARTS), PARTS).collectAsMap()
    assert found == {node: low for node, low in components(edges).items() if node != low}
    assert len(set(found.values())) > 5


def test_a_chain_of_sixty_near_duplicates_is_cut_into_groups_that_are_near_one_of_them(
    spark: SparkSession,
) -> None:
    numbers = list(range(60))
    random.Random(7).shuffle(numbers)
    pages = [live(f"/{n}", 100 + n, hash=f"text:{numbers[n]:032x}") for n in range(60)]
    index = whole_index(spark.sparkContext.parallelize(pages, PARTS), PARTS)
    placed = {int(page.url.rpartition("/")[2]): page for page in index.placed.collect()}
    assert len(placed) == len(pages)
    by_content = {page.content: n for n, page in placed.items()}
    for n, page in placed.items():
        leader = by_content[page.leader]
        assert abs(leader - n) <= 1
        assert placed[leader].leader == page.leader
        assert placed[leader].cluster == page.cluster


def test_an_index_of_a_few_pages_is_what_one_can_work_out_by_hand(spark: SparkSession) -> None:
    pages = [
        live("/a", 100, links=links("/b", "/old", "/c", "/never")),
        live("/b", 200, links=links("/b2", "/c")),
        live("/b2", 200, links=links("/c", rel="nofollow"), indexable=False, rank=5.0),
        live("/c", 300, pointer=("canonical", f"{SITE}/a")),
        live("/short", 9, heading=None, sketch=None, hash="bytes:9"),
        redirect("/old", "/b"),
    ]
    index = whole_index(spark.sparkContext.parallelize(pages, PARTS), PARTS)
    cells: dict[tuple[str, str, str], Any] = {
        (row.table, row.row, column): value
        for row in [*index.rows.collect(), *index.clusters.collect(), *index.hosts.collect()]
        for column, value in row.values.items()
    }
    ids = {path: page_id(SITE + path) for path in ("/a", "/b", "/b2", "/c", "/short", "/old")}
    rows = {path: page_row(SITE + path) for path in [*ids, "/never"]}
    two, alone = min(ids["/b"], ids["/b2"]), ids["/short"]
    first = min(ids["/a"], ids["/c"])

    b = pages[1].content
    assert cells["pages", rows["/b2"], "joined"] == {"cluster": two, "content": b, "target": None}
    assert cells["keys", b, "owner"] == {"cluster": two, "leader": b, "pages": 2}
    assert cells["keys", "text/bytes:9", "owner"] == {
        "cluster": alone,
        "leader": "text/bytes:9",
        "pages": 1,
    }
    joined = cells["pages", rows["/c"], "joined"]
    assert (joined["cluster"], joined["target"]) == (first, f"{SITE}/a")
    assert cells["pages", rows["/c"], "resolved"] == {
        "kind": "canonical",
        "url": f"{SITE}/a",
        "hops": 0,
        "plain": True,
    }
    via = {"url": f"{SITE}/old", "kind": "redirect"}
    assert cells["aliases", rows["/b"], f"via:{ids['/old']}"] == via
    assert cells["aliases", rows["/b"], f"from:{ids['/old']}"] == via
    row = band_rows(b, sketch_of(200))[0]
    assert cells["keys", row, "near"] == bytes.fromhex(f"{200:032x}")
    assert cells["keys", b, "sketch"] == sketch_of(200).pack()

    assert ("inlinks", rows["/never"], f"source:{ids['/a']}") in cells
    assert cells["inlinks", rows["/never"], "tally"] == {"links": 1, "anchors": {"/never": 1}}
    entry = f"99/{rows['/never'][0]}/{rows['/never'][3:]}"
    assert {(row, value) for (table, row, _), value in cells.items() if table == "frontier"} == {
        (entry, f"{SITE}/never")
    }
    assert cells["inlinks", rows["/old"], "tally"] == {"links": 1, "anchors": {"/old": 1}}
    assert cells["inlinks", rows["/c"], "tally"] == {"links": 2, "anchors": {"/c": 2}}
    assert ("inlinks", rows["/c"], f"source:{ids['/b2']}") in cells
    # /a links to /b and its redirect; /b links to /b2, which is within.
    document = cells["clusters", two, "document"]
    assert document == {
        "url": f"{SITE}/b",
        "title": "title of /b",
        "text": "text 200",
        "served": "text 200",
        "changed": "",
        "language": "en",
        "anchors": [["/b", 1], ["/old", 1]],
        "duplicates": [f"{SITE}/b2"],
        "aliases": [f"{SITE}/old"],
        "inlinks": 2,
        "rank": 0.0,
        "seen": {ids["/b"]: 1, ids["/b2"]: 1},
    }
    # /a's own link to /c is within; that of /b is not.
    document = cells["clusters", first, "document"]
    assert (document["inlinks"], document["anchors"]) == (1, [["/c", 1]])
    counted = [value for (table, _, _), value in cells.items() if table == "hosts"]
    assert sum(one["pages"] for one in counted) == 5
    assert sum(one["indexable"] for one in counted) == 4

"""The web index computed at one go from captures alone: what the chain of observers must come to.

Only the parser is shared with the code under test. `check` compares a repository at rest, and the
search index, with it: table by table, row by row, column by column.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations
from typing import Any

from percola import Repository, inspection
from webindex import tables
from webindex.crawl.warc import Capture, read_captures
from webindex.load.revisits import earlier_key, is_report_of
from webindex.load.transaction import describe
from webindex.page.changes import history_of
from webindex.page.pages import Page
from webindex.page.pages import parse as parse_page
from webindex.page.pointers import MAX_HOPS, pointer_of_capture
from webindex.page.urls import host, normalise, page_id, page_row, registrable_domain, surt
from webindex.sample import recrawl_path, sample_path
from webindex.serving import ServingDocument, TantivyIndex

Cells = dict[tuple[str, str, str], Any]
"""(table, row, column) → value, without what depends on time and on where a capture stands."""

_OF_TIME = ("loaded_ms", "changed", "file", "offset", "length", "seen", "epoch", "identical")

parse = lru_cache(maxsize=None)(parse_page)


@lru_cache(maxsize=1)
def sample() -> tuple[Capture, ...]:
    """The captures of the sample crawl."""
    return tuple(c for c in read_captures(sample_path()) if isinstance(c, Capture))


@lru_cache(maxsize=1)
def recrawl() -> tuple[Capture, ...]:
    """The captures of the sample's recrawl."""
    return tuple(c for c in read_captures(recrawl_path()) if isinstance(c, Capture))


def again(capture: Capture, *, seconds: float = 60.0, **changes: Any) -> Capture:
    """A later capture of the same page; an earlier one with negative seconds."""
    return replace(capture, date=capture.date + timedelta(seconds=seconds), **changes)


def gone(capture: Capture, *, seconds: float = 60.0) -> Capture:
    """A later capture that found the page gone."""
    return again(capture, seconds=seconds, status=404, body=b"")


@dataclass
class Index:
    """What a web index of some captures has to hold.

    `documents` are by the set of URLs that they stand for; so are `clusters` named in `cells`,
    by their first URL, because their names in a repository are random. `texts` are all texts of the
    links that vouch for a page, by its row; `totals` are by the names of clusters.
    """

    cells: Cells
    texts: dict[str, Counter[str]]
    documents: dict[str, dict[str, Any]]
    pages: dict[str, Page]
    totals: dict[str, Totals]


@dataclass
class Totals:
    """The sums over the pages of a cluster, and the redirects that lead there."""

    pages: int
    aliases: list[str]
    links: int
    anchors: Counter[str]


WINDOW, REPEATED = 16, 8
MOST_URLS = MOST_ANCHORS = 50
"""Duplicates, redirects and anchors that a document has; tests replace them."""


def compute(captures: Iterable[Capture], ranks: Mapping[str, float] | None = None) -> Index:
    """Compute the whole index in one pass, given the PageRank of some pages by URL."""
    newest: dict[str, tuple[Any, dict[str, Any], bytes]] = {}
    for one in captures:
        url = normalise(one.url)
        if one.status >= 500 or one.status in (408, 416, 429):
            continue  # It says nothing about the page.
        seen = described(one, url)
        age = newness(seen)
        if url not in newest or newest[url][0] < age:
            newest[url] = age, seen, one.body

    cells: Cells = {}
    pages: dict[str, Page] = {}
    pointers: dict[str, dict[str, str]] = {}
    for url, (_, seen, body) in newest.items():
        row = page_row(url)
        cells["pages", row, "capture"] = seen
        cells["pages", row, "body"] = body
        page = None
        if 200 <= seen["status"] < 300:
            headers = ("content_type", "robots", "link", "language", "refresh")
            page = parse(body, url, *(seen[name] for name in headers))
        pointer = pointer_of_capture(seen, page)
        if pointer is not None:
            pointers[url] = pointer
            cells["pages", row, "pointer"] = pointer
            entry = {"url": url, "kind": pointer["kind"]}
            cells["aliases", page_row(pointer["url"]), f"from:{page_id(url)}"] = entry
        if page is not None and page.refresh is None:
            pages[url] = page
    for url, page in pages.items():
        row = page_row(url)
        cells["pages", row, "text"] = page.text
        cells["pages", row, "outline"] = page.outline
        cells["pages", row, "fingerprint"] = {
            **shown(page),
            "hash": page.text_hash,
            "heading": page.heading,
            **{name: True for name in ("noarchive", "nosnippet") if getattr(page, name)},
        }
        if page.sketch is not None:
            cells["pages", row, "sketch"] = page.sketch.pack()
        if page.links:
            links = [[link.url, list(link.anchors), link.rel] for link in page.links]
            cells["pages", row, "links"] = links
            cells["pages", row, "inverted"] = sorted(links)
        for link in page.links:
            entry = {"url": url, "anchors": list(link.anchors), "rel": link.rel}
            cells["inlinks", page_row(link.url), f"source:{page_id(url)}"] = entry
        if ranks and url in ranks:
            cells["pages", row, "rank"] = ranks[url]

    parts = {url: page.text for url, page in pages.items()}
    for url, repeated in _repeated(pages).items():
        row = f"{host(url)}/{page_id(url)}"
        blocks = pages[url].outer_blocks or {}
        cells["blocks", row, "outer"] = {**blocks, "url": url}
        if repeated:
            cells["blocks", row, "repeated"] = repeated
        start = [end + 1 for one, end in blocks["first"] if one in repeated]
        stop = [begin - 1 for one, begin in blocks["last"] if one in repeated]
        part = parts[url][max(start, default=0) : min(stop, default=len(parts[url]))]
        if len(part) >= 40:
            parts[url] = part

    leads = _follow(pages, pointers)
    targets: dict[str, str] = {}
    redirects: defaultdict[str, set[str]] = defaultdict(set)
    for url, (end, hops) in leads.items():
        kind, plain = pointers[url]["kind"], end not in pointers
        resolved = {"kind": kind, "url": end, "hops": hops, "plain": plain}
        cells["pages", page_row(url), "resolved"] = resolved
        if kind == "redirect":
            redirects[end].add(url)
        elif plain and registrable_domain(url) == registrable_domain(end):
            targets[url] = end
        else:
            continue
        cells["aliases", page_row(end), f"via:{page_id(url)}"] = {"url": url, "kind": kind}

    tallies = _tallies(pages)
    redirecting = {url for url, pointer in pointers.items() if pointer["kind"] == "redirect"}
    for url in tallies.keys() - (newest.keys() - pages.keys() - redirecting):
        count, anchors = tallies[url]
        of_links = {text: anchors[text] for text in _most_frequent(anchors)}
        cells["inlinks", page_row(url), "tally"] = {"links": count, "anchors": of_links}
        if url not in newest:
            level = sum(count >= least for power in range(20) for least in _levels(power))
            row = page_row(url)
            cells["frontier", f"{99 - level:02}/{row[0]}/{row[3:]}", "url"] = url

    documents = {}
    totals = {}
    owners: dict[str, dict[str, Any]] = {}
    bands: defaultdict[str, set[str]] = defaultdict(set)
    leaders = _leaders(pages.values())
    live: defaultdict[str, dict[str, int]] = defaultdict(lambda: {"pages": 0, "indexable": 0})
    for group in _components(pages, targets):
        name = min(group)
        for url in group:
            page, content = pages[url], _content(pages[url])
            keys = {"content": content, "target": targets.get(url)}
            if url in targets:
                cells["aliases", page_row(targets[url]), f"named:{page_id(url)}"] = 1
            cells["pages", page_row(url), "joined"] = {"cluster": name, **keys}
            leader = leaders.get(content, content)
            member = {**shown(page), **keys, "leader": leader}
            cells["clusters", name, f"member:{page_id(url)}"] = member
            owner = {"cluster": name, "leader": leader, "pages": 0}
            owners.setdefault(content, owner)["pages"] += 1
            if page.sketch is not None:
                cells["keys", content, "sketch"] = page.sketch.pack()
                for band in page.sketch.bands:
                    bands[f"band/{page.heading}/{band}"].add(page.text_hash.partition(":")[2])
            counter = live[f"{host(url)}/{page_id(url)[:2]}"]
            counter["pages"] += 1
            counter["indexable"] += not page.noindex
        document, totals[name] = _document(
            [pages[url] for url in group], redirects, tallies, ranks or {}
        )
        if document is not None:
            document["text"] = parts[document["url"]]
            documents[name] = cells["clusters", name, "document"] = document
    for content, owner in owners.items():
        cells["keys", content, "owner"] = owner
    for row, texts in bands.items():
        cells["keys", row, "near"] = bytes.fromhex("".join(sorted(texts)))
    for row, counter in live.items():
        cells["hosts", row, "live"] = counter
    texts = {page_row(url): anchors for url, (_, anchors) in tallies.items()}
    return Index(cells, texts, documents, pages, totals)


def newness(seen: Mapping[str, Any]) -> tuple[str, ...]:
    """The later capture counts; of two at one moment a page, or else always the same one."""
    rest = ("digest", "status", "content_type", "robots", "location", "link", "language", "refresh")
    page = "page" if 200 <= seen["status"] < 300 else ""
    return seen["date"], page, *(str(seen[name]) for name in rest)


def described(one: Capture, url: str) -> dict[str, Any]:
    """What is to be known of a capture."""
    seen = describe(one, url, "")
    return {name: value for name, value in seen.items() if name not in _OF_TIME}


def shown(page: Page) -> dict[str, Any]:
    """What a cluster knows of its member."""
    return {
        "url": page.url,
        "title": page.title,
        "language": page.language,
        "indexable": not page.noindex,
    }


def _follow(
    pages: Mapping[str, Page], pointers: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, int]]:
    """Where each pointer leads in the end, and after how many redirects; those that do."""
    found = {}
    for url, pointer in pointers.items():
        at, hops = pointer["url"], 0
        while at not in pages and at in pointers and hops <= MAX_HOPS:
            at, hops = pointers[at]["url"], hops + 1
        if at in pages and hops <= MAX_HOPS and at != url:
            found[url] = at, hops
    return found


def _repeated(pages: Mapping[str, Page]) -> dict[str, list[str]]:
    """The blocks of each page that `REPEATED` of it and those after it on its host have.

    In the order of their ids, after the last of which the first comes again.
    """
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for url in sorted((url for url, page in pages.items() if page.outer_blocks), key=page_id):
        hosts[host(url)].append(url)
    found = {}
    for urls in hosts.values():
        for at, url in enumerate(urls):
            repeated: set[str] = set()
            sample = {(urls * WINDOW)[at + n] for n in range(WINDOW)}
            for side in ("first", "last"):
                for one, _ in (pages[url].outer_blocks or {})[side]:
                    having = [u for u in sample if one in str(pages[u].outer_blocks)]
                    if len({pages[u].text for u in having}) < REPEATED:
                        break
                    repeated.add(one)
            found[url] = sorted(repeated)
    return found


def _content(page: Page) -> str:
    if page.heading is None:
        return f"text/{page.text_hash}"
    return f"near/{page.heading}/{page.text_hash.removeprefix('text:')}"


def _leaders(pages: Iterable[Page]) -> dict[str, str]:
    """The leader of each content of a long page: the first one before it that leads and is near."""
    found: dict[str, str] = {}
    texts = {_content(page): page for page in pages if page.sketch is not None}
    for content, page in sorted(texts.items()):
        before = (one for one in found if found[one] == one and _near(texts[one], page))
        found[content] = min(before, default=content)
    return found


def _near(one: Page, other: Page) -> bool:
    assert one.sketch is not None and other.sketch is not None
    return (
        one.heading == other.heading
        and not set(one.sketch.bands).isdisjoint(other.sketch.bands)
        and one.sketch.is_near(other.sketch)
    )


def _components(pages: Mapping[str, Page], targets: Mapping[str, str]) -> Iterator[list[str]]:
    """Clusters, by comparing every page with every other one."""
    beside: defaultdict[str, set[str]] = defaultdict(set)
    leaders = _leaders(pages.values())
    for one, other in combinations(pages, 2):
        mine, its = _content(pages[one]), _content(pages[other])
        near = leaders.get(mine, mine) == leaders.get(its, its)
        if near or targets.get(one) == other or targets.get(other) == one:
            beside[one].add(other)
            beside[other].add(one)
    left = set(pages)
    while left:
        group, border = set(), {left.pop()}
        while border:
            group |= border
            border = {other for one in border for other in beside[one]} - group
        left -= group
        yield sorted(group)


def _tallies(pages: Mapping[str, Page]) -> dict[str, tuple[int, Counter[str]]]:
    """The links that vouch for each URL, and their anchors."""
    found: dict[str, tuple[int, Counter[str]]] = {}
    for page in pages.values():
        for link in page.links:
            if link.rel == "follow":
                count, anchors = found.get(link.url, (0, Counter()))
                found[link.url] = count + 1, anchors + Counter(link.anchors)
    return found


def _levels(power: int) -> set[int]:
    """From which numbers of links on levels of the frontier begin, of those below 2^(power+1)."""
    return {2**power, 3 * 2**power // 2} - {1}


def _most_frequent(texts: Mapping[str, int]) -> list[str]:
    """The texts that count of those of one page."""
    return sorted(texts, key=lambda text: (-texts[text], text))[: tables.MOST_TEXTS]


def _large(found: Cells, expected: Index) -> Cells:
    """The cells that serve to count links, of pages that were found to be large.

    When a page becomes large depends on when its links were counted.
    """
    cells: Cells = {}
    for (table, row, column), large in found.items():
        if (table, column) != ("inlinks", "large") or (table, row, "tally") not in expected.cells:
            continue
        texts = expected.texts[row]
        if len(texts) > tables.MOST_TEXTS:
            large = 2
        cells[table, row, column] = large
        if large == 2:
            cells |= _texts("anchors", row, texts, _most_frequent(texts))
    return cells


def by_part(
    texts: Mapping[str, int],
    shown: Collection[str],
    part_of: Callable[[str], str] = lambda text: blake2b(text.encode(), digest_size=1).hexdigest(),
) -> tuple[dict[str, dict[str, int]], dict[str, list[Any]]]:
    """Texts with their numbers by the part that they are in; of each part the best not shown."""
    parts: dict[str, dict[str, int]] = {}
    best: dict[str, list[Any]] = {}
    for text, number in texts.items():
        part = part_of(text)
        parts.setdefault(part, {})[text] = number
        if text not in shown and number > 0:
            best[part] = min(best.get(part, [0, ""]), [-number, text])
    return parts, best


def _texts(table: str, row: str, texts: Mapping[str, int], shown: Collection[str]) -> Cells:
    """The cells of a row with all texts of links."""
    parts, best = by_part(texts, shown)
    cells: Cells = {(table, row, f"texts:{part}"): some for part, some in parts.items()}
    return cells | ({(table, row, "best"): best} if best else {})


def _large_clusters(found: Cells, expected: Index) -> Cells:
    """The cells of clusters that were found to be large: that depends on what they have been."""
    cells: Cells = {}
    for table, name, column in found:
        if (table, column) != ("clusters", "size") or name not in expected.totals:
            continue
        totals = expected.totals[name]
        members = {
            of: value
            for (where, row, of), value in expected.cells.items()
            if (where, row) == ("clusters", name) and of.startswith("member:")
        }
        cells["clusters", name, "size"] = len(members)
        orders = {}
        for of, one in members.items():
            url = one["url"]
            cells["pages", page_row(url), "shared"] = name
            rank = expected.cells.get(("pages", page_row(url), "rank"), 0.0)
            order = [-rank, not url.startswith("https:"), len(url), url]
            if one["indexable"]:
                orders[of.replace("member", "entry")] = [*order, one["title"], one["language"]]
        for page, order in orders.items():
            cells["summaries", name, page] = order
        if orders:
            cells["summaries", name, "first"] = min(orders.values())
        shown = {text: totals.anchors[text] for text in _most_frequent(+totals.anchors)}
        cells["summaries", name, "totals"] = {
            "pages": totals.pages,
            "aliases": len(totals.aliases),
            "links": totals.links,
            "anchors": shown,
        }
        texts = {text: number for text, number in totals.anchors.items() if number}
        cells |= _texts("summaries", name, texts, shown)
        for url in totals.aliases:
            cells["summaries", name, url] = "redirect"
    return cells


def _document(
    group: list[Page],
    redirects: Mapping[str, set[str]],
    tallies: Mapping[str, tuple[int, Counter[str]]],
    ranks: Mapping[str, float],
) -> tuple[dict[str, Any] | None, Totals]:
    """The serving document of a cluster, if it has one, and the sums over its pages."""

    def order(p: Page) -> tuple[Any, ...]:
        return p.noindex, -ranks.get(p.url, 0), p.url.startswith("http:"), len(p.url), p.url

    group.sort(key=order)
    canonical, *others = group
    aliases = sorted(one for page in group for one in redirects.get(page.url, ()))
    inside = {page.url for page in group} | set(aliases)
    count, anchors = 0, Counter[str]()
    for url in inside:
        links, texts = tallies.get(url, (0, Counter()))
        links_of = (link for page in group for link in page.links if link.rel == "follow")
        within = [link for link in links_of if link.url == url]
        count += links - len(within)
        anchors.update({text: texts[text] for text in _most_frequent(texts)})
        anchors.subtract(text for link in within for text in link.anchors)
    totals = Totals(len(group), aliases, count, anchors)
    if canonical.noindex:
        return None, totals
    common = sorted((+anchors).items(), key=lambda one: (-one[1], one[0]))
    first = sorted((page.url for page in others), key=page_id)[:MOST_URLS]
    leading = sorted(aliases, key=page_id)[:MOST_URLS]
    more = len(others) + len(aliases) - len(first) - len(leading)
    document = {
        "url": canonical.url,
        "title": canonical.title,
        **canonical.outline,
        "language": canonical.language,
        "anchors": [list(one) for one in common[:MOST_ANCHORS]],
        "duplicates": sorted(first),
        "aliases": sorted(leading),
        **({"more": more} if more else {}),
        "inlinks": count,
        "rank": ranks.get(canonical.url, 0.0),
    }
    return document, totals


def held(repo: Repository) -> Cells:
    """What a repository holds, in the same form: clusters named by their first URL."""
    now = repo.snapshot()
    names = {}
    for row in now.scan(tables.clusters):
        members = row.family(tables.member)
        names[row.key] = min((one["url"] for one in members.values()), default=row.key)
    found: Cells = {}
    left_out = {tables.journal, tables.ranks, tables.payloads, tables.waiting, tables.removals}
    left_out.add(tables.recrawls)  # see `check_recrawls`
    for table in (t for t in tables.SCHEMA if t not in left_out):
        for row in now.scan(table):
            if table is tables.summaries:
                found |= _summary(row, names)
                continue
            key = names[row.key] if table is tables.clusters else row.key
            for column, value in row.items():
                # What a page was: see test_revisits.py.
                was = column.name.startswith("earlier") or column == tables.revisited
                if was or column == tables.recrawl:
                    continue
                if column == tables.shared:
                    value = names.get(value["cluster"])
                if column in (tables.joined, tables.owner):
                    value = {**value, "cluster": names.get(value["cluster"])}
                if table is not tables.anchors:
                    value = _timeless(column.name, value)
                found[table.name, key, column.name] = value
    _first_of_nodes(found)
    return found


def _summary(row: Any, names: Mapping[str, str]) -> Cells:
    """A node's cells as those of its tree: where in a tree an entry is depends on its past."""
    root, below, _ = row.key.partition("/")
    cells: Cells = {}
    for column, value in row.items():
        kind = column.name.partition(":")[0]
        name = names.get(root, root)
        if kind in ("entry", "sub"):
            value = value[:-1]  # `changed` of the elected page depends on time.
        if kind == "alias":
            cells["summaries", name, value] = "redirect"
        elif kind == "sub":
            if not below:
                cells["summaries", name, column.name] = value
        elif kind != "split":
            cells["summaries", name, column.name] = value
            if kind == "entry" and not below:
                cells["summaries", name, f"sub:{column.name}"] = value
    return cells


def _first_of_nodes(cells: Cells) -> None:
    """Replace what is at the root of a tree and below it by the first of these."""
    for cell in [cell for cell in cells if cell[0] == "summaries" and cell[2].startswith("sub:")]:
        first = (*cell[:2], "first")
        value = cells.pop(cell)
        cells[first] = min(cells.get(first, value), value)


def check_recrawls(repo: Repository) -> None:
    """Fail unless each live page and redirect is due when its past and its rank say."""
    expected: dict[str, str] = {}
    with repo.snapshot() as now:
        for row in now.scan(tables.pages, columns=[tables.capture]):
            page = now.get_row(tables.pages, row.key)
            redirects = (page.get(tables.pointer) or {}).get("kind") == "redirect"
            entry = None
            if tables.fingerprint in page or redirects:
                capture = page[tables.capture]
                rank = (page.get(tables.rank) or {"value": 0.0})["value"]
                level = 99
                if rank:
                    level = next(n for n in range(99) if rank >= 2 ** ((49 - n) / 2) or n == 98)
                due = _due(capture, page.get(tables.earlier), page.get(tables.revisited))
                entry = f"{level:02}/{due}/{page_id(capture['url'])}"
                expected[entry] = capture["url"]
            assert page.get(tables.recrawl) == entry, row.key
        entries = {one.key: one[tables.recrawl_url] for one in now.scan(tables.recrawls)}
    assert entries == expected


def _due(capture: Any, earlier: Any, revisited: Any) -> str:
    seen = {}
    for one in [*(earlier or {}).values(), capture]:
        content = earlier_key(one)
        seen |= dict.fromkeys([*(one.get("identical") or {}), one["date"]], content)
    if revisited:
        dates = [one["date"] for one in revisited["reports"] if is_report_of(one, capture)]
        dates += [revisited["seen"]] if revisited["seen"] else []
        seen |= {date: earlier_key(capture) for date in dates if date > capture["date"]}
    return history_of(seen.items()).due


def _timeless(column: str, value: Any) -> Any:
    if column == "body":
        return zlib.decompress(value)
    if column == "inverted":
        return sorted(value)
    if column == "rank":
        return value["value"]
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name not in _OF_TIME}
    return value


def check(
    repo: Repository,
    index: TantivyIndex,
    captures: Iterable[Capture],
    *,
    dead_lettered: int = 0,
    ranks: Mapping[str, float] | None = None,
) -> Index:
    """Fail unless the repository is at rest and holds what `compute` makes of the captures."""
    at_rest(repo, dead_lettered=dead_lettered)
    expected = compute(captures, ranks)
    found = held(repo)
    expected.cells |= _large(found, expected)
    expected.cells |= _large_clusters(found, expected)
    wrong = [
        f"{' / '.join(cell)}\n    found    {_short(found.get(cell))}"
        f"\n    expected {_short(expected.cells.get(cell))}"
        for cell in sorted(found.keys() | expected.cells.keys())
        if found.get(cell) != expected.cells.get(cell)
    ]
    assert not wrong, f"{len(wrong)} cells differ:\n" + "\n".join(wrong[:12])
    check_recrawls(repo)
    check_serving(repo, index, expected)
    return expected


def mentions(repo: Repository, name: str) -> list[str]:
    """The cells that name a URL or host, by its text, its SURT or its id; removals aside."""
    address = name if "://" in name else f"https://{name}/"
    short = surt(address).removesuffix(")/") if "://" not in name else surt(address)
    sought = (name, short, page_id(address))
    with repo.snapshot() as now:
        cells = [
            (table.name, f"{row.key} {column.name} {value!r}")
            for table in tables.SCHEMA
            if table is not tables.removals
            for row in now.scan(table)
            for column, value in row.items()
        ]
    return [f"{name} {text[:200]}" for name, text in cells if any(one in text for one in sought)]


def check_serving(repo: Repository, index: TantivyIndex, expected: Index) -> None:
    """Fail unless search shows exactly the documents, at the epochs that the repository has."""
    held_now = {
        row.key: row[tables.document]
        for row in repo.snapshot().scan(tables.clusters, columns=[tables.document])
    }
    shown = Counter(index.clusters())
    held = Counter((name, one["epoch"]) for name, one in held_now.items())
    assert shown == held, f"only shown: {shown - held}, only in the repository: {held - shown}"
    counts = index.count(), len(held_now), len(expected.documents)
    assert len({*counts}) == 1, f"shown, in the repository, expected: {counts}"
    by_url = {one["url"]: one for one in expected.documents.values()}
    for name, one in held_now.items():
        document = by_url[one["url"]]
        lists = ("duplicates", "aliases", "headings")
        fields = {**document, **{field: tuple(document[field]) for field in lists}}
        fields["anchors"] = tuple((words, count) for words, count in document["anchors"])
        fields |= {"cluster": name, "epoch": one["epoch"], "changed": one["changed"]}
        assert index.get(name) == ServingDocument(host=host(document["url"]), **fields)


def at_rest(repo: Repository, *, dead_lettered: int = 0) -> None:
    """Fail if work, a lock or an unexpected failure is left."""
    assert repo.pending() == {}
    assert list(inspection.locks(repo)) == []
    failed = list(inspection.failures(repo))
    assert len(failed) == dead_lettered, [(one.observer, one.traceback) for one in failed]
    # What counts as loaded in a document is what its members say.
    for row in repo.snapshot().scan(tables.clusters):
        document = row.get(tables.document)
        if document is not None:
            members = row.family(tables.member)
            loaded = {name: one["loaded_ms"] for name, one in members.items()}
            assert document["seen"] == ({} if tables.size in row else loaded)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}…"

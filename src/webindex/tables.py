"""The tables of the web index, described before the code that declares them.

A page is identified by its normalised URL. Its row in `pages` is `page_row(url)` (the SURT after
two hex digits of a hash, so that no tablet becomes a hot spot); in columns and values,
`page_id(url)` is its short name. A page is *live* while its newest capture can be read: status 2xx
and no redirect by its markup. Only live pages have a fingerprint.

pages, one row for each captured page:
    capture       what the page is: URL, date, status, headers, its position in its WARC file,
                  and when it was loaded. The newest capture, or one built from a newer
                  revisit and its `original`: {url, date, file}; see `webindex.load.revisits`.
                  Observed: a new capture is parsed.
    body          its bytes, compressed with zlib; of a PDF document, what was read from it
    revisited     {seen, reports}: when a crawler last saw the page unchanged, and at most 4
                  reports of revisits newer than the newest capture
    unresolved    how many reports newer than `capture` have no known original
    earlier       captures older than `capture`, at most 4, each of another payload, by KEY; more
                  while revisits refer to them. With the payload of `capture`: one without a body,
                  loaded after it, to whose date and `identical` revisits may refer
    earlier_body:KEY  their bytes, compressed with zlib
    settle        weak: reports of this page, or captures they may refer to, have changed
    offer         weak: older captures of this page were loaded that revisits may refer to
    text          the visible text, as extracted by the parser
    outline       {headings, linked}: its headings, and the share of its text that is links
    fingerprint   what clusters and displays the page: text hash, heading, title, language,
                  whether it may be indexed; and since when: `changed` is the date of the capture
                  that changed one of these or the text. Deleted when the page is not live.
    sketch        the words used to detect near-duplicates (`fingerprints.Sketch`); absent for a
                  page that is too short
    links         its outgoing links: [URL, anchors, rel] each. Observed.
    inverted      the links that are currently entered in `inlinks`
    pointer       the page that it names as its replacement: a redirect's target, or the canonical
                  page that a live page declares: {kind, url}
    resolved      the live page at the end of the pointer's chain: {kind, url, hops, plain}
    rank          PageRank, 1 being the mean of all pages: {value, run, links}, the run being the
                  timestamp of the snapshot that it was computed from, and links the number of edges
                  from the page, if there are any. Of a page that is newer than the last run, an
                  estimate: {value, run, interim}; see `webindex.observers.interim`
    recrawl       the row in `recrawls` of a live page or redirect
    joined        the cluster of a live page, and the keys that put it there:
                  {cluster, content, target}
    shared        what a page has added to the summary of a large cluster; see
                  `webindex.observers.summaries`
    resolve       weak: the pointer, or a page along its chain, has changed
    join          weak: the fingerprint or the resolved target has changed
    share         weak: what this page adds to the summary of a large cluster may have changed

payloads, rows `KEY/ID`: which pages have a payload, KEY being a hash of its digest:
    held          the URL of the page ID: its `capture` or one of `earlier` has this payload

waiting, rows `KEY/ID`: pages with a revisit that refers to a payload, or to a capture of another
page: then KEY is `at-` and the id of that page. Rows `KEY` record that such rows exist:
    for           on a row `KEY/ID`, the URL of the page ID
    wanted        on a row `KEY`: some page has waited under this key
    wake          weak: a capture was loaded that pages may wait for; on a row `KEY/ID`, the rows
                  after it have still to be notified

The first row of a payload in `payloads` leads to a capture of another page. `waiting` is scanned
in steps to find the pages that wait: no cell grows with the number of pages that share a
payload, and loaders of the same payload never write the same cell. Bodies of earlier captures
belong to their page and are not reference-counted: a page whose revisit refers to another page
gets a copy of the body, so it does not depend on what that page keeps. On LMDB a capture costs a
row of 360 bytes in `payloads`; each of at most 4 earlier captures 7 KB with its body, which is
3.4 KB when compressed.

aliases, one row for each page that another page points to, captured or not, named as in `pages`:
    from:ID       a page whose pointer names this one: {url, kind}
    via:ID        a page whose pointer chain ends here: {url, kind}
    named:ID      1: a page is in a cluster as one whose canonical page is this one; repositories of
                  earlier versions have it for large clusters
    changed       weak: whether this page is live, or where it points, has changed

inlinks, one row for each page that is linked to, captured or not, named as in `pages`:
    source:ID     a page that links here: its URL, its anchors and the rel of the link
    tally         totals of the links that vouch for the page, if it is live, a redirect, or was
                  never captured: {links, anchors: {text: count}}, with the `MOST_TEXTS` most
                  frequent texts
    large         there are so many in-links that changes are added to `tally`: 1; 2 if their texts
                  are in `anchors`; see `webindex.observers.inlinks`
    delta:N       changes that are not in `tally` yet: {links, anchors: {text: count}}
    changed       weak: all in-links have to be counted: some have changed, or whether they count
    added         weak: there are deltas

anchors, the texts of the links to a page, if it is large and has more than `MOST_TEXTS` of them;
rows are named as in `pages`:
    texts:HH      {text: count} of the texts whose hash begins with HH
    best          {HH: [-count, text]}: the most frequent text of `texts:HH` that is not in the
                  tally; see `webindex.observers.texts`

frontier, rows `LEVEL/DIGIT/REST`: URLs with a tally and without a capture, those with most links
first, then URLs that are in `listed` and without a capture; see `webindex.observers.frontier`.
    url           the URL

sitemaps, one row for each captured sitemap and robots.txt, named as in `pages`; see
`webindex.observers.sitemaps`:
    capture       the newest capture: {url, date, kind, digest, file, …}. Observed.
    body          its bytes, compressed with zlib
    entered:HH    {sitemap, urls: {URL: lastmod}}: those of the URLs that it lists whose ids begin
                  with HH, as entered in `listed`
    more          weak: not all that it lists is entered, or taken back, yet

listed, one row for each URL that a sitemap or robots.txt lists, captured or not, named as in
`pages`:
    by:ID         a sitemap that lists it: {url, sitemap, modified}
    changed       weak: which ones list it, or whether it was captured, has changed

recrawls, rows `LEVEL/DATE/ID`: pages by rank and by when they are due for another crawl; see
`webindex.load.recrawls`.
    url           the page

keys, what live pages have in common (§3.1), one row for each value:
    near/HEADING/HASH
                  a content, which is a title and a text: `owner`, the cluster of all pages that
                  have it, their number, and the content that leads it; `sketch`, its sketch
    text/HASH     `owner`, in the same way, for pages so short that only their bytes are compared
    band/HEADING/N/WORDS
                  `near`: the contents with this heading that have these words in the Nth places
                  of their sketches, 16 bytes each, in order

clusters, one row for each set of live pages that are one document to a reader; names are random:
    member:ID     a page of the cluster: its keys, and what a document shows of it
    size          how many members a large cluster has; others have none. Locked by each transaction
                  that changes the set of members
    changed       weak: members, their in-links, aliases or ranks have changed; of a large cluster,
                  any of them may have
    document      what the search index shows of the cluster; deleted when it shows nothing

summaries, rows `CLUSTER` and `CLUSTER/HH`: what the members of a large cluster add up to; see
`webindex.observers.summaries`:
    entry:ID, sub:HH, split
                  the nodes of a tree whose root has the canonical page (`percola.recipes.Nodes`)
    delta:N       changes that are not in `totals` yet
    totals        {pages, aliases, links, anchors: {text: count}}; and `until`, if fewer pages than
                  that have been added since the cluster became large
    texts:HH, best
                  all texts of the links, as in `anchors`
    alias:ID      a redirect that leads to a member
    due           weak: a node, or `totals`, has to be computed

hosts, rows `HOST/BB`, one for each first byte of a page id, so that pages rarely conflict there:
    live          how many pages of the host are live, and how many of them may be indexed

blocks, rows `HOST/ID`, one for each live page with such blocks; see `webindex.observers.repeated`:
    outer         the first and last blocks of its text (`webindex.page.outer_blocks`), and its URL
    repeated      the digests of those that its host repeats around the texts of its pages
    changed       weak: which blocks are repeated on it and on the pages before it may have changed

outbox, rows `WINDOW/CLUSTER/EPOCH`: documents that have changed and are not in the search index
yet; see `percola.recipes.Export`.
    entry         {key, note}: the cluster, and when the captures that caused it were loaded
    refused       an entry of a document that the search index refuses, and why
    entered       on rows `entered/WINDOW/CLUSTER/EPOCH`: the witness of an entry
    ready         weak, on the rows `WINDOW`: the window has entries to export

ranks, rows `00` to `ff`, one for each first byte of a page id:
    run           the newest run of the PageRank job: only this run may write ranks of these pages

removals, what was removed by request, and what is not loaded again: until which `WARC-Date`, or, if
`until` is None, ever (a block); see `webindex.load.removals`:
    page          on a row named as in `pages`: {url, until, at_ms}
    under:KEY     on a row `host/NAME`: {prefix, until, at_ms}; an empty prefix is the whole host
    erase         weak, on a row named as in `pages`: something of this page is there that was
                  removed: a loader had begun before the removal

journal, rows `KIND/TIMESTAMP`: reports of jobs and exports, for the summary; see
`webindex.journal` for how many are kept.
    report        one dictionary; on the row `load`, the total of the loads that are not kept
    on the row `search`, where the search index is, if `webindex reindex --index` has moved it
    trimmed       on a row `KIND`: below which row everything was removed
    trim          weak, on the row `export`: there is a new report of an export

`webindex.rendering.tables` describes those of resources and rendered pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from percola import JSON, Column, Table, Transaction
from percola.recipes import MIN, Export, Nodes
from webindex.rendering.tables import TABLES as RENDERING

pages: Final = Table("pages")
capture: Final = pages.column("capture", JSON, observed=True)
body: Final = pages.column("body", bytes)
revisited: Final = pages.column("revisited", JSON)
unresolved: Final = pages.column("unresolved", int)
earlier: Final = pages.column("earlier", JSON)
earlier_body: Final = pages.family("earlier_body", bytes)
settle_due: Final = pages.weak_column("settle")
offer_due: Final = pages.weak_column("offer")
text: Final = pages.column("text", str)
outline: Final = pages.column("outline", JSON)
sketch: Final = pages.column("sketch", bytes)
fingerprint: Final = pages.column("fingerprint", JSON)
links: Final = pages.column("links", JSON, observed=True)
inverted: Final = pages.column("inverted", JSON)
pointer: Final = pages.column("pointer", JSON)
resolved: Final = pages.column("resolved", JSON)
rank: Final = pages.column("rank", JSON)
joined: Final = pages.column("joined", JSON)
recrawl: Final = pages.column("recrawl", str)
shared: Final = pages.column("shared", JSON)
resolve_due: Final = pages.weak_column("resolve")
join_due: Final = pages.weak_column("join")
share_due: Final = pages.weak_column("share")

payloads: Final = Table("payloads")
held: Final = payloads.column("held", str)

waiting: Final = Table("waiting")
waits_for: Final = waiting.column("for", str)
wanted: Final = waiting.column("wanted", int)
wake_due: Final = waiting.weak_column("wake")

aliases: Final = Table("aliases")
points_here: Final = aliases.family("from", JSON)
leads_here: Final = aliases.family("via", JSON)
named_by: Final = aliases.family("named", int)
aliases_changed: Final = aliases.weak_column("changed")

inlinks: Final = Table("inlinks")
source: Final = inlinks.family("source", JSON)
tally: Final = inlinks.column("tally", JSON)
large: Final = inlinks.column("large", int)
delta: Final = inlinks.family("delta", JSON)
inlinks_changed: Final = inlinks.weak_column("changed")
inlinks_added: Final = inlinks.weak_column("added")

IN_TALLY: Final = 1
IN_ANCHORS: Final = 2
"""Values of `large`: where all texts of a large page are."""

MOST_TEXTS: Final = 64
"""Texts of the links to one page that its tally has, and a document can show."""


anchors: Final = Table("anchors")
texts: Final = anchors.family("texts", JSON)
best: Final = anchors.column("best", JSON)

frontier: Final = Table("frontier")
uncaptured: Final = frontier.column("url", str)

sitemaps: Final = Table("sitemaps")
sitemap: Final = sitemaps.column("capture", JSON, observed=True)
sitemap_body: Final = sitemaps.column("body", bytes)
sitemap_entered: Final = sitemaps.family("entered", JSON)
sitemap_more: Final = sitemaps.weak_column("more")

listed: Final = Table("listed")
listed_by: Final = listed.family("by", JSON)
listed_changed: Final = listed.weak_column("changed")

recrawls: Final = Table("recrawls")
recrawl_url: Final = recrawls.column("url", str)

keys: Final = Table("keys")
owner: Final = keys.column("owner", JSON)
near: Final = keys.column("near", bytes)
sketch_of: Final = keys.column("sketch", bytes)

clusters: Final = Table("clusters")
member: Final = clusters.family("member", JSON)
size: Final = clusters.column("size", int)
cluster_changed: Final = clusters.weak_column("changed")
document: Final = clusters.column("document", JSON)

summaries: Final = Table("summaries")
summary_due: Final = summaries.weak_column("due")
summary_nodes: Final = Nodes(summaries, MIN, summary_due)
summary_delta: Final = summaries.family("delta", JSON)
totals: Final = summaries.column("totals", JSON)
summary_texts: Final = summaries.family("texts", JSON)
summary_best: Final = summaries.column("best", JSON)
redirected: Final = summaries.family("alias", str)

LARGE_CLUSTER: Final = 128
"""A cluster with more members is large, until it has half as many."""

MOST_URLS: Final = 50
"""Duplicates that a document names, and redirects: those whose ids come first."""

NOTHING: Final[Mapping[str, Any]] = {"pages": 0, "aliases": 0, "links": 0, "anchors": {}}
"""The totals of a cluster to which no page has been added yet."""

hosts: Final = Table("hosts")
live: Final = hosts.column("live", JSON)

blocks: Final = Table("blocks")
outer: Final = blocks.column("outer", JSON)
repeated: Final = blocks.column("repeated", JSON)
blocks_changed: Final = blocks.weak_column("changed")

exports: Final = Export("outbox")
outbox: Final = exports.table
outbox_ready: Final = exports.ready[0]

ranks: Final = Table("ranks")
rank_run: Final = ranks.column("run", int)

removals: Final = Table("removals")
removed_page: Final = removals.column("page", JSON)
removed_under: Final = removals.family("under", JSON)
erase_due: Final = removals.weak_column("erase")

BATCH: Final = 64
"""Rows processed by one transaction of an observer whose runs are small."""

journal: Final = Table("journal")
report: Final = journal.column("report", JSON)
trimmed: Final = journal.column("trimmed", str)
trim_due: Final = journal.weak_column("trim")

SCHEMA: Final = [
    pages,
    payloads,
    waiting,
    aliases,
    inlinks,
    anchors,
    frontier,
    sitemaps,
    listed,
    recrawls,
    keys,
    clusters,
    summaries,
    hosts,
    blocks,
    outbox,
    ranks,
    removals,
    journal,
    *RENDERING,
]

ADDED: Final = frozenset(
    {"payloads", "waiting", "anchors", "frontier", "recrawls", "removals", "summaries"}
    | {"sitemaps", "listed", "blocks"}
    | {one.name for one in RENDERING}
)
"""Tables that repositories of earlier versions lack; opening a repository adds them."""

V = TypeVar("V")


def set_or_delete(t: Transaction, column: Column[str, V], row: str, value: V | None) -> None:
    """Write a cell that is not there while it has nothing to say: for None, 0 and what is empty."""
    if value:
        t.set(column, row, value)
    else:
        t.delete(column, row)

"""The tables of the web index, in prose first.

A page is known by its normalised URL. Its row in `pages` is `page_row(url)` (the SURT behind
two hex digits of a hash, so that no tablet runs hot); where a page stands as a column or inside
a value, `page_id(url)` is its short name. A page is *live* while its newest capture is a page to
be read: status 2xx and no redirect by its markup. Only live pages have a fingerprint.

pages, one row a page that was captured:
    capture       the newest capture: URL, date, status, headers, where it stands in its WARC
                  file, and when it was loaded. Observed: a new capture is parsed.
    body          the captured bytes, compressed with zlib
    revisited     the newest report that the page is unchanged: date and digest
    text          the visible text, as the parser found it
    fingerprint   what puts the page into a cluster and shows it: text hash, simhash, title,
                  language, whether it may be indexed. Deleted when the page is not live.
    links         the links it has: [URL, anchors, rel] each. Observed.
    inverted      the links that stand in `inlinks` now
    pointer       the page that it names in its place: a redirect's target, or the canonical page
                  that a live page declares: {kind, url}
    resolved      the live page that the pointer leads to in the end: {kind, url, hops, plain}
    rank          PageRank, 1 being the mean of all pages: {value, run}, the run being the
                  timestamp of the snapshot that it was computed from
    joined        the cluster of a live page, and the keys that put it there:
                  {cluster, content, target}
    resolve       weak: the pointer, or what stands on its way, has changed
    join          weak: the fingerprint or the resolved target has changed

aliases, one row a page that another one points to, captured or not, named as in `pages`:
    from:ID       a page whose pointer names this one: {url, kind}
    via:ID        a page whose pointer leads here in the end: {url, kind}
    changed       weak: whether this page is live, or where it points, has changed

inlinks, one row a page that is linked to, captured or not, named as in `pages`:
    source:ID     a page that links here: its URL, its anchors and the rel of the link
    tally         what the links that vouch for the page come to, if it is live or a redirect:
                  {links, anchors: {text: count}}
    changed       weak: the in-links of this page have changed

keys, what live pages have in common (§3.1), one row a value:
    near/SIMHASH  `owner`: the cluster of all pages with this simhash, and how many they are.
                  Pages of the same text have the same simhash: this is their row as well.
    text/HASH     `owner`, in the same way, for pages too short to be compared but byte by byte
    band/N/BITS   `near`: the simhashes that have these 16 bits in their Nth quarter, 8 bytes each

clusters, one row a set of live pages that are one document to a reader, named at random:
    member:ID     a page of the cluster: its keys, and what a document shows of it
    version       never written, but locked by whoever changes the set of members
    changed       weak: members, their in-links, aliases or ranks have changed
    document      what the search index shows of the cluster; deleted when it shows nothing

hosts, rows `HOST/BB`, one for each first byte of a page id, so that pages do not meet there:
    live          how many pages of the host are live, and how many of them may be indexed

outbox, rows `WINDOW/CLUSTER/EPOCH`: documents that have changed and are not in the search index
yet; see `webindex.outbox`.
    entry         when the captures that caused it were loaded
    ready         weak, on the rows `WINDOW`: there is something to export there

ranks, rows `00` to `ff`, one for each first byte of a page id:
    run           the newest run of the PageRank job: it alone may write ranks of these pages

journal, rows `KIND/TIME-ID`: what jobs and exports report about themselves, for the summary.
    report        one dictionary
"""

from __future__ import annotations

from typing import Final

from percola import JSON, Table

pages: Final = Table("pages")
capture: Final = pages.column("capture", JSON, observed=True)
body: Final = pages.column("body", bytes)
revisited: Final = pages.column("revisited", JSON)
text: Final = pages.column("text", str)
fingerprint: Final = pages.column("fingerprint", JSON)
links: Final = pages.column("links", JSON, observed=True)
inverted: Final = pages.column("inverted", JSON)
pointer: Final = pages.column("pointer", JSON)
resolved: Final = pages.column("resolved", JSON)
rank: Final = pages.column("rank", JSON)
joined: Final = pages.column("joined", JSON)
resolve_due: Final = pages.weak_column("resolve")
join_due: Final = pages.weak_column("join")

aliases: Final = Table("aliases")
points_here: Final = aliases.family("from", JSON)
leads_here: Final = aliases.family("via", JSON)
aliases_changed: Final = aliases.weak_column("changed")

inlinks: Final = Table("inlinks")
source: Final = inlinks.family("source", JSON)
tally: Final = inlinks.column("tally", JSON)
inlinks_changed: Final = inlinks.weak_column("changed")

keys: Final = Table("keys")
owner: Final = keys.column("owner", JSON)
near: Final = keys.column("near", bytes)

clusters: Final = Table("clusters")
member: Final = clusters.family("member", JSON)
version: Final = clusters.column("version", int)
cluster_changed: Final = clusters.weak_column("changed")
document: Final = clusters.column("document", JSON)

hosts: Final = Table("hosts")
live: Final = hosts.column("live", JSON)

outbox: Final = Table("outbox")
entry: Final = outbox.column("entry", JSON)
outbox_ready: Final = outbox.weak_column("ready")

ranks: Final = Table("ranks")
rank_run: Final = ranks.column("run", int)

BATCH: Final = 64
"""Rows that one transaction answers, of an observer whose runs are small."""

journal: Final = Table("journal")
report: Final = journal.column("report", JSON)

SCHEMA: Final = [
    pages,
    aliases,
    inlinks,
    keys,
    clusters,
    hosts,
    outbox,
    ranks,
    journal,
]

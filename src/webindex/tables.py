"""The tables of the web index, in prose first.

A page is known by its normalised URL. Its row in `pages` is `page_row(url)` (the SURT behind
two hex digits of a hash, so that no tablet runs hot); where a page stands as a column or inside
a value, `page_id(url)` is its short name. A page is *live* while its newest capture is a page to
be read: status 2xx and no redirect by its markup. Only live pages have a fingerprint.

pages, one row a page that was captured:
    capture       what the page is: URL, date, status, headers, where it stands in its WARC file,
                  and when it was loaded. The newest capture, or one that was made of a newer
                  revisit and its `original`: {url, date, file}; see `webindex.load.revisits`.
                  Observed: a new capture is parsed.
    body          its bytes, compressed with zlib
    revisited     {seen, reports}: when a crawler last saw the page unchanged, and at most 4
                  reports of revisits newer than the newest capture
    unresolved    how many of these, newer than what the page is, have no known original
    earlier       captures older than `capture`, at most 4, each of another payload, by KEY; more
                  while revisits refer to them
    earlier_body:KEY  their bytes, compressed with zlib
    settle        weak: reports of this page, or what they may refer to, have changed
    offer         weak: older captures of this page have come that revisits may refer to
    text          the visible text, as the parser found it
    fingerprint   what puts the page into a cluster and shows it: text hash, heading, title,
                  language, whether it may be indexed. Deleted when the page is not live.
    sketch        the words by which near-duplicates are told (`fingerprints.Sketch`); none of a
                  page that is too short for that
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

payloads, rows `KEY/ID`: which pages have a payload, KEY being a hash of its digest:
    held          the URL of the page ID: its `capture` or one of `earlier` has this payload

waiting, rows `KEY/ID`: pages with a revisit of a payload, or of a capture of another page: then
KEY is `at-` and the id of that page. Rows `KEY` say that there are such:
    for           on a row `KEY/ID`, the URL of the page ID
    wanted        on a row `KEY`: somebody has waited under this key
    wake          weak: a capture has come that pages may wait for; on a row `KEY/ID`, those after
                  it have still to be told

A capture of another page is found by its payload in the first row of `payloads`, and a page that
waits by going through `waiting` in steps: no cell grows with the number of pages that share a
payload, and loaders of the same payload never write the same cell. Bodies of earlier captures
belong to their page and are not counted references: a page whose revisit refers to another page
gets a copy of the body, so it does not depend on what that page keeps. On LMDB a capture costs a
row of 360 bytes in `payloads`; each of at most 4 earlier captures 7 KB with its body, which is
3.4 KB when compressed.

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
    near/HEADING/HASH
                  a content, which is a title and a text: `owner`, the cluster of all pages that
                  have it, how many they are, and the content that leads it; `sketch`, theirs
    text/HASH     `owner`, in the same way, for pages too short to be compared but byte by byte
    band/HEADING/N/WORDS
                  `near`: the contents with this heading that have these words in the Nth places
                  of their sketches, 16 bytes each, in order

clusters, one row a set of live pages that are one document to a reader, named at random:
    member:ID     a page of the cluster: its keys, and what a document shows of it
    version       never written, but locked by whoever changes the set of members
    changed       weak: members, their in-links, aliases or ranks have changed
    document      what the search index shows of the cluster; deleted when it shows nothing

hosts, rows `HOST/BB`, one for each first byte of a page id, so that pages do not meet there:
    live          how many pages of the host are live, and how many of them may be indexed

outbox, rows `WINDOW/CLUSTER/EPOCH`: documents that have changed and are not in the search index
yet; see `webindex.observers.outbox`.
    entry         when the captures that caused it were loaded
    ready         weak, on the rows `WINDOW`: there is something to export there

ranks, rows `00` to `ff`, one for each first byte of a page id:
    run           the newest run of the PageRank job: it alone may write ranks of these pages

journal, rows `KIND/TIMESTAMP`: what jobs and exports report about themselves, for the summary; see
`webindex.journal` for how many are kept.
    report        one dictionary; on the row `load`, the total of the loads that are not kept
    trimmed       on a row `KIND`: below which row everything was removed
    trim          weak, on the row `export`: there is a new report of an export
"""

from __future__ import annotations

from typing import Final

from percola import JSON, Table

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
sketch: Final = pages.column("sketch", bytes)
fingerprint: Final = pages.column("fingerprint", JSON)
links: Final = pages.column("links", JSON, observed=True)
inverted: Final = pages.column("inverted", JSON)
pointer: Final = pages.column("pointer", JSON)
resolved: Final = pages.column("resolved", JSON)
rank: Final = pages.column("rank", JSON)
joined: Final = pages.column("joined", JSON)
resolve_due: Final = pages.weak_column("resolve")
join_due: Final = pages.weak_column("join")

payloads: Final = Table("payloads")
held: Final = payloads.column("held", str)

waiting: Final = Table("waiting")
waits_for: Final = waiting.column("for", str)
wanted: Final = waiting.column("wanted", int)
wake_due: Final = waiting.weak_column("wake")

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
sketch_of: Final = keys.column("sketch", bytes)

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
trimmed: Final = journal.column("trimmed", str)
trim_due: Final = journal.weak_column("trim")

SCHEMA: Final = [
    pages,
    payloads,
    waiting,
    aliases,
    inlinks,
    keys,
    clusters,
    hosts,
    outbox,
    ranks,
    journal,
]

ADDED: Final = frozenset({"payloads", "waiting"})
"""Tables that repositories of earlier versions do not have: they are added when one is opened."""

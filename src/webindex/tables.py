"""The tables of the web index, in prose first.

A page is known by its normalised URL. Its row in `pages` is `page_row(url)` (the SURT behind
two hex digits of a hash, so that no tablet runs hot); where a page stands as a column or inside
a value, `page_id(url)` is its short name.

pages, one row a page that was captured:
    capture       the newest capture: URL, date, status, headers, where it stands in its WARC
                  file, and when it was loaded. Observed: a new capture is parsed.
    body          the captured bytes, compressed with zlib
    text          the visible text, as the parser found it
    fingerprint   what puts the page into a cluster and shows it: text hash, title, language,
                  whether it may be indexed. Deleted when the page is gone. Observed.
    links         the links it has: [URL, anchors, rel] each. Observed.
    inverted      the links that stand in `inlinks` now
    cluster       the cluster that the page is a member of now

inlinks, one row a page that is linked to, captured or not, named as in `pages`:
    source:ID     a page that links here: its URL, its anchors and the rel of the link
    changed       weak: the in-links of this page have changed

clusters, one row a set of pages with the same text, named by the text hash:
    member:ID     a page of the cluster: URL, title, language, whether it may be indexed
    changed       weak: members or their in-links have changed
    document      what the search index shows of the cluster; deleted when it shows nothing

outbox, rows `CLUSTER/EPOCH`: documents that have changed and are not in the search index yet.
    entry         when the captures that caused it were loaded
    ready         weak, on the one row `all`: there is something to export

journal, rows `KIND/TIME-ID`: what loads and exports report about themselves, for the summary.
    report        one dictionary
"""

from __future__ import annotations

from typing import Final

from percola import JSON, Table

pages: Final = Table("pages")
capture: Final = pages.column("capture", JSON, observed=True)
body: Final = pages.column("body", bytes)
text: Final = pages.column("text", str)
fingerprint: Final = pages.column("fingerprint", JSON, observed=True)
links: Final = pages.column("links", JSON, observed=True)
inverted: Final = pages.column("inverted", JSON)
cluster: Final = pages.column("cluster", str)

inlinks: Final = Table("inlinks")
source: Final = inlinks.family("source", JSON)
inlinks_changed: Final = inlinks.weak_column("changed")

clusters: Final = Table("clusters")
member: Final = clusters.family("member", JSON)
cluster_changed: Final = clusters.weak_column("changed")
document: Final = clusters.column("document", JSON)

outbox: Final = Table("outbox")
entry: Final = outbox.column("entry", JSON)
outbox_ready: Final = outbox.weak_column("ready")
OUTBOX_ROW: Final = "all"

journal: Final = Table("journal")
report: Final = journal.column("report", JSON)

SCHEMA: Final = [pages, inlinks, clusters, outbox, journal]

"""The sixteen invariants of the index, and which cells show each of them.

    1   live set = newest capture per URL   pages: capture, earlier, revisited, unresolved,
        without what was removed            body, text, outline, fingerprint,
                                            sketch; `removed`: a record that a
                                            removal refuses · blocks: outer
    2   out-links = re-parse                pages: links, pointer
    3   in-links = inverse of out-links     pages: inverted · inlinks: source · aliases: from
    4   key rows = pages' keys              keys: near, sketch, owner (pages) ·
                                            pages: resolved,
                                            joined (content, target) · aliases: via
    5   partition = connected components    pages: joined (cluster) · keys: owner (cluster,
                                            leader)
    6   every live page in one cluster,     pages: joined (there or not) · clusters: member,
        none empty                          and whether there is one
    7   canonical page = election order     clusters: document (url) · pages: rank (of live ones;
                                            interim ones from those of the last run)
    8   anchors and counts = in-links       inlinks: tally, large, delta (none at rest) ·
        without the cluster's own           anchors: texts, best · clusters: document (anchors,
                                            inlinks)
    9   host counters = group-by            hosts: live
    10  search = clusters with a canonical  clusters: document (there or not, all other fields) ·
        page that may be indexed            the search index, epochs included ·
                                            blocks: repeated
    11  at rest nothing is left             outbox, locks, notifications, dead-lettered changes
    12  loading again changes nothing       the WARC files against pages: capture (date)
    13  frontier = linked or listed, not    frontier: url · listed: by · sitemaps: entered
        captured
    14  recrawls = by rank and past         pages: recrawl · recrawls: url
    15  uses = what documents ask for,      resources: entered · uses: by · bodies: data, holder
        bodies = newest captures
    16  images = what they would show now   renders: about (inputs), unless they are due

A cell whose fields belong to several invariants is compared field by field. 1 without `text` and
`fingerprint`, and 12, use the WARC files themselves; 11 concerns the present. All others
are compared at one timestamp with what follows from the captures that the repository has then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from webindex.batch.digest import canonical, timeless
from webindex.batch.inlinks import Row

NAMES: Final = {
    1: "live pages are the newest captures",
    2: "links and pointers are what the pages say",
    3: "in-links are the links, inverted",
    4: "key rows are the pages' keys",
    5: "clusters are connected components",
    6: "each live page is in one cluster, and none is empty",
    7: "the canonical page is the elected one",
    8: "anchors and link counts are those from outside",
    9: "host counters are the number of live pages",
    10: "search shows each cluster that may be shown",
    11: "at rest, nothing is left to do",
    12: "loading the same crawl again changes nothing",
    13: "the frontier is what is linked or listed and was not captured",
    14: "pages are due by how often they changed",
    15: "resources are kept for what documents ask for",
    16: "images show what was captured",
}

_INVARIANT_OF: Final = {
    ("pages", "capture"): 1,
    ("pages", "earlier"): 1,
    ("pages", "revisited"): 1,
    ("pages", "unresolved"): 1,
    ("pages", "removed"): 1,
    ("pages", "body"): 1,
    ("pages", "text"): 1,
    ("pages", "outline"): 1,
    ("blocks", "outer"): 1,
    ("pages", "fingerprint"): 1,
    ("pages", "sketch"): 1,
    ("pages", "links"): 2,
    ("pages", "pointer"): 2,
    ("pages", "inverted"): 3,
    ("inlinks", "source"): 3,
    ("aliases", "from"): 3,
    ("keys", "near"): 4,
    ("keys", "sketch"): 4,
    ("keys", "owner"): 4,
    ("pages", "resolved"): 4,
    ("aliases", "via"): 4,
    ("pages", "joined.content"): 4,
    ("pages", "joined.target"): 4,
    ("pages", "joined.cluster"): 5,
    ("keys", "owner.cluster"): 5,
    ("keys", "owner.leader"): 5,
    ("pages", "joined"): 6,
    ("clusters", "member"): 6,
    ("clusters", "members"): 6,
    ("clusters", "document.url"): 7,
    ("pages", "rank"): 7,
    ("inlinks", "tally"): 8,
    ("inlinks", "large"): 8,
    ("inlinks", "delta"): 8,
    ("anchors", "texts"): 8,
    ("anchors", "best"): 8,
    ("clusters", "document.anchors"): 8,
    ("clusters", "document.inlinks"): 8,
    ("hosts", "live"): 9,
    ("clusters", "document"): 10,
    ("search", "document"): 10,
    ("blocks", "repeated"): 10,
    ("frontier", "url"): 13,
    ("listed", "by"): 13,
    ("sitemaps", "entered"): 13,
    ("pages", "recrawl"): 14,
    ("recrawls", "url"): 14,
    ("resources", "entered"): 15,
    ("uses", "by"): 15,
    ("bodies", "data"): 15,
    ("bodies", "holder"): 15,
    ("renders", "image"): 16,
}

_BY_FIELD: Final = frozenset({"capture", "joined", "owner", "document"})
_UNORDERED: Final = frozenset({"links", "inverted"})
THERE: Final = "there"


def invariant_of(table: str, part: str) -> int:
    """The invariant that a part of a row shows: a column, or a column's field."""
    by_field = _INVARIANT_OF.get((table, part))
    if by_field is not None:
        return by_field
    column = part.partition(".")[0] if ":" not in part else part.partition(":")[0]
    return _INVARIANT_OF[table, column]


def parts_of(row: Row) -> dict[str, str]:
    """A row in the parts that are compared, in canonical form, without time-dependent fields."""
    parts: dict[str, str] = {}
    for column, value in row.values.items():
        if column in _UNORDERED:
            value = sorted(value)
        # The keys of `anchors` are texts, of which some have the name of a field.
        if isinstance(value, dict) and row.table != "anchors":
            value = timeless(value)
        if column in _BY_FIELD:
            parts[column] = THERE
            for name, one in value.items():
                parts[f"{column}.{name}"] = canonical(one)
        else:
            parts[column] = canonical(value)
    if row.table == "clusters":
        there = any(column.startswith("member:") for column in row.values)
        parts["members"] = "some" if there else "none"
    return parts


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of a row that is not as expected; None means that there is, or should be, nothing."""

    invariant: int
    table: str
    row: str
    part: str
    found: str | None
    expected: str | None

    def __str__(self) -> str:
        place = f"{self.table} {self.row}: " if self.row else ""
        if self.found is None:
            return f"{place}{self.part} is missing; expected {_shown(self.expected)}."
        if self.expected is None:
            return f"{place}{self.part} should not be there; found {_shown(self.found)}."
        return (
            f"{place}{self.part} differs: found {_shown(self.found)}, "
            f"expected {_shown(self.expected)}."
        )

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        names = ("invariant", "table", "row", "part", "found", "expected")
        return {name: getattr(self, name) for name in names}


def _shown(value: str | None) -> str:
    shown = str(value)
    return shown if len(shown) <= 160 else f"{shown[:120]}… {shown[-39:]}"

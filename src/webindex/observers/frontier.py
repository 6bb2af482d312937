"""The frontier: URLs that captured pages link to, and that were never captured themselves.

    98/3/com,example)/new     url   https://example.com/new: more than two links vouch for it
    ── ─ ────────────────
    │  │ the rest of its row in `pages`
    │  a digit of its id, which spreads neighbouring URLs over 16 places of each level
    its level, the highest first

A URL without a capture has a tally in `inlinks` like a page, and an entry here at the level of
that tally. A level is a range of numbers of links, two for each doubling (1, 2, 3, 4 to 5, 6 to 7,
8 to 11, …): a URL that gains its 20,000th link seldom moves, and the best entries, of all or of
one host, are at the beginning of a few ranges.

The level follows from the tally, so nothing else records where an entry is. Who writes it:

* `count` and `add_links` write the entry together with the tally of a URL without a capture.
* `parse` of the first capture deletes it, by the tally, which it locks: a count that began before
  the capture was loaded has either committed, or conflicts and is repeated.
* A takedown that leaves a page without a capture enters it again, by the tally that it locks.

Behind all levels, rows that begin with `LISTED` have URLs that a sitemap lists, linked or not: see
`webindex.observers.sitemaps`. `parse` of the first capture deletes them as well, and a takedown has
them entered again.

Blocks are not applied here but by the reader (`webindex.reports.frontier`): a block of a host
would otherwise rewrite its entries, and a URL that is unblocked is in the frontier again at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from percola import Transaction
from webindex import tables

__all__ = ["LEVELS", "LISTED", "enter", "entry_row", "fewest", "leave", "level_of", "listed_row"]

LEVELS: Final = 100
"""Levels that a row can name; the last one begins with 2^49 links."""


LISTED: Final = "ls"
"""In place of a level: the URL is listed by a sitemap. It comes after all levels."""


def level_of(links: int) -> int:
    """The level of a URL with so many links (1 or more): 0 for one link, two for each doubling."""
    doublings = links.bit_length() - 1
    upper = doublings > 0 and links >> (doublings - 1) == 3
    return min(LEVELS - 1, max(0, 2 * doublings + upper - 1))


def fewest(level: int) -> int:
    """The smallest number of links of a level."""
    doublings, upper = divmod(level + 1, 2)
    return 1 if level == 0 else (2 + upper) << (doublings - 1)


def entry_row(row: str, links: int) -> str:
    """The row in `frontier` of a URL with so many links, of which `row` is the row in `pages`."""
    return f"{LEVELS - 1 - level_of(links):02}/{row[0]}/{row[3:]}"


def listed_row(row: str) -> str:
    """The row in `frontier` of a URL that a sitemap lists, of which `row` is the row in `pages`."""
    return f"{LISTED}/{row[0]}/{row[3:]}"


def enter(t: Transaction, row: str, url: str, tally: Mapping[str, Any]) -> None:
    """Enter a URL that has no capture and this tally."""
    t.set(tables.uncaptured, entry_row(row, tally["links"]), url)


def leave(t: Transaction, row: str, tally: Mapping[str, Any], *, check: bool = False) -> None:
    """Delete the entry of a URL that has had this tally; with `check`, only if there is one."""
    entry = entry_row(row, tally["links"])
    if not check or t.get(tables.uncaptured, entry) is not None:
        t.delete(tables.uncaptured, entry)

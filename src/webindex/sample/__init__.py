"""A small real crawl that comes with the package, for the demonstration and for tests.

About 200 pages of the documentation of the Apache HTTP Server, PostgreSQL and SQLite, in four
languages and three charsets, with their links and duplicates; and a recrawl of two of them.
`NOTICES.md` beside this file lists their sources and licences.
`scripts/make_sample_crawl.py` creates all of it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = [
    "CHANGED_URL",
    "CHANGED_WORDS",
    "NEW_LINK",
    "OLDER_URL",
    "OLDER_WORDS",
    "STYLED",
    "UNSTYLED",
    "recrawl_path",
    "sample_path",
]

CHANGED_URL = "https://www.sqlite.org/about.html"
"""The page of which `recrawl_path` has a later capture than the sample."""
CHANGED_WORDS = "Forty cormorants carried lanterns across the estuary before the recrawl."
"""The sentence that its later capture gained. No page of the sample has these words."""
NEW_LINK = "https://www.postgresql.org/docs/15/tutorial-start.html"
"""The link that its later capture gained, to a page of the sample."""

OLDER_URL = "https://www.sqlite.org/features.html"
"""The page of which `recrawl_path` has an earlier capture than the sample: it changes nothing."""
OLDER_WORDS = "A marzipan barometer was mentioned here in an edition that is long superseded."
"""The sentence that only its earlier capture has."""

STYLED = [f"https://www.sqlite.org/{name}.html" for name in ("about", "features", "crew")]
"""Some of the pages that use the stylesheet of the sample."""
UNSTYLED = [
    f"https://www.postgresql.org/docs/15/{name}.html" for name in ("server-start", "tutorial-start")
]
"""Some that do not use it."""


def sample_path() -> Path:
    """The sample crawl, a WARC file with a gzip member for each record."""
    return _here() / "sample.warc.gz"


def recrawl_path() -> Path:
    """The recrawl: a later capture of CHANGED_URL and an earlier one of OLDER_URL."""
    return _here() / "recrawl.warc.gz"


def _here() -> Path:
    return Path(__file__).resolve().parent

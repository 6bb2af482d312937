"""The benchmark corpus: Debian's documentation packages as a crawl of the sites they come from.

    packages   which packages, where their pages stand on the web, and under which licence
    debian     which versions can be had, and getting them
    archives   the documents of a .deb file
    mounting   a package's documents under their URLs: pages, aliases, folders
    choosing   a smaller sample of the same shape
    edits      small changes to a page's bytes
    seeding    what is added: mirrors, redirects, missing pages, links between hosts
    warcs      answers of servers as records of WARC files
    recrawling the second crawl, from another version or made up
    building   all of it in order, with a manifest of what was made
    command    `webindex crawl-docs`

No document is part of this project: each comes from the package on the user's machine.
"""

from __future__ import annotations

from webindex.errors import WebindexError

__all__ = ["CorpusError"]


class CorpusError(WebindexError):
    """The corpus could not be made; the message says why and what to do."""

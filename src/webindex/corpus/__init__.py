"""The benchmark corpus: Debian's documentation packages as a crawl of the sites they come from.

    packages   which packages, the URLs of their pages, and their licences
    debian     which versions are available, and downloading them
    archives   the documents of a .deb file
    mounting   a package's documents under their URLs: pages, aliases, folders
    gathering  the packages with their mounted versions
    choosing   a smaller sample of the same shape
    edits      small changes to a page's bytes
    seeding    additions: mirrors, redirects, missing pages, links between hosts
    answers    responses of servers
    warcs      responses as records of WARC files
    recrawling the second crawl, from another version or made up
    building   the whole corpus, with a manifest of its contents

`webindex.cli.crawl_docs` is the command `webindex crawl-docs`.

No document is part of this project: each comes from the package on the user's machine.
"""

from __future__ import annotations

from webindex.errors import WebindexError

__all__ = ["CorpusError"]


class CorpusError(WebindexError):
    """The corpus could not be made; the message gives the reason and what to do."""

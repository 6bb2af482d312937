"""The tables of rendered pages, described before the code that declares them.

A *resource* is what a page shows or runs besides its own markup: a stylesheet, an image, a font, a
script. It is identified by its normalised URL, as pages are, and named in the same way: its row is
`page_row(url)`, its id `page_id(url)`. A URL may be a resource at one time and a page (a redirect,
say) at another: then its newer capture counts.

resources, one row for each captured resource, and for each page, stylesheet or redirect that uses
some:
    capture       the newest capture: URL, date, media type, the digest of its body, its position
                  in its WARC file. Observed: a new one makes the pages that use it due.
    entered       the URLs that this document asks for, as entered in `uses`

bodies, one row for each body, named by its digest: resources with the same bytes share it:
    data          the bytes, compressed with zlib if that makes them fewer; see `packed`
    holder:ID     the URL of a resource whose capture has this body
    released      weak: a holder has let go of it

uses, who asks for what: the reverse index. The id of a URL that is asked for is `TARGET` below:
    by            on a row `TARGET/page/ID`, `TARGET/part/ID` or `TARGET/seen/ID`: the URL of the
                  document ID that asks for it. `page`: a page, by its markup. `part`: a stylesheet
                  (`@import`, `url()`) or a redirect, which pages use in turn. `seen`: a page, by
                  what the browser asked for when the page was rendered.
    changed       weak, on a row `TARGET`: its capture has changed, or it has got one
    spread        weak, on a row `TARGET`: its pages are to become due; on one of the rows above,
                  those after it

renders, one row for each page that was rendered or is to be, named as in `pages`:
    due           weak: the page, or something that it uses, has changed
    about         what the image shows: when it was made, by which browser, its size, the digest of
                  its inputs, and each answer that the browser got (`asked`: URL, digest or None)
    image         the page as a PNG
    thumbnail     its beginning, small, as a PNG
    earlier:MS    the thumbnail of an earlier image, by the time at which it was made (`at_ms`)
    kept          on the row `settings`: this repository keeps resources, since which timestamp
                  (`since`) and time (`since_ms`)
"""

from __future__ import annotations

import zlib
from typing import Final

from percola import JSON, Table

resources: Final = Table("resources")
capture: Final = resources.column("capture", JSON, observed=True)
entered: Final = resources.column("entered", JSON)

bodies: Final = Table("bodies")
data: Final = bodies.column("data", bytes)
holder: Final = bodies.family("holder", str)
released: Final = bodies.weak_column("released")

uses: Final = Table("uses")
used_by: Final = uses.column("by", str)
use_changed: Final = uses.weak_column("changed")
spread_due: Final = uses.weak_column("spread")

renders: Final = Table("renders")
render_due: Final = renders.weak_column("due")
about: Final = renders.column("about", JSON)
image: Final = renders.column("image", bytes)
thumbnail: Final = renders.column("thumbnail", bytes)
earlier: Final = renders.family("earlier", bytes)
kept: Final = renders.column("kept", JSON)

TABLES: Final = [resources, bodies, uses, renders]

SETTINGS: Final = "settings"
"""The row of `renders` that says whether the repository keeps resources."""


def packed(body: bytes) -> bytes:
    """A resource's body as `bodies.data` stores it: a byte that names the form, then the bytes."""
    compressed = zlib.compress(body, 6)
    # Images and fonts are compressed already.
    return b"z" + compressed if len(compressed) < len(body) * 0.95 else b"-" + body


def unpacked(stored: bytes) -> bytes:
    """The body of a value of `bodies.data`."""
    return zlib.decompress(stored[1:]) if stored[:1] == b"z" else stored[1:]

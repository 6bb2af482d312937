"""§2.4: which pages use which resources, and which pages a change makes due.

    capture of a page ─────▶ ask ─┬▶ uses ◀── render, by what the browser asked for
    capture of a resource ─▶ ask ─┤
                                  ├▶ (changed) ─▶ reach ─▶ (spread) ─▶ spread ─▶ (due)
                                  └────────────────────────────────────────────▶ (due)

Each URL that a document asks for has rows in `uses` that list who asks: the reverse index. A new
capture notifies its row there. `reach` follows stylesheets and redirects upwards, to everything
that is reached through them, and `spread` makes the pages due, in steps: a stylesheet may have any
number of them. All of these are weak notifications: a hundred changes of one resource in a row
are one run, and no page's transaction writes a cell that another's writes.

Nothing is missed if a page begins to use a resource while that resource changes: the transaction
that enters the use makes the page due as well, so the page is rendered from a snapshot that
follows it; and `reach` and `spread` run in snapshots that follow the change.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from percola import Observer, Snapshot, Transaction, observer
from webindex import tables
from webindex.load.removals import rules_for
from webindex.load.resources import release
from webindex.page.pointers import pointer_of_capture
from webindex.page.urls import page_id, page_row
from webindex.pdf.reading import PDF
from webindex.rendering import tables as rendering
from webindex.rendering.references import references_of_page, references_of_style

__all__ = [
    "SEEN",
    "SPREAD_STEP",
    "Current",
    "answer_now",
    "ask_page",
    "ask_resource",
    "asked_by",
    "body_of",
    "current",
    "dependency_observers",
    "enter",
    "enter_seen",
    "entered_of",
    "forget_image",
    "newer",
    "reach",
    "spread",
    "spread_from",
    "use_rows",
]

SPREAD_STEP: Final = 500
"""Uses that one run of `spread` looks at: any number of pages may use a resource."""

MOST_PARTS: Final = 10_000
"""Stylesheets and redirects through which one change is followed."""

_PAGE: Final = "page"
_PART: Final = "part"
SEEN: Final = "seen"
"""How a page uses what the browser has asked for."""


class Current(NamedTuple):
    """What a URL is at one timestamp: the newer of its captures as a page and as a resource."""

    capture: Mapping[str, Any]
    resource: bool

    @property
    def is_page(self) -> bool:
        """Whether it can be shown by itself; of a PDF document only its text is there."""
        return not self.resource and 200 <= self.capture["status"] < 300 and not self.is_pdf

    @property
    def is_pdf(self) -> bool:
        """Whether it is a PDF document."""
        return not self.resource and self.capture["content_type"] == PDF

    @property
    def is_style(self) -> bool:
        """Whether it is a stylesheet, which may ask for others."""
        return self.resource and self.capture["kind"] == "style"

    @property
    def location(self) -> str | None:
        """The URL that a redirect leads to."""
        if self.resource or not 300 <= self.capture["status"] < 400:
            return None
        pointer = pointer_of_capture(self.capture, None)
        return None if pointer is None else pointer["url"]

    @property
    def content_type(self) -> str:
        """Its media type, with the charset."""
        kind = self.capture["type"] if self.resource else self.capture["content_type"]
        return str(kind or "text/html")

    @property
    def digest(self) -> str:
        """What tells this answer from any other: of its bytes and type, or of where it leads."""
        if self.location is not None:
            return self.location
        return f"{self.capture['digest']} {''.join(self.content_type.lower().split())}"

    @property
    def answer(self) -> str | None:
        """The digest of what a browser gets; None if there is nothing to get, as for a 404."""
        if self.resource or self.is_page or self.location is not None:
            return self.digest
        return None


def answer_now(told: str | None, found: Current | None) -> str | None:
    """The digest of a URL's answer now, to compare with the one that an image was made of.

    Of images that earlier versions made, that is of the bytes alone, without their type.
    """
    answer = None if found is None else found.answer
    if answer is None or told is None or " " in told:
        return answer
    return answer.partition(" ")[0]


def current(t: Snapshot, row: str) -> Current | None:
    """What the URL of this row is."""
    return newer(*t.get_many([(tables.capture, row), (rendering.capture, row)]))


def newer(page: Mapping[str, Any] | None, resource: Mapping[str, Any] | None) -> Current | None:
    """What a URL with these captures is; as a page and as a resource, it may lack either."""
    if resource is not None and (page is None or page["date"] <= resource["date"]):
        return Current(resource, True)
    return None if page is None else Current(page, False)


def body_of(t: Snapshot, row: str, found: Current) -> bytes:
    """Its bytes."""
    if found.resource:
        stored = t.get(rendering.data, found.capture["digest"])
        return b"" if stored is None else rendering.unpacked(stored)
    compressed = t.get(tables.body, row)
    return zlib.decompress(compressed) if compressed else b""


def asked_by(found: Current, body: Callable[[], bytes]) -> tuple[str, list[str]]:
    """How a document uses what it asks for, as a page or as a part of pages, and its URLs."""
    if found.is_page:
        return _PAGE, references_of_page(found.capture, body())
    if found.location is not None:
        return _PART, [found.location]
    if found.is_style:
        return _PART, references_of_style(found.capture["url"], found.capture["type"], body())
    return _PART, []


def entered_of(kind: str, urls: list[str]) -> dict[str, Any] | None:
    """The value of `resources.entered` for a document that asks for these; None for none."""
    return {"as": kind, "urls": urls} if urls else None


# --- What a document asks for -----------------------------------------------------------------


@observer(tables.capture, batch=tables.BATCH)
def ask_page(t: Transaction, row: str) -> None:
    """Enter what a new capture of a page, or of a redirect, asks for."""
    _ask(t, row)


@observer(rendering.capture, batch=tables.BATCH)
def ask_resource(t: Transaction, row: str) -> None:
    """Enter what a new capture of a stylesheet asks for."""
    found = t.get(rendering.capture, row)
    if found is not None and rules_for(t, [found["url"]]).refuses(found["url"], found["date"]):
        t.notify(tables.erase_due, row)
    else:
        _ask(t, row)


def _ask(t: Transaction, row: str) -> None:
    found = current(t, row)
    if found is None:
        return
    url = found.capture["url"]
    enter(t, row, url, *asked_by(found, lambda: body_of(t, row, found)))
    if found.is_page or t.get(rendering.about, row) is not None:
        t.notify(rendering.render_due, row)
    spread_from(t, url)


def spread_from(t: Transaction, url: str) -> None:
    """Have the pages that use a URL rendered again, because what it leads to has changed."""
    me = page_id(url)
    # Whoever enters a use of this URL concurrently is due because of that.
    if next(t.scan(rendering.uses, prefix=f"{me}/", columns=[rendering.used_by]), None):
        t.notify(rendering.use_changed, me)


def enter(t: Transaction, row: str, url: str, kind: str, urls: list[str]) -> None:
    """Make the uses of a document, by its markup, these."""
    before = t.get(rendering.entered, row)
    after = entered_of(kind, urls)
    if before == after:
        return
    me = page_id(url)
    old = use_rows(me, before["as"], before["urls"]) if before is not None else set()
    _replace(t, url, old, use_rows(me, kind, urls))
    tables.set_or_delete(t, rendering.entered, row, after)


def enter_seen(t: Transaction, url: str, before: Iterable[str], after: Iterable[str]) -> None:
    """Replace the uses of a page that a browser has asked for."""
    me = page_id(url)
    _replace(t, url, use_rows(me, SEEN, before), use_rows(me, SEEN, after))


def forget_image(t: Transaction, row: str) -> None:
    """Delete a page's image with the earlier ones, and the uses that a browser has told.

    A transaction that makes its image meanwhile conflicts with this, also if it is the first one.
    """
    about = t.get(rendering.about, row)
    if about is not None:
        enter_seen(t, about["url"], about["asked"], ())
        for one in about["history"]:
            t.delete(rendering.earlier[str(one["at_ms"])], row)
    for column in (rendering.about, rendering.image, rendering.thumbnail):
        t.delete(column, row)


def _replace(t: Transaction, url: str, old: set[str], new: set[str]) -> None:
    """Make the rows of `uses` that a document is in these."""
    for use in old - new:
        t.delete(rendering.used_by, use)
    for use in new - old:
        t.set(rendering.used_by, use, url)


def use_rows(me: str, kind: str, urls: Iterable[str]) -> set[str]:
    """The rows of `uses` of a document that asks for these URLs."""
    return {f"{page_id(url)}/{kind}/{me}" for url in urls}


# --- What a change makes due ------------------------------------------------------------------


@observer(rendering.use_changed)
def reach(t: Transaction, target: str) -> None:
    """Notify everything through which pages reach a URL that has changed."""
    reached = {target}
    todo = [target]
    while todo and len(reached) < MOST_PARTS:
        one = todo.pop()
        for use in t.scan(rendering.uses, prefix=f"{one}/{_PART}/", columns=[rendering.used_by]):
            part = use.key.rpartition("/")[2]
            if part not in reached:
                reached.add(part)
                todo.append(part)
    for one in reached:
        t.notify(rendering.spread_due, one)


@observer(rendering.spread_due)
def spread(t: Transaction, row: str) -> None:
    """Make the pages that use a URL due, those after this row; continue in another run."""
    target, _, after = row.partition("/")
    start = f"{row}\0" if after else f"{target}/"
    uses = t.scan(rendering.uses, start=start, end=f"{target}0", columns=[rendering.used_by])
    last, looked_at = row, 0
    for use in islice(uses, SPREAD_STEP):
        looked_at += 1
        last = use.key
        if use.key.split("/")[1] != _PART:
            t.notify(rendering.render_due, page_row(use[rendering.used_by]))
    if looked_at == SPREAD_STEP:
        t.notify(rendering.spread_due, last)


def dependency_observers() -> list[Observer[Any]]:
    """Every observer of resources and their uses, for a repository that keeps resources."""
    return [ask_page, ask_resource, reach, spread, release]

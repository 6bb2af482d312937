"""Where a page points, followed hop by hop, and which pages point to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from percola import Snapshot
from webindex import tables
from webindex.observers.redirects import end_of
from webindex.page.pages import Page
from webindex.page.pointers import MAX_HOPS
from webindex.page.urls import page_row, registrable_domain
from webindex.text_format import count

__all__ = ["PointsHere", "Step", "Way", "points_here", "way_of"]


@dataclass(frozen=True, slots=True)
class Step:
    """A page on the path; `status` is that of its newest capture, None if there is none."""

    url: str
    status: int | None
    live: bool


@dataclass(frozen=True, slots=True)
class Way:
    """The path from a pointer to its end.

    Attributes:
        kind: `redirect` or `canonical`.
        steps: the page that is named, and those that redirects lead to from there.
        end: the live page at its end; None if there is none, or it is this page.
        counts: whether the index follows it: a redirect's links count for the end, a page
            becomes one document with its canonical page.
        verdict: the same in a sentence; `because`, if it does not count, why not.
    """

    kind: str
    steps: list[Step]
    end: str | None
    counts: bool
    verdict: str
    because: str = ""


@dataclass(frozen=True, slots=True)
class PointsHere:
    """A page that names this one, or whose path ends here; see `Way`."""

    url: str
    kind: str
    direct: bool
    counts: bool


def way_of(
    now: Snapshot, capture: Mapping[str, Any], pointer: Mapping[str, Any] | None, page: Page | None
) -> Way | None:
    """Follow the pointer of a page; None if it has none.

    `page` is the parsed page, if it is live: a canonical page of another domain, which is no
    pointer, is found only there.
    """
    url: str = capture["url"]
    if pointer is not None:
        return _worded(_followed(now, url, pointer), redirecting=capture["status"] >= 300)
    named = page.canonical if page is not None else None
    if named is None or named == url or registrable_domain(named) == registrable_domain(url):
        return None
    step, _ = _look(now, named)
    return _worded(Way("canonical", [step], None, False, "", _FOREIGN), redirecting=False)


def points_here(now: Snapshot, row: str) -> list[PointsHere]:
    """The pages that point to the page of this row, those that count first."""
    found = now.get_row(tables.aliases, row, [tables.points_here, tables.leads_here])
    naming, leading = found.family(tables.points_here), found.family(tables.leads_here)
    return sorted(
        (
            PointsHere(one["url"], one["kind"], page in naming, page in leading)
            for page, one in {**naming, **leading}.items()
        ),
        key=lambda one: (not one.counts, not one.direct, one.url),
    )


# --- Following ------------------------------------------------------------------------------

_FOREIGN: Final = "a page may only name one of its own domain"

Looked = tuple[Step, Mapping[str, Any] | None]
"""A step, and the pointer of that page."""


def _look(now: Snapshot, url: str) -> Looked:
    columns = [tables.capture, tables.fingerprint, tables.pointer]
    page = now.get_row(tables.pages, page_row(url), columns)
    capture = page.get(tables.capture)
    status = capture["status"] if capture is not None else None
    return Step(url, status, tables.fingerprint in page), page.get(tables.pointer)


def _followed(now: Snapshot, url: str, pointer: Mapping[str, Any]) -> Way:
    """The path of a pointer, without texts; `observers.redirects.resolve` finds the same."""
    kind, at = pointer["kind"], pointer["url"]
    way = Way(kind, [], None, False, "")
    seen = {url}
    for _ in range(MAX_HOPS + 1):
        if at in seen:
            back = at == url and kind == "canonical"
            because = "the way from there leads back here" if back else "it leads into a circle"
            return replace(way, because=because)
        step, further = _look(now, at)
        way.steps.append(step)
        seen.add(at)
        if step.live:
            return _judged(replace(way, end=at), url, further)
        if further is None or further["kind"] != "redirect":
            return replace(way, because=_missing(step, first=len(way.steps) == 1))
        at = further["url"]
    return replace(way, because=f"more than {MAX_HOPS} redirects follow upon it")


def _judged(way: Way, url: str, further: Mapping[str, Any] | None) -> Way:
    """Whether a path that has an end counts."""
    assert way.end is not None
    resolved = {"kind": way.kind, "url": way.end, "plain": further is None}
    if end_of(url, resolved) is not None:
        return replace(way, counts=True)
    if further is not None:
        return replace(way, because=f"{way.end} names another page itself, {further['url']}")
    return replace(way, because=f"it redirects to {way.end}, and {_FOREIGN}")


def _missing(step: Step, *, first: bool) -> str:
    it = "it" if first else step.url
    if step.status is None:
        return f"no capture of {it} was loaded"
    if 200 <= step.status < 300:
        return f"{it} has not been parsed yet"
    if 300 <= step.status < 400:
        return f"{it} is a redirect itself (status {step.status}), but does not say where to"
    return f"{it} is gone (status {step.status})"


# --- Messages -------------------------------------------------------------------------------


def _worded(way: Way, *, redirecting: bool) -> Way:
    named, last = way.steps[0].url, way.steps[-1].url
    hops = len(way.steps) - 1
    if way.kind == "redirect":
        who = "It redirects" if redirecting else "Its markup sends visitors on"
        words = f"{who} to {named}"
        if way.counts and hops:
            words += f", and from there through {count(hops, 'more redirect')} to {last}"
        elif not way.counts:
            words += f", but that leads to no page: {way.because}"
        return replace(way, verdict=words + ".")
    words = f"It names {named} as its canonical page"
    if not way.counts:
        return replace(way, verdict=f"{words}. That is ignored: {way.because}.")
    if hops:
        words += f", which redirects to {last}"
    return replace(way, verdict=f"{words}: both are one document.")

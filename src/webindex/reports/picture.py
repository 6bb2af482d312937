"""The image of a page: what it shows, and why it was made when it was."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from percola import Snapshot
from webindex.page.urls import page_row
from webindex.rendering import tables as rendering
from webindex.reports.withheld import asking
from webindex.text_format import date, moment

__all__ = ["Made", "Picture", "picture_of", "thumbnails_of"]

_NAMED: Final = 3
"""Causes of a rendering that are named; of the others, the number."""


class Made(NamedTuple):
    """An image of a page: why it was made, as a sentence.

    `thumbnail` is the name of its thumbnail in `renders.earlier`, if it is an earlier image of
    which one is kept.
    """

    sentence: str
    thumbnail: str | None


@dataclass(frozen=True, slots=True)
class Picture:
    """The newest image of a page.

    Attributes:
        captured: the date of the capture that it shows.
        made_ms: when it was made, in milliseconds since the epoch.
        width, height: in pixels.
        cut: whether the page is longer than the image.
        resources: how many URLs the browser asked for; `missing` are those without a capture.
        made: this image and the earlier ones, the newest first.
    """

    captured: str
    made_ms: int
    width: int
    height: int
    cut: bool
    resources: int
    missing: list[str]
    made: list[Made]


def picture_of(now: Snapshot, row: str) -> Picture | None:
    """The image of a page, by its row; None if there is none."""
    about = now.get(rendering.about, row)
    if about is None:
        return None
    kept = now.get_row(rendering.renders, row, [rendering.earlier]).family(rendering.earlier)
    return Picture(
        captured=about["date"],
        made_ms=about["at_ms"],
        width=about["width"],
        height=about["height"],
        cut=about["cut"],
        resources=len(about["asked"]),
        missing=sorted(url for url, digest in about["asked"].items() if digest is None),
        made=[_made(one, about["url"], kept) for one in (about, *about["history"])],
    )


def thumbnails_of(now: Snapshot, urls: Iterable[str]) -> set[str]:
    """Those of some normalised URLs of pages that have an image which may be shown."""
    asked = list(urls)
    hidden = asking(now, asked, "noarchive")
    wanted = [url for url in asked if url not in hidden]
    found = now.get_many((rendering.about, page_row(url)) for url in wanted)
    return {url for url, about in zip(wanted, found, strict=True) if about is not None}


def _made(one: Mapping[str, Any], page: str, kept: Collection[str]) -> Made:
    name = str(one["at_ms"])
    return Made(_sentence(one, page), name if name in kept else None)


def _sentence(one: Mapping[str, Any], page: str) -> str:
    """When and why an image was made."""
    when = moment(one["at_ms"])
    causes = [_cause(each, page) for each in one["because"]]
    if not causes:
        return f"Rendered first at {when}."
    named = causes[:_NAMED]
    if len(causes) > _NAMED:
        named.append(f"{len(causes) - _NAMED:,} more changed")
    return f"Rendered again at {when}, because {' and '.join(named)}."


def _cause(cause: Mapping[str, Any], page: str) -> str:
    url = cause["url"]
    if url is None:
        return "the browser or its fonts changed"
    what = "the page" if url == page else url
    if cause["date"] is None:
        return f"{what} is gone"
    return f"{what} changed with its capture of {date(cause['date'])}"

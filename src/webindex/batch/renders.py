"""What documents use and what images show, from captures alone: invariants 15 and 16.

    captures of pages ──────┐                    ┌─▶ entered, uses (page, part)
    captures of resources ──┴▶ what each URL is ─┼─▶ digest of each answer ─┐
    bodies of stylesheets ──────────────────────▶┘                          ├─▶ inputs of each image
    about (what the browser asked for) ─┬───────────────────────────────────┘
                                        └─▶ uses (seen)

A page whose image is missing, or shows something else than the captures of today, is wrong only if
nobody is going to render it: if it is neither due nor dead-lettered.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.core.rdd import RDD

from percola import Repository, inspection
from webindex.batch.inlinks import Row
from webindex.batch.read import Found, Moment
from webindex.page.urls import page_id, page_row
from webindex.rendering import tables as rendering
from webindex.rendering.dependencies import (
    SEEN,
    Current,
    answer_now,
    asked_by,
    entered_of,
    newer,
    use_rows,
)
from webindex.rendering.render import inputs_of
from webindex.workers.processes import open_repository

__all__ = ["Rendered", "rendered"]

IMAGE: Final = "image"
"""The part of a row of `renders` that is compared: the digest of what its image shows."""


class Rendered(NamedTuple):
    """Both sides of the comparison.

    Attributes:
        there, wanted: rows of `resources`, `bodies`, `uses` and, of images that nobody is going to
            render, `renders`.
        waiting: the number of images that are not what the captures make them, and are going to be
            rendered.
        unfollowed: the number of pages that were loaded before the repository kept resources, and
            that nobody has looked at since.
    """

    there: RDD[Row]
    wanted: RDD[Row]
    waiting: int
    unfollowed: int


class _Document(NamedTuple):
    """What the URL of a row is; `urls` is what it asks for."""

    current: Current | None
    kind: str
    urls: list[str]


def rendered(
    moment: Moment, since_ms: int, parts: int, reads: int, *, images: bool = True
) -> Rendered:
    """What resources, uses and images there are, and should be.

    Args:
        since_ms: when the repository began to keep resources; pages that were loaded before are
            followed once they are loaded or looked at again.
        parts, reads: about how many tasks compute and read.
        images: whether to compare images too: which pages are due is known of the present only.
    """
    pages = moment.rows("documents", reads).map(_as_pair)
    resources = moment.rows("resources", parts).map(_as_pair)
    bodies = moment.rows("bodies", parts).map(_as_pair)
    abouts: RDD[tuple[str, dict[str, Any]]] = moment.rows("renders", parts).flatMap(_about)
    abouts.persist(StorageLevel.MEMORY_AND_DISK)
    grouped = pages.groupWith(resources, abouts)
    documents = grouped.flatMapValues(partial(_document, since_ms))
    documents.persist(StorageLevel.MEMORY_AND_DISK)
    styles: RDD[tuple[str, tuple[str, Current]]] = documents.flatMap(_style)
    asked = documents.union(styles.leftOuterJoin(bodies, parts).map(_asked_by_style))
    context = moment.spark.sparkContext
    there = context.union(
        [
            resources.flatMap(_entered),
            bodies.map(_stored),
            moment.rows("uses", parts).map(lambda one: Row(*one)),
        ]
    )
    holders: RDD[Row] = resources.flatMap(_holder)
    wanted = context.union([holders, asked.flatMap(_uses), abouts.flatMap(_seen)])
    waiting = 0
    if images:
        judged: RDD[_Judged] = _images(documents, abouts, parts).mapPartitions(
            partial(_judged, moment.address)
        )
        judged.persist(StorageLevel.MEMORY_AND_DISK)
        there = there.union(judged.flatMap(partial(_side, 0)))
        wanted = wanted.union(judged.flatMap(partial(_side, 1)))
        waiting = judged.filter(lambda one: one[1].is_due).count()
    unfollowed = documents.filter(lambda one: one[1].current is None).count()
    return Rendered(there, wanted, waiting, unfollowed)


def _as_pair(found: Found) -> tuple[str, dict[str, Any]]:
    return found.row, found.values


def _about(found: Found) -> Iterator[tuple[str, dict[str, Any]]]:
    if "about" in found.values:
        yield found.row, found.values["about"]


def _document(since_ms: int, pieces: tuple[Iterable[dict[str, Any]], ...]) -> Iterator[_Document]:
    """What a URL is and asks for; of a stylesheet, that is found later. Nothing if it is not there.

    Its `current` is None if nobody has looked at it since the repository keeps resources.
    """
    page, resource, about = (next(iter(one), {}) for one in pieces)
    found = newer(page.get("capture"), resource.get("capture"))
    if found is None:
        return
    is_old = not found.resource and found.capture["loaded_ms"] < since_ms
    if is_old and "entered" not in resource and not about:
        yield _Document(None, "", [])
    elif found.is_style:
        yield _Document(found, "", [])
    else:
        yield _Document(found, *asked_by(found, lambda: _unpacked(page.get("body"))))


def _unpacked(body: bytes | None) -> bytes:
    return zlib.decompress(body) if body else b""


def _style(document: tuple[str, _Document]) -> Iterator[tuple[str, tuple[str, Current]]]:
    row, (current, _, _) = document
    if current is not None and current.is_style:
        yield current.capture["digest"], (row, current)


def _asked_by_style(
    joined: tuple[str, tuple[tuple[str, Current], dict[str, Any] | None]],
) -> tuple[str, _Document]:
    (row, current), body = joined[1]
    stored = (body or {}).get("data")
    unpacked = rendering.unpacked(stored) if stored else b""
    return row, _Document(current, *asked_by(current, lambda: unpacked))


# --- Resources and uses -----------------------------------------------------------------------


def _entered(resource: tuple[str, dict[str, Any]]) -> Iterator[Row]:
    row, values = resource
    if "entered" in values:
        yield Row("resources", row, {"entered": values["entered"]})


def _stored(body: tuple[str, dict[str, Any]]) -> Row:
    """A body with the digest of its bytes in place of them."""
    digest, values = body
    if "data" in values:
        values = {**values, "data": _digest_of(rendering.unpacked(values["data"]))}
    return Row("bodies", digest, values)


def _digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _holder(resource: tuple[str, dict[str, Any]]) -> Iterator[Row]:
    capture = resource[1].get("capture")
    if capture is not None:
        url, digest = capture["url"], capture["digest"]
        yield Row("bodies", digest, {"data": digest, f"holder:{page_id(url)}": url})


def _uses(document: tuple[str, _Document]) -> Iterator[Row]:
    row, (current, kind, urls) = document
    if current is None or not urls:
        return
    yield Row("resources", row, {"entered": entered_of(kind, urls)})
    url = str(current.capture["url"])
    for use in use_rows(page_id(url), kind, urls):
        yield Row("uses", use, {"by": url})


def _seen(about: tuple[str, Mapping[str, Any]]) -> Iterator[Row]:
    url = about[1]["url"]
    for use in use_rows(page_id(url), SEEN, about[1]["asked"]):
        yield Row("uses", use, {"by": url})


# --- Images -----------------------------------------------------------------------------------

_Image = tuple[str, tuple[str | None, str | None]]
"""The row of a page; the digests of what its image shows and of what it would show now."""


def _images(
    documents: RDD[tuple[str, _Document]], abouts: RDD[tuple[str, dict[str, Any]]], parts: int
) -> RDD[_Image]:
    """Every page that has an image or should have one."""
    answers: RDD[tuple[str, Current]] = documents.flatMapValues(_current)
    asked: RDD[tuple[str, _Asked]] = abouts.flatMap(_asked)
    now: RDD[tuple[str, tuple[str, str | None]]] = asked.leftOuterJoin(answers, parts).map(_answer)
    return answers.groupWith(abouts, now).flatMap(_image)


def _current(document: _Document) -> Iterator[Current]:
    if document.current is not None:
        yield document.current


_Asked = tuple[str, str, str | None]
"""The row of a page, a URL that its browser asked for, and the digest of the answer."""


def _asked(about: tuple[str, Mapping[str, Any]]) -> Iterator[tuple[str, _Asked]]:
    """What a browser asked for, by the row of the URL."""
    row, shown = about
    for url, told in shown["asked"].items():
        yield page_row(url), (row, url, told)


def _answer(
    joined: tuple[str, tuple[_Asked, Current | None]],
) -> tuple[str, tuple[str, str | None]]:
    _, ((row, url, told), found) = joined
    return row, (url, answer_now(told, found))


def _image(
    grouped: tuple[
        str,
        tuple[Iterable[Current], Iterable[Mapping[str, Any]], Iterable[tuple[str, str | None]]],
    ],
) -> Iterator[_Image]:
    row, (currents, abouts, answers) = grouped
    current, about = next(iter(currents), None), next(iter(abouts), None)
    is_page = current is not None and current.is_page
    if about is None:
        if is_page:
            yield row, (None, "an image")
        return
    expected = None
    if current is not None and is_page:
        shown = answer_now(about["page"], current)
        assert shown is not None
        expected = inputs_of(shown, dict(answers), about["version"])
    yield row, (about["inputs"], expected)


class _Sides(NamedTuple):
    """What an image shows and what it would show now; whether it is going to be rendered."""

    sides: tuple[str | None, str | None]
    is_due: bool


_Judged = tuple[str, _Sides]


def _judged(address: str, images: Iterable[_Image]) -> Iterator[_Judged]:
    """Find out of each image that differs whether it is due, or dead-lettered."""
    repo: Repository | None = None
    try:
        for row, sides in images:
            is_due = False
            if sides[0] != sides[1]:
                repo = repo or open_repository(address)
                is_due = inspection.is_dirty(repo, rendering.render_due, row) or any(
                    inspection.failures(repo, table=rendering.renders, row=row)
                )
            yield row, _Sides(sides, is_due)
    finally:
        if repo is not None:
            repo.close()


def _side(which: int, judged: _Judged) -> Iterator[Row]:
    row, (sides, is_due) = judged
    if sides[which] is not None and not is_due:
        yield Row("renders", row, {IMAGE: sides[which]})

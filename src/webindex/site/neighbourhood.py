"""The links around a page as a small drawing, in a wide and in a narrow layout.

    wide      in-links on the left, out-links on the right
    narrow    in-links above the page, out-links below, labels beside them

Only a few links are drawn; the lists beside it have all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from webindex.reports import Link, Story
from webindex.site.shown import brief

PAGES: Final = 7
"""Pages drawn on each side."""

_ROW: Final = 30


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: in units of the drawing, which are pixels in a window of that width.

    Attributes:
        name: its class in the style sheet.
        width: of the drawing.
        centre: where the page is, from the left.
        left, right: where the neighbours are that link here, and those linked from here.
        letters: the longest label.
        stacked: whether in-links are above and out-links below.
        ends: whether the labels of in-links end at them.
    """

    name: str
    width: int
    centre: int
    left: int
    right: int
    letters: int
    stacked: bool
    ends: bool


WIDE: Final = Layout("wide", 1000, 500, 350, 650, 44, stacked=False, ends=True)
NARROW: Final = Layout("narrow", 320, 20, 56, 56, 34, stacked=True, ends=False)


@dataclass(frozen=True, slots=True)
class Node:
    """A neighbour: where its label begins or ends, and the line to the page."""

    url: str
    label: str
    x: int
    y: int
    line: str
    counts: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """The neighbourhood; `more_in` and `more_out` are the numbers of pages left out."""

    layout: Layout
    height: int
    middle: int
    left: list[Node]
    right: list[Node]
    more_in: int
    more_out: int


def draw(story: Story, layout: Layout) -> Drawing | None:
    """Lay out the neighbourhood; None if there are no links."""
    incoming, outgoing = _distinct(story, story.in_links), _distinct(story, story.out_links)
    above, below = min(len(incoming), PAGES), min(len(outgoing), PAGES)
    if not above and not below:
        return None
    if layout.stacked:
        middle = above * _ROW + 24
        height = middle + below * _ROW + 32
        tops = 8, middle + 24
    else:
        height = max(3, above, below) * _ROW + 16
        middle = height // 2
        tops = (height - above * _ROW) // 2, (height - below * _ROW) // 2
    return Drawing(
        layout,
        height,
        middle,
        _side(story.url, incoming[:PAGES], layout, layout.left, tops[0], middle),
        _side(story.url, outgoing[:PAGES], layout, layout.right, tops[1], middle),
        max(0, len(incoming) - PAGES),
        max(0, len(outgoing) - PAGES),
    )


def _distinct(story: Story, links: Sequence[Link]) -> list[Link]:
    """Each page once: links that count first, then those with an anchor text."""
    named = sorted(links, key=lambda link: (not link.counts, not link.anchors))
    first = {link.url: link for link in reversed(named) if link.url != story.url}
    return [link for link in named if first.get(link.url) is link]


def _side(
    url: str, links: Sequence[Link], layout: Layout, x: int, top: int, middle: int
) -> list[Node]:
    nodes = []
    # Lines of a wide drawing end beside the page, so that they do not cross its circle.
    end = layout.centre if layout.stacked else layout.centre + (14 if x > layout.centre else -14)
    for place, link in enumerate(links):
        y = top + place * _ROW + _ROW // 2
        if layout.stacked:
            line = f"M{x},{y} C{end},{y} {end},{y} {end},{middle}"
        else:
            bend = (x + end) // 2
            line = f"M{x},{y} C{bend},{y} {bend},{middle} {end},{middle}"
        nodes.append(Node(link.url, brief(link.url, url, layout.letters), x, y, line, link.counts))
    return nodes

"""The links around a page as a drawing: in-links on the left, out-links on the right.

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

WIDTH: Final = 1000
_ROW: Final = 30
_SIDE: Final = 350
_LETTERS: Final = 44


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

    height: int
    middle: int
    left: list[Node]
    right: list[Node]
    more_in: int
    more_out: int


def draw(story: Story) -> Drawing | None:
    """Lay out the neighbourhood; None if there are no links."""
    incoming, outgoing = _distinct(story, story.in_links), _distinct(story, story.out_links)
    rows = max(min(len(incoming), PAGES), min(len(outgoing), PAGES))
    if not rows:
        return None
    height = max(3, rows) * _ROW + 16
    middle = height // 2
    return Drawing(
        height,
        middle,
        _side(story.url, incoming[:PAGES], _SIDE, WIDTH // 2 - 14, height),
        _side(story.url, outgoing[:PAGES], WIDTH - _SIDE, WIDTH // 2 + 14, height),
        max(0, len(incoming) - PAGES),
        max(0, len(outgoing) - PAGES),
    )


def _distinct(story: Story, links: Sequence[Link]) -> list[Link]:
    """Each page once: links that count first, then those with an anchor text."""
    named = sorted(links, key=lambda link: (not link.counts, not link.anchors))
    first = {link.url: link for link in reversed(named) if link.url != story.url}
    return [link for link in named if first.get(link.url) is link]


def _side(url: str, links: Sequence[Link], x: int, centre: int, height: int) -> list[Node]:
    top = (height - len(links) * _ROW) // 2 + _ROW // 2
    nodes = []
    for place, link in enumerate(links):
        y = top + place * _ROW
        bend = (x + centre) // 2
        line = f"M{x},{y} C{bend},{y} {bend},{height // 2} {centre},{height // 2}"
        nodes.append(Node(link.url, brief(link.url, url, _LETTERS), x, y, line, link.counts))
    return nodes

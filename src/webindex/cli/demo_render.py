"""What the demonstration shows of rendering: a stylesheet that changes renders its pages again."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from percola import Repository
from webindex.crawl.warc import Capture, Resource, read_captures
from webindex.errors import NoBrowserError, WorkingError
from webindex.load.resources import keep_resources
from webindex.load.transaction import load_captures
from webindex.rendering import tables as rendering
from webindex.sample import STYLED, UNSTYLED, sample_path
from webindex.workers.processes import Together, open_repository, running, wait_until_idle

__all__ = ["Restyled", "restyle"]

_MOST_STYLESHEET: Final = 1 << 20
_RULE: Final = b"\nbody { background: #fff4c2 }\n"


@dataclass(frozen=True, slots=True)
class Restyled:
    """What was rendered.

    Attributes:
        pages: the pages that have an image.
        again: those that have another one since the stylesheet changed.
        first_seconds, seconds: from its new capture to the first of those, and to the end.
    """

    pages: list[str]
    again: list[str]
    first_seconds: float
    seconds: float


def restyle(folder: Path, seconds: float) -> Restyled:
    """Render some pages of the sample in a new repository, and again after a new stylesheet.

    Raises NoBrowserError if the browser does not run, WorkingError if a step takes longer than
    `seconds`.
    """
    wanted = {*STYLED, *UNSTYLED}
    records = read_captures(sample_path(), max_resource=_MOST_STYLESHEET)
    chosen = [
        one
        for one in records
        if isinstance(one, Resource) or (isinstance(one, Capture) and one.url in wanted)
    ]
    [style] = [one for one in chosen if isinstance(one, Resource)]
    assert style.body is not None
    changed = replace(
        style,
        body=style.body + _RULE,
        date=style.date + timedelta(days=1),
        payload_digest=None,
    )
    with open_repository(str(folder), create=True) as repo:
        keep_resources(repo)
        load_captures(repo, chosen, str(sample_path()))
        with (
            running(repo.address, 1) as workers,
            running(repo.address, 1, command=["run-renderer"]) as renderer,
        ):
            both = Together(workers, renderer)
            try:
                renderer.wait_ready()
            except WorkingError as error:
                raise NoBrowserError(f"The browser does not run here. {error}") from error
            wait_until_idle(repo, both, seconds)
            before = _images(repo)
            began = time.time()
            load_captures(repo, [changed], str(sample_path()))
            wait_until_idle(repo, both, seconds)
            ended = time.time()
        after = _images(repo)
    again = {url: made for url, made in after.items() if made != before.get(url)}
    return Restyled(
        sorted(before),
        sorted(again),
        min(again.values(), default=ended) - began,
        ended - began,
    )


def _images(repo: Repository) -> dict[str, float]:
    """When the image of each page was made."""
    with repo.snapshot() as now:
        rows = [
            row[rendering.about] for row in now.scan(rendering.renders, columns=[rendering.about])
        ]
    return {one["url"]: one["at_ms"] / 1000 for one in rows}

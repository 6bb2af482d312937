"""When pages are due for another crawl, from what is kept of their past, and their rank.

The past is taken as the repository has it: how much of it is kept depends on the order of loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pyspark.core.rdd import RDD

from webindex.batch.facts import Facts
from webindex.batch.inlinks import Row
from webindex.load.recrawls import past_of
from webindex.page.urls import page_id


def recrawls_of(facts: RDD[Facts], cells: RDD[tuple[str, dict[str, Any]]], parts: int) -> RDD[Row]:
    """The rows of `recrawls`, and the cells of `pages` that name them.

    `cells` has `capture`, `earlier` and `revisited` of each page, by its row.
    """
    there: RDD[tuple[str, float | None]] = facts.filter(_is_there).map(
        lambda page: (page.row, page.rank)
    )
    pasts: RDD[tuple[str, dict[str, Any]]] = cells.flatMap(_past)
    return there.join(pasts, parts).flatMap(_entry)


def _is_there(page: Facts) -> bool:
    redirects = page.pointer is not None and page.pointer[0] == "redirect"
    return page.url is not None and (page.live or redirects)


def _past(page: tuple[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    row, values = page
    if "capture" in values:
        past = past_of(values["capture"], values.get("earlier"), values.get("revisited"))
        yield row, {"url": values["capture"]["url"], "due": past.due}


def _entry(page: tuple[str, tuple[float | None, dict[str, Any]]]) -> Iterator[Row]:
    row, (rank, past) = page
    level = 99
    if rank is not None and rank > 0:
        # Levels begin at the powers of the root of 2; 49 begins at the mean.
        level = max(0, min(98, 49 - math.floor(math.log2(rank) * 2)))
    entry = f"{level:02}/{past['due']}/{page_id(past['url'])}"
    yield Row("recrawls", entry, {"url": past["url"]})
    yield Row("pages", row, {"recrawl": entry})

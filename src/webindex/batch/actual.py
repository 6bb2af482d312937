"""What the repository and the search index contain at the timestamp that is verified, in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final

from pyspark import SparkContext
from pyspark.core.rdd import RDD

from webindex.batch.compare import Keyed, keyed, mentions
from webindex.batch.digest import brief, canonical
from webindex.batch.facts import Facts
from webindex.batch.inlinks import Row, for_large
from webindex.batch.read import Found, Moment
from webindex.page.urls import host
from webindex.serving import NoIndexError, ServingDocument
from webindex.serving.located import open_place

_FIELDS: Final = frozenset(one.name for one in fields(ServingDocument)) - {"cluster", "epoch"}


def plain_rows(moment: Moment, parts: int) -> RDD[Row]:
    """Every row that does not name a cluster, as far as it is compared."""
    return moment.spark.sparkContext.union(
        [
            moment.rows("plain", parts),
            moment.rows("aliases", parts),
            moment.rows("inlinks", parts),
            moment.rows("anchors", parts),
            moment.rows("frontier", parts),
            moment.rows("recrawls", parts),
            moment.rows("listed", parts),
            moment.rows("sitemaps", parts).map(_without_given),
            moment.rows("near", parts),
            moment.rows("hosts", 1),
            moment.rows("blocks", parts),
        ]
    ).map(_short)


def _without_given(found: Found) -> Found:
    """The row of a sitemap without its capture."""
    entered = {n: value for n, value in found.values.items() if n.startswith("entered:")}
    return found._replace(values=entered)


def naming_rows(moment: Moment, parts: int) -> RDD[tuple[str, Row]]:
    """Every row that names a cluster, keyed by that name."""
    named = [moment.rows(selection, parts) for selection in ("joined", "owner", "clusters")]
    return moment.spark.sparkContext.union(named).map(_short).map(mentions)


def for_large_pages(moment: Moment, parts: int) -> RDD[Row]:
    """The cells that serve to count the links to large pages, as their in-links have them."""
    return moment.rows("inlinks", parts).map(lambda one: Row(*one)).flatMap(for_large)


def as_stored(cluster: Row) -> Row:
    """A computed cluster as the repository stores it: with its document's text once."""
    document = cluster.values.get("document")
    if document is None:
        return cluster
    stored = {name: value for name, value in document.items() if name != "served"}
    return cluster._replace(values={**cluster.values, "document": stored})


def _short(found: Found) -> Row:
    """A row as it was read, with its texts abbreviated."""
    values = dict(found.values)
    if "rank" in values:
        values["rank"] = float(values["rank"]["value"])
    if "text" in values:
        values["text"] = brief(values["text"])
    document = values.get("document")
    if document is not None and isinstance(document.get("text"), str):
        values["document"] = {**document, "text": brief(document["text"])}
    return Row(found.table, found.row, values)


# --- Inputs, as far as they can be checked ----------------------------------------------------


def body_found(page: Facts) -> Keyed:
    """The digest of the captured bytes."""
    return ("pages", page.row), {"body": page.digest}


def given_parts(page: Facts) -> Iterator[Keyed]:
    """The bytes match the capture; and only live pages have a rank, of any value if by a run."""
    if page.url is not None:
        yield ("pages", page.row), {"body": page.captured}
    if page.live and page.rank is not None and not page.interim:
        yield ("pages", page.row), {"rank": canonical(page.rank)}


# --- The search index -----------------------------------------------------------------------


def served_rows(
    context: SparkContext, place: str, listed: list[tuple[str, list[int]]], parts: int
) -> RDD[tuple[str, Row]]:
    """The searchable documents, as `listed_documents` has them, as rows of their clusters."""
    return context.parallelize(listed, max(1, min(parts, len(listed)))).mapPartitions(
        partial(_look_up, place)
    )


def listed_documents(place: str) -> list[tuple[str, list[int]]]:
    """Each cluster in the search index, with the epochs of its documents, of which it should have
    one; empty if there is no index yet.
    """
    epochs: dict[str, list[int]] = {}
    try:
        with open_place(place, create=False) as index:
            for cluster, epoch in sorted(index.clusters()):
                epochs.setdefault(cluster, []).append(epoch)
    except NoIndexError:
        return []
    return [*epochs.items()]


def _look_up(place: str, listed: Iterable[tuple[str, list[int]]]) -> Iterator[tuple[str, Row]]:
    of = dict(listed)
    with open_place(place, create=False) as index:
        for document in index.get_many(of):
            shown = asdict(document)
            values = {name: shown[name] for name in _FIELDS}
            epochs = of[document.cluster]
            version = document.epoch if len(epochs) < 2 else epochs
            values |= {"text": brief(document.text), "version": version}
            yield document.cluster, Row("search", document.cluster, {"document": values})


def expected_epoch(cluster: Row) -> Iterator[Keyed]:
    """The epoch that search must have: that of the document in the repository."""
    document = cluster.values.get("document")
    if document is not None:
        yield ("search", cluster.row), {"document.version": canonical(document["epoch"])}


def to_be_served(cluster: Row) -> Iterator[Keyed]:
    """The search document of a computed cluster."""
    document = cluster.values.get("document")
    if document is None:
        return
    given: dict[str, Any] = {
        **document,
        "cluster": "-",
        "epoch": 0,
        "host": host(document["url"]),
        "text": document["served"],
        "anchors": tuple((words, count) for words, count in document["anchors"]),
        "duplicates": tuple(document["duplicates"]),
        "aliases": tuple(document["aliases"]),
        "headings": tuple(document["headings"]),
        "more": document.get("more", 0),
    }
    names = _FIELDS | {"cluster", "epoch"}
    shown = asdict(ServingDocument(**{name: given[name] for name in names}))
    yield keyed(Row("search", cluster.row, {"document": {n: shown[n] for n in _FIELDS}}))

"""§3: the end of the chain: changed documents are exported to the search index, in batches.

The outbox (`tables.exports`) lists the clusters that have changed since they were last exported.
One run takes as many as justify a durable write of the search index: a trickle is exported at once,
and a bulk load by the hundreds. On an index that takes batches of several processes at a time, as
many workers export (`ServingIndex.exporters`), each other windows of the outbox.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from percola import Observer, Transaction
from percola.recipes import Entry, Refused
from webindex import journal, tables
from webindex.page.urls import host
from webindex.serving.base import (
    IndexUnavailableError,
    IndexWriteError,
    RefusedDocumentsError,
    ServingDocument,
    ServingIndex,
)

__all__ = ["EXPORT_BATCH", "export_to", "serving_document"]

EXPORT_BATCH: Final = 500
"""Documents that one run of `export` writes to the search index."""

EXPORT_SHARE: Final = 0.5
"""A durable write of the search index takes 20 to 100 ms however small it is, beside a load: it
gets a part of its thread's time while others work. With 0.3, nearly twice as many pages wait for
more than a second beside a load; with 1, they wait for what workers get of the cores instead."""

LONGEST_WAIT: Final = 5.0
"""Seconds before an index that was not available is tried again, at most."""

log = logging.getLogger("webindex.export")


def export_to(index: ServingIndex) -> Observer[str]:
    """The last observer of the chain, for one search index.

    It drains the outbox in batches: one durable write of the search index for all documents
    that have changed since the last one. Writing the index is not part of the transaction, but
    it is idempotent by cluster and epoch: a crash in between only repeats the write.

    While the index is not available, or cannot be written to, as on a full disk, it tries again,
    for ever. A document that the index refuses becomes a dead letter of the outbox
    (`tables.exports.refusals`).
    """
    failures = 0

    def send(t: Transaction, entries: Sequence[Entry]) -> list[Refused]:
        nonlocal failures
        puts: dict[str, ServingDocument] = {}
        deletes: dict[str, int] = {}
        documents = t.get_many((tables.document, one.key) for one in entries)
        for one, shown in zip(entries, documents, strict=True):
            if shown is None:
                deletes[one.key] = max(deletes.get(one.key, 0), one.epoch)
            else:
                puts[one.key] = serving_document(one.key, shown)
        refused: dict[str, str] = {}
        try:
            index.apply(list(puts.values()), list(deletes.items()))
        except RefusedDocumentsError as error:
            log.error("%s", error)
            refused = error.why
        except (IndexUnavailableError, IndexWriteError) as error:
            # Both are TransientErrors: the worker runs this again, and counts no failure.
            failures += 1
            wait = min(LONGEST_WAIT, 0.1 * 2.0 ** min(failures, 10)) * (0.5 + random.random() / 2)
            log.warning("Documents wait to be exported, next attempt in %.1f s: %s", wait, error)
            time.sleep(wait)
            raise
        failures = 0
        now = time.time_ns() // 1_000_000
        if loaded := [ms for one in entries if one.key not in refused for ms in one.note or ()]:
            journal.keep(
                t,
                journal.EXPORT,
                t.start_ts,
                {"at_ms": now, "latency_ms": [now - one for one in loaded]},
            )
        return [Refused(one, refused[one.key]) for one in entries if one.key in refused]

    [export] = tables.exports.observers(
        send, name="export", most=EXPORT_BATCH, share=EXPORT_SHARE, workers=index.exporters
    )
    return export


def serving_document(cluster: str, shown: Mapping[str, Any]) -> ServingDocument:
    """The document in the form that the search index takes."""
    return ServingDocument(
        cluster=cluster,
        epoch=shown["epoch"],
        url=shown["url"],
        title=shown["title"],
        text=shown["text"],
        language=shown["language"],
        host=host(shown["url"]),
        anchors=tuple((words, count) for words, count in shown["anchors"]),
        duplicates=tuple(shown["duplicates"]),
        inlinks=shown["inlinks"],
        rank=shown["rank"],
        aliases=tuple(shown["aliases"]),
        # Documents of earlier versions have none of these until they are assembled again.
        headings=tuple(shown.get("headings", ())),
        linked=shown.get("linked", 0.0),
        changed=shown.get("changed", ""),
        more=shown.get("more", 0),
    )

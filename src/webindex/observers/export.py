"""§3: the end of the chain: changed documents are exported to the search index, in batches.

The outbox lists the clusters that have changed since they were last exported. One run takes as
many as justify a durable write of the search index: a trickle is exported at once, and a bulk load
by the hundreds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from percola import Observer, Transaction, observer
from webindex import journal, tables
from webindex.observers import outbox
from webindex.page.urls import host
from webindex.serving.base import ServingDocument, ServingIndex

__all__ = ["EXPORT_BATCH", "export_to", "serving_document"]

EXPORT_BATCH: Final = 500
"""Documents that one run of `export` writes to the search index."""

_WINDOWS: Final = 256

EXPORT_SHARE: Final = 0.5
"""A durable write of the search index takes 20 to 100 ms however small it is, beside a load: it
gets a part of its thread's time while others work. With 0.3, nearly twice as many pages wait for
more than a second beside a load; with 1, they wait for what workers get of the cores instead."""


def export_to(index: ServingIndex) -> Observer[str]:
    """The last observer of the chain, for one search index.

    It drains the outbox in batches: one durable write of the search index for all documents
    that have changed since the last one. Writing the index is not part of the transaction, but
    it is idempotent by cluster and epoch: a crash in between only repeats the write.
    """
    # By window, the last entry taken, for windows with more entries. A hint: if the run did not
    # commit, or another process went further, entries before it are found as well.
    reached: dict[str, str] = {}

    # One window a transaction: its report is named by start_ts, and what was written to the index
    # is noted before more is.
    @observer(tables.outbox_ready, name="export", batch=1, share=EXPORT_SHARE, dedicated=True)
    def export(t: Transaction, window: str) -> None:
        puts: dict[str, ServingDocument] = {}
        deletes: dict[str, int] = {}
        loaded: list[int] = []
        taken: list[outbox.Entry] = []
        for entry, loaded_ms in outbox.entries(t, window, after=reached.pop(window, "")):
            if len(taken) >= EXPORT_BATCH:
                t.notify(tables.outbox_ready, window)
                if len(reached) >= _WINDOWS:
                    reached.clear()
                reached[window] = taken[-1].key
                break
            taken.append(entry)
            loaded += loaded_ms
            t.delete(tables.entry, entry.key)
        documents = t.get_many((tables.document, entry.cluster) for entry in taken)
        for (_, cluster, epoch), shown in zip(taken, documents, strict=True):
            if shown is None:
                deletes[cluster] = max(deletes.get(cluster, 0), epoch)
            else:
                puts[cluster] = serving_document(cluster, shown)
        if not taken:
            return
        index.apply(list(puts.values()), list(deletes.items()))
        now = time.time_ns() // 1_000_000
        if loaded:
            journal.keep(
                t,
                journal.EXPORT,
                t.start_ts,
                {"at_ms": now, "latency_ms": [now - one for one in loaded]},
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
    )

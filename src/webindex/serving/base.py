"""The contract of a serving index: one document for each duplicate cluster, newest epoch wins.

An exporter may crash after a batch is durable and before it reports it, and two exporters may hold
batches of the same cluster in either order. Both are harmless because the state of a cluster is
the greatest change that was ever applied to it, in the order

    (epoch, put < delete)

so applying is idempotent, and every order of the same batches ends in the same index. For this
to hold after a deletion as well, an index remembers the epoch of a deleted cluster: an older
put that arrives late does not bring the document back. Epochs of one cluster must therefore
never restart, not even when its row was removed and recreated; a commit timestamp is a good one.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import TracebackType
from typing import Literal, Protocol, Self

from percola import TransientError

MAX_EPOCH = 2**63 - 1
# The length of an id that OpenSearch takes.
MAX_CLUSTER_BYTES = 512

# To return a slice of the hits an index has to hold all hits before it.
MAX_LIMIT = 1_000
MAX_OFFSET = 9_000

Facet = Literal["host", "language"]
"""The attributes by which hits can be filtered and counted."""

Runner = tuple[tuple[str, bool], ...]
"""Text in runs, each with whether it matched the query. Joined, the runs are the text."""

_SURROGATES = re.compile("[\ud800-\udfff]")


class ServingError(Exception):
    """The base class of the search index's errors."""


class NotAnIndexError(ServingError):
    """This place holds no search index, or one of another version, or cannot hold one."""


class NoIndexError(NotAnIndexError):
    """There is nothing in this place, and an index was not to be created."""


class DamagedIndexError(ServingError):
    """The folder holds a search index whose files cannot be read."""


class IndexUnavailableError(ServingError, TransientError):
    """The search index cannot be reached, or takes nothing at present; nothing is wrong with it."""


class BusyIndexError(IndexUnavailableError):
    """Another writer held the search index for longer than the lock timeout."""


class IndexReadError(ServingError):
    """A search or a lookup failed; the index itself may be intact."""


class IndexWriteError(ServingError, TransientError):
    """A batch could not be made durable, as on a full disk; applying it again is safe."""


class RefusedDocumentsError(ServingError):
    """The index refuses some documents, and would again; the others of the batch are durable.

    Attributes:
        why: the reason, by cluster.
    """

    def __init__(self, index: str, why: Mapping[str, str]) -> None:
        cluster, first = next(iter(why.items()))
        super().__init__(
            f"The search index {index} refuses {len(why):,} of the documents, for example that of "
            f"cluster {cluster!r}: {first}"
        )
        self.why = dict(why)


class InvalidDocumentError(ServingError, ValueError):
    """A document or a deletion that no serving index could hold."""


@dataclass(frozen=True, slots=True)
class ServingDocument:
    """A searchable document: the canonical page of a duplicate cluster.

    Title, text and anchors are kept in Unicode form NFC, so that a word typed with a composed
    accent finds a page that was written with a combining one. Lone surrogates, which have no
    encoding, become U+FFFD.

    Attributes:
        cluster: the document's identity, 1 to 512 bytes in UTF-8.
        epoch: grows with each change of the cluster, 0 to 2**63 - 1.
        url: the canonical URL.
        language: ISO 639 code, or None when not detected.
        host: the URL's host in lower case.
        anchors: distinct texts of links to the cluster, each with its number of links.
        duplicates: the other URLs of the cluster, at most 50 of them.
        aliases: URLs of redirects that lead to the cluster, at most 50 of them.
        more: how many duplicates and redirects there are besides.
        inlinks: number of links to the cluster from elsewhere.
        rank: PageRank as a multiple of the average page's; 0.0 when not known.
        headings: texts of the page's headings and of the terms that it defines, in its order.
        linked: the share of the page's text that is the text of links, 0 to 1.
        changed: the date of the capture that changed the page to what it says, in ISO 8601;
            empty when not known.

    Raises:
        InvalidDocumentError: when one of these limits is broken.
    """

    cluster: str
    epoch: int
    url: str
    title: str
    text: str
    language: str | None
    host: str
    anchors: tuple[tuple[str, int], ...]
    duplicates: tuple[str, ...]
    inlinks: int
    rank: float = 0.0
    aliases: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    linked: float = 0.0
    changed: str = ""
    more: int = 0

    def __post_init__(self) -> None:
        check_change(self.cluster, self.epoch)
        if self.inlinks < 0 or not math.isfinite(self.rank) or self.rank < 0:
            raise InvalidDocumentError(
                f"The document of cluster {self.cluster!r} has inlinks={self.inlinks} and "
                f"rank={self.rank}; both must be finite and not negative."
            )
        anchors = tuple((_storable(text), count) for text, count in self.anchors)
        object.__setattr__(self, "url", _encodable(self.url))
        object.__setattr__(self, "title", _storable(self.title))
        object.__setattr__(self, "text", _storable(self.text))
        object.__setattr__(self, "anchors", anchors)
        object.__setattr__(self, "headings", tuple(map(_storable, self.headings)))
        object.__setattr__(self, "duplicates", tuple(map(_encodable, self.duplicates)))
        object.__setattr__(self, "aliases", tuple(map(_encodable, self.aliases)))


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One document that matches, with what a page of results shows of it.

    `snippet` is plain text in runs, with the matches marked; callers that display it escape it.
    """

    cluster: str
    score: float
    url: str
    title: str
    snippet: Runner
    language: str | None
    host: str
    duplicates: tuple[str, ...]
    inlinks: int
    anchors: tuple[tuple[str, int], ...] = ()
    rank: float = 0.0
    aliases: tuple[str, ...] = ()
    changed: str = ""
    more: int = 0


@dataclass(frozen=True, slots=True)
class SearchResults:
    """The requested slice of the hits, best first, and how many documents match in all.

    Attributes:
        words: how many words and phrases were sought.
        matched: how many of them each hit has at least: all, except in a search with `partly`.
    """

    hits: tuple[SearchHit, ...]
    total: int
    words: int = 0
    matched: int = 0


class ServingIndex(Protocol):
    """An index to which changed clusters are exported, and which is searched.

    All calls may be made from several threads. Every call but `close` may raise `ServingError`.

    Attributes:
        exporters: how many processes gain by applying batches at a time; 1 if they take turns.
    """

    exporters: int

    def apply(
        self, puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]] = ()
    ) -> int:
        """Make one batch durable, and return how many clusters changed.

        If it raises, any part of the batch may have been applied, and it should be applied again.

        A put or a delete, `(cluster, epoch)`, that is not newer than the index's state of
        its cluster is skipped. Every search that begins after the return sees the batch,
        in any process.

        Raises:
            IndexUnavailableError: the index cannot be reached, or takes nothing at present.
            IndexWriteError: the store refused, for example a full disk.
            RefusedDocumentsError: the index holds all of the batch but some documents.
            InvalidDocumentError: a delete has no usable cluster or epoch.
        """
        ...

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        host: str | None = None,
        language: str | None = None,
        since: date | None = None,
        newest: bool = False,
        partly: bool = False,
    ) -> SearchResults:
        """Find documents that contain every word of a query, as `webindex.serving.query` parses it.

        A word that is not quoted is found in any of its forms, by the language of the document:
        `index` finds "indexes". A little word (`Clause.little`) need not be there. An identifier
        (`Clause.name`) finds documents that have that very name before those that have its parts
        side by side.

        With `partly`, if no document of the index does: those that contain the most of its words,
        which are at least half of them, and all of its phrases.

        A query that is the URL of a document, of a duplicate or of an alias finds that first. The
        best other hits are those that are called like the query (`webindex.serving.naming`): by a
        name in their title, by a heading, or by a link that is not navigation. Words in titles,
        headings and links weigh more than words in the text, and a document that consists of links
        weighs less (`linked`).

        Args:
            host, language: only documents with these; None for any.
            since: only documents that changed on this day (UTC) or later.
            newest: order by `changed`, the latest first, instead of by score.
            partly: see above.

        No query is an error: one without a word in it finds nothing, and of one that is too long
        the rest is ignored (`webindex.serving.query.check_length` refuses it).

        Raises:
            ValueError: `limit` is not within 1 to 1,000, or `offset` within 0 to 9,000.
        """
        ...

    def facet(
        self,
        field: Facet,
        query: str,
        *,
        limit: int = 10,
        host: str | None = None,
        language: str | None = None,
        since: date | None = None,
        partly: bool = False,
    ) -> list[tuple[str, int]]:
        """Count the hits of `search` by host or by language, the most frequent first.

        Documents whose language is not known are in no count by language.
        """
        ...

    def suggest(self, query: str) -> str | None:
        """Return a query that may have been meant, with words that the index has, or None.

        Only words that no document has are replaced, by the most frequent word that differs in
        a letter or two. The new query does not necessarily find anything.
        """
        ...

    def complete(self, query: str, *, limit: int = 8) -> list[str]:
        """Return queries that begin as this one, for a reader who has not typed all of it.

        First names of documents (`webindex.serving.naming.names`) that begin with the words typed,
        those of most documents first; then the query with its last word completed to words of the
        documents that have the words before. In lower case, without accents.
        Empty if the last word has fewer than three letters, or the query ends after a word.
        """
        ...

    def get(self, cluster: str) -> ServingDocument | None:
        """Return a cluster's document as it was put, or None when there is none."""
        ...

    def get_many(self, clusters: Iterable[str]) -> Iterator[ServingDocument]:
        """Iterate over the documents that there are of these clusters, in no order."""
        ...

    def count(self) -> int:
        """Return the number of documents that can be found."""
        ...

    def clusters(self) -> Iterator[tuple[str, int]]:
        """Iterate over (cluster, epoch) of every document at one moment, in no order."""
        ...

    def close(self) -> None:
        """Release the index; idempotent."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def newest_changes(
    puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]]
) -> dict[str, tuple[int, ServingDocument | None]]:
    """The newest change of each cluster in a batch: its epoch, and its document unless deleted.

    Raises InvalidDocumentError for a delete with no usable cluster or epoch.
    """
    newest: dict[str, tuple[int, ServingDocument | None]] = {}
    for document in puts:
        held = newest.get(document.cluster)
        if held is None or held[0] < document.epoch:
            newest[document.cluster] = (document.epoch, document)
    for cluster, epoch in deletes:
        check_change(cluster, epoch)
        held = newest.get(cluster)
        if held is None or held[0] <= epoch:
            newest[cluster] = (epoch, None)
    return newest


def hit_of(document: ServingDocument, score: float, snippet: Runner) -> SearchHit:
    """A document that matches, as a hit."""
    return SearchHit(
        cluster=document.cluster,
        score=score,
        url=document.url,
        title=document.title,
        snippet=snippet,
        language=document.language,
        host=document.host,
        duplicates=document.duplicates,
        inlinks=document.inlinks,
        anchors=document.anchors,
        rank=document.rank,
        aliases=document.aliases,
        more=document.more,
        changed=document.changed,
    )


def check_change(cluster: str, epoch: int) -> None:
    """Raise InvalidDocumentError unless an index can hold a change of this cluster and epoch."""
    try:
        size = len(cluster.encode())
    except UnicodeEncodeError as error:
        raise InvalidDocumentError(
            f"The cluster name {cluster!r} holds a lone surrogate, which cannot be stored."
        ) from error
    if not 1 <= size <= MAX_CLUSTER_BYTES:
        raise InvalidDocumentError(
            f"A cluster name must have 1 to {MAX_CLUSTER_BYTES:,} bytes; {cluster[:40]!r} "
            f"has {size:,}."
        )
    if not 0 <= epoch <= MAX_EPOCH:
        raise InvalidDocumentError(
            f"The epoch of cluster {cluster!r} is {epoch}; it must be within 0 to 2**63 - 1."
        )


def check_page(limit: int, offset: int) -> None:
    """Raise ValueError unless this slice of the hits may be requested."""
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit must be within 1 to {MAX_LIMIT:,}; it is {limit}.")
    if not 0 <= offset <= MAX_OFFSET:
        raise ValueError(f"offset must be within 0 to {MAX_OFFSET:,}; it is {offset}.")


def _storable(text: str) -> str:
    if not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    return _encodable(text)


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text

"""A serving index on OpenSearch: for any number of machines, in shards with replicas.

A cluster is one document, whose id is the cluster's name and whose version is the epoch, which the
exporter gives (`version_type=external`): OpenSearch refuses a change that is not newer. A deleted
cluster is a tombstone, a document without words. OpenSearch's own deletes would not do: it forgets
the version of a deleted document after `index.gc_deletes`, a minute by default, and an exporter
that was paused for longer would bring the document back.

Batches of several processes do not wait for each other. A batch is not atomic: if a request fails,
a part of it may be there, and applying it again completes it. Documents are written through the
alias NAME-write. If someone deletes the index, the alias is gone as well, so that no batch
creates an index without its mappings.

What a search shows of a hit is a field that is not indexed; texts are read for snippets only.
"""

from __future__ import annotations

import datetime
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

from webindex.serving.base import (
    Facet,
    IndexReadError,
    IndexUnavailableError,
    IndexWriteError,
    NoIndexError,
    NotAnIndexError,
    RefusedDocumentsError,
    SearchResults,
    ServingDocument,
    ServingError,
    ServingIndex,
    check_page,
    hit_of,
    newest_changes,
)
from webindex.serving.content import Analyzers, is_word, seconds
from webindex.serving.lock import at_fork
from webindex.serving.opensearch.address import PASSWORD, USER, Address
from webindex.serving.opensearch.documents import (
    FORMAT,
    from_stored,
    index_body,
    to_stored,
    tombstone,
)
from webindex.serving.opensearch.query import (
    Query,
    build,
    in_fields,
    known,
    live,
)
from webindex.serving.query import MAX_CHARACTERS
from webindex.serving.reading import SHORTEST_START, STARTS, Asked, Filters, read
from webindex.serving.snippet import excerpt
from webindex.serving.spelling import best_of, most_differences, respell

_TIMEOUT: Final = 30.0
_BATCH_TIMEOUT: Final = 120.0
_CHUNK_BYTES: Final = 8 << 20
_AT_ONCE: Final = 100
"""Documents that are read in one request."""
_SIMILAR_WORDS: Final = 20
_LANGUAGES: Final = 100
_LANGUAGES_SECONDS: Final = 60.0
# So many of the most frequent values come from each shard, so that counts are exact for most.
_FACETS_A_SHARD: Final = 1_000
_SHOWN: Final = ["host", "language", "shown"]
_STORED: Final = ["deleted", "original", *_SHOWN]

_GONE: Final = (
    "it does not exist any more; 'webindex reindex' creates it, and exports everything anew from "
    "the repository."
)
_BLOCKED: Final = "cluster_block_exception"
_BUSY: Final = frozenset({429, 502, 503, 504})


class OpenSearchIndex(ServingIndex):
    """An index on OpenSearch; see `webindex.serving.base.ServingIndex` for its guarantees.

    Args:
        url: see `webindex.serving.opensearch.address.Address`.
        create: create the index if it does not exist.
        timeout: seconds that a server has to answer a request.

    Raises:
        NotAnIndexError: the URL names none, or one of another program or version, or nothing and
            `create` is false (NoIndexError).
        IndexUnavailableError: the servers cannot be reached, or refuse the credentials.
    """

    def __init__(self, url: str, *, create: bool = True, timeout: float = _TIMEOUT) -> None:
        self._address = Address.parse(url)
        self.exporters = self._address.exporters
        self._name = self._address.name
        self._writes = f"{self._name}-write"
        self._timeout = timeout
        self._analyzers = Analyzers()
        self._languages: tuple[float, list[str]] = (-math.inf, [])
        self._closed = False
        self.leave_parent()
        at_fork(self)
        self._open(create)

    def leave_parent(self) -> None:
        """Set up the state that belongs to one process; repeated in the child of a fork."""
        # The connections of a parent are not for its child.
        self._client = self._address.connect(self._timeout)

    # Writing

    def apply(
        self, puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]] = ()
    ) -> int:
        newest = newest_changes(puts, deletes)
        batch = _Batch()
        lines = [
            _lines(
                cluster,
                epoch,
                tombstone() if document is None else to_stored(document, self._analyzers),
            )
            for cluster, (epoch, document) in newest.items()
        ]
        with self._calling("write a batch"):
            for some in _chunks(lines):
                self._bulk(some, batch)
            # A delete comes after a put of the same epoch.
            stale = [one for one in batch.stale if newest[one][1] is None]
            same = [one for one in stale if self._is_put(one, newest[one][0])]
            again = [_lines(one, newest[one][0], tombstone(), "external_gte") for one in same]
            for some in _chunks(again):
                self._bulk(some, batch)
        if batch.unavailable:
            raise self._unavailable(batch.unavailable)
        if batch.refused:
            raise RefusedDocumentsError(str(self._address), batch.refused)
        return batch.changed

    def _bulk(self, lines: Sequence[str], batch: _Batch) -> None:
        from opensearchpy import TransportError

        try:
            answer = self._client.bulk(
                body="".join(lines),
                index=self._writes,
                # A search that begins after the return sees the batch.
                params={
                    "refresh": "true",
                    "require_alias": "true",
                    "request_timeout": max(self._timeout, _BATCH_TIMEOUT),
                },
            )
        except TransportError as error:
            if error.status_code != 413:
                raise
            if len(lines) > 1:
                middle = len(lines) // 2
                self._bulk(lines[:middle], batch)
                self._bulk(lines[middle:], batch)
            else:
                cluster = json.loads(lines[0].partition("\n")[0])["index"]["_id"]
                batch.refused[cluster] = "it is larger than a request may be."
            return
        for item in answer["items"]:
            batch.note(item["index"])

    def _is_put(self, cluster: str, epoch: int) -> bool:
        """Whether a cluster's state is the put of this epoch."""
        held = self._client.get(index=self._name, id=cluster, _source_includes=["deleted"])
        return held["_version"] == epoch and not held["_source"]["deleted"]

    # Reading

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        host: str | None = None,
        language: str | None = None,
        since: datetime.date | None = None,
        newest: bool = False,
        partly: bool = False,
    ) -> SearchResults:
        check_page(limit, offset)
        filters = _filters(host, language, since)

        def wanted(asked: Asked, least: int | None) -> dict[str, Any]:
            return {
                "query": build(asked, filters, least=least),
                "from": offset,
                "size": limit,
                "_source": _SHOWN,
                "version": True,
                **({"sort": [{"changed": {"order": "desc", "missing": 0}}]} if newest else {}),
            }

        with self._calling("search"):
            found = self._find(query, wanted, partly=partly)
            if found is None:
                return SearchResults((), 0)
            answer, asked, least = found
            found_hits = answer["hits"]["hits"]
            snippets = {
                one.cluster: excerpt(one, asked, self._analyzers)
                for one in self.get_many(one["_id"] for one in found_hits)
            }
            hits = []
            for one in found_hits:
                document = from_stored(one["_id"], one["_version"], one["_source"])
                # One that was deleted since it was found has none.
                snippet = snippets.get(document.cluster, ())
                hits.append(hit_of(document, one["_score"] or 0.0, snippet))
        words = len(asked.sought)
        matched = words if least is None else least + asked.phrases
        return SearchResults(tuple(hits), answer["hits"]["total"]["value"], words, matched)

    def _find(
        self,
        query: str,
        body: Callable[[Asked, int | None], dict[str, Any]],
        *,
        partly: bool,
    ) -> tuple[dict[str, Any], Asked, int | None] | None:
        """Search for a query: the answer, how it was read, and how many of its words are required.

        Usually one request. None if there is no word in the query.
        """
        vocabulary = _Vocabulary(self, self._known_languages())
        asked = read(query, vocabulary)
        if not asked.sought:
            return None
        # The pages of one query come from the same copies, whose scores may differ from others'.
        copies = f"q{zlib.crc32(query.encode('utf-8', 'replace'))}"
        search = partial(self._search, preference=copies)
        answer = search(body(asked, None))
        if answer["hits"]["total"]["value"]:
            return answer, asked, None
        last = vocabulary.last
        extended = last is not None and not self._knows(last, vocabulary.stems(last))
        if extended:
            vocabulary.extends = True
            asked = read(query, vocabulary)
        least = self._least(asked) if partly else None
        if extended or least is not None:
            answer = search(body(asked, least))
        return answer, asked, least

    def _known_languages(self) -> list[str]:
        """The languages of the documents, as of the last minute."""
        at = time.monotonic()
        if at - self._languages[0] > _LANGUAGES_SECONDS:
            terms = {"terms": {"field": "language", "size": _LANGUAGES}}
            answer = self._client.search(body={"size": 0, "aggs": {"all": terms}}, index=self._name)
            found = [one["key"] for one in answer["aggregations"]["all"]["buckets"]]
            # An index that was empty a moment ago is looked at again.
            self._languages = (at if found else -math.inf, found)
        return self._languages[1]

    def _knows(self, word: str, stems: Iterable[str]) -> bool:
        return self._matches([known(self._analyzers.words(word), stems)])[0]

    def _least(self, asked: Asked) -> int | None:
        """How many words, besides its phrases, to require of a query; None: all of them.

        The most that some document has, if none has all and some has half.
        """
        words = len(asked.sought) - asked.phrases
        wanted: list[int | None] = [None, *range(words - 1, (words + 1) // 2 - 1, -1)]
        matching = self._matches([build(asked, least=least) for least in wanted])
        return next((least for least, some in zip(wanted, matching, strict=True) if some), None)

    def _matches(self, queries: Sequence[Query]) -> list[bool]:
        """Whether any document matches, for each of some queries; in one request."""
        lines: list[dict[str, Any]] = []
        for query in queries:
            lines += [{}, {"query": query, "size": 0, "terminate_after": 1}]
        answer = self._client.msearch(body=lines, index=self._name)
        for one in answer["responses"]:
            if "error" in one:
                raise IndexReadError(f"Could not search {self._address}: {_reason(one['error'])}")
        return [bool(one["hits"]["total"]["value"]) for one in answer["responses"]]

    def _search(self, body: dict[str, Any], *, preference: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.search(
            body=body,
            index=self._name,
            params={
                "preference": preference,
                # How rare a word is counts over all shards.
                "search_type": "dfs_query_then_fetch",
                "track_total_hits": "true",
                "allow_partial_search_results": "false",
            },
        )
        return found

    def facet(
        self,
        field: Facet,
        query: str,
        *,
        limit: int = 10,
        host: str | None = None,
        language: str | None = None,
        since: datetime.date | None = None,
        partly: bool = False,
    ) -> list[tuple[str, int]]:
        filters = _filters(host, language, since)
        terms = {"field": field, "size": limit, "shard_size": max(limit, _FACETS_A_SHARD)}

        def wanted(asked: Asked, least: int | None) -> dict[str, Any]:
            query = build(asked, filters, least=least)
            return {"query": query, "size": 0, "aggs": {"counts": {"terms": terms}}}

        with self._calling("count hits"):
            found = self._find(query, wanted, partly=partly)
            if found is None:
                return []
            buckets = found[0]["aggregations"]["counts"]["buckets"]
            return [(one["key"], one["doc_count"]) for one in buckets]

    def suggest(self, query: str) -> str | None:
        with self._calling("look for similar words"):
            return respell(query, self._analyzers.words, self._better)

    def _better(self, word: str) -> str | None:
        if self._knows(word, _Vocabulary(self, self._known_languages()).stems(word)):
            return None
        terms = {
            "field": "text",
            "analyzer": "whitespace",
            "suggest_mode": "always",
            "max_edits": most_differences(word),
            "prefix_length": 0,
            "sort": "frequency",
            "size": _SIMILAR_WORDS,
        }
        body = {"size": 0, "suggest": {"near": {"text": word, "term": terms}}}
        answer = self._client.search(body=body, index=self._name)
        options = [option for one in answer["suggest"]["near"] for option in one["options"]]
        if not options:
            return None
        # Until segments are merged, it counts documents that were deleted or replaced as well.
        there = self._matches([in_fields([one["text"]], ["text"]) for one in options])
        found = zip(options, there, strict=True)
        return best_of(word, {one["text"]: one["freq"] for one, is_there in found if is_there})

    def complete(self, query: str, *, limit: int = 8) -> list[str]:
        """Names of documents alone: OpenSearch does not list words."""
        typed = query[:MAX_CHARACTERS].encode("utf-8", "replace").decode()
        words = self._analyzers.words(typed.split()[-1]) if typed.strip() else []
        if not words or not is_word(typed[-1]) or len(words[-1]) < SHORTEST_START:
            return []
        start = self._analyzers.name(typed)
        beginning = "".join(one if one.isalnum() or one == " " else f"\\{one}" for one in start)
        names = {"field": "names", "include": f"{beginning}.*", "size": 4 * limit}
        body = {
            "size": 0,
            "query": {"prefix": {"names": start}},
            "aggs": {"names": {"terms": names}},
        }
        with self._calling("complete a query"):
            answer = self._client.search(body=body, index=self._name)
            found = [
                (one["key"], one["doc_count"]) for one in answer["aggregations"]["names"]["buckets"]
            ]
        # A title has several names: of those of as many pages, the shorter ones say enough.
        found.sort(key=lambda one: (-one[1], len(one[0]), one[0]))
        return [name for name, _ in found[:limit]]

    def get(self, cluster: str) -> ServingDocument | None:
        return next(self.get_many([cluster]), None)

    def get_many(self, clusters: Iterable[str]) -> Iterator[ServingDocument]:
        wanted = iter(clusters)
        while some := list(islice(wanted, _AT_ONCE)):
            with self._calling("look up documents"):
                answer = self._client.mget(
                    body={"ids": some}, index=self._name, _source_includes=_STORED
                )
            for one in answer["docs"]:
                if "error" in one:
                    raise IndexReadError(
                        f"Could not look up documents in {self._address}: {_reason(one['error'])}"
                    )
                if one["found"] and not one["_source"]["deleted"]:
                    yield from_stored(one["_id"], one["_version"], one["_source"])

    def count(self) -> int:
        with self._calling("count documents"):
            return int(self._client.count(body={"query": live()}, index=self._name)["count"])

    def clusters(self) -> Iterator[tuple[str, int]]:
        from opensearchpy import helpers

        with self._calling("list clusters"):
            query = {"query": live(), "_source": False, "version": True}
            for one in helpers.scan(self._client, query, index=self._name):
                yield one["_id"], one["_version"]

    # The index

    def close(self) -> None:
        self._closed = True
        self._client.close()

    def _open(self, create: bool) -> None:
        from opensearchpy import NotFoundError, RequestError

        where = self._address
        with self._calling("open it"):
            try:
                found = self._client.indices.get(index=self._name)
            except NotFoundError:
                if not create:
                    raise NoIndexError(
                        f"There is no index {self._name} on {where}. Name the one that the "
                        "exporter writes to."
                    ) from None
                body = index_body(where.shards, where.replicas)
                body["aliases"] = {self._writes: {}}
                try:
                    self._client.indices.create(index=self._name, body=body)
                except RequestError as error:
                    # Another process may just have created it.
                    if error.error != "resource_already_exists_exception":
                        raise
                found = self._client.indices.get(index=self._name)
            if not isinstance(found, dict) or len(found) != 1:
                raise NotAnIndexError(
                    f"{where} is not one index of OpenSearch, but an alias of several, or another "
                    "program answers there. Name one index."
                )
            [(real, index)] = found.items()
            if index["mappings"].get("_meta", {}).get("webindex") != FORMAT:
                raise NotAnIndexError(
                    f"The index {where} was made by another program or version (this one's format "
                    f"is {FORMAT}). Name another one, or delete it and export everything anew from "
                    "the repository: 'webindex reindex' does that."
                )
            if create and self._writes not in index["aliases"]:
                self._client.indices.put_alias(index=real, name=self._writes)

    @contextmanager
    def _calling(self, purpose: str) -> Iterator[None]:
        """Translate the errors of a block of requests."""
        from opensearchpy import OpenSearchException, helpers

        if self._closed:
            raise ServingError(f"The search index {self._address} was closed.")
        try:
            yield
        except (OpenSearchException, helpers.errors.ScanError) as error:
            raise self._translated(purpose, error) from error

    def _translated(self, purpose: str, error: Exception) -> ServingError:
        from opensearchpy import ConnectionError as Unreachable
        from opensearchpy import SSLError, TransportError

        where = self._address
        if isinstance(error, SSLError):
            return IndexUnavailableError(
                f"The certificate of {where} is not trusted: {_cause(error)}. If it is your own, "
                "name the file of its authority's certificate in the URL: ?ca=FILE."
            )
        if isinstance(error, Unreachable):
            return IndexUnavailableError(
                f"OpenSearch cannot be reached at {where}: {_cause(error)}. Start it, or look at "
                "the address."
            )
        status = error.status_code if isinstance(error, TransportError) else 0
        why = str(error)
        if isinstance(error, TransportError):
            # A proxy before OpenSearch answers with a page of its own.
            why = _reason(error.info) if error.info else f"status {status}, without a reason."
        if status == 401:
            return IndexUnavailableError(
                f"{where} refuses the user name or the password: give them by {USER} and "
                f"{PASSWORD}, or in the URL."
            )
        if _BLOCKED in str(error) or status in _BUSY:
            return self._unavailable(why)
        if status == 403:
            user = (
                f"the user {self._address.user}"
                if self._address.user
                else "requests without a user"
            )
            return IndexUnavailableError(f"{where} does not permit {user} to {purpose}: {why}")
        if status == 404:
            return self._unavailable(_GONE)
        kind = IndexWriteError if purpose.startswith("write") else IndexReadError
        return kind(f"Could not {purpose}: {where} says: {why}")

    def _unavailable(self, why: str) -> IndexUnavailableError:
        hint = ""
        if "read-only" in why or "FORBIDDEN" in why or "disk" in why:
            hint = (
                " OpenSearch blocks writes when a disk is nearly full: make room, and see that "
                "index.blocks.read_only_allow_delete is not set."
            )
        return IndexUnavailableError(
            f"The index {self._address} takes no requests now: {why}{hint}"
        )


class _Vocabulary:
    """The words of an index, for `webindex.serving.reading.read`.

    Whether the last word of a query is known is asked only if the query finds nothing: until then
    it counts as known.

    Attributes:
        last: the last word, if it may be unfinished.
        extends: whether it stands for the words that begin with it.
    """

    def __init__(self, index: OpenSearchIndex, languages: Sequence[str]) -> None:
        self._index = index
        self._languages = languages
        self.last: str | None = None
        self.extends = False

    def analyze(self, text: str) -> list[str]:
        return self._index._analyzers.words(text)

    def name(self, text: str) -> str:
        return self._index._analyzers.name(text)

    def stems(self, word: str) -> frozenset[str]:
        analyzers = self._index._analyzers
        found, split = {*analyzers.words(word)}, analyzers.split(word)
        for language in self._languages:
            found.update(analyzers.stems(split, language))
        return frozenset(found)

    def known(self, word: str) -> bool:
        self.last = word
        return not self.extends

    def has_identifier(self, name: str) -> bool:
        return self._index._matches([{"term": {"identifiers": name}}])[0]

    def begins(self, start: str, most: int) -> list[str]:
        return [start + STARTS]


def _filters(host: str | None, language: str | None, since: datetime.date | None) -> Filters:
    return Filters(host, language, None if since is None else seconds(since.isoformat()))


class _Batch:
    """The outcome of the requests of one batch.

    Attributes:
        changed: clusters that have changed.
        stale: clusters whose state in the index was as new, or newer.
        refused: why a document can never be indexed.
        unavailable: why the index takes some changes only later; else empty.
    """

    def __init__(self) -> None:
        self.changed = 0
        self.stale: list[str] = []
        self.refused: dict[str, str] = {}
        self.unavailable = ""

    def note(self, item: Mapping[str, Any]) -> None:
        """Note the outcome for one cluster."""
        status, cluster = item["status"], item["_id"]
        if status < 300:
            self.changed += 1
        elif status == 409:
            self.stale.append(cluster)
        elif status in (400, 413):
            self.refused[cluster] = _reason(item)
        elif status == 404:
            self.unavailable = _GONE
        else:
            self.unavailable = _reason(item)


def _lines(cluster: str, epoch: int, stored: Mapping[str, Any], kind: str = "external") -> str:
    """The two lines of a bulk request that put one document."""
    action = {"index": {"_id": cluster, "version": epoch, "version_type": kind}}
    return f"{json.dumps(action)}\n{json.dumps(stored, ensure_ascii=False)}\n"


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Cut a batch into requests of a size that servers take."""
    chunk: list[str] = []
    size = 0
    for line in lines:
        if chunk and size + len(line) > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(line)
        size += len(line)
    if chunk:
        yield chunk


def _reason(info: Any) -> str:
    """What a server says of an error, as a sentence."""
    error = info.get("error", info) if isinstance(info, Mapping) else info
    if isinstance(error, Mapping):
        error = error.get("reason") or error.get("type") or error
        if isinstance(info, Mapping) and isinstance(info.get("error"), Mapping):
            caused = info["error"].get("caused_by")
            if isinstance(caused, Mapping) and caused.get("reason"):
                error = f"{error} ({caused['reason']})"
    words = " ".join(str(error).split())[:500]
    return words if words.endswith((".", ")")) else f"{words}."


def _cause(error: Any) -> str:
    """The innermost error of a failed connection, as far as it says something."""
    words = " ".join(str(getattr(error, "info", error) or error).split())
    return words.rpartition("Caused by ")[2].strip("().") or words

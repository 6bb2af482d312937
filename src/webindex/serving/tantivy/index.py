"""A serving index in a folder: Tantivy, for any number of processes and no server.

A cluster is one Tantivy document, and a deleted cluster a tombstone: a document with a cluster
and an epoch but without words, so that no search finds it. Tantivy has no upsert, so a change
is a delete by cluster and an add, made visible together by a commit, which replaces `meta.json`
in one rename. A writer that dies before that leaves files that the next one removes.

Batches of one process go through a writer that stays open while batches arrive
(`webindex.serving.tantivy.writer`), so that none waits for Tantivy's merges.

Memory: about 120 MB for a process that applies batches of 100 pages, 200 MB with batches of 1,000;
with MALLOC_ARENA_MAX=2 in the environment about half, as Tantivy's threads come and go.

Ranking: the score of the words in each field (`webindex.serving.tantivy.query`), multiplied by
the page's authority (`webindex.serving.tantivy.documents.authority`), over all hits and not
only the first ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import tantivy
from tantivy import Occur, Query

from webindex.serving.base import (
    BusyIndexError,
    DamagedIndexError,
    Facet,
    IndexReadError,
    IndexWriteError,
    NotAnIndexError,
    Runner,
    SearchHit,
    SearchResults,
    ServingDocument,
    ServingError,
    ServingIndex,
    check_change,
    check_page,
)
from webindex.serving.lock import at_fork, only_writer
from webindex.serving.snippet import CHARACTERS, mark, opening
from webindex.serving.spelling import respell
from webindex.serving.tantivy.documents import (
    FORMAT,
    SLICES,
    analyzer,
    first,
    from_stored,
    schema,
    to_stored,
    tombstone,
)
from webindex.serving.tantivy.query import FIELDS, Asked, Words, build, most_frequent, read
from webindex.serving.tantivy.writer import KeptWriter

# Snippets come from this much of a text: marking words takes time in proportion to it.
_SNIPPET_SOURCE_CHARACTERS = 100_000
# A misspelt word is compared with this many of the most frequent words that begin like it.
_SIMILAR_WORDS = 2_000


class TantivyIndex(ServingIndex):
    """The search index in a folder; see `webindex.serving.base.ServingIndex` for its guarantees.

    A search checks whether another process has committed (one `stat`) and then sees the newest
    commit, so that a long-running web server needs no reload.

    Args:
        folder: the folder of the index.
        create: create a new index when the folder is absent or empty.
        lock_timeout: seconds that `apply` waits for other writers.

    Raises:
        NotAnIndexError: the folder holds other things, an index of another version, or nothing
            and `create` is false.
        DamagedIndexError: the folder's index cannot be read.
    """

    def __init__(
        self, folder: str | Path, *, create: bool = True, lock_timeout: float = 60.0
    ) -> None:
        self._folder = Path(folder)
        self._lock_timeout = lock_timeout
        self._words = analyzer()
        self._schema = schema()
        self._index = self._open(create)
        self._index.register_tokenizer("words", self._words)
        self._index.config_reader(reload_policy="manual")
        self._kept = KeptWriter(
            self._folder,
            lambda heap: self._index.writer(heap, num_threads=1),
            lock_timeout,
        )
        self.leave_parent()
        at_fork(self)
        self._closed = False
        with self._reading("open it"):
            self._searcher()

    def leave_parent(self) -> None:
        """Set up the state that belongs to one process; repeated in the child of a fork."""
        self._reloading = threading.Lock()
        self._seen_commit: tuple[int, ...] | None = None

    # Writing

    def apply(
        self, puts: Sequence[ServingDocument], deletes: Sequence[tuple[str, int]] = ()
    ) -> int:
        newest: dict[str, tuple[int, bool]] = {}
        documents: dict[tuple[str, int], ServingDocument] = {}
        for document in puts:
            change = (document.epoch, False)
            newest[document.cluster] = max(newest.get(document.cluster, change), change)
            documents.setdefault((document.cluster, document.epoch), document)
        for cluster, epoch in deletes:
            check_change(cluster, epoch)
            change = (epoch, True)
            newest[cluster] = max(newest.get(cluster, change), change)
        if not newest:
            return 0
        with self._writing(len(newest)), self._kept.batch() as writer:
            # Epochs must be looked up under the lock, or another writer's newer document could be
            # replaced.
            held = self._held(newest)
            changes = {
                cluster: tombstone(cluster, epoch)
                if deleted
                else to_stored(documents[cluster, epoch])
                for cluster, (epoch, deleted) in newest.items()
                if cluster not in held or held[cluster] < (epoch, deleted)
            }
            if changes:
                _commit(writer, changes)
            return len(changes)

    def _held(self, clusters: Iterable[str]) -> dict[str, tuple[int, bool]]:
        searcher = self._searcher()
        held = {}
        for cluster in clusters:
            query = Query.term_query(self._schema, "cluster", cluster, "basic")
            for _, address in searcher.search(query, limit=1, count=False).hits:
                (epoch,) = searcher.fast_field_values("epoch", [address])
                (deleted,) = searcher.fast_field_values("deleted", [address])
                held[cluster] = (int(epoch or 0), bool(deleted))
        return held

    # Reading

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        host: str | None = None,
        language: str | None = None,
        partly: bool = False,
    ) -> SearchResults:
        check_page(limit, offset)
        with self._reading("search"):
            searcher = self._searcher()
            asked = self._ask(query, searcher)
            if not asked.sought:
                return SearchResults((), 0)
            least = self._least(searcher, asked) if partly else None
            found = searcher.search(
                build(self._schema, asked, host=host, language=language, least=least),
                limit=limit,
                offset=offset,
                weight_by_field="authority",
            )
            wanted = build(self._schema, Asked(asked.sought, (), ()))
            snippets = tantivy.SnippetGenerator.create(searcher, wanted, self._schema, "text")
            snippets.set_max_num_chars(CHARACTERS)
            hits = []
            for score, address in found.hits:
                document = from_stored(searcher.doc(address))
                snippet = self._snippet(snippets, document.text, asked.marked)
                hits.append(_hit(document, score, snippet))
            words = len(asked.sought)
            matched = words if least is None else least + len(asked.phrases)
            # The library's type stub leaves `count` out.
            return SearchResults(tuple(hits), found.count, words, matched)  # type: ignore[attr-defined]

    def _least(self, searcher: tantivy.Searcher, asked: Asked) -> int | None:
        """How many words, besides its phrases, to require of a query; None: all of them.

        The most that some document has, if none has all and some has half.
        """

        def matches(least: int | None) -> bool:
            wanted = build(self._schema, asked, least=least)
            return bool(searcher.search(wanted, limit=1, count=False).hits)

        words = len(asked.sought) - len(asked.phrases)
        low, high = (words + 1) // 2, words - 1
        if high < low or matches(None) or not matches(low):
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if matches(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _ask(self, query: str, searcher: tantivy.Searcher) -> Asked:
        def begins(prefix: str, most: int) -> list[str]:
            found = (searcher.terms_with_prefix(field, prefix, limit=most) for field in FIELDS)
            return most_frequent(chain.from_iterable(found), most)

        return read(query, self._words.analyze, partial(_known, searcher), begins)

    def _snippet(
        self, snippets: tantivy.SnippetGenerator, text: str, sought: Sequence[Words]
    ) -> Runner:
        source = tantivy.Document()
        source.add_text("text", text[:_SNIPPET_SOURCE_CHARACTERS])
        snippet = snippets.snippet_from_doc(source)
        places = [(place.start, place.end) for place in snippet.highlighted()]
        if not places:
            return opening(text)
        return mark(snippet.fragment(), places, sought, self._words.analyze)

    def facet(
        self,
        field: Facet,
        query: str,
        *,
        limit: int = 10,
        host: str | None = None,
        language: str | None = None,
        partly: bool = False,
    ) -> list[tuple[str, int]]:
        # This walks the dictionary of the field: 0.2 ms with 37 hosts, 34 ms with ten thousand.
        with self._reading("count hits"):
            searcher = self._searcher()
            asked = self._ask(query, searcher)
            if not asked.sought:
                return []
            least = self._least(searcher, asked) if partly else None
            wanted = build(self._schema, asked, host=host, language=language, least=least)
            return searcher.terms_with_prefix(field, "", filter_query=wanted, limit=limit)

    def suggest(self, query: str) -> str | None:
        with self._reading("look for similar words"):
            searcher = self._searcher()

            def begins(prefix: str) -> list[tuple[str, int]]:
                return searcher.terms_with_prefix("text", prefix, limit=_SIMILAR_WORDS)

            return respell(query, self._words.analyze, partial(_known, searcher), begins)

    def get(self, cluster: str) -> ServingDocument | None:
        with self._reading("look up a document"):
            searcher = self._searcher()
            term = Query.term_query(self._schema, "cluster", cluster, "basic")
            query = Query.boolean_query([(Occur.Must, term), (Occur.Must, self._live())])
            for _, address in searcher.search(query, limit=1, count=False).hits:
                return from_stored(searcher.doc(address))
            return None

    def count(self) -> int:
        with self._reading("count documents"):
            found = self._searcher().search(self._live(), limit=1)
            return int(found.count)  # type: ignore[attr-defined]

    def clusters(self) -> Iterator[tuple[str, int]]:
        with self._reading("list clusters"):
            searcher = self._searcher()
            for number in range(SLICES):
                term = Query.term_query(self._schema, "slice", number)
                query = Query.boolean_query([(Occur.Must, term), (Occur.Must, self._live())])
                count = searcher.search(query, limit=1).count  # type: ignore[attr-defined]
                for _, address in searcher.search(query, limit=max(1, count), count=False).hits:
                    stored = searcher.doc(address)
                    yield first(stored, "cluster"), first(stored, "epoch")

    def _live(self) -> Query:
        return Query.term_query(self._schema, "deleted", False)

    # The folder

    def close(self) -> None:
        self._closed = True
        self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, create: bool) -> tantivy.Index:
        folder = self._folder
        try:
            if create:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not folder.is_dir():
                raise NotAnIndexError(f"There is no folder {folder} with a search index.")
            if not (folder / "meta.json").exists():
                self._check_empty(create)
                # Two processes must not both create the index.
                with only_writer(folder, self._lock_timeout):
                    return tantivy.Index(self._schema, path=str(folder))
            return tantivy.Index(self._schema, path=str(folder))
        except OSError as error:
            raise NotAnIndexError(f"{folder} cannot hold a search index: {error}.") from error
        except ValueError as error:
            if "schema" in str(error).lower():
                raise NotAnIndexError(
                    f"The index in {folder} was made by another program or version (this one's "
                    f"format is {FORMAT}). Remove the folder and export everything anew from the "
                    "repository: 'webindex reindex' does that."
                ) from error
            raise self._damaged(error) from error

    def _check_empty(self, create: bool) -> None:
        names = os.listdir(self._folder)
        # Hidden files are locks, and leftovers of a process that was killed while creating.
        others = [name for name in names if not name.startswith(".")]
        if "meta.json" in others:
            return  # Another process has just created the index.
        if others and ".managed.json" in names:
            raise self._damaged("its meta.json is missing")
        if others:
            raise NotAnIndexError(
                f"{self._folder} holds other files, for example {min(others)}, and no search "
                "index. Name an empty or a new folder."
            )
        if not create:
            raise NotAnIndexError(
                f"There is no search index in {self._folder}. Name the folder that the exporter "
                "writes to."
            )

    def _damaged(self, reason: object) -> DamagedIndexError:
        return DamagedIndexError(
            f"The search index in {self._folder} is damaged: {reason}. Remove the folder and "
            "export everything anew from the repository: 'webindex reindex' does that."
        )

    def _searcher(self) -> tantivy.Searcher:
        """Return a view of the newest commit; other commits do not change it."""
        if self._closed:
            raise ServingError(f"The search index in {self._folder} was closed.")
        with self._reloading:
            # A commit renames a new file here. Checking before reloading is safe: at worst it
            # reloads once too often.
            state = os.stat(self._folder / "meta.json")
            commit = (state.st_ino, state.st_mtime_ns, state.st_size)
            if commit != self._seen_commit:
                self._index.reload()
                self._seen_commit = commit
            return self._index.searcher()

    @contextmanager
    def _reading(self, purpose: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            if _says_damaged(error):
                raise self._damaged(error) from error
            raise IndexReadError(
                f"Could not {purpose}, for the search index in {self._folder} could not be read: "
                f"{error}."
            ) from error

    @contextmanager
    def _writing(self, size: int) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            if _says_damaged(error):
                raise self._damaged(error) from error
            if "LockBusy" in str(error):
                raise BusyIndexError(
                    f"Another program writes to the search index in {self._folder}. Nothing was "
                    "written; stop that program, then try again."
                ) from error
            raise IndexWriteError(
                f"Could not write a batch of {size:,} documents to the search index in "
                f"{self._folder}: {error}. The index is as it was before. See that the disk has "
                "space and the folder can be written to, then apply the batch again."
            ) from error


def _commit(
    opened: Callable[[], tantivy.IndexWriter], changes: Mapping[str, tantivy.Document]
) -> None:
    writer = opened()
    try:
        for cluster, document in changes.items():
            writer.delete_documents_by_term("cluster", cluster)
            writer.add_document(document)
        writer.commit()
    finally:
        # A traceback keeps this frame alive, and with it the writer's lock.
        del writer


def _known(searcher: tantivy.Searcher, word: str) -> bool:
    return any(searcher.doc_freq(field, word) for field in FIELDS)


def _hit(document: ServingDocument, score: float, snippet: Runner) -> SearchHit:
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
    )


def _says_damaged(error: Exception) -> bool:
    return "corrupt" in str(error).lower()

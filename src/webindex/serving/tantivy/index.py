"""A serving index in a folder: Tantivy, for any number of processes and no server.

A cluster is one Tantivy document, and a deleted cluster a tombstone: a document with a cluster
and an epoch but without words, so that no search finds it. Tantivy has no upsert, so a change
is a delete by cluster and an add, made visible together by a commit, which replaces `meta.json`
in one rename. A writer that dies before that leaves files that the next one removes.

Batches of one process go through a writer that stays open while batches arrive
(`webindex.serving.tantivy.writer`), so that none waits for Tantivy's merges.

Memory: about 120 MB for a process that applies batches of 100 pages, 200 MB with batches of 1,000;
with MALLOC_ARENA_MAX=2 in the environment about half, as Tantivy's threads come and go.

Ranking: the score of the words in each field (`webindex.serving.reading`), multiplied by
the page's authority (`webindex.serving.content.authority`), over all hits and not
only the first ones.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

import tantivy
from tantivy import Occur, Query

from webindex.serving.base import (
    BusyIndexError,
    DamagedIndexError,
    Facet,
    IndexReadError,
    IndexWriteError,
    NoIndexError,
    NotAnIndexError,
    SearchResults,
    ServingDocument,
    ServingError,
    ServingIndex,
    check_page,
    hit_of,
    newest_changes,
)
from webindex.serving.content import Analyzers, is_word, seconds
from webindex.serving.lock import at_fork, only_writer
from webindex.serving.query import MAX_CHARACTERS
from webindex.serving.reading import (
    FIELDS,
    SHORTEST_START,
    STEMMED,
    Asked,
    Filters,
    read,
)
from webindex.serving.snippet import excerpt
from webindex.serving.spelling import nearest, respell
from webindex.serving.tantivy.documents import (
    FORMAT,
    SLICES,
    analyzers_of_fields,
    first,
    from_stored,
    schema,
    to_stored,
    tombstone,
)
from webindex.serving.tantivy.query import build, most_frequent
from webindex.serving.tantivy.writer import KeptWriter

# What Tantivy calls its files, and hidden ones: locks, and what is half written.
_INDEX_FILE = re.compile(r"\..*|meta\.json|[0-9a-f]{32}\.[a-z0-9.]+")
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

    exporters = 1

    def __init__(
        self, folder: str | Path, *, create: bool = True, lock_timeout: float = 60.0
    ) -> None:
        self._folder = Path(folder)
        self._lock_timeout = lock_timeout
        self._analyzers = Analyzers()
        self._schema = schema()
        self._index = self._open(create)
        self._register_analyzers(self._index)
        self._index.config_reader(reload_policy="manual")
        self._kept = KeptWriter(self._folder, self._open_writer, lock_timeout)
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
        newest = newest_changes(puts, deletes)
        if not newest:
            return 0
        with self._writing(len(newest)), self._kept.batch() as writer:
            # Epochs must be looked up under the lock, or another writer's newer document could be
            # replaced.
            held = self._held(newest)
            changes = {
                cluster: tombstone(cluster, epoch)
                if document is None
                else to_stored(document, self._analyzers)
                for cluster, (epoch, document) in newest.items()
                if cluster not in held or held[cluster] < (epoch, document is None)
            }
            if changes:
                _commit(writer, changes)
            return len(changes)

    def _open_writer(self, heap_bytes: int) -> tantivy.IndexWriter:
        index = tantivy.Index(self._schema, path=str(self._folder))
        self._register_analyzers(index)
        writer = index.writer(heap_bytes, num_threads=1)
        # Tantivy gives a writer's first operation the number of the last commit. A merge that
        # begins before the next commit takes a delete of that number for done in segments in
        # which that commit deleted documents, so this first delete deletes nothing.
        writer.delete_documents_by_term("cluster", "")
        return writer

    def _register_analyzers(self, index: tantivy.Index) -> None:
        for name, one in analyzers_of_fields(self._analyzers).items():
            index.register_tokenizer(name, one)

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
        since: datetime.date | None = None,
        newest: bool = False,
        partly: bool = False,
    ) -> SearchResults:
        check_page(limit, offset)
        with self._reading("search"):
            searcher = self._searcher()
            vocabulary = self._vocabulary(searcher)
            asked = read(query, vocabulary)
            if not asked.sought:
                return SearchResults((), 0)
            least = self._least(searcher, asked) if partly else None
            wanted = build(self._schema, asked, _filters(host, language, since), least=least)
            if newest:
                total, ranked = self._newest(searcher, wanted, limit, offset)
            else:
                found = searcher.search(
                    wanted, limit=limit, offset=offset, weight_by_field="authority"
                )
                # The library's type stub leaves `count` out.
                total, ranked = found.count, found.hits  # type: ignore[attr-defined]
            hits = []
            for score, address in ranked:
                document = from_stored(searcher.doc(address))
                hits.append(hit_of(document, score, excerpt(document, asked, self._analyzers)))
            words = len(asked.sought)
            matched = words if least is None else least + asked.phrases
            return SearchResults(tuple(hits), total, words, matched)

    def _newest(
        self, searcher: tantivy.Searcher, wanted: Query, limit: int, offset: int
    ) -> tuple[int, list[tuple[float, tantivy.DocAddress]]]:
        """How many hits there are, and some by date; those of one second in the index's order.

        Of documents of one second, which ones Tantivy's own order has among so many is chance, so
        that pages of results would have some twice and others not at all.
        """
        end = offset + limit
        first = searcher.search(wanted, limit=end, order_by_field="changed")
        total = first.count  # type: ignore[attr-defined]
        addresses = [address for _, address in first.hits]
        dates = [int(one or 0) for one in searcher.fast_field_values("changed", addresses)]
        if not dates:
            return total, []
        later = [
            (-date, one.segment_ord, one.doc, one)
            for date, one in zip(dates, addresses, strict=True)
            if date > dates[-1]
        ]
        of_last = Query.range_query(
            self._schema, "changed", tantivy.FieldType.Unsigned, dates[-1], dates[-1]
        )
        both = Query.boolean_query([(Occur.Must, wanted), (Occur.Must, of_last)])
        last = searcher.search(Query.const_score_query(both, 0.0), limit=end, count=False)
        ordered = [one for *_, one in sorted(later)] + [one for _, one in last.hits]
        return total, [(0.0, one) for one in ordered[offset:end]]

    def _least(self, searcher: tantivy.Searcher, asked: Asked) -> int | None:
        """How many words, besides its phrases, to require of a query; None: all of them.

        The most that some document has, if none has all and some has half.
        """

        def matches(least: int | None) -> bool:
            wanted = build(self._schema, asked, least=least)
            return bool(searcher.search(wanted, limit=1, count=False).hits)

        words = len(asked.sought) - asked.phrases
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

    def _vocabulary(self, searcher: tantivy.Searcher) -> _Vocabulary:
        return _Vocabulary(searcher, self._schema, self._analyzers)

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
        # This walks the dictionary of the field: 0.2 ms with 37 hosts, 34 ms with ten thousand.
        with self._reading("count hits"):
            searcher = self._searcher()
            asked = read(query, self._vocabulary(searcher))
            if not asked.sought:
                return []
            least = self._least(searcher, asked) if partly else None
            wanted = build(self._schema, asked, _filters(host, language, since), least=least)
            return searcher.terms_with_prefix(field, "", filter_query=wanted, limit=limit)

    def suggest(self, query: str) -> str | None:
        with self._reading("look for similar words"):
            searcher = self._searcher()

            def begins(prefix: str) -> list[tuple[str, int]]:
                return searcher.terms_with_prefix("text", prefix, limit=_SIMILAR_WORDS)

            vocabulary = self._vocabulary(searcher)

            def is_there(word: str) -> bool:
                return vocabulary.has("text", word)

            def better(word: str) -> str | None:
                return None if vocabulary.known(word) else nearest(word, begins, is_there)

            return respell(query, vocabulary.analyze, better)

    def complete(self, query: str, *, limit: int = 8) -> list[str]:
        typed = query[:MAX_CHARACTERS]
        with self._reading("complete a query"):
            searcher = self._searcher()
            vocabulary = self._vocabulary(searcher)
            words = typed.split()
            last = vocabulary.analyze(words[-1]) if words and is_word(typed[-1]) else []
            if not last or len(last[-1]) < SHORTEST_START:
                return []
            start = vocabulary.name(typed)
            found = searcher.terms_with_prefix("names", start, limit=4 * limit)
            # A title has several names: of those of as many pages, the shorter ones say enough.
            found.sort(key=lambda one: (-one[1], len(one[0]), one[0]))
            there = (name for name, _ in found if vocabulary.has("names", name))
            whole = list(islice(there, limit - limit // 4))
            if len(last) == 1 and is_word(words[-1]):
                before = " ".join(words[:-1])
                others = read(before, vocabulary)
                wanted = build(self._schema, others) if others.sought else None
                ends = searcher.terms_with_prefix("text", last[0], filter_query=wanted, limit=limit)
                whole += [
                    f"{before} {word}".lstrip()
                    for word, count in ends
                    if count and (wanted is not None or vocabulary.has("text", word))
                ]
            return list(dict.fromkeys(whole))[:limit]

    def get(self, cluster: str) -> ServingDocument | None:
        with self._reading("look up a document"):
            searcher = self._searcher()
            term = Query.term_query(self._schema, "cluster", cluster, "basic")
            query = Query.boolean_query([(Occur.Must, term), (Occur.Must, self._live())])
            for _, address in searcher.search(query, limit=1, count=False).hits:
                return from_stored(searcher.doc(address))
            return None

    def get_many(self, clusters: Iterable[str]) -> Iterator[ServingDocument]:
        return (found for found in map(self.get, clusters) if found is not None)

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

    def _open(self, create: bool) -> tantivy.Index:
        folder = self._folder
        try:
            if create:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not folder.is_dir():
                raise NoIndexError(f"There is no folder {folder} with a search index.")
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
                    f"format is {FORMAT}). 'webindex reindex' with --empty exports everything anew "
                    "from the repository."
                ) from error
            raise self._damaged(error) from error
        except BaseException as error:
            if _is_panic(error):
                raise self._damaged(error) from error
            raise

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
            raise NoIndexError(
                f"There is no search index in {self._folder}. Name the folder that the exporter "
                "writes to."
            )

    def _damaged(self, reason: object) -> DamagedIndexError:
        return DamagedIndexError(
            f"The search index in {self._folder} is damaged: {reason}. 'webindex reindex' with "
            "--empty exports everything anew from the repository."
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
        except BaseException as error:
            if _says_damaged(error):
                raise self._damaged(error) from error
            if not isinstance(error, ValueError | OSError):
                raise
            raise IndexReadError(
                f"Could not {purpose}, for the search index in {self._folder} could not be read: "
                f"{error}. If it is lost, 'webindex reindex' makes it anew from the repository."
            ) from error

    @contextmanager
    def _writing(self, size: int) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if _says_damaged(error):
                raise self._damaged(error) from error
            if not isinstance(error, ValueError | OSError):
                raise
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


@contextmanager
def emptied(folder: str | Path, *, lock_timeout: float = 60.0) -> Iterator[None]:
    """Keep writers out of an index for a block, and make it empty at the end.

    Whatever state it is in, and while searchers and writers of other processes have it open. If
    the block fails, the index stays as it is.

    Raises:
        NotAnIndexError: the folder holds other files, or cannot hold an index.
        BusyIndexError: others held the index for `lock_timeout` seconds.
    """
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = [name for name in os.listdir(folder) if not _INDEX_FILE.fullmatch(name)]
        if others:
            raise NotAnIndexError(
                f"{folder} holds other files, for example {min(others)}, so it is not emptied."
            )
        with only_writer(folder, lock_timeout):
            yield
            for left in folder.glob(".new-*"):  # By one that was killed.
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as new:
                tantivy.Index(schema(), path=new)
                # In one step for searchers, which have what they read open.
                for name in ("meta.json", ".managed.json"):
                    os.replace(Path(new) / name, folder / name)
            for name in os.listdir(folder):
                if name[0] != "." and name != "meta.json":
                    os.unlink(folder / name)
    except OSError as error:
        raise NotAnIndexError(f"{folder} cannot hold a search index: {error}.") from error


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


class _Vocabulary:
    """The words of one view of an index, for `webindex.serving.reading.read`.

    Until Tantivy merges its segments, its dictionaries and counts have the words of documents that
    were deleted or replaced as well: `has` says whether a document has one.
    """

    def __init__(
        self, searcher: tantivy.Searcher, schema: tantivy.Schema, analyzers: Analyzers
    ) -> None:
        self._searcher = searcher
        self._schema = schema
        self._analyzers = analyzers
        self._languages = [code for code, _ in searcher.terms_with_prefix("language", "")]

    def analyze(self, text: str) -> list[str]:
        return self._analyzers.words(text)

    def name(self, text: str) -> str:
        return self._analyzers.name(text)

    def stems(self, word: str) -> frozenset[str]:
        found, split = {*self.analyze(word)}, self._analyzers.split(word)
        for language in self._languages:
            found.update(self._analyzers.stems(split, language))
        return frozenset(found)

    def known(self, word: str) -> bool:
        fields = [f"{field}_stems" for field in STEMMED]
        stems = [(field, stem) for field in fields for stem in self.stems(word)]
        words = [(field, one) for field in FIELDS for one in self.analyze(word)]
        return any(self.has(field, one) for field, one in [*words, *stems])

    def has(self, field: str, word: str) -> bool:
        """Whether any document has a word in a field."""
        if not self._searcher.doc_freq(field, word):
            return False
        term = Query.term_query(self._schema, field, word)
        return bool(self._searcher.search(term, limit=1, count=False).hits)

    def has_identifier(self, name: str) -> bool:
        return self._searcher.doc_freq("identifiers", name) > 0

    def begins(self, start: str, most: int) -> list[str]:
        found = (self._searcher.terms_with_prefix(field, start, limit=most) for field in FIELDS)
        return most_frequent(chain.from_iterable(found), most)


def _filters(host: str | None, language: str | None, since: datetime.date | None) -> Filters:
    return Filters(host, language, None if since is None else seconds(since.isoformat()))


def _says_damaged(error: BaseException) -> bool:
    said = isinstance(error, ValueError | OSError) and "corrupt" in str(error).lower()
    return said or _is_panic(error)


def _is_panic(error: BaseException) -> bool:
    """Whether Tantivy has met what it takes for impossible, as in a file that lost a part.

    The class of this error is no `Exception`, and has no name that could be imported.
    """
    return type(error).__name__ == "PanicException"

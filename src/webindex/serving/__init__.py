"""The serving side of the web index: the search index that answers users' queries.

Observers never search it and it is never authoritative: it is a copy of the repository's clusters,
kept up to date by the exporter and rebuilt from the repository when lost. `base` is the
contract, `query` is the query syntax, `tantivy` keeps the index in a folder, `opensearch` on
servers.
"""

from webindex.serving.base import (
    BusyIndexError,
    DamagedIndexError,
    IndexReadError,
    IndexUnavailableError,
    IndexWriteError,
    InvalidDocumentError,
    NoIndexError,
    NotAnIndexError,
    RefusedDocumentsError,
    SearchHit,
    SearchResults,
    ServingDocument,
    ServingError,
    ServingIndex,
)
from webindex.serving.opensearch.index import OpenSearchIndex
from webindex.serving.tantivy.index import TantivyIndex

__all__ = [
    "BusyIndexError",
    "DamagedIndexError",
    "IndexReadError",
    "IndexUnavailableError",
    "IndexWriteError",
    "InvalidDocumentError",
    "NoIndexError",
    "NotAnIndexError",
    "OpenSearchIndex",
    "RefusedDocumentsError",
    "SearchHit",
    "SearchResults",
    "ServingDocument",
    "ServingError",
    "ServingIndex",
    "TantivyIndex",
]

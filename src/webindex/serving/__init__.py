"""The serving side of the web index: what a searching user's query is answered from.

Observers never search it and it is never the truth: it is a copy of the repository's clusters,
brought up to date by the exporter and rebuilt from the repository when lost. `base` is the
contract, `query` is what a user may type, `tantivy` keeps the index in a folder.
"""

from webindex.serving.base import (
    BusyIndexError,
    DamagedIndexError,
    IndexReadError,
    IndexWriteError,
    InvalidDocumentError,
    NotAnIndexError,
    SearchHit,
    SearchResults,
    ServingDocument,
    ServingError,
    ServingIndex,
)
from webindex.serving.tantivy.index import TantivyIndex

__all__ = [
    "BusyIndexError",
    "DamagedIndexError",
    "IndexReadError",
    "IndexWriteError",
    "InvalidDocumentError",
    "NotAnIndexError",
    "SearchHit",
    "SearchResults",
    "ServingDocument",
    "ServingError",
    "ServingIndex",
    "TantivyIndex",
]

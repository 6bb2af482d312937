"""Percola: incremental processing of a large repository with distributed transactions and
notifications, after Google's Percolator (OSDI 2010).

Reading order: `cells` (§2.1, figure 5), `store.base` (§2.1), `oracle` (§2.3),
`transactions.snapshot`, `transactions.transaction` and `transactions.two_phase` (§2.2, figure 6),
`transactions.lock_resolver` (§2.2), `observers.observer` and `observers.worker` (§2.4).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from percola.codecs import (
        DATE,
        FLOAT32,
        INT16,
        INT32,
        INT64,
        JSON,
        TIMESTAMP,
        TIMESTAMP_NTZ,
        Codec,
        array_of,
        decimal_of,
        map_of,
        struct_of,
    )
    from percola.errors import (
        CommitUnknownError,
        ConflictError,
        ConflictingOptionsError,
        DamagedRecordError,
        LockTimeoutError,
        NoFeedError,
        NotAnsweredError,
        NotARepositoryError,
        ObserverError,
        ObserverMismatchError,
        ObserverTimeoutError,
        OutcomeUnknownError,
        PercolaError,
        RepositoryClosedError,
        RepositoryError,
        RepositoryVersionError,
        RetriesExhaustedError,
        RolledBackError,
        RowTooLongError,
        SchemaError,
        SchemaMismatchError,
        SnapshotTooOldError,
        StoreError,
        StoreFullError,
        TransactionTooLargeError,
        TransactionUsedUpError,
        TransientError,
        UnknownColumnError,
        UnknownTableError,
        UsageError,
        ValueTooLargeError,
        WrongTypeError,
    )
    from percola.gc.collector import Collected
    from percola.observers.observer import Observer, observer
    from percola.observers.rerun import Rerun, rerun
    from percola.observers.worker import Worker, WorkerOptions
    from percola.paused import PausedObserver
    from percola.repository import Repository, create, open, transactional
    from percola.schema import Column, Family, Schema, Table, WeakColumn
    from percola.transactions.row import Row
    from percola.transactions.snapshot import Snapshot
    from percola.transactions.transaction import Transaction

__all__ = [
    "DATE",
    "FLOAT32",
    "INT16",
    "INT32",
    "INT64",
    "JSON",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "Codec",
    "Collected",
    "Column",
    "CommitUnknownError",
    "ConflictError",
    "ConflictingOptionsError",
    "DamagedRecordError",
    "Family",
    "LockTimeoutError",
    "NoFeedError",
    "NotARepositoryError",
    "NotAnsweredError",
    "Observer",
    "ObserverError",
    "ObserverMismatchError",
    "ObserverTimeoutError",
    "OutcomeUnknownError",
    "PausedObserver",
    "PercolaError",
    "Repository",
    "RepositoryClosedError",
    "RepositoryError",
    "RepositoryVersionError",
    "Rerun",
    "RetriesExhaustedError",
    "RolledBackError",
    "Row",
    "RowTooLongError",
    "Schema",
    "SchemaError",
    "SchemaMismatchError",
    "Snapshot",
    "SnapshotTooOldError",
    "StoreError",
    "StoreFullError",
    "Table",
    "Transaction",
    "TransactionTooLargeError",
    "TransactionUsedUpError",
    "TransientError",
    "UnknownColumnError",
    "UnknownTableError",
    "UsageError",
    "ValueTooLargeError",
    "WeakColumn",
    "Worker",
    "WorkerOptions",
    "WrongTypeError",
    "array_of",
    "create",
    "decimal_of",
    "map_of",
    "observer",
    "open",
    "rerun",
    "struct_of",
    "transactional",
]

_MODULES: Final = {
    "percola.codecs": (
        *("DATE", "FLOAT32", "INT16", "INT32", "INT64", "JSON", "TIMESTAMP", "TIMESTAMP_NTZ"),
        *("Codec", "array_of", "decimal_of", "map_of", "struct_of"),
    ),
    "percola.gc.collector": ("Collected",),
    "percola.observers.observer": ("Observer", "observer"),
    "percola.observers.rerun": ("Rerun", "rerun"),
    "percola.observers.worker": ("Worker", "WorkerOptions"),
    "percola.paused": ("PausedObserver",),
    "percola.repository": ("Repository", "create", "open", "transactional"),
    "percola.schema": ("Column", "Family", "Schema", "Table", "WeakColumn"),
    "percola.transactions.row": ("Row",),
    "percola.transactions.snapshot": ("Snapshot",),
    "percola.transactions.transaction": ("Transaction",),
}
"""Where names are from; those not listed are errors. A name's module is loaded when it is used."""

_MODULE_OF: Final = dict.fromkeys(__all__, "percola.errors") | {
    name: module for module, names in _MODULES.items() for name in names
}


if not TYPE_CHECKING:  # Type checkers would take any name for one of these.

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

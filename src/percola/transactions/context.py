"""§2.2 What a transaction uses: the store, oracle, coordination and caches of its repository.

A repository makes one context, for all of its transactions, observers and garbage collectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from percola.cells import Cell
from percola.clock import Clock
from percola.coordination.base import Coordination
from percola.coordination.wake_ups import Place
from percola.oracle.base import Oracle
from percola.recording import RecordingSwitch
from percola.store.base import OneStepStore, Store
from percola.store.counting import StoreCalls
from percola.store.readers import Readers
from percola.transactions.active_snapshots import ActiveSnapshots
from percola.transactions.lock_resolver import LockResolver
from percola.transactions.prefetch import Prefetch
from percola.transactions.read_cache import ReadCache

if TYPE_CHECKING:  # One is not built everywhere, one needs the packages of an extra.
    import percola._native as _native
    from percola.transactions.spans import Spans


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """The parts of a repository that a transaction uses; made by the repository, and by tests.

    Attributes:
        one_step: the store again, if transactions may commit in one step; else None.
        columns: the addresses of all columns of the schema, and whether each is observed:
            True, False, or None for a weak column. Families by `name:`.
        ttl_ms: how long a lock may go without a refresh before it may be taken for dead.
        caches_reads: whether transactions keep what they read (§2.5).
        prefetch: predicts what transactions read next (§2.5), if reads are cached; or None.
        calls: counts the calls to the store, if they are counted; or None.
        wake: called after a commit with the places in which it put notify entries; with None for
            all tables.
        leases: the active snapshots, for which garbage collection waits.
        readers: the store's readers of single columns.
        recording: whether runs of observers are recorded.
        shown: how messages name a cell.
        spans: makes OpenTelemetry spans, if they are on (`percola.tracing`); or None.
        calls_natively: what reads and writes in native code (`percola.transactions.calls`); or
            None.
    """

    store: Store
    one_step: OneStepStore | None
    oracle: Oracle
    coordination: Coordination
    resolver: LockResolver
    clock: Clock
    columns: Mapping[tuple[str, bytes], bool | None]
    ttl_ms: int = 10_000
    caches_reads: bool = False
    prefetch: Prefetch | None = None
    calls: StoreCalls | None = None
    wake: Callable[[Iterable[Place] | None], None] = field(default=lambda _: None)
    leases: ActiveSnapshots = field(default_factory=ActiveSnapshots)
    readers: Readers = field(default_factory=Readers)
    recording: RecordingSwitch = field(default_factory=RecordingSwitch)
    shown: Callable[[Cell], str] = str
    spans: Spans | None = None
    calls_natively: _native.Calls | None = None

    def new_cache(self) -> ReadCache:
        """The cache of a transaction that begins now."""
        return ReadCache(None if self.prefetch is None else self.prefetch.begin())

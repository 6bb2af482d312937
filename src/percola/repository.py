"""The repository: combines a store, an oracle, coordination and a schema.

A repository is a folder, or the address of a store elsewhere:

    ./repo, lmdb:./repo             on LMDB: many processes of one machine, no server
    memory:                         in this process's memory, for tests
    hbase://…, bigtable://…         on a store that many machines share

`percola.connect.local` describes the folder of an LMDB repository, `percola.connect.cluster` the
parts of one that many machines share. The schema is kept in the store itself (`percola.catalog`).
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import shlex
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from percola import paused as pauses
from percola import recording, tracing
from percola.catalog import (
    check_tables,
    columns_of,
    create_schema,
    has_schema,
    keep_feeds,
    reconcile,
    stored_schema,
)
from percola.cells import Cell, Kind, Op, decode_write
from percola.clock import Clock
from percola.codecs import V
from percola.connect.address import NetworkAddress, is_memory, network_address
from percola.connect.local import LocalConnection, folder_of
from percola.coordination.base import Coordination
from percola.errors import (
    CommitUnknownError,
    ConflictingOptionsError,
    NotARepositoryError,
    RepositoryClosedError,
    UsageError,
)
from percola.gc import retention_holds as holds
from percola.gc.retention_holds import RETENTION, RetentionHold
from percola.gc.time_log import CommitTimes, Moment
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.paused import NamedObserver, PausedObserver, name_of
from percola.platform import fork_safety as forks
from percola.ranges import HERE, Runner
from percola.recording import Recording
from percola.schema import Column, R, Schema, Table
from percola.store.base import OneStepStore, Store
from percola.store.counting import CountedStore, StoreCalls, calling_for
from percola.store.lmdb.environment import DURABILITIES
from percola.store.walks import walk_kind
from percola.transactions import answered, retry
from percola.transactions.active_snapshots import leases_of
from percola.transactions.calls import native_calls
from percola.transactions.context import TransactionContext
from percola.transactions.lock_resolver import LockResolver
from percola.transactions.prefetch import Prefetch
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

if TYPE_CHECKING:
    from percola.connect.cluster import NetworkConnection
    from percola.gc.collector import Collected

T = TypeVar("T")
P = ParamSpec("P")


class Repository:
    """An open repository; `percola.open` makes one. Safe to use from many threads.

    On one machine both sides of a `fork` may use it: the child reopens what it needs. Snapshots and
    transactions that began before the fork belong to the parent alone. Neither Java nor gRPC
    survives a fork: once a repository on HBase or Bigtable has been used, every use in a child
    raises StoreError.

    Args:
        caches_reads: whether a transaction caches its reads, for a store with slow calls (§2.5).
        prefetches: whether it also prefetches what past transactions have read next.

    Attributes:
        address: the address under which it was opened.
        schema: its tables, including those of other programs.
    """

    def __init__(
        self,
        address: str,
        store: Store,
        oracle: Oracle,
        coordination: Coordination,
        schema: Iterable[Table[Any]] = (),
        *,
        one_step: bool = True,
        clock: Clock | None = None,
        random_: random.Random | None = None,
        lock_ttl_seconds: float = 10.0,
        lock_wait_seconds: float = 60.0,
        caches_reads: bool = False,
        prefetches: bool = False,
        close: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self._store = store
        self._coordination = coordination
        self._clock = clock or Clock()
        self._random = random_ or forks.new_random()
        self._close = close
        self._closed = False
        self.schema = reconcile(store, Schema(schema))
        check_tables(store, self.schema)
        keep_feeds(store, oracle, self.schema)
        columns, leases = columns_of(self.schema), leases_of(coordination)
        spans = tracing.spans_of(address)
        self._context = TransactionContext(
            store=store,
            one_step=store if one_step and isinstance(store, OneStepStore) else None,
            oracle=oracle,
            coordination=coordination,
            resolver=LockResolver(
                store,
                coordination,
                self._clock,
                self._random,
                wait_seconds=lock_wait_seconds,
                shown=self.schema.shown,
            ),
            clock=self._clock,
            columns=columns,
            ttl_ms=int(lock_ttl_seconds * 1000),
            wake=coordination.wake,
            leases=leases,
            caches_reads=caches_reads or prefetches,
            prefetch=Prefetch() if prefetches else None,
            calls=store.calls if isinstance(store, CountedStore) else None,
            shown=self.schema.shown,
            spans=spans,
            calls_natively=(
                native_calls(store, oracle, columns, leases) if spans is None and one_step else None
            ),
        )

    def __repr__(self) -> str:
        return f"Repository({self.address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def context(self) -> TransactionContext:
        """The parts that transactions use; for observers, inspection and tests."""
        if self._closed:
            raise RepositoryClosedError(
                f"The repository {self.address} has been closed; open it again."
            )
        return self._context

    def table(self, name: str) -> Table[Any]:
        """A table by its name; UnknownTableError if there is none."""
        return self.schema.table(name)

    def transaction(self, *, two_phase: bool = False, notify: bool = True) -> Transaction:
        """Begin a transaction (§2.2). Use it in a `with` block, which commits it at the end.

        Args:
            two_phase: commit in two phases even if the store could commit in one step; needed
                only if other processes take part in the transaction.
            notify: whether writes of observed columns notify their observers. False is for bulk
                writes before their observers exist, or followed by `percola.rerun`: no observer
                runs for these writes by itself, and weak columns cannot be notified.
        """
        context = self.context if self._closed else self._context  # The property raises.
        if notify and not two_phase:
            return Transaction(context)  # Keywords would cost a tenth of a short transaction.
        return Transaction(context, two_phase=two_phase, notify=notify)

    def snapshot(self, at: int | datetime | None = None) -> Snapshot:
        """The repository now, or as it was at a past timestamp or time: read-only.

        At a time it is the newest snapshot that certainly contains nothing which committed later:
        `timestamp_at` says how old it may be.

        Raises UsageError for a timestamp or time in the future, or a time before the log of times,
        and SnapshotTooOldError for one whose versions garbage collection has removed.
        """
        if isinstance(at, datetime):
            at = self.timestamp_at(at).ts
        context = self.context
        latest = context.oracle.read_timestamp()
        if at is None:
            return Snapshot(context, latest)
        if not isinstance(at, int):
            raise UsageError(
                "A snapshot is at a timestamp, an int, or at a time, a datetime, and not at "
                f"{at!r}: datetime.fromisoformat makes one of text."
            )
        if not 0 <= at <= latest:
            raise UsageError(
                f"There is no snapshot at {at!r} yet: timestamps go from 1 to {latest} by now."
            )
        snapshot = Snapshot(context, at)
        context.store.check_safe_point(at)
        return snapshot

    def timestamp_at(self, when: datetime) -> Moment:
        """The newest timestamp that was certainly drawn by `when`, and the time it was logged.

        A snapshot at that timestamp contains everything that had committed by the returned time,
        and nothing that committed after `when`, by the log of times that workers write once a
        minute and `percola gc` each time, unless their retention is 0. A `when` without a zone is
        local time.

        Raises UsageError for a time in the future or before the log.
        """
        if not isinstance(when, datetime):
            raise UsageError(
                f"A time is a datetime, and not {when!r}: datetime.fromisoformat makes one of text."
            )
        return CommitTimes(self.context.store).at(self._clock, when)

    def commit_times(self) -> CommitTimes:
        """When transactions committed, as far as the log of times tells."""
        return CommitTimes(self.context.store)

    def run(
        self,
        function: Callable[[Transaction], T],
        *,
        attempts: int = retry.ATTEMPTS,
        notify: bool = True,
    ) -> T:
        """Run `function(transaction)` and commit; run it again if it conflicts.

        Returns what the function returned. It may run several times, so it should have no effects
        except through its transaction. `notify` is as for `transaction`. Raises
        RetriesExhaustedError after `attempts`, and UsageError for a coroutine or a generator.
        """
        begin = self.transaction if notify else functools.partial(self.transaction, notify=False)
        if self._context.prefetch is None and self._context.calls is None:
            return retry.run(function, begin, self._clock, self._random, attempts, self._context)
        with calling_for(getattr(function, "__qualname__", type(function).__name__)):
            return retry.run(function, begin, self._clock, self._random, attempts, self._context)

    def pending(self) -> dict[str, int]:
        """The number of dirty cells, by `table.column`; reads only the notify entries."""
        counts: Counter[str] = Counter()
        for table in self._tables_now():
            for cell, *_ in walk_kind(self.context.store, Kind.NOTIFY, table.name, versions=1):
                counts[f"{cell.table}.{cell.column.decode()}"] += 1
        return dict(counts)

    def _tables_now(self) -> Schema:
        """All tables, also those that others have made since it was opened."""
        return stored_schema(self.context.store)

    def is_idle(self) -> bool:
        """Whether no cell is dirty, at one moment; cheap however many are."""
        store = self.context.store
        return self.context.oracle.at_one_moment(
            lambda: (
                not any(
                    store.scan_kind(Kind.NOTIFY, table.name, limit=1, versions=1)[0]
                    for table in self._tables_now()
                )
            )
        )

    def wait_answered(
        self, commit_ts: int | None, *, timeout: float = 60.0, depth: int = 1
    ) -> None:
        """Wait until observers have answered what the transaction with this `commit_ts` wrote.

        When it returns, each write of an observed column and each notification of a weak column by
        this transaction has been seen by a committed run of every observer of the column: a
        snapshot taken now shows what these runs wrote. Writes with `notify=False` are not waited
        for. What the runs wrote may have made other cells dirty; `depth=2` waits for the runs that
        answer those as well, and so on. As nothing records what caused a change, from the second
        step on this waits for all changes since `commit_ts`, also those of other transactions.

        It needs a worker, in any process. It costs one scan of the repository's notify entries,
        locks and dead letters for each step, which is in proportion to the backlog and not to the
        tables; and while it waits, a read of one cell at growing intervals of up to 0.1 s.

        Args:
            commit_ts: `Transaction.commit_ts`, or what `Transaction.commit` returned, possibly in
                another process.
            timeout: seconds to wait in total. With 0 it only checks.
            depth: how many runs in a row are waited for, each caused by the one before it.

        Raises NotAnsweredError after `timeout` seconds, or if one of these changes is dead-lettered
        (with `depth` above 1, any change since `commit_ts`); UsageError for a `commit_ts` that was
        not drawn yet, or None; ConflictingOptionsError for an invalid timeout or depth.
        """
        context = self.context
        if commit_ts is None:
            raise UsageError(
                "There is no commit_ts to wait for: the transaction has not committed yet, or it "
                "wrote nothing."
            )
        latest = context.oracle.read_timestamp()
        if not isinstance(commit_ts, int) or not 0 < commit_ts <= latest:
            raise UsageError(
                f"Nothing has committed at {commit_ts!r} yet: timestamps go from 1 to {latest} by "
                "now."
            )
        if not isinstance(timeout, int | float) or not timeout >= 0:
            raise ConflictingOptionsError(
                f"A timeout of {timeout!r} is not 0 or more seconds; math.inf is for ever."
            )
        if not isinstance(depth, int) or depth < 1:
            raise ConflictingOptionsError(f"A depth of {depth!r} is not a number from 1.")
        answered.wait_answered(context, commit_ts, timeout=timeout, depth=depth)

    def pause_observer(self, observer: str | NamedObserver, *, reason: str = "") -> PausedObserver:
        """Have no worker begin a run of an observer, in any process, until it is resumed.

        It takes effect within a second or two; runs that have begun end as usual. The changes of
        its columns wait, and nothing is lost. Other observers go on, also those of the same
        columns. It stays paused when programs end, and is so in a backup and a copy. Pausing it
        once more replaces the reason, if one is given.

        Args:
            observer: the observer; or its name, if a live worker runs it or it is paused already:
                nothing else in a repository knows the names of observers.
            reason: shown to operators and logged by workers; up to 1,000 characters.

        Returns what is paused. Raises UsageError for a name that no live worker runs, the errors of
        a schema without the observer's columns, ConflictingOptionsError for a long reason, and
        StoreError.
        """
        context, name = self.context, name_of(observer)
        if isinstance(observer, str):
            columns = self._columns_of(name)
        else:
            for column in observer.columns:
                self.table(column.table.name).resolve(column.name)
            columns = [f"{column.table.name}.{column.name}" for column in observer.columns]
        paused = pauses.pause(context.store, self._clock, name, columns, reason)
        context.wake(None)
        return paused

    def _columns_of(self, name: str) -> Sequence[str]:
        paused = pauses.paused_observers(self.context.store)
        if name in paused:
            return paused[name].columns
        announced = pauses.announced_observers(self.context.coordination)
        if name not in announced:
            raise UsageError(
                f"No live worker runs an observer named {name!r}, so it was not paused. Start one, "
                "or give the observer itself (MODULE:NAME). Observers of live workers: "
                f"{', '.join(announced) or 'none'}."
            )
        return announced[name]

    def resume_observer(self, observer: str | NamedObserver) -> PausedObserver:
        """Resume a paused observer: workers run it on all changes that wait, within seconds.

        Returns what was paused. Raises UsageError if it is not paused, and StoreError.
        """
        resumed = pauses.resume(self.context.store, name_of(observer))
        self.context.wake(None)
        return resumed

    def paused_observers(self) -> list[PausedObserver]:
        """The paused observers, in order of their names. Raises StoreError."""
        return list(pauses.paused_observers(self.context.store).values())

    def record_runs(self, on: bool = True) -> Recording:
        """Have workers record what each run of an observer answered and wrote, or stop it.

        `percola why` follows causes over rows by these records. It takes effect in all processes
        within a second, which turning it on waits for; records stay for the retention. It costs
        each transaction of an observer one more cell.

        Returns of which time all runs are recorded. Raises StoreError, the errors of the oracle,
        and UsageError for what is no bool.
        """
        context = self.context
        if not isinstance(on, bool):
            raise UsageError(f"Runs are recorded, True, or not, False, and not {on!r}.")
        if on:
            return recording.start(context.store, context.oracle, self._clock)
        return recording.stop(context.store, context.oracle)

    def dead_lettered(self) -> int:
        """The number of dead-lettered changes, which wait for an operator."""
        store = self.context.store
        return sum(
            1
            for table in self._tables_now()
            for _ in itertools.groupby(
                walk_kind(store, Kind.FAILED, table.name), key=lambda entry: entry[0]
            )
        )

    def versions(self, column: Column[R, V], row: R) -> list[tuple[int, V | None]]:
        """Every committed version of a cell that is kept: (commit_ts, value), newest first.

        The value is None where the cell was deleted.
        """
        store = self.context.store
        # The snapshot checks the cell, resolves its locks, and protects its versions.
        with self.snapshot() as latest:
            latest.version(column, row)
            cell = Cell(column.table_name, column.table.encode_row(row), column.key)
            found: list[tuple[int, V | None]] = []
            for commit_ts, raw in store.entries(cell, Kind.WRITE, 0, latest.start_ts):
                record = decode_write(raw)
                if record.op is Op.DELETE:
                    found.append((commit_ts, None))
                elif record.op is Op.PUT:
                    at = record.start_ts
                    data = (
                        [record.value]
                        if record.value is not None
                        else [value for _, value in store.entries(cell, Kind.DATA, at, at)]
                    )
                    # Empty if it was removed between the two reads.
                    found += [(commit_ts, column.decode_value(value)) for value in data]
            return found

    def collect_garbage(
        self,
        *,
        retention: float = RETENTION,
        progress: Callable[[Collected], None] = lambda collected: None,
        runner: Runner = HERE,
    ) -> Collected:
        """Remove the versions that no reader can see any more; see `percola.gc.collector`.

        Safe to run at any time; workers also do it by themselves.

        Args:
            retention: how many seconds a version stays readable after it was superseded. Versions
                that active snapshots of any process need are kept in any case.
            progress: called after every batch with the totals so far.
            runner: who walks through the tables: this process, or the tasks of Spark
                (`percola.spark.OnSpark`).

        Raises StoreError; ConflictingOptionsError for a negative retention.
        """
        from percola.gc.collector import GarbageCollector

        collector = GarbageCollector(self.context, retention=retention, runner=runner)
        return collector.collect(progress=progress)

    def hold(self, ts: int, seconds: float, *, name: str | None = None) -> str:
        """Protect the versions that a reader at `ts` needs from garbage collection for `seconds`.

        For readers that outlive a process or pause between runs; a snapshot needs no hold. A hold
        replaces an earlier one of the same name, also of another process, and so renews it.

        Args:
            ts: a past timestamp.
            seconds: from now on, by the wall clock, 0 to 1e9; no space is freed for that long, so
                use a short time and renew the hold.
            name: up to 128 bytes; generated if None.

        Returns the name, for `release`. Raises SnapshotTooOldError if garbage collection has
        removed versions that are needed, ConflictingOptionsError for an invalid time or name, and
        UsageError for a timestamp in the future; an earlier hold of that name stays then.
        """
        context = self.context
        latest = context.oracle.read_timestamp()
        if not isinstance(ts, int) or not 0 <= ts <= latest:
            raise UsageError(f"{ts!r} cannot be held: timestamps go from 1 to {latest} by now.")
        name = name or f"hold-{uuid.uuid4().hex}"
        holds.hold(context.store, self._clock, name, ts, seconds)
        return name

    def release(self, name: str) -> None:
        """Remove the retention hold of that name; harmless if there is none."""
        holds.release(self.context.store, name)

    def holds(self) -> list[RetentionHold]:
        """The current retention holds, the oldest timestamp first."""
        return holds.holds(self.context.store, self._clock)

    def resolve(self, error: CommitUnknownError) -> bool:
        """Settle a commit whose outcome was unknown; return whether it committed.

        If it has not committed by now, it never will. Raises SnapshotTooOldError if garbage
        collection has removed the record of the outcome.
        """
        context = self.context
        fate = context.resolver.fate(error.primary, error.start_ts, force=True)
        if fate is not None and fate.commit_ts is not None:
            return True
        context.store.check_safe_point(error.start_ts)
        return False

    def close(self) -> None:
        """Close the repository; committed transactions are on disk. Safe to call twice."""
        if not self._closed:
            self._closed = True
            if self._close is not None:
                self._close()
            if self._context.spans is not None:
                tracing.flush()


def transactional(
    function: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[Repository | Transaction, P], T]:
    """Have a function run in a transaction: in one of its own, or in the one that it is given.

        @percola.transactional
        def pay(t, payer, payee, amount): ...

        pay(repo, "ann", "bob", 5)  # begins a transaction, commits it, retries it: `repo.run`
        pay(t, "ann", "bob", 5)  # takes part in t, which its owner commits

    Given a repository, the function may run several times, as with `Repository.run`, and the call
    raises what `run` raises; for another number of attempts or `notify=False`, use `run`. Given a
    transaction, also that of an observer, the function runs once, and a conflict is raised when
    that transaction commits.

    Raises UsageError for a function that returns before it has done its work, which is a coroutine
    or a generator; and, when called, for a first argument that is neither of the two.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if retry.works_later(function):
        raise UsageError(
            f"{name} cannot be transactional: a coroutine or a generator does its work after the "
            "transaction has committed. Make it a plain function that returns its results."
        )

    @functools.wraps(function)
    def call(where: Repository | Transaction, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not isinstance(where, Repository):
            # Or an object with the same methods, as a test uses that records its transactions.
            if isinstance(where, Transaction) or hasattr(where, "get_for_update"):
                return function(where, *args, **kwargs)
            raise UsageError(
                f"{name} needs a repository or a transaction as its first argument, not "
                f"{type(where).__name__}."
            )

        def attempt(t: Transaction) -> T:
            return function(t, *args, **kwargs)

        attempt.__qualname__ = name  # Errors and prefetching name the function by it.
        return where.run(attempt)

    return call


IMPORTING: Final[ContextVar[str]] = ContextVar("IMPORTING", default="")
"""The module that a command or a job is importing for its observers; `open` raises meanwhile."""


def open(
    address: str | os.PathLike[str],
    schema: Iterable[Table[Any]] = (),
    *,
    create: bool = True,
    durability: str | None = None,
    one_step: bool = True,
    lock_ttl_seconds: float = 10.0,
    lock_wait_seconds: float = 60.0,
) -> Repository:
    """Open a repository, and create it if it does not exist.

    Args:
        address: a folder, `lmdb:FOLDER`, `memory:`, or the address of a store elsewhere; see
            `percola.connect.cluster`.
        schema: the tables that this program uses. New ones are added to the repository;
            those of other programs stay.
        create: whether to create a repository if there is none; without a schema none is created.
        durability: "full" (the default) or "relaxed": whether a commit waits until it is on
            disk. Relaxed, a killed process still loses nothing, but a power cut or a crash of
            the system may lose the last commits or damage the repository, also for the processes
            beside it. Given at creation, it becomes the repository's default.
        one_step: commit in one step if the store can. If False, every transaction commits in two
            phases; both kinds may run concurrently.
        lock_ttl_seconds: how long a commit may go without refreshing its primary lock before
            other clients may roll it back.
        lock_wait_seconds: how long a reader waits for the lock of a live transaction.

    Raises:
        NotARepositoryError: the address has something else, or nothing and `create` is False.
        RepositoryVersionError: it was written by another version of Percola.
        SchemaMismatchError: the schema contradicts the one in the repository.
        ConflictingOptionsError: options that contradict each other, or an invalid value.
        UsageError: a module opens it while `percola worker` or a job imports that module.
        StoreError: the store cannot be opened.
    """
    text = os.fspath(address)
    if module := IMPORTING.get():
        raise UsageError(
            f"{module!r} opens the repository {text} when it is imported, so its program would run "
            "in every worker. Put the program under 'if __name__ == \"__main__\":', or name a "
            "function that takes the repository and returns the observers."
        )
    if durability is not None and durability not in DURABILITIES:
        raise ConflictingOptionsError(
            f"The durability {durability!r} is not known: use 'full' or 'relaxed'."
        )
    # Locks carry the time to live as 32 bits of milliseconds.
    ttl, wait = lock_ttl_seconds, lock_wait_seconds
    if not isinstance(ttl, int | float) or not 0.001 <= ttl <= 1e6:
        raise ConflictingOptionsError(
            f"A lock_ttl_seconds of {ttl!r} is not from 0.001 to 1000000 seconds."
        )
    if not isinstance(wait, int | float) or not wait >= 0:
        raise ConflictingOptionsError(f"A lock_wait_seconds of {wait!r} is not 0 or more seconds.")
    if isinstance(schema, Table):
        raise UsageError(f"The schema is a list of tables, but this is {schema!r} alone.")
    tables = list(schema)
    if is_memory(text):
        if durability is not None:
            raise ConflictingOptionsError(
                "A memory repository keeps nothing, so it has no durability: leave one of the "
                "two out."
            )
        from percola.coordination.memory import MemoryCoordination
        from percola.store.memory import MemoryStore

        memory = MemoryStore()
        coordination = MemoryCoordination()
        return Repository(
            text,
            memory,
            EmbeddedOracle(memory),
            coordination,
            tables,
            one_step=one_step,
            lock_ttl_seconds=lock_ttl_seconds,
            lock_wait_seconds=lock_wait_seconds,
            close=memory.close,
        )
    if (network := network_address(text)) is not None:
        network.refuse_durability(durability)
        connection = _connect(network)
        try:
            if not (create and tables) and not has_schema(connection.store):
                raise NotARepositoryError(
                    f"There is no repository at {network.store} yet. Create one with 'percola "
                    f"--repo {shlex.quote(text)} init' (in a program, by percola.open with a "
                    "schema), or name another place."
                )
            return Repository(
                text,
                CountedStore(connection.store, StoreCalls()),
                connection.oracle,
                connection.coordination,
                tables,
                lock_ttl_seconds=lock_ttl_seconds,
                lock_wait_seconds=lock_wait_seconds,
                prefetches=True,
                close=connection.release,
            )
        except BaseException:
            connection.release()
            raise
    folder = folder_of(text)
    local = LocalConnection.open(folder, durability, create=create and bool(tables))
    try:
        return Repository(
            str(folder),
            local.store,
            EmbeddedOracle(local.store),
            local.coordination,
            tables,
            one_step=one_step,
            lock_ttl_seconds=lock_ttl_seconds,
            lock_wait_seconds=lock_wait_seconds,
            close=local.release,
        )
    except BaseException:
        local.release()
        raise


def create(address: str | os.PathLike[str], *, durability: str | None = None) -> None:
    """Create an empty repository; NotARepositoryError if something else is there.

    Raises what `open` raises.
    """
    text = os.fspath(address)
    if (network := network_address(text)) is not None:
        network.refuse_durability(durability)
        connection = _connect(network)
        try:
            create_schema(connection.store)
        finally:
            connection.release()
        return
    LocalConnection.open(folder_of(os.fspath(address)), durability, create=True).release()


def _connect(address: NetworkAddress) -> NetworkConnection:
    """Connect to a network store; what that takes is loaded by programs that use one."""
    from percola.connect.cluster import NetworkConnection

    return NetworkConnection.open(address)

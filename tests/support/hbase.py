"""A real HBase for tests: ZooKeeper, HDFS, master and region servers as processes of their own.

    def test_…(hbase: HBase) -> None:
        store = hbase.store()

One cluster of three region servers serves all tests of a session; every call of `store` without a
name makes a namespace that nobody else has. To save the start while working on a test,
PERCOLA_TEST_CLUSTER names the folder of a cluster that is up.

The tables of the contract's and the protocol's tests are cut between the rows that these tests
write, and HBase puts each region of a new table on another server: so their batches are calls of
several servers, and their scans go from one to the next. Meanwhile they are flushed and compacted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import jpype
import pytest
from hbase_upkeep import Upkeep, kept_up
from needs import lack, need
from stores import Ground

from percola import Repository, Table
from percola.coordination.memory import MemoryCoordination
from percola.devcluster import Cluster, jars
from percola.devcluster.settings import SMALL_HEAP
from percola.oracle.base import Oracle
from percola.oracle.embedded import EmbeddedOracle
from percola.store.base import Store
from percola.store.hbase import schema as hbase_settings
from percola.store.hbase.client import Place
from percola.store.hbase.errors import Failure
from percola.store.hbase.jvm import java_class, java_objects
from percola.store.hbase.method_handles import OURS
from percola.store.hbase.mutations import Plan
from percola.store.hbase.reads import HBaseReading, Query
from percola.store.hbase.schema import ALL_FAMILIES, exists
from percola.store.hbase.shared_row import Shared
from percola.store.hbase.store import HBaseStore
from percola.store.hbase.wire import ALL_VERSIONS, LOCK, LOCK_AT, Ask, Change
from percola.store.hbase.writes import Writing
from percola.store.memory import MemoryStore
from percola.store.remote import shared_row
from percola.testing.conformance.fixtures import Ground as Claims

ROOT: Final = Path(__file__).parents[2]

REGION_SERVERS: Final = 3

_CUTS_OF_CLAIMS: Final = (b"1", b"2")
_CUTS_OF_THE_PROTOCOL: Final = (b"b", b"x")
"""Its rows are `a` and `b` mostly, then `x`."""

_SESSION: Final = 15
"""Long enough for a busy machine; as long, tests wait until the others miss a server."""

_STEADY: Final = {
    # Nobody moves a region but tests: where a table's regions were put they stay.
    "hbase.balancer.period": "1000000000",
    # So that answers need not be 100 MB long to be cut.
    "hbase.server.scanner.max.result.size": "1000000",
}

_namespaces = itertools.count(1)


def require_jars() -> dict[str, Path]:
    """Fetch the jars of HBase; their folders, as `jars.install_all` has them."""
    need("hbase")
    try:
        return jars.install_all()
    except jars.JarsError as error:
        lack("hbase", str(error))


class HBase:
    """A cluster that runs, and stores in it.

    Args:
        steady: nobody ends a process of it. If one has ended all the same, each test that is left
            says so at once, instead of waiting for it.
    """

    def __init__(self, cluster: Cluster, *, steady: bool = False) -> None:
        self.cluster, self.steady = cluster, steady

    def place(self, namespace: str = "") -> Place:
        """A namespace of this name; without a name one that nobody else has."""
        if self.steady:
            self.cluster.check()
        namespace = namespace or f"test_{os.getpid()}_{next(_namespaces)}"
        return Place(self.cluster.quorum, namespace)

    def store(
        self,
        namespace: str = "",
        *,
        cuts: Sequence[bytes] = (),
        tables: Iterable[str] = (),
        **options: Any,
    ) -> HBaseStore:
        """A store in the namespace of this name; without a name in one of its own.

        Args:
            cuts: the rows at which each table that it makes is cut into regions.
            tables: those that it is to make.
        """
        place = self.place(namespace)
        store = CutStore(place, cuts, **options) if cuts else HBaseStore(place, **options)
        if tables:
            store.create_tables(tables)
        return store


class CutStore(HBaseStore):
    """A store whose tables are cut into regions before it makes them, as an operator may do it.

    HBase puts as many regions of a new table as there are servers on one server each.
    """

    def __init__(self, place: Place, cuts: Sequence[bytes], **options: Any) -> None:
        super().__init__(place, **options)
        self._cuts = cuts

    def create_tables(self, names: Iterable[str]) -> None:
        super().create_tables([])
        wanted = list(names)
        for name in wanted:
            if name not in self._known and not exists(self._calls, name):
                self._make(name)
        super().create_tables(wanted)

    def _make(self, name: str) -> None:
        calls = self._calls
        table = hbase_settings._descriptor(calls.name(name))
        admin = calls.client().connection.getAdmin()
        try:
            admin.createTable(table, jpype.JArray(jpype.JArray(jpype.JByte))(self._cuts))
        except jpype.JException as error:
            # Another one has just made it.
            if not Failure.of(error).names[0].endswith(".TableExistsException"):
                raise
        finally:
            admin.close()


LATE: Final = "org.apache.hadoop.hbase.ipc.CallTimeoutException"
"""The exception of a call whose reply did not come in time."""


def failing(count: int, name: str = LATE) -> Any:
    """What a batch of requests comes to if all fail with an exception of this name."""
    answers = java_objects(count)
    for at in range(count):
        answers[at] = java_class(name)("for a test")
    return answers


def send_through(store: HBaseStore, act: Callable[[Callable[[], Any], int], Any]) -> None:
    """Have Java send the requests of commits through `act(send, count)`, which returns answers."""
    client = store._calls.client()
    usual = client.sender
    assert usual is not None, "the jar is not built: make setup"

    def send(table: Any, rows: Any, messages: Any) -> Any:
        return act(lambda: usual.send(table, rows, messages), len(rows))

    client.sender = jpype.JProxy(OURS + "Sender", dict={"send": send})


def empty(used: Iterable[HBaseStore], cleaner: HBaseStore) -> None:
    """Remove everything from the tables that stores have used: quicker than to make new ones.

    Args:
        cleaner: another store of their namespace, for they may have been closed.
    """
    calls = cleaner._calls
    everything = Query([Ask(family, None) for family in ALL_FAMILIES], ALL_VERSIONS)
    for table in sorted({table for store in used for table in store._known}):
        reading = HBaseReading(calls, Shared(calls))
        chunks = reading.chunks(table, everything, b"", b"", None)
        plans = []
        for key, row in (one for rows, _ in chunks for one in rows):
            changes = [
                Change(LOCK, column, LOCK_AT, b"")
                if family == LOCK
                else Change(family, column, ts, None)
                for (family, column), entries in row.items()
                for ts, _ in entries
            ]
            if changes:
                plans.append(Plan(table, key, changes))
        Writing(calls).apply(plans)


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBase]:
    """The session's cluster: three region servers. `mortal` is for those who kill one of them."""
    folder = tmp_path_factory.mktemp("hbase") / "cluster"
    with running_cluster(folder, REGION_SERVERS, _SESSION) as cluster:
        yield HBase(cluster, steady=True)


@contextlib.contextmanager
def running_cluster(
    folder: Path, region_servers: int = 1, session: int | None = None
) -> Iterator[Cluster]:
    """A cluster of so many region servers, or that which PERCOLA_TEST_CLUSTER names.

    It has one DataNode, for what Percola sees of HBase is the same with three of them, and each
    would write everything once more.
    """
    require_jars()
    running = os.environ.get("PERCOLA_TEST_CLUSTER")
    if running:
        yield Cluster(running)
        return
    with Cluster(
        folder,
        region_servers=region_servers,
        data_nodes=1,
        heap=SMALL_HEAP,
        session=session,
        settings=_STEADY,
    ) as cluster:
        yield cluster


@pytest.fixture
def mortal(hbase: HBase) -> Iterator[HBase]:
    """The session's cluster, for tests that stop, kill and start region servers of it.

    Afterwards all servers run.
    """
    cluster = hbase.cluster
    yield HBase(cluster)
    for name in region_servers(cluster):
        server = cluster.process(name)
        if not server.runs:
            server.start()
        elif server.state.stopped:
            server.resume()
    cluster.await_ready()


def region_servers(cluster: Cluster) -> list[str]:
    """The names of a cluster's region servers, whether they run or not."""
    return [name for name in cluster.names if name.startswith("regionserver")]


class InHBase(Claims):
    """Claims of the store contract in one namespace of HBase: a class derives from it and them.

    All tests share the namespace and most of them a table, for making one takes a second and leaves
    the servers less memory.
    """

    namespace: str
    cuts: Sequence[bytes] = _CUTS_OF_CLAIMS

    @pytest.fixture(scope="class")
    @classmethod
    def cleaner(cls, hbase: HBase) -> Iterator[HBaseStore]:
        store = hbase.store(cls.namespace)
        yield store
        store.close()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def upkeep(cls, cleaner: HBaseStore) -> Iterator[Upkeep]:
        with kept_up(cleaner) as upkeep:
            yield upkeep

    @pytest.fixture(autouse=True)
    def in_the_cluster(
        self, hbase: HBase, cleaner: HBaseStore, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        # All processes must agree on it; here there is one. `faults` has the real one.
        monkeypatch.setattr(shared_row, "LEASE", 0.05)
        self.hbase, self.made = hbase, list[HBaseStore]()
        yield
        empty(self.made, cleaner)

    def make_store(self, folder: Path) -> HBaseStore:
        store = self.hbase.store(self.namespace, cuts=self.cuts)
        store.create_tables([])
        self.made.append(store)
        return store

    @pytest.fixture
    def table(self, store: Store) -> str:
        store.create_tables(["rows"])
        return "rows"

    @pytest.fixture
    def feed(self, store: Store) -> str:
        store.create_tables(["fed"])
        store.feed_index.begin(lambda: 0)
        store.keep_feed("fed")
        return "fed"


class HBaseGround(Ground):
    """A namespace of a real HBase; timestamps and liveness tokens come from this process."""

    def __init__(
        self,
        hbase: HBase,
        namespace: str,
        cleaner: HBaseStore,
        folder: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self.kind, self.one_step, self.folder = "hbase", False, folder
        self.near = False
        store = hbase.store(namespace, cuts=_CUTS_OF_THE_PROTOCOL)
        # Making a namespace and its tables takes seconds: they are left to the next test.
        stack.callback(empty, [store], cleaner)
        # No call of these tests outlives its caller, and they watch what the collector does.
        store.latest_arrival = 0.0
        self.store = store  # type: ignore[assignment]
        self.coordination = MemoryCoordination()
        stack.callback(self.store.close)
        stack.callback(self.coordination.close)
        self.oracle = EmbeddedOracle(MemoryStore())


def fixtures_in(namespace: str) -> tuple[Any, Any, Any]:
    """A module's fixtures `cleaner`, `upkeep`, `ground`: as `stores.ground`, in one namespace."""

    @pytest.fixture(scope="module")
    def cleaner(hbase: HBase) -> Iterator[HBaseStore]:
        store = hbase.store(namespace)
        yield store
        store.close()

    @pytest.fixture(scope="module")
    def upkeep(cleaner: HBaseStore) -> Iterator[Upkeep]:
        with kept_up(cleaner) as upkeep:
            yield upkeep

    @pytest.fixture
    def ground(
        hbase: HBase,
        cleaner: HBaseStore,
        upkeep: Upkeep,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[Ground]:
        # All processes must agree on it; here there is one.
        monkeypatch.setattr(shared_row, "LEASE", 0.02)
        with contextlib.ExitStack() as stack:
            yield HBaseGround(hbase, namespace, cleaner, tmp_path, stack)

    return cleaner, upkeep, ground


def check_upkeep(ground: Ground, upkeep: Upkeep) -> None:
    """A repository's table is flushed and compacted while it is used, and has what was written."""
    docs = Table("docs")
    text = docs.column("text", str)
    repo = ground.repo([docs])
    upkeep.check("docs", lambda i: repo.run(lambda t: t.set(text, "a", f"words {i}")))
    assert repo.snapshot().get(text, "a").startswith("words ")


def repository(
    store: HBaseStore, tables: Iterable[Table[Any]], oracle: Oracle | None = None
) -> Repository:
    """A repository on a store in HBase; its timestamps come from memory."""
    oracle = oracle or EmbeddedOracle(MemoryStore())
    return Repository("hbase", store, oracle, MemoryCoordination(), tables, one_step=False)

"""§2.1: calls to HBase: the connection, deadlines, retries, and errors.

HBase's client retries by its own rules: for twenty minutes, and writes as well, although a
conditional write that is sent again after a lost reply answers "condition failed" where it was
applied. So its retries are turned off, and this module retries:

    reads     until `timeout_seconds` have passed without an answer; then one StoreError
    writes    only while it is certain that they were not applied: the region is elsewhere, the
              server cannot be reached or accepts no more. Every other failure is
              OutcomeUnknownError

Every call has a deadline of `request_seconds`, which is sent to the servers too: they drop calls
that are still queued then.
"""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import jpype

from percola.errors import (
    OutcomeUnknownError,
    StoreError,
    UnknownTableError,
)
from percola.platform import fork_safety as forks
from percola.store.hbase.errors import READ_ONLY, Failure, Meaning
from percola.store.hbase.jvm import (
    CONF,
    JARS,
    OPTIONS,
    JavaObject,
    java_class,
    java_objects,
    kept_by_thread,
    start,
)
from percola.store.hbase.kerberos import check_login, no_login
from percola.store.hbase.method_handles import OURS, Chains
from percola.store.hbase.wire import file_of_service
from percola.store.remote.client import RemoteCalls, Retries
from percola.store.remote.column_ranges import ColumnRange

_CONNECT_SECONDS: Final = 3.0

_QUOTA: Final = (
    "Have the quota raised: 'list_quotas' in 'hbase shell' shows those of users, tables and "
    "namespaces, and 'describe_namespace' how many tables and regions one may have."
)

_ROOM: Final = f" Java's heap in this process is too small: set {OPTIONS}, to -Xmx2g for example."


class Place(NamedTuple):
    """The location of a repository.

    Attributes:
        quorum: HOST:PORT of each of HBase's ZooKeeper servers, with commas between them.
        namespace: HBase's namespace that holds the repository's tables.
    """

    quorum: str
    namespace: str

    def table(self, table: str) -> str:
        """The full name in HBase of one of Percola's tables."""
        # Percola's system table: HBase forbids '@', and users' tables do not begin with a digit.
        name = "0-" + table[1:] if table.startswith("@") else table
        return f"{self.namespace}:{name}"

    def __str__(self) -> str:
        return f"HBase at {self.quorum}"


_PACKAGE: Final = "org.apache.hadoop.hbase."


class Client:
    """The classes used of HBase's client, and this process's connection."""

    def __init__(self, place: Place, request_seconds: float, timeout_seconds: float) -> None:
        start()
        hbase = _PACKAGE
        self.array_list = java_class("java.util.ArrayList")
        self.arrays = java_class("java.util.Arrays")
        self.table_name = java_class(hbase + "TableName")
        self.scan = java_class(hbase + "client.Scan")
        self.call = java_class(hbase + "client.RegionCoprocessorServiceExec")
        changing = hbase + "protobuf.generated.MultiRowMutationProtos$"
        self.rows_request = java_class(changing + "MutateRowsRequest")
        self.change_rows = _endpoint_method()
        compare = java_class(hbase + "CompareOperator")
        no_value = java_class(hbase + "filter.BinaryComparator")(b"")
        self.has_value = java_class(hbase + "filter.ValueFilter")(compare.NOT_EQUAL, no_value)
        self.column_range = java_class(hbase + "filter.ColumnRangeFilter")
        self.all_of = java_class(hbase + "filter.FilterList")
        self._any_of = java_class(hbase + "filter.FilterList$Operator").MUST_PASS_ONE
        settings = _settings(place, request_seconds, timeout_seconds)
        self.chains = Chains(
            blocks=java_class(hbase + "ipc.CellBlockBuilder")(settings),
            codec=java_class(hbase + "codec.KeyValueCodec")(),
            change_rows=self.change_rows,
            rows_request=self.rows_request,
            no_answer=java_class(changing + "MutateRowsResponse").getDefaultInstance(),
        )
        # What sends commits from Java (`percola.store.hbase.commits`); None without its jar.
        self.sender: JavaObject | None = self.chains.sender()
        self.commit: JavaObject = self.sender and java_class(OURS + "Commit")
        check_login(settings, place)
        connect = java_class(hbase + "client.ConnectionFactory")
        self.connection = connect.createConnection(settings)

    def columns_within(self, ranges: Sequence[ColumnRange]) -> JavaObject:
        """The filter of a scan for columns in any of these ranges."""
        each = self.array_list(len(ranges))
        for low, last, end in ranges:
            high, is_last = (end, False) if last is None else (last, True)
            each.add(self.column_range(low, True, high, is_last))
        return self.all_of(self._any_of, each)


def _endpoint_method() -> JavaObject:
    """The coprocessor's method, under the name that servers know.

    That name has no package. Calls for a single row leave the package out, batched calls do not, so
    this builds a descriptor without one.
    """
    protobuf = _PACKAGE + "shaded.com.google.protobuf."
    described = java_class(protobuf + "DescriptorProtos$FileDescriptorProto").parseFrom(
        file_of_service("MultiRowMutationService", "MutateRows")
    )
    file = java_class(protobuf + "Descriptors$FileDescriptor")
    others = jpype.JArray(file)(0)
    return file.buildFrom(described, others).getServices().get(0).getMethods().get(0)


def _settings(place: Place, request_seconds: float, timeout_seconds: float) -> JavaObject:
    request, timeout = int(request_seconds * 1000), int(timeout_seconds * 1000)
    connect = min(request, int(_CONNECT_SECONDS * 1000))
    settings = java_class(_PACKAGE + "HBaseConfiguration").create()
    # Another quorum for clients alone, which would go before that of the address.
    settings.unset("hbase.client.zookeeper.quorum")
    for name, value in {
        "hbase.zookeeper.quorum": place.quorum,
        "hbase.client.registry.impl": _PACKAGE + "client.ZKConnectionRegistry",
        "zookeeper.recovery.retry": 1,
        "zookeeper.recovery.retry.intervalmill": 100,
        "zookeeper.session.timeout": max(request, 2000),
        "hbase.client.retries.number": 0,
        "hbase.client.pause": 50,
        "hbase.rpc.timeout": request,
        "hbase.rpc.read.timeout": request,
        "hbase.rpc.write.timeout": request,
        "hbase.client.operation.timeout": request,
        "hbase.client.meta.operation.timeout": request,
        "hbase.client.scanner.timeout.period": timeout,
        "hbase.client.sync.wait.timeout.msec": max(timeout, 60_000),
        "hbase.ipc.client.socket.timeout.connect": connect,
        "hbase.ipc.client.failed.servers.expiry": 500,
        "hbase.ipc.client.tcpnodelay": "true",
        # The sizes are checked before anything is sent.
        "hbase.client.keyvalue.maxsize": 0,
        "hbase.client.perserver.requests.threshold": 2**31 - 1,
        "hbase.hconnection.threads.max": 32,
        "hbase.hconnection.threads.keepalivetime": 60,
    }.items():
        settings.set(name, str(value))
    return settings


class Calls(RemoteCalls):
    """The calls of one store: see `RemoteCalls`."""

    def __init__(self, place: Place, *, request_seconds: float, timeout_seconds: float) -> None:
        super().__init__(request_seconds=request_seconds, timeout_seconds=timeout_seconds)
        self.place = place
        self._start_afresh()
        forks.at_fork(self._leave_parent)
        self._names: dict[str, JavaObject] = {}
        self._starts: dict[str, list[bytes]] = {}

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._client: Client | None = None

    def _leave_parent(self) -> None:
        # A child neither uses nor closes its parent's connection.
        forks.keep_inherited(self._client)
        self._start_afresh()

    # --- The connection -----------------------------------------------------------------

    def client(self) -> Client:
        """The connection of this process; connects when it is first needed."""
        start()
        client = self._client
        if client is not None:
            return client
        with self._guard:
            self.check_open()
            if self._client is None:
                tries = Tries(self, "connecting")
                while True:
                    try:
                        self._client = Client(
                            self.place, self.request_seconds, self.timeout_seconds
                        )
                        break
                    except jpype.JException as error:
                        failure = Failure.of(error)
                        if not failure.trouble and failure.meaning is Meaning.UNKNOWN:
                            # No server has been asked for anything: it fails every time.
                            raise _because(_unusable(_root_of(error)), error) from None
                        tries.failed(error)
                    except TypeError as error:
                        if not str(error).endswith(" is not found"):  # JPype says so of a class.
                            raise
                        raise _unusable(str(error)) from error
            return self._client

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            start()
            client.connection.close()

    def name(self, table: str) -> JavaObject:
        """A table's name as a Java object."""
        found = self._names.get(table)
        if found is None:
            name = self.client().table_name.valueOf(self.place.table(table))
            found = self._names[table] = name
        return found

    def table(self, table: str) -> JavaObject:
        """A table as a Java object, one per thread."""
        client = self.client()
        tables = kept_by_thread(self)
        found = tables.get(table)
        if found is None:
            found = tables[table] = client.connection.getTable(self.name(table))
        return found

    def tables(self, names: Sequence[str]) -> JavaObject:
        """An array of tables as Java objects, one per thread."""
        arrays, key = kept_by_thread(self), "\0".join(("", *names))
        found = arrays.get(key)
        if found is None:
            found = java_objects(len(names))
            for at, name in enumerate(names):
                found[at] = self.table(name)
            arrays[key] = found
        return found

    # --- Calls --------------------------------------------------------------------------

    def batch(self, table: str, requests: JavaObject, count: int, name: str) -> JavaObject:
        """Send requests together, one call per server; return an array of answers and exceptions.

        A request that got neither has the exception of the whole call. HBase's client uses its own
        threads for a batch, so single requests are faster with `change` or `get`.
        """
        self.made[name] += 1
        answers = java_objects(count)
        try:
            self.table(table).batch(requests, answers)
        except jpype.JException as error:
            for at in range(count):
                if answers[at] is None:
                    answers[at] = error
        return answers

    def change(self, table: str, row: bytes, request: bytes) -> bytes:
        """Send one request to change rows of the region of `row`; return the endpoint's answer.

        Raises the exceptions of HBase's client.
        """
        self.made["mutate"] += 1
        return self.client().chains.change(self.table(table), row, request)

    def get(self, table: str, gets: Sequence[bytes]) -> bytes:
        """Read rows: one block with the cells of those that have any, in the order of `gets`.

        Rows that are too much for Java's heap together are asked for in halves.
        """
        chains = self.client().chains
        tries = Tries(self, f"reading the table {table!r}", table)
        while True:
            try:
                if len(gets) == 1:
                    self.made["get"] += 1
                    return chains.read(self.table(table), gets[0])
                return self._get_many(table, chains.requests(gets))
            except jpype.JException as error:
                if len(gets) == 1 or not Failure.of(error).is_out_of_memory:
                    tries.failed(error)
                    continue
            # Only now the answers are released that the exception's frames refer to.
            half = len(gets) // 2
            return self.get(table, gets[:half]) + self.get(table, gets[half:])

    def _get_many(self, table: str, gets: JavaObject) -> bytes:
        client = self.client()
        chains, requests = client.chains, client.arrays.asList(gets)
        answers = self.batch(table, requests, len(gets), "get")
        try:
            return chains.block_of(answers)
        except jpype.JException:
            # One of the answers is an exception; or a request that had timed out has been answered
            # meanwhile, since HBase's client still fills in its answer.
            self._get_the_rest(table, gets, answers)
            return chains.block_of(answers)

    def _get_the_rest(self, table: str, gets: JavaObject, answers: JavaObject) -> None:
        """Ask again for rows that servers skipped because their response was large enough."""
        count = len(gets) + 1
        while left := [at for at, one in enumerate(answers) if not hasattr(one, "rawCells")]:
            # At least one row comes with each call.
            if len(left) >= count or not all(Failure.of(answers[at]).is_left_out for at in left):
                raise answers[left[0]] from None
            count = len(left)
            again = self.client().arrays.asList([gets[at] for at in left])
            for at, one in zip(left, self.batch(table, again, count, "get"), strict=True):
                answers[at] = one

    # --- Regions ------------------------------------------------------------------------

    def region_starts(self, table: str, *, again: bool = False) -> list[bytes]:
        """The first row of each region of the table, in order; cached unless `again`."""
        found = self._starts.get(table)
        if found is not None and not again:
            return found
        tries = Tries(self, f"asking for the regions of the table {table!r}", table)
        while True:
            try:
                self.made["regions"] += 1
                locator = self.client().connection.getRegionLocator(self.name(table))
                if again:
                    locator.clearRegionLocationCache()
                found = sorted({bytes(one) for one in locator.getStartKeys()})
                if not found:
                    raise UnknownTableError(
                        f"The store has no table {table!r}: there is no "
                        f"{self.place.table(table)!r} in {self.place} any more."
                    )
                self._starts[table] = found
                return found
            except jpype.JException as error:
                tries.failed(error)

    # --- Failures -----------------------------------------------------------------------

    def refusal(
        self, failure: Failure, what: str, table: str = ""
    ) -> StoreError | UnknownTableError:
        """The error for a refused call."""
        if failure.trouble:
            return no_login(self.place, failure.trouble)
        kind = failure.names[0].rpartition(".")[2]
        if table and kind in ("TableNotFoundException", "NamespaceNotFoundException"):
            return UnknownTableError(
                f"The store has no table {table!r}: {self.place} says so ({failure})."
            )
        full = self.place.table(table) if table else f"namespace {self.place.namespace}"
        advice = {
            "AccessDeniedException": (
                f"Have this account permitted to use the namespace: grant 'USER', 'RWXC', "
                f"'@{self.place.namespace}' in 'hbase shell', after create_namespace "
                f"'{self.place.namespace}' if it does not exist yet."
            ),
            "NoSuchColumnFamilyException": (
                f"The table is not one that Percola made: {full} lacks a family."
            ),
            "TableNotEnabledException": f"Enable it: enable '{full}' in 'hbase shell'.",
            "UnknownProtocolException": (
                "Its servers do not run the coprocessor MultiRowMutationEndpoint, which comes with "
                "HBase: see that hbase.coprocessor.enabled and hbase.coprocessor.user.enabled are "
                "not false in their hbase-site.xml, and that the table names the coprocessor."
            ),
            "RequestTooBigException": (
                "Write less in one row at once, or raise hbase.ipc.max.request.size."
            ),
            **dict.fromkeys(("QuotaExceededException", "SpaceLimitingException"), _QUOTA),
        }.get(kind, "")
        if READ_ONLY in failure.text:
            advice = f"Have it written again: alter '{full}', READONLY => 'false' in 'hbase shell'."
        return StoreError(f"{self.place} refused {what} ({failure}). {advice}".strip())

    def silence(self, failure: Failure, what: str) -> StoreError:
        """The error for a call that was retried for `timeout_seconds` without effect."""
        if failure.trouble:
            return no_login(self.place, failure.trouble)
        if failure.is_throttled:
            return StoreError(
                f"{self.place} permits no more at the moment: {what} was tried for "
                f"{self.timeout_seconds:g} s ({failure}). {_QUOTA}"
            )
        advice = ""
        if "ConnectionClosedException" in failure.text:
            advice = (
                " If it takes only Kerberos or TLS, the client's settings must say so, in the "
                f"folder that {CONF} names."
            )
        elif "KeeperErrorCode = ConnectionLoss" in failure.text:
            advice = (
                " The address is that of HBase's ZooKeeper, and none answers there: check it, and "
                "that most of its servers run."
            )
        elif "KeeperErrorCode = NoNode" in failure.text:
            advice = (
                " No master is listed in that ZooKeeper: see that one runs, and, if the servers "
                "have a zookeeper.znode.parent of their own, that the settings in the folder that "
                f"{CONF} names have it as well."
            )
        elif failure.is_out_of_memory:
            advice = _ROOM
        return StoreError(
            f"{self.place} does not answer: {what} was tried for {self.timeout_seconds:g} s "
            f"({failure}).{advice}"
        )

    def contested(self, table: str, row: bytes) -> StoreError:
        """The error for a row that other clients changed during every try."""
        return StoreError(
            f"The row {row[:40]!r} of the table {table!r} is changed by others all the time: it "
            f"was tried for {self.timeout_seconds:g} s."
        )

    def unknown(self, failure: Failure, what: str) -> OutcomeUnknownError:
        """The error for a write whose outcome is unknown."""
        return OutcomeUnknownError(
            f"{self.place} did not answer while {what}: it may or may not have been applied "
            f"({failure}).{_ROOM if failure.is_out_of_memory else ''}"
        )


class Tries(Retries):
    """The retries of one call."""

    def __init__(self, calls: Calls, what: str, table: str = "") -> None:
        super().__init__(calls.timeout_seconds)
        self._calls = calls
        self._what = what
        self._table = table
        self._trouble: Failure | None = None

    def failed(self, error: JavaObject) -> None:
        """Wait before the next try; raise StoreError or UnknownTableError if there is none."""
        calls, failure = self._calls, Failure.of(error)
        calls.check_open()
        if failure.meaning is Meaning.REFUSED:
            raise _because(calls.refusal(failure, self._what, self._table), error)
        if failure.trouble:
            self._trouble = failure  # The next tries only report that a login is in progress.
        if not self.wait():
            raise _because(calls.silence(self._trouble or failure, self._what), error)


def _unusable(why: str) -> StoreError:
    """The error for a client of HBase's that does not start."""
    advice = (
        "Its jars have to be whole and of one release, with those that they need: 'percola "
        f"hbase-jars client' fetches them, {JARS} names others. And it has to be able to read the "
        f"files in the folder that {CONF} names."
    )
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        advice = (
            f"Java asks for the name of the user {os.geteuid()}, as whom it runs, and it has none "
            "here: give it a line in /etc/passwd, or run as a user that has."
        )
    return StoreError(f"HBase's client does not start in this process ({why}). {advice}")


def _root_of(error: JavaObject) -> str:
    """The first cause of a Java exception, with two lines of its message: the next are a stack."""
    while (cause := error.getCause()) is not None:
        error = cause
    text = " ".join(str(error.getMessage()).splitlines()[:2])
    return f"{error.getClass().getSimpleName()}: {text[:300].strip()}"


def _because(error: Exception, cause: JavaObject) -> Exception:
    error.__cause__ = cause if isinstance(cause, BaseException) else None
    return error

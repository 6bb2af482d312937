"""§2.1: tables in HBase, and the settings without which the protocol is not safe.

Every Percola table is a separate HBase table in the repository's namespace, with a column family
for each kind of entry. Families have separate files, so that finding notifications or locks costs
in proportion to their number and not to the size of the table (rule N6).

    versions        all of them, for ever: timestamps are logical, and Percola decides which
                    versions are removed. Of locks one: see `wire`
    deletes         NEW_VERSION_BEHAVIOR: a delete hides only what was put before it. By default
                    HBase's deletes also hide what is put later at the same timestamp, until a
                    major compaction: a failure or a rollback record that is written again
    coprocessor     MultiRowMutationEndpoint, which is part of HBase: see `writes`. Servers on which
                    coprocessors are forbidden create such a table without an error and do not
                    load the endpoint, so it is called once before a repository is used
    bloom filters   by row. With filters by column, ROWCOL, region servers of HBase 2.6 loop for
                    ever in a read of several columns up to a timestamp, once a file was written:
                    the read never ends, each retry blocks another handler, and in the end the
                    server answers no calls
    for speed       locks in memory; an index of rows in each block of a file, without which HBase
                    compares all entries of the block that come before the one that is read

An existing table whose settings would break the protocol is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import jpype

from percola.errors import StoreError
from percola.store.hbase.client import Calls, Tries
from percola.store.hbase.errors import Failure
from percola.store.hbase.jvm import JavaObject, java_class
from percola.store.hbase.wire import (
    CHANGES,
    FAMILIES,
    LOCK,
    LOCK_AT,
    Change,
    conditions,
    lock_check,
    mutations,
)
from percola.store.remote.feed_index import FEED_TABLE, split_keys
from percola.store.remote.shared_row import SHARED_TABLE

ALL_FAMILIES: Final = (*FAMILIES.values(), CHANGES)
"""The column families of every table."""

ENDPOINT: Final = "org.apache.hadoop.hbase.coprocessor.MultiRowMutationEndpoint"

_PACKAGE: Final = "org.apache.hadoop.hbase."
_FOREVER: Final = 2**31 - 1
_STATE: Final = b"s"
"""The column family of a mode without coprocessors, which is no longer supported."""
_COLUMN: Final = b"endpoint"
_OLDEST: Final = (2, 5)


def create_tables(calls: Calls, names: Iterable[str]) -> None:
    """Create the tables that do not exist; StoreError if one cannot be used."""
    client = calls.client()
    admin = client.connection.getAdmin()
    try:
        for name in names:
            _create(calls, admin, name)
            what = f"reading the settings of the table {name!r}"
            found = _ask(calls, what, partial(admin.getDescriptor, calls.name(name)))
            check_table(calls.place.table(name), found)
            if name == SHARED_TABLE and not _endpoint_runs(calls, name):
                raise StoreError(
                    f"{calls.place} does not run the coprocessor MultiRowMutationEndpoint, which "
                    f"is part of HBase and which the table {calls.place.table(name)!r} names: "
                    "allow it, by setting neither hbase.coprocessor.enabled nor "
                    "hbase.coprocessor.user.enabled to false in the hbase-site.xml of its servers."
                )
    finally:
        admin.close()


def _endpoint_runs(calls: Calls, table: str) -> bool:
    """Whether the servers have loaded the coprocessor for a table; nothing is written."""
    row = b"\0"
    # These conditions never hold: no cell both has a lock and has none.
    never = conditions(row, [lock_check(_COLUMN, 1), lock_check(_COLUMN, None)])
    request = never + mutations(row, [Change(LOCK, _COLUMN, LOCK_AT, b"")])
    tries = Tries(calls, f"calling the coprocessor of the table {table!r}", table)
    while True:
        try:
            calls.change(table, row, request)
            return True
        except jpype.JException as error:
            if any(one.endswith(".UnknownProtocolException") for one in Failure.of(error).names):
                return False
            tries.failed(error)


def check_version(calls: Calls) -> None:
    """Raise StoreError if the servers' endpoint ignores conditions."""
    admin = calls.client().connection.getAdmin()
    # Without this the master answers with the figures of every region of the cluster.
    only = java_class("java.util.EnumSet").of(
        java_class(_PACKAGE + "ClusterMetrics$Option").HBASE_VERSION
    )
    try:
        metrics = _ask(calls, "asking for the version", partial(admin.getClusterMetrics, only))
    finally:
        admin.close()
    version = str(metrics.getHBaseVersion())
    parts = version.split("-")[0].split(".")
    if tuple(int(part) for part in parts[:2] if part.isdigit()) < _OLDEST:
        raise StoreError(
            f"{calls.place} is version {version}; Percola needs "
            f"{'.'.join(map(str, _OLDEST))} or later, for its conditional changes of rows."
        )


def exists(calls: Calls, name: str) -> bool:
    """Whether the table exists."""
    admin = calls.client().connection.getAdmin()
    try:
        what = f"looking for the table {name!r}"
        return bool(_ask(calls, what, partial(admin.tableExists, calls.name(name))))
    finally:
        admin.close()


def _create(calls: Calls, admin: JavaObject, name: str) -> None:
    """Create the table if it does not exist, and wait until it can be used."""
    table = calls.name(name)
    what = f"creating the table {name!r}"
    tries = Tries(calls, what)
    while True:
        try:
            if not admin.tableExists(table):
                if name == FEED_TABLE:
                    # From the beginning, as every writer writes there.
                    admin.createTable(_descriptor(table), jpype.JByte[:][:](split_keys()))
                else:
                    admin.createTable(_descriptor(table))
            # Once its regions have been assigned. Not isTableAvailable, which reads all of them.
            if admin.isTableEnabled(table):
                return
            full = calls.place.table(name)
            if admin.isTableDisabled(table):
                raise StoreError(
                    f"The HBase table {full!r} is disabled. Enable it: enable '{full}' in 'hbase "
                    "shell'."
                )
            if not tries.wait():
                raise StoreError(
                    f"The HBase table {full!r} is not available: 'hbase hbck' says why."
                )
        except jpype.JException as error:
            kind = Failure.of(error).names[0].rpartition(".")[2]
            if kind == "TableExistsException":
                # Another client has just created it.
                if not tries.wait():
                    tries.failed(error)
            elif kind == "NamespaceNotFoundException":
                _create_namespace(calls, admin)
            else:
                tries.failed(error)


def _create_namespace(calls: Calls, admin: JavaObject) -> None:
    descriptor = java_class(_PACKAGE + "NamespaceDescriptor").create(calls.place.namespace).build()
    what = f"creating the namespace {calls.place.namespace!r}"

    def create() -> None:
        try:
            admin.createNamespace(descriptor)
        except jpype.JException as error:
            if Failure.of(error).names[0].rpartition(".")[2] != "NamespaceExistException":
                raise

    _ask(calls, what, create)


def _ask(calls: Calls, what: str, ask: Callable[[], Any]) -> Any:
    """Make a call that may be repeated, with retries; return its result."""
    tries = Tries(calls, what)
    while True:
        try:
            return ask()
        except jpype.JException as error:
            tries.failed(error)


def _descriptor(table: JavaObject) -> JavaObject:
    builder = java_class(_PACKAGE + "client.TableDescriptorBuilder").newBuilder(table)
    for family in ALL_FAMILIES:
        builder.setColumnFamily(_family(family))
    builder.setCoprocessor(ENDPOINT)
    return builder.build()


def _family(family: bytes) -> JavaObject:
    made = java_class(_PACKAGE + "client.ColumnFamilyDescriptorBuilder").newBuilder(family)
    made.setMaxVersions(1 if family == LOCK else _FOREVER)
    made.setTimeToLive(_FOREVER)
    made.setNewVersionBehavior(family != LOCK)
    made.setBloomFilterType(java_class(_PACKAGE + "regionserver.BloomType").ROW)
    made.setInMemory(family == LOCK)
    made.setDataBlockEncoding(block_encoding())
    return made.build()


def block_encoding() -> JavaObject:
    """How the files of tables are encoded: see the beginning of this module."""
    return java_class(_PACKAGE + "io.encoding.DataBlockEncoding").ROW_INDEX_V1


def check_table(name: str, table: JavaObject) -> None:
    """Raise StoreError if a table's settings would break the protocol."""
    if table.hasColumnFamily(_STATE):
        raise StoreError(
            f"The HBase table {name!r} was made for writing without coprocessors (it has the "
            f"column family {_STATE.decode()!r}), which is no longer supported: go on with the "
            "version of Percola that wrote it, or load the data into another namespace, on servers "
            "that run the coprocessor MultiRowMutationEndpoint."
        )
    if not table.hasCoprocessor(ENDPOINT):
        raise StoreError(
            f"The HBase table {name!r} does not run the coprocessor that Percola's conditional "
            f"changes need. Add it in 'hbase shell': alter '{name}', METHOD => 'table_att', "
            f"'coprocessor' => '|{ENDPOINT}||'"
        )
    durability = str(table.getDurability())
    if durability in ("ASYNC_WAL", "SKIP_WAL"):
        raise StoreError(
            f"The HBase table {name!r} has DURABILITY {durability}: what was committed could be "
            f"lost with a server. Change it in 'hbase shell': alter '{name}', DURABILITY => "
            "'USE_DEFAULT'"
        )
    by_column = [
        one.decode()
        for one in ALL_FAMILIES
        if (found := table.getColumnFamily(one)) is not None
        and str(found.getBloomFilterType()) == "ROWCOL"
    ]
    if by_column:
        altered = ", ".join(f"{{NAME => '{one}', BLOOMFILTER => 'ROW'}}" for one in by_column)
        raise StoreError(
            f"The HBase table {name!r} has BLOOMFILTER ROWCOL, with which reads of several columns "
            f"hang HBase's region servers. Change it in 'hbase shell': alter '{name}', {altered}; "
            f"and then: major_compact '{name}'"
        )
    for family in ALL_FAMILIES:
        found = table.getColumnFamily(family)
        letter = family.decode()
        if found is None:
            raise StoreError(
                f"The HBase table {name!r} has no column family {letter!r}, so it is not one that "
                "Percola made. Name another namespace in the address."
            )
        versions = 1 if family == LOCK else _FOREVER
        settings = {
            "VERSIONS": (int(found.getMaxVersions()), versions),
            "MIN_VERSIONS": (int(found.getMinVersions()), 0),
            "TTL": (int(found.getTimeToLive()), _FOREVER),
            "KEEP_DELETED_CELLS": (str(found.getKeepDeletedCells()), "FALSE"),
            "NEW_VERSION_BEHAVIOR": (bool(found.isNewVersionBehavior()), family != LOCK),
        }
        for setting, (value, needed) in settings.items():
            if value != needed:
                shown = f"'{str(needed).lower()}'" if isinstance(needed, bool) else f"'{needed}'"
                if setting == "TTL":
                    shown = "'FOREVER'"
                raise StoreError(
                    f"The column family {letter!r} of the HBase table {name!r} has {setting} "
                    f"{value}, with which Percola would lose entries. Change it in 'hbase shell': "
                    f"alter '{name}', {{NAME => '{letter}', {setting} => {shown}}}"
                )

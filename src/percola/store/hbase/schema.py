"""§2.1: tables in HBase, and the settings without which the protocol is not safe.

Every Percola table is an HBase table of its own in the repository's namespace, with a family for
each kind of entry: families have files of their own, so that looking for notifications or locks
costs what there is of them and not what the table holds (rule N6).

    versions        all of them, for ever: timestamps are logical, and which version may go is for
                    Percola to say. Of locks one: see `hbase_wire`
    deletes         NEW_VERSION_BEHAVIOR: a delete hides what was put before it. As HBase does
                    it otherwise, it also hides what is put after it at the same timestamp, until a
                    major compaction: a failure that is noted again, a rollback record again
    coprocessor     MultiRowMutationEndpoint, which HBase brings: see `hbase_writing`; or none, and
                    a family of states instead: see `hbase_ways`
    bloom filters   by row. With filters by column, ROWCOL, region servers of HBase 2.6 go round for
                    ever in a read of several columns up to a timestamp, once a file was written:
                    the read never ends, tries of it take one handler after the other, and
                    then the server answers nobody
    for speed       locks in memory

A table that exists with other settings is refused where they would break the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import jpype

from percola.errors import StoreError
from percola.store.hbase.client import Calls, Tries
from percola.store.hbase.errors import Failure
from percola.store.hbase.jvm import JavaObject, java_class
from percola.store.hbase.wire import CHANGES, FAMILIES, LOCK, STATE
from percola.store.hbase.write_mode import (
    ENDPOINT,
    change_over,
    endpoint_runs,
    forbidden,
    has_states,
    otherwise,
    running,
)
from percola.store.remote.shared_row import SHARED_TABLE

ALL_FAMILIES: Final = (*FAMILIES.values(), CHANGES)
"""What every table has; one that is written without the coprocessor has states besides."""

_PACKAGE: Final = "org.apache.hadoop.hbase."
_FOREVER: Final = 2**31 - 1
_REPLACED: Final = (LOCK, STATE)
"""What stands there is replaced, and never deleted."""
_OLDEST: Final = (2, 5)


def create_tables(calls: Calls, names: Iterable[str]) -> None:
    """Make sure that the tables exist as they must be; StoreError in words if they cannot.

    The first of a repository is `SHARED_TABLE`: the others are written in the way that it is.
    """
    client = calls.client()
    admin = client.connection.getAdmin()
    try:
        for name in names:
            checked = calls.checked.get(SHARED_TABLE, not calls.place.coprocessors)
            _create(calls, admin, name, checked)
            calls.checked[name] = _check_way(calls, admin, name)
    finally:
        admin.close()


def _check_way(calls: Calls, admin: JavaObject, name: str) -> bool:
    """Refuse a table that must not be written; whether it is written without the coprocessor."""
    full, what = calls.place.table(name), f"looking at the table {name!r}"
    look = partial(_ask, calls, what, partial(admin.getDescriptor, calls.name(name)))
    found = look()
    checked = has_states(full, found)
    if not checked and not calls.place.coprocessors:
        _check_families(full, found, ALL_FAMILIES)
        if endpoint_runs(calls, name):
            raise running(full)
        change_over(calls, admin, name, _without_endpoint(found))
        found = look()
        checked = has_states(full, found)
    if checked is not calls.checked.get(SHARED_TABLE, checked):
        raise otherwise(full, checked=checked)
    check_table(full, found)
    if name == SHARED_TABLE and not checked and not endpoint_runs(calls, name):
        raise forbidden(calls, full)
    return checked


def check_version(calls: Calls) -> None:
    """Refuse servers whose endpoint does not heed conditions: StoreError."""
    admin = calls.client().connection.getAdmin()
    try:
        metrics = _ask(calls, "asking for the version", admin.getClusterMetrics)
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
    """Whether there is such a table."""
    admin = calls.client().connection.getAdmin()
    try:
        what = f"looking for the table {name!r}"
        return bool(_ask(calls, what, partial(admin.tableExists, calls.name(name))))
    finally:
        admin.close()


def _create(calls: Calls, admin: JavaObject, name: str, checked: bool) -> None:
    """Create the table if it does not exist, and wait until it can be used."""
    table = calls.name(name)
    what = f"creating the table {name!r}"
    tries = Tries(calls, what)
    while True:
        try:
            if not admin.tableExists(table):
                admin.createTable(_descriptor(table, checked))
            if admin.isTableAvailable(table):
                return
            if not tries.wait():
                raise StoreError(
                    f"The HBase table {calls.place.table(name)!r} is not available: 'hbase hbck' "
                    "says why."
                )
        except jpype.JException as error:
            kind = Failure.of(error).names[0].rpartition(".")[2]
            if kind == "TableExistsException":
                # Another one has just made it.
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
    """Make a call that may be repeated; its answer."""
    tries = Tries(calls, what)
    while True:
        try:
            return ask()
        except jpype.JException as error:
            tries.failed(error)


def _descriptor(table: JavaObject, checked: bool) -> JavaObject:
    builder = java_class(_PACKAGE + "client.TableDescriptorBuilder").newBuilder(table)
    for family in (*ALL_FAMILIES, STATE) if checked else ALL_FAMILIES:
        builder.setColumnFamily(_family(family))
    if not checked:
        builder.setCoprocessor(ENDPOINT)
    return builder.build()


def _without_endpoint(table: JavaObject) -> JavaObject:
    """A table's descriptor with states instead of the coprocessor."""
    builder = java_class(_PACKAGE + "client.TableDescriptorBuilder").newBuilder(table)
    if table.hasCoprocessor(ENDPOINT):
        builder.removeCoprocessor(ENDPOINT)
    builder.setColumnFamily(_family(STATE))
    return builder.build()


def _family(family: bytes) -> JavaObject:
    made = java_class(_PACKAGE + "client.ColumnFamilyDescriptorBuilder").newBuilder(family)
    made.setMaxVersions(1 if family in _REPLACED else _FOREVER)
    made.setTimeToLive(_FOREVER)
    made.setNewVersionBehavior(family not in _REPLACED)
    made.setBloomFilterType(java_class(_PACKAGE + "regionserver.BloomType").ROW)
    made.setInMemory(family in _REPLACED)
    return made.build()


def check_table(name: str, table: JavaObject) -> None:
    """Refuse a table's settings that would break the protocol: StoreError."""
    checked = has_states(name, table)
    if not checked and not table.hasCoprocessor(ENDPOINT):
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
    _check_families(name, table, (*ALL_FAMILIES, STATE) if checked else ALL_FAMILIES)


def _check_families(name: str, table: JavaObject, families: Sequence[bytes]) -> None:
    by_column = [
        one.decode()
        for one in families
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
    for family in families:
        found = table.getColumnFamily(family)
        letter = family.decode()
        if found is None:
            raise StoreError(
                f"The HBase table {name!r} has no column family {letter!r}, so it is not one that "
                "Percola made. Name another namespace in the address."
            )
        versions = 1 if family in _REPLACED else _FOREVER
        settings = {
            "VERSIONS": (int(found.getMaxVersions()), versions),
            "MIN_VERSIONS": (int(found.getMinVersions()), 0),
            "TTL": (int(found.getTimeToLive()), _FOREVER),
            "KEEP_DELETED_CELLS": (str(found.getKeepDeletedCells()), "FALSE"),
            "NEW_VERSION_BEHAVIOR": (bool(found.isNewVersionBehavior()), family not in _REPLACED),
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

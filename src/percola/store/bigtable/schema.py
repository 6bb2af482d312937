"""§2.1: tables in Bigtable, and the settings without which the protocol is not safe.

Every Percola table is a separate Bigtable table, with a column family for each kind of entry, so
that a kind can be read, and limited to its newest entries, without the others. One more family
(`changes`) lists the entries of a feed. Notify entries are in a second table, named `1-` and the
name of the first, with no other family, so that a scan for them reads nothing else; Percola's own
tables have no observers and no such table. No family has a garbage collection rule: timestamps are
logical, so ages are meaningless, and Percola decides which versions are removed.

This module refuses, with a message that says what to change:

* a table that exists without these families, or with a rule that drops versions;
* an application profile that routes to several clusters, whose replicas lag behind, or that does
  not allow single-row transactions. A profile that this account may not read is not checked:
  Bigtable itself refuses conditional mutations through a wrong one. Nor is any profile in Google's
  emulator, which has none.

Nor is what a quota forbids to look at, if it exists. By default a project may look at tables ten
times a second, and tasks of Spark open all of them in many processes at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.cloud.bigtable_admin_v2 import types

from percola.cells import Kind
from percola.errors import StoreError, UnknownTableError
from percola.store.bigtable.client import INSTANCE_ADMIN, TABLE_ADMIN, Calls
from percola.store.bigtable.filters import CHANGES, FAMILIES, nothing, table_of
from percola.store.bigtable.row_stream import RowStream

NOTIFY_FAMILIES: Final = (FAMILIES[Kind.NOTIFY],)
ROW_FAMILIES: Final = (
    *(name for kind, name in FAMILIES.items() if kind is not Kind.NOTIFY),
    CHANGES,
)

_Table = types.Table.pb()
_AppProfile = types.AppProfile.pb()
_GetTable = types.GetTableRequest.pb()
_CreateTable = types.CreateTableRequest.pb()
_GetAppProfile = types.GetAppProfileRequest.pb()

_Code = grpc.StatusCode
_NOT_SHOWN: Final = (_Code.UNIMPLEMENTED, _Code.PERMISSION_DENIED, _Code.RESOURCE_EXHAUSTED)
_SCHEMA: Final = types.Table.View.SCHEMA_VIEW


def create_table(calls: Calls, name: str) -> bool:
    """Create a table if it does not exist; StoreError if it cannot be used.

    False if it exists and could not be looked at.
    """
    made = [_create_table(calls, *one) for one in tables_of(name).items()]
    return all(made)


def find_table(calls: Calls, name: str) -> None:
    """Raise UnknownTableError if a table does not exist. No quota counts that."""
    for table in tables_of(name):
        _find(calls, table)


def _find(calls: Calls, table: str) -> None:
    # Reads no row, but Bigtable's answer says whether the table exists.
    for _ in RowStream(calls, table, nothing(), keys=[b"\0"]):
        pass


def tables_of(name: str) -> dict[str, Sequence[str]]:
    """Bigtable's tables of a table of Percola's, and the families of each."""
    found: dict[str, Sequence[str]] = {name: ROW_FAMILIES}
    if not name.startswith("@"):
        found[table_of(name, Kind.NOTIFY)] = NOTIFY_FAMILIES
    return found


def _create_table(calls: Calls, name: str, families: Sequence[str]) -> bool:
    try:
        table = _get(calls, name, again=False)
    except grpc.RpcError:
        with contextlib.suppress(UnknownTableError):
            _find(calls, name)
            return False
        table = _get(calls, name)
    table = table or _create(calls, name, families) or _get(calls, name)
    if table is None:
        raise StoreError(f"The table {name!r} of {calls.place} is being deleted: try later.")
    _check(calls, name, table, families)
    return True


def _get(calls: Calls, name: str, *, again: bool = True) -> Any:
    """The table's settings; None if it does not exist.

    Without `again` raises grpc.RpcError if a quota forbids it.
    """
    path = calls.path(name)
    request = _GetTable(name=path, view=_SCHEMA)
    what = f"looking at the table {name!r}"
    try:
        return _ask_admin(calls, "GetTable", request, _Table, "name", path, what, again=again)
    except grpc.RpcError as error:
        if error.code() is _Code.NOT_FOUND:
            return None
        if error.code() is _Code.RESOURCE_EXHAUSTED:
            raise
        raise calls.refusal(error, what) from error


def _create(calls: Calls, name: str, families: Sequence[str]) -> Any:
    """Create the table; return its settings, or None if it has been created meanwhile."""
    path = calls.path(name)
    request = _CreateTable(parent=calls.place.path, table_id=path.rpartition("/")[2])
    for family in families:
        request.table.column_families[family].SetInParent()
    what = f"creating the table {name!r}"
    try:
        _ask_admin(calls, "CreateTable", request, _Table, "parent", calls.place.path, what)
    except grpc.RpcError as error:
        if error.code() is _Code.ALREADY_EXISTS:
            return None
        if error.code() is _Code.NOT_FOUND:
            raise StoreError(
                f"There is no Bigtable instance {calls.place.instance!r} in the project "
                f"{calls.place.project!r}: 'gcloud bigtable instances list' shows those that "
                "there are, 'gcloud bigtable instances create' makes one."
            ) from error
        raise calls.refusal(error, what) from error
    return _get(calls, name)


def _ask_admin(
    calls: Calls,
    method: str,
    request: Any,
    answer: Any,
    key: str,
    resource: str,
    what: str,
    *,
    again: bool = True,
) -> Any:
    routing = f"{key}={quote(resource, safe='')}"
    return calls.ask(TABLE_ADMIN, method, request, answer, routing=routing, what=what, again=again)


def _check(calls: Calls, name: str, table: Any, families: Sequence[str]) -> None:
    known = calls.path(name).rpartition("/")[2]
    cbt = f"cbt -project {calls.place.project} -instance {calls.place.instance}"
    missing = [one for one in families if one not in table.column_families]
    if missing:
        raise StoreError(
            f"The Bigtable table {known!r} has no column family {missing[0]!r}, so it is not one "
            "that Percola made. Use another instance, or add the family: "
            f"'{cbt} createfamily {known} {missing[0]}:never'."
        )
    for family in families:
        rule = table.column_families[family].gc_rule
        if rule.WhichOneof("rule") is not None:
            raise StoreError(
                f"The column family {family!r} of the Bigtable table {known!r} has a garbage "
                "collection rule, which would drop versions that Percola needs. Remove it: "
                f"'{cbt} setgcpolicy {known} {family} never'."
            )


def check_app_profile(calls: Calls) -> None:
    """Raise StoreError if the application profile would make the protocol unsafe."""
    profile = calls.place.app_profile or "default"
    path = f"{calls.place.path}/appProfiles/{profile}"
    what = f"looking at the application profile {profile!r}"
    try:
        found = calls.ask(
            INSTANCE_ADMIN,
            "GetAppProfile",
            _GetAppProfile(name=path),
            _AppProfile,
            routing=f"name={quote(path, safe='')}",
            what=what,
            again=False,
        )
    except grpc.RpcError as error:
        if error.code() in _NOT_SHOWN:
            return
        if error.code() is _Code.NOT_FOUND and not calls.place.app_profile:
            return
        if error.code() is _Code.NOT_FOUND:
            raise StoreError(
                f"{calls.place} has no application profile {profile!r}: 'gcloud bigtable "
                f"app-profiles create {profile} --instance={calls.place.instance} "
                "--route-to=CLUSTER --transactional-writes' makes one."
            ) from error
        raise calls.refusal(error, what) from error
    single = found.WhichOneof("routing_policy") == "single_cluster_routing"
    if not (single and found.single_cluster_routing.allow_transactional_writes):
        wrong = "does not allow single-row transactions" if single else "routes to several clusters"
        raise StoreError(
            f"The application profile {profile!r} of the Bigtable instance "
            f"{calls.place.instance!r} {wrong}; Percola needs one cluster and its transactions. "
            f"Change it: 'gcloud bigtable app-profiles update {profile} "
            f"--instance={calls.place.instance} --route-to=CLUSTER --transactional-writes'; "
            "or name another one: 'bigtable://project/instance?app_profile=NAME'."
        )

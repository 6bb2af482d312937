"""§2.1: with the coprocessor or without it: which way a table in HBase is written.

    with        all conditions of a mutation go to the server (`hbase_writing`)
    without     each row has a state, and clients decide (`hbase_checked_rows`)

Two that write to a table in different ways would not see each other's changes. So a client has no
say in it: the way is a property of the table, read from what it is made of. A table with the family
of states is written without the coprocessor, and must not have it. All tables of a repository are
written in one way, that of Percola's own first table, which whoever made it has chosen:
`coprocessors=forbidden` in the address, or nothing.

HBase itself does not say that coprocessors are forbidden. It makes a table that names one, and
leaves it out. So the endpoint is asked something without an effect before a repository is used.

A table that was made with the coprocessor may be changed over where its servers do not run it. All
its settings change together, and each region has either the old ones or the new ones: where the
old ones hold nobody can write, for the endpoint is not there, and a client that does not know of
the new ones is refused for the same reason.
"""

from __future__ import annotations

from typing import Final

import jpype

from percola.errors import StoreError
from percola.store.hbase.client import Calls, Tries
from percola.store.hbase.errors import Failure
from percola.store.hbase.jvm import JavaObject
from percola.store.hbase.wire import (
    LOCK,
    LOCK_AT,
    STATE,
    Change,
    conditions,
    lock_check,
    mutations,
)

ENDPOINT: Final = "org.apache.hadoop.hbase.coprocessor.MultiRowMutationEndpoint"

OPTION: Final = "coprocessors"
FORBIDDEN: Final = "forbidden"

_COLUMN: Final = b"endpoint"


def is_checked(calls: Calls, table: str) -> bool:
    """Whether a table is written without the coprocessor; asks for its settings if need be.

    Raises StoreError if both ways are open, UnknownTableError if there is no such table.
    """
    known = calls.checked.get(table)
    if known is None:
        admin = calls.client().connection.getAdmin()
        tries = Tries(calls, f"looking at the table {table!r}", table)
        try:
            while known is None:
                try:
                    found = admin.getDescriptor(calls.name(table))
                except jpype.JException as error:
                    tries.failed(error)
                else:
                    known = calls.checked[table] = has_states(calls.place.table(table), found)
        finally:
            admin.close()
    return known


def has_states(name: str, table: JavaObject) -> bool:
    """Whether a table's settings say that its rows have states; StoreError if it has both."""
    if not table.hasColumnFamily(STATE):
        return False
    if table.hasCoprocessor(ENDPOINT):
        raise StoreError(
            f"The HBase table {name!r} has rows with states (the column family "
            f"{STATE.decode()!r}), and it names the coprocessor MultiRowMutationEndpoint: who uses "
            "the one would not see what others do by the other. Take the coprocessor away in "
            f"'hbase shell': alter '{name}', METHOD => 'table_att_unset', NAME => 'coprocessor$1'"
        )
    return True


def endpoint_runs(calls: Calls, table: str) -> bool:
    """Whether the servers have loaded the coprocessor for a table; nothing is written."""
    row = b"\0"
    # No cell has a lock and none.
    never = conditions(row, [lock_check(_COLUMN, 1), lock_check(_COLUMN, None)])
    request = never + mutations(row, [Change(LOCK, _COLUMN, LOCK_AT, b"")])
    tries = Tries(calls, f"asking for the coprocessor of the table {table!r}", table)
    while True:
        try:
            calls.change(table, row, request)
            return True
        except jpype.JException as error:
            if any(one.endswith(".UnknownProtocolException") for one in Failure.of(error).names):
                return False
            tries.failed(error)


def forbidden(calls: Calls, name: str) -> StoreError:
    """That a new repository cannot be written with the coprocessor."""
    return StoreError(
        f"{calls.place} does not run the coprocessor MultiRowMutationEndpoint, which comes with "
        f"HBase and which the table {name!r} names. Where that is an oversight, see that "
        "hbase.coprocessor.enabled and hbase.coprocessor.user.enabled are not false in the "
        "hbase-site.xml of its servers. Where coprocessors are forbidden, add "
        f"{OPTION}={FORBIDDEN} to the repository's address, for all who use it: Percola then does "
        "without, and a write takes two calls."
    )


def otherwise(name: str, *, checked: bool) -> StoreError:
    """That a table is not written in the way of the repository's other tables."""
    if checked:
        return StoreError(
            f"The HBase table {name!r} is one for writing without coprocessors, and the "
            "repository's other tables are written with one. It is not of this repository: name "
            "another namespace in the address."
        )
    return StoreError(
        f"The HBase table {name!r} is written with the coprocessor MultiRowMutationEndpoint, and "
        "the repository's other tables without one. If the repository is being changed over, open "
        f"it with {OPTION}={FORBIDDEN} in the address; else name another namespace."
    )


def running(name: str) -> StoreError:
    """That the address wants to do without a coprocessor that is at work."""
    return StoreError(
        f"The HBase table {name!r} is written with the coprocessor MultiRowMutationEndpoint, which "
        f"its servers run, and the address says {OPTION}={FORBIDDEN}. Leave that out, or name "
        "another namespace. To change this repository over, forbid coprocessors on all servers "
        "first (hbase.coprocessor.user.enabled in hbase-site.xml), so that nobody writes with it "
        "any more."
    )


def change_over(calls: Calls, admin: JavaObject, name: str, descriptor: JavaObject) -> None:
    """Have a table written without its coprocessor, which no server runs.

    Args:
        descriptor: what the table is to be made of from now on.
    """
    tries = Tries(calls, f"changing the settings of the table {name!r}", name)
    while True:
        try:
            admin.modifyTable(descriptor)
            return
        except jpype.JException as error:
            tries.failed(error)

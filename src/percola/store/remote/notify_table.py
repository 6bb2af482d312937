"""§2.1, §2.4: row mutations in steps, on stores with a separate table for notify entries.

If one kind of entry cannot be read without reading all others of its row, a scan for dirty cells
costs as much as the whole table. On such a store (`Store.has_notify_table`; Bigtable) notify
entries are in a separate table, and no mutation is atomic over that table and the row:

    conditions on notify entries   are checked first
    puts of notify entries         precede the row: a superfluous entry only costs a check
    the row                        its other conditions and changes are one mutation, as always
    deletes of notify entries      follow the row, if it was changed

So a refused mutation may leave notify entries, and an interrupted one may leave some that it should
have deleted; but every change of the row has the notify entries that the mutation puts. The
mutations that change both remain safe:

* Dead-lettering puts a `failed` entry and deletes notify entries; a retry does the opposite. If
  interrupted, either leaves both, and the observer checks once more than necessary. If another
  observer has yet to handle the change, the notify entry stays and records that the change is
  dead-lettered for this one, which counts only if the `failed` entry exists
  (`percola.observers.failures`).
* Removing the remains of a deleted cell requires that it has no notify entry
  (`percola.gc.collector`). Its change is below the safe point and had been handled when that
  condition was checked; a later change has a separate write record, which is not removed.

**Commits put only their write records.** The notify entries of a transaction's writes are put once
all its locks are in place and its commit_ts is drawn, before its commit point, as those of weak
notifications are on any store (rule N4). So rule N1 holds whichever client completes the commit,
and also until one does: after the commit point, all entries have been put. A worker that finds an
entry earlier begins above commit_ts, meets the lock, and waits or resolves it as any reader does:
it cannot handle a change that it has not seen. So workers need not search for the locks of dead
clients, which would be a scan of a whole table here (`percola.observers.scanner`).
"""

from __future__ import annotations

from typing import NamedTuple

from percola.cells import Kind
from percola.store.base import Delete, Put, RowMutation


class Steps(NamedTuple):
    """A row mutation in steps; a step without work is None.

    Attributes:
        look: the conditions on notify entries; nothing else is done if they do not hold.
        puts: puts of notify entries, without conditions.
        row: everything in the row itself; None only if there are only notify entries.
        deletes: deletes of notify entries, without conditions.
    """

    look: RowMutation | None
    puts: RowMutation | None
    row: RowMutation | None
    deletes: RowMutation | None


def steps_of(mutation: RowMutation) -> Steps:
    """Split a mutation into its steps; one of notify entries alone is not split."""
    table, row = mutation.table, mutation.row
    ours = [one for one in mutation.conditions if one.kind is Kind.NOTIFY]
    conditions = [one for one in mutation.conditions if one.kind is not Kind.NOTIFY]
    changes = [one for one in mutation.changes if one.kind is not Kind.NOTIFY]
    if not conditions and not changes:
        return Steps(None, mutation, None, None)
    puts = [one for one in mutation.changes if one.kind is Kind.NOTIFY and isinstance(one, Put)]
    gone = [one for one in mutation.changes if one.kind is Kind.NOTIFY and isinstance(one, Delete)]
    return Steps(
        RowMutation(table, row, ours, ()) if ours else None,
        RowMutation(table, row, (), puts) if puts else None,
        RowMutation(table, row, conditions, changes),
        RowMutation(table, row, (), gone) if gone else None,
    )

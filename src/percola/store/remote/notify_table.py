"""§2.1, §2.4: a row mutation in steps, where notify entries stand apart from their rows.

Where one kind of entry cannot be read without passing over all others of its row, a scan for dirty
cells would cost the table. On such a store (`Store.has_notify_table`; Bigtable) notify entries are
in a table of their own, and no mutation is atomic over that and the row:

    conditions on notify entries   are looked at first
    puts of notify entries         come before the row, for an entry too many only costs a look
    the row                        its other conditions and changes: one mutation, as ever
    deletes of notify entries      come after the row, if it was changed

So a mutation that is refused may leave notify entries, and one that breaks off may leave some that
it was to delete; but what it changes in the row never lacks an entry that it was to put. What has
such mixed mutations stays safe with that:

* Dead-lettering puts a `failed` entry and deletes notify entries; retrying does the opposite. Cut
  in two, both leave both: the observer looks once more than it must. Where another observer has
  yet to see the change, the notify entry stays and says that the change is dead-lettered for this
  one; that is believed only where the `failed` entry stands (`percola.observers.failures`).
* Removing what is left of a deleted cell asks for no notify entry of it (`percola.gc.collector`).
  Its change lies below the safe point and was answered when that was asked; a change from now on
  has a write record of its own, which stays.

**Commits put nothing beside their write records.** The entries of what a transaction writes are put
once all its locks are in place and its commit_ts is drawn, before its commit point, as those of
weak notifications are on any store (rule N4). Then rule N1 holds whoever completes the commit, and
also while nobody does: past the commit point, all entries have been put. Whoever finds one sooner
begins above commit_ts, meets the lock, and waits or decides as any reader does: it cannot answer
for a change that it has not seen. So the locks of the dead need not be looked for, a scan of a
whole table here (`percola.observers.scanner`).
"""

from __future__ import annotations

from typing import NamedTuple

from percola.cells import Kind
from percola.store.base import Delete, Put, RowMutation


class Steps(NamedTuple):
    """A row mutation in steps, each of which has something to do or is None.

    Attributes:
        look: conditions on notify entries; nothing else is done if they do not hold.
        puts: of notify entries, without conditions.
        row: all that stands in the row; None only if there is nothing but notify entries.
        deletes: of notify entries, without conditions.
    """

    look: RowMutation | None
    puts: RowMutation | None
    row: RowMutation | None
    deletes: RowMutation | None


def steps_of(mutation: RowMutation) -> Steps:
    """Cut a mutation into its steps; one of notify entries alone is not cut."""
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

"""Mutants of the recipes.

R1  One owner: a contribution's record is read and written with what it changes.
R2  Register, then read: what a key refers to is read in a later transaction.
R3  Runs for one node do not overlap, and an entry is in one node at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from percola.recipes.applied import Applied, Change
from percola.recipes.index import Index
from percola.recipes.tree import Nodes
from percola.testing.simulation import Sizes
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction
from tests.simulation.mutants.mutant import Collection, Seams
from tests.simulation.mutants.notifying import UNHURRIED, let_weak_runs_overlap
from tests.simulation.workloads.recipes import Climbing, Joining, Summing

RECIPES = Collection()


class Duel(Climbing):
    """Few bids for one lot that come and go, and more workers than nodes."""

    name = "duel"
    sizes: ClassVar[Sizes] = {
        "bids": (1, 2),
        "clients": (2, 3),
        "lots": (1, 1),
        "turns": (8, 16),
        "workers": (2, 3),
    }
    pause = 0.05


@RECIPES.mutant("records-a-contribution-first", "R1", Summing)
def records_a_contribution_first(seams: Seams) -> None:
    """What a row contributes is recorded in a transaction of its own, before the sums change: a
    crash or a conflict in between loses the contribution."""

    @seams.replaces(Applied, "record")
    def record(original: Any, self: Applied[Any], t: Transaction, *what: Any) -> None:
        with Transaction(t._context) as first:
            original(self, first, *what)


@RECIPES.mutant("reads-the-record-apart", "R1", Summing)
def reads_the_record_apart(seams: Seams) -> None:
    """The record of what a row contributed is read from a snapshot before the transaction's, and
    written so that nothing conflicts: two runs take the same contribution back."""

    @seams.replaces(Applied, "changes")
    def changes(
        original: Any, self: Applied[Any], t: Transaction, row: Any, now: Mapping[str, Any]
    ) -> list[Change]:
        before = Snapshot(t._context, max(0, t.start_ts - 3)).get(self.column, row) or {}
        return [
            Change(key, before.get(key), now.get(key))
            for key in sorted(before.keys() | now.keys())
            if before.get(key) != now.get(key)
        ]


@RECIPES.mutant("reads-while-registering", "R2", Joining)
def reads_while_registering(seams: Seams) -> None:
    """A line registers its product and reads the price in one transaction, and is notified only
    by the product: a price that changes at the same time finds no line, and is not read."""

    @seams.replaces(Index, "register")
    def register(original: Any, self: Index, t: Transaction, row: str, keys: Any) -> bool:
        class Silent:
            """The transaction, without notifications."""

            def __getattr__(self, name: str) -> Any:
                return getattr(t, name)

            def notify(self, *args: Any) -> None:
                return

        changed = bool(original(self, Silent(), row, keys))
        Joining.join(t, row)
        return changed


@RECIPES.mutant("tells-the-first-owners-only", "R2", Joining)
def tells_the_first_owners_only(seams: Seams) -> None:
    """Of the rows that have a key, only as many are notified as one transaction notifies."""

    @seams.replaces(Transaction, "notify")
    def notify(original: Any, self: Transaction, column: Any, row: Any) -> None:
        if column.name != "tell" or "/" not in row:
            original(self, column, row)


@RECIPES.mutant("runs-for-a-node-overlap", "R3", Duel, kinds=UNHURRIED)
def runs_for_a_node_overlap(seams: Seams) -> None:
    """Runs for one node do not conflict: one that has not seen an entry may undo what one that has
    seen it has computed."""
    let_weak_runs_overlap(seams)


@RECIPES.mutant("leaves-entries-above", "R3", Climbing)
def leaves_entries_above(seams: Seams) -> None:
    """A contributor does not look for its entry in nodes that are split: one that was written
    while its node was split is moved down over a newer one, or comes back."""

    @seams.replaces(Nodes, "enter")
    def enter(
        original: Any, self: Nodes, t: Transaction, root: str, owner: str, before: Any, value: Any
    ) -> None:
        entry = self.entry[owner]
        for node in self.path(root, owner):
            if t.get(self.split, node):
                continue
            if value is not None:
                t.set(entry, node, value)
            else:
                t.delete(entry, node)
            t.notify(self.due, node)
            return


@RECIPES.mutant("splits-in-silence", "R3", Climbing)
def splits_in_silence(seams: Seams) -> None:
    """A contributor that splits a node does not notify it: if what it enters below is withdrawn
    before that node runs, the node above stays split for ever."""
    silent: set[str] = set()

    @seams.replaces(Nodes, "_has_filled")
    def has_filled(original: Any, self: Nodes, node: str) -> bool:
        if not original(self, node):
            return False
        silent.add(node)
        return True

    @seams.replaces(Transaction, "notify")
    def notify(original: Any, self: Transaction, column: Any, row: Any) -> None:
        if row in silent:
            silent.discard(row)
        else:
            original(self, column, row)


@RECIPES.mutant("folds-without-deleting", "R1", Summing)
def folds_without_deleting(seams: Seams) -> None:
    """A fold adds the parts of a sum and leaves them: they are added again."""

    @seams.replaces(Transaction, "_delete")
    def delete(original: Any, self: Transaction, column: Any, row: Any) -> None:
        if not column.name.startswith("part:"):
            original(self, column, row)

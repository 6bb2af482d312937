"""Maxima, minima, top lists and other aggregates that cannot be taken back, by group.

    best['shoes']       value      [90, "o17"]   the aggregate of all contributions
                        split      1             this node has nodes below it
                        sub:3a     [90, "o17"]   the aggregate of the node 3a
                        guard      4711          when the node was last computed
                        due                      weak: something below has changed
    best['shoes/3a']    entry:ID   [90, "o17"]   a contribution, ID being a hash of its owner
                        guard      4705

A maximum that is withdrawn is found again only among what is left. So contributions are the entries
of a tree of nodes: a change writes one entry and notifies its node, and the run of a node computes
its aggregate from its own entries and its nodes, at most `FAN_OUT` of each, and enters it in the
node above. A change costs a run a level, and ends where the aggregate does not change. A node with
too many entries is split by the next digit of their IDs.

Contributors write entries without reading those of others, so they do not conflict. Two runs of one
node do: each writes the node's guard, and the one that has not seen the other's entries fails.

An entry is in one node at a time. A contributor looks for its entry in every node on its path, and
writes to the first that is not split. If a split commits at the same time, the entry stays in a
node that is split, and the next run of that node moves it down. Both write or delete the cell of
the entry if there was one before, so they cannot both commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Generic

from percola.observers.observer import Observer, observer
from percola.recipes.applied import VALUES, Applied
from percola.recipes.keys import part
from percola.schema import Column, Family, R, Table, WeakColumn
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

FAN_OUT: Final = 64
MOST_ENTRIES: Final = 128
"""A node with more entries is split."""

_LEVELS: Final = 8
"""Nodes below the root on one path at most; 64^8 owners would fill them."""
_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class Monoid:
    """How two aggregates become one. Must be associative and commutative.

    Attributes:
        name: for messages.
        combine: takes two contributions or aggregates, and returns their aggregate. They are
            what JSON can hold, and Decimals; tuples come back as lists.
        prepare: makes an aggregate of a single contribution; by default they are the same.
    """

    name: str
    combine: Callable[[Any, Any], Any]
    prepare: Callable[[Any], Any] = lambda contribution: contribution


MAX: Final = Monoid("max", max)
"""The largest contribution. Lists compare item by item: [value, owner] tells whose it is."""

MIN: Final = Monoid("min", min)
"""The smallest contribution."""

COUNTER: Final = Monoid(
    "counter",
    lambda left, right: {
        key: left.get(key, 0) + right.get(key, 0) for key in sorted(left.keys() | right.keys())
    },
)
"""Counts by key, as of a histogram: {"red": 3, "blue": 1}."""


def top(most: int) -> Monoid:
    """The `most` largest of all items. Contributions are lists of items."""

    def best(items: Iterable[Any]) -> list[Any]:
        return sorted(items, reverse=True)[:most]

    return Monoid(f"top {most}", lambda left, right: best((*left, *right)), best)


class Tree(Generic[R]):
    """An aggregate of all contributions to a group, by any commutative monoid.

    Args:
        name: of the derived table, which this declares.
        source: the table whose rows contribute, of which this declares the column `applied.NAME`.
        monoid: how contributions are combined.

    Attributes:
        value: the column with the aggregate of a group, in the row `key(group)`.
        tables: what the schema must contain besides the source.
        observers: what a worker must run.
    """

    def __init__(self, name: str, source: Table[R], monoid: Monoid, *, feed: bool = False) -> None:
        self.table: Final[Table[str]] = Table(name, feed=feed)
        self.monoid: Final = monoid
        self.value: Final[Column[str, Any]] = self.table.column("value", VALUES)
        self._split: Column[str, int] = self.table.column("split", int)
        self._guard: Column[str, int] = self.table.column("guard", int)
        self._entry: Family[str, Any] = self.table.family("entry", VALUES)
        self._sub: Family[str, Any] = self.table.family("sub", VALUES)
        self._due: WeakColumn[str] = self.table.weak_column("due")
        self.applied: Final[Applied[R]] = Applied(source, name)
        self.tables: Final[Sequence[Table[Any]]] = (self.table,)
        self.observers: Final[Sequence[Observer[Any]]] = (
            observer(self._due, name=f"{name}.node", batch=_BATCH)(self._compute),
        )

    # --- Contributing -------------------------------------------------------------------

    def contribute(self, t: Transaction, row: R, now: Mapping[str, Any]) -> bool:
        """Let a row contribute these values, by group, instead of what it contributed before.

        Returns whether anything changed.
        """
        changes = self.applied.diff(t, row, now)
        owner = _digits(self.applied.source.encode_row(row))
        for group, _, value in changes:
            prepared = None if value is None else self.monoid.prepare(value)
            self._enter(t, part(group), owner, prepared)
        return bool(changes)

    def _enter(self, t: Transaction, root: str, owner: str, value: Any) -> None:
        """Write the entry of an owner, or delete it, wherever it is."""
        entry = self._entry[owner]
        path = _path(root, owner)
        placed = value is None
        # Most trees are one level high or two: the nodes are read in steps.
        for node in path:
            split, found = t.get(self._split, node), t.get(entry, node)
            if not split and not placed:
                t.set(entry, node, value)
                t.notify(self._due, node)
                return
            if found is not None:
                t.delete(entry, node)
                t.notify(self._due, node)
            if not split:
                return

    # --- Nodes --------------------------------------------------------------------------

    def _compute(self, t: Transaction, node: str) -> None:
        """Compute the aggregate of a node, and enter it above; the run of the column `due`."""
        row = t.get_row(self.table, node)
        entries: dict[str, Any] = row.family(self._entry)
        subs: dict[str, Any] = row.family(self._sub)
        split = self._split in row
        aggregate = self._combine([*entries.values(), *subs.values()])
        too_many = len(entries) > MOST_ENTRIES and node.count(_SEPARATOR) < _LEVELS
        if split or too_many:
            self._move_down(t, node, entries, subs)
            split = True
        if aggregate is None and not split:
            t.delete(self._guard, node)
        else:
            t.set(self._guard, node, t.start_ts)
        above, _, digit = node.rpartition(_SEPARATOR)
        if not above:
            _put(t, self.value, node, row.get(self.value), aggregate)
            return
        column = self._sub[digit]
        if _put(t, column, above, t.get(column, above), aggregate):
            t.notify(self._due, above)

    def _move_down(
        self, t: Transaction, node: str, entries: Mapping[str, Any], subs: Mapping[str, Any]
    ) -> None:
        """Move a node's entries to the nodes below it, without a change of its aggregate."""
        t.set(self._split, node, 1)
        depth = node.count(_SEPARATOR)
        moved: dict[str, list[Any]] = {}
        for owner, value in entries.items():
            digit = _digit(owner, depth)
            below = f"{node}{_SEPARATOR}{digit}"
            t.delete(self._entry[owner], node)
            t.set(self._entry[owner], below, value)
            t.notify(self._due, below)
            moved.setdefault(digit, []).append(value)
        for digit, values in moved.items():
            if digit in subs:
                values.append(subs[digit])
            t.set(self._sub[digit], node, self._combine(values))

    def _combine(self, values: Sequence[Any]) -> Any:
        return reduce(self.monoid.combine, values) if values else None

    # --- Reading ------------------------------------------------------------------------

    @staticmethod
    def key(group: str) -> str:
        """The row of a group's aggregate."""
        return part(group)

    def get(self, now: Snapshot, group: str) -> Any:
        """The aggregate of a group as of the snapshot; None if nothing contributes to it."""
        return now.get(self.value, part(group))

    # --- Checking -----------------------------------------------------------------------

    def check(self, now: Snapshot) -> Iterator[str]:
        """Recompute every group from the `applied` records; yield what differs, in sentences.

        Compares the aggregates when nothing is pending: what has not been computed yet differs.
        """
        expected: dict[str, Any] = {}
        for _, group, value in self.applied.all(now):
            key = part(group)
            value = self.monoid.prepare(value)
            if key in expected:
                value = self.monoid.combine(expected[key], value)
            expected[key] = value
        for row in now.scan(self.table, columns=[self.value]):
            value = expected.pop(row.key, None)
            if VALUES.encode(row[self.value]) != VALUES.encode(value):
                yield (
                    f"{self.table.name}[{row.key!r}] has the value {row[self.value]!r}; its "
                    f"{self.monoid.name} is {value!r}."
                )
        for key, value in expected.items():
            yield f"{self.table.name}[{key!r}] is missing; its {self.monoid.name} is {value!r}."


_SEPARATOR: Final = "/"


def _digits(row: bytes) -> str:
    """The ID of an owner: a hash, read two characters a digit."""
    return hashlib.blake2b(row, digest_size=16).hexdigest()


def _digit(owner: str, depth: int) -> str:
    """The digit that selects the node below one at this depth, the root's being 0."""
    return f"{int(owner[2 * depth : 2 * depth + 2], 16) % FAN_OUT:02x}"


def _path(root: str, owner: str) -> Iterator[str]:
    """The nodes in which the entry of an owner may be, from the root down."""
    node = root
    for depth in range(_LEVELS):
        yield node
        node = f"{node}{_SEPARATOR}{_digit(owner, depth)}"
    yield node


def _put(t: Transaction, column: Column[str, Any], row: str, before: Any, now: Any) -> bool:
    """Write a cell unless it has that value already; return whether it was written."""
    if before is None and now is None:
        return False
    if now is None:
        t.delete(column, row)
    elif before is not None and VALUES.encode(before) == VALUES.encode(now):
        return False
    else:
        t.set(column, row, now)
    return True

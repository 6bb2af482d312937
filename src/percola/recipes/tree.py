"""Maxima, minima, top lists and other aggregates that cannot be taken back, by group.

    best['shoes']       value      [90, "o17"]   the aggregate of all contributions
                        split      1             this node has nodes below it
                        sub:3a     [90, "o17"]   the aggregate of the node 3a
                        due                      weak: something below has changed
    best['shoes/3a']    entry:ID   [90, "o17"]   a contribution, ID being a hash of its owner

A maximum that is withdrawn is found again only among what is left. So contributions are the entries
of a tree of nodes: a change writes one entry and notifies its node, and the run of a node computes
its aggregate from its own entries and its nodes, at most `FAN_OUT` of each, and enters it in the
node above. A change costs a run a level, and ends where the aggregate does not change. A node with
too many entries is split by the next digit of their IDs.

Contributors write entries without reading those of others, so they do not conflict. Two runs of one
node that overlap do, as runs of any observer for one row: the one that has not seen the other's
entries fails.

An entry is in one node at a time. A contributor looks for its entry in the nodes on its path until
it has found it, and writes to the first that is not split. If a split commits at the same time, the
entry stays in a node that is split, and the next run of that node moves it down. Both write or
delete the cell of the entry if there was one before, so they cannot both commit.

A node is split as long as there are nodes below it: the run that finds none removes the cell. If a
contributor that still saw it commits a new entry below at the same time, that node is entered above
by its run, and the next run of the node above splits it again. Until then the entry's contributor
passes the node above, where its entry is not, and finds it below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Final, Generic

from percola.codecs import Codec
from percola.errors import SchemaError, WrongTypeError
from percola.observers.observer import observer
from percola.recipes.applied import VALUES, Applied
from percola.recipes.comparing import Claim, Comparison, Recipe, Scan
from percola.recipes.keys import listed, part
from percola.recipes.sums import plus
from percola.schema import Column, Family, R, Table, WeakColumn
from percola.transactions.row import Row
from percola.transactions.snapshot import Snapshot
from percola.transactions.transaction import Transaction

FAN_OUT: Final = 64
MOST_ENTRIES: Final = 128
"""A node with more entries is split."""

_LEVELS: Final = 8
"""Nodes below the root on one path at most; 64^8 owners would fill them."""
_BATCH: Final = 32
_REMEMBERED: Final = 10_000
"""Nodes of which a process remembers how many entries it has added."""

_GROUP, _ENTRY, _NODE = "group", "entry", "node"
"""Kinds of keys that are compared."""


@dataclass(frozen=True, slots=True)
class Monoid:
    """How two aggregates become one. Must be associative and commutative.

    Attributes:
        name: for messages.
        combine: takes two contributions or aggregates, and returns their aggregate. They are
            what JSON can hold, and Decimals; tuples come back as lists.
        prepare: makes an aggregate of a single contribution; by default they are the same. What it
            raises refuses the contribution.
        combine_all: does what `combine` does, for many aggregates at once; by default `combine` is
            called for one after the other.
    """

    name: str
    combine: Callable[[Any, Any], Any]
    prepare: Callable[[Any], Any] = lambda contribution: contribution
    combine_all: Callable[[Sequence[Any]], Any] | None = None

    def aggregate(self, values: Sequence[Any]) -> Any:
        """The aggregate of some aggregates; None if there are none."""
        if not values:
            return None
        try:
            if self.combine_all is not None:
                return self.combine_all(values)
            return reduce(self.combine, values)
        except TypeError:
            self._name_culprits(values)
            raise

    def _name_culprits(self, values: Sequence[Any]) -> None:
        """Raise a WrongTypeError with the first two that cannot be combined, if there are two."""
        total = values[0]
        for one in values[1:]:
            try:
                combined = self.combine(total, one)
            except TypeError as error:
                raise WrongTypeError(
                    f"Rows contribute {total!r:.200} and {one!r:.200} to one group, and "
                    f"{self.name} of these is an error ({error}): the group waits until one of "
                    "them contributes something else."
                ) from error
            total = combined


MAX: Final = Monoid("max", max)
"""The largest contribution. Lists compare item by item: [value, owner] tells whose it is."""

MIN: Final = Monoid("min", min)
"""The smallest contribution."""


def _count(counters: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for counter in counters:
        for key, number in counter.items():
            total[key] = plus(total.get(key, 0), number)
    return dict(sorted(total.items()))


def _counter(contribution: Any) -> Any:
    if not isinstance(contribution, Mapping) or not all(
        isinstance(number, int | float | Decimal) for number in contribution.values()
    ):
        raise _refused("counter", 'a dictionary of numbers such as {"red": 3}', contribution)
    return contribution


def _refused(monoid: str, wanted: str, given: object) -> WrongTypeError:
    return WrongTypeError(
        f"A row contributes to a {monoid} {wanted}, but this is {type(given).__name__} {given!r}."
    )


COUNTER: Final = Monoid(
    "counter", lambda left, right: _count([left, right]), _counter, combine_all=_count
)
"""Counts by key, as of a histogram: {"red": 3, "blue": 1}."""


def top(most: int) -> Monoid:
    """The `most` largest of all items. Contributions are lists of items."""
    if type(most) is not int or most < 1:
        raise SchemaError(f"A top list has at least one item, and not {most!r}.")

    def best(items: Iterable[Any]) -> list[Any]:
        return sorted(items, reverse=True)[:most]

    def prepare(items: Any) -> list[Any]:
        if not isinstance(items, list):
            raise _refused(name, "a list of items, also if it is one", items)
        try:
            return best(items)
        except TypeError:
            raise _refused(name, "a list of items that can be compared", items) from None

    name = f"top {most}"
    return Monoid(name, lambda left, right: best((*left, *right)), prepare)


class Nodes:
    """The nodes of trees, for owners that keep a record of their own of what they contribute.

    `Tree` is these and `Applied`. Use `Nodes` where such a record is there already, or where more
    than an aggregate follows from the root: the observer of `due` is the caller's, and calls
    `compute`. Whoever enters a value must have read and must write, in the same transaction,
    a cell that all transactions write that enter a value of this owner.

    Args:
        table: the table of the nodes, in which this declares the columns above, but for `value`.
        monoid: how entries are combined.
        due: the weak column that is notified for a node that has to be computed.
        entry: the name of the family of entries.
        separator: what separates the name of a root from the digits of the nodes below it, and
            these from each other. Names of roots must not contain it.
        codec: of entries and aggregates.

    Attributes:
        entry: the entries, by the owners' IDs.
    """

    def __init__(
        self,
        table: Table[str],
        monoid: Monoid,
        due: WeakColumn[str],
        *,
        entry: str = "entry",
        separator: str = "/",
        codec: Codec[Any] = VALUES,
    ) -> None:
        if not isinstance(monoid, Monoid):
            raise SchemaError(
                f"The aggregates of {table.name!r} are of {monoid!r}, which is no Monoid: use MAX, "
                "MIN, COUNTER, top(10) or a Monoid of your own."
            )
        self.table: Final = table
        self.monoid: Final = monoid
        self.separator: Final = separator
        self.due: Final = due
        self.split: Final[Column[str, int]] = table.column("split", int)
        self.entry: Final[Family[str, Any]] = table.family(entry, codec)
        self.sub: Final[Family[str, Any]] = table.family("sub", codec)
        # How many entries this process has lately added to nodes that were not split.
        self._entered: dict[str, int] = {}

    # --- Names --------------------------------------------------------------------------

    def root_of(self, node: str) -> str:
        """The root of the tree that a node belongs to."""
        return node.partition(self.separator)[0]

    def depth(self, node: str) -> int:
        """How many nodes are above this one."""
        return node.count(self.separator)

    def path(self, root: str, owner: str) -> Iterator[str]:
        """The nodes in which the entry of an owner may be, from the root down."""
        node = root
        for depth in range(_LEVELS):
            yield node
            node = self._below(node, owner, depth)
        yield node

    def _below(self, node: str, owner: str, depth: int) -> str:
        return f"{node}{self.separator}{_digit(owner, depth)}"

    # --- Entries ------------------------------------------------------------------------

    def enter(self, t: Transaction, root: str, owner: str, before: Any, now: Any) -> None:
        """Write the entry of an owner in place of the one that it has, wherever that is.

        Args:
            root: the tree.
            owner: an ID of hex digits that is a hash: entries are divided by its first digits.
            before: its entry as the record says; None: it has none.
            now: its entry from now on; None: none.
        """
        entry = self.entry[owner]
        sought, placed = before is not None, now is None
        depth = 0
        # Most trees are one level high or two: the nodes are read in steps.
        for node in self.path(root, owner):
            cells: list[Any] = [(self.split, node), (entry, node)]
            split, there = [*t.get_many(cells if sought else cells[:1]), None][:2]
            here = not (placed or split)
            fills = here and depth < _LEVELS and there is None and self._has_filled(node)
            if fills:
                t.set(self.split, node, 1)
            elif here:
                t.set(entry, node, now)
            if there is not None and not here:
                t.delete(entry, node)
                self._entered.pop(node, None)
            if here or there is not None:
                t.notify(self.due, node)
            here, depth = here and not fills, depth + 1
            placed, sought = placed or here, sought and there is None
            if placed and not sought:
                return

    def _has_filled(self, node: str) -> bool:
        """Whether this process has entered so many in a node that another one would split it.

        It is a guess: some may be gone, and others' are not known. The node's run knows.
        """
        entered = self._entered.get(node, 0)
        if entered >= MOST_ENTRIES:
            self._entered.pop(node, None)
            return True
        if len(self._entered) >= _REMEMBERED:
            self._entered.clear()
        self._entered[node] = entered + 1
        return False

    def entries(self, now: Snapshot, root: str) -> Iterator[tuple[str, Any]]:
        """The entries of a tree, by owner; read node by node."""
        yield from now.get_row(self.table, root, [self.entry]).family(self.entry).items()
        if now.get(self.split, root):
            prefix = f"{root}{self.separator}"
            for row in now.scan(self.table, prefix=prefix, columns=[self.entry]):
                yield from row.family(self.entry).items()

    # --- Nodes --------------------------------------------------------------------------

    def compute(self, t: Transaction, node: str) -> Any:
        """Compute the aggregate of a node, enter it above, and return it; None if it is empty.

        Call it from the observer of `due` only: two runs for one node that overlap conflict.
        """
        row = t.get_row(self.table, node, [self.split, self.entry, self.sub])
        entries: dict[str, Any] = row.family(self.entry)
        subs: dict[str, Any] = row.family(self.sub)
        split = self.split in row
        aggregate = self.aggregate(entries.values(), subs.values())
        if subs or (len(entries) > MOST_ENTRIES and self.depth(node) < _LEVELS):
            self._move_down(t, node, entries, subs, split=split)
        elif split:
            t.delete(self.split, node)
        above, _, digit = node.rpartition(self.separator)
        if above:
            column = self.sub[digit]
            if _put(t, column, above, t.get(column, above), aggregate):
                t.notify(self.due, above)
        return aggregate

    def aggregate(self, entries: Iterable[Any], subs: Iterable[Any]) -> Any:
        """The aggregate of a node with these entries and nodes below it; None if it is empty."""
        return self.monoid.aggregate([*map(self.monoid.prepare, entries), *subs])

    def _move_down(
        self,
        t: Transaction,
        node: str,
        entries: Mapping[str, Any],
        subs: Mapping[str, Any],
        *,
        split: bool,
    ) -> None:
        """Move a node's entries to the nodes below it, without a change of its aggregate."""
        if not split:
            t.set(self.split, node, 1)
        depth = self.depth(node)
        moved: dict[str, list[Any]] = {}
        for owner, value in entries.items():
            below = self._below(node, owner, depth)
            t.delete(self.entry[owner], node)
            t.set(self.entry[owner], below, value)
            t.notify(self.due, below)
            moved.setdefault(_digit(owner, depth), []).append(value)
        for digit, values in moved.items():
            before = [subs[digit]] if digit in subs else []
            t.set(self.sub[digit], node, self.aggregate(values, before))

    def built(
        self, root: str, entries: Mapping[str, Any]
    ) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """The nodes of a tree with these entries, for bulk writes.

        Yields each node's row, its entries by owner, and the aggregates of the nodes below it by
        digit; a node that has any is split. A node comes after those below it.
        """
        if len(entries) <= MOST_ENTRIES or self.depth(root) >= _LEVELS:
            yield root, entries, {}
            return
        depth = self.depth(root)
        parts: dict[str, dict[str, Any]] = {}
        for owner, value in entries.items():
            parts.setdefault(_digit(owner, depth), {})[owner] = value
        subs: dict[str, Any] = {}
        for digit, part_ in sorted(parts.items()):
            for node, own, below in self.built(f"{root}{self.separator}{digit}", part_):
                yield node, own, below
                if self.depth(node) == depth + 1:
                    subs[digit] = self.aggregate(own.values(), below.values())
        yield root, {}, subs


class Tree(Recipe, Generic[R]):
    """An aggregate of all contributions to a group, by any commutative monoid.

    Args:
        name: of the derived table, which this declares.
        source: the table whose rows contribute, of which this declares the column `applied.NAME`.
        monoid: how contributions are combined.
        feed: whether changes of the derived table can be followed.
        observed: whether `value` is an observed column: an observer of it runs for the row
            `key(group)` when the aggregate of a group has changed, reads it by `t.get(value, row)`,
            and may contribute for that row to another recipe, whose source is `table`.

    Attributes:
        table: the derived table.
        value: the column with the aggregate of a group, in the row `key(group)`.
        tables: what the schema must contain besides the source.
        observers: what a worker must run.
    """

    def __init__(
        self,
        name: str,
        source: Table[R],
        monoid: Monoid,
        *,
        feed: bool = False,
        observed: bool = False,
    ) -> None:
        self.table: Final[Table[str]] = Table(name, feed=feed)
        self.monoid: Final = monoid
        self.value: Final[Column[str, Any]] = self.table.column("value", VALUES, observed=observed)
        self._nodes: Final = Nodes(self.table, monoid, self.table.weak_column("due"))
        self.applied: Final[Applied[R]] = Applied(source, name)
        self.tables = (self.table,)
        self.observers = (
            observer(self._nodes.due, name=f"{name}.node", batch=_BATCH)(self._compute),
        )

    # --- Contributing -------------------------------------------------------------------

    def contribute(self, t: Transaction, row: R, now: Mapping[str, Any]) -> bool:
        """Let a row contribute these values, by group, instead of what it contributed before.

        Returns whether anything changed. Raises WrongTypeError for what is no contribution to a
        counter or a top list, and what `prepare` of a monoid of your own raises.
        """
        changes = self.applied.changes(t, row, now)
        for _, _, value in changes:
            if value is not None:
                # As it will be read. Else the group's run would fail, later and elsewhere.
                self.monoid.prepare(VALUES.decode(VALUES.encode(value)))
        self.applied.record(t, row, now, changes)
        owner = _digits(self.applied.source.encode_row(row))
        for group, before, value in changes:
            self._nodes.enter(t, part(group), owner, before, value)
        return bool(changes)

    def _compute(self, t: Transaction, node: str) -> None:
        """Compute a node; the run of the weak column `due`."""
        aggregate = self._nodes.compute(t, node)
        if not self._nodes.depth(node):
            _put(t, self.value, node, t.get(self.value, node), aggregate)

    # --- Reading ------------------------------------------------------------------------

    @staticmethod
    def key(group: str) -> str:
        """The row of a group's aggregate: the group, with '/' as '%2F', '%', '~' and NUL likewise.

        `urllib.parse.unquote` undoes that, but for groups of more than 96 bytes, which are cut.
        """
        return part(group)

    def get(self, now: Snapshot, group: str) -> Any:
        """The aggregate of a group as of the snapshot; None if nothing contributes to it."""
        return now.get(self.value, part(group))

    def get_many(self, now: Snapshot, groups: Iterable[str]) -> list[Any]:
        """The aggregates of many groups, each as `get` finds it, in one store call (§2.5)."""
        return now.get_many((self.value, part(group)) for group in listed(groups))

    # --- Checking -----------------------------------------------------------------------

    def comparisons(self) -> Sequence[Comparison]:
        """How trees are recomputed from the `applied` records; see `percola.recipes.check`.

        Compares the aggregates of groups with all contributions, the entries with the contributions
        one by one, and what each node has of the nodes below it with what these have. All of them
        when nothing is pending: what has not been computed yet differs.
        """
        scans = [
            Scan(self.table, (self.value, self._nodes.entry, self._nodes.sub), self._found),
            self.applied.scan(self._contributed),
        ]
        return [Comparison(self.table.name, scans, self._combined, self._judge)]

    def _found(self, row: Row[str]) -> Iterator[Claim]:
        nodes, node = self._nodes, row.key
        root, inner = nodes.root_of(node), nodes.depth(node) > 0
        if self.value in row:
            yield Claim(node, found=row[self.value], kind=_GROUP)
        for owner, value in row.family(nodes.entry).items():
            yield Claim(f"{root}/{owner}", found=[(value, node)], kind=_ENTRY)
            if inner:
                yield Claim(node, self.monoid.prepare(value), kind=_NODE)
        for digit, value in row.family(nodes.sub).items():
            yield Claim(f"{node}/{digit}", found=value, kind=_NODE)
            if inner:
                yield Claim(node, value, kind=_NODE)

    def _contributed(self, row: R, group: str, value: Any) -> Iterator[Claim]:
        root, owner = part(group), _digits(self.applied.source.encode_row(row))
        yield Claim(root, self.monoid.prepare(value), kind=_GROUP)
        yield Claim(f"{root}/{owner}", [(value, row)], kind=_ENTRY)

    def _combined(self, kind: str, left: Any, right: Any) -> Any:
        if kind == _ENTRY:
            return left + right
        try:
            return self.monoid.combine(left, right)
        except Exception as error:
            raise WrongTypeError(
                f"The tree {self.table.name!r} cannot be checked: rows contribute {left!r} and "
                f"{right!r} to one group, and {self.monoid.name} of these is an error ({error}). "
                "'percola failed' shows the groups that wait for other contributions."
            ) from error

    def _judge(self, kind: str, name: str, expected: Any, found: Any) -> Iterator[str]:
        table = self.table.name
        if kind == _ENTRY:
            yield from self._judge_entry(name, expected or [], found or [])
        elif expected == found or VALUES.encode(expected) == VALUES.encode(found):
            return  # Of equal contributions, such as 1 and 1.0, either is the largest.
        elif kind == _NODE:
            above, _, digit = name.rpartition("/")
            yield (
                f"{table}[{above!r}] has {found!r} of its node {digit}, whose {self.monoid.name} "
                f"is {expected!r}."
            )
        elif found is None:
            yield f"{table}[{name!r}] is missing; its {self.monoid.name} is {expected!r}."
        else:
            yield (
                f"{table}[{name!r}] has the value {found!r}; its {self.monoid.name} is "
                f"{expected!r}."
            )

    def _judge_entry(
        self, name: str, expected: Sequence[tuple[Any, R]], found: Sequence[tuple[Any, str]]
    ) -> Iterator[str]:
        table, (root, owner) = self.table.name, name.split("/")
        if not expected:
            for value, node in found:
                yield f"{table}[{node!r}] has the entry {value!r} of no row."
            return
        [(wanted, row)] = expected
        if len(found) != 1:
            number = len(found) or "no"
            yield f"{table}[{root!r}] has {number} entries of the row {row!r}; it should have one."
        for value, node in found:
            if VALUES.encode(value) != VALUES.encode(wanted):
                yield (
                    f"{table}[{node!r}] has the entry {value!r} of the row {row!r}; it should be "
                    f"{wanted!r}."
                )
            if node not in self._nodes.path(root, owner):
                yield f"{table}[{node!r}] has the entry of the row {row!r}, of another node."


def _digits(row: bytes) -> str:
    """The ID of an owner: a hash, read two characters a digit."""
    return hashlib.blake2b(row, digest_size=16).hexdigest()


def _digit(owner: str, depth: int) -> str:
    """The digit that selects the node below one at this depth, the root's being 0."""
    return f"{int(owner[2 * depth : 2 * depth + 2], 16) % FAN_OUT:02x}"


def _put(t: Transaction, column: Column[str, Any], row: str, before: Any, now: Any) -> bool:
    """Write a cell unless it has that value already; return whether it was written."""
    if before is None and now is None:
        return False
    if now is None:
        t.delete(column, row)
    elif before == now and column.encode_value(before) == column.encode_value(now):
        return False
    else:
        t.set(column, row, now)
    return True

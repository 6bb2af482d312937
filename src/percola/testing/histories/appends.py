"""Checks a history for snapshot isolation without using its timestamps.

Values are lists that only grow, and no element is appended to a key twice. A list that was read
then shows the order in which its elements were appended, and so the order of transactions:

    T1 ww T2    T2 appended right after T1
    T1 wr T2    T2 read a list that ends with what T1 appended
    T1 rw T2    T1 read a list to which T2 appended next: T1 did not see T2
    T1 … T2     T1 was over before T2 began (real time), or both are of one process

Snapshot isolation gives each transaction a start and a commit after it. A ww, wr or time edge
says that T1's commit is no later than T2's start, an rw edge that T1's start is before T2's
commit. So a history breaks snapshot isolation if and only if this order of starts and commits
has a cycle; two rw edges in a row (write skew) make none.

    G0         a cycle of ww edges                        G-single   one rw edge in it
    G1c        of ww and wr edges                         long fork  several, none after another

This follows Adya's theses and the idea of Elle (Kingsbury, Alvaro, VLDB 2020).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from percola.testing.histories.cycles import Cycles, Edge
from percola.testing.histories.records import Outcome, Recorded, without_collection
from percola.testing.histories.violations import (
    DIRTY_READ,
    FROM_NOWHERE,
    INCOMPATIBLE_ORDERS,
    INTERMEDIATE_READ,
    LOST_UPDATE,
    OWN_WRITE_UNSEEN,
    Violation,
    name,
    show,
)

LIMIT: Final = 20


def check_appends(
    history: Iterable[Recorded], *, real_time: bool = True, limit: int = LIMIT
) -> list[Violation]:
    """The violations of snapshot isolation in a history of appends, in order of discovery.

    Each value read or written is a list, or None for an empty one. With `real_time` a
    transaction must see what was acknowledged before it began (strong snapshot isolation);
    without, only the order within a process counts. Transactions of unknown outcome count as
    committed if an element of theirs was read. Near-linear in what was read.
    """
    with without_collection():
        appends = _Appends(list(history), real_time)
        return list(dict.fromkeys(appends.run(limit)))[:limit]


class _Appends:
    def __init__(self, records: list[Recorded], real_time: bool) -> None:
        self._records = records
        self._real_time = real_time
        # Per key: the writer of each element; the elements that their own writer overwrote.
        self._writers: dict[str, dict[object, Recorded]] = {}
        self._intermediate: dict[str, set[object]] = {}
        # Per transaction and key: the list that it appended to, if it is known, and the appended.
        self._appended: dict[int, dict[str, tuple[list[object] | None, list[object]]]] = {}
        self._orders: dict[str, list[object]] = {}
        self._found: list[Violation] = []
        self._committed: list[Recorded] = []

    def run(self, limit: int) -> list[Violation]:
        for record in self._records:
            self._note_appends(record)
        self._committed = self._visible()
        for record in self._committed:
            self._check_own(record)
        self._order_elements()
        for record in self._committed:
            self._check_reads(record)
        self._lost_updates()
        if len(self._found) < limit:
            cycles = Cycles(self._committed)
            self._dependencies(cycles)
            self._time(cycles)
            self._found += cycles.violations(limit)
        return self._found

    # --- Who appended what --------------------------------------------------------------

    def _note_appends(self, record: Recorded) -> None:
        """Record a transaction's appends: the elements it wrote beyond those it had read."""
        if not record.writes:
            return
        read = {key: _list(value) for key, value in reversed(record.reads)}
        mine: dict[str, tuple[list[object] | None, list[object]]] = {}
        for key, value in record.writes:
            written = _list(value)
            base = read.get(key)
            if base is None:
                base, appended = None, written[-1:]
            elif written[: len(base)] == base:
                appended = written[len(base) :]
            else:
                self._say(
                    OWN_WRITE_UNSEEN,
                    f"{name(record)} read {show(base)} from {key} and wrote {show(written)}, which "
                    "does not begin with it: this is not an append.",
                    [record],
                    key,
                )
                continue
            mine[key] = (base, appended)
            writers = self._writers.setdefault(key, {})
            for element in appended:
                other = writers.setdefault(_hashable(element), record)
                if other is not record:
                    raise ValueError(
                        f"{show(element)} was appended to {key} by both {name(other)} and "
                        f"{name(record)}: a history of appends needs elements of their own."
                    )
            if len(appended) > 1:
                middle = self._intermediate.setdefault(key, set())
                middle.update(_hashable(element) for element in appended[:-1])
        self._appended[id(record)] = mine

    def _visible(self) -> list[Recorded]:
        """Committed transactions, and those of unknown outcome of which an element was read."""
        unknown = {
            id(one) for one in self._records if one.outcome is Outcome.UNKNOWN and one.writes
        }
        committed = [one for one in self._records if one.outcome is Outcome.COMMITTED]
        if not unknown:
            return committed
        waiting, seen = committed, set[int]()
        while waiting:
            found: dict[int, Recorded] = {}
            for record in waiting:
                for key, value in record.reads:
                    writers = self._writers.get(key, {})
                    # All of the list was there, not its last element alone.
                    for element in reversed(_list(value)):
                        writer = writers.get(_hashable(element))
                        if writer is not None and id(writer) in unknown - seen:
                            found[id(writer)] = writer
            seen |= set(found)
            waiting = list(found.values())
        return [one for one in self._records if one.outcome is Outcome.COMMITTED or id(one) in seen]

    def _check_own(self, record: Recorded) -> None:
        for key, seen, written in record.own_reads:
            if _list(seen) != _list(written):
                self._say(
                    OWN_WRITE_UNSEEN,
                    f"{name(record)} wrote {show(written)} to {key} and then read {show(seen)}.",
                    [record],
                    key,
                )

    # --- The order of elements ----------------------------------------------------------

    def _order_elements(self) -> None:
        """Find the longest list read of each key; every other one must be a prefix of it."""
        for record in self._committed:
            for key, value in record.reads:
                read = _list(value)
                if len(read) > len(self._orders.get(key, ())):
                    self._orders[key] = read
        for record in self._committed:
            for key, (base, appended) in self._appended.get(id(record), {}).items():
                # A committed transaction's list existed, too, unless something contradicts it.
                order = self._orders.setdefault(key, [])
                if base is not None and base == order:
                    self._orders[key] = order + appended

        for key, order in self._orders.items():
            elements = [_hashable(element) for element in order]
            if len(set(elements)) < len(elements):
                twice = next(one for at, one in enumerate(elements) if one in elements[:at])
                self._say(
                    INCOMPATIBLE_ORDERS,
                    f"{show(twice)} stands in {key} twice: an append was applied twice "
                    f"({show(order)}).",
                    [],
                    key,
                )

    def _check_reads(self, record: Recorded) -> None:
        for key, value in record.reads:
            read = _list(value)
            if not read:
                continue
            order = self._orders.get(key, [])
            writers = self._writers.get(key, {})
            if read != order[: len(read)]:
                self._incompatible(record, key, read, order)
            last = _hashable(read[-1])
            writer = writers.get(last)
            if writer is None:
                self._say(
                    FROM_NOWHERE,
                    f"{name(record)} read {show(read)} from {key}; nobody appended "
                    f"{show(read[-1])}.",
                    [record],
                    key,
                )
            elif writer.outcome is Outcome.ABORTED:
                self._say(
                    DIRTY_READ,
                    f"{name(record)} read {show(read)} from {key}, of which {show(read[-1])} was "
                    f"appended by {name(writer)}, which aborted.",
                    [writer, record],
                    key,
                )
            elif writer is not record and last in self._intermediate.get(key, ()):
                self._say(
                    INTERMEDIATE_READ,
                    f"{name(record)} read {show(read)} from {key}; {name(writer)} appended "
                    f"{show(read[-1])} on its way, and more before it committed.",
                    [writer, record],
                    key,
                )

    def _incompatible(
        self, record: Recorded, key: str, read: list[object], order: list[object]
    ) -> None:
        pairs = enumerate(zip(read, order, strict=False))
        at = next(at for at, (one, other) in pairs if one != other)
        self._say(
            INCOMPATIBLE_ORDERS,
            f"{name(record)} read {show(read)} from {key}, where {show(read[at])} stands where "
            f"others saw {show(order[at])}: neither list begins the other (the longest is "
            f"{show(order)}).",
            [record],
            key,
        )

    def _lost_updates(self) -> None:
        """Report appends of two transactions to the same list: one is lost, read or not."""
        first: dict[tuple[str, object], Recorded] = {}
        for record in self._committed:
            for key, (base, appended) in self._appended.get(id(record), {}).items():
                if base is None or not appended:
                    continue
                end = (key, _hashable(base[-1]) if base else None)
                other = first.setdefault(end, record)
                if other is not record:
                    self._say(
                        LOST_UPDATE,
                        f"{name(other)} and {name(record)} both read {show(base)} from {key}, "
                        f"appended {show(self._appended[id(other)][key][1][-1])} and "
                        f"{show(appended[-1])} to it, and both committed: one is lost.",
                        [other, record],
                        key,
                    )

    # --- The order of transactions ------------------------------------------------------

    def _dependencies(self, cycles: Cycles) -> None:
        visible = {id(one) for one in self._committed}
        for key, order in self._orders.items():
            writers = self._writers.get(key, {})
            before: Recorded | None = None
            for element in order:
                writer = writers.get(_hashable(element))
                if writer is None or id(writer) not in visible:
                    continue
                if before is not None and before is not writer:
                    cycles.add(before, writer, Edge("ww", key, element))
                before = writer
        for record in self._committed:
            for key, value in record.reads:
                read = _list(value)
                order = self._orders.get(key, [])
                writers = self._writers.get(key, {})
                if read:
                    writer = writers.get(_hashable(read[-1]))
                    if writer is not None and writer is not record and id(writer) in visible:
                        cycles.add(writer, record, Edge("wr", key, read[-1]))
                # A list that is not a prefix of the longest one is a separate violation.
                at = len(read)
                if at >= len(order) or (read and order[at - 1] != read[-1]):
                    continue
                after = writers.get(_hashable(order[at]))
                if after is not None and after is not record and id(after) in visible:
                    cycles.add(record, after, Edge("rw", key, order[at]))

    def _time(self, cycles: Cycles) -> None:
        last: dict[str, Recorded] = {}
        for record in sorted(self._committed, key=attrgetter("began")):
            before = last.get(record.process)
            if before is not None and before.ended is not None and before.ended <= record.began:
                cycles.add(before, record, Edge("process"))
            last[record.process] = record
        if self._real_time:
            cycles.add_real_time()

    def _say(self, anomaly: str, story: str, who: Iterable[Recorded], key: str) -> None:
        self._found.append(Violation(anomaly, story, tuple(one.id for one in who), key))


def _list(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{show(value)} is not a list: a history of appends has nothing else.")
    return value


def _hashable(element: object) -> object:
    return element if not isinstance(element, list | dict) else repr(element)

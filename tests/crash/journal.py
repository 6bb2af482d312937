"""What the power-cut tests write, and how they know how much of it is there.

Each writer commits transactions numbered from 1. Number k sets every cell of the writer's row
to k (a counter, two balances of a fixed sum, two equal cells) and adds an entry of its own,
whose text follows from its name: from a page's part to several pages long. So a repository
tells which number each writer has reached, and whether anything of it is torn.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from percola import Repository, Table
from percola.cells import Kind
from percola.errors import SnapshotTooOldError
from percola.store.walks import walk_kind
from tests.crash.ledger import broken_cells

writers: Final = Table("writers")
reached: Final = writers.column("reached", int, observed=True)
left: Final = writers.column("left", int)
right: Final = writers.column("right", int)
debit: Final = writers.column("debit", int)
credit: Final = writers.column("credit", int)
entries: Final = Table("entries")
text: Final = entries.column("text", bytes)
SCHEMA: Final[list[Table[Any]]] = [writers, entries]

BALANCE: Final = 1000
KEPT: Final = 12
"""Older entries are deleted, so that there are deletes as well."""


def entry_text(name: str) -> bytes:
    """The text of an entry: the same for the same name, of 20 to 40,000 bytes."""
    rng = random.Random(name)
    return rng.randbytes(int(20 * 2000 ** rng.random()))


def write(repo: Repository, writer: str, number: int, *, two_phase: bool) -> int:
    """The writer's transaction of this number; its commit_ts."""
    while True:
        # Nobody else writes its cells; only garbage collection may be ahead of it.
        with contextlib.suppress(SnapshotTooOldError):
            return _write_once(repo, writer, number, two_phase=two_phase)


def _write_once(repo: Repository, writer: str, number: int, *, two_phase: bool) -> int:
    with repo.transaction(two_phase=two_phase) as t:
        t.set(reached, writer, number)
        t.set(left, writer, number)
        t.set(right, writer, number)
        t.set(debit, writer, -7 * number)
        t.set(credit, writer, BALANCE + 7 * number)
        t.set(text, f"{writer}/{number:06}", entry_text(f"{writer}/{number:06}"))
        if number > KEPT:
            t.delete(text, f"{writer}/{number - KEPT:06}")
    assert t.commit_ts is not None
    return t.commit_ts


@dataclass(frozen=True)
class Found:
    """What a repository holds.

    Attributes:
        reached: each writer's number.
        latest: the last timestamp drawn.
        torn: what does not fit together, in sentences.
    """

    reached: dict[str, int]
    latest: int
    torn: list[str]


def look(repo: Repository) -> Found:
    """Read everything: what each writer has reached, and what does not fit."""
    now = repo.snapshot()
    torn: list[str] = []
    numbers: dict[str, int] = {}
    for row in now.scan(writers):
        number = numbers[row.key] = row[reached]
        if not row.get(left) == row.get(right) == number:
            torn.append(f"{row.key} has reached {number}, but {row!r} is of two numbers")
        if (row.get(debit) or 0) + (row.get(credit) or 0) != BALANCE:
            torn.append(f"{row.key}: the balances do not come to {BALANCE}, but {row!r}")
    found = {row.key: row[text] for row in now.scan(entries)}
    expected = {
        f"{writer}/{number:06}"
        for writer, last in numbers.items()
        for number in range(max(1, last - KEPT + 1), last + 1)
    }
    torn += [f"the entry {name} is missing" for name in sorted(expected - found.keys())]
    torn += [f"the entry {name} has no transaction" for name in sorted(found.keys() - expected)]
    torn += [f"the entry {k} is torn" for k, v in found.items() if v != entry_text(k)]
    store = repo.context.store
    for table in SCHEMA:
        for kind in (Kind.LOCK, Kind.NOTIFY, Kind.FAILED):
            for cell, _, _ in walk_kind(store, kind, table.name):
                if kind is not Kind.NOTIFY:
                    torn.append(f"{cell} has a {kind.name} entry at rest")
        store.tablets(table.name)
    torn += broken_cells(repo)
    return Found(numbers, now.start_ts, torn)


def go_on(repo: Repository, before: Found) -> Found:
    """Work continues: every writer goes some numbers further, both ways; then look again."""
    drawn = repo.context.oracle.timestamp()
    names: Mapping[str, int] = before.reached or {"new": 0}
    for name, number in names.items():
        for step in range(1, 4):
            commit_ts = write(repo, name, number + step, two_phase=step == 2)
            if not before.latest < drawn < commit_ts:
                before.torn.append(f"after {before.latest} came {drawn}, and then {commit_ts}")
    after = look(repo)
    wrong = {n: k for n, k in after.reached.items() if k != names.get(n, 0) + 3}
    if wrong:
        after.torn.append(f"after going on, {wrong} are not three further than {names}")
    return after

"""§2.4: what was done in a repository since a moment, read from its write records.

Every transaction that committed has left a write record, at its commit timestamp, on each cell
that it wrote or locked; each run of an observer of a real column has written its acknowledgment.
So what was done can be told afterwards, whichever process did it, and whether it lives or not.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from percola import Repository
from percola.cells import Op, ack_column, decode_write
from percola.store.walks import scan_writes

LOADED: Final = frozenset(
    {
        *("pages.capture", "pages.body", "pages.revisited", "pages.earlier", "pages.earlier_body"),
        *("payloads.held", "waiting.for", "waiting.wanted"),
    }
)
"""What a loader's transactions write."""

PLANNED: Final = frozenset({"pages.recrawl", "recrawls.url"})
"""When a page is due for the next crawl: the parser notes it, or the loader of a page's past."""

_ACK: Final = ack_column("", b"").decode().removesuffix(":")


@dataclass
class Trace:
    """What transactions did, each named by its commit timestamp.

    Attributes:
        transactions: by the cells that each wrote or locked, as `table.column`; an
            acknowledgment is `ack OBSERVER`.
    """

    transactions: dict[int, Counter[str]] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """Cells that were written or locked, acknowledgments included."""
        return sum(one.total() for one in self.transactions.values())

    @property
    def runs(self) -> Counter[str]:
        """Runs of the observers that acknowledge what they have seen."""
        found: Counter[str] = Counter()
        for one in self.transactions.values():
            for name, number in one.items():
                if name.startswith("ack "):
                    found[name.removeprefix("ack ")] += number
        return found

    @property
    def loading(self) -> int:
        """Transactions that load captures."""
        return sum(1 for one in self.transactions.values() if one.keys() <= LOADED | PLANNED)

    @property
    def downstream(self) -> dict[int, Counter[str]]:
        """Those after the parsing of a page that showed something new: all other work.

        Without reports of jobs; a run of the parser that only notes when the page is due for the
        next crawl ends the chain.
        """
        ends = LOADED, {"ack parse"}, {"journal.report"}
        return {
            ts: one
            for ts, one in self.transactions.items()
            if not any(one.keys() - PLANNED <= end for end in ends)
        }

    @property
    def exports(self) -> int:
        """Transactions that took documents out of the outbox."""
        return sum(
            1
            for one in self.transactions.values()
            if one["outbox.entry"] and not one["clusters.document"]
        )


def traced(repo: Repository, since: int = 0) -> Trace:
    """What was committed after a timestamp; versions must not have been collected since."""
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    store = repo.context.store
    for table in repo.schema:
        position: bytes | None = b""
        while position is not None:
            cells, position = scan_writes(store, table.name, position, limit=4096)
            for cell, versions in cells:
                for commit_ts, raw in itertools.takewhile(lambda one: one[0] > since, versions):
                    if decode_write(raw).op is not Op.ROLLBACK:
                        found[commit_ts][_named(cell.table, cell.column)] += 1
    return Trace(dict(found))


def _named(table: str, column: bytes) -> str:
    name = column.decode()
    if name.startswith(_ACK):
        return f"ack {name.removeprefix(_ACK).partition(':')[0]}"
    return f"{table}.{name.partition(':')[0]}"

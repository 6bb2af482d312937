"""Checks at rest after every run, for any workload: no locks, orphans or torn transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from percola.cells import MAX_TS, Cell, Kind, Op, decode_write
from percola.store.base import Store
from percola.store.walks import walk_kind
from percola.testing.histories import timestamps as checking
from percola.testing.histories.recorder import Outcome, Recorded
from percola.testing.simulation.world import ClaimViolatedError


def check_at_rest(
    store: Store, tables: Sequence[str], history: Sequence[Recorded], cells: Mapping[str, Cell]
) -> None:
    """Check the cells of the tables, and every recorded transaction against them.

    `cells` has those of the history by their keys. Raises ClaimViolatedError for the first claim
    that does not hold.
    """
    for table in tables:
        for cell, start_ts, _ in walk_kind(store, Kind.LOCK, table):
            _violate(f"At rest {cell} is still locked by the transaction of {start_ts}.", cell)
    for record in history:
        _check_whole(store, record, cells)
    for violation in checking.check(history):
        shown = cells.get(violation.key or "")
        _violate(str(violation), *(() if shown is None else (shown,)))


def _check_whole(store: Store, record: Recorded, cells: Mapping[str, Cell]) -> None:
    """A transaction is visible in all of its cells, at one commit_ts, or in none (P3 … P7)."""
    if not record.two_phase or record.start_ts < store.safe_point():
        return  # Others may share its start_ts; or what it wrote may have been removed since.
    expected: int | None = None
    found: dict[Cell, int | None] = {}
    for key, _ in record.writes:
        cell = cells[key]
        found[cell] = None
        for commit_ts, raw in store.entries(cell, Kind.WRITE, record.start_ts, MAX_TS):
            write = decode_write(raw)
            if write.start_ts == record.start_ts and write.op is not Op.ROLLBACK:
                found[cell] = commit_ts
                expected = commit_ts
    torn = [cell for cell, commit_ts in found.items() if commit_ts != expected]
    if torn:
        _violate(
            f"{record} is torn: it stands at {expected} in some of its cells, but not in "
            f"{', '.join(map(str, torn))}.",
            *found,
        )
    if not found:
        return
    if record.outcome is Outcome.COMMITTED and expected != record.commit_ts:
        _violate(f"{record} was reported committed, but it stands at {expected}.", *found)
    if record.outcome is Outcome.ABORTED and expected is not None:
        _violate(f"{record} was reported aborted, but it stands at {expected}.", *found)


def _violate(claim: str, *cells: Cell) -> None:
    raise ClaimViolatedError.of(claim, cells)

"""§2.1: which entries of a row are garbage: the rules that garbage collection applies (P12).

For each cell, at a safe point P:

    newest put at or below P       kept: a reader at P needs it
    newest delete at or below P    removed, as it reads like an absent cell; on an observed column
                                   only if the change is answered or the cell has a newer version
    older puts and deletes         removed, with their values
    lock-only records up to P      removed
    lock-only records above P      removed if the cell has a newer record of a commit, which
                                   stops every transaction that they would stop; unless they
                                   are a primary's, which decides about other cells' locks
    rollback records below P       removed once no late call of their transactions can arrive;
                                   until then their `last_change` is dropped, for the change that
                                   it repeats may be removed first
    acknowledgments up to P        removed with the last record of the cell that they are about
    anything else above P          kept

A record of an observer's run (`percola.catalog.RUNS`) is removed when it is at or below P, although
it is the newest version of its cell: `forgotten_row`.

Entries are removed from a row in one mutation, or in several if they are many. The newest delete of
a cell is never removed before what it hides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from percola.cells import Kind, Op, acknowledged_column, decode_write, encode_write
from percola.store.base import Delete, Put


@dataclass(slots=True)
class RowGarbage:
    """The garbage of one row.

    Attributes:
        changes: changes that can be applied unconditionally; the removal of a long value comes
            after that of its record, so they are to be applied from the last one to the first.
        last: removals that come after all of these: of the deletes that hide what `changes` remove,
            then of acknowledgments.
        vanishing: observed columns whose newest version is a delete: it may be removed once the
            change is answered; `vanishing_changes` remove it and its acknowledgments.
        versions: how many superseded puts and deletes are among the changes.
        deleted: how many cells are removed completely by `changes`.
        records: how many lock-only and rollback records are among the changes.
        acknowledgments: how many acknowledgments are among the changes.
    """

    changes: list[Put | Delete] = field(default_factory=list)
    last: list[Put | Delete] = field(default_factory=list)
    vanishing: list[bytes] = field(default_factory=list)
    vanishing_changes: list[Put | Delete] = field(default_factory=list)
    versions: int = 0
    deleted: int = 0
    records: int = 0
    acknowledgments: int = 0


Records = Sequence[tuple[int, bytes]]
"""Write records of a cell: (commit_ts, record), newest first."""

Older = Callable[[bytes, Records, RowGarbage], Iterable[Records]]
"""The records of a column below those that are known, in parts. Before it returns a part, it may
apply the changes that have been found so far, and take them out of the garbage."""


def _complete(column: bytes, records: Records, garbage: RowGarbage) -> Iterable[Records]:
    return ()


def garbage_of_row(
    cells: Iterable[tuple[bytes, Records]],
    safe_point: int,
    observed: Container[bytes],
    *,
    settled: int,
    older: Older = _complete,
) -> RowGarbage:
    """Find the garbage of a row.

    `cells` are its columns with their newest write records; `older` has the others. `observed` has
    the observed columns; no call of a transaction that began below `settled` is in flight any more.
    Raises DamagedRecordError.
    """
    garbage = RowGarbage()
    remaining: set[bytes] = set()
    acknowledgments: list[tuple[bytes, bytes, list[int]]] = []
    for column, records in cells:
        about = acknowledged_column(column)
        parts = itertools.chain((records,), older(column, records, garbage))
        stays, left = _look_at(garbage, column, parts, safe_point, observed, settled)
        if stays:
            remaining.add(column)
        if about is not None and all(ts <= safe_point for ts, _ in records[:1]):
            acknowledgments.append((column, about, left))
    for column, about, timestamps in acknowledgments:
        if about not in remaining:
            changes: list[Put | Delete] = [Delete(Kind.WRITE, column, ts) for ts in timestamps]
            if about in garbage.vanishing:
                garbage.vanishing_changes += changes
            else:
                garbage.last += changes
                garbage.acknowledgments += 1
    return garbage


def forgotten_row(
    cells: Iterable[tuple[bytes, Records]], safe_point: int, *, settled: int
) -> RowGarbage:
    """As `garbage_of_row`, for a row that is forgotten: each of its cells was put once."""
    cells = list(cells)
    garbage = garbage_of_row(cells, safe_point, (), settled=settled)
    for column, records in cells:
        for ts, raw in records:
            record = decode_write(raw)
            if ts <= safe_point and record.op is Op.PUT:
                garbage.changes.append(Delete(Kind.WRITE, column, ts))
                garbage.versions += 1
                if record.value is None:
                    garbage.changes.append(Delete(Kind.DATA, column, record.start_ts))
    return garbage


def _look_at(
    garbage: RowGarbage,
    column: bytes,
    parts: Iterable[Records],
    safe_point: int,
    observed: Container[bytes],
    settled: int,
) -> tuple[bool, list[int]]:
    """Add the garbage of one cell, whose records come in parts.

    Returns whether any of them is kept, and the timestamps up to the safe point that are.
    """
    stays = newer = seen = committed = False
    left: list[int] = []
    for ts, raw in itertools.chain.from_iterable(parts):
        record = decode_write(raw)
        gone = Delete(Kind.WRITE, column, ts)
        if (
            committed
            and record.op is Op.LOCK
            and record.last_change is not None
            and not record.decides
        ):
            garbage.changes.append(gone)
            garbage.records += 1
            continue
        committed = committed or record.op is not Op.ROLLBACK
        if ts > safe_point or (record.op is Op.ROLLBACK and ts >= min(settled, safe_point)):
            stays = True
            if ts <= safe_point:
                left.append(ts)
                if record.last_change is not None:
                    # A rollback record may outlive both the change that it repeats and the delete
                    # that hides it. Without `last_change`, readers look below the record instead.
                    plain = encode_write(record.op, record.start_ts)
                    garbage.changes.append(Put(Kind.WRITE, column, ts, plain))
            # A record that changed nothing does not supersede a delete below it.
            newer = newer or record.op in (Op.PUT, Op.DELETE)
            continue
        if record.op in (Op.LOCK, Op.ROLLBACK):
            garbage.changes.append(gone)
            garbage.records += 1
        elif seen:
            garbage.changes.append(gone)
            garbage.versions += 1
        elif record.op is Op.PUT:
            seen = stays = True
            left.append(ts)
            continue
        elif newer or column not in observed:
            seen = True
            garbage.last.append(gone)
            garbage.deleted += 1
        else:
            seen = True
            garbage.vanishing.append(column)
            garbage.vanishing_changes.append(gone)
        if record.op is Op.PUT and record.value is None:
            garbage.changes.append(Delete(Kind.DATA, column, record.start_ts))
    return stays, left

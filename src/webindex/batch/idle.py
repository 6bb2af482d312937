"""Invariant 11: the pending work of a repository that is not at rest."""

from __future__ import annotations

from collections.abc import Iterator

from percola import Repository, inspection
from webindex import tables
from webindex.batch.compare import KEPT
from webindex.batch.invariants import Difference
from webindex.batch.verdict import Judged
from webindex.rendering import tables as rendering


def judge_rest(repo: Repository) -> tuple[Judged, list[str]]:
    """Check for pending work now; also described in sentences.

    Locks of dead processes are resolved first, as a reader would do: not all of them are ever read.
    """
    inspection.settle_the_dead(repo)
    judged = Judged(11)
    sentences = []
    for part, found, sentence in _left(repo):
        judged.differing += found
        sentences.append(sentence)
        judged.first.append(Difference(11, part, "", "what is left", f"{found:,}", "0"))
    judged.compared = judged.differing
    judged.first = judged.first[:KEPT]
    return judged, sentences


def _left(repo: Repository) -> Iterator[tuple[str, int, str]]:
    for column, count in sorted(repo.pending().items()):
        if column == str(rendering.render_due):
            continue  # They wait for a browser, which there need not be: see invariant 16.
        yield column, count, _wait(count, f"changed cell{{}} of {column}", "for an observer")
    failed = repo.dead_lettered()
    if failed:
        yield (
            "observers",
            failed,
            f"Changes were dead-lettered: {_many(failed, 'cell{}')} (percola failed).",
        )
    locks = sum(1 for _ in inspection.locks(repo))
    if locks:
        yield "locks", locks, f"A transaction holds locks: {_many(locks, 'cell{}')}."
    with repo.snapshot() as snapshot:
        waiting = sum(1 for _ in snapshot.scan(tables.outbox, columns=[tables.exports.entry]))
        refused = list(tables.exports.refusals(snapshot))
    if waiting:
        yield "outbox", waiting, _wait(waiting, "document{}", "to be exported")
    if refused:
        yield (
            "refused",
            len(refused),
            f"{_refused(len(refused))} for example: {refused[0].why}",
        )


def _refused(count: int) -> str:
    what = _many(count, "document{}")
    return f"The search index refuses {what} ('webindex reindex' tries again),"


def _many(count: int, things: str) -> str:
    return f"{count:,} {things.format('' if count == 1 else 's')}"


def _wait(count: int, things: str, what: str) -> str:
    return f"{_many(count, things)} {'waits' if count == 1 else 'wait'} {what}."

"""Classifies wrong reads: the anomaly that each is part of, and a description of it.

The sweep of `percola.testing.histories.timestamps` finds reads that differ from their snapshot.
They are rare, so this module can afford to examine all transactions that wrote or read the keys
concerned:

    nobody wrote the value      value from nowhere
    an aborted transaction did  dirty read
    its writer overwrote it     intermediate read
    it was committed later      future read; circular flow if its writer saw the reader's writes
    it was too old              lost update, torn transaction, read skew, long fork, stale read

Values that are too old are classified by what else this reader and others saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from percola.testing.histories.records import Outcome, Recorded
from percola.testing.histories.violations import (
    CIRCULAR_FLOW,
    DIRTY_READ,
    FROM_NOWHERE,
    FUTURE_READ,
    INTERMEDIATE_READ,
    LONG_FORK,
    LOST_UPDATE,
    NON_REPEATABLE_READ,
    OWN_WRITE_UNSEEN,
    PHANTOM,
    READ_SKEW,
    STALE_READ,
    TORN,
    Violation,
    name,
    show,
)


@dataclass(slots=True)
class Misread:
    """A read that differs from the reader's snapshot.

    Attributes:
        reader: the transaction that read.
        key: the key read.
        seen: the value that it saw; None for nothing.
        expected: the value that was there.
        writer: the transaction that wrote the expected value; None if there is none.
        in_range: whether a range left the key out.
    """

    reader: Recorded
    key: str
    seen: object
    expected: object
    writer: Recorded | None
    in_range: bool = False


@dataclass(slots=True)
class _Source:
    """The writer of a value, and whether it overwrote the value itself."""

    writer: Recorded
    overwritten: bool


class Diagnosis:
    """Classifies misreads by the whole history.

    Args:
        records: all transactions; seen ones of unknown outcome have a commit_ts.
        misreads: in the order of the readers' start_ts.
    """

    def __init__(self, records: Iterable[Recorded], misreads: Sequence[Misread]) -> None:
        self._misreads = misreads
        keys = {one.key for one in misreads}
        for one in misreads:
            keys.update(key for key, _ in one.reader.reads)
            keys.update(key for key, _ in (one.writer.writes if one.writer else ()))
        self._writers: dict[str, list[tuple[object, _Source]]] = {key: [] for key in keys}
        self._readers: dict[str, list[tuple[object, Recorded]]] = {key: [] for key in keys}
        for record in records:
            for key, value in record.writes:
                if key in keys:
                    self._writers[key].append((value, _Source(record, False)))
            for key, value in record.overwritten:
                if key in keys:
                    self._writers[key].append((value, _Source(record, True)))
            for key, value in record.reads:
                if key in keys:
                    self._readers[key].append((value, record))

    def violations(self, limit: int) -> Iterator[Violation]:
        """The first `limit` violations, one for each reader and anomaly."""
        told: set[tuple[int, str]] = set()
        for misread in self._misreads:
            found = self._name(misread)
            if found is not None and (misread.reader.id, found.anomaly) not in told:
                told.add((misread.reader.id, found.anomaly))
                yield found
                if len(told) >= limit:
                    return

    def _name(self, misread: Misread) -> Violation | None:
        reader, key, seen = misread.reader, misread.key, misread.seen
        who, what = name(reader), show(seen)
        if misread.writer is reader:
            return Violation(
                OWN_WRITE_UNSEEN,
                f"{who} wrote {show(misread.expected)} to {key} and then read {what} there.",
                (reader.id,),
                key,
            )
        if misread.in_range:
            return self._phantom(misread)
        values = [value for read, value in reader.reads if read == key]
        if any(value != seen for value in values):
            return Violation(
                NON_REPEATABLE_READ,
                f"{who} read {key} more than once and saw {' and then '.join(map(show, values))}.",
                (reader.id,),
                key,
            )
        sources = [source for value, source in self._writers[key] if value == seen]
        if seen is not None and any(source.writer is reader for source in sources):
            return None  # It read its own write; the record does not tell the two kinds apart.
        committed = [
            one.writer for one in sources if not one.overwritten and _commit_ts(one.writer)
        ]
        if committed or seen is None:
            return self._misplaced(misread, committed)
        if not sources:
            return Violation(
                FROM_NOWHERE,
                f"{who} read {what} from {key}, which nobody wrote; {self._should(misread)}.",
                (reader.id,),
                key,
            )
        source = sources[0]
        writer = source.writer
        both = (writer.id, reader.id)
        if source.overwritten:
            final = show(dict(writer.writes).get(key))
            return Violation(
                INTERMEDIATE_READ,
                f"{who} read {what} from {key}, which {name(writer)} wrote on its way and wrote "
                f"over with {final} before it committed; {self._should(misread)}.",
                both,
                key,
            )
        if writer.outcome is Outcome.ABORTED:
            how = "which aborted"
        else:
            how = "which cannot have committed where it would explain this"
        return Violation(
            DIRTY_READ,
            f"{who} read {what} from {key}, written by {name(writer)}, {how}; "
            f"{self._should(misread)}.",
            both,
            key,
        )

    # --- A committed value in the wrong place -------------------------------------------

    def _misplaced(self, misread: Misread, committed: list[Recorded]) -> Violation:
        """The value, or the absence of one, is a committed state of another time."""
        reader, key, missed = misread.reader, misread.key, misread.writer
        later = [one for one in committed if _commit_ts(one) > reader.start_ts]
        earlier = [one for one in committed if _commit_ts(one) <= reader.start_ts]
        # The key was absent at first, whoever deleted it later.
        if missed is not None and (earlier or not later or misread.seen is None):
            return self._too_old(misread, missed)
        if not later:
            # Something was there, then, that no record of a write accounts for.
            later = committed
        writer = min(later, key=_commit_ts)
        what = f"{name(reader)} read {show(misread.seen)} from {key}"
        both = (writer.id, reader.id)
        back = _flows(reader, writer)
        if back is not None:
            return Violation(
                CIRCULAR_FLOW,
                f"{what}, written by {name(writer)}, which in turn read {back} as {name(reader)} "
                "wrote it: each of them came before the other.",
                both,
                key,
            )
        other = self._old_part(reader, writer)
        if other is not None:
            return Violation(
                READ_SKEW,
                f"{what} as {name(writer)} wrote it, but {other} as it was before that one: "
                f"half of it; {self._should(misread)}.",
                both,
                key,
            )
        return Violation(
            FUTURE_READ,
            f"{what}, written by {name(writer)}, which committed above {reader.start_ts}, where "
            f"the reader started; {self._should(misread)}.",
            both,
            key,
        )

    def _too_old(self, misread: Misread, missed: Recorded) -> Violation:
        reader, key = misread.reader, misread.key
        both = (missed.id, reader.id)
        due = _commit_ts(missed)
        what = (
            f"{name(reader)} read {show(misread.seen)} from {key}, where {name(missed)} had "
            f"written {show(misread.expected)}"
        )
        if reader.outcome is Outcome.COMMITTED and any(key == one for one, _ in reader.writes):
            mine = show(dict(reader.writes)[key])
            story = f"{what}, and wrote over it with {mine}: that update is lost."
            return Violation(LOST_UPDATE, story, both, key)
        part = self._new_part(reader, missed)
        torn = self._torn(missed, key, part)
        if torn is not None:
            return Violation(TORN, f"{what}. {torn}", both, key)
        if part is not None:
            story = f"{what}, but {part} as that one wrote it: half of it."
            return Violation(READ_SKEW, story, both, key)
        for read, value in reader.reads:
            writer = self._committed_writer(read, value)
            if read == key or writer is None or not due < _commit_ts(writer) <= reader.start_ts:
                continue
            three = (missed.id, writer.id, reader.id)
            fork = self._forked(missed, key, writer, read)
            if fork is not None:
                story = (
                    f"{what}, but saw {name(writer)} ({read} is {show(value)}); and {name(fork)} "
                    f"saw {name(missed)} and not {name(writer)}: two orders of the same two."
                )
                return Violation(LONG_FORK, story, (*three, fork.id), key)
            story = (
                f"{what}, but saw {name(writer)} ({read} is {show(value)}), which committed after "
                "the one that it missed."
            )
            return Violation(READ_SKEW, story, three, key)
        known = missed.ended is not None and missed.ended < reader.began
        when = "which had been acknowledged before the reader began" if known else "below its start"
        return Violation(STALE_READ, f"{what}, {when}.", both, key)

    def _phantom(self, misread: Misread) -> Violation:
        reader, writer = misread.reader, misread.writer
        by = f", written by {name(writer)}" if writer else ""
        return Violation(
            PHANTOM,
            f"{name(reader)} looked through a range that holds {misread.key} and did not find it; "
            f"at {reader.start_ts} it was {show(misread.expected)}{by}.",
            (reader.id,) if writer is None else (writer.id, reader.id),
            misread.key,
        )

    # --- What else was seen -------------------------------------------------------------

    def _new_part(self, reader: Recorded, writer: Recorded) -> str | None:
        """A key that the reader saw as the writer wrote it."""
        wrote = dict(writer.writes)
        for key, value in reader.reads:
            if key in wrote and wrote[key] == value and self._committed_writer(key, value):
                return f"{key} as {show(value)}"
        return None

    def _old_part(self, reader: Recorded, writer: Recorded) -> str | None:
        """A key that the reader saw and that the writer wrote otherwise."""
        wrote = dict(writer.writes)
        for key, value in reader.reads:
            if key in wrote and wrote[key] != value:
                return f"{key} as {show(value)}"
        return None

    def _torn(self, writer: Recorded, key: str, seen_by_reader: str | None) -> str | None:
        """Whether the writer's write of one key was never seen, though its others were."""
        due, wrote = _commit_ts(writer), dict(writer.writes)
        later = [(value, one) for value, one in self._readers[key] if one.start_ts >= due]
        if any(value == wrote.get(key) for value, _ in later):
            return None
        others = [
            f"{one} as {show(value)}"
            for one, value in writer.writes
            if one != key
            and value is not None
            and any(value == got and who.start_ts >= due for got, who in self._readers[one])
        ]
        if not others or (seen_by_reader is not None and len({id(who) for _, who in later}) < 2):
            return None
        return f"Of {name(writer)} others saw {others[0]}, and nobody ever this write: it is torn."

    def _forked(self, missed: Recorded, key: str, writer: Recorded, read: str) -> Recorded | None:
        """A transaction that saw what the reader missed, and not what the reader saw."""
        value, other = dict(missed.writes)[key], dict(writer.writes)[read]
        saw = {id(one) for got, one in self._readers[key] if got == value}
        for got, one in self._readers[read]:
            if id(one) in saw and got != other and one.start_ts < _commit_ts(writer):
                return one
        return None

    def _committed_writer(self, key: str, value: object) -> Recorded | None:
        for got, source in self._writers[key]:
            if got == value and not source.overwritten and _commit_ts(source.writer):
                return source.writer
        return None

    def _should(self, misread: Misread) -> str:
        by = f", written by {name(misread.writer)}" if misread.writer else ""
        return f"its snapshot at {misread.reader.start_ts} has {show(misread.expected)} there{by}"


def _flows(reader: Recorded, writer: Recorded) -> str | None:
    """A key that the writer read as the reader wrote it."""
    wrote = dict(reader.writes)
    for key, value in writer.reads:
        if value is not None and key in wrote and wrote[key] == value:
            return f"{key} as {show(value)}"
    return None


def _commit_ts(record: Recorded) -> int:
    """The timestamp of a transaction's writes; 0 if it has not committed."""
    return 0 if record.commit_ts is None or record.outcome is Outcome.ABORTED else record.commit_ts

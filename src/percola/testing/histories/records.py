"""Records of transactions, and histories: files of such records in JSON lines.

    {"id": 3, "process": "p1", "start_ts": 40, …, "outcome": "unknown"}    before it commits
    {"id": 3, "outcome": "committed", "commit_ts": 45, "ended": 1234567}   once it has heard

The first line is in the file before the commit is tried, so that a process killed during the commit
leaves a transaction of unknown outcome and never an unrecorded one. Each process writes a separate
file; `read_histories` merges them.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from percola.errors import PercolaError


class Outcome(Enum):
    """How a transaction ended, as far as its own process knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Recorded:
    """One transaction of a history.

    Values can be anything that JSON represents and `==` compares; None means no value.

    Attributes:
        id: names it in the history; unique there.
        process: the client that ran it. A client runs one transaction after another.
        start_ts: the timestamp of its snapshot.
        commit_ts: the timestamp of its writes; None if it wrote nothing, did not commit, or
            nobody heard.
        outcome: whether it committed.
        reads: (key, value seen), in order. Reads of values that it had written itself may stand
            here, too, but not of its deletes; a `Recorder` keeps all apart, in `own_reads`.
        writes: (key, final value), each key once; None deletes.
        began: before `start_ts` was drawn, by a clock or counter that all processes share; 0
            if nobody looked.
        ended: after the outcome was known, by the same clock; None if it never was.
        overwritten: (key, value) of its writes that it overwrote itself: no other may see them.
        own_reads: (key, value seen, value written before) of reads of its own writes.
        locked: keys read by `get_for_update` and not written.
        ranges: (low, high, keys found): every key from `low` up to but not including `high`
            was looked for, and only these were there. What was found stands in `reads` as well.
        two_phase: whether its `start_ts` is its own; one-step transactions may share theirs.
    """

    id: int
    process: str
    start_ts: int
    commit_ts: int | None
    outcome: Outcome
    reads: list[tuple[str, object]]
    writes: list[tuple[str, object]]
    began: int
    ended: int | None
    overwritten: list[tuple[str, object]] = field(default_factory=list)
    own_reads: list[tuple[str, object, object]] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    ranges: list[tuple[str, str, list[str]]] = field(default_factory=list)
    two_phase: bool = False

    def __str__(self) -> str:
        if self.outcome is Outcome.COMMITTED and self.commit_ts is None:
            end = "read only"
        elif self.commit_ts is not None:
            end = f"{self.outcome.value} at {self.commit_ts}"
        else:
            end = self.outcome.value
        return f"T{self.id} ({self.process}, started at {self.start_ts}, {end})"


class DamagedHistoryError(PercolaError):
    """A line of a history file is not what a recorder writes."""


@contextmanager
def without_collection() -> Iterator[None]:
    """Hold Python's cycle collection back in a block that makes millions of tuples.

    They hold no cycles, and looking for some in them takes longer than all the rest.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# --- Files ------------------------------------------------------------------------------

_PLAIN: Final = ("id", "process", "start_ts", "commit_ts", "reads", "writes", "began", "ended")
_RARE: Final = ("overwritten", "own_reads", "locked", "ranges", "two_phase")
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "id": (int,),
    "process": (str,),
    "start_ts": (int,),
    "commit_ts": (int, type(None)),
    "began": (int,),
    "ended": (int, type(None)),
    "two_phase": (bool,),
}
_WIDTHS: Final = {"reads": 2, "writes": 2, "overwritten": 2, "own_reads": 3, "ranges": 3}


def encode(record: Recorded) -> str:
    """A transaction as one line of JSON, without the line's end.

    Raises TypeError for a value that JSON cannot carry.
    """
    fields = {name: getattr(record, name) for name in _PLAIN}
    fields["outcome"] = record.outcome.value
    fields.update((name, got) for name in _RARE if (got := getattr(record, name)))
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":"))


def encode_end(record: Recorded) -> str:
    """The outcome of a transaction whose first line is written already, as one line."""
    fields = {
        "id": record.id,
        "outcome": record.outcome.value,
        "commit_ts": record.commit_ts,
        "ended": record.ended,
    }
    return json.dumps(fields, separators=(",", ":"))


def write_history(path: str | os.PathLike[str], history: Iterable[Recorded]) -> None:
    """Write a whole history to a file, a line a transaction."""
    with open(path, "w", encoding="ascii") as file:
        file.writelines(encode(record) + "\n" for record in history)


def read_history(path: str | os.PathLike[str]) -> list[Recorded]:
    """Read one file, in the order in which its transactions were written.

    An incomplete last line, left by a killed process, is ignored.
    Raises DamagedHistoryError, which names the line, for any other damage.
    """
    found: dict[int, Recorded] = {}
    with without_collection(), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                _take(json.loads(line), found)
            except (ValueError, TypeError, KeyError) as error:
                what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                raise DamagedHistoryError(
                    f"Line {number} of the history {os.fspath(path)} is damaged: {what}. "
                    "It begins with "
                    f"{line[:60]!r}; record the history again, or check it without this file."
                ) from error
    return list(found.values())


def read_histories(paths: Iterable[str | os.PathLike[str]]) -> list[Recorded]:
    """The histories of several processes as one: see `merge`."""
    return merge(read_history(path) for path in paths)


def read_folder(folder: str | os.PathLike[str]) -> list[Recorded]:
    """All histories (`*.jsonl`) of a folder as one; DamagedHistoryError if there is none."""
    paths = sorted(Path(folder).glob("*.jsonl"))
    if not paths:
        raise DamagedHistoryError(
            f"There is no history in {os.fspath(folder)}: it has no file that ends in .jsonl."
        )
    return read_histories(paths)


def merge(histories: Iterable[Iterable[Recorded]]) -> list[Recorded]:
    """Merge several histories, in the order in which the transactions began, and renumber them."""
    together = sorted(itertools.chain.from_iterable(histories), key=lambda one: one.began)
    return [replace(one, id=number) for number, one in enumerate(together, start=1)]


def _take(fields: Any, found: dict[int, Recorded]) -> None:
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    for name, types in _TYPES.items():
        if name in fields and type(fields[name]) not in types:
            raise ValueError(f"its {name} is {fields[name]!r}")
    outcome = Outcome(fields.pop("outcome"))
    if "start_ts" not in fields:
        known = found.get(fields["id"])
        if known is None:
            raise ValueError(f"it ends transaction {fields['id']}, which never began")
        known.outcome, known.commit_ts, known.ended = outcome, fields["commit_ts"], fields["ended"]
        return
    if fields["id"] in found:
        raise ValueError(f"transaction {fields['id']} is there twice")
    for name, width in _WIDTHS.items():
        entries = fields[name] if name in _PLAIN else fields.get(name, [])
        if not isinstance(entries, list):
            raise ValueError(f"its {name} are not a list")
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != width or type(entry[0]) is not str:
                raise ValueError(f"{entry!r} is not one of its {name}")
        fields[name] = [tuple(entry) for entry in entries]
    record = Recorded(outcome=outcome, **fields)
    found[record.id] = record

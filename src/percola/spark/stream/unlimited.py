"""§2.4 `spark.readStream` on PySpark 4.1, which asks for the end of a batch without its beginning.

Spark asks `latestOffset()` and then, of a query without a checkpoint, `initialOffset()`. A query
that is restarted is told its position by `partitions(position, position)` before, but not where
`spark.sql.streaming.triggerAvailableNowWrapper.enabled` is set; Spark then asks once in a run, and
before it repeats a batch that was not committed. So:

- The end of a first batch says where the batch begins, if that is the earliest change: if it is
  repeated, what it contains still follows from its end alone.
- The offset of a reader that was not told its position has a new name of the stream. The hold goes
  from the old name to the new one when the first batch is planned.
- The hold moves to what is certainly committed: the start of a batch, or its end when Spark asks
  a second time. After a run with `availableNow` it stays at the start of the run's batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from percola.spark.sentences import errors_are_sentences
from percola.spark.stream.source import FeedReader, Position
from percola.spark.versions import check_read_limits


class UnlimitedFeedReader(FeedReader):
    """Reads the feed of a table, all that there is at a time."""

    _begun: Position | None = None
    """Where the query begins, if it is new."""
    _at: Position | None = None
    """The end of the batch that Spark has planned last."""
    _asked = False

    @errors_are_sentences
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a stream without a checkpoint begins."""
        return self._start(self._begun or self._beginning()).to_json()

    @errors_are_sentences
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """The end of the next batch."""
        asked, self._asked = self._asked, True
        at = self._at
        if at is not None:
            self._check(at)
            if asked:  # Spark has committed the batch that ends there.
                self._hold(at)
            else:  # A run that asks only once goes on without changes, too.
                self._moved = -math.inf
            return self._next_position(at, None).to_json()
        begun = self._begun = self._beginning()
        if begun.after is not None:
            return Position(begun.ts, begun.stream).to_json()
        since = begun.ts if begun.initial else None
        return Position(self._find_settled(), begun.stream, since=since).to_json()

    @errors_are_sentences
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of rows of a batch; without any, where Spark tells the position so."""
        first, last = Position.of(start), Position.of(end)
        if first.after:
            check_read_limits(
                "A stream that stopped while it read the table for the first time in batches of "
                "maxRowsPerTrigger",
                "go on with a newer one, or begin again with another checkpoint location.",
            )
        self._at = last
        if start == end:
            return []
        found = super().partitions(start, end)
        held = replace(last, ts=_needed(first, last))
        if first.stream != last.stream:
            self._held = None  # That was the hold of the other name.
        self._hold(held)
        if first.stream != last.stream:
            self._repository().release(first.stream)
        return found


def _needed(first: Position, last: Position) -> int:
    """The timestamp above which a batch and what comes after it have changes to read."""
    if first.initial:
        return last.ts if last.since is None else last.since
    return first.ts if first.after is None else last.ts

"""§2.4 `spark.readStream` where Spark has read limits: batches of `maxRowsPerTrigger` rows.

Spark says where a batch begins, so its end is the next position from there; and it fixes the end of
a run with `trigger(availableNow=True)` before the first batch.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from percola.spark.sentences import errors_are_sentences
from percola.spark.stream.source import FeedReader, Position


class LimitedFeedReader(FeedReader, SupportsTriggerAvailableNow):
    """Reads the feed of a table, at most so many rows at a time."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRowsPerTrigger."""
        most = self._options.count("maxRowsPerTrigger")
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run: later commits are left to the next one."""
        self._target = self._find_settled()

    @errors_are_sentences
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of a batch that begins at `start`.

        Timestamps are never split, so the changes of one may exceed `limit`.
        """
        position = Position.of(start)
        self._check(position)
        # The batch that ends at `start` has been committed. It may be the last one of a run.
        self._hold(position, last=self._target is not None and position.ts >= self._target)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._next_position(position, most).to_json()

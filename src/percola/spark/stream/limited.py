"""§2.4 `spark.readStream` where Spark has read limits: batches of so many rows or bytes.

The feed does not say how large a change is. So a limit in bytes is taken as one in rows, by the
mean size of the next changes, which are looked at once a minute.

Spark says where a batch begins, so its end is the next position from there; and it fixes the end of
a run with `trigger(availableNow=True)` before the first batch.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from percola.spark.sentences import errors_are_sentences
from percola.spark.stream.source import FeedReader, Position

_SAMPLED: Final = 256
_SAMPLE_SECONDS: Final = 60.0


class LimitedFeedReader(FeedReader, SupportsTriggerAvailableNow):
    """Reads the feed of a table, at most so many rows or bytes at a time."""

    _mean: tuple[float, float] | None = None
    """The bytes of a change, and when they were looked at."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option maxRowsPerTrigger, or maxBytesPerTrigger."""
        rows = self._options.count("maxRowsPerTrigger")
        size = self._options.count("maxBytesPerTrigger")
        if size is not None:
            return ReadMaxBytes(size)
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @errors_are_sentences
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
        if isinstance(limit, ReadMaxBytes) and not position.initial:
            most = max(1, int(limit.max_bytes / self._mean_bytes(position)))
        return self._next_position(position, most).to_json()

    def _mean_bytes(self, position: Position) -> float:
        """The mean size of the next rows or changes: keys and encoded values, in bytes."""
        now = time.monotonic()
        if self._mean is None or now - self._mean[1] >= _SAMPLE_SECONDS:
            rows = itertools.islice(self._following(position), _SAMPLED)
            sizes = [one.size for one in rows]
            if not sizes:
                return 1.0  # There is nothing to limit.
            self._mean = max(1.0, sum(sizes) / len(sizes)), now
        return self._mean[0]

"""§2.2: transactions that many processes write together; `coordinator` says how."""

from __future__ import annotations

from percola.transactions.jobs.attempt import Attempt, Part, RowWrites
from percola.transactions.jobs.coordinator import (
    LOCK_TIMEOUT,
    TTL_SECONDS,
    JointTransaction,
    forget,
    jobs_before,
    new_run,
)
from percola.transactions.jobs.job_row import (
    JOBS,
    JobOverError,
    JointError,
    RowChangedError,
    RowInTwoPartitionsError,
    RowLockedError,
    RowWrittenTwiceError,
    SupersededError,
)

__all__ = [
    "JOBS",
    "LOCK_TIMEOUT",
    "TTL_SECONDS",
    "Attempt",
    "JobOverError",
    "JointError",
    "JointTransaction",
    "Part",
    "RowChangedError",
    "RowInTwoPartitionsError",
    "RowLockedError",
    "RowWrites",
    "RowWrittenTwiceError",
    "SupersededError",
    "forget",
    "jobs_before",
    "new_run",
]

"""§2.2: transactions that many processes write together: `percola.joint.transaction` says how."""

from __future__ import annotations

from percola.joint.attempt import Attempt, RowWrites
from percola.joint.legs import Part
from percola.joint.row import (
    JOBS,
    JobOverError,
    JointError,
    RowInTwoPartitionsError,
    RowLockedError,
    SupersededError,
)
from percola.joint.transaction import (
    PATIENCE,
    TTL_SECONDS,
    JointTransaction,
    forget,
    jobs_before,
    new_run,
)

__all__ = [
    "JOBS",
    "PATIENCE",
    "TTL_SECONDS",
    "Attempt",
    "JobOverError",
    "JointError",
    "JointTransaction",
    "Part",
    "RowInTwoPartitionsError",
    "RowLockedError",
    "RowWrites",
    "SupersededError",
    "forget",
    "jobs_before",
    "new_run",
]

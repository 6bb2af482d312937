"""§2.4: the state of a fleet's workers in its driver.

A worker runs as a series of attempts: the jobs that the driver submits for it, and Spark's own
retries of a job's task. Reports of attempts older than the newest are ignored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from percola.spark.fleet.board import Report
from percola.spark.fleet.task import attempts_of


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The driver's view of one worker of a fleet; `str` formats it as one line.

    Attributes:
        worker: its number, from 0.
        state: "waiting" for a free slot of Spark's, "starting", "working", "silent" (no recent
            heartbeat), "resting" between two attempts, "stopped", or "failed" permanently.
        host: the machine that it runs on, or ran on last; None if it never has.
        pid: its process id there.
        transactions: how many of its observers' transactions have committed, in all attempts.
        per_second: the recent rate of committed transactions; 0 unless it works.
        dead_lettered: how often a change was dead-lettered, in its current attempt.
        restarts: how often it was restarted.
        heartbeat: seconds since its last heartbeat was seen; None if there was none.
        error: why it last ended unexpectedly.
    """

    worker: int
    state: str
    host: str | None
    pid: int | None
    transactions: int
    per_second: float
    dead_lettered: int
    restarts: int
    heartbeat: float | None
    error: str

    def __str__(self) -> str:
        where = f" on {self.host}, process {self.pid}" if self.host else ""
        text = (
            f"worker {self.worker}: {self.state}{where}; {self.transactions:,} transactions, "
            f"{self.per_second:,.0f} a second; {self.restarts} restarts"
        )
        if self.heartbeat is not None:
            text += f"; last heartbeat {self.heartbeat:.1f} s ago"
        return f"{text}; {self.error}" if self.error else text


class Place:
    """One worker of the fleet: its attempts and last report. Protected by the fleet's guard."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.state = "submitted"
        self.group = ""
        self.attempt = 0
        self.again: dict[int, int] = {}
        """Spark's own retries, by attempt."""
        self.epoch = 0
        self.report: Report | None = None
        self.heard = 0.0
        self.past = 0
        """Transactions of attempts that have ended."""
        self.error = ""
        self.cancelled = False

    def begin(self, fleet: str) -> None:
        self.attempt += 1
        self.group = f"{fleet}/{self.worker}/{self.attempt}"
        self.state, self.cancelled = "submitted", False

    def hear(self, epoch: int, report: Report) -> None:
        if epoch < self.epoch:
            return
        attempt, again = attempts_of(epoch)
        self.again[attempt] = max(again, self.again.get(attempt, 0))
        if epoch > self.epoch and self.report is not None:
            self.past += self.report.transactions
        if epoch > self.epoch or self.report is None or report.beat != self.report.beat:
            self.heard = time.monotonic()
        self.epoch, self.report = epoch, report

    @property
    def is_heard(self) -> bool:
        """Whether the current attempt has reported."""
        return self.report is not None and attempts_of(self.epoch)[0] == self.attempt

    @property
    def restarts(self) -> int:
        """How often the worker was restarted, by the driver or by Spark."""
        return max(0, self.attempt - 1) + sum(self.again.values())

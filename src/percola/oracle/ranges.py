"""§2.3: timestamp ranges, reserved in the store and handed out from memory by one process at a
time.

    record in the store    limit 3,000,000 · held by A · lease 3 s
    A's memory             next 2,412,007 … up to the limit
    B, a standby           watches the record; takes it over when A has let its lease run out

No timestamp is handed out twice: before a process hands one out, it has raised the limit above it,
by a compare-and-swap on the record (`percola.oracle.record`), and it begins above the limit it
found. This needs no clock and no lease: it holds however slow a process is.

Timestamps only go up (rule P1), also from one holder to the next. That takes more: an old holder
that is merely slow has lower timestamps left, and must not hand them out once the new one has
begun. So a holder hands out under a lease:

    the holder       notes the time, then sends the record, and hands out until `lease` after the
                     time that it noted: the write may have taken long, its answer longer
    the successor    waits `lease` and a tenth from when a *reply* showed this version of the
                     record, then replaces exactly this version

Let the holder's record be written at a moment w. The holder noted its time before w, so it stops
before w + lease. The successor received its reply after w, so it sends after w + 1.1 lease, and if
its write is applied there was no later version that could have extended the holder's lease. Each
measures durations by its own clock, which keeps running while the machine sleeps. Times of day are
never compared. The only assumption on clocks is that no machine's clock runs more than a tenth
faster than another's. A virtual machine whose clock stops while it is paused from outside violates
it; so would machines configured with different leases, which is why the lease is stored in the
record.

A holder reads its clock *after* the request arrived and *before* it takes the timestamp, under one
lock. If it is stopped between the two and resumes much later, the timestamp counts as drawn when
the clock was read: that is before any successor began and after every draw that had ended when this
one was requested. Linearizability requires no more, nor does §2.3: a transaction W that gets such a
late commit_ts had written its locks before it asked, so before a reader drew a higher start_ts from
a successor.

A lost reply leaves the outcome open: the record is read, and until it shows whether the write was
applied, the same mutation is sent again, with the time noted when it was first sent. A holder whose
lease has expired and whose record is unchanged renews it and continues: no successor has begun in
between.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from percola.clock import elapsed
from percola.errors import StoreError, UsageError
from percola.oracle.record import ORACLE_TABLE, Record, newest, replacement
from percola.store.base import Store

HIGHEST: Final = 9_200_000_000_000_000
"""The highest timestamp that is handed out: Bigtable stores none above 2⁶³ / 1000."""

LEASE_SECONDS: Final = 3.0
RANGE: Final = 1_000_000

RATE: Final = 1.1
"""How many times faster one machine's clock may run than another's."""

_LOOK_SECONDS: Final = 0.5
"""A standby reads the record at least this often, so that it soon notices a clean stop."""


class Refused(NamedTuple):
    """Why no timestamp was handed out. `elsewhere`: another process may hand them out."""

    elsewhere: bool
    why: str


class Plan(NamedTuple):
    """A write of the record: the record it replaces, its noted time, and where a new range begins.

    `first` is None if the range in memory stays in use.
    """

    replaces: Record | None
    record: Record
    noted: float
    first: int | None


class Ranges:
    """One process's part in handing out timestamps; safe to use from many threads.

    One thread calls `step` repeatedly, which does everything that needs the store; `draw` and
    `last` answer from memory.

    Args:
        store: where the record is stored.
        name: a name of this process for people, such as its address.
        lease: seconds for which it may hand out without renewing the record.
        size: how many timestamps are reserved at a time, and lost when it is killed.
        above: begin above this timestamp, whatever the record says.
        clock: seconds that only go up; see `percola.clock.elapsed`.

    Raises UsageError for invalid numbers.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        lease: float = LEASE_SECONDS,
        size: int = RANGE,
        above: int = 0,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        if not 0.05 <= lease <= 3600:
            raise UsageError(f"The oracle's lease must be from 0.05 to 3600 seconds, not {lease}.")
        if not 1 <= size <= 10**9:
            raise UsageError(f"The oracle can reserve from 1 to 10⁹ at a time, not {size}.")
        if not 0 <= above < HIGHEST:
            raise UsageError(f"Timestamps go from 1 to {HIGHEST}: none is above {above}.")
        self.size = size
        self.source = ""
        """The source's identity; empty until the record was first read."""
        self.wake = threading.Event()
        """Set when `step` should be called early."""
        self.takeovers = 0
        self.writes = 0
        self._store = store
        self._name = name
        self._holder = secrets.token_hex(8)
        self._lease_ms = round(lease * 1000)
        self._above = above
        self._clock = clock
        self._stepping = threading.Lock()
        self._changed = threading.Condition()
        # The record as last read or written, and since when it is known.
        self._found: Record | None = None
        self._since = 0.0
        # A write of the record whose outcome is not known.
        self._plan: Plan | None = None
        # The rest is guarded by `_changed`.
        self._holds = False
        self._stopped = False
        self._noted = -math.inf
        self._until = -math.inf
        self._next = 1
        self._end = 1
        self._short = False

    # --- Handing out --------------------------------------------------------------------

    def draw(self, count: int, timeout: float = 0.0) -> int | Refused:
        """Hand out `count` timestamps; returns the first, or the reason for a refusal.

        Waits up to `timeout` seconds for the next range, or for the lease to be renewed.
        Raises UsageError for more than `size` of them, or none.
        """
        if not 1 <= count <= self.size:
            raise UsageError(f"From 1 to {self.size} timestamps can be drawn at once, not {count}.")
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                refused = self._refusal()
                if refused is None:
                    first = self._next
                    if first + count <= self._end:
                        self._next = first + count
                        if not self._short and self._end - self._next < self.size // 2:
                            self._short = True
                            self.wake.set()
                        return first
                    refused = Refused(False, "The next range of timestamps is being reserved.")
                    self._short = True
                    self.wake.set()
                left = until - time.monotonic()
                if refused.elsewhere or left <= 0:
                    return refused
                self._changed.wait(left)

    def last(self) -> int | Refused:
        """The highest timestamp handed out so far by any process; or why it is not known.

        Right after a take-over it is the limit that was found: no process handed out a higher one,
        and none will hand out a lower one.
        """
        with self._changed:
            return self._refusal() or self._next - 1

    def _refusal(self) -> Refused | None:
        """Why nothing can be handed out now. Safety depends on this one reading of the clock."""
        if self._stopped:
            return Refused(True, f"The oracle {self._name} is stopping.")
        if not self._holds:
            found = self._found
            holder = (
                f"{found.name} holds the lease" if found and found.holder else "nobody holds it"
            )
            return Refused(
                True, f"The oracle {self._name} is on standby; when it looked, {holder}."
            )
        if self._clock() >= self._until:
            return Refused(True, f"The oracle {self._name} could not renew its lease in the store.")
        return None

    @property
    def holds(self) -> bool:
        """Whether this process could hand out timestamps a moment ago."""
        with self._changed:
            return self._refusal() is None

    # --- The record ---------------------------------------------------------------------

    def step(self) -> float:
        """Read the record, renew it or take it over, whichever is due.

        Returns after how many seconds to call it again, unless `wake` is set before. Raises
        StoreError if the store fails (call it again a little later; timestamps are handed out for
        as long as the lease lasts), or if the record is missing or older than before.
        """
        with self._stepping:
            if self._stopped:
                return math.inf
            if self._plan is not None or not self._holds:
                self._look()
            if self._plan is None:
                self._plan = self._due()
            if self._plan is not None:
                self._carry_out(self._plan)
            return self._pause()

    def _look(self) -> None:
        found = newest(self._store)
        # Only now: when the read was sent, the record may not have been written yet.
        now = self._clock()
        plan, known = self._plan, self._found
        if plan is not None and found == plan.record:
            self._adopt(plan)
            return
        if known is not None and (found is None or found.version < known.version):
            with self._changed:
                self._holds = False
            raise StoreError(
                f"The oracle's record in the table {ORACLE_TABLE!r} is gone or was set back: no "
                "timestamp can be handed out that is sure to be above all others. If the store "
                "was restored or emptied, start the oracles again, with --above and the highest "
                "timestamp that it may hold."
            )
        if plan is not None and found != plan.replaces:
            self._plan = None  # It can never be applied any more.
        if found is not None and found != known:
            with self._changed:
                self._found, self._since, self._holds = found, now, False
                self.source = found.source

    def _due(self) -> Plan | None:
        """The write of the record that is due, if any."""
        noted, found = self._clock(), self._found
        version = found.version + 1 if found else 1
        source = found.source if found else secrets.token_hex(8)
        if self._holds and found is not None:
            with self._changed:
                drawn = self._next - 1
                low = self._short or self._end - self._next < self.size // 2
                limit = max(found.limit, drawn + self.size) if low else found.limit
            if not low and noted < self._noted + self._lease_ms / 3000:
                return None
            first = None
        else:
            if found and found.holder and noted < self._since + found.lease_ms / 1000 * RATE:
                return None
            drawn = max(found.limit if found else 0, self._above)
            limit = drawn + self.size
            first = drawn + 1
        if limit > HIGHEST:
            raise StoreError(f"The timestamps are used up: they end at {HIGHEST}.")
        record = Record(version, limit, self._holder, self._name, self._lease_ms, source)
        return Plan(found, record, noted, first)

    def _carry_out(self, plan: Plan) -> None:
        self.writes += 1
        if self._store.mutate([replacement(plan.replaces, plan.record)])[0]:
            self._adopt(plan)
        else:
            # Another process's record is there, or ours was applied and the reply was lost.
            self._look()

    def _adopt(self, plan: Plan) -> None:
        """Adopt a record that this process has written as planned."""
        with self._changed:
            self._plan = None
            self._found = plan.record
            self._holds = True
            self._noted = plan.noted
            self._until = plan.noted + plan.record.lease_ms / 1000
            self._end = plan.record.limit + 1
            if plan.first is not None:
                self._next = plan.first
                self.takeovers += 1
            self._short = False
            self.source = plan.record.source
            self._changed.notify_all()

    def _pause(self) -> float:
        lease, now = self._lease_ms / 1000, self._clock()
        if self._plan is not None:
            return lease / 20
        if self._holds:
            return max(0.0, self._noted + lease / 3 - now)
        # A standby reads often enough to see a new version soon after it was written.
        found = self._found
        due = self._since + found.lease_ms / 1000 * RATE if found and found.holder else now
        return min(lease / 6, _LOOK_SECONDS, max(lease / 100, due - now))

    def release(self, timeout: float = 5.0) -> None:
        """Stop handing out timestamps, and let a successor begin at once. Idempotent.

        Waits up to `timeout` seconds for a running `step`. Raises StoreError if the store fails:
        then a successor waits for the lease to expire.
        """
        with self._changed:
            if self._stopped:
                return
            self._stopped = True
            self._changed.notify_all()
        self.wake.set()
        if not self._stepping.acquire(timeout=timeout):
            raise StoreError(f"The store did not answer for {timeout:g} s.")
        try:
            if self._plan is not None:
                self._look()
            found = self._found
            if self._plan is not None or not self._holds or found is None:
                return
            # Nothing above `_next` - 1 was or will be handed out: the successor leaves no gap.
            record = found._replace(version=found.version + 1, limit=self._next - 1, holder="")
            self._store.mutate([replacement(found, record)])
            self._holds = False
        finally:
            self._stepping.release()

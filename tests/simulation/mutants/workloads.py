"""Workloads that make it likelier that a mutant shows, or that claim what costs only time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

from percola import Observer, Repository, Table, Transaction, feed, observer
from percola.errors import (
    CommitUnknownError,
    LockTimeoutError,
    RetriesExhaustedError,
    RolledBackError,
    StoreError,
    TransientError,
)
from percola.gc.collector import GarbageCollector
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import (
    Client,
    FaultKind,
    SimulatedCoordination,
    Simulation,
    Sizes,
    Workload,
)
from tests.simulation.workloads.appends import Appends
from tests.simulation.workloads.bank import Bank, balance
from tests.simulation.workloads.collapsing import Collapsing
from tests.simulation.workloads.counters import Counters
from tests.simulation.workloads.following import FEED_LATER, INDEX_LATER, Following, docs
from tests.simulation.workloads.large import Large
from tests.simulation.workloads.register import Register, value
from tests.simulation.workloads.skew import WriteSkew

_HURRY = 0.03
_RETENTION = 10.0
_CYCLES = 8

LATE = (FaultKind.DUPLICATED, FaultKind.LATE, FaultKind.SLOW)
"""What brings a prewrite to the store after its transaction was rolled back."""


class Hasty(Workload):
    """A world in which everybody is in a hurry: locks live for milliseconds."""

    lock_ttl_seconds = 0.004
    pause = 0.004

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        simulation.world.longest_delay = _HURRY


class HastyBank(Hasty, Bank):
    """The bank among people in a hurry, who pay everybody at once: locks live for milliseconds,
    so that many transactions are rolled back while they are still under way, and what is late
    comes soon after."""

    name = "hasty bank"
    sizes: ClassVar[Sizes] = {"accounts": (3, 6), "clients": (2, 4), "turns": (4, 10)}

    def transfer(self, client: Client) -> None:
        payer, *payees = client.rng.sample(self.names(), len(self.names()))

        def move(t: RecordedTransaction) -> None:
            t.set(balance, payer, (t.get(balance, payer) or 0) - len(payees))
            for payee in payees:
                t.set(balance, payee, (t.get(balance, payee) or 0) + 1)

        client.transact(move)


class HastyAppends(Hasty, Appends):
    """List-append in the same hurry."""

    name = "hasty list-append"
    sizes: ClassVar[Sizes] = {"lists": (3, 6), "clients": (2, 4), "turns": (4, 10)}


MILD = (
    FaultKind.REPLY_LOST,
    FaultKind.LATE,
    FaultKind.DUPLICATED,
    FaultKind.SLOW,
    FaultKind.PAUSED,
    FaultKind.TABLET_SPLIT,
)
"""Faults under which every process lives on, keeps its token, and is heard of in time."""


def _check_nobody_is_killed(workload: Workload) -> None:
    """No client that lives, and says so, has been rolled back by another (P8)."""
    for event in workload.simulation.world.trace:
        if event.what == "conflicted" and isinstance(event.details[1], RolledBackError):
            workload.violate(
                f"{event.who} was alive and showed it, and another one rolled back its "
                f"transaction of {event.details[0]}."
            )


class Patient(Bank):
    """The bank among the living, under `MILD` faults: who is only slow is waited for, and
    nobody waits in vain."""

    name = "patient bank"
    sizes: ClassVar[Sizes] = {"accounts": (2, 3), "turns": (3, 8)}
    lock_ttl_seconds = 30.0

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        simulation.world.longest_delay = 0.1

    def at_rest(self, repo: Repository) -> None:
        super().at_rest(repo)
        _check_nobody_is_killed(self)
        for event in self.simulation.world.trace:
            if event.what == "conflicted" and isinstance(event.details[1], LockTimeoutError):
                self.violate(f"{event.who} waited in vain: {event.details[1]}")
            if event.what == "reads":
                _, ts, (lock, _, _) = event.details
                if lock is not None and lock[0] > ts:
                    self.violate(
                        f"{event.who}, reading at {ts}, is held up by a lock of {lock[0]}: what "
                        "that will write is none of its business."
                    )


class PatientLarge(Large):
    """Large transactions in a world without faults, which take longer than their locks live
    unless they are refreshed."""

    name = "patient large"
    sizes: ClassVar[Sizes] = {"rows": (40, 60), "turns": (1, 2)}
    lock_ttl_seconds = 0.05

    def at_rest(self, repo: Repository) -> None:
        super().at_rest(repo)
        _check_nobody_is_killed(self)


class Alone(Bank):
    """A single client, under `MILD` faults: there is nobody to conflict with."""

    name = "alone"
    sizes: ClassVar[Sizes] = {"accounts": (2, 4), "clients": (1, 1), "turns": (3, 10)}
    lock_ttl_seconds = 30.0

    def at_rest(self, repo: Repository) -> None:
        super().at_rest(repo)
        for event in self.simulation.world.trace:
            if event.what == "conflicted":
                self.violate(f"{event.who} is alone, and conflicts: {event.details[1]}")


tallies = Table("tallies")
total = tallies.column("total", int)


class Tallies(Workload):
    """Clients add to a few tallies through `Repository.run`, which retries."""

    name = "tallies"
    tables = (tallies,)
    sizes: ClassVar[Sizes] = {"tallies": (1, 2), "turns": (3, 8)}

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.added: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def turn(self, client: Client, number: int) -> None:
        row = f"tally {client.rng.randrange(self.size('tallies'))}"
        # Until it is known: the client may die meanwhile.
        self.unknown[row] += 1
        try:
            client.repo.run(lambda t: t.set(total, row, (t.get(total, row) or 0) + 1), attempts=8)
        except CommitUnknownError:
            return
        except (StoreError, RetriesExhaustedError):
            pass
        else:
            self.added[row] += 1
        self.unknown[row] -= 1

    def at_rest(self, repo: Repository) -> None:
        for number in range(self.size("tallies")):
            row = f"tally {number}"
            found = repo.snapshot().get(total, row) or 0
            least, most = self.added[row], self.added[row] + self.unknown[row]
            if not least <= found <= most:
                self.violate(
                    f"{row} says {found}, and from {least} to {most} were added to it.",
                    (total, row),
                )


# --- Garbage collection -------------------------------------------------------------------


def _collect(client: Client, retention: float = 0.0) -> None:
    try:
        GarbageCollector(client.repo.context, retention=retention).collect()
    except (StoreError, TransientError) as error:
        client.note(f"collects no further: {error}")


OF_PRUNING = (
    FaultKind.DIES,
    FaultKind.SLOW,
    FaultKind.PAUSED,
    FaultKind.TOKEN_LOST,
    FaultKind.CALL_LOST,
)
"""Faults that need no retention: no call arrives after its caller has gone on."""


class HastyPruned(HastyBank):
    """The hasty bank beside a collector that keeps what may still be asked for."""

    name = "hasty pruned bank"
    sizes: ClassVar[Sizes] = {"accounts": (3, 6), "clients": (4, 5), "turns": (6, 12)}

    def turn(self, client: Client, number: int) -> None:
        if client.number == 1:
            for _ in range(_CYCLES):
                _collect(client, _RETENTION)
        else:
            super().turn(client, number)


class Pruned(Workload):
    """One client collects all garbage all the time. Nobody is told which snapshots are in use:
    leases are a courtesy, never a proof."""

    def patched(self) -> Any:
        return mock.patch.object(SimulatedCoordination, "hold_back")

    def turn(self, client: Client, number: int) -> None:
        if client.number == 1:
            _collect(client)
        else:
            super().turn(client, number)


class PrunedBank(Pruned, Bank):
    """The bank, with one client that collects all garbage all the time."""

    name = "pruned bank"
    sizes: ClassVar[Sizes] = {"accounts": (3, 6), "clients": (3, 4), "turns": (4, 12)}


class SlowRegisters(Register):
    """Registers that are deleted often, by transactions that take their time."""

    sizes: ClassVar[Sizes] = {"rows": (1, 2), "clients": (3, 4), "turns": (4, 12), "long": (0, 1)}

    def turn(self, client: Client, number: int) -> None:
        row = f"r{client.rng.randrange(self.size('rows'))}"
        new = f"{client.number}/{number}" + "." * (300 if self.size("long") else 0)
        deletes = client.rng.random() < 0.4

        def change(t: RecordedTransaction) -> None:
            t.get(value, row)
            client.think(0.05)
            t.get(value, "r0")
            if deletes:
                t.delete(value, row)
            else:
                t.set(value, row, new)

        client.transact(change)


class PrunedRegisters(Pruned, SlowRegisters):
    """Such registers, pruned too."""

    name = "pruned registers"


class PrunedSkew(Pruned, WriteSkew):
    """Doctors who lock what they read, and a collector."""

    name = "pruned write-skew"
    sizes: ClassVar[Sizes] = {"careful": (1, 1), "clients": (3, 4), "turns": (4, 12)}


# --- What notifications cost --------------------------------------------------------------

letters = Table("letters")
text = letters.column("text", str, observed=True)
stamp = letters.column("stamp", str)
archive = letters.column("archive", str)


class WakeUp(Workload):
    """Workers that scan next to never: a commit must wake them. Every commit sends its
    wake-up, and every wake-up arrives."""

    name = "wake-up"
    tables = (letters,)
    sizes: ClassVar[Sizes] = {"letters": (1, 3), "clean": (0, 0)}
    options = replace(Workload.options, rescan=1e6, sweep=1e6)
    pause = 0.2

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(text)
        def stamps(t: Transaction, row: str) -> None:
            t.set(stamp, row, (t.get(text, row) or "")[:1])

        return [stamps]

    def set_up(self, client: Client) -> None:
        def file(t: RecordedTransaction) -> None:
            for number in range(self.size("clean")):
                t.set(archive, f"filed {number:03}", "long ago")

        client.transact(file)

    def turn(self, client: Client, number: int) -> None:
        row = f"letter {client.rng.randrange(self.size('letters'))}"
        client.transact(lambda t: t.set(text, row, f"{number} words"))

    def at_rest(self, repo: Repository) -> None:
        for row in repo.snapshot().scan(letters, columns=[text, stamp]):
            if row.get(stamp) != row[text][:1]:
                self.violate(f"{row.key} was not stamped.", (text, row.key), (stamp, row.key))


class Archive(WakeUp):
    """Few letters among many that were filed long ago: nobody looks at those for work."""

    name = "archive"
    sizes: ClassVar[Sizes] = {"letters": (1, 3), "clean": (20, 60)}
    options = Workload.options

    def at_rest(self, repo: Repository) -> None:
        super().at_rest(repo)
        for event in self.simulation.world.trace:
            if event.what == "looks" and event.details[0].row.startswith(b"filed"):
                self.violate(
                    f"{event.who} looked for work at {event.details[0]}, which nobody has changed."
                )


class Diary(WakeUp):
    """The observer leaves an entry of its own for each of its runs: two runs for one change do
    not meet in what they write, only in their acknowledgment."""

    name = "diary"
    options = Workload.options

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(text)
        def writes_down(t: Transaction, row: str) -> None:
            t.set(archive, f"{row}/{t.start_ts:06}", t.get(text, row) or "")

        return [writes_down]

    def at_rest(self, repo: Repository) -> None:
        for number in range(self.size("letters")):
            row = f"letter {number}"
            changes = sorted(ts for ts, _ in repo.versions(text, row))
            entries = repo.snapshot().scan(letters, prefix=f"{row}/", columns=[archive])
            seen = 0
            for entry in entries:
                start_ts = int(entry.key.rpartition("/")[2])
                if not any(seen < ts <= start_ts for ts in changes):
                    self.violate(
                        f"{entry.key} was written down for nothing new: the changes are at "
                        f"{changes}, and there was a run at {seen} (N3).",
                        (text, row),
                        (archive, entry.key),
                    )
                seen = start_ts
            if changes and changes[-1] > seen:
                self.violate(f"The last change of {row}, at {changes[-1]}, was not written down.")


class ApartCounters(Counters):
    """Counters on a store that keeps notify entries apart."""

    name = "apart counters"
    has_notify_table = True


class ApartCollapsing(Collapsing):
    """Changes answered together, on a store that keeps notify entries apart."""

    name = "apart collapsing"
    has_notify_table = True


APART = (ApartCounters, ApartCollapsing)


class Indexed(Following):
    """Followers of feeds that have an index, which they have in some seeds only otherwise."""

    name = "indexed"
    has_feed_index = True


class Hurried(Indexed):
    """Followers who look again at once, beside writers whose calls take long."""

    name = "hurried"
    sizes: ClassVar[Sizes] = {"clients": (3, 5), "turns": (5, 10), "rows": (2, 4), "begins": (0, 0)}
    pause = 0.01
    lock_ttl_seconds = 1.0


class Leased(Hurried):
    """The same with leases during which most of them commit; nobody collects."""

    name = "leased"
    lease = 0.3
    collects = 0.0

    def follow(self, client: Client) -> None:
        for _ in range(3):
            self.note_settled(feed.settled(client.repo, docs))
        super().follow(client)


class Tidying(Hurried):
    """The same, and mostly they collect garbage."""

    name = "tidying"
    collects = 0.6


class Beginning(Indexed):
    """The feed, or its index alone, begins beside the writers."""

    name = "beginning"
    sizes: ClassVar[Sizes] = {**Following.sizes, "begins": (FEED_LATER, INDEX_LATER)}

"""Programs with a seeded bug, for the test that the crash tests would find one."""

from __future__ import annotations

from dataclasses import replace

from percola import Repository
from percola.cells import Cell, Kind, LockRecord
from percola.store.base import Delete, Put
from percola.transactions import two_phase
from percola.transactions.lock_resolver import ROLLED_BACK, Fate, LockResolver, commit_changes
from tests.crash import ledger, scenarios
from tests.crash.boundaries import Act, Scenario
from tests.crash.killing import KillingStore


def _without_notify(
    column: bytes,
    start_ts: int,
    commit_ts: int,
    lock: LockRecord,
    has_notify_table: bool,
    decides: bool = False,
) -> list[Put | Delete]:
    changes = commit_changes(column, start_ts, commit_ts, lock, has_notify_table, decides)
    return [one for one in changes if one.kind is not Kind.NOTIFY]


def commit_without_notifying(repo: Repository, store: KillingStore) -> None:
    """Against rule N1: the writer leaves the notify entries to a later step, and dies before."""
    setattr(two_phase, "commit_changes", _without_notify)  # noqa: B010  # not its own name
    scenarios.in_two_phases(repo, store)


def _never_committed(
    self: LockResolver, primary: Cell, start_ts: int, *, force: bool = False
) -> Fate:
    return ROLLED_BACK


def roll_back_what_is_committed(repo: Repository, _: KillingStore) -> None:
    """A cleaner that does not ask the primary."""
    LockResolver.fate = _never_committed  # type: ignore[method-assign]
    for _row in repo.snapshot().scan(ledger.orders):
        pass


def collect_without_resolving(repo: Repository, store: KillingStore) -> None:
    """Against rule P12: the collector takes every lock's transaction for rolled back."""
    LockResolver.fate = _never_committed  # type: ignore[method-assign]
    repo.collect_garbage(retention=0)


def _with_act(name: str, act: Act) -> Scenario:
    original = next(one for one in scenarios.SCENARIOS if one.name == name)
    return replace(original, name=f"{name}, broken", act=act, phases=frozenset())


BROKEN = [
    _with_act("a writer in two phases", commit_without_notifying),
    _with_act("a reader rolling forward", roll_back_what_is_committed),
    _with_act("a collector that rolls forward", collect_without_resolving),
]

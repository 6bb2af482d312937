"""What an operator should look at, in sentences: the thresholds are those of the alert rules.

Each is a state at this moment; the alerts of `deploy/prometheus` wait for a while before they fire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from percola.platform.text import count
from percola.serve.shown import age, duration, size
from percola.serve.view import ObserverState, View

START: Final = "percola worker MODULE:NAME"
"""How a worker is started, if an application has no command of its own."""

_WAITS: Final = 300.0
_SLOW: Final = 60.0
_CONFLICTS: Final = 10
_LOCKED: Final = 600.0
_LOW_DISK: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to look at.

    Attributes:
        what: one sentence that says what is wrong.
        do: one sentence that says what to do; perhaps empty.
        alert: the section of the runbook about it; empty for none.
        is_urgent: whether work stands still or fails, rather than being slow or kept back.
    """

    what: str
    do: str
    alert: str = ""
    is_urgent: bool = True


def problems(view: View, start_command: str = START, *, can_act: bool = False) -> list[Problem]:
    """The problems that a view shows, the urgent ones first.

    `start_command` starts a worker; `can_act` is whether the page has buttons to retry and resume.
    """
    found: list[Problem] = []
    for one in view.observers:
        since = "" if view.letters is not None else " since the workers started"
        found += _of_observer(one, since, has_workers=bool(view.workers), can_act=can_act)
    if not view.workers:
        waiting = sum(one.waiting for one in view.observers)
        then = "Changes will wait"
        if waiting:
            then = f"{count(waiting, 'change')} {'waits' if waiting == 1 else 'wait'}"
        found.insert(
            0,
            Problem(
                f"No worker is running. {then}.",
                f"Start one: {start_command}.",
                "PercolaNoWorker",
                is_urgent=waiting > 0,
            ),
        )
    if view.locks and view.locks[0].age_s > _LOCKED:
        lock = view.locks[0]
        owner = "a process that is alive" if lock.held.owner_alive else "a process that has ended"
        if not lock.held.record.owner:
            owner = lock.held.record.owner_name
        found.append(
            Problem(
                f"A lock of {owner} is {duration(lock.age_s)} old.",
                "Readers of its cell wait. See Locks below.",
                "PercolaLocksOld",
            )
        )
    kept, safe_point_s = view.retention, view.safe_point_s
    if kept is not None and safe_point_s is not None and safe_point_s > 2 * kept + 3600:
        found.append(
            Problem(
                f"Old versions are kept for {duration(safe_point_s)}, and the retention is "
                f"{duration(kept)}.",
                "See Safe point below for what holds it back.",
                "PercolaGarbageKept",
                is_urgent=False,
            )
        )
    if view.free_bytes is not None and view.free_bytes < _LOW_DISK:
        found.append(
            Problem(
                f"The disk has {size(view.free_bytes)} left.",
                "Free space: commits fail when it is full.",
            )
        )
    return sorted(found, key=lambda one: not one.is_urgent)


def _of_observer(
    one: ObserverState, since: str, *, has_workers: bool, can_act: bool
) -> list[Problem]:
    found = []
    retry = "retry below" if can_act else f"run 'percola failed retry --observer {one.name}'"
    resume = "Resume it below" if can_act else f"Run 'percola observers resume {one.name}'"
    if one.dead:
        found.append(
            Problem(
                f"{count(one.dead, 'change')} of {one.name} "
                f"{'is' if one.dead == 1 else 'are'} dead-lettered{since}: it kept failing on "
                f"{'it' if one.dead == 1 else 'them'}.",
                f"Correct the observer or the data, then {retry}.",
                "PercolaDeadLetters",
            )
        )
    if one.paused is not None:
        reason = f" ({one.paused.reason})" if one.paused.reason else ""
        found.append(
            Problem(
                f"{one.name} is paused{reason}, and {count(one.waiting, 'change')} "
                f"{'waits' if one.waiting == 1 else 'wait'}.",
                f"{resume} when it may run again.",
                "PercolaObserverPaused",
                is_urgent=False,
            )
        )
    elif one.is_column:
        found.append(
            Problem(
                f"{count(one.waiting, 'change')} of the column {one.name} "
                f"{'waits' if one.waiting == 1 else 'wait'}, and no observer is known for it.",
                "Start the worker whose observer it is.",
                is_urgent=has_workers,
            )
        )
    elif one.waiting and has_workers and not one.processes:
        found.append(
            Problem(
                f"No worker runs {one.name}, and {count(one.waiting, 'change')} "
                f"{'waits' if one.waiting == 1 else 'wait'}.",
                "Start a worker with it.",
                "PercolaNoWorker",
            )
        )
    elif one.oldest_s is not None and one.oldest_s > _WAITS:
        found.append(
            Problem(
                f"A change has waited for {one.name} for {age(one.oldest_s, one.at_least)}.",
                "See whether it fails, or has too much to do.",
                "PercolaChangesWait",
            )
        )
    if (speed := one.speed) is not None:
        if speed.recent_conflicts > max(_CONFLICTS, speed.recent_runs):
            found.append(
                Problem(
                    f"{one.name} conflicts more often than it commits: {speed.recent_conflicts:,} "
                    f"times in the last minute, and {count(speed.recent_runs, 'run')} committed.",
                    "Several of its runs write the same cells.",
                    "PercolaObserverConflicts",
                    is_urgent=False,
                )
            )
        if speed.p95 is not None and speed.p95 > _SLOW and not one.paused:
            found.append(
                Problem(
                    f"{one.name} answers slowly: of the last minute's changes, one in twenty had "
                    f"waited for {duration(speed.p95)} or longer.",
                    "See whether it has a backlog.",
                    "PercolaAnswersSlow",
                    is_urgent=False,
                )
            )
    return found

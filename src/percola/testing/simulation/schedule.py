"""The schedule: which task runs next, in virtual time.

Every thread of every simulated process is a greenlet. Whenever one makes a call (to the store, the
oracle, the lock service) or sleeps, it gives the duration and yields; the schedule resumes the task
that is due next. The latencies come from seeded randomness, and so does the interleaving; virtual
time advances only by them: an hour costs nothing.

Threads never run at the same time, and run without interruption between two such points.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from percola import extras
from percola.errors import PercolaError

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise ImportError(
        extras.missing("percola.testing.simulation", error, "testing"), name=error.name
    ) from error

_STEPS: Final = 1_000_000


class Died(BaseException):
    """The end of a simulated process: it unwinds, and whatever it calls on its way does nothing."""


class NoRestError(PercolaError):
    """The simulated processes do not terminate."""


class Mortal:
    """What a task belongs to and dies with: a process.

    Attributes:
        name: as the story calls it.
        is_dead: whether it has died; its tasks learn of it when they would go on.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False


class Task:
    """A thread of a simulated process."""

    __slots__ = ("ended", "greenlet", "owner", "ticket")

    def __init__(self, owner: Mortal) -> None:
        self.owner = owner
        self.greenlet: greenlet
        # Says which of its wake-ups counts: one that was called off has an older number.
        self.ticket = 0
        self.ended = False


class Schedule:
    """Runs tasks in turn, and lets time pass.

    Attributes:
        now: seconds since the simulation began.
        steps: how many turns there were.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._events: list[tuple[float, int, Task | Callable[[], None], int]] = []
        self._number = 0
        self._current: Task | None = None
        self._hub: greenlet = getcurrent()
        self._tasks: list[Task] = []
        self._failure: BaseException | None = None

    def start(self, owner: Mortal, function: Callable[[], None], after: float = 0.0) -> Task:
        """Start a thread of a process, after some seconds.

        A failure of the function, other than the process's death, ends the simulation.
        """
        task = Task(owner)

        def body() -> None:
            try:
                if not owner.is_dead:
                    function()
            except Died:
                pass
            except BaseException as error:
                self.fail(error)
            finally:
                task.ended = True

        task.greenlet = greenlet(body, parent=self._hub)
        self._tasks.append(task)
        self._push(self.now + after, task, 0)
        return task

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after some seconds; it takes no time and does not yield."""
        self._push(self.now + seconds, action, 0)

    def pause(self, seconds: float) -> None:
        """Let other tasks run for some seconds. Raises Died if the process dies meanwhile."""
        task = self._current
        if task is None:
            return  # Before and after the simulation everything happens at once.
        when = self.now + seconds
        events = self._events
        if events and events[0][0] <= when:
            self._number += 1
            heapq.heappush(events, (when, self._number, task, task.ticket))
            self._hub.switch()
        else:
            # No other task is due before: skip the switch.
            self.now = when
            self.steps += 1
        if task.owner.is_dead:
            raise Died

    def wake(self, task: Task, after: float) -> None:
        """Resume a pausing task earlier: some seconds from now."""
        if not task.ended:
            task.ticket += 1
            self._push(self.now + after, task, task.ticket)

    def fail(self, error: BaseException) -> None:
        """End the simulation with this error, whatever the code that runs now makes of it."""
        self._failure = self._failure or error

    def end(self, owner: Mortal) -> None:
        """Let the tasks of a process that has died learn of it now."""
        for task in self._tasks:
            if task.owner is owner and task is not self._current:
                self.wake(task, 0.0)

    @property
    def current(self) -> Task | None:
        """The task whose turn it is; None outside of all."""
        return self._current

    def run(self, finished: Callable[[], bool], *, longest: float) -> None:
        """Run until `finished`, or until no task is left.

        Raises whatever a task failed with, and NoRestError if that takes longer than
        `longest` seconds.
        """
        end = self.now + longest
        events = self._events
        while events and not finished():
            when, _, what, ticket = heapq.heappop(events)
            if isinstance(what, Task):
                if what.ended or what.ticket != ticket:
                    continue
                self.now = max(self.now, when)
                self.steps += 1
                self._current = what
                what.greenlet.switch()
                self._current = None
            else:
                self.now = max(self.now, when)
                what()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self.now > end or self.steps > _STEPS:
                raise NoRestError(
                    f"After {longest:g} s (and {self.steps} steps in all) it still goes on."
                )

    def close(self) -> None:
        """End every task that is left, as if its process died."""
        for task in self._tasks:
            if not task.ended:
                task.owner.is_dead = True
                self._current = task
                task.greenlet.switch()
        self._current = None
        self._events.clear()

    def _push(self, when: float, what: Task | Callable[[], None], ticket: int) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what, ticket))

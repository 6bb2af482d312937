"""What can be done from the page: retry dead letters, pause and resume observers.

Each is written to the log with the address that asked for it, when it begins and when it ends, and
the last ones are on the page. A retry of many changes goes on in a thread of its own, one after the
other, and shows how far it is.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from percola import inspection
from percola.catalog import stored_schema
from percola.cells import Cell
from percola.errors import PercolaError, UsageError
from percola.observers.observer import Observer
from percola.platform import fork_safety as forks
from percola.platform.text import count, printable
from percola.repository import Repository
from percola.serve import shown
from percola.serve.sampler import END_SECONDS

log = logging.getLogger("percola.serve")

SHOWN: Final = 10
"""Actions that the page lists."""

_RUNNING: Final = 4


class _StoppedError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Action:
    """Something that was asked for on the page.

    Attributes:
        at_ms: when, in milliseconds since the epoch.
        what: what was asked for.
        state: how far it is, or how it ended.
        by: the address that asked.
        is_over: whether it has ended.
        failed: whether it ended with an error.
    """

    at_ms: int
    what: str
    state: str
    by: str
    is_over: bool = False
    failed: bool = False


class Actions:
    """Does what forms ask for. Any thread may ask.

    Args:
        observers: the application's: these can be paused even if no worker runs them.
    """

    def __init__(self, repo: Repository, observers: Iterable[Observer[Any]] = ()) -> None:
        self._repo = repo
        known = {table.name for table in repo.schema}
        self._observers = {one.name: one for one in observers if one.table.name in known}
        self._numbers = itertools.count(1)
        self._start_afresh()
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._last: deque[tuple[int, Action]] = deque(maxlen=SHOWN)
        self._threads: list[threading.Thread] = []
        self._stopping = False

    def last(self) -> list[Action]:
        """The last actions, the newest first."""
        with self._guard:
            return [action for _, action in reversed(self._last)]

    def stop(self) -> None:
        """End what is under way: what it has done stays done.

        Returns when it has ended, or waits in vain for the store.
        """
        self._stopping = True
        for thread in self._threads:
            thread.join(END_SECONDS)

    def ask(self, form: Mapping[str, str], by: str) -> None:
        """Do what a form asks for: the first of its buttons that is known.

        Raises UsageError for a form that asks for nothing that can be done. What goes wrong later
        is shown with the action.
        """
        if (name := form.get("retry")) is not None:
            cell, observer = decode_letter(name)
            # With tables that are newer than the server.
            schema = stored_schema(self._repo.context.store).with_codecs_of(self._repo.schema)
            row = shown.row(schema, cell)
            what = f"Retry {observer} on {row} {inspection.column_name(cell)}"

            def retry() -> str:
                if inspection.retry_failure(self._repo, cell, observer):
                    return "made dirty again: a worker will look"
                return "it was not dead-lettered any more"

            self._do(what, by, retry)
        elif observer := form.get("retry_all", ""):
            self._in_background(f"Retry all dead letters of {observer}", by, observer)
        elif observer := form.get("pause", ""):
            reason = form.get(f"reason:{observer}", "").strip()
            what = f"Pause {observer}" + (f": {reason}" if reason else "")
            self._do(what, by, lambda: self._pause(observer, reason))
        elif observer := form.get("resume", ""):
            self._do(f"Resume {observer}", by, lambda: self._resume(observer))
        else:
            raise UsageError("The form asks for nothing that this page can do.")

    def _pause(self, observer: str, reason: str) -> str:
        self._repo.pause_observer(self._observers.get(observer, observer), reason=reason)
        return "paused: no worker begins another run of it"

    def _resume(self, observer: str) -> str:
        self._repo.resume_observer(observer)
        return "resumed: workers run it on what has waited"

    def _do(self, what: str, by: str, function: Callable[[], str]) -> None:
        number = self._begin(what, by)
        try:
            self._end(number, function())
        except PercolaError as error:
            self._end(number, str(error), failed=True)
        except BaseException:
            self._end(number, "it failed: what happened stands in the server's output", failed=True)
            raise

    def _in_background(self, what: str, by: str, observer: str) -> None:
        with self._guard:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) >= _RUNNING:
                raise UsageError(
                    f"{_RUNNING} retries are under way. Wait until one of them has ended."
                )
        number = self._begin(what, by)

        def retry() -> None:
            try:
                retried = inspection.retry_failures(
                    self._repo, observer=observer, progress=lambda far: self._progress(number, far)
                )
                made = f"{count(retried, 'change')} made dirty again"
                self._end(number, f"{made}: workers will look" if retried else "there were none")
            except _StoppedError:
                self._end(number, "the server was stopped", failed=True)
            except PercolaError as error:
                self._end(number, str(error), failed=True)
            except Exception:
                log.exception("%s failed", what)
                self._end(
                    number, "it failed: what happened stands in the server's output", failed=True
                )

        thread = threading.Thread(target=retry, name="percola-retry", daemon=True)
        with self._guard:
            self._threads.append(thread)
        thread.start()

    def _progress(self, number: int, so_far: int) -> None:
        if self._stopping:
            raise _StoppedError
        self._change(number, state=f"{count(so_far, 'change')} so far")

    def _begin(self, what: str, by: str) -> int:
        number = next(self._numbers)
        log.info("%s: asked for by %s", printable(what), by)
        with self._guard:
            at_ms = self._repo.context.clock.wall_ms()
            self._last.append((number, Action(at_ms, what, "begun", by)))
        return number

    def _end(self, number: int, state: str, *, failed: bool = False) -> None:
        action = self._change(number, state=state, is_over=True, failed=failed)
        what = printable(action.what) if action is not None else f"action {number}"
        log.log(logging.ERROR if failed else logging.INFO, "%s: %s", what, printable(state))

    def _change(self, number: int, **fields: object) -> Action | None:
        with self._guard:
            for place, (known, action) in enumerate(self._last):
                if known == number:
                    changed = replace(action, **fields)  # type: ignore[arg-type]
                    self._last[place] = number, changed
                    return changed
        return None


def encode_letter(cell: Cell, observer: str) -> str:
    """A dead letter's name in forms: rows may be any bytes."""
    parts = [observer, cell.table, cell.row.hex(), cell.column.hex()]
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def decode_letter(name: str) -> tuple[Cell, str]:
    """The cell and the observer of a dead letter; UsageError if the text names none."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(name.encode("ascii")))
        observer, table, row, column = parts
        if all(isinstance(one, str) for one in parts):
            return Cell(table, bytes.fromhex(row), bytes.fromhex(column)), observer
    except (ValueError, TypeError, binascii.Error):
        pass
    raise UsageError("The form names no dead letter.")

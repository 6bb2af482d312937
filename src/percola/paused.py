"""Paused observers, in the system table: no worker begins a run of one until it is resumed.

    @percola["paused"].@observers   version → {NAME: {"columns", "reason", "since"}, …}

One cell has all of them, so that a worker learns with one read which are paused
(`percola.observers.pausing`). Each update is a new version, written on the condition that it is the
next one: of two at once, one reads again. The notify entries of a paused observer stay where they
are, so nothing is lost, and nothing else records what it has to answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from percola.catalog import newest_version, write_version
from percola.cells import Cell
from percola.clock import Clock
from percola.coordination.base import Coordination
from percola.errors import ConflictingOptionsError, DamagedRecordError, UsageError
from percola.store.base import SYSTEM_TABLE, Store

_CELL: Final = Cell(SYSTEM_TABLE, b"paused", b"@observers")
_REASON_CHARACTERS: Final = 1000


class NamedObserver(Protocol):
    """What a pause takes of an observer: its name and its columns."""

    @property
    def name(self) -> str:
        """The key of its acknowledgments."""

    @property
    def columns(self) -> Sequence[Any]:
        """All columns that it observes."""


@dataclass(frozen=True, slots=True)
class PausedObserver:
    """An observer that no worker runs until it is resumed.

    Attributes:
        name: its name.
        columns: the columns that it observes (`table.column`), in order.
        reason: why it was paused, as given; perhaps empty.
        since_ms: when it was paused, by the wall clock of who did, in milliseconds since the epoch.
    """

    name: str
    columns: tuple[str, ...]
    reason: str
    since_ms: int

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name


def name_of(observer: str | NamedObserver) -> str:
    """The name of an observer that is given as such, or by it; UsageError for anything else."""
    name = observer if isinstance(observer, str) else getattr(observer, "name", None)
    if not isinstance(name, str) or not (observer is name or hasattr(observer, "columns")):
        raise UsageError(
            f"{observer!r} is no observer: pass what @observer(column) has made, or its name."
        )
    return name


def paused_observers(store: Store) -> dict[str, PausedObserver]:
    """The paused observers by name, in order; costs one read of one cell."""
    return _decode(newest_version(store, _CELL)[1])


def pause(
    store: Store, clock: Clock, name: str, columns: Iterable[str], reason: str
) -> PausedObserver:
    """Pause an observer; if it is paused already, only its reason is replaced, if one is given.

    Returns what is paused. Raises ConflictingOptionsError for a reason of more than 1,000
    characters, UsageError for one that is no text.
    """
    if not isinstance(reason, str):
        raise UsageError(f"The reason for a pause is a text, and not {reason!r}.")
    if len(reason) > _REASON_CHARACTERS:
        raise ConflictingOptionsError(
            f"The reason for a pause has {len(reason):,} characters: use up to "
            f"{_REASON_CHARACTERS:,}."
        )

    def add(found: dict[str, PausedObserver]) -> None:
        before = found.get(name)
        found[name] = PausedObserver(
            name,
            tuple(sorted(columns)),
            reason or (before.reason if before else ""),
            before.since_ms if before else clock.wall_ms(),
        )

    columns = list(columns)
    return _update(store, add)[name]


def resume(store: Store, name: str) -> PausedObserver:
    """Resume an observer, and return what was paused. Raises UsageError if it is not paused."""
    resumed: list[PausedObserver] = []

    def remove(found: dict[str, PausedObserver]) -> None:
        if name not in found:
            raise UsageError(
                f"The observer {name!r} is not paused. Paused observers: "
                f"{', '.join(found) or 'none'}."
            )
        resumed[:] = [found.pop(name)]

    _update(store, remove)
    return resumed[0]


def copy_paused(source: Store, target: Store) -> None:
    """Have the same observers be paused in a target that nobody uses yet as in the source."""
    paused = paused_observers(source)

    def replace(found: dict[str, PausedObserver]) -> None:
        found.clear()  # An interrupted copy may have left what was resumed since.
        found.update(paused)

    if paused != paused_observers(target):
        _update(target, replace)


def announced_observers(coordination: Coordination) -> dict[str, list[str]]:
    """The observers of live workers, in order of their names, with their columns."""
    found: dict[str, set[str]] = {}
    for process in coordination.processes():
        if isinstance(announced := process.get("observers"), dict):
            for column, labels in announced.items():
                for label in labels:
                    # The label of an observer of several columns lists them.
                    found.setdefault(label.partition("(")[0], set()).add(column)
    return {name: sorted(columns) for name, columns in sorted(found.items())}


def _update(
    store: Store, change: Callable[[dict[str, PausedObserver]], None]
) -> dict[str, PausedObserver]:
    """Write what `change` makes of the paused observers, and return it."""
    while True:
        version, raw = newest_version(store, _CELL)
        found = _decode(raw)
        change(found)
        text = json.dumps(
            {
                one.name: {"columns": one.columns, "reason": one.reason, "since": one.since_ms}
                for _, one in sorted(found.items())
            }
        )
        if write_version(store, _CELL, version, text):
            return found


def _decode(raw: bytes) -> dict[str, PausedObserver]:
    if not raw:
        return {}
    try:
        return {
            name: PausedObserver(name, tuple(one["columns"]), one["reason"], one["since"])
            for name, one in json.loads(raw).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedRecordError(
            f"{_CELL} holds {raw[:60]!r}, which lists no paused observers: the store is damaged."
        ) from None

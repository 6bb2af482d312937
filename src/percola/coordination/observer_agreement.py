"""§2.4: the processes of a repository run the same observers on a column.

Otherwise each would treat the other's notifications as acknowledged: an acknowledgment records that
one observer has run, and a notify entry is removed once all of them have.
"""

from __future__ import annotations

from percola.errors import ObserverMismatchError


def check_agreement(other: dict[str, object], observers: dict[str, list[str]]) -> None:
    """Compare the observers of a live process with those that this one is about to run.

    Args:
        other: the other process, an element of `Coordination.processes`.
        observers: the names of this process's observers, by column.

    Raises ObserverMismatchError if they have a column in common, and not all of its observers.
    """
    theirs = other.get("observers")
    if not isinstance(theirs, dict):
        return
    host = f" on {other['host']}" if other.get("host") else ""
    for column, names in observers.items():
        if column in theirs and sorted(theirs[column]) != sorted(names):
            raise ObserverMismatchError(
                f"The process {other['pid']}{host} observes {column} with "
                f"{', '.join(theirs[column])}, and this worker with {', '.join(names)}. All "
                "workers of a repository run the same observers on a column: stop the others "
                "first. docs/guide.md, Observers of several programs, says how teams share one."
            )

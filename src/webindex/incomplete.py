"""Prevents use of an index whose rebuild has not finished."""

from __future__ import annotations

from typing import Any, Final

from percola import Repository, Snapshot
from webindex import tables
from webindex.errors import WebindexError

REBUILD_ROW: Final = "rebuild"
"""The row of the journal that says how far a rebuild is: running, failed or done."""


class RebuildError(WebindexError):
    """A rebuild could not start or ended early, or its index is incomplete."""


def refuse_half_built(repo: Repository) -> None:
    """Raise RebuildError if the index is being rebuilt, or a rebuild was interrupted.

    Loaders and workers call this once, after opening the repository.
    """
    with repo.snapshot() as snapshot:
        state = rebuild_under_way(snapshot)
    if state is None:
        return
    # By its liveness token: it may run on another machine, and process ids are reused.
    by = state.get("token")
    if state["state"] == "running" and by and repo.context.coordination.is_alive(by):
        raise RebuildError(
            f"The repository {repo.address} is being rebuilt by process {state['pid']} on "
            f"{state['host']}: wait until that has ended."
        )
    raise RebuildError(
        f"The repository {repo.address} is half built, because a rebuild was ended early: delete "
        "it and run 'webindex rebuild' again."
    )


def rebuild_under_way(snapshot: Snapshot) -> dict[str, Any] | None:
    """The journal's report of an unfinished rebuild; None if there is none."""
    state: dict[str, Any] | None = snapshot.get(tables.report, REBUILD_ROW)
    return state if state is not None and state["state"] != "done" else None

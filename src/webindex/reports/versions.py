"""The captures of a page that are kept, and what each changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from percola import Repository
from webindex import tables

__all__ = ["Version", "versions_of"]

State = Mapping[str, Any] | None
"""A fingerprint, or None while the page was not live."""


@dataclass(frozen=True, slots=True)
class Version:
    """One capture that is kept, and what it changed.

    Attributes:
        original: of a revisit, the URL and date of the capture that it refers to; else None.
        cut: the number of bytes that were kept of a longer page; None if it is whole.
        committed_by: when its load had committed, in ISO 8601; None if it is newer than the
            repository's log of times (`percola.Repository.commit_times`).
    """

    commit_ts: int
    date: str
    status: int
    digest: str
    file: str
    offset: int
    change: str
    original: tuple[str, str] | None = None
    cut: int | None = None
    committed_by: str | None = None

    @property
    def notes(self) -> list[str]:
        """Remarks besides what it changed, as sentences."""
        found = []
        if self.original is not None:
            found.append(f"A revisit with the content of {self.original[0]} of {self.original[1]}.")
        if self.cut is not None:
            found.append(f"Only its first {self.cut:,} bytes were taken: the page is longer.")
        return found


def versions_of(repo: Repository, row: str) -> list[Version]:
    """The captures that are kept, newest first, each with its parsed state."""
    captures = [(ts, one) for ts, one in repo.versions(tables.capture, row) if one is not None]
    states = repo.versions(tables.fingerprint, row)
    times = repo.commit_times()
    safe_point = repo.context.store.safe_point()
    found = []
    following: float = float("inf")
    for place, (ts, capture) in enumerate(captures):
        older = captures[place + 1][1] if place + 1 < len(captures) else None
        after = next(((at, state) for at, state in states if ts < at < following), None)
        # Its predecessor may have been garbage-collected, unless it is above the safe point.
        first = older is None and ts > safe_point
        before = next((state for at, state in states if at < ts), None)
        change = _change(capture, older, before, after, first=first)
        where = capture["digest"], capture["file"], capture["offset"]
        origin = capture.get("original")
        _, by = times.of(ts)
        original = (origin["url"], origin["date"]) if origin is not None else None
        found.append(
            Version(
                ts,
                capture["date"],
                capture["status"],
                *where,
                change,
                original,
                capture.get("cut"),
                None if by is None else by.isoformat(timespec="seconds"),
            )
        )
        following = ts
    return found


def _change(
    capture: Mapping[str, Any],
    older: Mapping[str, Any] | None,
    before: State,
    after: tuple[int, State] | None,
    *,
    first: bool,
) -> str:
    """What a capture changed, given the states of the page before it and after it."""
    if older is None and not first:
        return "The oldest version that is kept."
    if after is not None:
        state = after[1]
        if state is None:
            gone = "The page left the index"
            return f"{gone}: it redirects." if capture["status"] < 400 else f"{gone}."
        if before is None:
            return "The page came into the index."
        return _changed(before, state)
    if older is None:
        live = 200 <= capture["status"] < 300
        return "It has not been parsed yet." if live else "It has no text to put into the index."
    if capture["digest"] == older["digest"]:
        return "The same bytes as before."
    return "The bytes changed; no change of the text was seen."


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The differences between two states of a live page."""
    if after["hash"] != before["hash"]:
        return "The text changed."
    if after["title"] != before["title"]:
        return "The title changed; the text did not."
    if after["indexable"] != before["indexable"]:
        may = "may be indexed again" if after["indexable"] else "may not be indexed any more"
        return f"The page {may}; the text did not change."
    return "The text did not change."

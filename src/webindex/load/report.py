"""The report of a load: counts, and the first records that it could not use."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from webindex.crawl.warc import MAX_BODY
from webindex.load.resources import LoadedResources
from webindex.load.transaction import Loaded
from webindex.text_format import count, pdf_documents


@dataclass(slots=True)
class LoadReport:
    """The outcome of a load.

    `written`, `older`, `same` and `unavailable` of `loaded` add up to the captures that were read.
    The run of a task that succeeded counts them: if one died half-way (`retried` counts
    them), what it had written is `same` for the run that replaced it.

    Attributes:
        files, bytes: how many WARC files, and their size as stored.
        started_ms: milliseconds since 1970.
        max_page_bytes: the limit at which longer pages were cut off.
        seconds: how long it took, Spark's start (`starting_seconds`) included.
        loaded: the outcome for captures and for reports of unchanged pages.
        rejected: records that could not be used, by reason.
        skipped: records that do not describe a page, by their WARC type.
        messages: the first of the rejected records: file, offset, reason.
        retried: tasks that were run again because their process or machine was lost.
        error: why the load ended before everything was read; None if it did not.
    """

    files: int
    bytes: int
    started_ms: int
    max_page_bytes: int = MAX_BODY
    seconds: float = 0.0
    starting_seconds: float = 0.0
    loaded: Loaded = field(default_factory=Loaded)
    rejected: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    retried: int = 0
    error: str | None = None

    @property
    def captures(self) -> int:
        """Captures that were read and could be used."""
        loaded = self.loaded
        return loaded.written + loaded.older + loaded.same + loaded.unavailable

    @property
    def not_described(self) -> int:
        """Rejected records that `messages` does not describe."""
        return self.rejected.total() - len(self.messages)

    def to_json(self) -> dict[str, Any]:
        """The report as the `journal` table keeps it."""
        return {**asdict(self), "rejected": dict(self.rejected), "skipped": dict(self.skipped)}

    def rows(self) -> list[tuple[str, str]]:
        """The report as lines of a table, each a name and a value."""
        loaded = self.loaded
        rows = [
            ("Loaded", f"{loaded.written:,} of {self.captures:,} captures, from {_files(self)}"),
        ]
        if loaded.same:
            rows.append(("Already there", f"{loaded.same:,}"))
        if loaded.older:
            rows.append(("Older than what is there", f"{loaded.older:,}"))
        if loaded.unavailable:
            told = f"{loaded.unavailable:,}: server errors, redirects to the same page"
            rows.append(("Say nothing of a page", told))
        if loaded.refused:
            rows.append(("Removed or blocked, not loaded", f"{loaded.refused:,}"))
        if loaded.unchanged:
            rows.append(("Reported as unchanged", f"{loaded.unchanged:,}"))
        if loaded.unresolved:
            waiting = f"{loaded.unresolved:,}, which wait for the capture that they refer to"
            rows.append(("Revisits not resolved", waiting))
        if loaded.cut:
            limit = f"{self.max_page_bytes:,} bytes"
            longer = f"{count(loaded.cut, 'page')} longer than {limit}"
            rows.append(("Cut off", longer))
        if loaded.pdfs:
            rows.append(("PDF documents read", pdf_documents(loaded.pdfs, loaded.unread_pdfs)))
        if loaded.sitemaps:
            rows.append(("Sitemaps and robots.txt", f"{loaded.sitemaps:,}"))
        kept = loaded.resources
        if kept.written or kept.known:
            rows.append(("Resources", _resources(kept)))
        if kept.unresolved:
            rows.append(("Revisits of unknown resources", f"{kept.unresolved:,}"))
        if self.rejected:
            rows.append(("Rejected records", _counted(self.rejected)))
        if self.skipped:
            rows.append(("Not captures", _counted(self.skipped)))
        if self.retried:
            rows.append(("Tasks run again", f"{self.retried:,}"))
        rows.append(
            ("Time", f"{self.seconds:.1f} s, {self.starting_seconds:.1f} s of it Spark's start")
        )
        return rows


def _files(report: LoadReport) -> str:
    size = f"{report.bytes / 1e6:,.1f} MB"
    return f"1 file ({size})" if report.files == 1 else f"{report.files:,} files ({size})"


def _resources(loaded: LoadedResources) -> str:
    read = loaded.written + loaded.known
    bodies = count(loaded.bodies, "new body", "new bodies")
    return f"{loaded.written:,} of {read:,}, with {bodies} ({loaded.stored_bytes / 1e6:,.1f} MB)"


def _counted(counts: Counter[str]) -> str:
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    return f"{counts.total():,}: {parts}"

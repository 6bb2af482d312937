"""The report of a run of the PageRank job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

EPSILON: Final = 0.01
"""Ranks are written where they have moved by more than this; the mean of all ranks is 1.

Not every rank is worth a transaction, an election and a new document. Ranks differ by orders of
magnitude, and search takes their logarithm: a hundredth of the mean changes no score by more than
half a percent.
"""


@dataclass(slots=True)
class RankReport:
    """The outcome of a run.

    Attributes:
        run: the timestamp of the snapshot that the graph was read from.
        epsilon, tolerance: the options of the run.
        started_ms: milliseconds since 1970.
        seconds: how long it took, Spark's start (`starting_seconds`) included.
        pages, edges: the size of the graph.
        iterations: steps of the computation.
        residual: how much the last step changed a rank, on average.
        converged: whether that was below the tolerance when the computation ended.
        written: ranks that moved by more than epsilon, or were the first of their page.
        gone: ranks that were not written because their page is no longer live.
        retried: tasks of the writing that were run again because their process was lost.
        error: why the run ended before all ranks were written; None if it did not.
    """

    run: int
    epsilon: float
    tolerance: float
    started_ms: int
    seconds: float = 0.0
    starting_seconds: float = 0.0
    pages: int = 0
    edges: int = 0
    iterations: int = 0
    residual: float = 0.0
    converged: bool = True
    written: int = 0
    gone: int = 0
    retried: int = 0
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as the `journal` table keeps it."""
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """The report as lines of a table, each a name and a value."""
        rows = [
            ("Pages", f"{self.pages:,}, with {self.edges:,} links between them"),
            (
                "Iterations",
                f"{self.iterations:,}, the last one moved ranks by {self.residual:.1e} each",
            ),
            ("Written", f"{self.written:,} ranks that moved by more than {self.epsilon:g}"),
        ]
        if not self.converged:
            rows.append(("Not converged", f"the tolerance of {self.tolerance:g} was not reached"))
        if self.gone:
            rows.append(("Gone meanwhile", f"{self.gone:,} pages"))
        if self.retried:
            rows.append(("Tasks run again", f"{self.retried:,}"))
        rows.append(
            ("Time", f"{self.seconds:.1f} s, {self.starting_seconds:.1f} s of it Spark's start")
        )
        return rows

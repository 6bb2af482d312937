"""What the benchmark `index` measures."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.arrivals import Arrival
from benchmarks.clocked import Work, total
from benchmarks.measure import Distribution
from benchmarks.processes import StageError, Usage
from percola import Repository
from webindex import tables


@dataclass(slots=True)
class Stage:
    """A command of `webindex`, and the work that it made. Times in seconds.

    Attributes:
        name: what it is called in the tables.
        report: what the command printed.
        starting: Spark's start, which counts for nothing else.
        began: when the job itself began, since 1970.
        job: from then until the job's end.
        seconds: from then until nothing was left to do.
        work: what the workers did meanwhile.
        usage: what all processes used meanwhile.
        dead_lettered: changes on which observers have failed for good.
    """

    name: str
    report: dict[str, Any]
    starting: float
    began: float
    job: float
    seconds: float
    work: Work
    usage: Usage
    dead_lettered: int = 0

    @property
    def job_cpu(self) -> float:
        """Processor time of the tasks of Spark."""
        return self.usage.cpu("task of Spark")

    @property
    def cpu(self) -> float:
        """Processor time of workers and tasks, without Spark's own: the JVM and the driver."""
        return self.work.cpu + self.job_cpu


@dataclass(slots=True)
class Point:
    """How far the chain was at a moment: seconds since the job began, and counts by then."""

    seconds: float
    loaded: int
    parsed: float
    found: int
    cpu: float


Curve = list[Point]


@dataclass(slots=True)
class Filled:
    """A crawl that was loaded into an empty repository and worked off. Sizes in bytes.

    `links` are those that vouch for the page they lead to, `linked` the pages that have such.
    """

    stage: Stage
    captures: int
    pages: int
    links: int
    linked: int
    clusters: int
    documents: int
    disk: int
    serving: int
    curve: Curve = field(default_factory=list)

    @property
    def pages_per_second(self) -> float:
        """Live pages a second, from the start of the Spark job until all of them can be found."""
        return self.pages / self.stage.seconds

    @property
    def ms_per_page(self) -> float:
        """Milliseconds of processor time a live page, of workers and loading tasks."""
        return self.stage.cpu / self.pages * 1000

    def observer_ms(self, name: str) -> float:
        """Milliseconds of processor time a live page that an observer took."""
        ran = self.stage.work.observers.get(name)
        return ran.cpu / self.pages * 1000 if ran is not None else 0.0


@dataclass(slots=True)
class Recrawled:
    """A later crawl: live pages whose text has changed, that are new, that are gone."""

    stage: Stage
    real: bool
    changed: int
    new: int
    gone: int
    whole: Stage

    @property
    def saved(self) -> float:
        """Which share of the processor time of loading everything from nothing was not needed."""
        return 1 - self.stage.cpu / self.whole.cpu

    @property
    def saved_seconds(self) -> float:
        """The same share of the seconds by the clock."""
        return 1 - self.stage.seconds / self.whole.seconds


@dataclass(slots=True)
class Figures:
    """All of it; what is None or empty has not been measured (yet)."""

    workers: int = 0
    corpus: str = ""
    small: Filled | None = None
    whole: Filled | None = None
    recrawl: Recrawled | None = None
    stages: list[Stage] = field(default_factory=list)
    trickle: list[Arrival] = field(default_factory=list)
    beside: list[Arrival] = field(default_factory=list)

    @property
    def growth(self) -> float | None:
        """By which share a page of the whole crawl costs more than one of the small part."""
        if self.small is None or self.whole is None:
            return None
        return self.whole.ms_per_page / self.small.ms_per_page - 1

    @property
    def all_stages(self) -> list[Stage]:
        """Every stage on the whole crawl's repository, in the order in which they ran."""
        first = [self.whole.stage] if self.whole is not None else []
        recrawl = [self.recrawl.stage] if self.recrawl is not None else []
        return [*first, *self.stages[:2], *recrawl, *self.stages[2:]]

    def latencies(self) -> dict[str, Distribution]:
        """Milliseconds from a loader's commit, by what was waited for."""
        waited = {
            "trickle: document": [one.assembled for one in self.trickle],
            "trickle: search": [one.found for one in self.trickle],
            "beside a load: document": [one.assembled for one in self.beside],
            "beside a load: search": [one.found for one in self.beside],
        }
        return {
            name: found
            for name, values in waited.items()
            if (found := Distribution.of([one for one in values if one is not None])) is not None
        }

    def check(self) -> None:
        """Raise StageError if `webindex verify` found a difference, or an observer failed."""
        for one in self.all_stages:
            broken = [
                f"{judged['invariant']} ({judged['name']}, {judged['differing']:,} rows)"
                for judged in one.report.get("invariants", [])
                if judged["differing"]
            ]
            if broken:
                raise StageError(f"In stage '{one.name}' differ: {'; '.join(broken)}.")
            if one.dead_lettered:
                raise StageError(
                    f"After stage '{one.name}', {one.dead_lettered} changes were dead-lettered: "
                    "observers failed."
                )

    def to_json(self) -> dict[str, Any]:
        """All figures, latencies as percentiles and one by one."""
        whole = self.whole
        return {
            **asdict(self),
            "pages_per_second": whole.pages_per_second if whole else None,
            "ms_per_page": whole.ms_per_page if whole else None,
            "growth": self.growth,
            "latencies": {name: asdict(one) for name, one in self.latencies().items()},
        }


def text_hashes(repo: Repository) -> dict[str, str]:
    """The text hash of each live page, by row."""
    return {
        row.key: row[tables.fingerprint]["hash"]
        for row in repo.snapshot().scan(tables.pages, columns=[tables.fingerprint])
    }


def curve(repo: Repository, notes: Sequence[Sequence[Work]], since: int, began: float) -> Curve:
    """How a load went, second by second: from what stands in the repository, and the notes.

    So nobody had to look while it went.
    """
    now = repo.snapshot()
    loaded = sorted(
        row[tables.capture]["loaded_ms"] / 1000
        for row in now.scan(tables.pages, columns=[tables.capture])
    )
    exported: list[tuple[float, int]] = sorted(
        (row[tables.report]["at_ms"] / 1000, len(row[tables.report]["latency_ms"]))
        for row in now.scan(tables.journal, start=f"export/{since:020}", end="export0")
    )
    found = []
    shown = place = 0
    # Second by second: the processes write their notes a moment after one another.
    ended = max((lines[-1].at for lines in notes if lines), default=began)
    for at in (began + second for second in range(1, int(ended - began) + 2)):
        while place < len(exported) and exported[place][0] <= at:
            shown += exported[place][1]
            place += 1
        work = total(notes, at)
        parsed = work.observers["parse"].runs if "parse" in work.observers else 0
        found.append(Point(at - began, bisect_right(loaded, at), parsed, shown, work.cpu))
    return found

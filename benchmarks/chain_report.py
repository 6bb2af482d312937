"""What the chain's passes measured, and how it is shown: three tables and a plot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid

from benchmarks.measure import Distribution, Usage, shares
from benchmarks.stages import Stages

AIM_PAGES: Final = 60.0
AIM_MEMORY: Final = 300e6

REMARKS: Final = {
    "trickle": "one changed page at a time",
    "steady": "changed pages, half of the throughput",
    "bulk": "everything at once: a queue",
}


@dataclass(slots=True)
class Figures:
    """What was measured. Seconds by the clock, latencies in milliseconds."""

    workers: int = 0
    pages: int = 0
    page_bytes: float = 0.0
    links: int = 0
    clusters: int = 0
    spark_start: float = 0.0
    workers_start: float = 0.0
    loaded: float = 0.0
    searchable: float = 0.0
    worker_cpu: float = 0.0
    usages: list[Usage] = field(default_factory=list)
    steady_rate: float = 0.0
    latencies: dict[str, list[float]] = field(default_factory=dict)

    @property
    def worker_ms(self) -> float:
        """Milliseconds of processor time that the workers spent on a page, in the bulk pass."""
        return self.worker_cpu / self.pages * 1000

    @property
    def pages_per_second(self) -> float:
        """From the start of the Spark job until nothing is left to do."""
        return self.pages / self.searchable

    def to_json(self) -> dict[str, Any]:
        """All figures, latencies as percentiles and one by one."""
        return {
            **asdict(self),
            "pages_per_second": self.pages_per_second,
            "worker_ms_per_page": self.worker_ms,
            "percentiles": {
                name: asdict(found)
                for name, all_of_them in self.latencies.items()
                if (found := Distribution.of(all_of_them)) is not None
            },
        }


def _grid(title: str, *columns: str) -> Grid:
    grid = Grid(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0)
    )
    grid.add_column("", no_wrap=True)
    for name in columns:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid


def grid_of_figures(figures: Figures) -> Grid:
    """The table of throughput and memory."""
    grid = _grid(
        f"The chain: {figures.pages:,} pages of {figures.page_bytes / 1000:.1f} kB, "
        f"{figures.links:,} links, {figures.workers} workers",
        "",
        "Aim",
    )
    anonymous = max(usage.anonymous for usage in figures.usages)
    resident = max(usage.resident for usage in figures.usages)
    for name, value, aim in (
        ("From the start of the Spark job", f"{figures.searchable:.1f} s", ""),
        ("  until its end", f"{figures.loaded:.1f} s", ""),
        ("Throughput", f"{figures.pages_per_second:,.0f} pages/s", f"≥ {AIM_PAGES:.0f}"),
        ("Processor time of the workers", f"{figures.worker_ms:.1f} ms/page", ""),
        ("Memory of a worker, its own", _megabytes(anonymous), f"< {AIM_MEMORY / 1e6:.0f} MB"),
        ("  with pages of shared files", _megabytes(resident), ""),
        ("Start of Spark, apart", f"{figures.spark_start:.1f} s", ""),
        ("Start of the workers, apart", f"{figures.workers_start:.1f} s", ""),
    ):
        grid.add_row(name, value, aim)
    return grid


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size else "unknown"


def grid_of_latencies(figures: Figures) -> Grid:
    """The table of latencies."""
    grid = _grid("From a page's loader to search, in milliseconds", "p50", "p95", "p99", "Pages")
    grid.add_column("", style="dim")
    for name, remark in REMARKS.items():
        one = Distribution.of(figures.latencies.get(name, []))
        if one is not None:
            values = [f"{value:,.0f}" for value in (one.p50, one.p95, one.p99, one.count)]
            grid.add_row(name, *values, remark)
    return grid


def grid_of_stages(stages: Stages) -> Grid:
    """The table of shares."""
    grid = _grid(
        f"Share by stage: one process, one thread, {stages.pages:,} pages in "
        f"{stages.seconds:.1f} s",
        "Share",
        "ms/page",
        "Code",
        "Transaction",
        "Runs/page",
    )
    portions = shares(stages.parts())
    for name, seconds in stages.parts().items():
        stage = stages.by_name.get(name)
        each = 1000 / stages.pages
        grid.add_row(
            name,
            f"{portions[name]:.1%}",
            f"{seconds * each:.2f}",
            f"{stage.inside * each:.2f}" if stage else "",
            f"{stage.transaction * each:.2f}" if stage else "",
            f"{stage.runs / stages.pages:.2f}" if stage else "",
        )
    return grid


def plot(figures: Figures, stages: Stages, path: Path) -> None:
    """Stacked bars of the stages, and how the latencies are distributed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    each = 1000 / stages.pages
    colours = pyplot.get_cmap("tab10")
    bars = {
        "all": {name: stage.seconds for name, stage in stages.by_name.items()},
        "own code": {name: stage.inside for name, stage in stages.by_name.items()},
        "transaction": {name: stage.transaction for name, stage in stages.by_name.items()},
    }
    for column, parts in bars.items():
        bottom = 0.0
        for number, (name, seconds) in enumerate(parts.items()):
            label = name if column == "all" else None
            left.bar(column, seconds * each, bottom=bottom, color=colours(number), label=label)
            bottom += seconds * each
        if column == "all":
            rest = stages.scanning * each
            left.bar(column, rest, bottom=bottom, color="#cccccc", label="looking for work")
    left.set_ylabel("milliseconds a page, one thread")
    left.set_title("Share by stage")
    left.legend(reverse=True, fontsize=8)
    for name, values in figures.latencies.items():
        ordered = sorted(max(one, 1.0) for one in values)
        right.step(
            ordered,
            [(at + 1) / len(ordered) for at in range(len(ordered))],
            where="post",
            label=f"{name} ({len(ordered):,} pages)",
        )
    right.set_xscale("log")
    right.set_xlabel("milliseconds from loader to search (logarithmic)")
    right.set_ylabel("share of pages found by then")
    right.set_title("Latency")
    right.grid(visible=True, alpha=0.3)
    right.legend(fontsize=8)
    figure.suptitle(
        f"The chain: {figures.pages_per_second:,.0f} pages a second, {figures.workers} workers"
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

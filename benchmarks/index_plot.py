"""The plot of the benchmark `index`: pages a second, cost a page by observer, latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.arrivals import Arrival
from benchmarks.index_figures import Curve, Figures, Filled
from benchmarks.index_report import AIM_PAGES

_POINTS: Final = 40
"""Stretches that a curve is cut into, each with as many pages as the others."""


def plot(figures: Figures, path: Path) -> None:
    """Draw what has been measured; at least the whole crawl has been loaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    whole = figures.whole
    assert whole is not None
    figure, axes = pyplot.subplots(1, 3, figsize=(17, 5), layout="constrained")
    _progress(axes[0], figures, whole)
    _costs(axes[1], figures, whole)
    _latencies(axes[2], figures)
    figure.suptitle(
        f"The {figures.corpus}: {whole.pages:,} live pages, "
        f"{whole.pages_per_second:,.0f} a second, {figures.workers} workers"
    )
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def rates(curve: Curve, count: str, points: int = _POINTS) -> list[tuple[float, float]]:
    """(Pages so far, pages a second since the last point), each over about as many pages.

    `count` names what is counted: `loaded`, `parsed` or `found`.
    """
    if not curve:
        return []
    most = getattr(curve[-1], count)
    found = []
    pages, seconds = 0.0, 0.0
    for one in curve:
        now = getattr(one, count)
        if now - pages >= max(1, most / points) and one.seconds > seconds:
            found.append((now, (now - pages) / (one.seconds - seconds)))
            pages, seconds = now, one.seconds
    return found


def _progress(axes: Any, figures: Figures, whole: Filled) -> None:
    for name, filled, style in (("", whole, "-"), ("part: ", figures.small, ":")):
        if filled is None:
            continue
        for number, count in enumerate(("loaded", "parsed", "found")):
            found = rates(filled.curve, count)
            if found:
                axes.plot(
                    [pages for pages, _ in found],
                    [rate for _, rate in found],
                    style,
                    color=f"C{number}",
                    label=f"{name}{count}",
                )
    axes.axhline(AIM_PAGES, color="#888888", linewidth=0.8, linestyle="--")
    axes.set_xlabel("pages so far")
    axes.set_ylabel("pages a second (dashed: aim for the whole chain)")
    axes.set_ylim(bottom=0)
    axes.set_title("Progress of the load")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(visible=True, alpha=0.3)


def _costs(axes: Any, figures: Figures, whole: Filled) -> None:
    names = sorted(whole.stage.work.observers, key=whole.observer_ms, reverse=True)
    for filled in (figures.small, whole):
        if filled is None:
            continue
        parts = {name: filled.observer_ms(name) for name in names}
        parts["else"] = filled.stage.work.rest / filled.pages * 1000
        parts["load"] = filled.stage.job_cpu / filled.pages * 1000
        bottom = 0.0
        for number, (name, cost) in enumerate(parts.items()):
            label = name if filled is whole else None
            column = f"{'all' if filled is whole else 'part'}: {filled.pages:,} pages"
            axes.bar(column, cost, 0.6, bottom, color=f"C{number % 10}", label=label)
            bottom += cost
    axes.set_ylabel("milliseconds of processor time a page")
    axes.set_title("Cost a page")
    axes.legend(reverse=True, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    axes.margins(x=0.3)


def _latencies(axes: Any, figures: Figures) -> None:
    def draw(name: str, arrivals: list[Arrival], values: list[float | None]) -> None:
        ordered = sorted(one for one in values if one is not None)
        if ordered:
            axes.step(
                [max(one, 0.1) for one in ordered],
                [(at + 1) / len(arrivals) for at in range(len(ordered))],
                where="post",
                label=f"{name} ({len(arrivals):,} pages)",
            )

    draw("alone: document", figures.trickle, [one.assembled for one in figures.trickle])
    draw("alone: search", figures.trickle, [one.found for one in figures.trickle])
    draw("beside a load: search", figures.beside, [one.found for one in figures.beside])
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds from the loader's commit (logarithmic)")
    axes.set_ylabel("share of pages known by then")
    axes.set_title("Latency of a changed page")
    axes.grid(visible=True, alpha=0.3)
    if figures.trickle or figures.beside:
        axes.legend(fontsize=8, loc="lower right")

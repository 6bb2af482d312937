"""Figures 7 and 9 from 11 to 15,000 cores, by simulation, and what limits at each size.

Nothing here tests the protocol: `percola.testing.simulation` does. This asks what load does: queues
of clients, workers, region servers, the oracle and the lock service beside it, with service times
that other benchmarks measured (`benchmarks/scale.json`). First the simulation has to predict what
was measured on this machine (`benchmarks/scale_here.py`). Small clusters are simulated event by
event with SimPy, all sizes by mean value analysis, and the table shows where both agree.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks import scale_costs
from benchmarks.markdown import table
from benchmarks.measure import OUTPUT, output_name, write_json
from benchmarks.scale_cluster import (
    ORACLE,
    SIZES,
    Cluster,
    Shared,
    Wall,
    Work,
    brokerage,
    clustering,
    names_rows,
    network,
    per_core,
    report_ms,
    scan_cores,
    wakes_a_second,
    walls,
)
from benchmarks.scale_here import Prediction, predictions
from benchmarks.scale_queues import Load, Outcome, respond, simulate, solve

RATES: Final = (0.01, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Percent of the documents an hour, as in figure 7."""
_SHOWN: Final = (0.1, 1, 10, 100)
_SIMULATED: Final = 100
"""Cores up to which SimPy follows every transaction."""


@dataclass(frozen=True, slots=True)
class Point:
    """A size of figure 9.

    Attributes:
        simulated: transactions a second by SimPy; None beyond what it is asked for.
        linear: what as many cores would do if nothing grew with them.
        scans: the share of the region servers that an idle fleet spends on looking for work.
    """

    cores: int
    per_second: float
    simulated: float | None
    linear: float
    limit: str
    busy: Mapping[str, float]
    carried: float
    scans: float


def figure_9(figures: Mapping[str, Any], work: Work, *, simulated: int) -> list[Point]:
    """Throughput under full load, at each size."""
    regions = int(figures["stated"]["regions_a_machine"]["value"])
    shared, found = Shared.of(figures), []
    for cores in SIZES:
        cluster = Cluster.of(cores, work, regions)
        stations, visits, load = network(cluster, work, shared)
        solved = solve(stations, visits, load)
        followed: Outcome | None = None
        if cores <= simulated:
            # Some ten thousand transactions each.
            seconds = 10_000 / solved.per_second
            followed = simulate(stations, visits, load, seconds=seconds, warm=seconds / 10)
        servers = cluster.machines * cluster.server_cores
        found.append(
            Point(
                cores,
                solved.per_second,
                followed.per_second if followed else None,
                cores * per_core(work),
                solved.limit,
                solved.busy,
                solved.carried[ORACLE],
                min(1.0, scan_cores(cluster, work, shared, busy=False) / servers),
            )
        )
    return found


def figure_7(figures: Mapping[str, Any], work: Work, cores: int) -> dict[str, Any]:
    """Median delay of a document, by percent of the repository an hour; and that of batches.

    The batch is Spark's, fused: a document waits for the rest of a pass and for the next one. A
    pass reads the repository and what came during the one before.
    """
    stated = figures["stated"]
    documents = cores * stated["documents_a_core"]["value"]
    shared = Shared.of(figures)
    cluster = Cluster.of(cores, work, int(stated["regions_a_machine"]["value"]))
    stations, visits, load = network(cluster, work, shared)
    most = solve(stations, visits, load).per_second
    latency = (shared.read_servers + shared.read_client + shared.trip) / 1000
    ours: list[float | None] = []
    batch: list[float | None] = []
    start = stated["spark_start_seconds"]["value"]
    each = stated["spark_core_seconds_a_million"]["value"] / 1e6 / cores
    for percent in RATES:
        arrivals = documents * percent / 100 / 3600
        open_load = Load(cluster.workers, arrivals=arrivals)
        # Half a scan over the regions, or one of the row's.
        named = names_rows(cluster, arrivals * work.row_locks)
        looked = latency * (1 if named else cluster.regions / 2)
        # Nor does a process report a change before the pause after its last report is over.
        pause = report_ms(cluster) / 1000
        reporting = arrivals * work.row_locks / cluster.workers * pause
        looked += reporting / (1 + reporting) * pause / 2
        rounds = 1 + wakes_a_second(cluster, shared)
        waits = respond(stations, visits, open_load).seconds
        held = arrivals < most and waits != float("inf")
        ours.append(0.5 / rounds + looked + waits if held else None)
        growth = arrivals * each
        pass_seconds = (start + documents * each) / (1 - growth) if growth < 1 else None
        batch.append(1.5 * pass_seconds if pass_seconds else None)
    return {
        "cores": cores,
        "documents": documents,
        "saturates_per_second": most,
        "saturates_percent": most * 3600 / documents * 100,
        "limit": solve(stations, visits, load).limit,
        "delays": ours,
        "batch": batch,
    }


def sizing(figures: Mapping[str, Any], work: Work) -> list[tuple[str, str]]:
    """What a million documents, and a thousand changed documents a second, ask for."""
    stated = {name: one["value"] for name, one in figures["stated"].items() if "value" in one}
    stored = stated["document_bytes"] + work.changes * stated["cell_bytes"]
    rows = [
        ("store, a million documents", f"{stored / 1000:.1f} GB, {3 * stored / 1000:.1f} on disk")
    ]
    day = stored * 1000 * 86400 / 1e9
    shared = Shared.of(figures)
    calls = work.draws * shared.call / 2 + 2 * work.row_locks * shared.lock_call
    collected = stated["collector_rows_per_second"]
    return [
        *rows,
        (
            "collecting, a million documents",
            f"{stated['rows_a_document'] * 1e6 / collected / 60:.0f} minutes of one process",
        ),
        (
            "workers, 1,000 changed documents/s",
            f"{work.client_ms:.1f} cores at full load; plan for half more",
        ),
        (
            "region servers, 1,000 changed documents/s",
            f"{work.servers_ms:.1f} cores at full load; likewise",
        ),
        ("oracle and lock service, 1,000 changed documents/s", f"{calls:.2f} of one core"),
        (
            "disk, 1,000 changed documents/s",
            f"{3 * stored / 1000:.1f} MB/s of log; a day's versions take {3 * day:.0f} GB",
        ),
    ]


def run(console: Console, *, quick: bool, calibrate: bool = False) -> None:
    """Predict, draw both figures, say what limits, write all figures as JSON."""
    began = time.monotonic()
    if calibrate:
        console.print(f"Calibrated by {', '.join(scale_costs.refresh())}.")
    figures = scale_costs.load()
    works = brokerage(figures), clustering(figures)
    with console.status("Scale: predicting what was measured here …") as status:
        known = predictions(figures)
        status.update("Scale: figure 9 …")
        points = figure_9(figures, works[0], simulated=30 if quick else _SIMULATED)
        status.update("Scale: figure 7 …")
        delays = [figure_7(figures, works[1], cores) for cores in SIZES]
        nearest = {one.name: walls(figures, one) for one in works}
    parts = [
        _known(known),
        _nine(points),
        _seven(delays),
        *(_walls(name, found) for name, found in nearest.items()),
        *(_full(name, found) for name, found in nearest.items()),
        table(("", "asks for"), sizing(figures, works[1])),
    ]
    for one in parts:
        console.print(one, soft_wrap=True, markup=False)
    name = output_name("scale", quick=quick)
    pictures = [OUTPUT / f"{name}_{figure}.png" for figure in ("fig9", "fig7")]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    _plot_nine(points, pictures[0])
    _plot_seven(delays, pictures[1])
    path = write_json(
        name,
        {
            "calibration": figures,
            "works": [asdict(one) for one in works],
            "predictions": [{**asdict(one), "error": one.error} for one in known],
            "figure_9": [asdict(one) for one in points],
            "figure_7": delays,
            "walls": {name: [asdict(one) for one in found] for name, found in nearest.items()},
        },
    )
    shown = "   ".join(str(one) for one in (*pictures, path))
    console.print(f"{time.monotonic() - began:.0f} s. Plots and figures: {shown}", soft_wrap=True)


# --- What is shown ------------------------------------------------------------------------


def _known(known: Sequence[Prediction]) -> str:
    rows = [
        (
            one.name,
            f"{_figure(one.predicted)} {one.unit}",
            f"{_figure(one.measured)} {one.unit}",
            f"{one.error:+.0%}",
            one.used,
        )
        for one in known
    ]
    return table(("", "predicted", "measured", "error", "calibrated on"), rows)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _nine(points: Sequence[Point]) -> str:
    rows = [
        (
            f"{one.cores:,}",
            f"{one.per_second:,.0f}",
            "" if one.simulated is None else f"{one.simulated:,.0f}",
            f"{one.per_second / one.linear:.2f}",
            one.limit,
            f"{min(1.0, one.busy[ORACLE]):.0%}",
            f"{one.carried:.1f}",
            f"{one.scans:.0%}",
        )
        for one in points
    ]
    columns = (
        "cores",
        "tps",
        "SimPy",
        "of linear",
        "busiest",
        "oracle busy",
        "a call",
        "idle scans",
    )
    return table(columns, rows)


def _seven(delays: Sequence[Mapping[str, Any]]) -> str:
    def shown(one: Mapping[str, Any], percent: float) -> str:
        at = RATES.index(percent)
        ours, batch = one["delays"][at], one["batch"][at]
        left = "–" if ours is None else f"{ours:.2f}"
        return f"{left} / {'–' if batch is None else f'{batch:,.0f}'}"

    rows = [
        (
            f"{one['cores']:,}",
            f"{one['documents'] / 1e6:,.1f}",
            f"{one['saturates_per_second']:,.0f}",
            _times(one["saturates_percent"]),
            *(shown(one, percent) for percent in _SHOWN),
            one["limit"],
        )
        for one in delays
    ]
    at = tuple(f"s at {percent} %" for percent in _SHOWN)
    return table(("cores", "million documents", "docs/s", "% an hour", *at, "busiest"), rows)


def _walls(name: str, found: Sequence[Wall]) -> str:
    rows = [
        (
            one.part,
            f"{one.cores:,.0f}",
            f"{one.per_second:,.0f}",
            "yes" if one.can_move else "",
            one.why,
        )
        for one in found
    ]
    return table((f"{name}: full at", "cores", "a second", "code moves it", "why"), rows)


def _times(load: float) -> str:
    return f"{load:,.0f}" if load >= 10 else f"{load:.2g}"


def _full(name: str, found: Sequence[Wall]) -> str:
    sizes = (11, 100, 1_000, 15_000)
    rows = [
        (one.part, *(_times((cores - 2) / max(1.0, one.cores - 2)) for cores in sizes))
        for one in found
    ]
    return table((f"{name}: load over capacity, cores", *(f"{one:,}" for one in sizes)), rows)


def _plot_nine(points: Sequence[Point], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    cores = [one.cores for one in points]
    axes.plot(cores, [one.per_second for one in points], "-", color="C0", label="mean values")
    followed = [(one.cores, one.simulated) for one in points if one.simulated is not None]
    if followed:
        axes.plot(*zip(*followed, strict=True), "o", color="C0", label="SimPy")
    axes.plot(cores, [one.linear for one in points], ":", color="grey", label="linear")
    axes.plot([11, 15_000], [11_200 * 11 / 15_000, 11_200], "k--", lw=0.8, label="the paper, about")
    axes.set(xscale="log", yscale="log", xlabel="cores", ylabel="transactions a second")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title("Figure 9, simulated: the brokerage on HBase")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _plot_seven(delays: Sequence[Mapping[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    shown = [cores for cores in SIZES if cores in (11, 100, 1_000, 15_000)]
    for number, cores in enumerate(shown):
        for one in delays:
            if one["cores"] == cores:
                held = [(r, d) for r, d in zip(RATES, one["delays"], strict=True) if d is not None]
                held.append((one["saturates_percent"], 1e4))
                held.sort()
                label = f"{cores:,} cores"
                axes.plot(*zip(*held, strict=True), "-", color=f"C{number}", label=label)
    batch = [(r, d) for r, d in zip(RATES, delays[0]["batch"], strict=True) if d is not None]
    axes.plot(*zip(*batch, strict=True), "k-", label="Spark, fused, in passes (any size)")
    axes.set(xscale="log", yscale="log", xlim=(0.01, 1000), ylim=(5e-3, 1e3))
    axes.set(xlabel="% of the documents an hour", ylabel="median delay, s")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title("Figure 7, simulated: clustering, half a million documents a core")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)

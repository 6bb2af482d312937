"""The tables of the benchmark `index`, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from benchmarks.index_figures import Figures, Filled, Recrawled, Stage
from benchmarks.markdown import table
from benchmarks.processes import ROLES, Usage

AIM_PAGES: Final = 120.0
AIM_GROWTH: Final = 0.20
AIM_MEMORY: Final = 4e9
AIM_MS: Final = {
    "trickle: document": (15.0, None, 60.0),
    "beside a load: search": (None, None, 1000.0),
}


def report(figures: Figures) -> str:
    """Everything that was measured, for people."""
    parts: list[str] = []
    if figures.whole is not None:
        parts += [
            _title(figures, figures.whole),
            _chain(figures, figures.whole),
            _observers(figures, figures.whole),
            _stages(figures.all_stages),
            _memory(figures.all_stages),
        ]
    if figures.trickle or figures.beside:
        parts.append(_latencies(figures))
    if figures.recrawl is not None:
        parts.append(_recrawl(figures.recrawl))
    verified = [one for one in figures.all_stages if "invariants" in one.report]
    if verified:
        parts.append(_verified(verified))
    return "\n".join(parts)


def _title(figures: Figures, whole: Filled) -> str:
    return (
        f"The {figures.corpus}: {whole.captures:,} captures, {whole.pages:,} live pages in "
        f"{whole.clusters:,} clusters, {whole.documents:,} of them in the search index, "
        f"{whole.links:,} links that count, to {whole.linked:,} pages; "
        f"{figures.workers} worker processes.\n"
    )


def _chain(figures: Figures, whole: Filled) -> str:
    filled = [figures.small, whole] if figures.small is not None else [whole]
    rows: list[list[str]] = []

    def row(name: str, values: Iterable[str], aim: str = "") -> None:
        rows.append([name, *values, aim])

    row("Load and work, from the job's start", (f"{one.stage.seconds:,.1f} s" for one in filled))
    row("the load alone, beside the workers", (f"{one.stage.job:,.1f} s" for one in filled))
    row(
        "Throughput",
        (f"{one.pages_per_second:,.0f} pages/s" for one in filled),
        f"≥ {AIM_PAGES:.0f}",
    )
    row("Processor time a page", (f"{one.ms_per_page:.2f} ms" for one in filled))
    row("of it: loading", (f"{one.stage.job_cpu / one.pages * 1000:.2f} ms" for one in filled))
    if figures.growth is not None:
        row(
            "Growth of the cost a page",
            ["", f"{figures.growth:+.0%}"],
            f"< {AIM_GROWTH:+.0%}",
        )
    row("Repository on disk", (_size(one.disk) for one in filled))
    row("a page", (f"{one.disk / one.pages / 1000:.1f} kB" for one in filled))
    row("Search index on disk", (_size(one.serving) for one in filled))
    row("Spark's start, apart", (f"{one.stage.starting:.1f} s" for one in filled))
    columns = ["The whole chain", *(f"{one.pages:,} pages" for one in filled), "Aim"]
    return table(columns, rows)


def _observers(figures: Figures, whole: Filled) -> str:
    columns = ["Observer", "Share", "CPU ms/page", "Runs/page", "Transactions/page", "Conflicts"]
    if figures.small is not None:
        columns += [f"CPU ms/page, {figures.small.pages:,} pages", "Growth"]
    work, pages = whole.stage.work, whole.pages

    def compared(now: float, before: float | None) -> list[str]:
        if before is None:
            return []
        return [f"{before:.2f}", f"{now / before - 1:+.0%}" if before else ""]

    rows = []
    for name, ran in sorted(work.observers.items(), key=lambda one: -one[1].cpu):
        now = whole.observer_ms(name)
        rows.append(
            [
                name,
                f"{ran.cpu / whole.stage.cpu:.1%}",
                f"{now:.2f}",
                f"{ran.runs / pages:.2f}",
                f"{ran.transactions / pages:.2f}",
                f"{ran.conflicts:,.0f}",
                *compared(now, figures.small.observer_ms(name) if figures.small else None),
            ]
        )
    for name, seconds, before in (
        (
            "search index's threads, looking for work",
            work.rest,
            figures.small and figures.small.stage.work.rest,
        ),
        ("load", whole.stage.job_cpu, figures.small and figures.small.stage.job_cpu),
    ):
        each = 1000 / pages
        small = figures.small
        rows.append(
            [
                name,
                f"{seconds / whole.stage.cpu:.1%}",
                f"{seconds * each:.2f}",
                "",
                "",
                "",
                *compared(
                    seconds * each, before / small.pages * 1000 if small and before else None
                ),
            ]
        )
    return table(columns, rows)


def _stages(stages: Iterable[Stage]) -> str:
    rows = [
        [
            one.name,
            f"{one.job:,.1f}",
            f"{one.seconds:,.1f}",
            f"{one.work.cpu:,.1f}",
            f"{one.job_cpu:,.1f}",
            f"{one.usage.cpu('driver', _JVM):,.1f}",
            f"{one.work.transactions:,.0f}",
            _size(one.usage.own),
            _size(one.usage.mapped),
        ]
        for one in stages
    ]
    columns = [
        "Stage",
        "Job s",
        "Until at rest s",
        "CPU s: workers",
        "tasks",
        "driver, JVM",
        "Transactions",
        "Memory, own",
        "with files",
    ]
    return table(columns, rows)


_JVM: Final = ROLES["java"]


def _memory(stages: Iterable[Stage]) -> str:
    usages = [one.usage for one in stages]
    rows = []
    for role in ROLES.values():
        found = [usage.by_role[role] for usage in usages if role in usage.by_role]
        if found:
            rows.append(
                [
                    role,
                    _size(max(one.own for one in found)),
                    _size(max(one.resident for one in found)),
                    _size(max(one.together for one in found)),
                ]
            )
    rows.append(
        [
            f"everything (aim < {_size(int(AIM_MEMORY))})",
            "",
            _size(_peak(usages, mapped=True)),
            _size(_peak(usages, mapped=False)),
        ]
    )
    columns = ["Peak memory of a", "process, own", "with pages of files", "all of them, own"]
    return table(columns, rows)


def _peak(usages: Iterable[Usage], *, mapped: bool) -> int:
    return max((one.mapped if mapped else one.own for one in usages), default=0)


def _latencies(figures: Figures) -> str:
    rows = []
    for name, one in figures.latencies().items():
        aims = AIM_MS.get(name, (None, None, None))
        values = zip((one.p50, one.p95, one.p99), aims, strict=True)
        rows.append(
            [
                name,
                *(f"{value:,.1f}" + (f" (< {aim:,.0f})" if aim else "") for value, aim in values),
                f"{one.most:,.1f}",
                f"{one.count:,}",
            ]
        )
    columns = ["Milliseconds from a loader's commit", "p50", "p95", "p99", "Most", "Pages"]
    return table(columns, rows)


def _recrawl(one: Recrawled) -> str:
    loaded, stage, whole = one.stage.report["loaded"], one.stage, one.whole
    title = "A real recrawl" if one.real else "A later crawl, made up"
    rows = [
        ["Captures that were loaded", f"{loaded['written']:,}", ""],
        ["Reported as unchanged", f"{loaded['unchanged']:,}", ""],
        ["Pages whose text changed", f"{one.changed:,}", ""],
        ["New, gone", f"{one.new:,}, {one.gone:,}", ""],
        ["Seconds", f"{stage.seconds:,.1f}", f"{whole.seconds:,.1f}"],
        ["Processor time, s", f"{stage.cpu:,.1f}", f"{whole.cpu:,.1f}"],
        ["Transactions", f"{stage.work.transactions:,.0f}", f"{whole.work.transactions:,.0f}"],
    ]
    for name in whole.work.observers:
        runs = [
            f"{work.observers[name].runs:,.0f}" if name in work.observers else "0"
            for work in (stage.work, whole.work)
        ]
        rows.append([f"Runs of {name}", *runs])
    rows.append(["Work saved: processor time", f"{one.saved:.1%}", ""])
    rows.append(["Work saved: seconds", f"{one.saved_seconds:.1%}", ""])
    return table([title, "Incremental", "Everything from nothing"], rows)


def _verified(stages: Iterable[Stage]) -> str:
    verified = list(stages)
    rows = []
    for judged in zip(*(one.report["invariants"] for one in verified), strict=True):
        cells = [
            f"{one['differing']:,} of {one['compared']:,}" if one["checked"] else "not checked"
            for one in judged
        ]
        rows.append([f"{judged[0]['invariant']} {judged[0]['name']}", *cells])
    return table(["Rows that differ", *(one.name for one in verified)], rows)


def _size(size: float) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"

"""Figure 7's tables and plots: delay by rate, cross-over and saturation, processor time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.fig7_spark import Batch, Pass, to_json

if TYPE_CHECKING:
    from benchmarks.fig7 import Line

AIM_RATIO: Final = 10_000
AIM_SHARE: Final = 0.25
_SHOWN: Final = ("p5", "p50", "p95", "p99")


def cross_over(line: Line, batch: Batch, size: int) -> float | None:
    """Percent an hour from which the batch's median delay is below a system's; None if never seen.

    A system that has saturated has no delay, or an infinite one, as in the paper.
    """
    for step in line.held:
        if step["p50"] > batch.delays(size, step["per_second"])["p50"]:
            return float(step["percent"])
    saturation = line.saturation()
    if saturation is None or saturation / 100 * size / 3600 >= batch.saturation:
        return None
    return saturation


def break_even(cpu_ms: float, passes: Sequence[Pass], size: int) -> float:
    """The share of the repository that has to change before a pass costs no more processor time."""
    whole = [one.cpu for one in passes if one.documents == size]
    return sum(whole) / len(whole) / (size * cpu_ms / 1000)


@dataclass(frozen=True)
class Report:
    """All that was measured."""

    size: int
    lines: Sequence[Line]
    batches: Mapping[str, Batch]
    passes: Mapping[str, Sequence[Pass]]
    missing: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each system and rate, batch jobs among them at each rate of Percola's."""
        found = []
        for line in self.lines:
            found += [{"system": line.name, **step} for step in line.steps]
        rates = {one["percent"]: one["per_second"] for line in self.lines for one in line.steps}
        for name, batch in self.batches.items():
            for percent, rate in sorted(rates.items()):
                held = rate < batch.saturation
                row = {"system": f"Spark, {name}", "percent": percent, "per_second": rate}
                # A pass that grows for ever has no delays, and JSON has no infinity.
                delays = batch.delays(self.size, rate) if held else {}
                found.append({**row, "held": held, **delays})
        return found

    def summary(self) -> list[dict[str, Any]]:
        """For each system: saturation, cross-over with each batch, processor time, break-even."""
        found = []
        for line in self.lines:
            row: dict[str, Any] = {"system": line.name, "saturation_percent": line.saturation()}
            row["highest_held_percent"] = max((one["percent"] for one in line.held), default=None)
            row["cpu_ms_a_document"] = cpu = line.cpu_ms()
            for name, batch in self.batches.items():
                row[f"cross_over_percent, {name}"] = cross_over(line, batch, self.size)
                if cpu:
                    row[f"break_even, {name}"] = break_even(cpu, self.passes[name], self.size)
                ratios = [
                    batch.delays(self.size, one["per_second"])["p50"] / one["p50"]
                    for one in line.held
                    if one["percent"] == 1.0 and one["per_second"] < batch.saturation
                ]
                row[f"delay_ratio_at_1_percent, {name}"] = ratios[0] if ratios else None
            found.append(row)
        return found

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "aims": {"delay_ratio_at_1_percent": AIM_RATIO, "break_even": AIM_SHARE},
            "steps": self.rows(),
            "systems": self.summary(),
            "passes": {name: to_json(passes) for name, passes in self.passes.items()},
            "batch": {
                name: {
                    "seconds": one.seconds(self.size, 0.0),
                    "saturation_per_second": one.saturation if one.each else None,
                }
                for name, one in self.batches.items()
            },
        }

    def show(self, console: Console) -> None:
        """Print the tables."""
        columns = ("documents/s", "documents", "5th", "median", "95th", "99th")
        grid = Grid("", "% an hour", *columns, box=SIMPLE_HEAD)
        grid.title = "Delay of a document, milliseconds"
        for column in grid.columns[1:]:
            column.justify = "right"
        before = ""
        for row in self.rows():
            system = row["system"] if row["system"] != before else ""
            before = row["system"]
            shown = [_number(row[one]) for one in _SHOWN] if row["held"] else ["not held"]
            # Those of a batch are calculated.
            count = f"{row['documents']:,}" if "documents" in row else ""
            rate = f"{row['per_second']:,.2f}"
            grid.add_row(system, f"{row['percent']:,g}", rate, count, *shown)
        console.print(grid)
        for name in self.batches:
            grid = Grid("", "saturates", "cross-over", "CPU ms", "break-even", "1 % an hour")
            grid.box = SIMPLE_HEAD
            grid.title = f"Beside Spark, {name}"
            for column in grid.columns[1:]:
                column.justify = "right"
            for one in self.summary():
                saturation, held = one["saturation_percent"], one["highest_held_percent"]
                share = one.get(f"break_even, {name}")
                ratio = one[f"delay_ratio_at_1_percent, {name}"]
                crossing = one[f"cross_over_percent, {name}"]
                grid.add_row(
                    one["system"],
                    f"{saturation:,.0f} %" if saturation else f"> {held or 0:,.0f} %",
                    "none" if crossing is None else f"{crossing:,.0f} %",
                    _number(one["cpu_ms_a_document"]),
                    "" if share is None else f"{100 * share:.1f} %",
                    "" if ratio is None else f"1/{ratio:,.0f}",
                )
            console.print(grid)
        console.print(
            "Saturates and cross-over: percent of the repository an hour. CPU: processor time a "
            "document. Break-even: the share that changes between two passes from which a pass "
            "costs less processor time. 1 % an hour: median delay over the batch's.",
            style="dim",
            soft_wrap=True,
        )
        for name, passes in self.passes.items():
            whole = [one for one in passes if one.documents == self.size]
            seconds = sorted(one.seconds for one in whole)
            console.print(
                f"Spark, {name}: {seconds[0]:.1f} to {seconds[-1]:.1f} s a pass over "
                f"{self.size:,} documents, {sum(one.cpu for one in whole) / len(whole):.1f} s of "
                f"processor time.",
                soft_wrap=True,
            )

    def plot(self, path: Path) -> None:
        """Draw delay by rate, and processor time by the share that changes."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 7), layout="constrained")
        self._delays(left)
        self._costs(right)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=8, ncols=5, loc="outside lower center")
        figure.suptitle(f"Figure 7: clustering against {self.size:,} documents")
        figure.savefig(path, dpi=100)
        pyplot.close(figure)

    def _delays(self, axes: Any) -> None:
        highest = max(one["percent"] for line in self.lines for one in line.steps)
        top = max(batch.delays(self.size, 0.0)["p95"] for batch in self.batches.values()) * 10
        for number, line in enumerate(self.lines):
            color = f"C{number}"
            rates = [one["percent"] for one in line.held]
            if not rates:
                continue
            median = [one["p50"] for one in line.held]
            low = [one["p50"] - one["p5"] for one in line.held]
            high = [one["p95"] - one["p50"] for one in line.held]
            axes.errorbar(
                rates, median, (low, high), fmt="o--", markersize=3, capsize=3,
                linewidth=1, color=color, label=line.name,
            )  # fmt: skip
            saturation = line.saturation()
            if saturation is not None:
                axes.plot(
                    [rates[-1], saturation, saturation], [median[-1], median[-1], top], ":",
                    color=color,
                )  # fmt: skip
                for batch in self.batches.values():
                    if cross_over(line, batch, self.size) == saturation:
                        delay = batch.delays(self.size, saturation / 360000 * self.size)["p50"]
                        axes.plot([saturation], [delay], "x", color=color, markersize=9)
        for style, (name, batch) in zip(("-", "-."), self.batches.items(), strict=False):
            rates = sorted({one["percent"] for line in self.lines for one in line.steps})
            ends = [one for one in rates if one / 360000 * self.size < batch.saturation]
            found = [batch.delays(self.size, one / 360000 * self.size) for one in ends]
            axes.plot(ends, [one["p50"] for one in found], style, color="black")
            axes.fill_between(
                ends, [one["p5"] for one in found], [one["p95"] for one in found],
                color="black", alpha=0.08,
            )  # fmt: skip
            axes.plot([], [], style, color="black", label=f"Spark batch, {name}")
        axes.set(xscale="log", yscale="log", ylim=(None, top), xlim=(None, highest * 3))
        axes.set_xlabel("crawl rate, % of the repository an hour")
        axes.set_ylabel("delay of a document, ms (median; bars: 5th to 95th percentile)")
        axes.set_title("Delay (dotted: saturation; ×: cross-over with a batch)")
        axes.grid(visible=True, alpha=0.3)

    def _costs(self, axes: Any) -> None:
        shares = [10**power for power in (-3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1)]
        for number, line in enumerate(self.lines):
            cpu = line.cpu_ms()
            if cpu is None:
                continue
            axes.plot([100 * one for one in shares], [cpu] * len(shares), "--", color=f"C{number}",
                      linewidth=1, label=line.name)  # fmt: skip
            for passes in self.passes.values():
                axes.plot(
                    [100 * break_even(cpu, passes, self.size)], [cpu], "x", color=f"C{number}"
                )
        for style, (name, passes) in zip(("-", "-."), self.passes.items(), strict=False):
            whole = break_even(1.0, passes, self.size)
            axes.plot([100 * one for one in shares], [whole / one for one in shares], style,
                      color="black", label=f"Spark batch, {name}")  # fmt: skip
        axes.set(xscale="log", yscale="log")
        axes.set_xlabel("share of the repository that changes between two passes, %")
        axes.set_ylabel("processor time for each changed document, ms")
        axes.set_title("Processor time (×: break-even)")
        axes.grid(visible=True, alpha=0.3)


def _number(value: float | None, nothing: str = "") -> str:
    if value is None:
        return nothing
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

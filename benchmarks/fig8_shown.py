"""Figure 8, whatever the store: the table and the plot of ratios, and the figures as JSON.

Each line compares one operation of Percola with the same of the raw store; beside its ratio stand
the paper's and the aim, where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid
from rich.text import Text

from benchmarks.measure import Comparison

PAPER: Final = {"read": 0.94, "write": 0.23}
"""The paper's ratios, by the lines of its figure."""


@dataclass(slots=True)
class Line:
    """A line of the table.

    Attributes:
        name: the operation.
        group: the circumstances that it shares with the lines around it.
        figure: the line of the paper's figure that it is, if it is one.
        aim: the ratio aimed at, if there is one.
        label: what stands beside its bar.
        more: what else stands in the JSON.
    """

    name: str
    group: str
    figure: str | None = None
    aim: float | None = None
    label: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    compared: Comparison = field(default_factory=Comparison)

    @property
    def paper(self) -> float | None:
        """The paper's ratio, if the operation is in its figure."""
        return PAPER[self.figure] if self.figure else None

    def to_json(self) -> dict[str, Any]:
        """All figures of the line."""
        named = {"operation": self.name, **self.more, "paper": self.paper, "aim": self.aim}
        return {**named, **self.compared.to_json()}


def table(title: str, raw: str, lines: Sequence[Line]) -> Grid:
    """The table: rates, ratios, and beside them the paper's ratio and the aim."""
    grid = Grid(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    grid.add_column("", no_wrap=True)
    for name in (f"Raw {raw}", "Percola", "Ratio", "Half in", "Paper", "Aim"):
        grid.add_column(name, justify="right", no_wrap=True)
    for together, group in groupby(lines, lambda line: line.group):
        grid.add_section()
        grid.add_row(Text(together, style="bold"))
        for line in group:
            found = line.compared.to_json()
            style = ""
            if line.aim is not None:
                style = "green" if found["ratio"] >= line.aim else "yellow"
            grid.add_row(
                line.name,
                f"{found['raw_per_second']:,.0f}",
                f"{found['percola_per_second']:,.0f}",
                Text(f"{found['ratio']:.2f}", style=style),
                "–".join(f"{one:.2f}" for one in found["middle_half"]),
                "" if line.paper is None else f"{line.paper:.2f}",
                "" if line.aim is None else f"{line.aim:.2f}",
            )
    return grid


def plot(title: str, raw: str, lines: Sequence[Line], path: Path) -> None:
    """Ratios with their spread, the paper's ratios and the aims beside; and the rates."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    labels = [f"{one.name}\n{one.label or one.group}" for one in lines]
    places = [-float(place) for place in range(len(lines))]
    found = [one.compared.to_json() for one in lines]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 0.42 * len(lines) + 1.6), sharey=True, layout="constrained"
    )
    ratios = [one["ratio"] for one in found]
    spread = [
        [one["ratio"] - one["middle_half"][0] for one in found],
        [one["middle_half"][1] - one["ratio"] for one in found],
    ]
    left.barh(places, ratios, xerr=spread, height=0.6, color="#4c78a8", ecolor="#999999")
    for values, marker, colour, name in (
        ([one.paper for one in lines], "D", "#f58518", "paper, on Bigtable"),
        ([one.aim for one in lines], "|", "#d62728", "aim"),
    ):
        known = [(value, at) for value, at in zip(values, places, strict=True) if value is not None]
        left.scatter(
            [value for value, _ in known],
            [at for _, at in known],
            marker=marker,
            s=40 if marker == "D" else 300,
            color=colour,
            label=name,
            zorder=3,
        )
    left.set_xlabel(f"Percola / raw {raw} (median of the pairs, middle half)")
    left.set_xlim(0, 1.2)
    left.set_ylim(min(places) - 0.6, 0.6)
    left.set_yticks(places, labels, fontsize=8)
    left.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, markerscale=0.5)
    for name, shift, colour in (("raw", 0.18, "#bbbbbb"), ("percola", -0.18, "#4c78a8")):
        right.barh(
            [at + shift for at in places],
            [one[f"{name}_per_second"] for one in found],
            height=0.34,
            color=colour,
            label={"raw": f"raw {raw}", "percola": "Percola"}[name],
        )
    right.set_xscale("log")
    right.set_xlabel("operations a second (logarithmic)")
    right.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8)
    figure.suptitle(title, x=0.02, horizontalalignment="left")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

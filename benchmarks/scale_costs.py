"""Service times for the simulation of load: where they come from, and what a call costs.

`benchmarks/scale.json` holds what other benchmarks measured, with the conditions of each run:

    fig8          processor time of client, servers and oracle, and rates, by threads; and the
                  stages of one thread, in milliseconds
    fig9          the brokerage on HBase, by client processes, whose calls are dearer than fig8's
    oracle        processor time of a call: a draw, a lock taken or given back
    stated        figures of docs/benchmarks.md and of the code's settings, each with its source

`make bench ARGS="--calibrate scale"` replaces fig8, fig9 and oracle by those of the
newest whole runs in `build/benchmarks`; what was not run again stays.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import OUTPUT, write_whole
from benchmarks.scale_calls import brokerage_calls
from percola import PercolaError

FILE: Final = Path(__file__).with_name("scale.json")
PARTS: Final = ("client", "servers", "oracle")
OPERATIONS: Final = {
    "write": "write a cell",
    "write five": "write five cells",
    "read": "read, 1,000 a snapshot",
    "read alone": "read, in a transaction",
}


class CalibrationError(PercolaError):
    """Figures for the simulation are missing or cannot be used."""


def load(path: Path = FILE) -> dict[str, Any]:
    """All figures."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def refresh(folder: Path = OUTPUT, path: Path = FILE) -> list[str]:
    """Replace figures by those of the runs in a folder; the names of the files that were read.

    Raises CalibrationError if there is none.
    """
    figures, read = load(path), []
    for name, take in (("fig8_network", _fig8), ("fig9_hbase", _fig9), ("oracle", _oracle)):
        source = folder / f"{name}.json"
        if source.exists():
            take(figures, json.loads(source.read_text()))
            read.append(source.name)
    if not read:
        raise CalibrationError(
            f"There are no figures in {folder}: run 'make bench ARGS=\"fig8_network fig9_hbase "
            "oracle\"' first."
        )
    write_whole(path, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    return read


def _source(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("at", "command", "cores", "processor", "file_system", "python", "sync_ms")
    conditions = found["conditions"]
    return {name: conditions[name] for name in (*kept, "load_before")}


def _fig8(figures: dict[str, Any], found: Mapping[str, Any]) -> None:
    rates = {
        (one["operation"], one["threads"]): one
        for one in found["figures"]
        if one["store"] == "HBase" and one["per"] == "second of the clock"
    }
    capacity = {
        one["operation"]: one
        for one in found["figures"]
        if one["store"] == "HBase" and one["per"] != "second of the clock"
    }
    lines: dict[str, Any] = {}
    for one in found["processor_ms"]["HBase"]:
        rate = rates[OPERATIONS[one["operation"]], one["threads"]]
        lines.setdefault(one["operation"], {})[str(one["threads"])] = {
            side: {
                "per_second": round(rate[f"{side}_per_second"], 1),
                **{part: round(one[side][part], 4) for part in PARTS},
            }
            for side in ("raw", "percola")
        }
    figures["fig8"] = {
        "source": _source(found),
        "lines": lines,
        "raw_a_second_of_servers": {
            name: round(capacity[shown]["raw_per_second"], 1) for name, shown in OPERATIONS.items()
        },
        "stages": {
            name: [[stage, round(1000 * seconds, 4)] for stage, seconds in stages]
            for name, stages in found["seconds"]["HBase"].items()
        },
    }


def _fig9(figures: dict[str, Any], found: Mapping[str, Any]) -> None:
    lines = {
        str(one["processes"]): {
            "per_second": round(one["per_second"], 1),
            **{part: round(ms, 4) for part, ms in one["processor_ms"].items()},
            **(
                {"waited": {part: round(ms, 4) for part, ms in one["waited_ms"].items()}}
                if "waited_ms" in one
                else {}
            ),
            "conflicts_per_thousand": round(one["conflicts_per_thousand"], 2),
            "p50_ms": {name: round(each["p50_ms"], 2) for name, each in one["latencies"].items()},
        }
        for one in found["lines"]
    }
    figures["fig9"] = {
        "source": {**_source(found), "load_after": found["load_after"]},
        "lines": lines,
    }


def _oracle(figures: dict[str, Any], found: Mapping[str, Any]) -> None:
    def call(part: str) -> float:
        return float(statistics.median(one[part] for one in found["points"] if one["threads"] == 1))

    figures["oracle"] = {
        "source": _source(found),
        "call_us": round(call("oracle_us"), 1),
        "client_us": round(call("client_us"), 1),
        "lock_us": round(found["locks"]["oracle_us"], 1),
        "relay_share": round(
            found["relay"]["relayed_oracle_us"] / found["relay"]["direct_oracle_us"], 2
        ),
        "relay_us": round(found["relay"]["relayed_relay_us"], 1),
    }


# --- What a call costs ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallCosts:
    """Processor milliseconds of single calls on one side: a client's, or the servers'.

    Attributes:
        read: of one cell.
        mutate: of one row, with its conditions.
        row: each further row of a mutation.
        cell: each further cell of a read or scan.
        draw: a timestamp, with what a transaction costs besides.
    """

    read: float
    mutate: float
    row: float
    cell: float
    draw: float

    def of(self, calls: Mapping[str, float]) -> float:
        """A transaction of so many reads, mutates, rows, cells and draws."""
        return (
            self.read * calls["reads"]
            + self.cell * max(0.0, calls["cells"] - calls["reads"])
            + self.mutate * calls["mutates"]
            + self.row * max(0.0, calls["rows"] - calls["mutates"])
            + self.draw * calls["draws"]
        )

    def times(self, factor: float) -> CallCosts:
        """All of them so many times as large."""
        return CallCosts(**{name: factor * ms for name, ms in asdict(self).items()})


def call_costs(figures: Mapping[str, Any], part: str, threads: int) -> CallCosts:
    """Solve figure 8's four lines for the costs of a call.

    A read is one call, and alone one with a draw; a written cell is two mutations of a row and two
    draws; five cells are two of a row, two of four rows, and two draws. What another cell of a
    read costs is not measured there: its share of a first one is stated in docs/hbase.md.
    """
    spent = {
        name: figures["fig8"]["lines"][name][str(threads)]["percola"][part] for name in OPERATIONS
    }
    read = spent["read"]
    draw = max(0.0, spent["read alone"] - read)
    mutate = max(0.0, spent["write"] - 2 * draw) / 2
    row = max(0.0, spent["write five"] - 2 * draw - 4 * mutate) / 6
    return CallCosts(read, mutate, row, read * figures["stated"]["cell_of_a_batch"]["value"], draw)


def program_costs(figures: Mapping[str, Any], part: str, threads: int) -> CallCosts:
    """What calls cost in a program, which makes all kinds of them on several tables in turn.

    That is more than in figure 8, where one call is made over and over: as many times as much as
    the brokerage takes with one client, beside its calls at the costs of figure 8.
    """
    calls = brokerage_calls()
    shown, made = ("clients", calls.mix) if part == "client" else (part, calls.all)
    measured = figures["fig9"]["lines"]["1"][shown]
    return call_costs(figures, part, threads).times(
        measured / call_costs(figures, part, 1).of(made)
    )

"""Figure 9 on HBase: the brokerage of `benchmarks/fig9.py` beside servers of its own.

HBase has one region server and one DataNode; timestamps come from a process of `percola oracle`,
liveness tokens from ZooKeeper. Clients warm up before each block, because Java's compilers take
their time; then the worker is killed with SIGKILL and another one is started. After each block
all invariants are checked. Processor time is told apart: clients, HBase with HDFS and ZooKeeper,
the oracle, and the rest, which is the worker's; and so is for how long they waited for a core,
which says how much of the machine other programs had.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from benchmarks.fig9 import System, on_percola, summarize
from benchmarks.measure import (
    conditions,
    conditions_line,
    output_name,
    temporary_folder,
    write_json,
)
from benchmarks.servers import OracleProcess, small_cluster

PROCESSES: Final = (1, 2)
_SYSTEM: Final = System("Percola on HBase", "")


def run(console: Console, *, quick: bool) -> None:
    """Measure, check, print the table, write the figures as JSON."""
    seconds, warm, rounds = (5.0, 10.0, 1) if quick else (15.0, 60.0, 1)
    found = conditions()
    blocks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with temporary_folder() as folder, small_cluster(folder / "cluster") as cluster:
        states = {name: cluster.process(name).state.pid for name in cluster.names}
        hbase = {name: pid for name, pid in states.items() if pid is not None}
        for number in range(rounds):
            for processes in PROCESSES if number % 2 == 0 else PROCESSES[::-1]:
                console.log(f"Figure 9 on HBase: {processes} client process(es) …")
                store = f"{cluster.address}_{number}_{processes}"
                with OracleProcess(store) as oracle:
                    address = f"{store}?oracle={oracle.address}"
                    servers = {**hbase, "oracle": oracle.process.pid}
                    block = on_percola(
                        address, _SYSTEM, processes, seconds, warm=warm, servers=servers
                    )
                for parts in (block["processor_ms"], block["waited_ms"]):
                    parts["servers"] = sum(parts.pop(name) for name in hbase)
                blocks[processes].append(block)
    lines = [summarize(_SYSTEM, processes, blocks[processes]) for processes in PROCESSES]
    parts_shown = ("clients", "servers", "oracle", "rest")
    for line in lines:
        for kind in ("processor_ms", "waited_ms"):
            line[kind] = {
                part: statistics.median(one[kind][part] for one in line["blocks"])
                for part in line["blocks"][0][kind]
            }
    columns = ("/s", *(f"{part} ms" for part in parts_shown), "waited ms", "conflicts ‰")
    grid = Grid("processes", *columns, box=SIMPLE_HEAD)
    for line in lines:
        grid.add_row(
            str(line["processes"]),
            f"{line['per_second']:,.0f}",
            *(f"{line['processor_ms'][part]:.2f}" for part in parts_shown),
            f"{sum(line['waited_ms'].values()):.2f}",
            f"{line['conflicts_per_thousand']:.2f}",
        )
    console.print(grid)
    kinds = Grid("p50 / p99 ms", *(f"{line['processes']}" for line in lines), box=SIMPLE_HEAD)
    for kind in lines[0]["latencies"]:
        cells = [line["latencies"].get(kind) for line in lines]
        kinds.add_row(
            kind, *(f"{one['p50_ms']:.1f} / {one['p99_ms']:.1f}" if one else "" for one in cells)
        )
    console.print(kinds)
    console.print("All invariants held after every block; each had its worker killed.")
    after = os.getloadavg()[0]
    console.print(f"On {conditions_line(found)}; load after it {after:.1f}.", soft_wrap=True)
    path = write_json(
        output_name("fig9_hbase", quick=quick),
        {"conditions": found, "load_after": after, "lines": lines},
    )
    console.print(f"Figures: {path}", style="dim", soft_wrap=True)

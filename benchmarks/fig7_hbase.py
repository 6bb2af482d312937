"""Figure 7 on HBase: the clustering of `benchmarks/fig7.py` beside servers of its own.

HBase has one region server and one DataNode; timestamps come from a process of `percola oracle`,
liveness tokens from ZooKeeper. Documents, observer, rates, check and the batch jobs of Spark are
those of figure 7, at a tenth of the repository. The processor time of all servers counts as
Percola's. Some thousand documents are clustered before the first rate, because Java's compilers
take their time, and HBase has ended before Spark's jobs are measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rich.console import Console

from benchmarks import fig7
from benchmarks.fig7_documents import Shape, expected
from benchmarks.fig7_percola import Clustering
from benchmarks.measure import conditions, output_name, temporary_folder
from benchmarks.servers import OracleProcess, small_cluster

FULL: Final = replace(fig7.FULL, documents=100_000)
QUICK: Final = replace(fig7.QUICK, documents=3_000, rates=(100.0, 3000.0))


def run(console: Console, *, quick: bool) -> None:
    """Measure, check, print the tables, draw the plot, write the figures as JSON."""
    size, warm = (QUICK, 100) if quick else (FULL, 3000)
    found = conditions()
    with temporary_folder() as folder, console.status("Figure 7 on HBase …") as status:

        def say(words: str) -> None:
            status.update(f"Figure 7 on HBase: {words} …")

        comparison = fig7.Comparison(folder, size, say)
        labels = expected(comparison.documents.keys(0, size.documents))
        shape = Shape.of(labels)
        console.print(f"{shape}.", soft_wrap=True)
        with (
            small_cluster(folder / "cluster") as cluster,
            OracleProcess(cluster.address) as oracle,
        ):
            states = [cluster.process(name).state.pid for name in cluster.names]
            servers = [oracle.process.pid, *(pid for pid in states if pid is not None)]
            address = f"{cluster.address}?oracle={oracle.address}"
            clustering = Clustering(folder, comparison.documents, address, servers, warm)
            comparison.percola(clustering, "Percola on HBase", [""])
        comparison.spark(labels, streams=False)
    fig7.finish(console, comparison, shape, output_name("fig7_hbase", quick=quick), found)

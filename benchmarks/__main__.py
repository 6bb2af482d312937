"""Runs benchmarks: all, or those that are named.

python -m benchmarks [--quick] [--crawl FOLDER] [--store NAME…] [NAME…]
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from benchmarks.locked_cells import STORES
from benchmarks.lockstep import LockstepError
from percola import PercolaError

NAMES: Final = {
    "fig7": "figure 7: clustering delay by crawl rate: Percola, Spark and other systems",
    "fig7_hbase": "figure 7 on HBase, at 100,000 documents, beside Spark's batch jobs",
    "oracle": "§2.3: timestamps a second and their latency, over clients and processes",
    "fig8_lmdb": "figure 8: single-cell reads and writes, Percola and raw LMDB in turn",
    "fig8_network": "figure 8 on HBase and on Bigtable's emulator, with an oracle and ZooKeeper",
    "locked_cells": "what reads cost beside up to a million locks of get_for_update on a cell",
    "fig9": "figure 9: a TPC-E-like brokerage by processes: Percola and PostgreSQL in turn",
    "fig9_hbase": "figure 9 on HBase: the same brokerage beside servers of its own",
    "fig10_faults": "figure 10: a bank on HBase while servers, oracles and programs are killed",
    "fig10_brokerage": "figure 10: figure 9 on 15 region servers while a third is killed",
    "fig10_webindex": "figure 10: the web index on HBase follows a crawl beside such faults",
    "tablets": "§2.4: how evenly two worker processes serve the regions of a table on HBase",
    "wake_ups": "§2.4: how long a single change waits on HBase, by regions of its table",
    "calls": "§2.5: calls to a network store that a document takes, with cache and prefetch",
    "chain": "the web index: pages a second, share by stage, latency, memory",
    "index": "the web index at the size of a crawl: stages, latencies, growth, a recrawl",
    "spark_read": "spark.read: rows a second of a snapshot, beside batches that are there already",
    "spark_feed": "spark.readStream: what a table's feed adds to a micro-batch, and costs writers",
    "followers": "percola.feed: changes a second that one process follows, on HBase and Bigtable",
    "fleet": "workers on Spark: what they cost while there is nothing to do",
    "tpch": "TPC-H's 22 queries through the catalog for Spark SQL, beside Parquet files",
    "tpch_recipes": "five queries of TPC-H kept by recipes: changes a second, answers as Spark's",
    "spark_write": "df.write: rows a second into LMDB, by row, by chunk and as one transaction",
    "maintenance": "check, copy, gc, rerun: rows a second of one process, and of Spark",
    "recipes": "derived tables: changes a second, conflicts, and latency in large groups",
    "hubs": "the web index: what one more link to a page costs, by the number of links to it",
    "clusters": "the web index: what one change costs in a cluster of duplicates, by its pages",
    "duplicates": "the web index: near-copies found and pages folded, on labelled documentation",
    "scale": "figures 7 and 9 up to 15,000 cores, by a simulation of load; what limits",
    "render_drain": "the web index: how soon a page is found while 10,000 are rendered again",
    "articles": "the web index: how much of articles is taken for their text, on 181 pages",
    "repeated": "the web index: the text of pages without what their hosts repeat around it",
    "search": "the web index: nDCG@10 of judged queries on two documentations, beside plain BM25",
    "exporters": "the web index on OpenSearch: documents a second by one exporter and by two",
    "checker": "the history checkers: transactions a second, by timestamps and by cycles",
}


def main(arguments: list[str]) -> int:
    """Run the benchmarks that are named; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure, print a table and draw a plot for each benchmark.",
        epilog="\n".join(f"{name:14} {text}" for name, text in NAMES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; by default all")
    parser.add_argument(
        "--quick", action="store_true", help="short and rough: to see that everything works"
    )
    parser.add_argument(
        "--crawl",
        type=Path,
        metavar="FOLDER",
        help="for index: measure with what 'webindex crawl-docs' has left there",
    )
    parser.add_argument(
        "--store",
        action="append",
        choices=STORES,
        help="for locked_cells: on which store; may be repeated; by default memory and LMDB",
    )
    parser.add_argument(
        "--documents",
        type=int,
        metavar="N",
        help="for fig7: the size of the repository; by default a million, with --quick 20,000",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="for scale: take service times from the newest runs in build/benchmarks first",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    if options.crawl is not None and options.names != ["index"]:
        parser.error("--crawl is for the benchmark index alone: name that one, and no other")
    if options.store is not None and options.names != ["locked_cells"]:
        parser.error("--store is for the benchmark locked_cells alone: name that one, and no other")
    if options.documents is not None and options.names != ["fig7"]:
        parser.error("--documents is for the benchmark fig7 alone: name that one, and no other")
    if options.documents is not None and options.documents < 1000:
        parser.error("--documents: at least 1,000, for clusters as they should be")
    if options.calibrate and options.names != ["scale"]:
        parser.error("--calibrate is for the benchmark scale alone: name that one, and no other")
    # So that processes and folders go with this one when it is told to stop, or its terminal is
    # closed; `nohup` has it go on then.
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    # In a file nothing says how wide a table may be, and 80 columns cut the larger ones.
    width = None if sys.stdout.isatty() else 120
    console = Console(highlight=False, soft_wrap=False, width=width)
    names, failed = options.names or list(NAMES), []
    for name in names:
        more: dict[str, Any] = {} if options.crawl is None else {"crawl": options.crawl}
        if options.documents is not None:
            more["documents"] = options.documents
        if options.calibrate:
            more["calibrate"] = True
        if options.store is not None:
            more["stores"] = options.store
        try:
            importlib.import_module(f"benchmarks.{name}").run(console, quick=options.quick, **more)
        except Exception as error:
            if not isinstance(error, (PercolaError, LockstepError, OSError)):
                traceback.print_exc()  # Nobody has foreseen it, and the others still run.
            said = Text.assemble(("Error:", "bold red"), f" {name}: {error}")
            Console(stderr=True).print(said, soft_wrap=True)
            failed.append(name)
        except KeyboardInterrupt:
            Console(stderr=True).print(f"{name}: interrupted.")
            return 130
    if failed and len(names) > 1:
        Console(stderr=True).print(f"Failed: {', '.join(failed)}. The others have run.")
    return 1 if failed else 0


def _interrupt(number: int, frame: object) -> None:
    # As Ctrl-C: whoever holds that back for a moment, as the start of Spark does, holds this back.
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)
    else:  # A shell starts what it runs in the background deaf to Ctrl-C.
        raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

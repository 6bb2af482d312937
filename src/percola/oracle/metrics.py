"""§2.3: Prometheus metrics of an oracle process, in a separate registry.

The thread that serves counts in plain numbers, which are read when they are scraped: a counter of
prometheus_client takes a lock each time, which costs about as much as drawing a timestamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from percola.oracle.ranges import Ranges
from percola.rpc.frames import Code

_PREFIX: Final = "percola_oracle_"


class Connections(Protocol):
    """What a server knows of its connections."""

    @property
    def connections(self) -> int:
        """How many there are."""

    @property
    def refused(self) -> int:
        """Those that were refused before they were accepted."""

    displaced: int
    """Those that were ended because there were too many."""


class OracleMetrics(Collector):
    """Counters of one oracle process.

    `timestamps` handed out by `draws`, the requests: their ratio shows how well clients batch;
    `lasts`, requests for the highest one; `refusals`, by status; `former_draws`, requests of
    clients of release 0.1; `store_failures`, steps that failed in the store. `holds` is 1 in the
    process that hands out timestamps: the sum over all processes of a repository is 1, and 0 for a
    moment during a take-over.
    """

    def __init__(self, ranges: Ranges, server: Connections) -> None:
        self.draws = 0
        self.timestamps = 0
        self.lasts = 0
        self.former_draws = 0
        self.store_failures = 0
        self.refusals: Counter[Code] = Counter()
        self._former_timestamps = 0
        self._ranges = ranges
        self._server = server
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def count_former(self, timestamps: int) -> None:
        """A client of release 0.1 was answered; called by several threads, so it may miss some."""
        self.former_draws += 1
        self._former_timestamps += timestamps

    def handed_out(self) -> int:
        """How many timestamps this process has handed out."""
        return self.timestamps + self._former_timestamps

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        for name, told, count in (
            ("draws", "Requests that were given timestamps", self.draws),
            ("timestamps", "Timestamps handed out", self.handed_out()),
            ("lasts", "Requests for the highest timestamp", self.lasts),
            ("former_draws", "Requests of clients of Percola 0.1", self.former_draws),
            (
                "displaced_connections",
                "Idle connections that were ended because there were too many",
                self._server.displaced,
            ),
            (
                "refused_connections",
                "Connections refused for their token, version or protocol, or for a lack of TLS",
                self._server.refused,
            ),
            (
                "store_failures",
                "Times that the store failed or did not answer",
                self.store_failures,
            ),
        ):
            yield CounterMetricFamily(_PREFIX + name, told, value=count)
        refusals = CounterMetricFamily(
            _PREFIX + "refusals", "Requests that were refused", labels=["status"]
        )
        for code, count in list(self.refusals.items()):
            refusals.add_metric([code.name], count)
        yield refusals
        ranges = self._ranges
        for name, told, value in (
            ("holds", "1 if timestamps are had here", ranges.holds),
            ("takeovers", "Times that this process began to hand out timestamps", ranges.takeovers),
            (
                "record_writes",
                "Writes of the record in the store: renewals, ranges, take-overs",
                ranges.writes,
            ),
            ("connections", "Clients that are connected", self._server.connections),
        ):
            yield GaugeMetricFamily(_PREFIX + name, told, value=float(value))

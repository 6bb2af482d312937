"""§2.3: Prometheus metrics of an oracle process, in a separate registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from percola.oracle.ranges import Ranges


class OracleMetrics:
    """Counters of one oracle process.

    `timestamps` handed out by `draws`, the calls: their ratio shows how well clients batch;
    `lasts`, calls for the highest one; `refusals`, by status; `displaced`, idle streams that were
    ended for new ones; `store_failures`, steps that failed in the store. `holds` is 1 in the
    process that hands out timestamps: the sum over all processes of a repository is 1, and 0 for a
    moment during a take-over.
    """

    def __init__(self, ranges: Ranges) -> None:
        registry = self.registry = CollectorRegistry()
        self.draws = Counter(
            "percola_oracle_draws", "Calls that were given timestamps", registry=registry
        )
        self.timestamps = Counter(
            "percola_oracle_timestamps", "Timestamps handed out", registry=registry
        )
        self.lasts = Counter(
            "percola_oracle_lasts", "Calls for the highest timestamp", registry=registry
        )
        self.refusals = Counter(
            "percola_oracle_refusals", "Calls that were refused", ["status"], registry=registry
        )
        self.displaced = Counter(
            "percola_oracle_displaced_streams",
            "Idle streams that were ended because there were too many",
            registry=registry,
        )
        self.store_failures = Counter(
            "percola_oracle_store_failures",
            "Times that the store failed or did not answer",
            registry=registry,
        )
        holds = Gauge("percola_oracle_holds", "1 if timestamps are had here", registry=registry)
        holds.set_function(lambda: float(ranges.holds))
        takeovers = Gauge(
            "percola_oracle_takeovers",
            "Times that this process began to hand out timestamps",
            registry=registry,
        )
        takeovers.set_function(lambda: float(ranges.takeovers))
        writes = Gauge(
            "percola_oracle_record_writes",
            "Writes of the record in the store: renewals, ranges, take-overs",
            registry=registry,
        )
        writes.set_function(lambda: float(ranges.writes))

    def handed_out(self) -> int:
        """How many timestamps this process has handed out."""
        return int(self.registry.get_sample_value("percola_oracle_timestamps_total") or 0)

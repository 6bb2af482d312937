"""§2.4 Percola and Spark: loaders, and what else runs as a batch beside the observers.

An extra, `pip install 'percola[spark]'`: `import percola` never needs it.
"""

from __future__ import annotations

from percola.spark.configure import configure
from percola.spark.fleet import Fleet, FleetError
from percola.spark.fleet_start import run_workers
from percola.spark.fleet_status import WorkerStatus
from percola.spark.interrupts import interrupts_held
from percola.spark.session import (
    JavaMissingError,
    SparkStartError,
    spark_context,
    spark_session,
)
from percola.spark.transactions import in_transactions

__all__ = [
    "Fleet",
    "FleetError",
    "JavaMissingError",
    "SparkStartError",
    "WorkerStatus",
    "configure",
    "in_transactions",
    "interrupts_held",
    "run_workers",
    "spark_context",
    "spark_session",
]

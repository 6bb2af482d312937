"""§2.4 Percola on Spark: a data source, loaders, and workers on executors.

An extra, `pip install 'percola[spark]'`: `import percola` does not need it.
"""

from __future__ import annotations

from percola import extras

try:
    from percola.spark.catalog import CatalogJarMissingError, catalog_jar, catalog_settings
    from percola.spark.configure import configure
    from percola.spark.ctrl_c import interrupts_held
    from percola.spark.fleet.driver import Fleet, FleetError
    from percola.spark.fleet.launch import run_workers
    from percola.spark.fleet.status import WorkerStatus
    from percola.spark.jobs import (
        Job,
        Progress,
        Show,
        SparkJobError,
        context_of,
        for_tasks,
        started_job,
    )
    from percola.spark.ranges import OnSpark
    from percola.spark.session import (
        JavaMissingError,
        SparkStartError,
        spark_context,
        spark_session,
    )
    from percola.spark.transactions import in_transactions
except ImportError as error:
    raise ImportError(extras.missing("percola.spark", error, "spark"), name=error.name) from error

__all__ = [
    "CatalogJarMissingError",
    "Fleet",
    "FleetError",
    "JavaMissingError",
    "Job",
    "OnSpark",
    "Progress",
    "Show",
    "SparkJobError",
    "SparkStartError",
    "WorkerStatus",
    "catalog_jar",
    "catalog_settings",
    "configure",
    "context_of",
    "for_tasks",
    "in_transactions",
    "interrupts_held",
    "run_workers",
    "spark_context",
    "spark_session",
    "started_job",
]

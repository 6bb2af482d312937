"""§2.4 Percola and Spark: loaders, and what else runs as a batch beside the observers.

An extra, `pip install 'percola[spark]'`: `import percola` never needs it.
"""

from __future__ import annotations

from percola.spark.session import (
    JavaMissingError,
    SparkStartError,
    interrupts_held,
    spark_context,
    spark_session,
)

__all__ = [
    "JavaMissingError",
    "SparkStartError",
    "interrupts_held",
    "spark_context",
    "spark_session",
]

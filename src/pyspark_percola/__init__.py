"""§2.4 Where Spark finds Percola by itself: `spark.read.format("percola")` with nothing registered.

PySpark looks through every importable top-level module whose name begins with `pyspark_`, and takes
its `DefaultSource` for a data source: in a classic session, through Spark Connect, and in
declarative pipelines alike. It has to be importable where the driver runs; where another session
does not find it, `percola.spark.configure` registers it.
"""

from percola.spark.source import PercolaDataSource as DefaultSource

__all__ = ["DefaultSource"]

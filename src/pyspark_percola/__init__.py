"""§2.4 Automatic registration: `spark.read.format("percola")` works without registering anything.

PySpark imports every top-level module whose name begins with `pyspark_` and registers its
`DefaultSource` as a data source: in classic sessions, through Spark Connect, and in declarative
pipelines. The module must be importable where the driver runs; in a session that does not find it,
`percola.spark.configure` registers the source.
"""

from percola.spark.source import PercolaDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""An archive of Spark's classes (CDS): a JVM of Spark that has it starts in half the time.

    python -m tests.support.spark_classes     makes it, if this Java and this PySpark have none

Tests start about a hundred, and each would read ten thousand classes from jars. Java ignores the
archive where the class path is another one, as that of `spark-submit` is.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_SILENT: Final = "-Xlog:cds=off,cds+dynamic=off"
_DUMP_SECONDS: Final = 300


def options(java: str) -> str:
    """What a JVM of Spark is started with to use the archive; nothing if there is none.

    Args:
        java: the version and the folder, as `scripts/java.sh describe` prints them.
    """
    archive = _archive(java)
    return f'-XX:SharedArchiveFile="{archive}" {_SILENT}' if archive.is_file() else ""


def _archive(java: str) -> Path:
    pyspark = metadata.distribution("pyspark")
    key = f"{java} {pyspark.version} {pyspark.locate_file('pyspark')}"
    return _ROOT / ".cache" / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path) -> None:
    import percola
    from percola import Table
    from percola.spark import session, spark_session

    archive.parent.mkdir(exist_ok=True)
    new = archive.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f'-XX:ArchiveClassesAtExit="{new}" {_SILENT} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
    )
    session._JVM_END_SECONDS = _DUMP_SECONDS  # It writes the archive when it ends.
    docs, copies = Table("docs", feed=True), Table("copies")
    for table in (docs, copies):
        table.column("title", str)

    def options_of(table: str) -> dict[str, str]:
        return {"path": f"{folder}/repo", "table": table}

    # What most jobs of tests do: tables are written, read and streamed; a query; plain tasks.
    with tempfile.TemporaryDirectory() as folder, spark_session("local[2]") as spark:
        with percola.open(f"{folder}/repo", schema=[docs, copies]):
            pass
        rows = spark.createDataFrame([("one", "A"), ("two", "A")], "row string, title string")
        rows.write.format("percola").mode("append").options(**options_of("docs")).save()
        read = spark.read.format("percola").options(**options_of("docs")).load()
        read.createOrReplaceTempView("docs")
        spark.sql("SELECT title, count(*) FROM docs GROUP BY title ORDER BY title").collect()
        stream = spark.readStream.format("percola").options(**options_of("docs")).load()
        copy = stream.writeStream.format("percola").options(**options_of("copies"))
        copy = copy.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        copy.start().awaitTermination()
        spark.sparkContext.parallelize([(1, 1), (1, 2)], 2).reduceByKey(max).collect()
    new.rename(archive)


if __name__ == "__main__":
    said = subprocess.run(
        [_ROOT / "scripts" / "java.sh", "describe"], check=False, capture_output=True, text=True
    )
    java = said.stdout.strip()
    if java and not _archive(java).is_file():
        os.environ["JAVA_HOME"] = java.partition(" in ")[2]
        print("Making an archive of Spark's classes, with which the tests on Spark start faster.")
        _make(_archive(java))

"""§2.4 `format("percola")`: a table as a Spark data source, for reading and writing, whole or live.

    spark.read        a table at one timestamp                     reading.py
    df.write          rows as transactions                         writing.py
    spark.readStream  the change feed of a table                   stream_reading.py
    df.writeStream    micro-batches, each exactly once             stream_writing.py

Spark makes this object once for each frame, in a process of its own, and pickles it. So what has
to be the same for every action on the frame is decided here: the address, and the timestamp of a
snapshot. It is also the one place where a mistake can be told before anything runs.
"""

from __future__ import annotations

import uuid
from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from percola.spark.options import READ, READ_STREAM, WRITE, WRITE_STREAM, Options


class PercolaDataSource(DataSource):
    """`spark.read.format("percola").option("table", NAME).load(REPOSITORY)`, and its siblings.

    Raises ConflictingOptionsError, NotARepositoryError, UnknownTableError, UsageError for a
    snapshot that has not come yet and SnapshotTooOldError for one that is gone, all when the
    frame is made.

    Attributes:
        snapshot_ts: the timestamp at which a frame of `spark.read` sees the table.
        frame: a name for the frame, under which its timestamp is held back from collection.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Spark looks the source up where its modules are wanted or not: import late.
        from percola.spark.catalog.describe import describe, is_question
        from percola.spark.read.snapshot import snapshot_timestamp

        self.answer = describe(options) if is_question(options) else None
        if self.answer is not None:
            return
        self.parsed = Options(dict(options))
        self.frame = f"frame-{uuid.uuid4().hex}"
        with self.parsed.open() as repository:
            self.parsed.table(repository)
            self.snapshot_ts = snapshot_timestamp(repository, self.parsed)

    @classmethod
    def name(cls) -> str:
        """The name in `format(…)`."""
        return "percola"

    def schema(self) -> StructType:
        """What `spark.read` shows of the table; with the option feedColumns, `spark.readStream`.

        Spark does not tell which of the two asks.
        """
        if self.answer is not None:
            return self.answer
        if self.parsed.flag("feedColumns"):
            from percola.spark.stream.source import feed_schema

            return feed_schema(self.parsed)
        from percola.spark.read.snapshot import frame_schema

        schema, self.snapshot_ts = frame_schema(self.parsed, self.snapshot_ts, self.frame)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The table at `snapshot_ts`."""
        from percola.spark.read.snapshot import reader

        self.parsed.check_role(READ)
        return reader(self.parsed, schema, self.snapshot_ts, self.frame)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Rows as transactions."""
        from percola.spark.write.plan import writer

        self.parsed.check_role(WRITE)
        return writer(self.parsed, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The change feed of the table."""
        from percola.spark.stream.source import stream_reader

        self.parsed.check_role(READ_STREAM)
        return stream_reader(self.parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Micro-batches, each exactly once."""
        from percola.spark.stream.sink import stream_writer

        self.parsed.check_role(WRITE_STREAM)
        return stream_writer(self.parsed, schema, overwrite)

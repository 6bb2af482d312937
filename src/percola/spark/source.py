"""§2.4 `format("percola")`: a table as a Spark data source, for batches and streams.

    spark.read        a table at one timestamp                     read/snapshot.py
    df.write          rows as transactions                         write/plan.py
    spark.readStream  the change feed of a table                   stream/source.py
    df.writeStream    micro-batches, each exactly once             stream/sink.py

Spark creates this object once per frame, in a separate process, and pickles it. What must be the
same for every action on the frame is therefore fixed here: the address and the snapshot's
timestamp. Errors in the options are also raised here, before any job runs.
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

from percola.errors import PercolaError
from percola.spark.options import (
    OF_FEED_SCHEMAS,
    OF_STREAMS,
    READ,
    READ_STREAM,
    WRITE,
    WRITE_STREAM,
    Options,
)
from percola.spark.sentences import FailedReader, errors_are_sentences
from percola.spark.versions import check_version


class PercolaDataSource(DataSource):
    """`spark.read.format("percola").option("table", NAME).load(REPOSITORY)`; also writes, streams.

    Raises, when the frame is created: ConflictingOptionsError, NotARepositoryError,
    UnknownTableError, UsageError for a snapshot in the future, and SnapshotTooOldError for one
    below the safe point; SparkTooOldError where the installed PySpark lacks what the options need.

    Attributes:
        snapshot_ts: the timestamp at which a frame of `spark.read` reads the table.
        frame: the frame's name, which is also the name of its retention hold.
    """

    @errors_are_sentences
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_version()
        # Spark loads this module even where the source is not used: import the rest late.
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

    @errors_are_sentences
    def schema(self) -> StructType:
        """The schema for `spark.read`; with one of `OF_FEED_SCHEMAS`, for `spark.readStream`.

        Spark does not say which of the two it calls this for.
        """
        if self.answer is not None:
            return self.answer
        if any(self.parsed[name] for name in OF_FEED_SCHEMAS):
            from percola.spark.stream.source import feed_schema

            return feed_schema(self.parsed)
        if any(name in self.parsed for name in OF_STREAMS):
            from percola.spark.stream.source import check_feed

            check_feed(self.parsed)
        from percola.spark.read.snapshot import frame_schema

        schema, self.snapshot_ts = frame_schema(self.parsed, self.snapshot_ts, self.frame)
        return schema

    @errors_are_sentences
    def reader(self, schema: StructType) -> DataSourceReader:
        """The table at `snapshot_ts`."""
        from percola.spark.read.snapshot import reader

        self.parsed.check_role(READ)
        return reader(self.parsed, schema, self.snapshot_ts, self.frame)

    @errors_are_sentences
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Rows as transactions."""
        from percola.spark.write.plan import writer

        self.parsed.check_role(WRITE)
        return writer(self.parsed, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The change feed of the table."""
        from percola.spark.stream.source import stream_reader

        try:
            self.parsed.check_role(READ_STREAM)
            reader = stream_reader(self.parsed, schema)
            # The stream holds its own position. What `schema` has held would stay where it is.
            with self.parsed.open() as repository:
                repository.release(self.frame)
            return reader
        except PercolaError as error:
            return FailedReader(error)

    @errors_are_sentences
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Micro-batches, each exactly once."""
        from percola.spark.stream.sink import stream_writer

        self.parsed.check_role(WRITE_STREAM)
        return stream_writer(self.parsed, schema, overwrite)

"""Spark's streams on a store of servers: what is claimed of a folder, on Bigtable's emulator."""

from __future__ import annotations

import feed_streams
import pytest
import spark_writes
from borrowed import borrow
from spark_on_bigtable import folder, opened, servers

from tests.integration import test_spark_stream_read, test_spark_stream_write

__all__ = ["folder", "servers"]

pytestmark = pytest.mark.long

Test_read = borrow(
    test_spark_stream_read,
    [
        "test_it_reads_the_table_as_it_is_and_then_every_change_and_goes_on_from_its_checkpoint",
        "test_what_a_stopped_stream_has_yet_to_read_is_held_back_from_collection",
    ],
    repo=opened(feed_streams.TABLES),
)

Test_write = borrow(
    test_spark_stream_write,
    ["test_each_batch_is_one_commit_and_one_that_is_repeated_is_passed_over"],
    folder=None,
    repo=opened(spark_writes.SCHEMA),
)

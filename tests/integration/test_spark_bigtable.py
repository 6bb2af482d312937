"""Spark on a store of servers: what is claimed of a folder, on Bigtable's emulator.

Tasks know of the repository by its address, and of the emulator and the oracle by what their
process has in its environment.
"""

from __future__ import annotations

import pytest
import spark_writes
from borrowed import borrow
from spark_on_bigtable import folder, opened, servers

from tests.integration import test_spark_read, test_spark_transactions, test_spark_write

__all__ = ["folder", "servers"]

Test_read = borrow(
    test_spark_read,
    ["test_a_table_is_read_whole_with_types_and_nulls"],
    folder=None,
    repo=opened(test_spark_read.SCHEMA),
    pushing=None,
)

Test_write = pytest.mark.long(
    borrow(
        test_spark_write,
        [
            "test_values_of_every_type_are_written_and_observers_see_them",
            "test_a_row_in_two_partitions_of_a_job_is_told_and_in_one_the_later_counts",
        ],
        folder=None,
        repo=opened(spark_writes.SCHEMA),
    )
)

Test_transactions = pytest.mark.long(
    borrow(
        test_spark_transactions,
        ["test_a_loader_reads_before_it_writes_and_writes_several_tables"],
        repo=opened(test_spark_transactions.SCHEMA),
    )
)

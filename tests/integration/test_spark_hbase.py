"""Spark SQL on HBase: what is claimed of row changes in a folder.

Each process that Spark starts has HBase's client in a JVM of its own, so this takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from borrowed import borrow
from hbase import HBase
from servers import Servers

import percola
from percola import Repository
from tests.integration import test_spark_row_changes

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def address(hbase: HBase, request: pytest.FixtureRequest) -> Iterator[str]:
    """That of a repository that no other test has."""
    name = "".join(filter(str.isalnum, request.node.nodeid))[-30:].lower()
    with ExitStack() as stack:
        yield Servers(f"hbase://{hbase.cluster.quorum}", [], {}).address(f"i{name}", stack)


@pytest.fixture
def changed(self: object, address: str) -> Iterator[Repository]:
    with percola.open(address, [test_spark_row_changes.shop]) as repository:
        test_spark_row_changes.fill(repository, 10)
        yield repository


Test_row_changes = borrow(
    test_spark_row_changes,
    [
        "test_an_update_writes_and_notifies_only_what_differs",
        "test_a_merge_is_what_spark_computes_itself_and_one_commit",
        "test_truncate_removes_all_rows_at_one_commit_and_observers_see_it",
        "test_a_merge_whose_python_workers_are_killed_is_there_once",
    ],
    # Which statement fails makes no difference to a store.
    first_case_of=[
        "test_what_is_not_defined_is_refused_in_a_sentence_and_nothing_is_written",
        "test_a_row_that_somebody_changes_while_the_statement_runs_fails_it",
    ],
    repo=changed,
    small_batches=None,
)

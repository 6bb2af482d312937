"""§2.4 Transactions of one's own over the rows of a Spark job: the paper's loaders.

`df.write` writes columns of one table, whatever was there before. A loader that looks before it
writes, or writes several tables at once, gives its transaction to the tasks instead:

    def load(t, rows):
        for row in rows:
            if t.get(newest, row.url) is None or t.get(newest, row.url) < row.date:
                t.set(newest, row.url, row.date)
                t.set(body, row.url, row.body)

    frame.rdd.mapPartitions(in_transactions(load, "./repo", schema=[pages])).count()

A task cuts its rows into chunks, and runs one transaction a chunk, again where it conflicts (rule
P13). When Spark runs a task again, it begins at the task's first row: chunks that had committed are
run once more. So the function has to come to the same when it is repeated. One that looks before it
writes does so by itself; one that adds up does not, and belongs into an observer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import percola
from percola import ConflictingOptionsError, Table, Transaction
from percola.connect.address import portable
from percola.spark.chunks import CHUNK_BYTES, CHUNK_ROWS, chunked, weight

R = TypeVar("R")
T = TypeVar("T")


def in_transactions(
    body: Callable[[Transaction, list[R]], T],
    repository: str | os.PathLike[str],
    *,
    schema: Iterable[Table[Any]] = (),
    chunk_rows: int = CHUNK_ROWS,
    chunk_bytes: int = CHUNK_BYTES,
) -> Callable[[Iterable[R]], Iterator[T]]:
    """What `mapPartitions` of an RDD, such as `frame.rdd`, needs to run transactions over its rows.

    The result has one element for each transaction that committed: what `body` returned. Spark is
    lazy: nothing runs until they are asked for, as by `count`, `sum` or `collect`.

    Args:
        body: runs in tasks, with a transaction and some rows; it is pickled. It may run several
            times for the same rows, and must have no effect but through its transaction.
        repository: its address; every machine that runs tasks must reach it there.
        schema: the tables that `body` uses, if they are to be made where they are missing.
        chunk_rows: how many rows a transaction has at most.
        chunk_bytes: a transaction gets no further row once its rows hold that many bytes, as far
            as text and bytes in them tell.

    Raises ConflictingOptionsError for numbers below 1, NotARepositoryError for a repository in
    memory. In a task, what `percola.open`, `Repository.run` and `body` raise: Spark then runs the
    task again, and in the end gives the job up.
    """
    for name, number in (("chunk_rows", chunk_rows), ("chunk_bytes", chunk_bytes)):
        if number < 1:
            raise ConflictingOptionsError(f"{name} must be at least 1, not {number}.")
    return _InTransactions(body, portable(repository), (*schema,), chunk_rows, chunk_bytes)


@dataclass(frozen=True, slots=True)
class _InTransactions(Generic[R, T]):
    """`in_transactions`; pickled with the tasks."""

    body: Callable[[Transaction, list[R]], T]
    address: str
    schema: tuple[Table[Any], ...]
    chunk_rows: int
    chunk_bytes: int

    def __call__(self, rows: Iterable[R]) -> Iterator[T]:
        # Opened for one partition: Spark's process outlives it, and maybe the repository.
        with percola.open(self.address, schema=self.schema, create=False) as repo:
            for chunk in chunked(rows, self.chunk_rows, self.chunk_bytes, weight):
                yield repo.run(partial(self._run, chunk))

    def _run(self, chunk: list[R], t: Transaction) -> T:
        return self.body(t, chunk)

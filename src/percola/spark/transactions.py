"""§2.4 User-defined transactions over the rows of a Spark job: the paper's loaders.

`df.write` writes columns of one table regardless of their previous values. A loader that reads
before it writes, or writes several tables, runs its own transaction in the tasks instead:

    def load(t, rows):
        for row in rows:
            if t.get(newest, row.url) is None or t.get(newest, row.url) < row.date:
                t.set(newest, row.url, row.date)
                t.set(body, row.url, row.body)

    frame.rdd.mapPartitions(in_transactions(load, "./repo", schema=[pages])).count()

A task cuts its rows into chunks and runs one transaction per chunk, which is retried if it
conflicts (rule P13). When Spark reruns a task, it begins at the task's first row, and chunks that
had committed run again. So the function must be idempotent. One that reads before it writes
usually is; one that increments is not, and should be an observer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import percola
from percola import ConflictingOptionsError, Table, Transaction, UsageError
from percola.connect.address import portable
from percola.spark.chunks import CHUNK_BYTES, CHUNK_ROWS, chunked, weight
from percola.transactions.retry import works_later

R = TypeVar("R")
T = TypeVar("T")


def in_transactions(
    body: Callable[[Transaction, list[R]], T],
    repository: str | os.PathLike[str],
    *,
    schema: Iterable[Table[Any]] = (),
    chunk_rows: int = CHUNK_ROWS,
    chunk_bytes: int = CHUNK_BYTES,
    notify: bool = True,
) -> Callable[[Iterable[R]], Iterator[T]]:
    """A function for `mapPartitions` of an RDD, such as `frame.rdd`: runs transactions on its rows.

    The resulting RDD has one element for each committed transaction: the value that `body`
    returned. Spark is lazy: nothing runs until an action such as `count`, `sum` or `collect`.

    Args:
        body: runs in tasks, with a transaction and some rows; it is pickled. It may run several
            times for the same rows, and must have no effects except through its transaction.
        repository: its address; every machine that runs tasks must reach it there.
        schema: tables that `body` uses, which are created if they are missing.
        chunk_rows: the maximum number of rows of a transaction.
        chunk_bytes: a transaction gets no further row once its rows hold that many bytes,
            estimated from the text and bytes in them.
        notify: whether writes of observed columns notify (`Repository.transaction`).

    Raises ConflictingOptionsError for numbers below 1, NotARepositoryError for a repository in
    memory, UsageError for a `body` that is a coroutine or a generator. Tasks raise what
    `percola.open`, `Repository.run` and `body` raise: Spark then retries the task, and fails the
    job after its maximum number of attempts.
    """
    for name, number in (("chunk_rows", chunk_rows), ("chunk_bytes", chunk_bytes)):
        if number < 1:
            raise ConflictingOptionsError(f"{name} must be at least 1, not {number}.")
    if works_later(body):
        raise UsageError(
            f"{getattr(body, '__qualname__', repr(body))} cannot run in transactions: a coroutine "
            "or a generator does its work after the transaction has committed. Make it a plain "
            "function, which returns what would be yielded."
        )
    return _InTransactions(body, portable(repository), (*schema,), chunk_rows, chunk_bytes, notify)


@dataclass(frozen=True, slots=True)
class _InTransactions(Generic[R, T]):
    """`in_transactions`; pickled with the tasks."""

    body: Callable[[Transaction, list[R]], T]
    address: str
    schema: tuple[Table[Any], ...]
    chunk_rows: int
    chunk_bytes: int
    notify: bool

    def __call__(self, rows: Iterable[R]) -> Iterator[T]:
        # Opened per partition: Spark's worker process outlives it, and may outlive the repository.
        with percola.open(self.address, schema=self.schema, create=False) as repo:
            for chunk in chunked(rows, self.chunk_rows, self.chunk_bytes, weight):
                yield repo.run(partial(self._run, chunk), notify=self.notify)

    def _run(self, chunk: list[R], t: Transaction) -> T:
        return self.body(t, [*chunk])  # A list of its own: it may be run again.

"""§2.4 A user's mistake as Spark reports it: as a sentence, without the frames that raised it.

Spark calls a data source in Python processes of its own, and an exception reaches the user as the
text that the process writes before it ends: by default a traceback, whose last line is the error.
Where a Percola error leaves the data source, it tells PySpark to write that line only.

PySpark replaces an error of `streamReader` by one of its own: it stops a reader that does not
exist. So a stream that cannot be read gets a reader that raises the error when it is first asked.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from percola.errors import PercolaError

P = ParamSpec("P")
T = TypeVar("T")

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_OF_WORKERS: Final = ("PYTHON_WORKER_FACTORY_", "PYTHON_UNIX_DOMAIN_")
"""Beginnings of variables that Spark sets for its Python processes."""


def errors_are_sentences(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls, where it plans a query or in a task."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _sentences():
                yield from method(*args, **kwargs)

        return cast("Callable[P, T]", generate)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with _sentences():
            return method(*args, **kwargs)

    return call


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except PercolaError:
        # The process ends with this error, so the variable is for no other.
        if any(name.startswith(_OF_WORKERS) for name in os.environ):
            os.environ[_HIDE] = "1"
        raise


class FailedReader(DataSourceStreamReader):
    """The reader of a stream that cannot be read, as `error` says."""

    def __init__(self, error: PercolaError) -> None:
        self._error = error

    @errors_are_sentences
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The first call for a new query."""
        self._fail()

    @errors_are_sentences
    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802
        """The first call for a query that goes on from its checkpoint."""
        self._fail()

    @errors_are_sentences
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The first call for one that repeats a batch."""
        self._fail()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Not reached: there are no partitions."""
        self._fail()

    def _fail(self) -> NoReturn:
        raise self._error

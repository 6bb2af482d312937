"""Frees what a job persisted in Spark's storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark import SparkContext


@contextmanager
def freed(context: SparkContext) -> Iterator[None]:
    """At the end of the block unpersist what was persisted in it; sessions may be long-lived."""
    before = set(_kept(context))
    try:
        yield
    finally:
        for number, kept in _kept(context).items():
            if number not in before:
                with suppress(Exception):  # Of Py4J: the JVM may be gone.
                    kept.unpersist()


def _kept(context: SparkContext) -> dict[int, Any]:
    """The context's persistent RDDs, by number; empty once the JVM is gone."""
    try:
        return dict(context._jsc.getPersistentRDDs())
    except Exception:  # Py4J's errors have no common root but this.
        return {}

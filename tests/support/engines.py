"""The two engines of the store on LMDB, native and py-lmdb: tests that run on either.

A process has one engine, except here: it opens different folders, or one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import needs
import pytest

from percola.store.lmdb import driver

ENGINES = ("native", "python")

_found = driver.native


def native() -> ModuleType:
    """The native engine; the test cannot run without."""
    needs.need("rust")
    if _found is None:
        needs.lack("rust", f"this process has no native engine: {driver.engine()}")
    return _found


@contextmanager
def using(name: str) -> Iterator[None]:
    """Have environments that are opened in this block use that engine."""
    before, driver.native = driver.native, native() if name == "native" else None
    try:
        yield
    finally:
        driver.native = before


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both engines, one after the other."""
    name: str = request.param
    with using(name):
        yield name

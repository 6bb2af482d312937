"""Every planted mistake still fits the source: what it replaces is there, once, and its tests too.

That the tests catch it costs an interpreter each: `make mutants` tries them all.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planted.planted import Planted, planted, why_not_applicable

MISTAKES = planted()


@pytest.mark.parametrize("one", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_fits_the_source(one: Planted) -> None:
    assert why_not_applicable(one) is None
    assert one.old != one.new and one.tests and one.does.endswith(".")


def test_a_mistake_that_fits_nowhere_is_reported() -> None:
    one = Planted(
        "x", "Nothing.", "src/percola/gc/collector.py", "no such text", "", ["tests/README.md"]
    )
    assert "occurs 0 times" in str(why_not_applicable(one))
    missing = replace(one, old="A cycle of the", tests=["tests/no_such_file.py::test"])
    assert "there is no tests/no_such_file.py" in str(why_not_applicable(missing))

"""How often `make test` tries what `make test-all` tries more often.

@pytest.mark.parametrize("seed", mostly_long(range(8)))    the first case in both, the others long
@settings(max_examples=tries(150))                         a third of them where none are long
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

_is_short = False


def be_short(marks: str) -> None:
    """Begin a run of the tests that the expression `marks` selects, before any is imported."""
    global _is_short
    _is_short = "not long" in marks


def tries(number: int) -> int:
    """The number of examples, or a third of it in a run without long tests."""
    return -(-number // 3) if _is_short else number


def mostly_long(cases: Iterable[Any], first: int = 1) -> list[Any]:
    """The cases for `parametrize`, of which all but the `first` ones are long."""
    return [
        one if at < first else pytest.param(one, marks=pytest.mark.long)
        for at, one in enumerate(cases)
    ]

"""Workloads as the users of `percola.testing.simulation` write them."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest

import percola
from percola import Table, Transaction
from percola.testing import simulation

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
size = docs.column("size", int)


@percola.observer(contents)
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(contents, row) or ""))


@percola.observer(contents, name="measure")
def mismeasure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(contents, row) or "") % 5)


def test_the_example_of_the_package_runs_as_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"^    class .*?(?=^\S)", simulation.__doc__ or "", re.DOTALL | re.MULTILINE)
    assert found is not None
    example = textwrap.dedent(found[0]).replace("range(1000)", "range(12)")
    names: dict[str, Any] = {**vars(simulation), **globals()}
    exec(example, names)
    assert names["result"].seed == 11
    assert capsys.readouterr().out == ""
    exec(example, names | {"measure": mismeasure})
    assert "VIOLATED: A document is not measured." in capsys.readouterr().out

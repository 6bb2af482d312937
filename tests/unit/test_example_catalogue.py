"""`examples/catalogue`: prices as a shop has them, with what is missing in some."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest

import percola
from percola import Worker
from percola.recipes import check

CATALOGUE = Path(__file__).resolve().parents[2] / "examples" / "catalogue"


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(CATALOGUE))
    yield importlib.import_module("catalogue")
    sys.modules.pop("catalogue", None)


def test_a_product_without_a_category_is_in_none_and_enters_one_later(
    catalogue: ModuleType,
) -> None:
    with percola.open("memory:", catalogue.SCHEMA) as repo:
        worker = Worker(repo, catalogue.OBSERVERS, attempts=1)

        def put(row: str, price: str, category: str = "") -> None:
            with repo.transaction() as t:
                t.set(catalogue.price, row, Decimal(price))
                if category:
                    t.set(catalogue.priced_in, row, category)
            worker.run_until_idle()

        put("p1/2026-11-01", "10.00")
        put("p2/2026-11-01", "8.00", "books")
        put("p1/2026-11-08", "5.00")
        assert repo.dead_lettered() == 0
        now = repo.snapshot()
        assert now.get(catalogue.current, "p1") == 5
        assert now.get(catalogue.percent, "p1") == 50
        assert [group for group, _ in catalogue.by_category.groups(now)] == ["books"]
        put("p1/2026-11-09", "5.00", "books")
        assert catalogue.by_category.get(repo.snapshot(), "books").count == 2
        assert check(repo, catalogue.RECIPES) == []


def test_a_product_whose_prices_were_deleted_is_no_product_any_more(catalogue: ModuleType) -> None:
    with percola.open("memory:", catalogue.SCHEMA) as repo:
        worker = Worker(repo, catalogue.OBSERVERS, attempts=1)
        columns = [catalogue.price, catalogue.since, catalogue.priced_in]
        with repo.transaction() as t:
            values = [Decimal(8), date(2026, 11, 1), "books"]
            for column, value in zip(columns, values, strict=True):
                t.set(column, "p1/2026-11-01", value)
        worker.run_until_idle()
        with repo.transaction() as t:
            for column in columns:
                t.delete(column, "p1/2026-11-01")
        worker.run_until_idle()
        now = repo.snapshot()
        assert list(now.scan(catalogue.products)) == []
        assert not catalogue.by_category.get(now, "books")

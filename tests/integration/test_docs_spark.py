"""The programs of docs/spark.md run as they are shown, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark_page import run_page


@pytest.mark.long
@pytest.mark.timeout(900)  # One session, in which everything on the page is done.
def test_the_programs_on_the_page_run_in_order(tmp_path: Path, java_home: Path) -> None:
    run_page(tmp_path, java_home)

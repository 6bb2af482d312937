"""The web index on a real HBase: its observers and commands are those of a folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from on_servers import SECONDS, WebIndex, live
from servers import on_hbase

WaitUntil = Callable[..., Any]


@pytest.mark.long
@pytest.mark.timeout(3 * SECONDS)  # A dozen processes, one after the other.
def test_the_sample_is_loaded_worked_off_ranked_crawled_again_a_host_removed_and_verified(
    tmp_path: Path, java_home: Path, wait_until: WaitUntil
) -> None:
    with on_hbase(tmp_path) as servers, ExitStack() as stack:
        live(WebIndex(servers, "web", tmp_path, stack), wait_until, removed=True)

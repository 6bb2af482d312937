"""The web index on Bigtable's emulator: its observers and commands are those of a folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from on_servers import SECONDS, WebIndex, live
from servers import on_bigtable

WaitUntil = Callable[..., Any]


@pytest.mark.long
@pytest.mark.timeout(3 * SECONDS)  # A dozen processes, one after the other.
def test_the_sample_is_loaded_worked_off_beside_a_kill_ranked_crawled_again_verified_and_rebuilt(
    tmp_path: Path, java_home: Path, wait_until: WaitUntil
) -> None:
    with on_bigtable(tmp_path, java_home) as servers, ExitStack() as stack:
        web, empty = (WebIndex(servers, name, tmp_path, stack) for name in ("web", "empty"))
        live(web, wait_until, spoilt=True, empty=empty)

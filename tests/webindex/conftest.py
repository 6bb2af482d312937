"""The sample crawl, loaded and worked off once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from from_scratch import sample

from percola import Worker
from webindex.load.transaction import load_captures
from webindex.workers.processes import build_observers, open_index, open_repository


@pytest.fixture(scope="session")
def worked_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a closed repository that has the whole sample: copy it to change it."""
    folder = tmp_path_factory.mktemp("sample") / "repo"
    captures = sample()
    with open_repository(str(folder), create=True) as repo, open_index(repo, create=True) as index:
        for at in range(0, len(captures), 32):
            load_captures(repo, captures[at : at + 32], "sample.warc.gz")
        Worker(repo, build_observers(index), threads=3).run_until_idle()
    return folder

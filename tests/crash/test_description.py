"""What makes a folder a repository is on disk before the first commit is acknowledged."""

from __future__ import annotations

from pathlib import Path

from tests.crash.power import record
from tests.crash.recording.disk import Disk
from tests.crash.recording.trace import Did, build_recorder


def test_the_description_is_on_disk_before_a_commit_is_acknowledged(scratch: Path) -> None:
    events = record(build_recorder(scratch), scratch, "full", commits=1)
    disk = Disk()
    for event in events:
        if event.did is Did.MARKED and event.data.startswith(b"done"):
            break
        disk.apply(event)
    description = disk.files["percola.json"]
    assert not description.pending and description.durable_size == description.size

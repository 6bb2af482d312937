"""`examples/features`, with events that its README does not have."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

FEATURES = Path(__file__).resolve().parents[2] / "examples" / "features"
LONG = "x" * 120
EVENTS = f"""\
event,user,kind,product,cents,at
1,ann/lee,buy,p1,2000,2026-11-02T09:00
2,100%~,look,p1,,2026-11-02T09:01
3,cy,look,,,2026-11-02T09:02
4,{LONG},buy,p1,5,2026-11-02T09:03
"""


def run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FEATURES), *sys.path])}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_users_have_features_whatever_their_names_are_and_what_an_event_lacks(
    tmp_path: Path,
) -> None:
    (tmp_path / "events.csv").write_text(EVENTS)
    run(tmp_path, str(FEATURES / "record.py"), "events.csv")
    worker = ("-m", "percola.cli", "--repo", "shop", "worker", "features:OBSERVERS")
    run(tmp_path, *worker, "--until-idle")
    found = list(csv.reader(io.StringIO(run(tmp_path, str(FEATURES / "table.py")))))
    assert found[1:] == [
        ["100%~", "0", "0", "1", "2026-11-02T09:01"],
        ["ann/lee", "1", "2000", "0", "2026-11-02T09:00"],
        ["cy", "0", "0", "0", "2026-11-02T09:02"],
        [LONG, "1", "5", "0", "2026-11-02T09:03"],
    ]

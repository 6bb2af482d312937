"""The alert rules, the dashboard, the docs: what they name exists; the runbook has all alerts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
import yaml
from commands import call
from stores import in_memory

import percola
from percola import Table, Transaction, Worker, observer
from percola.cli.root import cli
from percola.observers.survey import Surveyed
from percola.oracle.client import NetworkOracle
from percola.oracle.metrics import OracleMetrics
from percola.oracle.ranges import Ranges
from percola.oracle.relay import OracleRelay
from percola.rpc.frames import Code
from webindex.cli.main import cli as webindex
from webindex.observers.export import export_to

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RUNBOOK = ROOT / "docs" / "runbook.md"

docs = Table("docs")
contents = docs.column("contents", observed=True)

WORDS = {
    *("absent", "and", "by", "changes", "count", "deriv", "histogram_quantile", "max", "min"),
    *("on", "or", "rate", "resets", "sum", "unless"),
}
"""PromQL's own."""
OF_PROMETHEUS = {"up"}


@observer(contents)
def measure(t: Any, row: str) -> None:
    """Observe a column."""


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "percola.rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = [rule for rule in rules() if "alert" in rule]


def exported() -> set[str]:
    """The samples that a worker, an oracle and a relay export."""
    repo = in_memory([docs])
    worker = Worker(repo, [measure], survey=60.0)
    # Something of each sort has happened, or an observer's series would not be there.
    worker._survey.last = Surveyed(safe_point=1, dead=Counter(measure=0))
    metrics = worker.metrics
    metrics.committed("measure", 2, 0.1)
    metrics.latency.answered("measure", [0.1])
    for counter in (metrics.conflicts, metrics.failures, metrics.dead_lettered, metrics.split):
        counter.labels("measure").inc()
    metrics.collected(1, {"versions": 1})
    served = SimpleNamespace(connections=1, refused=0, displaced=0)
    oracle = OracleMetrics(Ranges(repo.context.store, name="oracle"), served)
    oracle.refusals[Code.STANDBY] += 1
    relay = OracleRelay(NetworkOracle(["127.0.0.1:9"]), "127.0.0.1:0")
    relay.stop()
    return {
        sample.name
        for registry in (metrics.registry, oracle.registry, relay.registry)
        for metric in registry.collect()
        for sample in metric.samples
    }


def names_in(expression: str) -> Iterator[str]:
    """The metrics that an expression reads: its words but for PromQL's, labels and durations."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|on) \([^)]*\)", "", expression)
    yield from set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare)) - WORDS


def test_every_metric_in_a_rule_is_exported_or_recorded_before() -> None:
    known = exported() | OF_PROMETHEUS
    read: set[str] = set()
    for rule in rules():
        names = set(names_in(rule["expr"]))
        assert names, rule
        assert names <= known, (rule, names - known)
        read |= names
        if "record" in rule:
            known.add(rule["record"])
    assert {"percola_observer_latency_seconds_bucket", "percola_oracle_holds", "up"} <= read


def test_every_metric_on_the_dashboard_is_exported() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "percola.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) > 8
    known = exported()
    for panel in panels:
        for target in panel["targets"]:
            names = set(names_in(target["expr"]))
            assert names and names <= known, (panel["title"], names - known)


def test_every_metric_of_an_oracle_or_a_relay_in_the_docs_is_exported() -> None:
    page = (ROOT / "docs" / "oracle.md").read_text()
    named = set(re.findall(r"`(percola_\w+)`", page))
    assert len(named) > 10
    assert named <= exported(), named - exported()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_section_in_the_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == RUNBOOK
    assert anchor == rule["alert"].lower()
    _, heading, section = RUNBOOK.read_text().partition(f"\n### {rule['alert']}\n")
    assert heading, "the heading gives the anchor"
    section = re.split(r"\n##+ ", section)[0]
    starts = re.findall(r"^\*\*(.*?)\.\*\*", section, re.MULTILINE)
    assert starts == ["Meaning", "Look at", "Do"]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]


def test_the_observers_that_rules_name_exist() -> None:
    named = set(re.findall(r'observer="(.*?)"', (FOLDER / "percola.rules.yml").read_text()))
    assert named == {export_to(cast(Any, SimpleNamespace(exporters=1))).name}


def test_the_runbook_has_no_other_alerts() -> None:
    headings = re.findall(r"^### (.*)$", RUNBOOK.read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in ALERTS]


def test_commands_in_the_runbook_exist() -> None:
    """Each `percola …` names a command, its subcommand and options as they are."""
    spans = re.findall(r"`((?:percola|webindex) [^`]*)`", RUNBOOK.read_text())
    assert len(spans) > 10
    for span in spans:
        program, *words = span.split()
        root = command = cli if program == "percola" else webindex
        while isinstance(command, click.Group) and words:
            found = command.get_command(click.Context(command), words[0])
            if found is None:
                break
            command, words = found, words[1:]
        assert command is not root, span
        known = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("-")} <= known, span


SAID = {
    "percola holds": "expires in",
    "percola holds release NAME": "Released 'measure'.",
    "percola status": "(docs.contents)",
    "percola notifications": "docs.contents",
    "percola notifications --limit 20": "docs['late']",
    "percola observers pause NAME --reason TEXT": "Paused measure",
    "percola history ROW COLUMN": "dead-lettered for measure",
    "percola why ROW COLUMN": "not written by an observer",
    "percola failed list --observer NAME --traceback": "ValueError: unfit",
    "percola failed retry --observer NAME": "1 failure made dirty again",
    "percola observers": "wrong sizes",
    "percola observers resume NAME": "Resumed measure",
    "percola locks": "No cell is locked",
    "percola check": "sound",
    "percola get ROW COLUMN": "unfit",
    "percola gc": "Nothing to remove yet",
}
"""What commands of the runbook print of a repository in which one observer fails on one row."""


def test_the_commands_of_the_runbook_show_and_do_what_it_says(tmp_path: Path) -> None:
    @observer(contents)
    def measure(t: Transaction, row: str) -> None:
        text = t.get(contents, row)
        if text == b"unfit":
            raise ValueError("unfit")

    folder = tmp_path / "repo"
    texts = {"NAME": "measure", "TEXT": "wrong sizes", "ROW": "bad", "COLUMN": "docs.contents"}
    with percola.open(folder, [docs]) as repo:
        repo.record_runs()
        repo.run(lambda t: t.set(contents, "bad", b"unfit"))
        with repo.snapshot() as snapshot:
            repo.hold(snapshot.start_ts, 3600, name="measure")
        worker = Worker(repo, [measure], attempts=1, threads=1)
        worker.run_until_idle()
        worker.start()
        repo.pause_observer(measure, reason="")
        repo.run(lambda t: t.set(contents, "late", b"x"))
        spans = dict.fromkeys(re.findall(r"`(percola [^`]*)`", RUNBOOK.read_text()))
        runnable = [span for span in spans if not re.search("percola serve|export", span)]
        assert set(runnable) == set(SAID)
        try:
            for span in runnable:
                words = [texts.get(word, word) for word in span.split()[1:]]
                answer = call("--repo", folder, *words)
                assert answer.code == 0, (span, answer)
                assert SAID[span] in answer.out, (span, answer.out)
        finally:
            worker.stop()


def test_what_the_table_of_metrics_lists_is_exported() -> None:
    text = (ROOT / "docs" / "scaling.md").read_text()
    names = set(re.findall(r"`(percola_[a-z_]+)`", text.partition("## What to watch")[2]))
    known = exported()
    assert len(names) > 10
    for name in names:
        assert {name, f"{name}_bucket"} & known, name


def test_the_scraped_ports_are_those_of_the_units() -> None:
    scraped = yaml.safe_load((FOLDER / "percola.scrape.yml").read_text())["scrape_configs"]
    targets = {
        one["job_name"]: [
            target for static in one["static_configs"] for target in static["targets"]
        ]
        for one in scraped
    }
    units = ROOT / "deploy" / "systemd"
    worker = re.search(r"--metrics-port (\S+)", (units / "percola-worker@.service").read_text())
    oracle = re.search(r"--metrics-port (\S+)", (units / "percola-oracle.service").read_text())
    relay = re.search(r"--metrics-port (\S+)", (units / "percola-relay.service").read_text())
    assert worker is not None and oracle is not None and relay is not None
    ports = [worker[1].replace("%i", str(number)) for number in (1, 2)]
    assert targets["percola-worker"] == [f"127.0.0.1:{port}" for port in ports]
    assert targets["percola-oracle"] == [f"127.0.0.1:{oracle[1]}"]
    assert targets["percola-relay"] == [f"127.0.0.1:{relay[1]}"]

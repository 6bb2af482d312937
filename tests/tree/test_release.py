"""What a release consists of: one version, a README for package indexes, workflows, templates."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import needs
import pytest
import yaml
from commands import make

from tests.tree.files import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ELSEWHERE = "https://example.org/percola"


def parsed(path: Path) -> Any:
    # BaseLoader keeps `on` and 3.11 as they are written.
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


# --- The version ------------------------------------------------------------------------


def test_everything_that_names_the_version_names_the_same_one() -> None:
    version = PROJECT["version"]
    citation = parsed(ROOT / "CITATION.cff")
    assert (citation["version"], citation["license"]) == (version, PROJECT["license"])
    top = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert top is not None and top[1].split()[0] == version
    assert metadata.version("percola") == version


# --- The README on a package index ------------------------------------------------------


def built_metadata(folder: Path, repository: str) -> Message:
    """The metadata of a wheel that is built where PERCOLA_REPOSITORY has this value."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = os.environ | {"PERCOLA_REPOSITORY": repository}
    subprocess.run(build, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=180)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [name] = [one for one in files.namelist() if one.endswith(".dist-info/METADATA")]
        return message_from_string(files.read(name).decode())


def links(text: str) -> list[str]:
    return re.findall(r"\[[^\]]+\]\(([^)\s]+)\)", text)


def test_on_a_package_index_the_links_of_the_readme_lead_to_the_repository(tmp_path: Path) -> None:
    found = built_metadata(tmp_path, f"{ELSEWHERE}/")
    readme = found.get_payload()
    assert isinstance(readme, str) and "## A first program" in readme
    here = [link for link in links((ROOT / "README.md").read_text()) if "://" not in link]
    assert len(here) > 10
    at = f"{ELSEWHERE}/blob/v{PROJECT['version']}/"
    below = [link.removeprefix(at) for link in links(readme) if link.startswith(at)]
    assert below == here
    for link in here:
        assert (ROOT / link.partition("#")[0]).exists(), link
    assert [link for link in links(readme) if "://" not in link] == []
    assert found.get_all("Project-URL") == [f"Source, {ELSEWHERE}", f"Changelog, {at}CHANGELOG.md"]


def test_without_an_address_the_readme_of_a_wheel_has_no_link_that_leads_nowhere(
    tmp_path: Path,
) -> None:
    found = built_metadata(tmp_path, "")
    readme = found.get_payload()
    assert isinstance(readme, str) and "docs/limits.md" in readme
    assert [link for link in links(readme) if "://" not in link] == []
    assert any("://" in link for link in links(readme))
    assert found.get_all("Project-URL") is None


def test_a_link_is_changed_wherever_it_leads_to_a_file() -> None:
    for_index = runpy.run_path(str(ROOT / "hatch_build.py"))["for_index"]
    text = "[a](docs/a.md#b) [two\nlines](x/) [c](#part) [d](https://example.org)"
    assert for_index(text, "https://h/p", "1.2") == (
        "[a](https://h/p/blob/v1.2/docs/a.md#b) [two\nlines](https://h/p/blob/v1.2/x/) "
        "[c](#part) [d](https://example.org)"
    )
    assert for_index(text, "", "1.2") == "a two\nlines [c](#part) [d](https://example.org)"


# --- Workflows and templates ------------------------------------------------------------


def jobs() -> dict[str, dict[str, Any]]:
    """All jobs of all workflows, by name."""
    found: dict[str, dict[str, Any]] = {}
    for path in WORKFLOWS:
        for name, job in parsed(path)["jobs"].items():
            assert name not in found, f"two jobs are named {name}"
            found[name] = job
    return found


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs().values() for step in job["steps"]]


def commands() -> dict[str, dict[str, Any]]:
    """The step of each command of the workflows, by the target of make that it is."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps():
        if "run" in step:
            program, target = shlex.split(step["run"])[:2]
            assert program == "make", f"{step['run']!r} is not what a developer would type"
            assert target not in found, f"two steps run make {target}"
            found[target] = step
    return found


RUN_BY = {
    "check": (".ci/run", "make check ||"),
    "docs": ("tests/integration/test_docs_site.py", 'done = make("docs", '),
    "test": (__file__, 'run_as_workflows_do("test", '),
    "dist": (__file__, 'run_as_workflows_do("dist", '),
    "dist-native": (__file__, 'run_as_workflows_do("dist-native", '),
}
"""What runs the command of a workflow, by the line that does: a new command needs a place here."""


def test_each_command_of_a_workflow_is_run_by_ci_or_by_a_test() -> None:
    assert set(commands()) == set(RUN_BY)
    for place, line in RUN_BY.values():
        lines = (ROOT / place).read_text(encoding="utf-8").splitlines()
        assert any(one.strip().startswith(line) for one in lines), f"{place} has no {line!r}"


def run_as_workflows_do(target: str, **variables: object) -> None:
    """Run the command of a workflow with its environment, in the environment of these tests."""
    step = commands()[target]
    given = step["env"] | {"PYTHON": sys.executable}
    expressions = {"${{ github.server_url }}/${{ github.repository }}": ELSEWHERE}
    done = make(
        *shlex.split(step["run"])[1:],
        *(f"{name}={value}" for name, value in variables.items()),
        seconds=590,
        **{name: expressions.get(value, value) for name, value in given.items()},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long  # A second start of pytest.
def test_the_command_that_tests_in_a_workflow_runs_tests(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    run_as_workflows_do("test", ARGS=f"tests/unit/test_extras.py --junit-xml={report}")
    assert re.search(r'failures="0" skipped="0" tests="[1-9]', report.read_text())


@pytest.mark.long  # Both build wheels, one of them from Rust, and install what comes from an index.
def test_the_commands_that_build_a_release_in_workflows_build_what_they_upload(
    tmp_path: Path,
) -> None:
    for need in ("index", "javac", "rust"):
        needs.need(need)
    version, plain, native = PROJECT["version"], tmp_path / "plain", tmp_path / "native"
    run_as_workflows_do("dist", DIST=plain)
    wheel = plain / f"percola-{version}-py3-none-any.whl"
    assert {*plain.iterdir()} == {wheel, plain / f"percola-{version}.tar.gz"}
    with zipfile.ZipFile(wheel) as files:
        about = files.read(f"percola-{version}.dist-info/METADATA").decode()
        assert f"{ELSEWHERE}/blob/v{version}/" in about
        jars = {
            "percola/spark/catalog/percola-catalog.jar",
            "percola/store/hbase/percola-hbase.jar",
        }
        assert jars < {*files.namelist()}
    # It tries the wheel with the native engine, too.
    run_as_workflows_do("dist-native", DIST=native)
    [wheel] = native.iterdir()
    assert re.fullmatch(rf"percola-{re.escape(version)}-cp311-abi3-manylinux\S+\.whl", wheel.name)
    # Without DIST, they are where the workflow takes them from.
    assert "\nDIST ?= dist\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    uploaded = {step["with"]["path"] for step in steps() if "upload" in step.get("uses", "")}
    assert uploaded == {"dist", "build/site"}


def test_the_names_in_without_are_those_that_make_test_knows() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = re.search(r'WITHOUT="([^"]+)" leaves out', makefile)
    assert known is not None
    [left_out] = [
        set(word.removeprefix("WITHOUT=").split())
        for step in steps()
        for word in shlex.split(step.get("run", ""))
        if word.startswith("WITHOUT=")
    ]
    assert left_out < set(known[1].split())


def test_the_workflow_tests_each_python_that_the_project_names() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if one.startswith(prefix)]
    matrix = jobs()["test"]["strategy"]["matrix"]["python"]
    assert matrix == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    for name, job in jobs().items():
        versions = [
            step["with"]["python-version"]
            for step in job["steps"]
            if step.get("uses", "").startswith("actions/setup-python@")
        ]
        [run] = [one for one in job["steps"] if "run" in one]
        assert f"python{versions[0]}" == run["env"]["PYTHON"], f"{name} installs another Python"


def test_actions_are_pinned_to_a_version() -> None:
    used = {step["uses"] for step in steps() if "uses" in step}
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", one) for one in used), used


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_a_form_for_reports_has_what_its_host_requires(name: str) -> None:
    form = parsed(ROOT / ".github" / "ISSUE_TEMPLATE" / name)
    assert form["name"] and form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert any(part.get("validations", {}).get("required") == "true" for part in fields)
    for part in form["body"]:
        assert part["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert ("value" if part["type"] == "markdown" else "label") in part["attributes"]
        if part["type"] == "dropdown":
            assert len(set(part["attributes"]["options"])) == len(part["attributes"]["options"])

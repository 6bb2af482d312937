"""`deploy/docker` and `deploy/kubernetes` agree with percola and with themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import needs
import pytest
import yaml
from commands import run

from percola.cli.root import cli
from percola.connect.address import network_address

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
KUBERNETES = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    found
    for name in KUSTOMIZATION["resources"]
    for found in yaml.safe_load_all((KUBERNETES / name).read_text())
]
PODS = {
    one["metadata"]["name"]: one["spec"]["template"]
    for one in OBJECTS
    if one["kind"] in ("Deployment", "StatefulSet")
}


def commands() -> Iterator[Any]:
    """Every command of percola that a container runs, by where it stands."""
    for name, service in SERVICES.items():
        if service["image"].startswith("percola") and "entrypoint" not in service:
            yield pytest.param(service["command"], id=f"compose-{name}")
    for name, pod in PODS.items():
        [container] = pod["spec"]["containers"]
        yield pytest.param(container["args"], id=f"kubernetes-{name}")
    for number, line in enumerate(
        re.findall(
            r"percola (dev-cluster .*?)(?: \|\||;|$)",
            "\n".join(SERVICES["hbase"]["command"]),
            re.MULTILINE,
        )
    ):
        yield pytest.param(line.split(), id=f"compose-hbase-{number}")


@pytest.mark.parametrize("words", list(commands()))
def test_percola_knows_each_command_and_its_options(words: list[str]) -> None:
    context, command = click.Context(cli), cli
    rest = list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        context, command = click.Context(found, info_name=name, parent=context), found  # type: ignore[assignment]
    made = command.make_context(words[0], rest, parent=context.parent, resilient_parsing=False)
    assert made.params is not None


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_ports_of_compose_agree() -> None:
    """What is scraped is served, health checks ask there, and clients are told of the oracles."""
    scraped = {
        one["job_name"]: one
        for one in yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    }
    [workers] = scraped["percola-worker"]["dns_sd_configs"]
    assert (workers["names"], workers["port"]) == (["worker"], 9471)
    oracles = scraped["percola-oracle"]["static_configs"][0]["targets"]
    ports = dict.fromkeys(("oracle-a", "oracle-b"), ":9470")
    assert oracles == [name + port for name, port in ports.items()]
    for name, port in {**ports, "worker": ":9471"}.items():
        service = SERVICES[name]
        assert option(service["command"], "--metrics-port") == port[1:]
        assert option(service["command"], "--metrics-host") == "0.0.0.0"
        assert f"127.0.0.1{port}/metrics" in " ".join(service["healthcheck"]["test"])
    [published] = SERVICES["serve"]["ports"]
    assert published == f"127.0.0.1:1942:{option(SERVICES['serve']['command'], '--port')}"
    address = network_address(COMPOSE["x-percola"]["environment"]["PERCOLA_REPO"])
    assert address is not None
    assert list(address.oracles) == [option(SERVICES[n]["command"], "--name") for n in ports]
    started = " ".join(SERVICES["hbase"]["command"])
    host = SERVICES["hbase"]["networks"]["default"]["ipv4_address"]
    assert f"--host {host} --first-port 21000" in started
    assert f"//{host}:21000/" in COMPOSE["x-percola"]["environment"]["PERCOLA_REPO"]


def test_what_compose_mounts_needs_and_builds_is_there() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    tags = {service["image"] for service in SERVICES.values() if "build" in service}
    assert tags == {f"percola:{PROJECT['version']}", f"percola-dev-hbase:{PROJECT['version']}"}
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            source = mount.partition(":")[0]
            there = (DOCKER / source).exists() if source.startswith(".") else None
            assert there or source in COMPOSE["volumes"], mount
        if "build" in service:
            assert service["build"]["target"] in targets
            assert (DOCKER / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")
        assert set(service.get("depends_on", [])) <= SERVICES.keys()
    for name in ("worker", "serve"):
        assert SERVICES[name]["command"][-1] == "catalogue:OBSERVERS"
    assert "\nOBSERVERS = " in (ROOT / "examples" / "catalogue" / "catalogue.py").read_text()


def test_the_worker_of_compose_finds_each_table_that_its_observers_write(tmp_path: Path) -> None:
    """Also those that none of them observes: they were missing, and changes were dead-lettered."""
    here = ROOT / "examples" / "catalogue"
    where = ("--repo", tmp_path / "shop")
    assert run(*where, *SERVICES["init"]["command"], cwd=here).code == 0
    for word in ("price 5.00", "category books"):
        assert run(*where, "set", "p1/2026-11-21", *f"prices.{word}".split(), cwd=here).code == 0
    worker = ("worker", "--until-idle", SERVICES["worker"]["command"][-1])
    answer = run(*where, *worker, cwd=here)
    assert (answer.code, answer.err) == (0, ""), answer
    [row] = run(*where, "scan", "by_category", "--json").lines
    assert row["columns"]["count"] == 1

    page = (ROOT / "docs" / "deployment.md").read_text()
    assert re.findall(r"-- (percola init.*)$", page, re.MULTILINE) == [
        "percola init --schema shop:TABLES"
    ]


def test_the_image_has_extras_that_exist_and_copies_what_is_there() -> None:
    [extras] = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE)
    assert {"hbase", "oracle", "otel", "serve", "zookeeper"} == set(extras.split(","))
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    taken = (ROOT / ".dockerignore").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists() and f"\n!{name}\n" in taken, name
    assert f"percola:{PROJECT['version']}" in DOCKERFILE
    assert re.search(r"^USER 10001\nENTRYPOINT|^USER 10001$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.rindex("USER 10001") > DOCKERFILE.rindex("RUN ")


def test_the_image_has_the_classes_that_send_commits_to_hbase(tmp_path: Path) -> None:
    needs.need("javac")
    found = subprocess.run([ROOT / "scripts" / "java.sh", "home"], capture_output=True, text=True)
    java = Path(found.stdout.strip() or "none") / "bin"
    if not (java / "javac").exists():
        needs.lack("javac", "there is no JDK")
    [building] = re.findall(r"^RUN (javac (?:.*\\\n)*.*)", DOCKERFILE, re.MULTILINE)
    hbase = Path("src") / "percola" / "store" / "hbase"
    shutil.copytree(ROOT / hbase / "java", tmp_path / hbase / "java")
    subprocess.run(
        ["sh", "-c", building.replace("/classes", str(tmp_path / "classes"))],
        cwd=tmp_path,
        env={"PATH": f"{java}:{os.environ['PATH']}"},
        check=True,
    )
    with zipfile.ZipFile(tmp_path / hbase / "percola-hbase.jar") as jar:
        classes = {
            f"{one[:-5]}.class" for one in os.listdir(tmp_path / hbase / "java/io/percola/hbase")
        }
        assert classes <= {Path(one).name for one in jar.namelist()}
    assert DOCKERFILE.index("COPY src src") < DOCKERFILE.index(building)
    assert DOCKERFILE.index(building) < DOCKERFILE.index("RUN uv pip install --python")


def test_the_image_fetches_the_jars_of_hbase_and_copies_them_from_where_they_are(
    tmp_path: Path,
) -> None:
    """A folder that the environment names is the user's: nothing is fetched into it."""
    maven = tmp_path / "mvn"
    maven.write_text(
        "#!/bin/sh\n"
        "for word; do case $word in -DoutputDirectory=*) folder=${word#*=} ;; esac; done\n"
        'touch "$folder/fetched.jar"\n'
    )
    maven.chmod(0o755)
    steps = re.findall(r"^RUN ((?:.*\\\n)*.*)", DOCKERFILE, re.MULTILINE)
    [fetching] = [one for one in steps if "percola hbase-jars" in one]
    percola = f"{sys.executable} -m percola.cli"
    usual = {name: text for name, text in os.environ.items() if not name.startswith("PERCOLA_")}
    subprocess.run(
        ["sh", "-c", fetching.replace("/opt/percola/bin/percola", percola)],
        env=usual | {"HOME": str(tmp_path / "root"), "PATH": f"{tmp_path}:{usual['PATH']}"},
        check=True,
    )
    copied = dict(re.findall(r"^COPY --from=jars (\S+) (\S+)$", DOCKERFILE, re.MULTILINE))
    assert set(copied.values()) == {"/opt/percola/hbase-client", "/opt/percola/hbase-server"}
    for source in copied:
        assert (tmp_path / source.removeprefix("/") / "fetched.jar").exists(), source
    # Where the commands of the image look for them.
    for variable, folder in re.findall(r"(PERCOLA_HBASE_\w*JARS)=(\S+)", DOCKERFILE):
        assert folder in copied.values(), variable


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_confined_and_names_what_is_there(name: str) -> None:
    pod = PODS[name]
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["volumes"]}
    [settings] = KUSTOMIZATION["configMapGenerator"]
    known = {line.partition("=")[0] for line in settings["literals"]} | {"POD_NAME"}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= known
    files = {
        "/secrets/" + item["path"]
        for v in spec["volumes"]
        if "secret" in v
        for item in v["secret"]["items"]
    }
    asked = re.findall(r"/secrets/\S+", " ".join([*container["args"], *settings["literals"]]))
    assert files == set(asked) or files < {*asked, "/secrets/serve.token"}
    ports = {one["name"]: str(one["containerPort"]) for one in container["ports"]}
    words = container["args"]
    for flag, port in (("--metrics-port", "metrics"), ("--port", "http")):
        assert flag not in words or ports[port] == option(words, flag)
    assert "--listen" not in words or option(words, "--listen") == f"0.0.0.0:{ports['oracle']}"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        for how in ("httpGet", "tcpSocket"):
            if how in container.get(probe, {}):
                assert container[probe][how]["port"] in ports


def test_workers_of_an_old_image_end_before_those_of_a_new_one_start() -> None:
    """A new one with other observers ends with an error as long as an old one runs."""
    [worker] = [
        one["spec"]
        for one in OBJECTS
        if one["kind"] == "Deployment" and "worker" in str(one["spec"]["selector"])
    ]
    assert worker["strategy"] == {"type": "Recreate"}


def test_kubernetes_objects_select_each_other() -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in PODS.items()}
    ports = {
        name: {one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]}
        for name, pod in PODS.items()
    }
    for one in OBJECTS:
        name, spec = one["metadata"]["name"], one["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        wanted = selector.get("matchLabels", selector)
        assert wanted.items() <= labels[name].items(), one["kind"]
        if one["kind"] == "Service":
            assert {port["port"] for port in spec["ports"]} == ports[name]
        if one["kind"] == "NetworkPolicy":
            assert {p["port"] for rule in spec["ingress"] for p in rule["ports"]} == ports[name]
    client = {"percola-client": "true"}.items()
    # The oracles, too: docs/deployment.md has `percola init` run in the pod of one.
    assert {name for name, found in labels.items() if client <= found.items()} == {
        "percola-oracle",
        "percola-worker",
        "percola-serve",
    }
    [oracle] = [one for one in OBJECTS if one["kind"] == "StatefulSet"]
    service, replicas = oracle["spec"]["serviceName"], oracle["spec"]["replicas"]
    [settings] = KUSTOMIZATION["configMapGenerator"]
    repository = next(line for line in settings["literals"] if line.startswith("PERCOLA_REPO="))
    address = network_address(repository.partition("=")[2])
    assert address is not None and list(address.oracles) == [
        f"{service}-{number}.{service}:7070" for number in range(replicas)
    ]
    [image] = KUSTOMIZATION["images"]
    assert image["newTag"] == PROJECT["version"]

"""`percola serve`: how it is started, and what it refuses; `test_serve.py` has the page."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import Answer, Running, is_error, run, running

import percola
from percola import Table

docs = Table("docs")
contents = docs.column("contents", str, observed=True)

PROGRAM = """
from percola import Table, observer
docs = Table("docs"); contents = docs.column("contents", str, observed=True)

@observer(contents)
def measure(t, row): pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "r"
    percola.create(folder, durability="relaxed")
    with percola.open(folder, [docs]) as repo, repo.transaction() as t:
        t.set(contents, "a", "text")
    (tmp_path / "app.py").write_text(PROGRAM)
    return folder


@contextmanager
def serving(folder: Path, *words: object) -> Iterator[tuple[str, Running]]:
    """The command: the address that it prints, and its process."""
    line = ("--repo", folder, "--json", "serve", "--port", 0, *words)
    with running(*line, cwd=folder.parent) as server:
        started = json.loads(server.expect("{"))
        assert started["event"] == "started" and started["pid"] == server.process.pid
        yield started["address"], server


def get(address: str, **more: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=60, **more) as client:
        return client.get(address)


def refused(folder: Path, *words: object) -> Answer:
    return run("--repo", folder, "serve", "--port", 0, *words, cwd=folder.parent)


def test_the_tables_of_a_module_are_not_added_to_the_repository_of_another_program(
    folder: Path, tmp_path: Path
) -> None:
    """They would stay there for good, after a slip in --repo: only workers add them."""
    other = tmp_path / "other"
    percola.open(other, [Table("other")]).close()
    with serving(other, "app:measure") as (address, _):
        assert get(address).status_code == 200
    for words in (("rerun",), ("observers", "pause")):
        answer = run("--repo", other, *words, "app:measure", cwd=tmp_path)
        assert is_error(answer, "The repository has no table 'docs'. It has: other."), answer
    with percola.open(other) as repo:
        assert [table.name for table in repo.schema] == ["other"]


def test_a_module_changes_no_table_that_another_program_has_under_the_same_name(
    folder: Path, tmp_path: Path
) -> None:
    """Its columns would stay for good, and one that it observes would collect notifications."""
    for name, column in (("lacks", "title"), ("other", "contents")):
        table = Table("docs")
        table.column(column, str)
        with percola.open(tmp_path / name, [table]) as repo:
            before = repo.schema.to_json()
        with serving(tmp_path / name, "app:measure") as (address, _):
            assert get(address).status_code == 200
        for words in (("rerun",), ("observers", "pause")):
            answer = run("--repo", tmp_path / name, *words, "app:measure", cwd=tmp_path)
            if name == "lacks":
                assert is_error(answer, "'docs' has no column 'contents'. It has: title."), answer
            else:
                assert answer.code == 0, answer
        with percola.open(tmp_path / name) as repo:
            assert repo.schema.to_json() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(folder: Path, number: signal.Signals) -> None:
    with serving(folder, "app:measure") as (address, server):
        answer = get(address)
        assert answer.status_code == 200 and "measure" in answer.text
        assert server.end(number) == (0, "", "")


def test_beyond_loopback_it_takes_a_token(folder: Path, tmp_path: Path) -> None:
    assert is_error(refused(folder, "--host", "0.0.0.0"), "--token-file", "openssl rand")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    words = ("--host", "0.0.0.0", "--token-file", "token")
    with serving(folder, *words) as (address, _):
        port = address.rpartition(":")[2]
        assert get(f"http://127.0.0.1:{port}").status_code == 401


@pytest.mark.parametrize(("proxies", "secure"), [([], False), (["--proxy", "127.0.0.1"], True)])
def test_the_cookie_is_for_tls_alone_if_a_named_proxy_says_so(
    folder: Path, tmp_path: Path, proxies: list[str], secure: bool
) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    with (
        serving(folder, "--token-file", "token", *proxies) as (address, _),
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        answer = client.post(
            f"{address}login",
            data={"token": "0123456789abcdef"},
            headers={"x-forwarded-proto": "https"},
        )
    assert answer.status_code == 303
    assert ("secure" in answer.headers["set-cookie"].lower()) is secure


def test_it_speaks_tls(folder: Path, tmp_path: Path) -> None:
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*make.split(), *names, *files], cwd=tmp_path, check=True, capture_output=True)
    words = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    with serving(folder, *words) as (address, _):
        assert address.startswith("https://")
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        assert get(address, verify=context).status_code == 200
    assert is_error(refused(folder, "--tls-cert", "cert.pem"), "--tls-key")
    hide = "openssl pkey -in key.pem -out hidden.pem -aes256 -passout pass:secret"
    subprocess.run(hide.split(), cwd=tmp_path, check=True, capture_output=True)
    hidden = ("--tls-cert", "cert.pem", "--tls-key", "hidden.pem")
    assert is_error(refused(folder, *hidden), "hidden.pem", "without a password")
    (tmp_path / "key.pem").write_text("no key")
    assert is_error(refused(folder, *words), "cert.pem", "key.pem", "cannot be used")


def test_a_taken_port_and_files_that_are_none_are_a_sentence(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert is_error(refused(folder, "--port", port), f"Port {port}", "--port 0")
    assert is_error(refused(folder, "--host", "no.such.host.invalid", "--token-file", "x"), "x")
    (tmp_path / "token").write_text("short")
    assert is_error(refused(folder, "--token-file", "token"), "16 or more")
    (tmp_path / "token").write_text("two lines\nof it\n")
    assert is_error(refused(folder, "--token-file", "token"), "one line")
    assert is_error(refused(folder, "--token-file", "nowhere"), "nowhere", "cannot be read")
    assert is_error(refused(folder, "--token-file", ""), "--token-file names no file")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    for host in ("..example.org", "a" * 64):
        answer = refused(folder, "--host", host, "--token-file", "token")
        assert is_error(answer, "no host has such a name", "--host")
    assert is_error(refused(folder, "app:nothing"), "has no 'nothing'")
    assert is_error(refused(folder, "--proxy", "proxy.example"), "no address of a proxy")
    assert is_error(
        refused(folder, "--name", "https://shop.example"), "'https://shop.example' is no"
    )
    assert is_error(refused(tmp_path / "elsewhere"), "elsewhere")


def test_it_says_if_it_is_read_only_and_what_is_unencrypted(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    for words, told in (
        ((), "It can be read only"),
        (("--host", "0.0.0.0", "--token-file", "token"), "travel unencrypted"),
    ):
        line = ("--repo", folder, "serve", "--port", 0, *words)
        with running(*line, cwd=tmp_path) as server:
            server.expect("What is going on: http://")
            server.expect(told)

"""The port of the metrics: loopback unless told otherwise; idle clients do not block it."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator

import click
import pytest
from prometheus_client import CollectorRegistry, Counter

import percola.cli.metrics_port as metrics_port
from percola.cli.metrics_port import serve_metrics
from percola.cli.root import cli
from percola.errors import UsageError

WaitUntil = Callable[..., object]


@pytest.fixture
def port() -> int:
    registry = CollectorRegistry()
    Counter("served", "Something", registry=registry).inc()
    found = serve_metrics(registry, "127.0.0.1", 0)
    assert found
    return found


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as held:
        yield held


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_metrics_are_served(port: int) -> None:
    assert "served_total 1.0" in scrape(port)


@pytest.mark.parametrize("command", ["worker", "oracle"])
def test_metrics_are_served_at_loopback_unless_an_address_is_named(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    [host] = [one for one in found.params if one.name == "metrics_host"]
    assert host.default == "127.0.0.1"


def test_idle_connections_neither_lock_a_scraper_out_nor_take_a_thread_each(
    port: int, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_port._Handler, "timeout", 600)
    before = threading.active_count()
    idle = [
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        for _ in range(5 * metrics_port._CONNECTIONS)
    ]
    assert "served_total 1.0" in scrape(port)
    # The oldest ones have been ended by then.
    for one in idle[: 4 * metrics_port._CONNECTIONS]:
        assert one.recv(1) == b""
    assert threading.active_count() - before <= 2 * metrics_port._CONNECTIONS


def test_a_connection_that_sends_no_request_is_closed(
    port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert 0 < metrics_port._Handler.timeout <= 60
    monkeypatch.setattr(metrics_port._Handler, "timeout", 0.05)
    for said in (b"", b"GET /metr"):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            silent.sendall(said)
            assert silent.recv(1) == b""
    assert "Traceback" not in capfd.readouterr().err


def test_an_address_that_is_taken_or_not_ours_is_an_error_in_words(port: int) -> None:
    for host in ("127.0.0.1", "no.such.host.invalid", "no..host"):
        with pytest.raises(UsageError, match="Metrics cannot be served on"):
            serve_metrics(CollectorRegistry(), host, port)

"""§2.4: `worker`: a process that runs observers until it is told to end."""

from __future__ import annotations

import logging
import os
import signal
import sys

import click
from prometheus_client import CollectorRegistry

from percola import targets
from percola.cli import arguments
from percola.cli.session import F, Session, common
from percola.errors import UsageError
from percola.worker import Worker, WorkerOptions


def metrics_options(command: F) -> F:
    """`--metrics-port` and `--metrics-host`."""
    port = click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve Prometheus metrics (0: any free port).",
    )
    host = click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS")
    return port(host(command))


@click.command()
@click.argument("target", metavar="MODULE:NAME")
@click.option("--threads", type=int, default=4, show_default=True, help="Scanning threads.")
@click.option("--until-idle", is_flag=True, help="End when no work is left for them.")
@click.option(
    "--timeout",
    type=float,
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Set an observer aside that runs for longer.",
)
@click.option(
    "--retention",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Keep superseded versions for so long (30s, 15m, 24h, 7d, or none: keep them all).",
)
@click.option("--schema", metavar="MODULE:NAME", help="Tables that the observers only write to.")
@metrics_options
@common
@click.pass_obj
def worker(
    session: Session,
    target: str,
    threads: int,
    until_idle: bool,
    timeout: float,
    retention: str,
    schema: str | None,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run observers until SIGTERM or Ctrl-C.

    Any number of workers may share a repository. NAME is an observer, a list of observers, or
    a function that returns one of these and may take the repository. The current directory can
    be imported from.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    kept = None if retention == "none" else arguments.parse_duration(retention)
    options = WorkerOptions(threads=threads, timeout=timeout, retention=kept)
    options.check()
    with targets.opened(session.where(), target, schema) as (repo, observers):
        run = Worker(repo, observers, options)
        port = serve_metrics(run.metrics.registry, metrics_host, metrics_port)
        by_column: dict[str, list[str]] = {}
        for one in observers:
            by_column.setdefault(repr(one.column), []).append(one.name)
        _work(session, run, by_column, port, until_idle=until_idle)


def _work(
    session: Session,
    run: Worker,
    by_column: dict[str, list[str]],
    port: int | None,
    *,
    until_idle: bool,
) -> None:
    def stop(number: int, frame: object) -> None:
        run.stop(wait=False)

    # The worker takes signals itself while it runs; these are for the moments around that.
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        started = {"event": "started", "pid": os.getpid(), "observers": by_column}
        sentence = f"Worker {os.getpid()} observes:"
        for column, names in by_column.items():
            sentence += f"\n  {column}: {', '.join(names)}"
        if port is not None:
            started["metrics_port"] = port
            sentence += f"\nIts metrics are on port {port}."
        session.show(started, sentence)
        sys.stdout.flush()
        if until_idle:
            run.run_until_idle()
        else:
            run.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    counts = {name: sum(by.values()) for name, by in run.metrics.counts().items()}
    told = {
        "runs": int(counts.get("observer_runs", 0)),
        "conflicts": int(counts.get("observer_conflicts", 0)),
        "failures": int(counts.get("observer_failures", 0)),
        "set_aside": int(counts.get("observer_set_aside", 0)),
    }
    numbers = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in told.items())
    session.show({"event": "stopped"} | told, f"Stopped: {numbers}.")


def serve_metrics(registry: CollectorRegistry, host: str, port: int | None) -> int | None:
    """Serve a registry's metrics in a thread; the port it got, None if none was asked for.

    Raises UsageError if that address cannot be listened at.
    """
    if port is None:
        return None
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise UsageError(
            f"Metrics cannot be served on {host}:{port}: {error.strerror or error}. Choose "
            "another --metrics-port or --metrics-host."
        ) from error
    return server.server_port

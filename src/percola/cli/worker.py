"""§2.4: `worker`: a process that runs observers until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import click

from percola.cli import arguments
from percola.cli.display import count
from percola.cli.metrics_port import metrics_options, serve_metrics
from percola.cli.session import Session, common
from percola.cli.worker_processes import run_processes
from percola.errors import UsageError
from percola.inspection import failures
from percola.observers import loading as targets
from percola.observers.observer import Observer
from percola.observers.reports import EVERY
from percola.observers.worker import Worker, WorkerOptions
from percola.platform import start_up
from percola.repository import Repository
from percola.store.lmdb.environment import DURABILITIES

_COUNTS: Final = ("runs", "conflicts", "failures", "dead_lettered")
_NETWORK_THREADS: Final = 4
_SURVEY_SECONDS: Final = 15.0

DEAD_LETTERED: Final = 3
"""The exit status of `--until-idle` if changes are dead-lettered for the worker's observers."""
PAUSED: Final = 4
"""The exit status of `--until-idle` if none is, and changes wait for those that are paused."""
STOPPED: Final = 5
"""The exit status of `--until-idle` if the worker was told to end before it was idle."""


@click.command()
@click.argument("target", metavar="MODULE:NAME")
@click.option(
    "--threads",
    type=int,
    help="Scanning threads of a process; by default 1 on a folder, where more only wait for each "
    "other, and 4 on a cluster.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Worker processes. If one fails, all end.",
)
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    help="Whether commits wait for the disk; by default as the repository was created.",
)
@click.option(
    "--until-idle",
    is_flag=True,
    help="End when no work is left for them; with exit status 3 if changes are dead-lettered, else "
    "with 4 if some wait for paused observers. With 5 if it is told to end before.",
)
@click.option(
    "--timeout",
    type=float,
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up an observer that runs for longer, and dead-letter its change.",
)
@click.option(
    "--retention",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Keep superseded versions for so long (30s, 15m, 24h, 7d, or none: keep them all).",
)
@click.option("--with-parent", is_flag=True, hidden=True)
@click.option("--schema", metavar="MODULE:NAME", help="Tables that the observers only write to.")
@metrics_options
@common
@click.pass_obj
def worker(
    session: Session,
    target: str,
    threads: int | None,
    processes: int,
    durability: str | None,
    with_parent: bool,
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

    An observer that raises is retried a few times, and each attempt is logged, with its traceback
    unless many fail alike; then the change is dead-lettered ('percola failed'). Paused observers
    are left alone ('percola observers').
    """
    kept = None if retention == "none" else arguments.parse_duration(retention, "0, or none")
    survey = None if metrics_port is None else _SURVEY_SECONDS
    options = WorkerOptions(timeout=timeout, retention=kept, survey=survey, report=EVERY)
    if processes > 1 and metrics_port:
        raise UsageError(
            f"{processes} processes cannot all serve metrics on port {metrics_port}: give "
            "--metrics-port 0, and each takes a free one."
        )
    with _ends_when_told(session, STOPPED if until_idle else 0), ExitStack() as stack:
        start_up.release_sigterm()
        stack.enter_context(session.user_code())
        repo, observers = stack.enter_context(
            targets.opened(session.where(), target, schema, durability=durability)
        )
        # Unless the module has configured it, when it was imported.
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
        options.threads = threads if threads is not None else _threads(repo)
        run = Worker(repo, observers, options)
        if processes > 1:
            # What they would all refuse has been refused once.
            stack.close()
            words = ["--repo", session.where(), "worker", "--with-parent"]
            words += ["--threads", str(options.threads), "--timeout", str(timeout)]
            words += ["--retention", retention, "--metrics-host", metrics_host]
            words += [] if durability is None else ["--durability", durability]
            words += [] if schema is None else ["--schema", schema]
            words += [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
            words += ["--until-idle"] * until_idle + ["--json"] * session.json + ["--", target]
            click.get_current_context().exit(run_processes(words, processes))
        if with_parent:
            stack.enter_context(run.ending_with_input())
        port = serve_metrics(run.metrics.registry, metrics_host, metrics_port)
        by_column: dict[str, list[str]] = {}
        for one in observers:
            for column in one.columns:
                by_column.setdefault(repr(column), []).append(one.label)
        idle = _work(session, run, by_column, port, until_idle=until_idle)
        if until_idle:
            status = _status(session, repo, observers) if idle else STOPPED
            click.get_current_context().exit(status)


@contextmanager
def _ends_when_told(session: Session, status: int) -> Iterator[None]:
    """Until the worker handles signals itself, have them interrupt what is done: an import, say.

    The command then ends with this exit status.
    """
    handler = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except KeyboardInterrupt:
        session.show({"event": "stopped"} | dict.fromkeys(_COUNTS, 0), "Stopped before it began.")
        click.get_current_context().exit(status)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _threads(repo: Repository) -> int:
    """More than one thread pays only where calls wait for a network."""
    return 1 if repo.context.prefetch is None else _NETWORK_THREADS


def _status(session: Session, repo: Repository, observers: Sequence[Observer[Any]]) -> int:
    """Say what is left when the worker is idle; the exit status."""
    status, told = 0, []
    names = {one.name for one in observers}
    if paused := [one for one in repo.paused_observers() if one.name in names]:
        pending = repo.pending()
        columns = {column for one in paused for column in one.columns}
        waiting = sum(pending.get(column, 0) for column in columns)
        told.append(
            f"{count(len(paused), 'observer')} {'is' if len(paused) == 1 else 'are'} paused "
            f"({'; '.join(map(str, paused))}), and {count(waiting, 'dirty cell')} "
            f"{'waits' if waiting == 1 else 'wait'}: 'percola observers' lists them."
        )
        status = PAUSED if waiting else 0
    if dead := _dead_letters(repo, observers):
        told.append(
            f"{count(dead, 'change')} {'is' if dead == 1 else 'are'} dead-lettered, as an "
            "observer kept failing: 'percola failed' shows why."
        )
        status = DEAD_LETTERED
    if told and not session.json:
        session.show({}, "\n".join(told))
    return status


def _dead_letters(repo: Repository, observers: Sequence[Observer[Any]]) -> int:
    """How many changes are dead-lettered for these observers, now or earlier, by any worker."""
    ours = {(one.name, *column.address) for one in observers for column in one.columns}
    return sum((one.observer, one.cell.table, one.cell.column) in ours for one in failures(repo))


def _work(
    session: Session,
    run: Worker,
    by_column: dict[str, list[str]],
    port: int | None,
    *,
    until_idle: bool,
) -> bool:
    """Work, and say so; whether it was idle in the end."""

    def stop(number: int, frame: object) -> None:
        run.stop(wait=False)

    # The worker handles signals itself while it runs; these handlers cover the time before and
    # after.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    started = {"event": "started", "pid": os.getpid(), "observers": by_column}
    sentence = f"Worker {os.getpid()} observes:"
    for column, names in by_column.items():
        sentence += f"\n  {column}: {', '.join(names)}"
    if port is not None:
        started["metrics_port"] = port
        sentence += f"\nIts metrics are on port {port}."
    session.show(started, sentence)
    sys.stdout.flush()
    idle = False
    if until_idle:
        idle = run.run_until_idle()
    else:
        run.run()
    counts = {name: sum(by.values()) for name, by in run.metrics.counts().items()}
    told = {name: int(counts.get(f"observer_{name}", 0)) for name in _COUNTS}
    numbers = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in told.items())
    session.show({"event": "stopped"} | told, f"Stopped: {numbers}.")
    return idle

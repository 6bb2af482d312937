"""§2.4: what operators do with one observer: `rerun` and `observers`.

`rerun` marks rows dirty, so that workers run an observer over rows that are there. `observers`
lists, pauses and resumes observers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from percola.cli import arguments, display
from percola.cli.session import ListByDefault, Session, common
from percola.cli.spark import runner_of, spark_options
from percola.errors import UsageError
from percola.inspection import processes
from percola.observers import loading as targets
from percola.observers.observer import ObservedColumn, Observer
from percola.observers.rerun import Rerun, rerun_named
from percola.paused import PausedObserver, announced_observers, paused_observers
from percola.recording import recording
from percola.repository import Repository
from percola.schema import Family


@click.command()
@click.argument("observer")
@click.option(
    "--prefix", "prefixes", multiple=True, metavar="TEXT", help="Only rows that begin with it."
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1000.0,
    show_default=True,
    metavar="ROWS",
    help="Rows per second at most.",
)
@click.option("--restart", is_flag=True, help="Begin at the first row even if one was interrupted.")
@spark_options
@common
@click.pass_obj
def rerun(
    session: Session,
    observer: str,
    prefixes: tuple[str, ...],
    rate: float,
    restart: bool,
    master: str | None,
) -> None:
    """Run an observer over rows that are there.

    OBSERVER is the name of an observer that a live worker runs, or MODULE:NAME. Rows with a value
    in one of its columns are marked dirty, and the workers run it on them, even if it has run
    there before. Use it for a new observer, for one whose function has changed once no worker runs
    the old one, and after writes that notified nobody. If it is interrupted, the same command
    resumes it.
    """
    arguments.check_prefixes(prefixes)
    with _opened(session, observer) as (repo, name, columns):
        table = columns[0].table
        rows = [arguments.parse_row(table, one) for one in prefixes]
        first = f"Marking for {name}"
        with (
            display.progress_line(first) as line,
            runner_of(repo, master, "rerun", line) as runner,
        ):
            done = rerun_named(
                repo,
                name,
                columns,
                prefixes=rows,
                rate=rate,
                restart=restart,
                progress=lambda so_far: line(f"{first}: {display.count(so_far.rows, 'row')}"),
                runner=runner,
            )
        told = sentence(done, who_runs(repo, name))
    session.show(document(done), told)


def document(done: Rerun) -> dict[str, Any]:
    """A finished rerun as JSON."""
    return {"observer": done.observer, "rows": done.rows, "resumed_after": done.resumed}


def sentence(done: Rerun, expected: str) -> str:
    """A finished rerun as a sentence, with what `who_runs` says."""
    resumed = f", resumed after {done.resumed:,}" if done.resumed else ""
    return f"Marked {display.count(done.rows, 'row')} dirty{resumed}: {expected}."


def who_runs(repo: Repository, name: str | None, columns: Collection[str] = ()) -> str:
    """Whether a worker will run this observer, or any if it is None, on the rows that are dirty.

    Any of these columns (`table.column`), if some are given.
    """
    paused = paused_observers(repo.context.store)
    if name in paused:
        return f"{name} is paused, and runs on them once 'percola observers resume {name}' is given"
    running = announced_observers(repo.context.coordination)
    if name is None:
        if not running:
            return "no worker is running, so start one"
        observed = {column for listed in running.values() for column in listed}
        if columns and observed.isdisjoint(columns):
            return "no worker observes it now, so start one"
        return "a worker will look"
    if name in running:
        return f"workers run {name} on them"
    return f"no worker runs {name} now, so start one"


@contextmanager
def _opened(
    session: Session, target: str
) -> Iterator[tuple[Repository, str, list[ObservedColumn[Any]]]]:
    """The repository, and the name and columns of the observer."""
    if ":" in target:
        with _loaded(session, target) as (repo, one):
            yield repo, one.name, list(one.columns)
    else:
        with session.open() as repo:
            yield repo, target, _columns_of(repo, target)


@contextmanager
def _loaded(session: Session, target: str) -> Iterator[tuple[Repository, Observer[Any]]]:
    """The repository, and the only observer that MODULE:NAME gives."""
    opened = targets.opened(session.where(), target, adds=False)
    with session.user_code(), opened as (repo, found):
        if len(found) != 1:
            names = ", ".join(one.name for one in found) or "none"
            raise UsageError(
                f"{target} gives several observers ({names}): name one of them, as "
                "MODULE:NAME of the observer itself, or by its name while a worker runs it."
                if found
                else f"{target} gives no observer."
            )
        yield repo, found[0]


def _columns_of(repo: Repository, name: str) -> list[ObservedColumn[Any]]:
    """The columns that an observer of a live worker observes."""
    announced = announced_observers(repo.context.coordination)
    if name not in announced:
        running = ", ".join(announced) or "none"
        raise UsageError(
            f"No live worker runs an observer named {name!r}. Start one, or name the observer as "
            f"MODULE:NAME. Observers of live workers: {running}."
        )
    # Names of tables and columns may have dots.
    known: dict[str, ObservedColumn[Any]] = {
        f"{table.name}.{member.name}": member
        for table in repo.schema
        for member in table.members
        if not isinstance(member, Family)
    }
    return [known[column] for column in announced[name]]


# --- Pausing ----------------------------------------------------------------------------


@click.group(cls=ListByDefault)
@common
def observers() -> None:
    """List, pause or resume observers, or record their runs."""


@observers.command("list")
@common
@click.pass_obj
def observers_list(session: Session) -> None:
    """List the observers that live workers run, and those that are paused.

    Each with its columns, the processes that run it, and how many cells of its columns are dirty.
    """
    with session.open() as repo:
        columns = announced_observers(repo.context.coordination)
        paused = {one.name: one for one in repo.paused_observers()}
        columns |= {name: list(one.columns) for name, one in paused.items() if name not in columns}
        live, dirty = processes(repo), repo.pending()
    running = {
        name: sorted((one.host, one.pid) for one in live if _runs(one.observers, name))
        for name in columns
    }
    found = [
        {
            "name": name,
            "columns": observed,
            "pids": sorted(pid for _, pid in running[name]),
            "processes": [{"pid": pid, "host": host} for host, pid in running[name]],
            "dirty": sum(dirty.get(column, 0) for column in observed),
            "paused": _paused_json(paused[name]) if name in paused else None,
        }
        for name, observed in sorted(columns.items())
    ]
    if session.json:
        session.show({"observers": found}, "")
    else:
        display.print_observers(found)


def _runs(by_column: Mapping[str, list[str]], name: str) -> bool:
    return any(label.partition("(")[0] == name for labels in by_column.values() for label in labels)


@observers.command("pause")
@click.argument("observer")
@click.option("--reason", default="", metavar="TEXT", help="Why, for operators and workers' logs.")
@common
@click.pass_obj
def observers_pause(session: Session, observer: str, reason: str) -> None:
    """Have no worker begin a run of an observer until it is resumed.

    OBSERVER is the name of an observer that a live worker runs, or MODULE:NAME. All workers notice
    it within a second or two; runs that have begun end as usual. The changes of its columns wait,
    and the other observers go on. It stays paused when its workers are restarted.
    """
    if ":" in observer:
        with _loaded(session, observer) as (repo, one):
            paused = repo.pause_observer(one, reason=reason)
    else:
        with session.open() as repo:
            paused = repo.pause_observer(observer, reason=reason)
    session.show(
        {"observer": paused.name, "columns": list(paused.columns), "paused": _paused_json(paused)},
        f"Paused {paused.name}: workers begin no more runs of it within two seconds, and its "
        f"changes wait. 'percola observers resume {paused.name}' resumes it.",
    )


@observers.command("resume")
@click.argument("name")
@common
@click.pass_obj
def observers_resume(session: Session, name: str) -> None:
    """Resume a paused observer: workers run it on all changes that wait."""
    with session.open() as repo:
        resumed = repo.resume_observer(name)
    session.show(
        {"observer": resumed.name, "columns": list(resumed.columns), "paused": None},
        f"Resumed {resumed.name}: workers run it on the changes that wait.",
    )


@observers.command("record")
@click.argument("switch", metavar="[on|off]", type=click.Choice(("on", "off")), required=False)
@common
@click.pass_obj
def observers_record(session: Session, switch: str | None) -> None:
    """Record what each run answered and wrote, for percola why; or stop it, or say which it is.

    All workers take it up within a second. Records are removed by garbage collection after the
    retention, also those from before it was turned off.
    """
    with session.open() as repo:
        found = repo.record_runs(switch == "on") if switch else recording(repo.context.store)
    if found.on and found.since is not None:
        sentence = f"Runs are recorded: all that have begun since {found.since}."
    elif found.on:
        sentence = "Runs are recorded. Since when is known after 'percola observers record on'."
    elif found.until is None:
        sentence = "Runs are not recorded."
    elif found.since is None:
        sentence = f"Runs are not recorded; some were, until {found.until}."
    else:
        sentence = f"Runs are not recorded; those from {found.since} to {found.until} were."
    session.show({"recording": found._asdict()}, sentence)


def _paused_json(paused: PausedObserver) -> dict[str, Any]:
    return {"reason": paused.reason, "since_ms": paused.since_ms}

"""`init` and `status`, and for operators `locks`, `notifications`, `failed` and `holds`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import click

import percola
from percola import catalog, inspection
from percola.cli import arguments, display
from percola.cli import json_output as documents
from percola.cli.rerun import who_runs
from percola.cli.session import ListByDefault, Session, common, limit_option
from percola.connect.address import network_address
from percola.errors import ConflictingOptionsError, NotARepositoryError, UsageError
from percola.observers import loading as targets
from percola.store.lmdb.environment import DURABILITIES


@click.command()
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    help="Whether a commit waits until it is on disk (full, the default).",
)
@click.option("--schema", metavar="MODULE:NAME", help="A list of Tables to create.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="TABLE.NAME:TYPE",
    help="A column to create, as docs.title:str; add :observed or :family, or use the type weak.",
)
@click.option(
    "--index-feeds",
    is_flag=True,
    help="Begin the index of the feeds of a repository from an earlier release; for good.",
)
@common
@click.pass_obj
def init(
    session: Session,
    durability: str | None,
    schema: str | None,
    columns: tuple[str, ...],
    index_feeds: bool,
) -> None:
    """Create a repository, or add tables to one."""
    if schema is not None and columns:
        raise ConflictingOptionsError(
            "--schema and --column both declare tables: give one of the two."
        )
    address = session.where()
    if (network := network_address(address)) is not None:
        network.refuse_durability(durability)
    if schema is not None:
        with session.user_code():
            tables = targets.load_schema(schema)
    else:
        tables = arguments.declare_tables(columns)
    try:
        with percola.open(address, create=False) as repo:
            known = {table.name for table in repo.schema}
            kept = inspection.durability(repo)
        created = False
        if durability not in (None, kept):
            raise ConflictingOptionsError(
                f"The repository {address} was created with durability {kept!r}, and init does "
                f"not change that to {durability!r}. Leave --durability out; a program may still "
                "choose when it opens the repository."
            )
    except NotARepositoryError:
        percola.create(address, durability=durability)
        created, known = True, set()
    with percola.open(address, tables, create=False) as repo:
        names = [table.name for table in repo.schema]
        kept = inspection.durability(repo)
        begun = index_feeds and catalog.index_feeds(repo.context.store, repo.context.oracle)
    document = {"repository": address, "created": created, "durability": kept, "tables": names}
    if index_feeds:
        document["feeds_indexed"] = begun
    added = [name for name in names if name not in known]
    if created:
        # Remote stores define their own durability.
        sentence = f"Created a repository in {address}" + (f", durability {kept}" if kept else "")
        sentence += f", with {_listed('table', names)}." if names else ", without tables yet."
        if kept == "relaxed":
            sentence += (
                "\nRelaxed: commits do not wait for the disk. A killed process loses nothing; a "
                "power cut or a crash of the system may lose the last commits or damage the "
                "repository. Keep a backup."
            )
    elif added:
        sentence = f"Added {_listed('table', added)} to the repository in {address}."
    else:
        has = _listed("table", names) if names else "no tables"
        durable = f"durability {kept}, " if kept else ""
        sentence = f"There is a repository in {address} already ({durable}{has})."
        sentence += " Its tables were brought up to date." if tables else ""
        sentence += " Nothing was changed." if not tables and not begun else ""
    if begun:
        sentence += (
            "\nIts feeds have an index from now on, and releases before 0.2 cannot open it. If one "
            "of their processes has it open still, end that now: followers miss what it writes."
        )
    session.show(document, sentence)


@click.command()
@common
@click.pass_obj
def status(session: Session) -> None:
    """Show a summary of the repository.

    Its tables, pending work, locks and live processes.
    """
    with session.open() as repo:
        found = inspection.status(repo)
    if session.json:
        documents.write_json(documents.status_json(found))
    else:
        display.print_status(found)


def _listed(noun: str, names: Sequence[str]) -> str:
    return f"the {noun}{'' if len(names) == 1 else 's'} {', '.join(names)}"


@click.command()
@limit_option("At most N cells of each transaction")
@common
@click.pass_obj
def locks(session: Session, limit: int | None) -> None:
    """List the locks, by transaction.

    Each with its primary and whether the process that owns it is alive.
    """
    shown = session.shown(limit)
    with session.open() as repo:
        found, schema, listed = inspection.locks(repo), repo.schema, Counter[int]()

        def is_listed(lock: inspection.HeldLock) -> bool:
            listed[lock.start_ts] += 1
            return shown is None or listed[lock.start_ts] <= shown

        if session.json:
            some = (documents.held_lock_json(one, schema) for one in found if is_listed(one))
            documents.write_json_list("locks", some)
        else:
            hosts = {one.token: one.host for one in inspection.processes(repo)}
            display.print_locks(list(found), schema, shown=shown, hosts=hosts)


@click.command()
@click.option("--limit", type=click.IntRange(min=0), default=0, help="List so many cells as well.")
@common
@click.pass_obj
def notifications(session: Session, limit: int) -> None:
    """Count the pending work: dirty cells."""
    columns: dict[str, dict[str, Any]] = {}
    cells: list[inspection.Notification] = []
    with session.open() as repo:
        live, schema = inspection.processes(repo), repo.schema
        for one in inspection.notifications(repo):
            name = inspection.column_name(one.cell)
            entry = columns.setdefault(
                name,
                {
                    "table": one.cell.table,
                    "column": documents.as_json(one.cell.column),
                    "cells": 0,
                    "oldest_ts": one.timestamps[0],
                    "observers": display.observers_at_work(live, name),
                },
            )
            entry["cells"] += 1
            entry["oldest_ts"] = min(entry["oldest_ts"], one.timestamps[0])
            if len(cells) < limit:
                cells.append(one)
    summary = sorted(columns.values(), key=lambda entry: (entry["table"], entry["column"]))
    if session.json:
        listed = [
            documents.stored_cell_json(one.cell, schema) | {"timestamps": one.timestamps}
            for one in cells
        ]
        documents.write_json({"columns": summary, "cells": listed})
    else:
        total = sum(entry["cells"] for entry in summary)
        display.print_notifications(summary, cells, total, schema)


@click.group(cls=ListByDefault)
@common
def failed() -> None:
    """List or retry dead-lettered changes."""


@failed.command("list")
@click.option("--observer", metavar="NAME", help="Only this observer's.")
@click.option(
    "--traceback/--no-traceback", default=True, help="Show tracebacks, or only what was raised."
)
@limit_option("At most N changes, though all are counted")
@common
@click.pass_obj
def failed_list(session: Session, observer: str | None, traceback: bool, limit: int | None) -> None:
    """List the changes that were dead-lettered because an observer kept failing, and why."""
    shown = session.shown(limit)
    with session.open() as repo:
        found = inspection.failures(repo, observer=observer)
        if session.json:
            some = (documents.failure_json(one, repo.schema) for one in islice(found, shown))
            documents.write_json_list("failures", some)
        else:
            display.print_failures(
                found, repo.schema, traceback=traceback, observer=observer, shown=shown
            )


@failed.command("retry")
@click.option("--observer", metavar="NAME", help="Only this observer's.")
@click.option("--row", metavar="ROW", help="Only this row's.")
@click.option("--all", "every", is_flag=True, help="All of them.")
@click.option("-t", "--table", metavar="TABLE", help="Only this table's; --row in which.")
@common
@click.pass_obj
def failed_retry(
    session: Session, observer: str | None, row: str | None, every: bool, table: str | None
) -> None:
    """Mark the cells dirty again, so that the observers run again."""
    some = observer is not None or row is not None or table is not None
    if some is every:
        raise click.UsageError("Say which: either --observer, --row or --table, or --all.")
    with session.open() as repo:
        named = table is not None or row is not None
        whole = arguments.find_table(repo, table) if named else None
        key = None if whole is None or row is None else arguments.parse_row(whole, row)
        with display.progress_line("Retrying") as line:
            retried = inspection.retry_failures(
                repo,
                observer=observer,
                table=whole,
                row=key,
                progress=lambda so_far: line(f"Retrying: {display.count(so_far, 'change')}"),
            )
        told = "Nothing was dead-lettered there."
        if retried:
            expected = who_runs(repo, observer)
            told = f"{display.count(retried, 'failure')} made dirty again: {expected}."
    session.show({"retried": retried}, told)


@click.group(cls=ListByDefault)
@common
def holds() -> None:
    """List or release retention holds.

    A hold keeps the versions that its owner has yet to read from garbage collection.
    """


@holds.command("list")
@common
@click.pass_obj
def holds_list(session: Session) -> None:
    """List the retention holds, the oldest timestamp first.

    Spark frames, stopped streams and running copies have one each, and so do programs that call
    Repository.hold. A hold whose process was killed stays until it expires.
    """
    with session.open() as repo:
        found = repo.holds()
    if session.json:
        documents.write_json({"holds": [one._asdict() for one in found]})
    else:
        display.print_holds(found)


@holds.command("release")
@click.argument("name")
@common
@click.pass_obj
def holds_release(session: Session, name: str) -> None:
    """End a hold before it expires.

    Garbage collection may then remove what its owner has yet to read. Reads of that fail, as
    versions that are gone are never taken for others.
    """
    with session.open() as repo:
        if all(one.name != name for one in repo.holds()):
            raise UsageError(f"There is no hold {name!r}: 'percola holds' lists them.")
        repo.release(name)
    session.show({"released": name}, f"Released {name!r}.")

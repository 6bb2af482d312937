"""§2.1, §2.2, §2.4: `get`, `set`, `delete`, `empty`, `scan`, `history` and `why`: for cells."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

import click

from percola import inspection
from percola.cells import Cell
from percola.cli import arguments, display
from percola.cli import json_output as documents
from percola.cli.session import (
    InputFile,
    NegativeNumbers,
    Session,
    at_option,
    common,
    limit_option,
    snapshot_at,
    standard_input,
    table_option,
)
from percola.errors import ConflictingOptionsError, UsageError
from percola.maintenance.empty import Emptied
from percola.maintenance.empty import empty as delete_all
from percola.observers import causes as trails
from percola.transactions.row import Row
from percola.transactions.transaction import Transaction

_DEEPEST: Final = 100
"""The most runs that `why` follows in a row: its tree is printed as it is nested."""


@click.command(cls=NegativeNumbers)
@click.argument("row")
@click.argument("column", required=False)
@table_option
@at_option
@common
@click.pass_obj
def get(
    session: Session, row: str, column: str | None, table: str | None, at: int | datetime | None
) -> None:
    """Print a cell, or a whole row.

    A value of type bytes is written unchanged to a file or pipe. Exit code 1 if the cell or row
    does not exist.
    """
    with session.open() as repo:
        snapshot = snapshot_at(repo, at)
        if column is None:
            whole = arguments.find_table(repo, table)
            found = snapshot.get_row(whole, arguments.parse_row(whole, row))
            if not found:
                raise UsageError(
                    f"The table {whole.name!r} has no row {row!r} at {snapshot.start_ts}."
                )
            if session.json:
                head = {"table": whole.name, "snapshot_ts": snapshot.start_ts}
                documents.write_json(head | documents.row_json(found))
            else:
                display.print_rows([found])
            return
        one = arguments.find_cell_column(repo, table, column)
        key = arguments.parse_row(one.table, row)
        commit_ts = snapshot.version(one, key)
        found = snapshot.get_row(one.table, key, [one])
        cell = Cell(one.table_name, one.table.encode_row(key), one.key)
        name = display.cell_name(one, key)
    if one not in found:
        gone = f"was deleted at {commit_ts}" if commit_ts else "has no value"
        raise UsageError(f"{name} {gone} (as of {snapshot.start_ts}).")
    value = found[one]
    if session.json:
        written = {"value": documents.as_json(value), "commit_ts": commit_ts}
        at_ts = {"snapshot_ts": snapshot.start_ts}
        documents.write_json(documents.cell_json(cell, key) | written | at_ts)
    else:
        _write_value(value)


def _write_value(value: Any) -> None:
    if isinstance(value, bytes) and not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        return
    text = display.as_text(value)
    if isinstance(value, bytes | str) and sys.stdout.isatty():
        text = "\n".join(map(display.printable, text.split("\n")))
    sys.stdout.write(text + "\n")


@click.command("set", cls=NegativeNumbers)
@click.argument("row")
@click.argument("column")
@click.argument("value", required=False)
@click.option(
    "--file", type=InputFile("rb"), metavar="FILE", help="Take the value from a file, all of it."
)
@table_option
@common
@click.pass_obj
def set_(session: Session, row: str, column: str, value: Any, file: Any, table: str | None) -> None:
    """Write a cell.

    VALUE is parsed by the column's type: text, 12, 1.5, true, {"a": 1}. With - it is read from
    standard input. Bytes that are not text may be written base64:….
    """
    if (value is None) is (file is None):
        raise click.UsageError("Give either a VALUE (- for standard input) or --file.")
    with session.open() as repo:
        one = arguments.find_cell_column(repo, table, column)
        key = arguments.parse_row(one.table, row)
        if file is not None:
            value = file.read()
        elif value == "-":
            value = standard_input().read()
        parsed = arguments.parse_value(one, value)

        def write(transaction: Transaction) -> Transaction:
            transaction.set(one, key, parsed)
            return transaction

        commit_ts = repo.run(write).commit_ts
        cell = Cell(one.table_name, one.table.encode_row(key), one.key)
        name = display.cell_name(one, key)
    session.show(
        documents.cell_json(cell, key) | {"commit_ts": commit_ts}, f"Set {name} at {commit_ts}."
    )


@click.command(cls=NegativeNumbers)
@click.argument("row")
@click.argument("column")
@table_option
@common
@click.pass_obj
def delete(session: Session, row: str, column: str, table: str | None) -> None:
    """Delete a cell; its older versions stay readable."""
    with session.open() as repo:
        one = arguments.find_cell_column(repo, table, column)
        key = arguments.parse_row(one.table, row)

        def erase(transaction: Transaction) -> tuple[Transaction, bool]:
            existed = transaction.get(one, key) is not None
            transaction.delete(one, key)
            return transaction, existed

        transaction, existed = repo.run(erase)
        cell = Cell(one.table_name, one.table.encode_row(key), one.key)
        name = display.cell_name(one, key)
    at = transaction.commit_ts
    session.show(
        documents.cell_json(cell, key) | {"commit_ts": at, "existed": existed},
        f"Deleted {name} at {at}." if existed else f"{name} had no value; deleted at {at} anyway.",
    )


@click.command()
@click.argument("table")
@click.option(
    "--column", "columns", multiple=True, metavar="COLUMN", help="Only this column or family."
)
@click.option("--prefix", metavar="ROW", help="Only rows that begin so.")
@click.option(
    "--no-notify", "silent", is_flag=True, help="Run no observers: none needs to see the deletes."
)
@click.option("--dry-run", is_flag=True, help="Count what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not count and ask before.")
@common
@click.pass_obj
def empty(
    session: Session,
    table: str,
    columns: tuple[str, ...],
    prefix: str | None,
    silent: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete what is in a table, or in some of its columns.

    Up to 1,000 cells a transaction; older snapshots still see them, and garbage collection frees
    their space after the retention. The table stays declared. What programs write meanwhile to
    other cells stays. If it is interrupted, the same command deletes the rest.
    """
    arguments.check_prefixes(() if prefix is None else (prefix,))
    with session.open() as repo:
        whole = arguments.find_table(repo, table)
        chosen = arguments.find_columns(whole, columns) if columns else None
        key = None if prefix is None else arguments.parse_row(whole, prefix)

        def work(first: str, *, dry_run: bool) -> Emptied:
            with display.progress_line(first) as line:
                return delete_all(
                    repo,
                    whole,
                    chosen,
                    prefix=key,
                    notify=not silent,
                    dry_run=dry_run,
                    progress=lambda so_far: line(f"{first}: {_of(so_far, whole.name)}"),
                )

        found = Emptied() if yes and not dry_run else work("Counting", dry_run=True)
        if not dry_run:
            if not yes:
                _confirm(f"Delete {_of(found, whole.name)} in {repo.address}?")
            found = work("Deleting", dry_run=False)
        told = f"{'Would delete' if dry_run else 'Deleted'} {_of(found, whole.name)}."
        members = [one for one in chosen or whole.members if getattr(one, "observed", False)]
        observed = [f"{whole.name}.{one.name}" for one in members]
        if found.cells and observed and not (silent or dry_run):
            from percola.cli.rerun import who_runs  # Other commands here start without it.

            told += f" Observers are to see that: {who_runs(repo, None, observed)}."
    session.show(
        {"table": whole.name, "rows": found.rows, "cells": found.cells, "dry_run": dry_run}, told
    )


def _of(found: Emptied, table: str) -> str:
    cells, rows = display.count(found.cells, "cell"), display.count(found.rows, "row")
    return f"{cells} in {rows} of {table}"


def _confirm(question: str) -> None:
    """Ask at the terminal. A usage error where there is none; UsageError unless they say yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Confirm it with --yes, as there is no terminal to ask.")
    if not click.confirm(question, err=True):
        raise UsageError("Nothing was deleted.")


@click.command()
@click.argument("table", required=False)
@click.option("--prefix", metavar="ROW", help="Rows that begin so.")
@click.option("--start", metavar="ROW", help="From this row on.")
@click.option("--end", metavar="ROW", help="Up to, but without this row.")
@click.option(
    "--column", "columns", multiple=True, metavar="COLUMN", help="Only this column or family."
)
@limit_option("At most N rows")
@click.option("-t", "--table", "table_too", metavar="TABLE", hidden=True)
@at_option
@common
@click.pass_obj
def scan(
    session: Session,
    table: str | None,
    prefix: str | None,
    start: str | None,
    end: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    table_too: str | None,
    at: int | datetime | None,
) -> None:
    """Print rows in order.

    With --json, one document per row.
    """
    if table and table_too and table != table_too:
        raise ConflictingOptionsError(f"Two tables are named, {table!r} and {table_too!r}.")
    shown = session.shown(limit)
    with session.open() as repo:
        whole = arguments.find_table(repo, table or table_too)

        def bound(text: str | None) -> Any:
            return None if text is None else arguments.parse_row(whole, text)

        rows: Iterator[Row[Any]] = snapshot_at(repo, at).scan(
            whole,
            prefix=bound(prefix),
            start=bound(start),
            end=bound(end),
            columns=arguments.find_columns(whole, columns) if columns else None,
        )
        found, some = 0, islice(rows, shown)
        if session.json:
            for row in some:
                documents.write_json(documents.row_json(row))
        else:
            found = display.print_rows(some)
        more = shown is not None and next(rows, None) is not None
    if not session.json and (more or not found):
        first = f"These were the first {display.count(found, 'row')}; --limit 0 shows all."
        display.say(first if more else f"The table {whole.name!r} has no such rows.")


@click.command(cls=NegativeNumbers)
@click.argument("row")
@click.argument("column")
@table_option
@limit_option("The newest N timestamps")
@common
@click.pass_obj
def history(session: Session, row: str, column: str, table: str | None, limit: int | None) -> None:
    """Show the versions of a cell.

    By timestamp: data, lock, write, notify and ack, as in figure 4 of the paper.
    """
    shown = session.shown(limit)
    with session.open() as repo:
        one = arguments.find_column(repo, table, column)
        key = arguments.parse_row(one.table, row)
        cell = Cell(one.table_name, one.table.encode_row(key), one.key)
        name = display.cell_name(one, key)
        found = inspection.history(repo, one, key, shown and shown + 1)
        versions = found[:shown]
        here = inspection.failures(repo, table=one.table, row=key)
        failures = [failure for failure in here if failure.cell == cell]
        times, schema = repo.commit_times(), repo.schema
    if session.json:
        lines = [documents.version_json(version, one, times, schema) for version in versions]
        failed = [documents.failure_json(failure, schema) for failure in failures]
        documents.write_json(
            documents.cell_json(cell, key) | {"versions": lines, "failures": failed}
        )
    elif versions or failures:
        display.print_history(cell, key, one, versions, failures, times)
        if len(found) > len(versions):
            newest = display.count(len(versions), "timestamp")
            display.say(f"The newest {newest}; --limit 0 shows all.")
    else:
        display.say(f"{name} has no versions: none was written, or all were removed as garbage.")


@click.command(cls=NegativeNumbers)
@click.argument("row")
@click.argument("column")
@table_option
@at_option
@click.option("--effects", is_flag=True, help="What its newest change has caused, instead.")
@click.option(
    "--depth",
    type=click.IntRange(1, _DEEPEST),
    default=10,
    show_default=True,
    metavar="N",
    help="Follow up to N runs in a row.",
)
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Show up to N changes of each run.",
)
@common
@click.pass_obj
def why(
    session: Session,
    row: str,
    column: str,
    table: str | None,
    at: int | datetime | None,
    effects: bool,
    depth: int,
    width: int,
) -> None:
    """Show what caused the value of a cell.

    From the transaction that wrote it to the observer's run that this was, to the changes that the
    run answered, and back to the write of a program or a loader. Writes in other rows and weak
    notifications are followed where runs are recorded: percola observers record on.
    """
    with session.open() as repo:
        one = arguments.find_cell_column(repo, table, column)
        key = arguments.parse_row(one.table, row)
        ts: Any = None if at is None else snapshot_at(repo, at).start_ts
        follow = trails.effects if effects else trails.causes
        found = follow(repo, one, key, at=ts, depth=depth, width=width)
        times, schema = repo.commit_times(), repo.schema
    if session.json:
        documents.write_json(documents.change_json(found, times, schema))
    else:
        display.print_trail(found, times, schema, forward=effects)

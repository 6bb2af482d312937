"""The command line: `percola --repo PATH COMMAND`. Inspects and edits cells, and runs workers.

Every command can run beside live workers and programs. A user's mistake is reported in one sentence
on stderr (`Error: …`) with exit code 1, or 2 if the command line itself is invalid; with `--json`,
stdout then holds `{"error": {"kind": …, "message": …}}`, so that it is always JSON. `scan` and
`worker` print one JSON document per line, all other commands a single document; `failed` and
`locks` print the error of a record that cannot be read after those before it.
"""

from __future__ import annotations

import os
from typing import Final

import click

from percola.cli.session import CommandLine, Session, common

_COMMANDS: Final = {
    "backup": ("maintenance:backup", "Write a backup to FILE, or to stdout (-)."),
    "check": ("maintenance:check", "Check the repository for integrity errors."),
    "copy": ("maintenance:copy", "Copy the repository to an empty TARGET."),
    "delete": ("cells:delete", "Delete a cell; its older versions stay readable."),
    "dev-cluster": (
        "dev_cluster:dev_cluster",
        "Start a real HBase on this machine, for development.",
    ),
    "empty": ("cells:empty", "Delete what is in a table, or in some of its columns."),
    "failed": ("repositories:failed", "List or retry dead-lettered changes."),
    "gc": ("maintenance:gc", "Remove versions that can no longer be read."),
    "get": ("cells:get", "Print a cell, or a whole row."),
    "hbase-jars": ("dev_cluster:hbase_jars", "Fetch HBase's jars with Maven if they are missing."),
    "history": ("cells:history", "Show the versions of a cell."),
    "holds": ("repositories:holds", "List or release retention holds."),
    "init": ("repositories:init", "Create a repository, or add tables to one."),
    "locks": ("repositories:locks", "List the locks, by transaction."),
    "notifications": ("repositories:notifications", "Count the pending work: dirty cells."),
    "observers": ("rerun:observers", "List, pause or resume observers, or record their runs."),
    "oracle": ("oracle:oracle", "Hand out timestamps until SIGTERM or Ctrl-C."),
    "pack-env": ("pack_env:pack_env", "Pack Percola and its packages for Spark's executors."),
    "relay": ("oracle:relay", "Draw timestamps for this machine until SIGTERM or Ctrl-C."),
    "rerun": ("rerun:rerun", "Run an observer over rows that are there."),
    "restore": ("maintenance:restore", "Create a repository from a backup."),
    "scan": ("cells:scan", "Print rows in order."),
    "serve": ("serve:serve", "Show on a page what is going on."),
    "set": ("cells:set_", "Write a cell."),
    "status": ("repositories:status", "Show a summary of the repository."),
    "why": ("cells:why", "Show what caused the value of a cell."),
    "worker": ("worker:worker", "Run observers until SIGTERM or Ctrl-C."),
}
"""Where each command is, and the line about it in the overview, which loads none of them."""


def _show_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the version and the engine of the store on LMDB, in one line."""
    if not asked or context.resilient_parsing:
        return
    from importlib.metadata import version  # Neither is loaded for other commands.

    from percola.store.lmdb.driver import engine

    click.echo(f"percola {version('percola')} ({engine()})")
    context.exit()


@click.group(
    cls=CommandLine,
    later=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A cell is ROW COLUMN; where several tables have the column, write TABLE.COLUMN. "
    "Put -- before a row that begins with a dash.",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@common
@click.pass_obj
def cli(session: Session) -> None:
    """Inspect a Percola repository, write single cells, and run workers."""
    if session.address is None:
        session.address = os.environ.get("PERCOLA_REPO")

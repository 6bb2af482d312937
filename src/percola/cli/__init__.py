"""The command line: `percola --repo PATH COMMAND`. Inspects and edits cells, and runs workers.

Every command can run beside live workers and programs. A user's mistake is reported in one sentence
on stderr (`Error: …`) with exit code 1, or 2 if the command line itself is invalid; with `--json`,
stdout then holds `{"error": {"kind": …, "message": …}}`, so that it is always JSON. `scan` and
`worker` print one JSON document per line, all other commands a single document.
"""

from __future__ import annotations

import os
from typing import NoReturn

import click

from percola.cli import cells, dev_cluster, oracle, repositories, rerun, worker
from percola.cli import gc as collecting
from percola.cli import maintenance as care
from percola.cli.session import CommandLine, Session, common


@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A cell is ROW COLUMN; where several tables have the column, write TABLE.COLUMN. "
    "Put -- before a row that begins with a dash.",
)
@click.version_option(
    None, "-V", "--version", package_name="percola", message="percola %(version)s"
)
@common
@click.pass_obj
def cli(session: Session) -> None:
    """Inspect a Percola repository, write single cells, and run workers."""
    session.address = session.address or os.environ.get("PERCOLA_REPO")


for _command in (
    repositories.init,
    repositories.status,
    cells.get,
    cells.set_,
    cells.delete,
    cells.scan,
    cells.history,
    repositories.locks,
    repositories.notifications,
    repositories.failed,
    worker.worker,
    rerun.rerun,
    oracle.oracle,
    collecting.gc,
    care.check,
    care.backup,
    care.restore,
    dev_cluster.dev_cluster,
    dev_cluster.hbase_jars,
):
    cli.add_command(_command)


def main() -> NoReturn:
    """The entry point `percola`."""
    cli.main(prog_name="percola")
    raise AssertionError("CommandLine.main ends the process")

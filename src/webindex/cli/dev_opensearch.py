"""`webindex dev-opensearch`: starts and stops an OpenSearch on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from webindex.cli.options import json_option
from webindex.devserver import OpenSearchServer, ServerError
from webindex.devserver.server import HEAP_MB

folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".cache/opensearch"),
    show_default=True,
    help="Where everything of the server stands: settings, data, logs.",
)


@click.group("dev-opensearch")
def dev_opensearch() -> None:
    """Start a real OpenSearch on this machine, for development.

    One process, which listens on 127.0.0.1 only, without TLS and logins. It needs Java 17 and about
    1 GB of memory. It is fetched with Maven the first time.
    """


@dev_opensearch.command()
@folder_option
@json_option
@click.option("--port", type=click.IntRange(1024, 65_534), help="Where it listens; and the next.")
@click.option("--heap", type=click.IntRange(256), default=HEAP_MB, show_default=True, metavar="MB")
def up(folder: Path, as_json: bool, port: int | None, heap: int) -> None:
    """Start it unless it runs; it runs until `down`."""
    server = OpenSearchServer(folder, port=port, heap_mb=heap)
    server.start(lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps({"address": server.address, "pid": server.pid()}))
    else:
        click.echo(
            f"up: {server.address}\n"
            f"an index:  webindex reindex --repo REPO --index {server.address}/pages\n"
            f"to end it: webindex dev-opensearch down --folder {server.folder}"
        )


@dev_opensearch.command()
@folder_option
def down(folder: Path) -> None:
    """Stop it; the data stay in the folder."""
    _existing(folder).stop()
    click.echo(f"down; its indexes stay in {folder.absolute()}.")


@dev_opensearch.command()
@folder_option
def status(folder: Path) -> None:
    """Say whether it runs; exit code 1 if not."""
    server = _existing(folder)
    pid = server.pid()
    click.echo(f"{server.address}  " + (f"pid {pid}" if pid else "does not run"))
    if pid is None:
        raise SystemExit(1)


def _existing(folder: Path) -> OpenSearchServer:
    if not (folder / "port").exists():
        raise ServerError(f"There is no OpenSearch in {folder.absolute()}.")
    return OpenSearchServer(folder)

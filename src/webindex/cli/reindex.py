"""§3: `webindex reindex` exports every document to the search index again.

A search index that was lost, damaged or made by another version can be recovered: the repository
has all its content. Each document is entered in the outbox as if it had changed, some hundreds a
transaction, and the exporter exports them as usual, together with concurrent changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Final

import click

from percola import Repository
from webindex import tables
from webindex.cli.options import console, json_option, progress_line, repo_option
from webindex.incomplete import refuse_half_built
from webindex.observers import outbox
from webindex.serving.base import ServingIndex
from webindex.text_format import count
from webindex.workers.processes import open_index, open_repository, search_folder

__all__ = ["nothing_exported", "reindex", "reindex_command"]

_AT_ONCE: Final = 500


def reindex(repo: Repository, note: Callable[[int], None] = lambda entered: None) -> int:
    """Enter every document that the index has now in the outbox; return how many there are.

    Safe at any time, beside loaders and workers. If it is interrupted, the documents that it has
    entered are exported; run it again for the others. `note` is called with the number entered so
    far.

    Raises:
        RebuildError: the index is only half built.
    """
    refuse_half_built(repo)
    entered = 0
    with repo.snapshot() as now:
        shown = (row.key for row in now.scan(tables.clusters, columns=[tables.document]))
        while some := list(islice(shown, _AT_ONCE)):
            with repo.transaction() as t:
                for cluster in some:
                    outbox.enter(t, cluster)
            entered += len(some)
            note(entered)
    return entered


def nothing_exported(repo: Repository, index: ServingIndex) -> str | None:
    """A message if the search index is empty but the repository has documents; else None.

    Without it, a search of a lost index would report no hits.
    """
    if index.count():
        return None
    with repo.snapshot() as now:
        if next(iter(now.scan(tables.clusters, columns=[tables.document])), None) is None:
            return None
    return (
        f"The search index in {search_folder(repo.address)} is empty, and the repository has "
        "documents. Workers export what has changed: 'webindex work'. If the index was lost, "
        "'webindex reindex' enters everything anew for them."
    )


@click.command("reindex")
@repo_option
@json_option
def reindex_command(repo: str, as_json: bool) -> None:
    """Export every document again, for a search index that was lost or is refused.

    Remove what is left of its folder first. The workers then write the index from the repository:
    those that run, or 'webindex work'.
    """
    # Opened first, so that an unusable folder is refused before anything is done.
    with (
        open_repository(repo) as opened,
        open_index(opened, create=True),
        progress_line("Entering documents …", shown=not as_json) as line,
    ):

        def note(entered: int) -> None:
            line(f"{count(entered, 'document')} entered")

        entered = reindex(opened, note)
    if as_json:
        click.echo(json.dumps({"documents": entered}))
    else:
        console.print(f"{count(entered, 'document')} to export: the workers write them to search.")

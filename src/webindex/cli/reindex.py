"""§3: `webindex reindex` exports every document to the search index again, or to another one.

A search index that was lost, damaged or made by another version can be recovered: the repository
has all its content. Each document is entered in the outbox as if it had changed, some hundreds a
transaction, and the exporter exports them as usual, together with concurrent changes.

With `--index`, the index is moved, from a folder to OpenSearch for instance, while workers and
searchers run:

    fill      every document is written to the new index, while changes are exported to the old one
    switch    the new place is recorded in the repository: from then on, workers export to it and
              searchers read it
    catch up  what the new index lacks of the repository at a moment after the switch, or has too
              much, is entered in the outbox

With `--empty`, writers are kept out of the folder of the index until every document is entered, and
the index is emptied then: whatever is written to it before is in the outbox as well.

An export that began before the switch may still write to the old index, but only what was committed
before the switch, and so is caught up with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

import click

from percola import Repository, Snapshot, Transaction
from percola.recipes import Refused
from webindex import tables
from webindex.cli.options import console, json_option, progress_line, repo_option
from webindex.errors import WorkingError
from webindex.incomplete import refuse_half_built
from webindex.observers.export import serving_document
from webindex.serving.base import RefusedDocumentsError, ServingIndex
from webindex.serving.located import move_to, open_place, search_place
from webindex.serving.opensearch.address import PASSWORD, USER, Address
from webindex.serving.tantivy.index import emptied
from webindex.text_format import count
from webindex.workers.processes import open_index, open_repository

__all__ = ["move", "reindex", "reindex_command"]

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
    with repo.snapshot() as now:
        refused = list(tables.exports.refusals(now))
        shown = (row.key for row in now.scan(tables.clusters, columns=[tables.document]))
        for one in refused:
            repo.run(partial(_retry, one))
        return _enter(repo, shown, note)


def check_owned(repo: Repository, index: ServingIndex, place: str) -> list[str]:
    """The clusters that the index has documents of and the repository has not.

    Needs memory for the name of every cluster.

    Raises:
        WorkingError: the index has later documents than the repository.
    """
    has = dict(index.clusters())
    with repo.snapshot() as now:
        later = sum(epoch > now.start_ts for epoch in has.values())
        if later:
            raise WorkingError(
                f"The search index in {place} has {count(later, 'document')} that "
                f"{'is' if later == 1 else 'are'} later than all that the repository has: it "
                "belongs to another repository, or to this one as it was after the backup from "
                "which it was restored. Of an index in a folder, 'webindex reindex' with --empty "
                "replaces the documents; with --index it makes the index in another place."
            )
        for row in now.scan(tables.clusters, columns=[tables.document]):
            has.pop(row.key, None)
    return list(has)


def _retry(one: Refused, t: Transaction) -> None:
    tables.exports.retry(t, one)


def _enter(repo: Repository, clusters: Iterator[str], note: Callable[[int], None]) -> int:
    entered = 0
    while some := list(islice(clusters, _AT_ONCE)):
        with repo.transaction() as t:
            for cluster in some:
                tables.exports.enter(t, cluster, [], bulk=True)
        entered += len(some)
        note(entered)
    return entered


def move(repo: Repository, place: str, note: Callable[[int], None] = lambda written: None) -> int:
    """Move the search index to a folder or a URL; return how many documents were written there.

    Safe at any time, beside loaders, workers and searchers; if it is interrupted, run it again. The
    old index stays as it is. Needs memory for the name of every cluster. `note` is called with the
    number of documents written so far.

    Raises:
        WorkingError: `place` is empty; the URL has a password, which would be recorded; or the
            index there has later documents than the repository, or documents of another one only.
        RebuildError: the index is only half built.
        ServingError: the new place holds no index, or cannot be reached.
    """
    refuse_half_built(repo)
    if not place:  # Not the current folder.
        raise WorkingError(
            "The place of the search index is empty, as it is if a shell's variable is not set: "
            "name a folder or a URL."
        )
    if "://" not in place:
        place = os.path.abspath(place)
    else:
        Address.parse(place)  # It says what is wrong with a URL.
        if urlsplit(place).password is not None:
            raise WorkingError(
                "The place of the search index is recorded in the repository, and a password "
                f"should not be: leave it out of the URL, and set {USER} and {PASSWORD} for all "
                "processes."
            )
    with open_place(place) as index:
        others = check_owned(repo, index, place)
        if others and len(others) == index.count():
            raise WorkingError(
                f"The search index in {place} has {count(len(others), 'document')}, and none of "
                "this repository: it belongs to another one, whose documents would be taken out. "
                "Name another place, or delete that index if nobody needs it."
            )
        with repo.snapshot() as now:
            written = _fill(now, index, note)
            refused = list(tables.exports.refusals(now))
        repo.run(lambda t: move_to(t, place))
        # By the old index.
        for one in refused:
            repo.run(partial(_retry, one))
        with repo.snapshot() as now:
            has = dict(index.clusters())
            stored = now.scan(tables.clusters, columns=[tables.document])
            lacking = [
                row.key for row in stored if has.pop(row.key, None) != row[tables.document]["epoch"]
            ]
        _enter(repo, iter([*lacking, *has]), lambda entered: None)
    return written


def _fill(now: Snapshot, index: ServingIndex, note: Callable[[int], None]) -> int:
    written = 0
    stored = now.scan(tables.clusters, columns=[tables.document])
    documents = (serving_document(row.key, row[tables.document]) for row in stored)
    while some := list(islice(documents, _AT_ONCE)):
        # What it refuses, it will refuse of the exporter as well, which makes it a dead letter.
        with suppress(RefusedDocumentsError):
            index.apply(some)
        written += len(some)
        note(written)
    return written


@click.command("reindex")
@repo_option
@json_option
@click.option(
    "--index",
    "place",
    metavar="FOLDER_OR_URL",
    help="Move the index to another folder, or to an index on OpenSearch: https://HOST:PORT/NAME.",
)
@click.option(
    "--empty",
    is_flag=True,
    help="Empty the folder of the index first, if that is damaged or refused.",
)
def reindex_command(repo: str, as_json: bool, place: str | None, empty: bool) -> None:
    """Export every document again, for a search index that was lost or is refused.

    The workers then write the index from the repository: those that run, or 'webindex work'. With
    --empty, search finds nothing until they have.

    With --index, move the index while everything runs: 'work', 'search' and 'serve' use the new one
    from then on. The old one stays as it is.
    """
    if place is not None and empty:
        raise click.UsageError("--empty is for the index where it is: leave it or --index out.")
    with open_repository(repo) as opened:
        with progress_line("Entering documents …", shown=not as_json) as line:

            def entered(one: int) -> None:
                line(f"{count(one, 'document')} entered")

            if empty:
                where = search_place(opened)
                if "://" in where:
                    raise WorkingError(
                        f"--empty is for a folder, and the search index is {where}: delete the "
                        "index there, then run 'webindex reindex' without it."
                    )
                with emptied(where):
                    done = reindex(opened, entered)
            elif place is not None:
                done = move(opened, place, lambda one: line(f"{count(one, 'document')} written"))
            else:
                # Opened first, so that an unusable folder is refused before anything is done.
                with open_index(opened, create=True) as index:
                    surplus = check_owned(opened, index, index.place)
                    done = reindex(opened, entered)
                    _enter(opened, iter(surplus), lambda one: None)
        where = search_place(opened)
    if as_json:
        click.echo(json.dumps({"documents": done, **({"index": where} if place else {})}))
    elif place:
        console.print(
            f"{count(done, 'document')} written to {where}, where the search index is from now on. "
            "What has changed meanwhile is exported by the workers."
        )
    else:
        console.print(f"{count(done, 'document')} to export: the workers write them to search.")

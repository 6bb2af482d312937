"""The command line `webindex`: load, work, search, explain, serve, rank, verify, rebuild, …"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any, Final

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from percola import Observer, PercolaError, Repository
from webindex import tables
from webindex.cli.crawl_docs import crawl_docs
from webindex.cli.dev_opensearch import dev_opensearch
from webindex.cli.explain import LISTED, print_story, story_json
from webindex.cli.frontier import frontier_command
from webindex.cli.options import (
    console,
    grid,
    json_option,
    master_option,
    never_fail_to_encode,
    page_bytes_option,
    print_json,
    progress_line,
    repo_option,
    resources_options,
)
from webindex.cli.rank import rank_command
from webindex.cli.reindex import reindex_command
from webindex.cli.remove import blocks_command, remove_command, unblock_command
from webindex.cli.render import render_command
from webindex.cli.rerun import rerun_command
from webindex.cli.verify import rebuild_command, verify_command
from webindex.crawl.warc import NotAWarcError
from webindex.errors import WebindexError
from webindex.incomplete import refuse_half_built
from webindex.load.resources import keeps_resources
from webindex.page.urls import BadUrlError, host_named
from webindex.reports import tell, without_snippets
from webindex.reports.summary import summarise
from webindex.serving.base import Runner, SearchResults, ServingError
from webindex.serving.located import nothing_exported
from webindex.serving.query import BadQueryError, check_length, hint_for
from webindex.text_format import count, harmless
from webindex.workers.processes import (
    THREADS,
    Together,
    Watched,
    build_observers,
    idle_but_for_renders,
    is_at_rest,
    open_index,
    open_repository,
    render_here,
    running,
    supervise,
    work_here,
)

_STEPS: Final = {
    "pages.settle": "revisits to resolve",
    "pages.capture": "to parse",
    "pages.resolve": "to resolve",
    "aliases.changed": "to follow",
    "blocks.changed": "to compare with their hosts",
    "pages.join": "to cluster",
    "pages.links": "to invert",
    "inlinks.changed": "to count",
    "inlinks.added": "to add to counts",
    "sitemaps.capture": "sitemaps to read",
    "sitemaps.more": "sitemaps to read on",
    "listed.changed": "to list",
    "clusters.changed": "to assemble",
    "pages.share": "to share with their clusters",
    "summaries.due": "to sum up",
    "removals.erase": "to erase",
    "outbox.ready": "to export",
    "renders.due": "to render",
}

# As percola.platform.files.is_full, which is not public.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

DEAD_LETTERED: Final = 3
"""The exit status of `work --until-idle` if changes are dead-lettered, or documents refused."""
PAUSED: Final = 4
"""Its exit status if none is, and changes wait for observers that are paused."""
STOPPED: Final = 5
"""Its exit status if it was told to end while work was left."""

errors = Console(stderr=True, highlight=False, soft_wrap=True)


class _Search(click.Command):
    """A command whose excluded words begin with a dash, as options do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args:
            valued = {
                name
                for one in self.params
                if isinstance(one, click.Option) and not one.is_flag
                for name in one.opts
            }
            dashed = {
                at
                for at, (before, one) in enumerate(pairwise(["", *args]))
                # What follows an option with a value is that.
                if re.match("-[^-]", one) and one != "-h" and before not in valued
            }
            words = [one for at, one in enumerate(args) if at in dashed]
            args = [*(one for at, one in enumerate(args) if at not in dashed), "--", *words]
        return super().parse_args(ctx, args)


class _Group(click.Group):
    """Commands that report an error as one sentence on standard error."""

    def main(self, *args: Any, **extra: Any) -> Any:
        never_fail_to_encode()
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (
            PercolaError,
            ServingError,
            WebindexError,
            NotAWarcError,
            BadQueryError,
            BadUrlError,
        ) as error:
            errors.print(Text.assemble(("Error: ", "bold red"), str(error)))
            ctx.exit(1)
        except OSError as error:
            # Other files have names, and mostly errors of their own.
            if error.errno not in (errno.EPIPE, *_FULL) or error.filename is not None:
                raise
            # The reader of our output closed the pipe, or its disk is full: exit without Python's
            # own message.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno == errno.EPIPE:
                ctx.exit(0)
            told = f"The output cannot be written: {error.strerror}."
            errors.print(Text.assemble(("Error: ", "bold red"), told))
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="percola", prog_name="webindex")
def cli() -> None:
    """A web index that is kept up to date page by page."""


# --- load ---------------------------------------------------------------------------------


@cli.command()
@repo_option
@json_option
@master_option
@page_bytes_option
@resources_options
@click.argument("files", nargs=-1, required=True, type=click.Path())
def load(
    repo: str,
    as_json: bool,
    master: str | None,
    max_page_bytes: int,
    resources: bool | None,
    max_resource_bytes: int,
    files: tuple[str, ...],
) -> None:
    """Load the captures of WARC files, with a Spark job.

    Creates the repository if it does not exist. Captures that are loaded already are skipped.
    """
    from webindex.load import job as pipeline

    report = pipeline.load(
        repo,
        list(files),
        quiet=as_json,
        master=master,
        max_page_bytes=max_page_bytes,
        resources=resources,
        max_resource_bytes=max_resource_bytes,
    )
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    console.print(grid(report.rows()))
    for message in report.messages:
        # It quotes the record: some characters would control the terminal.
        console.print(Text(f"  {harmless(message)}", style="dim"))
    if report.not_described:
        rest = count(report.not_described, "rejected record")
        console.print(f"  {rest} more, not described here.", style="dim")


# --- work ---------------------------------------------------------------------------------


@cli.command()
@repo_option
@json_option
@master_option
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=None,
    help="Spark tasks that work; one a core of this machine by default.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=None,
    help="Work in so many plain processes, without Spark.",
)
@click.option(
    "--render",
    "renders",
    is_flag=True,
    help="Render pages as well, by a process of its own with a headless Chromium.",
)
@click.option(
    "--render-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    metavar="PAGES",
    help="With --render: render at most so many pages a second.",
)
@click.option(
    "--until-idle",
    is_flag=True,
    help="Stop when no work is left; with exit status 3 if changes are dead-lettered, or documents "
    "refused by the search index, else with 4 if some wait for paused observers. With 5 if it is "
    "told to end before.",
)
def work(
    repo: str,
    as_json: bool,
    master: str | None,
    workers: int | None,
    processes: int | None,
    renders: bool,
    render_rate: float | None,
    until_idle: bool,
) -> None:
    """Run the observers: parse, invert links, cluster, and export what has changed.

    Works until it is stopped (Ctrl-C), or until nothing is left to do. Spark tasks do the work;
    on a cluster, each takes a slot for as long as it runs. An observer that raises is tried again
    a few times, and each attempt is logged, with its traceback unless many fail alike; then the
    change is dead-lettered.
    """
    if processes and (workers or master):
        raise click.UsageError(
            "--processes works without Spark: leave --workers and --master out, or leave it out."
        )
    if render_rate and not renders:
        raise click.UsageError("--render-rate limits --render: add that, or leave it out.")
    stopping = threading.Event()
    with _stopped_by_signals(stopping), open_repository(repo) as opened:
        refuse_half_built(opened)
        open_index(opened, create=True).close()
        before = opened.snapshot().start_ts
        with ExitStack() as stack, _pending_shown(quiet=as_json) as show:
            idle = False
            run: Callable[[Watched], bool] = partial(
                supervise,
                opened,
                until_idle=until_idle,
                show=show,
                stopping=stopping,
                # Pages that are due wait for a worker that renders.
                is_idle=stack.enter_context(idle_but_for_renders(opened, renders=renders)),
            )
            if renders:
                command = ["run-renderer", *(["--rate", str(render_rate)] if render_rate else [])]
                renderer = stack.enter_context(running(opened.address, 1, command=command))
                renderer.wait_ready()
                run = partial(_beside, renderer, run)
            if processes:
                with running(opened.address, processes) as started:
                    started.wait_ready()
                    idle = run(started)
            elif until_idle and is_at_rest(opened):
                idle = True
            else:
                from webindex.workers.spark import running_on_spark

                number = workers or min(8, os.cpu_count() or 1)
                # Ctrl-C while Spark starts or stops raises this; otherwise the handler catches it.
                with (
                    suppress(KeyboardInterrupt),
                    running_on_spark(opened, number, master=master) as fleet,
                ):
                    idle = run(fleet)
        summary = summarise(opened, since=before)
        failed, paused = opened.dead_lettered(), _waited_for(opened)
        with opened.snapshot() as now:
            refused = list(tables.exports.refusals(now))
        if as_json:
            counts = {"dead_lettered": failed, "refused": len(refused)}
            click.echo(json.dumps({**summary.to_json(), **counts}))
        else:
            console.print(grid(summary.rows()))
            if failed:
                console.print(
                    f"{count(failed, 'change')} {'is' if failed == 1 else 'are'} dead-lettered "
                    "after repeated failures: "
                    f"see 'percola --repo {repo} failed'.",
                    style="yellow",
                )
            if refused:
                told = f"The search index refuses {count(len(refused), 'document')}, for example: "
                again = "'webindex reindex' tries again."
                console.print(Text(f"{told}{harmless(refused[0].why)} {again}", style="yellow"))
            if paused:
                console.print(
                    f"Changes wait for {', '.join(paused)}, paused: see 'percola --repo {repo} "
                    "observers'.",
                    style="yellow",
                )
    if until_idle and (failed or refused or paused or not idle):
        status = STOPPED if not idle else DEAD_LETTERED if failed or refused else PAUSED
        click.get_current_context().exit(status)


def _waited_for(repo: Repository) -> list[str]:
    """The paused observers for which changes wait."""
    if not (paused := repo.paused_observers()):
        return []
    pending = repo.pending()
    return [one.name for one in paused if any(pending.get(column) for column in one.columns)]


def _beside(renderer: Watched, run: Callable[[Watched], bool], workers: Watched) -> bool:
    return run(Together(workers, renderer))


def observers(repo: Repository) -> list[Observer[Any]]:
    """Every observer, for `percola worker webindex.main:observers`."""
    refuse_half_built(repo)
    return build_observers(open_index(repo, create=True), resources=keeps_resources(repo))


@cli.command("run-worker", hidden=True)
@repo_option
@click.option("--threads", type=click.IntRange(1, 64), default=THREADS)
def run_worker(repo: str, threads: int) -> None:
    """Run one worker process, as started by `work`."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    work_here(repo, threads=threads)
    # Everything is closed. A thread that still waits while Python exits would keep native modules
    # alive, which report that on standard error: under load, a Ctrl-C printed a page of such lines.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@cli.command("run-renderer", hidden=True)
@repo_option
@click.option("--threads", type=click.IntRange(1, 1), default=1)
@click.option("--rate", type=float, default=math.inf)
def run_renderer(repo: str, threads: int, rate: float) -> None:
    """Run one rendering process, as started by `work`."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    render_here(repo, rate)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def _stopped_by_signals(stopping: threading.Event) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _pending_shown(*, quiet: bool) -> Iterator[Callable[[dict[str, int]], None]]:
    """Show the pending changes: on a terminal as a line that is updated, elsewhere not at all."""
    if quiet or not console.is_terminal:
        if not quiet:
            console.print("Working …")
        yield lambda pending: None
        return
    with progress_line("Starting workers …") as line:

        def show(pending: dict[str, int]) -> None:
            steps = [f"{pending[key]:,} {step}" for key, step in _STEPS.items() if key in pending]
            line(" · ".join(steps) or "Waiting for changes")

        yield show


# --- search -------------------------------------------------------------------------------


def _language_of(context: click.Context, option: click.Parameter, tag: str | None) -> str | None:
    """The code of a language: `pt` of `pt-BR`."""
    if tag is None:
        return None
    code = tag.lower().partition("-")[0]
    if not re.fullmatch("[a-z]{2,3}", code):
        raise click.BadParameter(f"{tag!r} is no code of a language, such as en or pt.")
    return code


@cli.command(cls=_Search)
@repo_option
@json_option
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option("--host", default=None, help="Only pages of this host.")
@click.option(
    "--language",
    default=None,
    metavar="CODE",
    callback=_language_of,
    help="Only pages in this language, as en.",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    default=None,
    metavar="DATE",
    help="Only pages that changed on this day or later, as in 2024-05-31.",
)
@click.option("--newest", is_flag=True, help="Those that changed last first, not the best.")
@click.argument("words", nargs=-1, required=True)
def search(
    repo: str,
    as_json: bool,
    limit: int,
    host: str | None,
    language: str | None,
    since: datetime | None,
    newest: bool,
    words: tuple[str, ...],
) -> None:
    """Search the index: all words, "phrases", -without.

    At most 500 characters, and 32 words and phrases.
    """
    query = " ".join(words)
    check_length(query)
    if host is not None:
        host = host_named(host)
    with open_repository(repo) as opened, open_index(opened, create=True) as index:
        results = index.search(
            query,
            limit=limit,
            host=host,
            language=language,
            since=since.date() if since is not None else None,
            newest=newest,
            partly=True,
        )
        with opened.snapshot() as now:
            results = replace(results, hits=without_snippets(now, results.hits))
        lost = None if results.total else nothing_exported(opened, index)
    if lost:
        click.echo(lost, err=True)
    if as_json:
        print_json(_results_json(query, results))
    else:
        print_results(query, results, filtered=bool(host or language or since), newest=newest)


def print_results(
    query: str, results: SearchResults, *, filtered: bool = False, newest: bool = False
) -> None:
    """Print results for a terminal.

    `filtered` says that they are those of a host, say, and `newest` that they are by date.
    """
    if not results.hits:
        limits = " with these options" if filtered else ""
        hint = hint_for(query, results.words)
        console.print(hint or f"Nothing found for {query!r}{limits}.", markup=False)
        return
    shown = f"{count(results.total, 'page')} found"
    if results.matched < results.words:
        shown += f" with {results.matched} of {results.words} words; no page has all of them"
    if len(results.hits) < results.total:
        shown += f", the {'newest' if newest else 'best'} {len(results.hits)}:"
    console.print(shown, style="dim")
    for number, hit in enumerate(results.hits, 1):
        notes = [count(hit.inlinks, "link leads here", "links lead here")]
        if hit.language:
            notes.append(hit.language)
        if hit.duplicates:
            notes.append(count(len(hit.duplicates), "duplicate"))
        if hit.aliases:
            notes.append(count(len(hit.aliases), "redirect"))
        if hit.more:
            notes.append(f"{hit.more:,} more")
        console.print()
        # Crawled text: some characters would control the terminal.
        console.print(Text.assemble(f"{number:>3}  ", (harmless(hit.title or hit.url), "bold")))
        console.print(
            Text.assemble("     ", (harmless(hit.url), "green"), ("  " + " · ".join(notes), "dim"))
        )
        if hit.snippet:
            console.print(Padding(marked(hit.snippet), (0, 0, 0, 5)), soft_wrap=False)
        for other in hit.duplicates[:3]:
            console.print(Text(f"     = {harmless(other)}", style="dim"))


def marked(runs: Runner) -> Text:
    """A snippet with its matches highlighted."""
    return Text.assemble(
        *((harmless(words), "bold yellow" if match else "") for words, match in runs)
    )


def _results_json(query: str, results: SearchResults) -> dict[str, Any]:
    return {
        "query": query,
        "total": results.total,
        "words": results.words,
        "matched": results.matched,
        "hits": [asdict(hit) for hit in results.hits],
    }


# --- explain ------------------------------------------------------------------------------


@cli.command("explain")
@repo_option
@json_option
@click.option(
    "--links",
    "most",
    type=click.IntRange(0, 1_000_000),
    default=LISTED,
    show_default=True,
    help="How many links of each direction to list.",
)
@click.argument("url")
def explain_command(repo: str, as_json: bool, most: int, url: str) -> None:
    """Show a page's report: whether search shows it, and why.

    Where it points, what is one document with it and which page is canonical, its rank, its
    captures, the links to it and from it.
    """
    with open_repository(repo) as opened, open_index(opened, create=True) as index:
        story = tell(opened, index, url)
    if as_json:
        print_json(story_json(story, most))
    else:
        print_story(console, story, most)
    if not story.known:
        sys.exit(1)


# --- summary ------------------------------------------------------------------------------


@cli.command("summary")
@repo_option
@json_option
def summary_command(repo: str, as_json: bool) -> None:
    """Count what the index holds: pages, documents, duplicates, links, what was left out."""
    with open_repository(repo) as opened:
        found = summarise(opened)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        console.print(grid(found.rows()))


# --- serve --------------------------------------------------------------------------------


@cli.command("serve")
@repo_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option(
    "--name", "names", multiple=True, help="One more name by which browsers may call the server."
)
def serve_command(repo: str, host: str, port: int, names: tuple[str, ...]) -> None:
    """Serve a web site: search, the report of a page, a live view of the pipeline.

    Only this machine can reach it, unless --host says otherwise. Port 0 takes any free one.
    """
    from webindex.cli.site import serve

    serve(repo, host, port, names=names, say=lambda words: click.echo(words))


cli.command("crawl-docs")(crawl_docs)
cli.add_command(frontier_command)
cli.add_command(rank_command)
cli.add_command(render_command)
cli.add_command(verify_command)
cli.add_command(rebuild_command)
cli.add_command(reindex_command)
cli.add_command(rerun_command)
cli.add_command(remove_command)
cli.add_command(blocks_command)
cli.add_command(unblock_command)
cli.add_command(dev_opensearch)


if __name__ == "__main__":
    cli()

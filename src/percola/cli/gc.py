"""`gc`: removes versions that no reader can reach any more (rule P12)."""

from __future__ import annotations

import dataclasses

import click

from percola.cli import arguments, display
from percola.cli.session import Session, common
from percola.cli.spark import runner_of, spark_options
from percola.gc.collector import Collected


@click.command()
@click.option(
    "--retention",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Keep what was superseded for so long (30s, 15m, 24h, 7d, 0).",
)
@spark_options
@common
@click.pass_obj
def gc(session: Session, retention: str, master: str | None) -> None:
    """Remove versions that can no longer be read.

    Versions that a live process still reads are kept. Workers collect garbage automatically; this
    command does it now.
    """
    seconds = arguments.parse_duration(retention)
    with session.open() as repo:
        first = "Collecting garbage"
        with (
            display.progress_line(first) as line,
            runner_of(repo, master, "gc", line) as runner,
        ):
            collected = repo.collect_garbage(
                retention=seconds,
                progress=lambda so_far: line(
                    f"{first}: {display.count(so_far.cells, 'cell')}, "
                    f"{sum(so_far.removed.values()):,} entries removed"
                ),
                runner=runner,
            )
    session.show(dataclasses.asdict(collected), _sentence(collected))


def _sentence(collected: Collected) -> str:
    lines = []
    if collected.cells or not collected.complete:
        counted = [
            (collected.versions, "superseded version"),
            (collected.deleted, "deleted cell"),
            (collected.records, "rollback or lock record"),
            (collected.acknowledgments, "acknowledgment"),
            (collected.changes, "listed change"),
        ]
        removed = [display.count(number, noun) for number, noun in counted if number]
        listed = ", ".join(removed) or "nothing"
        lines.append(f"Looked at {display.count(collected.cells, 'cell')}; removed {listed}.")
    elif collected.safe_point:
        lines.append("Nothing to do: there has been no later safe point since the last time.")
    else:
        lines.append(
            "Nothing to remove yet: times are recorded from now on, and a version is removed once "
            "it has been superseded for the whole retention."
        )
    if collected.locks:
        lines.append(f"Resolved {display.count(collected.locks, 'lock')} of ended transactions.")
    if collected.safe_point:
        lines.append(f"The repository can be read from timestamp {collected.safe_point} on.")
    if collected.held_back:
        lines.append(f"Not later, because {collected.held_back}.")
    return "\n".join(lines)

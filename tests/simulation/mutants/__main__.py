"""`python -m tests.simulation.mutants`: hunt the mutants, or tell the story of one."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from multiprocessing import get_context

import click
from rich.console import Console
from rich.table import Table

from percola.testing.simulation import tell
from tests.simulation.mutants import MUTANTS, RULES
from tests.simulation.mutants.hunting import MOST_SEEDS, Hunt, hunt_by_name, shrunk


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(MUTANTS)))
@click.option("--seeds", type=click.IntRange(min=1), default=MOST_SEEDS, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--story", type=click.Choice(list(MUTANTS)), help="Tell the story of one.")
def main(names: tuple[str, ...], seeds: int, jobs: int, story: str | None) -> None:
    """Break the protocol's rules one at a time; fail if the simulation does not find it out."""
    if story is not None:
        sys.exit(_tell(story, seeds))
    wanted = list(names) or list(MUTANTS)
    began = time.monotonic()
    found: list[Hunt] = []
    with get_context("spawn").Pool(jobs) as pool:
        for one in pool.imap(partial(hunt_by_name, most=seeds), wanted):
            found.append(one)
            print(f"{one.mutant}: {one.problem or f'found with {one.seeds:,} seeds'}", flush=True)
    print()
    _show(found)
    problems = [one.problem for one in found if one.problem is not None]
    if not names:
        covered = {rule for one in MUTANTS.values() for rule in one.rules}
        problems += [f"No mutant breaks rule {rule}." for rule in RULES if rule not in covered]
    tried = sum(one.seeds for one in found)
    took = time.monotonic() - began
    print(
        f"{len(found) - sum(one.problem is not None for one in found)} of {len(found)} mutants "
        f"found, with {tried:,} seeds in {took:.0f} s"
    )
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


def _show(found: list[Hunt]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("mutant", "rules", "workload", "mode", "seeds", "watched", "s"):
        number = heading in ("seeds", "watched", "s")
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    table.add_column("what did not hold", overflow="fold")
    for one in found:
        table.add_row(
            one.mutant,
            " ".join(MUTANTS[one.mutant].rules),
            one.workload or "-",
            one.mode or "-",
            f"{one.seeds:,}",
            f"{one.watched:,}" if one.watched else "-",
            f"{one.seconds:.1f}",
            one.first_sentence if one.problem is None else one.problem,
        )
    console = Console()
    Console(width=max(console.width, 160)).print(table)


def _tell(name: str, seeds: int) -> int:
    mutant = MUTANTS[name]
    print(f"{name} ({' '.join(mutant.rules)}): {mutant.does}\n")
    result = shrunk(mutant, seeds)
    if result is None:
        print(f"It survived {seeds:,} seeds.")
        return 1
    print(tell(result))
    return 0


if __name__ == "__main__":
    # Nothing of a run may depend on it, and what does is the same in every process.
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()

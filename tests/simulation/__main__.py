"""`python -m tests.simulation`: run many seeds, or tell the story of one."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.progress import Progress

from percola.errors import PercolaError
from percola.testing.simulation import Mode, Simulation, parse_faults, tell
from tests.simulation.running import Summary, explain, jobs_of, missing, run_in_processes
from tests.simulation.workloads import WORKLOADS

_EXPLAINED = 3


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--first", type=click.IntRange(min=0), default=0, help="The first seed.")
@click.option(
    "--workload",
    "names",
    multiple=True,
    type=click.Choice(list(WORKLOADS)),
    help="Only this one; may be given several times.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), help="Run this seed of one workload.")
@click.option("--story", is_flag=True, help="With --seed: tell all that happens.")
@click.option("--mode", type=click.Choice([mode.value for mode in Mode]), help="With --seed.")
@click.option("--sizes", default="", help="With --seed: NAME=NUMBER,… instead of the drawn ones.")
@click.option("--faults", help="With --seed: exactly these, as a story lists them.")
def main(
    seeds: int,
    first: int,
    names: tuple[str, ...],
    jobs: int,
    seed: int | None,
    story: bool,
    mode: str | None,
    sizes: str,
    faults: str | None,
) -> None:
    """Run Percola under simulated schedules and faults; fail if a claim does not hold."""
    if seed is not None:
        if len(names) != 1:
            raise click.UsageError("--seed needs one --workload.")
        sys.exit(_one(names[0], seed, story, mode, sizes, faults))
    if story or mode or sizes or faults is not None:
        raise click.UsageError("--story, --mode, --sizes and --faults go with --seed.")
    sys.exit(_many(list(names) or list(WORKLOADS), seeds, first, jobs))


def _one(
    name: str, seed: int, story: bool, mode: str | None, sizes: str, faults: str | None
) -> int:
    try:
        given = {}
        for one in filter(None, sizes.split(",")):
            key, _, number = one.partition("=")
            given[key] = int(number)
        listed = None if faults is None else parse_faults(faults)
    except (ValueError, PercolaError) as error:
        raise click.UsageError(f"--sizes or --faults cannot be read: {error}") from None
    result = Simulation(
        WORKLOADS[name], seed, sizes=given, faults=listed, mode=Mode(mode) if mode else None
    ).run()
    if story or result.violated is None:
        print(tell(result, most=100_000 if story else 0))
    else:
        print(explain(name, seed))
    return 1 if result.violated else 0


def _many(names: list[str], seeds: int, first: int, jobs: int) -> int:
    found: dict[str, Summary] = {}
    began = time.monotonic()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=seeds)
        for part in run_in_processes(jobs_of(names, seeds, first), jobs):
            for name, summary in part.items():
                found.setdefault(name, Summary()).add(summary)
                progress.advance(task, summary.seeds)
    whole = Summary()
    for name in names:
        if name in found:
            print(f"{name}: {found[name]}")
            whole.add(found[name])
    took = time.monotonic() - began
    print(f"in all: {whole}; {took:.0f} s with {jobs} jobs")
    print("faults: " + ", ".join(f"{kind} {n:,}" for kind, n in whole.faults.most_common()))
    for name, seed, claim in whole.failures[_EXPLAINED:]:
        print(f"\nFAILED: {name}, seed {seed}: {claim}")
    for name, seed, _ in whole.failures[:_EXPLAINED]:
        print(f"\nFAILED: {explain(name, seed)}")
    problems = missing(names, whole)
    for problem in problems:
        print(problem)
    return 1 if whole.failures or problems else 0


if __name__ == "__main__":
    main()

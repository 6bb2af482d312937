"""`make crash`: kill -9 at every boundary, random kills under load, power cuts; for minutes.

    python -m tests.crash [--seconds N] [--cuts N] [--seed N]

Prints what it does, and ends with a line that says what ran and how often each fault fired. Its
exit status is 1 if anything was lost or torn, or if a fault never fired.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.crash.boundaries import Scenario, check_all_fired, kill_everywhere
from tests.crash.export import EXPORTS
from tests.crash.load import Load, run_load
from tests.crash.power import DATA, Cut, check_all_kept, check_fired, check_relaxed, cut, record
from tests.crash.processes import Nursery, scratch_folder
from tests.crash.recording.disk import forget_a_sync
from tests.crash.recording.trace import NoCompilerError, build_recorder
from tests.crash.scenarios import SCENARIOS

DURABILITIES = ("full", "relaxed")

Show = Callable[[str], None]


class Run:
    """All parts, one after the other; what failed and what fired.

    Attributes:
        failures: what was lost or torn, and what never fired, in sentences.
        fired: how often each fault fired, in all parts.
    """

    def __init__(self, console: Console, seconds: float, cuts: int, seed: int) -> None:
        self.console = console
        self.failures: list[str] = []
        self.fired: Counter[str] = Counter()
        self._seconds, self._cuts = seconds, cuts
        self._rng = random.Random(seed)

    def part(self, name: str, do: Callable[[Nursery, Path, Show], str]) -> None:
        """Run one part with processes and a folder of its own; say how it went."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        began = time.monotonic()
        with Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        ) as progress:
            task = progress.add_task(name)

            def show(text: str) -> None:
                progress.update(task, description=f"{name}: {text}")

            try:
                with Nursery() as nursery, scratch_folder() as scratch:
                    said = do(nursery, scratch, show)
            except (AssertionError, NoCompilerError) as error:
                self.failures.append(f"{name}: {error}")
                self.console.print(f"[red]FAILED[/] {name}")
                self.console.print(str(error), markup=False, highlight=False)
                return
        self.console.print(
            f"[green]ok[/] {name}: {said} ({time.monotonic() - began:.0f} s)", highlight=False
        )

    def all(self) -> None:
        """Everything."""
        for durability in DURABILITIES:
            for scenario in [*SCENARIOS, *EXPORTS]:
                kill = functools.partial(self._kill, scenario, durability)
                self.part(f"{scenario.name}, {durability}", kill)
        for durability in DURABILITIES:
            self.part(f"kills under load, {durability}", functools.partial(self._load, durability))
        for durability in DURABILITIES:
            self.part(f"power cuts, {durability}", functools.partial(self._cut, durability))
        self.part("a forgotten sync is found", self._forget)

    def _kill(
        self, scenario: Scenario, durability: str, nursery: Nursery, scratch: Path, show: Show
    ) -> str:
        killed = []
        for boundary in kill_everywhere(nursery, scenario, scratch, durability=durability):
            killed.append(boundary)
            show(f"killed {len(killed)} times, {boundary}")
        counts = check_all_fired(scenario, killed)
        self.fired.update({f"kill {name}": number for name, number in counts.items()})
        return f"killed {len(killed)} times"

    def _load(self, durability: str, nursery: Nursery, scratch: Path, show: Show) -> str:
        seconds = self._seconds / len(DURABILITIES)
        load = run_load(
            nursery,
            scratch,
            durability,
            seconds,
            self._rng,
            lambda load: show(f"{load.kills.total()} kills"),
        )
        load.check_fired()
        self.fired.update({f"random kill of a {role}": n for role, n in load.kills.items()})
        self.fired["random kill of a client that had just begun"] += load.early
        self.fired["random kill in a writer's commit"] += load.transactions["unknown"]
        return _told(load)

    def _cut(self, durability: str, nursery: Nursery, scratch: Path, show: Show) -> str:
        is_full = durability == "full"
        library = build_recorder(scratch)
        cuts: list[Cut] = []
        moments = ["a write", "an acknowledgement"]
        if is_full:
            moments += ["a synchronous write", "a sync"]
        while len(cuts) < self._cuts:
            # A few hundred cuts of one recording, then another one.
            with scratch_folder() as folder:
                events = record(
                    library, folder, durability, commits=20, care=0.0 if is_full else 0.02
                )
            found = cut(nursery, events, scratch, self._rng, points=60)
            for one in (check_all_kept if is_full else check_relaxed)(found):
                cuts.append(one)
            show(f"{len(cuts)} cuts")
        counts = check_fired(cuts, moments)
        self.fired.update({f"power cut, {name}": number for name, number in counts.items()})
        verdicts = Counter(one.verdict.value for one in cuts)
        told = "; ".join(f"{number:,} {verdict}" for verdict, number in verdicts.most_common())
        return f"{len(cuts):,} cuts: {told}"

    def _forget(self, nursery: Nursery, scratch: Path, show: Show) -> str:
        with scratch_folder() as folder:
            events, window = forget_a_sync(record(build_recorder(scratch), folder, "full"), DATA)
        cuts = cut(nursery, events, scratch, self._rng, points=len(window), window=window)
        try:
            check_all_kept(cuts)
        except AssertionError as error:
            return str(error).partition("\n")[0]
        raise AssertionError("A sync was left out of a trace, and no power cut showed it.")


def _told(load: Load) -> str:
    killed = ", ".join(f"{number} × {role}" for role, number in sorted(load.kills.items()))
    return (
        f"killed {killed}, {load.early} just begun; {load.transactions['committed']:,} commits, "
        f"{load.transactions['unknown']} killed in the middle, {load.orders:,} orders booked once, "
        f"the money counted {load.samples:,} times"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=180, help="of kills under load, in all")
    parser.add_argument("--cuts", type=int, default=2000, help="power cuts of each durability")
    parser.add_argument("--seed", type=int, default=None, help="of what is left to chance")
    options = parser.parse_args(arguments)
    seed = random.randrange(2**32) if options.seed is None else options.seed
    console = Console()
    console.print(f"seed {seed}", highlight=False)
    run = Run(console, options.seconds, options.cuts, seed)
    run.all()
    for fault, number in sorted(run.fired.items()):
        console.print(f"  {number:7,} {fault}", highlight=False)
    kills = sum(number for name, number in run.fired.items() if name.startswith("kill "))
    random_kills = sum(n for name, n in run.fired.items() if name.startswith("random kill of"))
    cuts = sum(n for name, n in run.fired.items() if name.startswith("power cut, during"))
    console.print(
        f"crash: {kills:,} kills at boundaries, {random_kills:,} random kills, {cuts:,} power "
        f"cuts; {len(run.failures)} failures",
        style="bold",
        highlight=False,
    )
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.planted`: plant each mistake in a copy of the project, and see tests fail."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from tests.planted.planted import copy_project, planted, run_tests, survives, why_not_applicable

MISTAKES = planted()


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(MISTAKES)))
def main(names: tuple[str, ...]) -> None:
    """Plant mistakes one at a time; fail if the tests that name one pass with it."""
    wanted = [MISTAKES[name] for name in names or MISTAKES]
    problems = [problem for one in wanted if (problem := why_not_applicable(one))]
    with tempfile.TemporaryDirectory(prefix="percola-planted-") as made:
        folder = Path(made)
        copy_project(folder)
        nodes = sorted({test for one in wanted for test in one.tests})
        status, output = run_tests(folder, nodes)
        if status:
            print(output)
            problems.append("The tests do not pass without any mistake planted.")
        for one in wanted if not problems else ():
            began = time.monotonic()
            problem = survives(one, folder)
            caught = "caught" if problem is None else "NOT CAUGHT"
            print(f"{one.name}: {caught} ({time.monotonic() - began:.0f} s)", flush=True)
            problems += [problem] if problem else []
    for problem in problems:
        print(problem)
    print(f"{len(wanted) - len(problems) if not status else 0} of {len(wanted)} mistakes caught")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

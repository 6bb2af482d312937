"""The command line `percola`; `percola.cli.root` describes it. Nothing is loaded before `main`."""

from __future__ import annotations

from typing import NoReturn

from percola.platform import start_up


def main() -> NoReturn:
    """The entry point `percola`."""
    start_up.begin()
    start_up.hold_sigterm()
    from percola.cli.root import cli

    cli.main(prog_name="percola")
    raise AssertionError("CommandLine.main ends the process")

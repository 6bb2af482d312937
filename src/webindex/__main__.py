"""The entry point of the command `webindex`, and of `python -m webindex`.

It imports nothing from the extra `webindex`: without the extra it reports how to install it.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; print one sentence and exit with status 1 if a package is missing."""
    try:
        from webindex.cli.main import cli

        cli()
    except ImportError as error:
        if (error.name or "webindex").partition(".")[0] in ("percola", "webindex"):
            raise
        sys.stderr.write(
            f"Error: webindex needs the Python package {error.name}: install it with "
            "pip install 'percola[webindex]'.\n"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

"""The entry point of the command `webindex`, of `python -m webindex`, and of `spark-submit`.

`spark-submit` runs this file by its path: `spark-submit … webindex/__main__.py load …`.

It imports nothing from the extra `webindex`: without the extra it reports how to install it.
"""

from __future__ import annotations

import os.path
import signal
import sys

if not __package__ and sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    # Run by its path. Python would look for modules in this folder first, and some of them are
    # named like the standard library's.
    sys.path.pop(0)


def main() -> None:
    """Run the command line; print one sentence and exit with status 1 if a package is missing."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # Inherited from whoever started the command: it would hide how worker processes end.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        if until_loaded := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # Ctrl-C while modules are loaded ends the process at once, without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from webindex.cli.main import cli

        if until_loaded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli(prog_name="webindex")
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

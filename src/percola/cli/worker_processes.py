"""`percola worker --processes N`: worker processes on one repository, and the one that starts them.

The command starts itself several times and waits. A worker that ends with an error ends the others,
and the command fails with its exit status: whatever restarts the command restarts all. The workers
end when their standard input does, so that none is left if the first process is killed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from percola.cli.display import say_note
from percola.errors import UsageError
from percola.platform import start_up

_LOOK: Final = 0.05
_IDLE: Final = (3, 4, 5)
"""Of a process that has ended with `--until-idle`: dead letters, changes for paused observers, or
it was told to end."""
_TOLD: Final = (1, 2)
"""Of a process that has said itself what was wrong."""


def run_processes(words: Sequence[str], count: int) -> int:
    """Run `percola WORDS` in so many processes until all have ended; the exit status.

    SIGTERM and Ctrl-C are passed on. The status is that of the first process that ended with
    another one than 0; for one that was killed, 128 and the signal's number.
    """
    # -P: modules of the current folder do not take the place of Python's own, as they do not where
    # the command itself runs. This package is imported wherever it is.
    program = "import sys; sys.path.append(sys.argv.pop(1)); from percola.cli import main; main()"
    source = str(Path(__file__).parents[2])
    command = [sys.executable, "-P", "-c", program, source, *words]
    processes: list[subprocess.Popen[bytes]] = []
    stopping = False

    def stop(number: int = 0, frame: object = None) -> None:
        nonlocal stopping
        stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status, told = 0, False
        start_up.hold_sigterm()  # A worker that is told to end while it starts says so, too.
        for _ in range(count):
            # In groups of their own: a terminal's Ctrl-C reaches them once, through this process.
            try:
                one = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
            except OSError as error:
                raise UsageError(
                    f"The system starts {len(processes)} of {count} processes ({error.strerror}): "
                    "use fewer --processes, or raise its limit."
                ) from error
            processes.append(one)
        start_up.release_sigterm()
        running = list(processes)
        while running:
            if stopping and not told:
                told = True
                for one in running:
                    one.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(_LOOK)
            for one in [one for one in running if one.poll() is not None]:
                running.remove(one)
                status = status or _exit_status(one.returncode)
                # With `--until-idle` the others end by themselves, and may have work left.
                failed = one.returncode not in (0, *_IDLE)
                if failed and not stopping and one.returncode not in _TOLD:
                    say_note(f"Worker process {one.pid} {_end(one)}: the others end, too.")
                stopping = stopping or failed
        return status
    finally:
        for one in processes:
            if one.stdin is not None:
                one.stdin.close()  # If this one is interrupted: they end.
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> str:
    if process.returncode < 0:
        return f"was killed by signal {-process.returncode}"
    return f"ended with status {process.returncode}"


def _exit_status(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned

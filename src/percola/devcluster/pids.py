"""Finds, signals and ends the development cluster's processes by id, and never any other process.

The kernel reuses ids. So a process is identified by its id and its start time, recorded in a file
of the cluster's folder, `pids/NAME`; signals are sent through a pidfd, which refers to that one
process. If a file is missing, because the program that started the process was killed before it
could write it, the process is found by its command line, which names the folder.

Run as a program, `pids.py FOLDER PID BEGAN`, this is the guard of a cluster that
must not outlive the process which started it: it stops the cluster once that process has ended, for
whatever reason. It imports only the standard library, so that it starts fast and stays small.
Requires Linux: /proc and pidfds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GUARD: Final = "guard"
"""The name of the process that watches the one which started the cluster."""

_STRAYS_LOOKED_FOR: Final = 0.5
"""Seconds in which a process that was just being started gets its command line."""


@dataclass(frozen=True)
class ProcessId:
    """The identity of one process of this machine, never shared by another.

    Attributes:
        pid: its id.
        began: when it began, in clock ticks since the machine started.
    """

    pid: int
    began: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this id now; None if none has it, or only one that has ended."""
        found = _stat(pid)
        return None if found is None or found[0] in "ZX" else cls(pid, int(found[19]))

    @classmethod
    def of_child(cls, pid: int) -> ProcessId:
        """A child of this process that it has not yet waited for; also if it has ended."""
        found = _stat(pid)
        assert found is not None, "a child keeps its id until it is waited for"
        return cls(pid, int(found[19]))

    @property
    def runs(self) -> bool:
        """Whether it has not ended; also if it is stopped."""
        return ProcessId.of(self.pid) == self

    @property
    def stopped(self) -> bool:
        """Whether it is stopped by SIGSTOP."""
        found = _stat(self.pid)
        return found is not None and found[0] == "T" and int(found[19]) == self.began

    @property
    def resident(self) -> int:
        """Bytes of memory that it has; 0 once it has ended."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE") if self.runs else 0

    def signal(self, number: int) -> bool:
        """Send it a signal; False if it has ended."""
        with self._handle() as handle:
            if handle is None:
                return False
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return False
            return True

    def wait(self, seconds: float | None) -> bool:
        """Wait for its end for so long (None: however long); whether it has ended."""
        with self._handle() as handle:
            if handle is None:
                return True
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(None if seconds is None else max(0, int(seconds * 1000))))

    @contextlib.contextmanager
    def _handle(self) -> Iterator[int | None]:
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            handle = None
        try:
            # Looked at after the handle was taken: the handle is then this process's own.
            yield handle if handle is not None and self.runs else None
        finally:
            if handle is not None:
                os.close(handle)


def _stat(pid: int) -> list[str] | None:
    """The kernel's fields of a process, from its state on: see proc(5), `stat`, field 3."""
    try:
        # The name of the program, in brackets, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


# --- The files in the cluster's folder ----------------------------------------------------


def note(folder: Path, name: str, process: ProcessId) -> None:
    """Write down, as a whole, which process has this name now."""
    file = folder / "pids" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{name}.{os.getpid()}")
    draft.write_text(f"{process.pid} {process.began}\n")
    draft.replace(file)


def noted(folder: Path, name: str) -> ProcessId | None:
    """The process of this name, if it runs; one that only has its old id is not it."""
    try:
        pid, began = (folder / "pids" / name).read_text().split()
        process = ProcessId(int(pid), int(began))
    except (OSError, ValueError):
        return None
    return process if process.runs else None


def was_noted(folder: Path, name: str) -> bool:
    """Whether a process of this name was started, and its end not yet taken note of."""
    return (folder / "pids" / name).exists()


def noted_at(folder: Path, name: str) -> float:
    """When it was noted, right after it began: seconds since the epoch; 0 if it never was."""
    try:
        return (folder / "pids" / name).stat().st_mtime
    except OSError:
        return 0.0


def forget(folder: Path, name: str) -> None:
    """Remove the note; harmless if there is none."""
    (folder / "pids" / name).unlink(missing_ok=True)


def marks(folder: Path, name: str) -> list[str]:
    """What the command line of a process says of it, as options of Java."""
    return [f"-Dpercola.cluster={folder}", f"-Dpercola.process={name}"]


def running(folder: Path) -> dict[str, ProcessId]:
    """Every process of the cluster in this folder that runs, by name; without the guard."""
    found = {}
    mark = os.fsencode(marks(folder, "")[0])
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        process = ProcessId.of(int(entry))
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if process is None or mark not in words or not process.runs:
            continue
        names = [os.fsdecode(word[18:]) for word in words if word.startswith(b"-Dpercola.process=")]
        found[names[0] if names else f"process {process.pid}"] = process
    with contextlib.suppress(OSError):
        for name in os.listdir(folder / "pids"):
            if name != GUARD and (process := noted(folder, name)):
                found[name] = process
    return found


def end_all(folder: Path) -> None:
    """End every process of the cluster by kill -9, and return once none is left."""
    while processes := running(folder):
        for process in processes.values():
            process.signal(signal.SIGKILL)
        for name, process in processes.items():
            if process.wait(5):
                forget(folder, name)


def _guard(folder: Path, parent: ProcessId) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the parent
        signal.signal(number, signal.SIG_IGN)
    print("watching", flush=True)
    parent.wait(None)
    until = time.monotonic() + _STRAYS_LOOKED_FOR
    end_all(folder)
    while time.monotonic() < until:
        time.sleep(0.05)
        end_all(folder)
    forget(folder, GUARD)


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), ProcessId(int(sys.argv[2]), int(sys.argv[3])))

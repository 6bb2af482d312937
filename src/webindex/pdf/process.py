"""Has PDF documents read by a process of their own, which a hostile one may end.

    with Reader() as reader:
        reading = reader.read(document)

The process is started when the first document comes, and serves all that follow. One that exceeds
its time or memory ends it, and the next document starts another.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final, Self

from percola import PercolaError
from webindex.pdf.child import OUT_OF_MEMORY
from webindex.pdf.reading import Reading

__all__ = ["Bounds", "NoReaderError", "Reader", "can_read"]

_LIBRARY: Final = "pypdf"
_START_SECONDS: Final = 120.0
_REMEMBERED: Final = 32
"""Readings that are kept: a transaction that conflicts is run again, with the same documents."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What reading one document may take.

    Attributes:
        processor_seconds: of processor time.
        seconds: of any time, for a machine on which much else runs.
        memory: bytes of address space of the process.
    """

    processor_seconds: int = 30
    seconds: float = 300.0
    memory: int = 1 << 30


class NoReaderError(PercolaError):
    """PDF documents cannot be read here, whatever is in them; the message says why."""


def can_read() -> bool:
    """Whether the library is installed that reads documents; it is not imported for that."""
    return importlib.util.find_spec(_LIBRARY) is not None


class Reader:
    """Reads documents, one at a time, for one thread. After a fork the child starts its own."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._child: _Child | None = None
        self._known: OrderedDict[tuple[str, int | None], Reading] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process(self) -> int | None:
        """The id of the process that reads; None if there is none."""
        return None if self._child is None else self._child.pid

    def close(self) -> None:
        """End the process, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def read(self, document: bytes, digest: str, cut: int | None = None) -> Reading:
        """The reading of a document. `cut` is the limit at which a longer one was cut off.

        Raises NoReaderError if the process cannot be started; nothing that depends on the document.
        """
        key = digest, cut
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if cut is not None:
            reading = Reading(problem=f"It is longer than {cut:,} bytes, and was not read.")
        else:
            reading = self._read(document)
        self._known[key] = reading
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return reading

    def _read(self, document: bytes) -> Reading:
        if self._child is not None and self._child.owner != os.getpid():
            self._child = None
        while True:
            child = self._child
            fresh = child is None
            if child is None:
                child = self._child = _Child(self._bounds)
            try:
                answer = child.ask(document)
            except BaseException:
                # Its answer may still come, and is not that to the next document.
                self.close()
                raise
            if isinstance(answer, Reading):
                return answer
            self._child = None
            # Documents before this one may have left little memory; or something else ended it.
            if fresh or answer.is_certain:
                return Reading(problem=answer.why)


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why a process ended without an answer, and whether it would with any process."""

    why: str
    is_certain: bool


class _Child:
    """A process, and the socket to it."""

    def __init__(self, bounds: Bounds) -> None:
        self.owner = os.getpid()
        self._bounds = bounds
        self._channel: Connection[bytes, bytes]
        self._channel, theirs = Pipe()
        command = [sys.executable, "-P", "-m", "webindex.pdf.child"]
        numbers = theirs.fileno(), bounds.memory, bounds.processor_seconds
        # Spark adds folders to the path of its tasks that a new process would not know.
        path = os.pathsep.join(filter(None, sys.path))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*command, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # A Ctrl-C for the load is none for the document.
                )
        except OSError as error:
            self._channel.close()
            raise NoReaderError(f"PDF documents cannot be read: {error}.") from error
        why = self._receive(_START_SECONDS)
        if why:
            self.end()
            told = f"{why.decode()}." if isinstance(why, bytes) else why.why
            raise NoReaderError(f"PDF documents cannot be read: {told}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, document: bytes) -> Reading | _Ended:
        """The reading of a document; or why the process has ended."""
        try:
            self._channel.send_bytes(document)
        except ConnectionError:
            return self._ended()
        answer = self._receive(self._bounds.seconds)
        return answer if isinstance(answer, _Ended) else Reading.of(json.loads(answer))

    def end(self) -> None:
        """End the process, and wait until it has."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, seconds: float) -> bytes | _Ended:
        try:
            if not self._channel.poll(seconds):
                self.end()
                return _Ended(f"It took longer than {seconds:,g} s to read.", True)
            return self._channel.recv_bytes()
        except (EOFError, ConnectionError):
            return self._ended()

    def _ended(self) -> _Ended:
        self._channel.close()
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            seconds = self._bounds.processor_seconds
            return _Ended(f"It took more than {seconds:,} s of processor time to read.", True)
        if status == OUT_OF_MEMORY:
            return _Ended(f"It takes more than {self._bounds.memory >> 20:,} MiB to read.", False)
        return _Ended(f"The process that read it ended with status {status}.", False)

"""The process that reads PDF documents: `python -m webindex.pdf.child DESCRIPTOR MEMORY SECONDS`.

It serves the socket `DESCRIPTOR` until the other end closes it: a document comes in, its reading
goes out as JSON. It may use `MEMORY` bytes of address space, and `SECONDS` of processor time for
each document, after which the kernel ends it. It writes no file.
"""

from __future__ import annotations

import ctypes
import json
import logging
import resource
import signal
import sys
import time
from dataclasses import asdict
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = 75
"""The exit status of a process that needed more memory than it may use."""


def main(descriptor: int, memory: int, seconds: int) -> None:
    """Serve documents. The first message is empty, or says why none can be read."""
    # The load may be killed while a document is read.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    channel: Connection[bytes, bytes] = Connection(descriptor)
    try:
        from webindex.pdf.extract import extract
    except ImportError as error:
        channel.send_bytes(str(error).encode())
        return
    logging.disable(logging.CRITICAL)  # Of pypdf's hundreds of warnings, `problem` says enough.
    for what, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))
    channel.send_bytes(b"")
    while True:
        try:
            document = channel.recv_bytes()
        except (EOFError, ConnectionError):
            return
        # Whole seconds, of all the time that this process has used.
        until = int(time.process_time()) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
        channel.send_bytes(json.dumps(asdict(extract(document))).encode())


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:4]))
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)

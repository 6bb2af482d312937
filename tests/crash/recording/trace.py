"""The trace that `recorder.c` writes: what a program did to the files of a folder, in order."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "recorder.c"
MARKER_FD: Final = 1000
_HEADER: Final = struct.Struct("<cBHIQQ")
_SYNCED: Final = 1


class Did(Enum):
    """What a record of the trace tells of."""

    OPENED = b"O"
    WROTE = b"W"
    RESIZED = b"T"
    SYNCED = b"S"
    MAP_SYNCED = b"M"
    RENAMED = b"R"
    REMOVED = b"U"
    FOLDER_SYNCED = b"D"
    MARKED = b"K"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing done.

    Attributes:
        did: what.
        path: the file's path in the folder, as it was opened; "" where it is about no file.
        offset: where a write begins; the new size, in bytes, where one was set.
        data: the bytes written, the text of a marker, the new path of a rename.
        through: whether it was on disk when the call returned (O_SYNC, O_DSYNC).
    """

    did: Did
    path: str = ""
    offset: int = 0
    data: bytes = b""
    through: bool = False


def read_trace(path: Path) -> Iterator[Event]:
    """The events of a trace, with paths in place of the recorder's numbers."""
    names: dict[tuple[int, int], str] = {}
    raw = path.read_bytes()
    at = 0
    while at < len(raw):
        kind, flags, number, process, offset, length = _HEADER.unpack_from(raw, at)
        at += _HEADER.size
        data = raw[at : at + length]
        at += length
        if len(data) < length:
            raise ValueError(f"The trace {path} ends within a record.")
        did = Did(kind)
        if did is Did.OPENED:
            names[process, number] = data.decode()
            data = b""
        name = names.get((process, number), "")
        if did in (Did.REMOVED, Did.FOLDER_SYNCED):
            name, data = data.decode(), b""
        elif did is Did.RENAMED:
            old, _, new = data.partition(b"\0")
            name, data = old.decode(), new
            for key, known in names.items():
                if known == name and key[0] == process:
                    names[key] = new.decode()
        yield Event(did, name, offset, data, bool(flags & _SYNCED))


class NoCompilerError(Exception):
    """There is no C compiler; the message says how to get one."""


def build_recorder(folder: Path) -> Path:
    """Compile the recorder into a folder; NoCompilerError without a compiler."""
    finder = SOURCE.parents[3] / "scripts" / "cc.sh"
    found = subprocess.run([finder, "path"], capture_output=True, text=True, check=False)
    compiler = found.stdout.strip()
    if found.returncode or not compiler:
        raise NoCompilerError(
            "The power-cut tests record what LMDB writes with a small library in C, and there is "
            "no C compiler: `make setup` installs one or says how to get one."
        )
    library = folder / "recorder.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"],
        check=True,
    )
    return library


def recorded_environment(library: Path, folder: Path, trace: Path) -> dict[str, str]:
    """What a program's environment needs to be recorded; `folder` is resolved here."""
    return {
        "LD_PRELOAD": os.pathsep.join(filter(None, [str(library), os.environ.get("LD_PRELOAD")])),
        "RECORDED_FOLDER": str(folder.resolve()),
        "RECORDED_TRACE": str(trace),
    }


def mark(text: str) -> None:
    """In a recorded program: put a marker into the trace."""
    os.write(MARKER_FD, text.encode())

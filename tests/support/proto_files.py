"""The messages of a .proto file as protobuf's own classes, to compare ours with."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

_KINDS: Final = {"uint64": 4, "bool": 8, "string": 9, "bytes": 12}


def messages_of(proto: Path) -> dict[str, Any]:
    """The classes by their names, read from the file itself; it has plain fields only."""
    # Without types, and needed here alone.
    descriptor_pb2, descriptor_pool, message_factory = (
        importlib.import_module(f"google.protobuf.{name}")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    # A package that nobody else has: protobuf knows the real one by its stubs, where there are any.
    package = f"percola_test_{proto.stem}"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    message: Any = None
    for line in map(str.split, proto.read_text("utf-8").splitlines()):
        if line[:1] == ["message"]:
            message = file.message_type.add(name=line[1])
        elif line and line[0] in _KINDS:
            message.field.add(
                name=line[1], number=int(line[3].rstrip(";")), type=_KINDS[line[0]], label=1
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        one.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{one.name}")
        )
        for one in file.message_type
    }


def is_that_of(proto: Path, message: Any) -> None:
    """Assert that a message of ours is what the file says: both ways, byte by byte."""
    theirs = messages_of(proto)[type(message).__name__]
    assert type(message).decode(message.encode()) == message
    parsed = theirs.FromString(message.encode())
    names = getattr(message, "__slots__", ())
    assert [getattr(parsed, name) for name in names] == [getattr(message, name) for name in names]
    assert parsed.SerializeToString() == message.encode()

"""What the fuzzers have found, in as few bytes as do it: each was wrong once."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from percola import JSON, Table
from percola.cells import decode_lock, decode_ts, decode_write
from percola.errors import DamagedRecordError, WrongTypeError
from percola.schema import Schema

table = Table("t")
flag = table.column("flag", bool)
meta = table.column("meta", JSON)


NO_WRITE = [b"", b"P", b"\0\0\0\0\0\0\0\0\0\0", b"D\0\0\0\0\0\0\0\0\1x"]
NO_LOCK = [b"", b"P" + bytes(20), b"P" + bytes(13) + b"\0\1" + bytes(6), b"P" + bytes(21) + b"more"]
NO_TS = [b"", b"-1", b"1_0", b" 1", b"\xc2\xb2", b"9" * 5000]


@pytest.mark.parametrize(
    ("decode", "raw"),
    [
        *((decode_write, raw) for raw in NO_WRITE),
        *((decode_lock, raw) for raw in NO_LOCK),
        *((decode_ts, raw) for raw in NO_TS),
    ],
)
def test_bytes_that_are_no_record_or_timestamp_are_called_damaged(
    decode: Callable[[bytes], object], raw: bytes
) -> None:
    with pytest.raises(DamagedRecordError):
        decode(raw)


def declared(*columns: object, rows: object = "str") -> dict[str, object]:
    return {"tables": [{"name": "t", "rows": rows, "columns": list(columns)}]}


@pytest.mark.parametrize(
    "stored",
    [
        0,
        [],
        {"tables": 0},
        {"tables": [{}]},
        declared(rows="int"),
        declared(rows=[]),
        declared(0),
        declared({"weak": 1}),
        declared({"family": "f", "type": []}),
        declared({"column": "c", "type": "int", "observed": 1}),
    ],
)
def test_json_that_is_no_schema_is_called_damaged(stored: object) -> None:
    with pytest.raises(DamagedRecordError, match="The stored schema cannot be read"):
        Schema.from_json(json.dumps(stored))


def test_json_nested_too_deep_is_no_value_and_no_schema() -> None:
    with pytest.raises(WrongTypeError):
        meta.decode_value(b"[" * 200_000)
    with pytest.raises(DamagedRecordError):
        Schema.from_json("[" * 200_000)


@pytest.mark.parametrize("raw", [b"", b"True", b"1"])
def test_bytes_that_are_neither_true_nor_false_are_no_bool(raw: bytes) -> None:
    with pytest.raises(WrongTypeError):
        flag.decode_value(raw)

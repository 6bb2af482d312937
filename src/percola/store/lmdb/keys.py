"""§2.1: the encoding of cells as keys of LMDB's B-trees.

    key = table (2 bytes) ‖ row, NUL escaped ‖ 00 01 ‖ column ‖ 00 ‖ timestamp (8 bytes)

Keys are compared as bytes, so rows are in order and a row's cells are adjacent. Where the newest
entry must come first, the timestamp is subtracted from 2⁶⁴-1. The row limit follows from LMDB's
limit of 511 bytes per key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from percola.cells import Cell, Kind, start_ts_of
from percola.errors import UnknownTableError
from percola.store.base import missing_data
from percola.store.lmdb.driver import Txn
from percola.store.lmdb.environment import Environment

TOP: Final = 2**64 - 1
NEWEST_FIRST: Final = (Kind.DATA, Kind.WRITE)


class Keys:
    """Turns tables, rows and columns into keys and back; knows the tables of an environment.

    Attributes:
        prefixes: what the keys of each table known so far begin with.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.prefixes: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    def create_tables(self, names: Iterable[str]) -> None:
        """Assign a number to each table that has none."""
        wanted = list(names)

        def create(txn: Txn) -> None:
            numbers = [int.from_bytes(prefix, "big") for prefix in _tables(txn).values()]
            known = max(numbers, default=0)
            for name in wanted:
                key = b"table:" + name.encode()
                if txn.get(key) is None:
                    known += 1
                    txn.put(key, known.to_bytes(2, "big"))

        self._load()
        if not all(name in self.prefixes for name in wanted):
            self._environment.write(create)
            self._load()

    def _load(self) -> None:
        with self._environment.reading() as txn:
            found = _tables(txn)
        self.prefixes.update(found)
        self._names.update((number, name) for name, number in found.items())

    def prefix(self, table: str) -> bytes:
        """The prefix of a table's keys; UnknownTableError if the table does not exist."""
        prefix = self.prefixes.get(table)
        if prefix is None:
            self._load()
            prefix = self.prefixes.get(table)
            if prefix is None:
                raise UnknownTableError(f"The store has no table {table!r}.")
        return prefix

    def key(self, table: str, row: bytes, column: bytes) -> bytes:
        """The key of a cell, without a timestamp."""
        prefix = self.prefixes.get(table) or self.prefix(table)
        if b"\0" in row:
            row = row.replace(b"\0", b"\0\xff")
        return prefix + row + b"\0\1" + column + b"\0"

    def row_key(self, table: str, row: bytes) -> bytes:
        """The lower bound of a row's keys: all keys of earlier rows sort before it."""
        return self.prefix(table) + row.replace(b"\0", b"\0\xff")

    def end_key(self, table: str, end: bytes) -> bytes:
        """`row_key` of the end of a range of rows; an empty one is the table's end."""
        if end:
            return self.row_key(table, end)
        return (int.from_bytes(self.prefix(table), "big") + 1).to_bytes(2, "big")

    def cell(self, key: bytes) -> Cell:
        """The cell of a key without its timestamp."""
        at = key.index(b"\0\1", 2)
        row = key[2:at].replace(b"\0\xff", b"\0")
        return Cell(self._table_name(key[:2]), row, key[at + 2 : -1])

    def long_value(self, txn: Txn, data: Any, entry: bytes, record: bytes) -> bytes:
        """The value in the tree `data` that belongs to a put's record at the key `entry`.

        Raises DamagedRecordError if it is missing.
        """
        key, start_ts = entry[:-8], start_ts_of(record)
        value = txn.get(key + (TOP - start_ts).to_bytes(8, "big"), db=data)
        if value is None:
            raise missing_data(self.cell(key), timestamp(entry, Kind.WRITE), start_ts)
        return value

    def _table_name(self, prefix: bytes) -> str:
        if prefix not in self._names:
            self._load()
        return self._names[prefix]


def _tables(txn: Txn) -> dict[str, bytes]:
    """The tables' numbers, encoded as key prefixes."""
    tables: dict[str, bytes] = {}
    cursor = txn.cursor()
    if cursor.set_range(b"table:"):
        for key, number in cursor:
            if not key.startswith(b"table:"):
                break
            tables[key[6:].decode()] = number
    return tables


def suffix(kind: Kind, ts: int) -> bytes:
    """A timestamp as the end of a key of an entry of that kind."""
    return (TOP - ts if kind in NEWEST_FIRST else ts).to_bytes(8, "big")


def timestamp(entry: bytes, kind: Kind) -> int:
    """The timestamp at the end of an entry's key: the inverse of `suffix`."""
    ts = int.from_bytes(entry[-8:], "big")
    return TOP - ts if kind in NEWEST_FIRST else ts


def keys_between(low: bytes, high: bytes, count: int) -> list[bytes]:
    """`count` keys spread evenly between two keys, past the prefix that they share."""
    shared = 0
    while shared < min(len(low), len(high)) and low[shared] == high[shared]:
        shared += 1
    a = int.from_bytes(low[shared : shared + 8].ljust(8, b"\0"), "big")
    b = int.from_bytes(high[shared : shared + 8].ljust(8, b"\0"), "big")
    step = (b - a) / (count + 1)
    return [low[:shared] + (a + int(step * i)).to_bytes(8, "big") for i in range(1, count + 1)]

"""§2.1: where a feed's entries are found: their index, in a table of its own.

The entries of a feed are stored in the changed rows (`percola.store.remote.feed`), and so are
locks. To look for either without knowing the rows is to read the table (Bigtable), or the entries
of all cells that were ever locked and of all changes in memory (HBase). The index has two lists of
rows:

    salt ‖ "p" ‖ table ‖ 0 ‖ ts        ‖ row      pending: about to be committed; has each start_ts
    salt ‖ "c" ‖ table ‖ 0 ‖ commit_ts ‖ row      committed

The salt is a hash of the timestamp, so that the commits of a moment are spread over a few ranges of
keys, and all rows of a commit are together. A span of time is one range of keys for each salt.

    prewrite      all locks of the transaction are in place
    pending       one call: the rows that it has changed in tables with a feed
    commit_ts     is drawn after that
    commit        as ever: the index has no part in it
    committed     put by the next client that looks for what is settled, which then deletes the
                  pending entry (`percola.transactions.settled`)

So a transaction whose commit_ts is at most T has its pending or committed entries when T is drawn;
and a reader that has dealt with all pending entries knows the rows with locks that matter at T, and
has put all committed entries up to T. A write record that is put without a lock before, as a copy
does, gets its committed entry first, in `RemoteStore.mutate`.

**The floor.** Databases keep deleted entries for long, and a reader of pending ones that began at
the beginning would read past those of all commits. So the timestamp of a pending entry is start_ts
only if that is above a floor, and else a new one, and readers begin at the floor. It is raised like
a safe point (`percola.store.remote.shared_row`): it is announced, and a committer that has put
pending entries at or below it finds out when it has drawn its commit_ts, and puts others, unless
that was within a moment of the announcement. When this moment has passed, the one that announced it
reads the pending entries up to it once more, and brings it into force below the oldest left. A
follower does so when it has removed many, garbage collection in each cycle.

An entry alone says nothing: its reader looks at the row. That of a transaction that was
rolled back, or of a mutation that was refused, is ignored and removed. Committed entries up to the
safe point are removed by garbage collection, which begins where its last cycle came to its end.

The index is of use only if every client writes it. Repositories that a release before 0.2 may write
have none until `percola init --index-feeds` begins it, and it is complete from a timestamp on;
followers from an earlier one read the entries of all rows. See `percola.catalog.index_feeds`.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from percola.cells import SYSTEM_MARK, Kind
from percola.store.base import Delete, Put, RowMutation

FEED_TABLE: Final = "@percola-feeds"
"""The table of the index of all feeds; users' tables cannot have names like this."""

SALTS: Final = 4
"""Ranges over which the commits of a moment are spread. A reader reads each of them."""

PENDING: Final = b"p"
COMMITTED: Final = b"c"

_COLUMN: Final = b"r"
_TS_BYTES: Final = 8
_AT: Final = 1
"""The timestamp of every entry: the key has the one that matters."""

Entry = tuple[int, bytes]
"""The timestamp and the row of an entry."""


def is_listed(record: Put) -> bool:
    """Whether a feed lists a write record: a put or delete outside Percola's own columns."""
    return record.value[:1] in (b"P", b"D") and not record.column.startswith(SYSTEM_MARK)


def committed_puts(table: str, entries: Iterable[Entry]) -> list[RowMutation]:
    """The mutations that put committed entries."""
    put = (Put(Kind.DATA, _COLUMN, _AT, b""),)
    return [RowMutation(FEED_TABLE, key_of(COMMITTED, table, *one), (), put) for one in entries]


def pending_put(table: str, ts: int, row: bytes, started: Iterable[int]) -> RowMutation:
    """The mutation that puts a pending entry: a row with locks of these transactions.

    They are several if they commit together, as the parts of a joint transaction do.
    """
    put = Put(Kind.DATA, _COLUMN, _AT, b"".join(map(_stamp, sorted(started))))
    return RowMutation(FEED_TABLE, key_of(PENDING, table, ts, row), (), (put,))


def deletes(which: bytes, table: str, entries: Iterable[Entry]) -> list[RowMutation]:
    """The mutations that delete entries."""
    delete = (Delete(Kind.DATA, _COLUMN, _AT),)
    return [RowMutation(FEED_TABLE, key_of(which, table, *one), (), delete) for one in entries]


def unlocked_puts(batch: Iterable[RowMutation], feeds: Collection[str]) -> list[RowMutation]:
    """Committed entries for write records that replace no lock; the tables in `feeds` keep a feed.

    Those that replace one have a pending entry.
    """
    found: list[RowMutation] = []
    for one in batch:
        if one.table not in feeds:
            continue
        locked = {
            change.column
            for change in one.changes
            if change.kind is Kind.LOCK and not isinstance(change, Put)
        }
        stamps = {
            change.ts
            for change in one.changes
            if change.kind is Kind.WRITE
            and isinstance(change, Put)
            and change.column not in locked
            and is_listed(change)
        }
        found += committed_puts(one.table, [(ts, one.row) for ts in sorted(stamps)])
    return found


def key_of(which: bytes, table: str, ts: int, row: bytes) -> bytes:
    """The key of an entry."""
    return _prefix(_salt(ts), which, table) + _stamp(ts) + row


def described(key: bytes) -> tuple[bytes, str, Entry]:
    """What a key is of: a list, a table, an entry."""
    table = key[2 : key.index(b"\0", 2)].decode()
    return key[1:2], table, entry_of(table, key)


def entry_of(table: str, key: bytes) -> Entry:
    """The entry of a key of a table."""
    at = len(_prefix(0, PENDING, table))
    return int.from_bytes(key[at : at + _TS_BYTES]), key[at + _TS_BYTES :]


def started_of(value: bytes) -> list[int]:
    """The start_ts of the locks that a pending entry stands for."""
    starts = range(0, len(value), _TS_BYTES)
    return [int.from_bytes(value[at : at + _TS_BYTES]) for at in starts]


def spans(which: bytes, table: str, low: int, upto: int) -> Iterator[tuple[bytes, bytes]]:
    """The ranges of keys with the entries at `low` ≤ timestamp ≤ `upto`, not more than needed."""
    salts: Collection[int] = range(SALTS)
    if upto - low < SALTS:
        salts = sorted({_salt(ts) for ts in range(low, upto + 1)})
    for salt in salts:
        prefix = _prefix(salt, which, table)
        yield prefix + _stamp(low), prefix + _stamp(upto + 1)


def split_keys() -> Sequence[bytes]:
    """Where to split the table from the beginning, so that each salt has its own tablet."""
    return [bytes([salt]) for salt in range(1, SALTS)]


def _prefix(salt: int, which: bytes, table: str) -> bytes:
    return bytes([salt]) + which + table.encode() + b"\0"


def _stamp(ts: int) -> bytes:
    return ts.to_bytes(_TS_BYTES)


def _salt(ts: int) -> int:
    # Not its last bits: these may follow a pattern, as transactions draw two timestamps each.
    return zlib.crc32(_stamp(ts)) % SALTS

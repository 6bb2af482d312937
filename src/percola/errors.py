"""Every error that Percola raises, in one tree.

A message is a sentence or two: what was wrong, where, and what to do about it. Errors
that may succeed when the transaction is run again derive from `TransientError`; that is
the one distinction a caller has to know (`Repository.run` retries exactly those).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from percola.cells import Cell


_LISTED: Final = 20
_CLOSE: Final = 5


def listed(names: Sequence[str], wanted: str = "", between: str = ", ") -> str:
    """Names for a message; of very many those that are called most like the one `wanted`."""
    if len(names) <= _LISTED:
        return between.join(names)
    import difflib  # Few messages need it.

    close = difflib.get_close_matches(wanted, names, _CLOSE, 0) if wanted else names[:_LISTED]
    return f"{between.join(close)} and {len(names) - len(close):,} others"


class PercolaError(Exception):
    """The root of all errors that Percola raises."""


# --- What the caller asked for cannot be done -------------------------------------------


class UsageError(PercolaError):
    """The call itself is wrong; running it again will not help."""


class UnknownTableError(UsageError):
    """The repository's schema has no such table."""


class UnknownColumnError(UsageError):
    """The table has no such column or family."""


class WrongTypeError(UsageError, TypeError):
    """A row or value is not of the type that its table or column declares."""


class SchemaError(UsageError):
    """A table or column was declared in a way that cannot work."""


class SchemaMismatchError(SchemaError):
    """The schema that the program declares contradicts the one stored in the repository."""


class NoFeedError(UsageError):
    """The table keeps no feed of its changes, or kept none yet at the timestamp asked for."""


class RowTooLongError(UsageError):
    """The row and column together are longer than the store's keys can be."""


class ValueTooLargeError(UsageError):
    """The value is larger than the store accepts."""


class TransactionTooLargeError(UsageError):
    """The transaction writes more than one transaction may; nothing of it was written."""


class TransactionUsedUpError(UsageError):
    """The transaction has committed, rolled back or failed, and cannot be used again."""


class ConflictingOptionsError(UsageError):
    """Two options contradict each other, or one has a value that is not allowed."""


class ObserverError(UsageError):
    """An observer was declared, or combined with others, in a way that cannot work."""


# --- Opening a repository ---------------------------------------------------------------


class RepositoryError(PercolaError):
    """The repository could not be opened or used."""


class NotARepositoryError(RepositoryError):
    """There is no Percola repository at the given place."""


class RepositoryVersionError(RepositoryError):
    """The repository was written in a format that this version of Percola does not read."""


class RepositoryClosedError(RepositoryError):
    """The repository object has been closed."""


class DamagedRecordError(PercolaError, ValueError):
    """Bytes in the store, or in a backup, are not what Percola writes there."""


# --- The store --------------------------------------------------------------------------


class StoreError(RepositoryError):
    """The store refused or failed; the driver's own exception is the cause."""


class StoreFullError(StoreError):
    """There is no room left for what had to be written; nothing of it was written."""


class OutcomeUnknownError(StoreError):
    """The store did not answer: the mutation may or may not have been applied.

    Only stores behind a network raise it. The protocol settles the outcome by reading.
    """


# --- Transactions -----------------------------------------------------------------------


class TransientError(PercolaError):
    """Running the same function in a new transaction may succeed."""


class ConflictError(TransientError):
    """Another transaction wrote, or is writing, a cell that this one wants to write.

    Attributes:
        cell: the cell on which they conflict.
        start_ts: the start timestamp of the transaction that lost.
        winner_ts: the commit timestamp of the winner, or the start timestamp of the
            transaction that holds the lock.
    """

    def __init__(self, cell: Cell, start_ts: int, winner_ts: int, *, locked: bool) -> None:
        super().__init__(cell, start_ts, winner_ts, locked)
        self.cell = cell
        self.start_ts = start_ts
        self.winner_ts = winner_ts
        self.locked = locked

    def __str__(self) -> str:
        what = (
            f"it is locked by the transaction that started at {self.winner_ts}"
            if self.locked
            else f"another transaction committed it at {self.winner_ts}"
        )
        return (
            f"The transaction that started at {self.start_ts} cannot write {self.cell}: {what}. "
            "Run it again in a new transaction (Repository.run does)."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_conflict, (self.cell, self.start_ts, self.winner_ts, self.locked))


def _conflict(cell: Cell, start_ts: int, winner_ts: int, locked: bool) -> ConflictError:
    return ConflictError(cell, start_ts, winner_ts, locked=locked)


class RolledBackError(TransientError):
    """Another client considered this transaction dead and rolled it back before it committed."""


class LockTimeoutError(TransientError):
    """A cell stayed locked by a live transaction for longer than a reader may wait."""


class SnapshotTooOldError(TransientError):
    """Garbage collection has removed versions that a reader at this timestamp would need.

    Attributes:
        ts: the reader's timestamp.
        safe_point: the oldest timestamp at which the repository can be read now.
    """

    def __init__(self, ts: int, safe_point: int) -> None:
        super().__init__(ts, safe_point)
        self.ts = ts
        self.safe_point = safe_point

    def __str__(self) -> str:
        return (
            f"The repository can no longer be read at {self.ts}: garbage collection keeps what "
            f"is needed from {self.safe_point} on. Read at a later timestamp, or keep versions "
            "for longer (the retention of 'percola gc' and of the workers)."
        )


class RetriesExhaustedError(PercolaError):
    """The function kept conflicting; the last conflict is the cause."""


class CommitUnknownError(PercolaError):
    """The store failed at the commit point and the outcome could not be read back.

    The transaction has either committed completely or not at all. `Repository.resolve` settles
    it later from these attributes.

    Attributes:
        primary: the primary cell, whose state decides.
        start_ts: the transaction's start timestamp.
        commit_ts: the timestamp at which it committed, if it did.
    """

    def __init__(self, primary: Cell, start_ts: int, commit_ts: int) -> None:
        super().__init__(primary, start_ts, commit_ts)
        self.primary = primary
        self.start_ts = start_ts
        self.commit_ts = commit_ts

    def __str__(self) -> str:
        return (
            f"The store did not answer while the transaction that started at {self.start_ts} "
            f"committed at {self.commit_ts}; it has committed whole or not at all. "
            f"Its primary is {self.primary}: Repository.resolve(error) settles it later."
        )


# --- Observers and workers --------------------------------------------------------------


class ObserverMismatchError(ObserverError):
    """A live worker observes the same column with other observers than this one."""


class ObserverTimeoutError(PercolaError):
    """An observer ran for longer than its worker allows; its transaction will not commit."""


class NotAnsweredError(PercolaError):
    """No observer has answered a change in the given time, or it was dead-lettered."""

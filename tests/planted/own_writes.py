"""Mistakes in a transaction's own writes: how they are read, and what they count."""

from __future__ import annotations

from tests.planted.planted import Planted

_OWN = "tests/paper/test_2_2_own_writes.py"
_LOCKS = "tests/paper/test_2_2_locks.py"
_LARGE = "tests/paper/test_2_2_large_transactions.py"

PLANTED: list[Planted] = [
    Planted(
        "own-writes-sorted-anew",
        "Each read of a row merges all own writes again instead of those that are new.",
        file="src/percola/transactions/own_writes.py",
        old="while runs and len(runs[-1]) < 2 * len(run):",
        new="while runs:",
        tests=[
            f"{_OWN}::test_moving_cells_into_order_costs_little_however_writes_and_reads_alternate"
        ],
    ),
    Planted(
        "locked-cell-hides-what-is-stored",
        "A cell that is only locked for update reads as deleted in its row.",
        file="src/percola/transactions/own_writes.py",
        old="if op != _LOCK and is_wanted(cell[2], wanted):",
        new="if is_wanted(cell[2], wanted):",
        tests=[
            f"{_OWN}::test_rows_and_ranges_agree_with_a_dictionary_however_writes_and_reads_alternate"
        ],
    ),
    Planted(
        "scan-follows-its-own-writes",
        "A scan looks for own writes behind each row anew, also for those made meanwhile.",
        file="src/percola/transactions/own_writes.py",
        old="        while row:\n            if added := _merged({}, changed):\n"
        "                yield row, added\n",
        new="        while row:\n            if added := _merged({}, changed):\n"
        "                yield row, added\n"
        '            own = self._rows(table, row + b"\\0", end, wanted)\n',
        tests=[f"{_OWN}::test_a_scan_ends_although_each_of_its_rows_writes_one_just_behind_it"],
    ),
    Planted(
        "scan-passes-over-a-new-row-before-a-stored-one",
        "A row that only the transaction has is left out where a stored row follows.",
        file="src/percola/transactions/own_writes.py",
        old="            while row and row < key:\n"
        "                if added := _merged({}, changed):\n"
        "                    yield row, added\n",
        new="            while row and row < key:\n",
        tests=[
            f"{_OWN}::test_rows_and_ranges_agree_with_a_dictionary_however_writes_and_reads_alternate"
        ],
    ),
    Planted(
        "deleted-value-still-counts",
        "Deleting a long value leaves its bytes in the transaction's count.",
        file="src/percola/transactions/transaction.py",
        old='        if self._bytes:\n            self._count_bytes(cell, b"")\n',
        new="",
        tests=[f"{_LARGE}::test_a_cell_that_is_written_again_counts_once_towards_the_bytes"],
    ),
    Planted(
        "one-lock-resolved-for-each-attempt-to-commit",
        "A commit that meets a dead transaction's locks resolves one, and tries again for each.",
        file="src/percola/transactions/transaction.py",
        old="                    raise ConflictError(cell, self.start_ts, start_ts, locked=True)\n",
        new="                    raise ConflictError(cell, self.start_ts, start_ts, locked=True)\n"
        "                return\n",
        tests=[f"{_LOCKS}::test_a_commit_that_meets_many_dead_locks_tries_again_once"],
    ),
]

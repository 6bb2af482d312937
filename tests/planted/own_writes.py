"""Mistakes in a transaction's own writes: how they are read, and what they count."""

from tests.planted.planted import in_file

_OWN = "tests/paper/test_2_2_own_writes.py"
_LARGE = "tests/paper/test_2_2_large_transactions.py"
_LOCKS = "tests/paper/test_2_2_locks.py"
in_own_writes = in_file("src/percola/transactions/own_writes.py", _OWN)
in_transaction = in_file("src/percola/transactions/transaction.py", _LARGE)

PLANTED = [
    in_own_writes(
        "own-writes-sorted-anew",
        "Each read of a row merges all own writes again instead of those that are new.",
        "test_moving_cells_into_order_costs_little_however_writes_and_reads_alternate",
        old="while runs and len(runs[-1]) < 2 * len(run):",
        new="while runs:",
    ),
    in_own_writes(
        "locked-cell-hides-what-is-stored",
        "A cell that is only locked for update reads as deleted in its row.",
        "test_rows_and_ranges_agree_with_a_dictionary_however_writes_and_reads_alternate",
        old="if op != _LOCK and is_wanted(cell[2], wanted):",
        new="if is_wanted(cell[2], wanted):",
    ),
    in_own_writes(
        "scan-follows-its-own-writes",
        "A scan looks for own writes behind each row anew, also for those made meanwhile.",
        "test_a_scan_ends_although_each_of_its_rows_writes_one_just_behind_it",
        old="        while row:\n            if added := _merged({}, changed):\n"
        "                yield row, added\n",
        new="        while row:\n            if added := _merged({}, changed):\n"
        "                yield row, added\n"
        '            own = self._rows(table, row + b"\\0", end, wanted)\n',
    ),
    in_own_writes(
        "scan-passes-over-a-new-row-before-a-stored-one",
        "A row that only the transaction has is left out where a stored row follows.",
        "test_rows_and_ranges_agree_with_a_dictionary_however_writes_and_reads_alternate",
        old="            while row and row < key:\n"
        "                if added := _merged({}, changed):\n"
        "                    yield row, added\n",
        new="            while row and row < key:\n",
    ),
    in_transaction(
        "deleted-value-still-counts",
        "Deleting a long value leaves its bytes in the transaction's count.",
        "test_a_cell_that_is_written_again_counts_once_towards_the_bytes",
        old='        if self._bytes:\n            self._count_bytes(cell, b"")\n',
        new="",
    ),
    in_transaction(
        "one-lock-resolved-for-each-attempt-to-commit",
        "A commit that meets a dead transaction's locks resolves one, and tries again for each.",
        f"{_LOCKS}::test_a_commit_that_meets_many_dead_locks_tries_again_once",
        old="settle_or_conflict(resolver.locks_on(self._writes), self.start_ts)",
        new="settle_or_conflict(itertools.islice(resolver.locks_on(self._writes), 1), "
        "self.start_ts)",
    ),
    in_file("src/percola/transactions/two_phase.py", _LOCKS)(
        "dead-locks-of-refused-rows-settled-one-by-one",
        "A prewrite that meets a dead transaction's locks waits for the disk once for each row.",
        "test_a_commit_in_two_phases_settles_many_dead_locks_in_a_few_calls",
        old="                if len(refused) > 1:\n",
        new="                if False:\n",
    ),
]

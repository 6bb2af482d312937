"""Mistakes in joint transactions whose job has read the rows that it writes."""

from tests.planted.planted import in_file

_TESTS = "tests/paper/test_2_2_joint_reads.py"
in_attempt = in_file("src/percola/transactions/jobs/attempt.py", _TESTS)

PLANTED = [
    in_attempt(
        "read-row-is-checked-from-the-start",
        "A change between the job's reading and its first lock is lost.",
        "test_a_row_that_was_changed_after_it_was_read_fails_the_job",
        old="        low = self._newest if self._read_at is None else self._read_at + 1\n",
        new="        low = self._newest\n",
    ),
    in_attempt(
        "rolled-back-counts-as-change",
        "A transaction that was rolled back fails every job that has read the row.",
        "test_a_rolled_back_transaction_is_no_change",
        old="            if decode_write(raw).op is not Op.ROLLBACK:\n",
        new="            if decode_write(raw).op:\n",
    ),
    in_attempt(
        "lock-record-is-no-change",
        "A transaction that relies on the row as it was commits in between.",
        "test_a_row_that_was_changed_after_it_was_read_fails_the_job",
        old="            if decode_write(raw).op is not Op.ROLLBACK:\n",
        new="            if decode_write(raw).op not in (Op.ROLLBACK, Op.LOCK):\n",
    ),
    in_attempt(
        "locked-cell-is-deleted",
        "A cell that is only locked has no value to put, and is deleted.",
        "test_a_cell_that_is_only_locked_keeps_others_away_and_keeps_its_version",
        old="                op = Op.LOCK\n",
        new="                pass\n",
    ),
    in_attempt(
        "locked-cell-notifies",
        "Observers run for a cell that has not changed.",
        "test_an_observed_cell_that_is_only_locked_notifies_nobody",
        old="                op is not Op.LOCK and columns.get((table, column)) is True,\n",
        new="                columns.get((table, column)) is True,\n",
    ),
    in_attempt(
        "locks-are-left-out",
        "Cells that the job has read and does not change are not locked.",
        "test_a_cell_that_is_only_locked_must_not_have_changed_either",
        "test_a_cell_that_is_only_locked_keeps_others_away_and_keeps_its_version",
        old="            return {**dict.fromkeys(writes.locks), **writes.cells}\n",
        new="            return writes.cells\n",
    ),
    in_attempt(
        "second-row-wins",
        "Of two rows with one key the later one counts.",
        "test_a_row_is_written_once",
        old="                        if self._read_at is not None and not one.unsure:\n",
        new="                        if self._read_at is None and not one.unsure:\n",
    ),
    in_attempt(
        "lost-reply-is-a-second-row",
        "A job fails because the reply to its own prewrite was lost.",
        "test_a_lost_reply_is_no_second_row",
        old="                    one.unsure = unsure\n",
        new="                    pass\n",
    ),
    in_file("src/percola/transactions/jobs/coordinator.py", _TESTS)(
        "safe-point-of-the-locks-only",
        "What garbage collection removed between the reading and the locks is taken for no change.",
        "test_what_garbage_collection_may_have_removed_since_fails_the_job",
        old="        self._oldest_ts = oldest_ts if read_at is None else min(oldest_ts, read_at)\n",
        new="        self._oldest_ts = oldest_ts\n",
    ),
]

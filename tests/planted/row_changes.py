"""Mistakes in joint transactions whose job has read the rows that it writes."""

from __future__ import annotations

from tests.planted.planted import Planted

_TESTS = "tests/paper/test_2_2_joint_reads.py::"
_ATTEMPT = "src/percola/transactions/jobs/attempt.py"

PLANTED = [
    Planted(
        "read-row-is-checked-from-the-start",
        "A change between the job's reading and its first lock is lost.",
        file=_ATTEMPT,
        old="        low = self._newest if self._read_at is None else self._read_at + 1\n",
        new="        low = self._newest\n",
        tests=[_TESTS + "test_a_row_that_was_changed_after_it_was_read_fails_the_job"],
    ),
    Planted(
        "rolled-back-counts-as-change",
        "A transaction that was rolled back fails every job that has read the row.",
        file=_ATTEMPT,
        old="            if decode_write(raw).op is not Op.ROLLBACK:\n",
        new="            if decode_write(raw).op:\n",
        tests=[_TESTS + "test_a_rolled_back_transaction_is_no_change"],
    ),
    Planted(
        "lock-record-is-no-change",
        "A transaction that relies on the row as it was commits in between.",
        file=_ATTEMPT,
        old="            if decode_write(raw).op is not Op.ROLLBACK:\n",
        new="            if decode_write(raw).op not in (Op.ROLLBACK, Op.LOCK):\n",
        tests=[_TESTS + "test_a_row_that_was_changed_after_it_was_read_fails_the_job"],
    ),
    Planted(
        "locked-cell-is-deleted",
        "A cell that is only locked has no value to put, and is deleted.",
        file=_ATTEMPT,
        old="                op = Op.LOCK\n",
        new="                pass\n",
        tests=[_TESTS + "test_a_cell_that_is_only_locked_keeps_others_away_and_keeps_its_version"],
    ),
    Planted(
        "locked-cell-notifies",
        "Observers run for a cell that has not changed.",
        file=_ATTEMPT,
        old="                op is not Op.LOCK and columns.get((table, column)) is True,\n",
        new="                columns.get((table, column)) is True,\n",
        tests=[_TESTS + "test_an_observed_cell_that_is_only_locked_notifies_nobody"],
    ),
    Planted(
        "locks-are-left-out",
        "Cells that the job has read and does not change are not locked.",
        file=_ATTEMPT,
        old="            return {**dict.fromkeys(writes.locks), **writes.cells}\n",
        new="            return writes.cells\n",
        tests=[
            _TESTS + "test_a_cell_that_is_only_locked_must_not_have_changed_either",
            _TESTS + "test_a_cell_that_is_only_locked_keeps_others_away_and_keeps_its_version",
        ],
    ),
    Planted(
        "second-row-wins",
        "Of two rows with one key the later one counts.",
        file=_ATTEMPT,
        old="                        if self._read_at is not None and not one.unsure:\n",
        new="                        if self._read_at is None and not one.unsure:\n",
        tests=[_TESTS + "test_a_row_is_written_once"],
    ),
    Planted(
        "lost-reply-is-a-second-row",
        "A job fails because the reply to its own prewrite was lost.",
        file=_ATTEMPT,
        old="                    one.unsure = unsure\n",
        new="                    pass\n",
        tests=[_TESTS + "test_a_lost_reply_is_no_second_row"],
    ),
    Planted(
        "safe-point-of-the-locks-only",
        "What garbage collection removed between the reading and the locks is taken for no change.",
        file="src/percola/transactions/jobs/coordinator.py",
        old="        self._oldest_ts = oldest_ts if read_at is None else min(oldest_ts, read_at)\n",
        new="        self._oldest_ts = oldest_ts\n",
        tests=[_TESTS + "test_what_garbage_collection_may_have_removed_since_fails_the_job"],
    ),
]

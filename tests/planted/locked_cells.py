"""Mistakes in records that change nothing, and in their collection."""

from __future__ import annotations

from tests.planted.planted import Planted

_TESTS = "tests/paper/test_2_2_locked_cells.py::"

PLANTED = [
    Planted(
        "unlocked-rollback-repeats",
        "A rollback record written without a lock hides what commits below it afterwards.",
        file="src/percola/transactions/lock_resolver.py",
        old="        last_change = None\n        if held:\n",
        new=(
            "        last_change = newest_change(\n"
            "            self._store.entries(primary, Kind.WRITE, 0, start_ts - 1, 1),\n"
            "            complete=True,\n"
            "        )\n        if held:\n"
        ),
        tests=[_TESTS + "test_a_rollback_record_without_a_lock_does_not_say_what_is_newest"],
    ),
    Planted(
        "deciding-lock-is-collected",
        "The record that says what has become of a transaction goes above the safe point.",
        file="src/percola/gc/rules.py",
        old="            and not record.decides\n",
        new="",
        tests=[
            _TESTS + "test_a_lock_that_decides_about_others_is_collected_below_the_safe_point_only"
        ],
    ),
    Planted(
        "rollback-counts-as-commit",
        "A lock-only record goes because of a rollback record that stops nobody.",
        file="src/percola/gc/rules.py",
        old="        committed = committed or record.op is not Op.ROLLBACK\n",
        new="        committed = True\n",
        tests=[_TESTS + "test_another_transactions_rollback_record_is_no_newer_commit"],
    ),
    Planted(
        "kept-rollback-repeats-what-goes",
        "A rollback record outlives a delete, and brings back the value below it.",
        file="src/percola/gc/rules.py",
        old="            if ts <= safe_point and record.last_change is not None:\n",
        new="            if ts < 0 and record.last_change is not None:\n",
        tests=[_TESTS + "test_a_rollback_record_that_stays_repeats_no_change_that_goes"],
    ),
    Planted(
        "one-step-lock-repeats-a-record",
        "A lock-only record on top of another one repeats that one instead of the last change.",
        file="src/percola/cells.py",
        old="        if record.last_change is not None:\n            return record.last_change\n",
        new="        if record.last_change is not None:\n            return NO_CHANGE\n",
        tests=[_TESTS + "test_a_locked_cell_says_what_is_its_newest_change"],
    ),
    Planted(
        "long-value-without-its-start",
        "A lock on a cell with a long value repeats a put whose data nobody finds.",
        file="src/percola/transactions/transaction.py",
        old="            return LastChange(*records[0])\n",
        new="            return LastChange(commit_ts, encode_write(_PUT, 0))\n",
        tests=[_TESTS + "test_a_locked_cell_says_what_is_its_newest_change"],
    ),
]

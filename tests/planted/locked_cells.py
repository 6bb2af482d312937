"""Mistakes in records that change nothing, and in their collection."""

from tests.planted.planted import in_file

_TESTS = "tests/paper/test_2_2_locked_cells.py"
in_rules = in_file("src/percola/gc/rules.py", _TESTS)

PLANTED = [
    in_file("src/percola/transactions/lock_resolver.py", _TESTS)(
        "unlocked-rollback-repeats",
        "A rollback record written without a lock hides what commits below it afterwards.",
        "test_a_rollback_record_without_a_lock_does_not_say_what_is_newest",
        old="        last_change = None\n        if held:\n",
        new="        last_change = newest_change(\n"
        "            self._store.entries(primary, Kind.WRITE, 0, start_ts - 1, 1),\n"
        "            complete=True,\n"
        "        )\n        if held:\n",
    ),
    in_rules(
        "deciding-lock-is-collected",
        "The record that says what has become of a transaction goes above the safe point.",
        "test_a_lock_that_decides_about_others_is_collected_below_the_safe_point_only",
        old="            and not record.decides\n",
        new="",
    ),
    in_rules(
        "rollback-counts-as-commit",
        "A lock-only record goes because of a rollback record that stops nobody.",
        "test_another_transactions_rollback_record_is_no_newer_commit",
        old="        committed = committed or record.op is not Op.ROLLBACK\n",
        new="        committed = True\n",
    ),
    in_rules(
        "kept-rollback-repeats-what-goes",
        "A rollback record outlives a delete, and brings back the value below it.",
        "test_a_rollback_record_that_stays_repeats_no_change_that_goes",
        old="                if record.last_change is not None:\n",
        new="                if False:\n",
    ),
    in_file("src/percola/cells.py", _TESTS)(
        "one-step-lock-repeats-a-record",
        "A lock-only record on top of another one repeats that one instead of the last change.",
        "test_a_locked_cell_says_what_is_its_newest_change",
        old="        if record.last_change is not None:\n            return record.last_change\n",
        new="        if record.last_change is not None:\n            return NO_CHANGE\n",
    ),
    in_file("src/percola/transactions/transaction.py", _TESTS)(
        "long-value-without-its-start",
        "A lock on a cell with a long value repeats a put whose data nobody finds.",
        "test_a_locked_cell_says_what_is_its_newest_change",
        old="            return LastChange(*records[0])\n",
        new="            return LastChange(commit_ts, encode_write(_PUT, 0))\n",
    ),
]

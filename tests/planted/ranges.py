"""Mistakes in work on ranges of rows: positions, copies in ranges, and their history."""

from __future__ import annotations

from tests.planted.planted import Planted

RANGES = "tests/unit/test_ranges.py::"
COPIES = "tests/paper/test_2_1_copies.py::"
PARTS = "tests/unit/test_copy_parts.py::"

PLANTED = [
    Planted(
        "position-of-another-run",
        "A task that is run again goes on where a task of another run was, in another range.",
        file="src/percola/ranges.py",
        old="found = self._store.entries(cell, Kind.DATA, self.run, self.run)",
        new="found = self._store.entries(cell, Kind.DATA, 0, MAX_TS, 1)",
        tests=[RANGES + "test_a_run_that_was_replaced_stores_nothing_and_knows"],
    ),
    Planted(
        "position-is-stored-by-anybody",
        "A process that was replaced stores its positions beside those of the new run.",
        file="src/percola/ranges.py",
        old="            [RowMutation(SYSTEM_TABLE, self._row, self._is_last(self.run), [put])]",
        new="            [RowMutation(SYSTEM_TABLE, self._row, [], [put])]",
        tests=[RANGES + "test_a_run_that_was_replaced_stores_nothing_and_knows"],
    ),
    Planted(
        "position-before-the-rows",
        "A copy stores its position before the rows up to it are in the target.",
        file="src/percola/maintenance/copy.py",
        old="            if following is None or cursor.is_due(following):",
        new="            if following is None:",
        tests=[COPIES + "test_a_copy_that_was_interrupted_goes_on_at_the_same_timestamp"],
    ),
    Planted(
        "copy-does-not-ask",
        "A process whose copy others have finished writes into the repository that it is by now.",
        file="src/percola/maintenance/copy.py",
        old="            if not self._walk.is_current():",
        new="            if False:",
        tests=[COPIES + "test_of_two_copies_into_one_target_one_ends"],
    ),
    Planted(
        "history-without-its-beginning",
        "A copy with its history lacks what was there at its oldest timestamp.",
        file="src/percola/maintenance/copy.py",
        old="        return [*above, *puts]",
        new="        return above",
        tests=[COPIES + "test_a_copy_with_its_history_can_be_read_wherever_the_source_can"],
    ),
    Planted(
        "part-is-trusted",
        "A file that a task has written is put into a copy before its checksum was looked at.",
        file="src/percola/maintenance/parts.py",
        old="""        for _ in _pieces(file, path):
            pass
        file.seek(0)
""",
        new="",
        tests=[PARTS + "test_a_file_that_is_not_whole_ends_a_backup_and_the_next_one_is_right"],
    ),
]

"""Mistakes in work on ranges of rows: positions, copies in ranges, and their history."""

from tests.planted.planted import in_file

_RANGES = "tests/unit/test_ranges.py"
_COPIES = "tests/paper/test_2_1_copies.py"
_PARTS = "tests/unit/test_copy_parts.py"
in_ranges = in_file("src/percola/ranges.py", _RANGES)
in_copy = in_file("src/percola/maintenance/copy.py", _COPIES)

PLANTED = [
    in_ranges(
        "position-of-another-run",
        "A task that is run again goes on where a task of another run was, in another range.",
        "test_a_run_that_was_replaced_stores_nothing_and_knows",
        old="found = self._store.entries(cell, Kind.DATA, self.run, self.run)",
        new="found = self._store.entries(cell, Kind.DATA, 0, MAX_TS, 1)",
    ),
    in_ranges(
        "position-is-stored-by-anybody",
        "A process that was replaced stores its positions beside those of the new run.",
        "test_a_run_that_was_replaced_stores_nothing_and_knows",
        old="            [RowMutation(SYSTEM_TABLE, self._row, self._is_last(self.run), [put])]",
        new="            [RowMutation(SYSTEM_TABLE, self._row, [], [put])]",
    ),
    in_copy(
        "position-before-the-rows",
        "A copy stores its position before the rows up to it are in the target.",
        "test_a_copy_that_was_interrupted_goes_on_at_the_same_timestamp",
        old="            if not cursor.move(following, first=self._flush):",
        new="            if not cursor.move(following):",
    ),
    in_copy(
        "copy-does-not-ask",
        "A process whose copy others have finished writes into the repository that it is by now.",
        "test_of_two_copies_into_one_target_one_ends",
        old="            if not self._walk.is_current():",
        new="            if False:",
    ),
    in_copy(
        "history-without-its-beginning",
        "A copy with its history lacks what was there at its oldest timestamp.",
        "test_a_copy_with_its_history_can_be_read_wherever_the_source_can",
        old="            if at > self._floor or op is Op.PUT:",
        new="            if at > self._floor:",
    ),
    in_file("src/percola/store/walks.py", _COPIES)(
        "copy-of-few-versions",
        "Of a cell with many versions, a copy has only those that were read first.",
        "test_of_a_cell_with_many_versions_few_are_read_and_held_at_once",
        old="        while len(records) >= self._most:",
        new="        while False:",
    ),
    in_file("src/percola/maintenance/parts.py", _PARTS)(
        "part-is-trusted",
        "A file that a task has written is put into a copy before its checksum was looked at.",
        "test_a_file_that_is_not_whole_ends_a_backup_and_the_next_one_is_right",
        old="""        for _ in _pieces(file, path):
            pass
        file.seek(0)
""",
        new="",
    ),
]

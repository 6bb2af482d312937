"""Mistakes in what a worker's scanners share about clean tables, and in what a wake-up says."""

from tests.planted.planted import in_file

_SCANNING = "tests/paper/test_2_4_scanning.py"
_WORKER = "tests/paper/test_2_4_worker.py"
_WAKE_UPS = "tests/unit/test_wake_ups.py"
_LOCAL = "tests/unit/test_coordination_local.py"
_SERVICE = "tests/unit/test_lock_service.py"
_PROCESSES = "tests/integration/test_oracle_lock_service.py"
_DEFERRED = "tests/paper/test_2_4_deferred.py"
_CLEAN_TABLES = "tests/unit/test_clean_tables.py"
in_clean_tables = in_file("src/percola/observers/clean_tables.py", _SCANNING)
in_scanner = in_file("src/percola/observers/scanner.py", _SCANNING)

PLANTED = [
    in_clean_tables(
        "threads-do-not-share",
        "Each scanner of a worker scans every table that a wake-up names.",
        "test_while_one_scanner_looks_others_wait_until_there_is_work_for_them",
        old="            if looking is not None and looking[0] == number",
        new="            if looking is not None and looking[0] != number",
    ),
    in_scanner(
        "work-is-kept-to-one-thread",
        "A scanner that finds much to do does not tell the others, which it has sent away.",
        "test_while_one_scanner_looks_others_wait_until_there_is_work_for_them",
        old="several=len(ahead) > 1 or self._has_more)",
        new="several=False)",
    ),
    in_scanner(
        "failed-look-goes-on",
        "A scanner whose scan failed keeps the others from the table.",
        "test_a_scan_that_fails_leaves_its_table_to_others",
        old="self._clean.end(columns, table, self, look, left)\n",
        new="left is not None and self._clean.end(columns, table, self, look, left)\n",
    ),
    in_scanner(
        "looking-counts-as-work",
        "Debounced work is put off whenever another scanner of the worker looks and finds nothing.",
        f"{_DEFERRED}::test_a_deferred_observer_waits_while_another_scanner_looks_and_no_longer",
        old="found |= Found.ELSEWHERE\n",
        new="found |= Found.HELD\n",
    ),
    in_clean_tables(
        "turn-of-each-thread",
        "A scanner that takes its turn forgets only what is its own, so nothing.",
        "test_what_nobody_rang_for_is_found_when_it_is_time_to_look_everywhere",
        old="            self._turn_at = now + self._rescan\n            self._clean.clear()\n",
        new="            self._turn_at = now + self._rescan\n",
    ),
    in_file("src/percola/observers/worker.py", _WORKER)(
        "started-again-and-clean",
        "A worker that is started again takes tables for clean that it found clean before.",
        "test_a_worker_that_works_again_finds_what_it_was_not_woken_for",
        old="        self._schedule.clean.forget()  # Wake-ups before did not arrive here.\n",
        new="",
    ),
    in_clean_tables(
        "rows-left-are-forgotten",
        "A row that was left with something to do is not scanned again before the next wake-up.",
        f"{_CLEAN_TABLES}::test_whatever_is_dirty_is_scanned",
        "TestRows::test_a_row_that_another_process_works_on_is_looked_at_alone",
        old="self._clean[key] = look.number, left\n",
        new="self._clean[key] = look.number, _NO_ROWS\n",
    ),
    in_clean_tables(
        "whole-table-forgotten-for-a-row",
        "After a wake-up about a whole table, one about a row has only that row scanned.",
        f"{_CLEAN_TABLES}::test_a_wake_up_about_the_whole_table_is_not_forgotten_"
        "for_one_about_a_row",
        old="            if count != missing:\n                return None\n",
        new="            missing = count\n",
    ),
    in_clean_tables(
        "wake-ups-no-longer-kept-are-forgotten",
        "Where wake-ups about rows are no longer kept, the rows of those that are count as all.",
        f"{_CLEAN_TABLES}::test_many_rows_are_not_kept",
        old="return found if missing == number[1] and len(found) <= _ROWS else None\n",
        new="return found if len(found) <= _ROWS else None\n",
    ),
    in_scanner(
        "scan-cut-short-is-clean",
        "A scan that stopped at a row of another scanner counts as one of all rows.",
        "TestRows::test_rows_beside_one_that_another_process_works_on_are_served",
        old="if not (met or self._is_cut or table in self._left or self._runs.stopping):\n",
        new="if not (self._is_cut or table in self._left or self._runs.stopping):\n",
    ),
    in_scanner(
        "long-row-ends-at-its-beginning",
        "Of a row longer than a wake-up has it, only the row that is its beginning is scanned.",
        "TestRows::test_a_long_row_is_found_by_its_beginning",
        old='end = after_prefix(last) if len(last) >= ROW_BYTES else last + b"\\0"\n',
        new='end = last + b"\\0"\n',
    ),
    in_file("src/percola/coordination/wake_ups.py", _WAKE_UPS)(
        "rows-of-one-wake-up-only",
        "Of two wake-ups about rows of a table, joined ones are about the later one's.",
        "test_two_wake_ups_about_rows_are_one_about_all_of_them",
        old="else known | rows\n",
        new="else rows\n",
    ),
    in_file("src/percola/coordination/local/coordination.py", _LOCAL)(
        "full-fifo-names-tables",
        "A process takes a FIFO without room for more for wake-ups of those tables alone.",
        "test_whoever_has_many_wake_ups_to_read_takes_them_for_all_tables",
        old="marks = EVERY_TABLE if len(raw) > _MANY else read_marks(raw)\n",
        new="marks = read_marks(raw)\n",
    ),
    in_file("src/percola/coordination/lock_service/server.py", _SERVICE)(
        "wake-ups-do-not-join",
        "Of two wake-ups that the lock service sends as one, the later one's tables are told.",
        "test_a_wake_up_names_the_tables_of_all_that_it_stands_for",
        old="            self._due = joined(self._due, told)\n",
        new="            self._due = told\n",
    ),
    in_file("src/percola/coordination/lock_service/server.py", _SERVICE)(
        "a-worker-takes-untold-rows-with-it",
        "A session that leaves its pool is not told of what the pool has yet to be told of.",
        "test_one_that_ends_or_changes_its_pool_takes_no_row_with_it",
        old="            if session.pool.has_untold:\n",
        new="            if False:\n",
    ),
    in_file("src/percola/coordination/lock_service/server.py", _SERVICE)(
        "idle-workers-of-the-dead",
        "A session that has ended stays among the idle ones, which are told of rows.",
        "test_one_that_ends_or_changes_its_pool_takes_no_row_with_it",
        old="        pool.idle.pop(session, None)\n",
        new="",
    ),
    in_file("src/percola/coordination/lock_service/client.py", _PROCESSES)(
        "a-stopped-worker-is-told-of-rows",
        "A process whose worker has stopped goes on to count as idle.",
        "test_one_idle_worker_is_told_of_a_changed_row_and_none_waits_for_a_scan",
        old="            if not self._callbacks:\n",
        new="            if False:\n",
    ),
]

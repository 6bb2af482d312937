"""Mistakes in what a worker's scanners share about clean tables, and in what a wake-up says."""

from __future__ import annotations

from tests.planted.planted import Planted

SCANNING = "tests/paper/test_2_4_scanning.py::"
TOGETHER = SCANNING + "test_while_one_scanner_looks_others_wait_until_there_is_work_for_them"
DEFERRED = "tests/paper/test_2_4_deferred.py::"
WORKER = "tests/paper/test_2_4_worker.py::"
LOCAL = "tests/unit/test_coordination_local.py::"
SERVICE = "tests/unit/test_lock_service.py::"
ROWS = SCANNING + "TestRows::"
CLEAN_TABLES = "tests/unit/test_clean_tables.py::"
MODEL = CLEAN_TABLES + "test_whatever_is_dirty_is_scanned"
WAKE_UPS = "tests/unit/test_wake_ups.py::"
CLEAN = "src/percola/observers/clean_tables.py"
SCANNER = "src/percola/observers/scanner.py"

PLANTED: list[Planted] = [
    Planted(
        "threads-do-not-share",
        "Each scanner of a worker scans every table that a wake-up names.",
        file=CLEAN,
        old="            if looking is not None and looking[0] == number",
        new="            if looking is not None and looking[0] != number",
        tests=[TOGETHER],
    ),
    Planted(
        "work-is-kept-to-one-thread",
        "A scanner that finds much to do does not tell the others, which it has sent away.",
        file=SCANNER,
        old="several=len(ahead) > 1 or self._has_more)",
        new="several=False)",
        tests=[TOGETHER],
    ),
    Planted(
        "failed-look-goes-on",
        "A scanner whose scan failed keeps the others from the table.",
        file=SCANNER,
        old="self._clean.end(columns, table, self, look, left)\n",
        new="left is not None and self._clean.end(columns, table, self, look, left)\n",
        tests=[SCANNING + "test_a_scan_that_fails_leaves_its_table_to_others"],
    ),
    Planted(
        "looking-counts-as-work",
        "Debounced work is put off whenever another scanner of the worker looks and finds nothing.",
        file=SCANNER,
        old="found |= Found.ELSEWHERE\n",
        new="found |= Found.HELD\n",
        tests=[
            DEFERRED + "test_a_deferred_observer_waits_while_another_scanner_looks_and_no_longer"
        ],
    ),
    Planted(
        "turn-of-each-thread",
        "A scanner that takes its turn forgets only what is its own, so nothing.",
        file=CLEAN,
        old="            self._turn_at = now + self._rescan\n            self._clean.clear()\n",
        new="            self._turn_at = now + self._rescan\n",
        tests=[SCANNING + "test_what_nobody_rang_for_is_found_when_it_is_time_to_look_everywhere"],
    ),
    Planted(
        "started-again-and-clean",
        "A worker that is started again takes tables for clean that it found clean before.",
        file="src/percola/observers/worker.py",
        old="        self._schedule.clean.forget()  # Wake-ups before did not arrive here.\n",
        new="",
        tests=[WORKER + "test_a_worker_that_works_again_finds_what_it_was_not_woken_for"],
    ),
    Planted(
        "rows-left-are-forgotten",
        "A row that was left with something to do is not scanned again before the next wake-up.",
        file=CLEAN,
        old="self._clean[key] = look.number, left\n",
        new="self._clean[key] = look.number, _NO_ROWS\n",
        tests=[MODEL, ROWS + "test_a_row_that_another_process_works_on_is_looked_at_alone"],
    ),
    Planted(
        "whole-table-forgotten-for-a-row",
        "After a wake-up about a whole table, one about a row has only that row scanned.",
        file=CLEAN,
        old="            if count != missing:\n                return None\n",
        new="            missing = count\n",
        tests=[
            CLEAN_TABLES
            + "test_a_wake_up_about_the_whole_table_is_not_forgotten_for_one_about_a_row"
        ],
    ),
    Planted(
        "wake-ups-no-longer-kept-are-forgotten",
        "Where wake-ups about rows are no longer kept, the rows of those that are count as all.",
        file=CLEAN,
        old="return found if missing == number[1] and len(found) <= _ROWS else None\n",
        new="return found if len(found) <= _ROWS else None\n",
        tests=[CLEAN_TABLES + "test_many_rows_are_not_kept"],
    ),
    Planted(
        "scan-cut-short-is-clean",
        "A scan that stopped at a row of another scanner counts as one of all rows.",
        file=SCANNER,
        old="if not (met or self._is_cut or table in self._left or self._runs.stopping):\n",
        new="if not (self._is_cut or table in self._left or self._runs.stopping):\n",
        tests=[ROWS + "test_rows_beside_one_that_another_process_works_on_are_served"],
    ),
    Planted(
        "long-row-ends-at-its-beginning",
        "Of a row longer than a wake-up has it, only the row that is its beginning is scanned.",
        file=SCANNER,
        old='end = after_prefix(last) if len(last) >= ROW_BYTES else last + b"\\0"\n',
        new='end = last + b"\\0"\n',
        tests=[ROWS + "test_a_long_row_is_found_by_its_beginning"],
    ),
    Planted(
        "rows-of-one-wake-up-only",
        "Of two wake-ups about rows of a table, joined ones are about the later one's.",
        file="src/percola/coordination/wake_ups.py",
        old="else known | rows\n",
        new="else rows\n",
        tests=[WAKE_UPS + "test_two_wake_ups_about_rows_are_one_about_all_of_them"],
    ),
    Planted(
        "full-fifo-names-tables",
        "A process takes a FIFO without room for more for wake-ups of those tables alone.",
        file="src/percola/coordination/local/coordination.py",
        old="marks = EVERY_TABLE if len(raw) > _MANY else read_marks(raw)\n",
        new="marks = read_marks(raw)\n",
        tests=[LOCAL + "test_whoever_has_many_wake_ups_to_read_takes_them_for_all_tables"],
    ),
    Planted(
        "wake-ups-do-not-join",
        "Of two wake-ups that the lock service sends as one, the later one's tables are told.",
        file="src/percola/coordination/lock_service/server.py",
        old="        self._due = joined(self._due, wake_up)\n",
        new="        self._due = wake_up\n",
        tests=[SERVICE + "test_a_wake_up_names_the_tables_of_all_that_it_stands_for"],
    ),
]

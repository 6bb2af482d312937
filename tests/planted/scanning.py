"""Mistakes in what a worker's scanners share about clean tables, and in what a wake-up says."""

from __future__ import annotations

from tests.planted.planted import Planted

SCANNING = "tests/paper/test_2_4_scanning.py::"
TOGETHER = SCANNING + "test_while_one_scanner_looks_others_wait_until_there_is_work_for_them"
DEFERRED = "tests/paper/test_2_4_deferred.py::"
WORKER = "tests/paper/test_2_4_worker.py::"
LOCAL = "tests/unit/test_coordination_local.py::"
SERVICE = "tests/unit/test_lock_service.py::"
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
        old="several=len(ahead) > 1)",
        new="several=False)",
        tests=[TOGETHER],
    ),
    Planted(
        "failed-look-goes-on",
        "A scanner whose scan failed keeps the others from the table.",
        file=SCANNER,
        old="self._clean.end(columns, table, self, number, is_clean=is_clean)\n",
        new="is_clean and self._clean.end(columns, table, self, number, is_clean=True)\n",
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
        old="        self._due = joined(self._due, marks)\n",
        new="        self._due = marks\n",
        tests=[SERVICE + "test_a_wake_up_names_the_tables_of_all_that_it_stands_for"],
    ),
]

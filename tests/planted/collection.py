"""Mistakes in garbage collection, holds, the safe point, and the files that processes share."""

from __future__ import annotations

from tests.planted.planted import Planted

GC = "tests/paper/test_2_1_garbage_collection.py::"
HOLDS = "tests/paper/test_2_1_holds.py::"
TIME = "tests/paper/test_2_1_time.py::"
HOT = "tests/paper/test_2_1_hot_rows.py::"
ANSWERS = "tests/paper/test_2_4_answers.py::"
FILES = "tests/unit/test_local_files.py::"

PLANTED = [
    Planted(
        "hold-written-without-condition",
        "A hold that others have overtaken is written beside theirs, and does not count.",
        file="src/percola/gc/retention_holds.py",
        old="[RowMutation(cell.table, cell.row, [first], changes)]",
        new="[RowMutation(cell.table, cell.row, [], changes)]",
        tests=[
            HOLDS + "test_a_hold_that_others_have_overtaken_is_written_anew_"
            "and_is_the_one_that_stands"
        ],
    ),
    Planted(
        "hold-does-not-look-at-the-safe-point",
        "A hold is granted although the collector has already passed its timestamp.",
        file="src/percola/gc/retention_holds.py",
        old="if (safe_point := store.safe_point()) > ts:",
        new="if (safe_point := store.safe_point()) < 0:",
        tests=[
            HOLDS + "test_a_collector_that_looked_before_the_hold_makes_no_wrong_answer",
            HOLDS + "test_what_is_gone_cannot_be_held_and_leaves_no_hold",
        ],
    ),
    Planted(
        "only-the-newest-hold-counts",
        "Of several holds, the collector goes by the one of the newest timestamp.",
        file="src/percola/gc/collector.py",
        old="holds(self._store, self._context.clock)[:1]",
        new="holds(self._store, self._context.clock)[-1:]",
        tests=[HOLDS + "test_the_oldest_of_several_counts_and_another_process_sees_it"],
    ),
    Planted(
        "collector-begins-anew",
        "A collector does not go on where the last one was stopped, and may never get further.",
        file="src/percola/gc/collector.py",
        old="turned(walk.unfinished() or Unfinished({}), tables)",
        new="turned(Unfinished({}), tables)",
        tests=[
            GC + "test_a_collector_that_is_stopped_is_followed_by_one_that_goes_on_where_it_was",
            GC + "test_collectors_that_are_all_stopped_after_one_look_get_everywhere_together",
        ],
    ),
    Planted(
        "stopped-walk-counts-as-complete",
        "A collector that is stopped says that it has been everywhere at this safe point.",
        file="src/percola/gc/collector.py",
        old="                if stopped():\n                    return\n        done = Put",
        new="                if stopped():\n                    break\n        done = Put",
        tests=[
            GC + "test_a_collector_that_is_stopped_is_followed_by_one_that_goes_on_where_it_was"
        ],
    ),
    Planted(
        "safe-point-is-raised-after-the-walk",
        "What readers see is removed before they can know that they are too old.",
        file="src/percola/gc/collector.py",
        old="            self._store.raise_safe_point(chosen)\n"
        "        safe_point = collected.safe_point = self._store.safe_point()",
        new="        safe_point = collected.safe_point = max(chosen, self._store.safe_point())",
        tests=[GC + "test_p12_a_reader_below_the_safe_point_gets_an_error_never_a_wrong_answer"],
    ),
    Planted(
        "rollback-records-go-at-once",
        "A rollback record goes while a late prewrite of its transaction may still arrive.",
        file="src/percola/gc/collector.py",
        old="if now - since >= self._store.latest_arrival]",
        new="if now - since >= 0]",
        tests=[GC + "test_p4_a_rollback_record_stays_while_a_late_call_may_still_meet_it"],
    ),
    Planted(
        "every-step-of-a-clock-counts",
        "One machine whose clock is ahead makes everything older for everybody.",
        file="src/percola/gc/time_log.py",
        old="    return max(0, step)",
        new="    return 0",
        tests=[
            TIME + "test_one_machine_whose_clock_is_two_days_ahead_"
            "discards_nothing_that_is_retained"
        ],
    ),
    Planted(
        "steps-between-machines-are-confirmed",
        "The steady clocks of two machines are compared, which have nothing in common.",
        file="src/percola/gc/time_log.py",
        old="if entry.machine and entry.machine == later.machine:",
        new="if entry.machine:",
        tests=[
            TIME + "test_one_machine_whose_clock_is_two_days_ahead_"
            "discards_nothing_that_is_retained",
            TIME + "test_after_a_restart_a_pause_does_not_count_and_the_next_collection_goes_on",
        ],
    ),
    Planted(
        "what-a-clock-that-is-ahead-recorded-is-gone-by",
        "A machine whose clock is ahead keeps the others from collecting anything.",
        file="src/percola/gc/time_log.py",
        old="if entry.wall > now.wall:",
        new="if entry.wall < 0:",
        tests=[TIME + "test_a_machine_that_is_ahead_does_not_keep_the_others_from_collecting"],
    ),
    Planted(
        "newest-part-goes-first",
        "Of a row that goes in parts a delete goes before what it hides, which comes back.",
        file="src/percola/gc/collector.py",
        old="ordered = changes[::-1]",
        new="ordered = changes[:]",
        tests=[HOT + "test_a_row_with_much_to_remove_goes_in_parts_and_reads_the_same_in_between"],
    ),
    Planted(
        "refused-removal-is-forgotten",
        "A worker goes round for ever while the store refuses to remove what was answered.",
        file="src/percola/observers/observer.py",
        old="        raise transaction.unfinished",
        new="        return",
        tests=[
            ANSWERS + "test_while_the_store_refuses_to_remove_what_is_answered_"
            "a_worker_pauses_and_then_ends"
        ],
    ),
    Planted(
        "mapped-file-is-sparse",
        "A mapped file gets its length without blocks: on a full disk, that is SIGBUS.",
        file="src/percola/platform/files.py",
        old="            allocate(fd, size)",
        new="            os.ftruncate(fd, size)",
        tests=[FILES + "test_files_that_are_mapped_have_all_their_blocks"],
    ),
    Planted(
        "lock-files-follow-who-may-read",
        "A user who may only read the folder can lock its files, and stop all writers.",
        file="src/percola/platform/files.py",
        old="            if granted & needed != needed:",
        new="            if not granted & users:",
        tests=[FILES + "test_in_a_folder_that_is_there_permissions_follow_the_folders"],
    ),
    Planted(
        "exporter-begins-each-batch-at-the-windows-beginning",
        "Each batch of exports passes over all that were deleted before it.",
        file="src/percola/recipes/export.py",
        old='after=reached.pop(window, "")',
        new='after=""',
        tests=[
            "tests/unit/test_recipes_export.py::test_exporting_does_not_pass_over_what_it_has_just_deleted"
        ],
    ),
]

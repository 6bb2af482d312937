"""Mistakes in garbage collection, holds, the safe point, and the files that processes share."""

from tests.planted.planted import in_file

_HOLDS = "tests/paper/test_2_1_holds.py"
_GC = "tests/paper/test_2_1_garbage_collection.py"
_TIME = "tests/paper/test_2_1_time.py"
_ANSWERS = "tests/paper/test_2_4_answers.py"
_FILES = "tests/unit/test_local_files.py"
_RECIPES_EXPORT = "tests/unit/test_recipes_export.py"
_HOT = "tests/paper/test_2_1_hot_rows.py"
in_retention_holds = in_file("src/percola/gc/retention_holds.py", _HOLDS)
in_collector = in_file("src/percola/gc/collector.py", _GC)
in_arrivals = in_file("src/percola/gc/arrivals.py", _GC)
in_time_log = in_file("src/percola/gc/time_log.py", _TIME)
in_files = in_file("src/percola/platform/files.py", _FILES)

PLANTED = [
    in_retention_holds(
        "hold-written-without-condition",
        "A hold that others have overtaken is written beside theirs, and does not count.",
        "test_a_hold_that_others_have_overtaken_is_written_anew_and_is_the_one_that_stands",
        old="[RowMutation(cell.table, cell.row, [first], changes)]",
        new="[RowMutation(cell.table, cell.row, [], changes)]",
    ),
    in_retention_holds(
        "hold-does-not-look-at-the-safe-point",
        "A hold is granted although the collector has already passed its timestamp.",
        "test_a_hold_that_the_collector_has_overtaken_is_refused_and_leaves_no_hold",
        old="if (safe_point := store.safe_point()) > ts:",
        new="if (safe_point := store.safe_point()) < 0:",
    ),
    in_collector(
        "only-the-newest-hold-counts",
        "Of several holds, the collector goes by the one of the newest timestamp.",
        f"{_HOLDS}::test_the_oldest_of_several_counts_and_another_process_sees_it",
        old="holds(self._store, self._context.clock, remove_expired=True)[:1]",
        new="holds(self._store, self._context.clock, remove_expired=True)[-1:]",
    ),
    in_collector(
        "collector-begins-anew",
        "A collector does not go on where the last one was stopped, and may never get further.",
        "test_a_collector_that_is_stopped_is_followed_by_one_that_goes_on_where_it_was",
        "test_collectors_that_are_all_stopped_after_one_look_get_everywhere_together",
        old="turned(left or Unfinished({}), tables)",
        new="turned(Unfinished({}), tables)",
    ),
    in_collector(
        "stopped-walk-counts-as-complete",
        "A collector that is stopped says that it has been everywhere at this safe point.",
        "test_a_collector_that_is_stopped_is_followed_by_one_that_goes_on_where_it_was",
        old="                if stopped():\n                    return\n        done = Put",
        new="                if stopped():\n                    break\n        done = Put",
    ),
    in_collector(
        "safe-point-is-raised-after-the-walk",
        "What readers see is removed before they can know that they are too old.",
        "test_p12_a_reader_below_the_safe_point_gets_an_error_never_a_wrong_answer",
        old="            self._store.raise_safe_point(chosen)\n"
        "        safe_point = collected.safe_point = self._store.safe_point()",
        new="        safe_point = collected.safe_point = max(chosen, self._store.safe_point())",
    ),
    in_arrivals(
        "rollback-records-go-at-once",
        "A rollback record goes while a late prewrite of its transaction may still arrive.",
        "test_p4_a_rollback_record_stays_while_a_late_call_may_still_meet_it",
        old="if now - since >= self._store.latest_arrival]",
        new="if now - since >= 0]",
    ),
    in_arrivals(
        "rollback-records-go-by-the-clock-of-another-machine",
        "A rollback record goes early, by the difference of two machines' steady clocks.",
        "test_p4_rollback_records_go_although_no_collector_lives_long_and_by_one_clock",
        old="is_mine = bool(found.machine) and found.machine == now.machine",
        new="is_mine = bool(found.machine)",
    ),
    in_time_log(
        "every-step-of-a-clock-counts",
        "One machine whose clock is ahead makes everything older for everybody.",
        "test_one_machine_whose_clock_is_two_days_ahead_discards_nothing_that_is_retained",
        old="    return max(0, step)",
        new="    return 0",
    ),
    in_time_log(
        "steps-between-machines-are-confirmed",
        "The steady clocks of two machines are compared, which have nothing in common.",
        "test_one_machine_whose_clock_is_two_days_ahead_discards_nothing_that_is_retained",
        "test_after_a_restart_a_pause_does_not_count_and_the_next_collection_goes_on",
        old="if entry.machine and entry.machine == later.machine:",
        new="if entry.machine:",
    ),
    in_time_log(
        "what-a-clock-that-is-ahead-recorded-is-gone-by",
        "A machine whose clock is ahead keeps the others from collecting anything.",
        "test_a_machine_that_is_ahead_does_not_keep_the_others_from_collecting",
        old="if entry.wall > now.wall:",
        new="if entry.wall < 0:",
    ),
    in_file("src/percola/gc/rules.py", _HOT)(
        "delete-goes-before-what-it-hides",
        "Of a row that goes in parts a delete goes before what it hides, which comes back.",
        "test_a_row_with_much_to_remove_goes_in_parts_and_reads_the_same_in_between",
        old="garbage.last.append(gone)",
        new="garbage.changes.append(gone)",
    ),
    in_collector(
        "all-versions-of-a-row-at-once",
        "A collector reads the millions of versions of a cell into memory.",
        f"{_HOT}::test_of_a_cell_with_many_versions_few_are_read_at_once",
        old="_RECORDS, versions=_VERSIONS",
        new="_RECORDS, versions=None",
    ),
    in_collector(
        "versions-below-those-of-the-scan-stay",
        "Of a cell with many versions only the newest are ever collected.",
        f"{_HOT}::test_a_row_with_much_to_remove_goes_in_parts_and_reads_the_same_in_between",
        old="    while len(records) >= _VERSIONS:",
        new="    while False:",
    ),
    in_collector(
        "removals-gather-in-memory",
        "The removals of a cell with millions of versions are all kept until its end.",
        f"{_HOT}::test_the_removals_of_a_cell_do_not_gather_in_memory",
        old="        if len(garbage.changes) >= MOST_CHANGES:",
        new="        if False:",
    ),
    in_file("src/percola/observers/observer.py", _ANSWERS)(
        "refused-removal-is-forgotten",
        "A worker goes round for ever while the store refuses to remove what was answered.",
        "test_while_the_store_refuses_to_remove_what_is_answered_a_worker_pauses_and_then_ends",
        old="        raise transaction.unfinished",
        new="        return",
    ),
    in_files(
        "mapped-file-is-sparse",
        "A mapped file gets its length without blocks: on a full disk, that is SIGBUS.",
        "test_files_that_are_mapped_have_all_their_blocks",
        old="            allocate(fd, size)",
        new="            os.ftruncate(fd, size)",
    ),
    in_files(
        "lock-files-follow-who-may-read",
        "A user who may only read the folder can lock its files, and stop all writers.",
        "test_in_a_folder_that_is_there_permissions_follow_the_folders",
        old="            if granted & needed != needed:",
        new="            if not granted & users:",
    ),
    in_file("src/percola/recipes/export.py", _RECIPES_EXPORT)(
        "exporter-begins-each-batch-at-the-windows-beginning",
        "Each batch of exports passes over all that were deleted before it.",
        "test_exporting_does_not_pass_over_what_it_has_just_deleted",
        old='after=reached.pop(window, "")',
        new='after=""',
    ),
]

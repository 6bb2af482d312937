"""Mistakes in pausing observers: what a pause stops, what it keeps, and what it costs."""

from tests.planted.planted import in_file

_PAUSED = "tests/paper/test_2_4_paused.py"
_COPIES = "tests/paper/test_2_1_copies.py"
_CLI = "tests/unit/test_cli_observers.py"
_SCANNING = "tests/paper/test_2_4_scanning.py"
in_runner = in_file("src/percola/observers/runner.py", _PAUSED)
in_failures = in_file("src/percola/observers/failures.py", _PAUSED)
in_scanner = in_file("src/percola/observers/scanner.py", _PAUSED)
in_copy = in_file("src/percola/maintenance/copy.py", _COPIES)

PLANTED = [
    in_file("src/percola/observers/pausing.py", _PAUSED)(
        "pause-is-read-once",
        "A thread that is busy goes on running an observer that was paused meanwhile.",
        "test_no_run_begins_a_second_after_a_pause_even_within_one_look",
        old="        if not anew and began - self._read < self._every:\n",
        new="        if not anew and self._read > -math.inf:\n",
    ),
    in_runner(
        "batch-ignores-pauses",
        "A batch of rows begins for an observer that was paused after the scan.",
        "test_a_batch_begins_not_for_an_observer_that_was_paused_after_the_scan",
        old="        if one.name in self.paused.names():\n            return set()\n",
        new="",
    ),
    in_runner(
        "answers-for-a-paused-observer",
        "The last observer of a column removes the notify entries that a paused one waits for.",
        "test_n2_another_observer_of_the_column_goes_on_and_does_not_answer_for_a_paused_one",
        old="                waits, settled = True, 0  # The notify entries stay.\n",
        new="                waits = True\n",
    ),
    in_runner(
        "handled-beside-paused-is-not-noted",
        "Cells that wait for a paused observer are locked and read in each scan.",
        "test_cells_that_wait_beside_another_observer_are_not_looked_at_again_until_there_is_news",
        old="            self.failures.note_handled(handled, dirty)\n",
        new="            pass\n",
    ),
    in_runner(
        "failed-passes-for-handled",
        "An observer that failed beside a paused one is not tried again.",
        "test_a_failing_observer_backs_off_as_before_while_another_one_is_paused",
        old="            if outcome in (Outcome.RAN, Outcome.IDLE):\n",
        new="            if outcome:\n",
    ),
    in_failures(
        "handled-counts-after-the-pause",
        "What all observers have handled, each while another one was paused, is never answered.",
        "test_observers_that_are_paused_in_turn_answer_the_change_between_them",
        old="if waits and all(_is_done(",
        new="if all(_is_done(",
    ),
    in_failures(
        "handled-changes-wait-for-any-paused-observer",
        "What all observers have handled waits until no observer is paused, whatever it observes.",
        "test_observers_that_are_paused_in_turn_answer_the_change_between_them",
        old="waits = len(active) < len(group)",
        new="waits = active is not group",
    ),
    in_scanner(
        "columns-of-paused-observers-are-scanned",
        "A table with nothing but a paused observer's work is scanned each second.",
        "test_a_table_of_paused_observers_alone_is_not_scanned",
        old="        columns -= self._asleep\n",
        new="",
    ),
    in_scanner(
        "small-steps-over-what-waits",
        "A scan over a million cells that wait for a paused observer takes 64 at a time.",
        "test_a_scan_over_waiting_cells_takes_large_steps_and_a_small_part_of_the_time",
        old="            step = max(chunk, min(2 * step, _LONGEST_STEP)) if skips else chunk\n",
        new="            step = chunk\n",
    ),
    in_scanner(
        "scans-in-vain-follow-at-once",
        "However long scans without a wake-up take, there is one a second: of regions without end, "
        "or of cells that wait for a paused observer.",
        "test_a_scan_over_waiting_cells_takes_large_steps_and_a_small_part_of_the_time",
        f"{_SCANNING}::test_scans_without_a_wake_up_take_a_tenth_of_the_time_at_most",
        old="            self._clean.put_off(now + min(LONGEST_REST, RESTS * (now - began)))\n",
        new="            pass\n",
    ),
    in_failures(
        "paused-work-keeps-workers-busy",
        "A worker that is to end when idle waits for an observer that shares its column.",
        "test_a_failing_observer_backs_off_as_before_while_another_one_is_paused",
        old="        one.name in paused\n        or _is_done(",
        new="        _is_done(",
    ),
    in_failures(
        "idle-by-the-paused-alone",
        "A worker ends while an observer that is not paused has work on a paused one's column.",
        "test_a_worker_is_idle_if_only_paused_observers_have_work",
        old="    return any(one.name in paused for one in group) and all(\n",
        new="    return any(one.name in paused for one in group) or all(\n",
    ),
    in_file("src/percola/catalog.py", _PAUSED)(
        "pause-overwrites-pause",
        "Of two pauses at once, the later one to be written removes the other.",
        "test_pauses_at_the_same_time_are_both_kept",
        old="RowMutation(SYSTEM_TABLE, cell.row, [absent], changes)",
        new="RowMutation(SYSTEM_TABLE, cell.row, [], changes)",
    ),
    in_scanner(
        "pause-wakes-nobody",
        "Workers learn of a pause only when their last read is too old.",
        "test_a_paused_observer_does_not_run_and_answers_everything_once_it_is_resumed",
        old="            self._note_paused(anew=is_called)",
        new="            self._note_paused(anew=False)",
    ),
    in_copy(
        "copy-forgets-pauses",
        "An observer that is paused runs in a copy of the repository.",
        "test_paused_observers_are_paused_in_the_copy_and_lose_nothing",
        old="    copy_paused(context.store, store)\n",
        new="",
    ),
    in_file("src/percola/cells.py", _COPIES)(
        "copy-believes-newer-runs",
        "A copy passes over changes that an observer has handled after the copy's timestamp.",
        "test_a_run_beside_a_paused_observer_that_is_newer_than_the_copy_is_repeated_there",
        old="        or (one.due_ms is not None and one != HANDLED)\n",
        new="        or one.due_ms is not None\n",
    ),
    in_file("src/percola/cli/worker.py", _CLI)(
        "until-idle-hides-what-waits",
        "A worker that ends when idle ends with 0 although changes wait for a paused observer.",
        "test_a_worker_that_is_to_end_when_idle_says_what_is_paused",
        old="        status = PAUSED if waiting else 0\n",
        new="",
    ),
]

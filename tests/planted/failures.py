"""Mistakes in what becomes of observers that fail, hang, or have several columns."""

from tests.planted.planted import in_file

_ATTEMPTS = "tests/paper/test_2_4_attempts.py"
_GIVEN_UP = "tests/paper/test_2_4_given_up.py"
_UNOBSERVED = "tests/paper/test_2_4_unobserved.py"
_COLUMNS = "tests/paper/test_2_4_several_columns.py"
in_failures = in_file("src/percola/observers/failures.py", _ATTEMPTS)
in_observer = in_file("src/percola/observers/observer.py", _GIVEN_UP)
in_runner = in_file("src/percola/observers/runner.py", _GIVEN_UP)

PLANTED = [
    in_failures(
        "attempts-are-not-recorded",
        "A failed attempt is counted in the object of this run alone, and forgotten with it.",
        "test_n5_the_attempts_of_workers_that_have_ended_count",
        old="                self._change(dirty, [self._record(dirty)])\n",
        new="",
    ),
    in_failures(
        "dead-letters-what-was-answered",
        "A change is dead-lettered although another worker has answered it meanwhile.",
        "test_n5_a_change_that_another_worker_has_answered_is_not_dead_lettered",
        old="RowMutation(table, row, [stands], changes)",
        new="RowMutation(table, row, [], changes)",
    ),
    in_failures(
        "trusts-a-clock-that-is-ahead",
        "The back-off that a machine with a fast clock has recorded is waited for to its end.",
        "test_n5_a_clock_that_is_ahead_delays_no_attempt_for_long",
        old="return left if 0 < left <= self._longest_wait + 0.002 else 0.0",
        new="return max(0.0, left)",
    ),
    in_failures(
        "dead-letter-is-not-recorded-beside-unfinished-work",
        "Of several observers' changes, which ones are dead-lettered is not told to other workers.",
        "test_n5_another_worker_does_not_try_again_what_is_dead_lettered_beside_unfinished_work",
        old="            changes.append(self._record(dirty))\n",
        new="",
    ),
    in_failures(
        "mark-alone-is-believed",
        "A change passes for dead-lettered by its notify entry, though no `failed` entry tells it.",
        "test_n5_a_mark_without_the_failed_entry_is_not_believed",
        old="return bool(store.entries(failed, Kind.FAILED, dirty.newest, MAX_TS))",
        new="return bool(failed)",
    ),
    in_file("src/percola/observers/scanner.py", _ATTEMPTS)(
        "looks-at-what-waits",
        "A scan locks and reads every cell that waits for its next attempt, each time.",
        "test_n6_a_cell_that_waits_for_its_next_attempt_costs_a_scan_nothing_more",
        old="if raw and (wait :=",
        new="if not raw and (wait :=",
    ),
    in_observer(
        "given-up-run-keeps-its-lease",
        "The transaction of a run that was given up holds garbage collection back.",
        "test_p12_an_observer_that_hangs_does_not_hold_garbage_collection_back_once_dead_lettered",
        old="        self._unregister()\n",
        new="",
    ),
    in_observer(
        "given-up-run-reads-on",
        "A run that was given up goes on reading, below what garbage collection has removed.",
        "test_n5_what_a_given_up_run_does_next_says_that_it_was_given_up",
        old="        self._used_up = _GivenUp(why)\n",
        new="",
    ),
    in_runner(
        "begins-after-it-was-given-up",
        "A transaction that begins after its run was given up is as good as any.",
        "test_n5_a_transaction_that_begins_only_after_its_run_was_given_up_is_of_no_use",
        old="            transaction.give_up(self.given_up)\n",
        new="            pass\n",
    ),
    in_runner(
        "answers-a-column-for-another-observer",
        "A run removes the notify entries of a column that another observer has yet to look at.",
        f"{_COLUMNS}::test_n2_it_answers_no_column_for_another_observer",
        old="if len(self._observers.of(cell)) == 1 else []",
        new="if True else []",
    ),
    in_observer(
        "acknowledges-the-first-column",
        "A run acknowledges the first of its columns that has changed, and answers all of them.",
        f"{_COLUMNS}::test_one_run_answers_the_changes_of_several_columns_of_a_row",
        old="runs |= self._acknowledge(transaction, cell)",
        new="runs = runs or self._acknowledge(transaction, cell)",
    ),
    in_observer(
        "agrees-by-name-alone",
        "Workers whose observers share a name but not the columns work side by side.",
        f"{_COLUMNS}::test_workers_agree_only_if_an_observer_has_the_same_columns_in_both",
        old="[one.label for one in group]",
        new="[one.name for one in group]",
    ),
    in_file("src/percola/observers/unobserved.py", _UNOBSERVED)(
        "warns-of-what-others-observe",
        "A worker warns of dirty cells that a live worker elsewhere is about to look at.",
        "test_a_column_that_another_live_worker_observes_is_not_mentioned",
        old="if (table, column) in observers.addresses or name in elsewhere:",
        new="if (table, column) in observers.addresses:",
    ),
]

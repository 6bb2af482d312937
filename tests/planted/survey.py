"""Mistakes in what a worker's metrics tell of changes that wait."""

from tests.planted.planted import in_file

_SURVEY = "tests/paper/test_2_4_survey.py"
_TIMES = "tests/unit/test_draw_times.py"
_CLI_WORK = "tests/unit/test_cli_work.py"
in_survey = in_file("src/percola/observers/survey.py", _SURVEY)
in_draw_times = in_file("src/percola/observers/draw_times.py", _TIMES)
in_runner = in_file("src/percola/observers/runner.py", _SURVEY)

PLANTED = [
    in_survey(
        "survey-reads-everything",
        "A survey costs as much as there are notify entries.",
        "test_a_survey_reads_a_bounded_part_and_says_so",
        old="        if number >= COUNTED:\n",
        new="        if not found.complete:\n",
    ),
    in_survey(
        "handled-counts-as-waiting",
        "What is dead-lettered, or handled beside a paused observer, counts as waiting.",
        "test_what_is_dead_lettered_or_handled_beside_a_paused_observer_does_not_wait",
        old="        if done is not None and (done == HANDLED or done.due_ms is None):\n",
        new="        if done is not None and not done:\n",
    ),
    in_survey(
        "newest-change-passes-for-the-oldest",
        "The oldest change of a column is taken to be its newest one.",
        "test_a_survey_counts_the_cells_that_wait_and_finds_the_oldest_change",
        old="min(oldest, found.oldest.get(name, oldest))",
        new="max(oldest, found.oldest.get(name, oldest))",
    ),
    in_survey(
        "every-worker-surveys",
        "The cost of surveys grows with the number of workers.",
        "test_of_workers_with_the_same_observers_one_surveys_at_a_time",
        old="        self.last = self._survey() if self._held else None\n",
        new="        self.last = self._survey()\n",
    ),
    in_survey(
        "old-survey-is-shown",
        "A worker goes on showing its last survey after another one has taken its turn.",
        "test_of_workers_with_the_same_observers_one_surveys_at_a_time",
        old="        self.last = self._survey() if self._held else None\n",
        new="        self.last = self._survey() if self._held else self.last\n",
    ),
    in_draw_times(
        "age-counts-from-the-note-before",
        "A change of today that follows a quiet hour is an hour old.",
        "test_an_age_counts_from_the_first_note_that_is_not_below",
        old="        places = [bisect_left(noted, ts) for ts in timestamps]\n",
        new="        places = [max(0, bisect_left(noted, ts) - 1) for ts in timestamps]\n",
    ),
    in_draw_times(
        "clock-that-was-ahead-is-believed",
        "A wall clock that was wrong when the log was written makes changes too old.",
        "test_before_the_first_note_ages_are_those_of_the_log",
        old="itertools.accumulate((entry.wall for entry in older), max)",
        new="(entry.wall for entry in older)",
    ),
    in_draw_times(
        "old-notes-are-lost",
        "What is old is taken to be as young as the few notes that are kept.",
        "test_old_notes_are_thinned_out_and_ages_stay_right_to_half_a_percent",
        old="(now - time) / _PRECISION",
        new="(now - time) / 4",
    ),
    in_runner(
        "latency-of-the-newest-change",
        "A cell that changes all the time and is answered late has short latencies.",
        "test_a_latency_is_from_the_oldest_change_that_a_run_answers_to_its_commit",
        old="[dirty.notified[-1] if alone else dirty.newest]",
        new="[dirty.newest]",
    ),
    in_runner(
        "latency-of-what-was-answered",
        "What another observer has not answered counts for those that have.",
        "test_observers_of_one_column_count_from_its_newest_change",
        old="[dirty.notified[-1] if alone else dirty.newest]",
        new="[dirty.notified[-1]]",
    ),
    in_runner(
        "quick-changes-take-no-time",
        "A change that came after the last note is answered in no time, however long the run took.",
        "test_a_latency_is_from_the_oldest_change_that_a_run_answers_to_its_commit",
        old="        ages = [max(took, age) for age in times.ages(timestamps)]\n",
        new="        ages = times.ages(timestamps)\n",
    ),
    in_file("src/percola/cli/worker.py", _CLI_WORK)(
        "served-metrics-lack-surveys",
        "A worker that serves metrics does not survey.",
        "test_a_worker_serves_its_metrics",
        old="    survey = None if metrics_port is None else _SURVEY_SECONDS\n",
        new="    survey = None\n",
    ),
]

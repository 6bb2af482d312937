"""Mistakes in what a worker's metrics tell of changes that wait."""

from __future__ import annotations

from typing import Final

from tests.planted.planted import Planted

_SURVEY: Final = "tests/paper/test_2_4_survey.py::"
_TIMES: Final = "tests/unit/test_draw_times.py::"

PLANTED = [
    Planted(
        "survey-reads-everything",
        "A survey costs as much as there are notify entries.",
        file="src/percola/observers/survey.py",
        old="        if number >= COUNTED:\n",
        new="        if not found.complete:\n",
        tests=[_SURVEY + "test_a_survey_reads_a_bounded_part_and_says_so"],
    ),
    Planted(
        "handled-counts-as-waiting",
        "What is dead-lettered, or handled beside a paused observer, counts as waiting.",
        file="src/percola/observers/survey.py",
        old="        if done is not None and (done == HANDLED or done.due_ms is None):\n",
        new="        if done is not None and not done:\n",
        tests=[
            _SURVEY + "test_what_is_dead_lettered_or_handled_beside_a_paused_observer_does_not_wait"
        ],
    ),
    Planted(
        "newest-change-passes-for-the-oldest",
        "The oldest change of a column is taken to be its newest one.",
        file="src/percola/observers/survey.py",
        old="min(oldest, found.oldest.get(name, oldest))",
        new="max(oldest, found.oldest.get(name, oldest))",
        tests=[_SURVEY + "test_a_survey_counts_the_cells_that_wait_and_finds_the_oldest_change"],
    ),
    Planted(
        "every-worker-surveys",
        "The cost of surveys grows with the number of workers.",
        file="src/percola/observers/survey.py",
        old="        self.last = self._survey() if self._held else None\n",
        new="        self.last = self._survey()\n",
        tests=[_SURVEY + "test_of_workers_with_the_same_observers_one_surveys_at_a_time"],
    ),
    Planted(
        "old-survey-is-shown",
        "A worker goes on showing its last survey after another one has taken its turn.",
        file="src/percola/observers/survey.py",
        old="        self.last = self._survey() if self._held else None\n",
        new="        self.last = self._survey() if self._held else self.last\n",
        tests=[_SURVEY + "test_of_workers_with_the_same_observers_one_surveys_at_a_time"],
    ),
    Planted(
        "age-counts-from-the-note-before",
        "A change of today that follows a quiet hour is an hour old.",
        file="src/percola/observers/draw_times.py",
        old="        places = [bisect_left(noted, ts) for ts in timestamps]\n",
        new="        places = [max(0, bisect_left(noted, ts) - 1) for ts in timestamps]\n",
        tests=[_TIMES + "test_an_age_counts_from_the_first_note_that_is_not_below"],
    ),
    Planted(
        "clock-that-was-ahead-is-believed",
        "A wall clock that was wrong when the log was written makes changes too old.",
        file="src/percola/observers/draw_times.py",
        old="itertools.accumulate((entry.wall for entry in older), max)",
        new="(entry.wall for entry in older)",
        tests=[_TIMES + "test_before_the_first_note_ages_are_those_of_the_log"],
    ),
    Planted(
        "old-notes-are-lost",
        "What is old is taken to be as young as the few notes that are kept.",
        file="src/percola/observers/draw_times.py",
        old="(now - time) / _PRECISION",
        new="(now - time) / 4",
        tests=[_TIMES + "test_old_notes_are_thinned_out_and_ages_stay_right_to_half_a_percent"],
    ),
    Planted(
        "latency-of-the-newest-change",
        "A cell that changes all the time and is answered late has short latencies.",
        file="src/percola/observers/runner.py",
        old="[dirty.notified[-1] if alone else dirty.newest]",
        new="[dirty.newest]",
        tests=[
            _SURVEY + "test_a_latency_is_from_the_oldest_change_that_a_run_answers_to_its_commit"
        ],
    ),
    Planted(
        "latency-of-what-was-answered",
        "What another observer has not answered counts for those that have.",
        file="src/percola/observers/runner.py",
        old="[dirty.notified[-1] if alone else dirty.newest]",
        new="[dirty.notified[-1]]",
        tests=[_SURVEY + "test_observers_of_one_column_count_from_its_newest_change"],
    ),
    Planted(
        "quick-changes-take-no-time",
        "A change that came after the last note is answered in no time, however long the run took.",
        file="src/percola/observers/runner.py",
        old="        ages = [max(took, age) for age in times.ages(timestamps)]\n",
        new="        ages = times.ages(timestamps)\n",
        tests=[
            _SURVEY + "test_a_latency_is_from_the_oldest_change_that_a_run_answers_to_its_commit"
        ],
    ),
    Planted(
        "served-metrics-lack-surveys",
        "A worker that serves metrics does not survey.",
        file="src/percola/cli/worker.py",
        old="    survey = None if metrics_port is None else _SURVEY_SECONDS\n",
        new="    survey = None\n",
        tests=["tests/unit/test_cli_work.py::test_a_worker_serves_its_metrics"],
    ),
]

"""Mistakes in what readers and followers do about the locks of a joint transaction."""

from __future__ import annotations

from tests.planted.planted import Planted

_TESTS = "tests/paper/test_2_2_joint_readers.py::"
_MARKED = "tests/paper/test_2_4_marked_writes.py::"
_RESOLVER = "src/percola/transactions/lock_resolver.py"
_BOTH = """\
        below = self._begun_commit(lock.primary, start_ts, ts)
        fate = self.fate(lock.primary, start_ts)
"""

PLANTED = [
    Planted(
        "any-cell-of-a-job-is-a-primary",
        "A transaction that records a finished task is passed although it commits.",
        file=_RESOLVER,
        old=" or not primary.column.startswith(JOB_PRIMARY):",
        new=":",
        tests=[f"{_MARKED}test_a_commit_of_unknown_outcome_is_looked_at_before_it_is_repeated"],
    ),
    Planted(
        "committing-job-is-passed",
        "A reader does not see a job that commits below its timestamp.",
        file=_RESOLVER,
        old="        return min([ts, *(at for at, _ in held)])\n",
        new="        return ts\n",
        tests=[_TESTS + "test_a_reader_who_begins_while_the_job_commits_waits_and_sees_it"],
    ),
    Planted(
        "primary-before-state",
        "A job that commits between the two looks is not seen.",
        file=_RESOLVER,
        old=_BOTH,
        new="".join(reversed(_BOTH.splitlines(keepends=True))),
        tests=[_TESTS + "test_a_job_that_commits_while_a_reader_looks_is_seen"],
    ),
    Planted(
        "known-for-every-timestamp",
        "What was found for one reader counts for readers who begin later.",
        file=_RESOLVER,
        old="        if above >= ts and now - read_at < _READ_AGAIN:\n",
        new="        if above and now - read_at < _READ_AGAIN:\n",
        tests=[_TESTS + "test_what_one_reader_has_found_does_not_count_for_a_later_one"],
    ),
    Planted(
        "known-for-ever",
        "A dead job's locks stay while no timestamp is drawn.",
        file=_RESOLVER,
        old="        if above >= ts and now - read_at < _READ_AGAIN:\n",
        new="        if above >= ts:\n",
        tests=[_TESTS + "test_readers_at_one_timestamp_remove_what_a_dead_job_has_locked"],
    ),
    Planted(
        "job-is-waited-for-once-it-commits",
        "Readers that began before the commit wait for it.",
        file=_RESOLVER,
        old="        return min([ts, *(at for at, _ in held)])\n",
        new="        return start_ts - 1 if held else ts\n",
        tests=[
            _TESTS + "test_a_reader_who_has_begun_before_the_job_commits_does_not_wait",
            _TESTS + "test_a_follower_stands_below_a_job_only_from_where_it_begins_to_commit",
        ],
    ),
]

"""Mistakes in what readers and followers do about the locks of a joint transaction."""

from tests.planted.planted import in_file

_TESTS = "tests/paper/test_2_2_joint_readers.py"
_MARKED = "tests/paper/test_2_4_marked_writes.py"
in_lock_resolver = in_file("src/percola/transactions/lock_resolver.py", _TESTS)
_BOTH = """\
        below = self._begun_commit(lock.primary, start_ts, ts)
        fate = self.fate(lock.primary, start_ts)
"""

PLANTED = [
    in_lock_resolver(
        "any-cell-of-a-job-is-a-primary",
        "A transaction that records a finished task is passed although it commits.",
        f"{_MARKED}::test_a_commit_of_unknown_outcome_is_looked_at_before_it_is_repeated",
        old=" or not primary.column.startswith(JOB_PRIMARY):",
        new=":",
    ),
    in_lock_resolver(
        "committing-job-is-passed",
        "A reader does not see a job that commits below its timestamp.",
        "test_a_reader_who_begins_while_the_job_commits_waits_and_sees_it",
        old="        return min([ts, *(at for at, _ in held)])\n",
        new="        return ts\n",
    ),
    in_lock_resolver(
        "primary-before-state",
        "A job that commits between the two looks is not seen.",
        "test_a_job_that_commits_while_a_reader_looks_is_seen",
        old=_BOTH,
        new="".join(reversed(_BOTH.splitlines(keepends=True))),
    ),
    in_lock_resolver(
        "known-for-every-timestamp",
        "What was found for one reader counts for readers who begin later.",
        "test_what_one_reader_has_found_does_not_count_for_a_later_one",
        old="        if above >= ts and now - read_at < _READ_AGAIN:\n",
        new="        if above and now - read_at < _READ_AGAIN:\n",
    ),
    in_lock_resolver(
        "known-for-ever",
        "A dead job's locks stay while no timestamp is drawn.",
        "test_readers_at_one_timestamp_remove_what_a_dead_job_has_locked",
        old="        if above >= ts and now - read_at < _READ_AGAIN:\n",
        new="        if above >= ts:\n",
    ),
    in_lock_resolver(
        "job-is-waited-for-once-it-commits",
        "Readers that began before the commit wait for it.",
        "test_a_reader_who_has_begun_before_the_job_commits_does_not_wait",
        "test_a_follower_stands_below_a_job_only_from_where_it_begins_to_commit",
        old="        return min([ts, *(at for at, _ in held)])\n",
        new="        return start_ts - 1 if held else ts\n",
    ),
]

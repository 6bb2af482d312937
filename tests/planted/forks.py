"""Mistakes in what the child of a fork does with what it inherits, and in what is still read."""

from tests.planted.planted import in_file

_FORKS = "tests/unit/test_forks.py"
_LEASES = "tests/unit/test_leases.py"
in_fork_safety = in_file("src/percola/platform/fork_safety.py", _FORKS)
in_active_snapshots = in_file("src/percola/transactions/active_snapshots.py", _LEASES)

PLANTED = [
    in_file("src/percola/transactions/lock_resolver.py", _FORKS)(
        "resolver-lock-inherited",
        "A child waits for ever for a lock that a committing thread of its parent held.",
        "test_a_child_commits_though_a_thread_held_a_lock_when_it_was_forked",
        old="        forks.at_fork(self._start_afresh)\n",
        new="",
    ),
    in_fork_safety(
        "fork-hook-ends-the-others",
        "An object that fails to be made anew in a child keeps the others from it.",
        "test_each_object_is_made_anew_in_a_child_once_even_if_another_fails",
        old="                except BaseException:\n                    _report(in_child)\n",
        new="                except BaseException:\n                    _report(in_child)\n"
        "                    break\n",
    ),
    in_fork_safety(
        "grandchild-may-use-grpc",
        "Only the children of a process that has used gRPC are refused, not their children.",
        "test_what_a_library_that_does_not_survive_a_fork_has_made_is_refused_in_all_descendants",
        old="        self.is_barred = self.is_barred or self.is_used\n",
        new="        self.is_barred = self.is_used\n",
    ),
    in_active_snapshots(
        "leases-inherited",
        "A child holds back, and never lets go of, what its parent's threads read.",
        "test_a_child_never_holds_back_what_its_parent_has_read",
        old="        self._active: dict[int, int] = {}\n",
        new="        self._active: dict[int, int] = getattr(self, '_active', {})\n",
    ),
    in_active_snapshots(
        "leases-inherit-what-was-published",
        "A child finds that something is held, and protects nothing of its own.",
        "test_what_a_child_reads_is_kept_from_garbage_collection",
        old="        self._held = 0\n        self._since = 0\n\n",
        new="        self._held = getattr(self, '_held', 0)\n        self._since = 0\n\n",
    ),
    in_active_snapshots(
        "lease-dropped-over-a-new-reader",
        "The last snapshot that ends publishes 0 over what a new one has just published.",
        "test_one_that_begins_while_the_last_one_ends_is_not_forgotten[python]",
        old="            if active:\n",
        new="            if active and not self._held:\n",
    ),
    in_active_snapshots(
        "oldest-published-without-looking-again",
        "What a thread looked up stays published after a later word of another thread.",
        "test_one_that_ends_while_another_looks_for_the_oldest_leaves_nothing_held[python]",
        old="            if self._held == oldest == (self.oldest() or 0):\n",
        new="            if oldest or not self._active:\n",
    ),
    in_file("src/percola/store/readers.py", _LEASES)(
        "inherited-transaction-commits",
        "A child commits its parent's transaction, with the start_ts that the parent uses.",
        "test_a_transaction_is_committed_by_the_process_that_began_it_and_by_no_child",
        old="        self.by_column = {}\n",
        new="",
    ),
    in_file("src/percola/store/memory.py", _FORKS)(
        "memory-store-forked-in-a-change",
        "A fork does not wait for a change in memory, so the child's copy may be half changed.",
        "test_a_fork_waits_until_a_change_in_memory_is_whole",
        old="        forks.at_fork(self._start_afresh, before=self._hold_still, "
        "in_parent=self._go_on)\n",
        new="        forks.at_fork(self._start_afresh)\n",
    ),
    in_file("src/percola/coordination/local/active_slots.py", _LEASES)(
        "slot-of-the-dead-freed-without-guard",
        "Freeing a dead process's slot frees the one that another thread is just taking.",
        "test_a_slot_that_is_taken_while_another_thread_frees_those_of_the_dead_is_kept",
        old="        with self._guard:\n            if slot == self._mine",
        new="        if True:\n            if slot == self._mine",
    ),
]

"""Mistakes in what the child of a fork does with what it inherits, and in what is still read."""

from __future__ import annotations

from tests.planted.planted import Planted

FORKS = "tests/unit/test_forks.py::"
LEASES = "tests/unit/test_leases.py::"

PLANTED: list[Planted] = [
    Planted(
        "resolver-lock-inherited",
        "A child waits for ever for a lock that a committing thread of its parent held.",
        file="src/percola/transactions/lock_resolver.py",
        old="        forks.at_fork(self._start_afresh)\n",
        new="",
        tests=[FORKS + "test_a_child_commits_though_a_thread_held_a_lock_when_it_was_forked"],
    ),
    Planted(
        "fork-hook-ends-the-others",
        "An object that fails to be made anew in a child keeps the others from it.",
        file="src/percola/platform/fork_safety.py",
        old="                except BaseException:\n                    _report(in_child)\n",
        new="                except BaseException:\n                    _report(in_child)\n"
        "                    break\n",
        tests=[FORKS + "test_each_object_is_made_anew_in_a_child_once_even_if_another_fails"],
    ),
    Planted(
        "grandchild-may-use-grpc",
        "Only the children of a process that has used gRPC are refused, not their children.",
        file="src/percola/platform/fork_safety.py",
        old="        self.is_barred = self.is_barred or self.is_used\n",
        new="        self.is_barred = self.is_used\n",
        tests=[
            FORKS + "test_what_a_library_that_does_not_survive_a_fork_has_made_is_refused_in_all_"
            "descendants"
        ],
    ),
    Planted(
        "leases-inherited",
        "A child holds back, and never lets go of, what its parent's threads read.",
        file="src/percola/transactions/active_snapshots.py",
        old="        self._active: dict[int, int] = {}\n",
        new="        self._active: dict[int, int] = getattr(self, '_active', {})\n",
        tests=[LEASES + "test_a_child_never_holds_back_what_its_parent_has_read"],
    ),
    Planted(
        "leases-inherit-what-was-published",
        "A child finds that something is held, and protects nothing of its own.",
        file="src/percola/transactions/active_snapshots.py",
        old="        self._held = 0\n        self._since = 0\n\n",
        new="        self._held = getattr(self, '_held', 0)\n        self._since = 0\n\n",
        tests=[LEASES + "test_what_a_child_reads_is_kept_from_garbage_collection"],
    ),
    Planted(
        "lease-dropped-over-a-new-reader",
        "The last snapshot that ends publishes 0 over what a new one has just published.",
        file="src/percola/transactions/active_snapshots.py",
        old="            if active:\n",
        new="            if active and not self._held:\n",
        tests=[LEASES + "test_one_that_begins_while_the_last_one_ends_is_not_forgotten[python]"],
    ),
    Planted(
        "oldest-published-without-looking-again",
        "What a thread looked up stays published after a later word of another thread.",
        file="src/percola/transactions/active_snapshots.py",
        old="            if self._held == oldest == (self.oldest() or 0):\n",
        new="            if oldest or not self._active:\n",
        tests=[
            LEASES
            + "test_one_that_ends_while_another_looks_for_the_oldest_leaves_nothing_held[python]"
        ],
    ),
    Planted(
        "inherited-transaction-commits",
        "A child commits its parent's transaction, with the start_ts that the parent uses.",
        file="src/percola/store/readers.py",
        old="        self.by_column = {}\n",
        new="",
        tests=[
            LEASES + "test_a_transaction_is_committed_by_the_process_that_began_it_and_by_no_child"
        ],
    ),
    Planted(
        "memory-store-forked-in-a-change",
        "A fork does not wait for a change in memory, so the child's copy may be half changed.",
        file="src/percola/store/memory.py",
        old="        forks.at_fork(self._start_afresh, before=self._hold_still, "
        "in_parent=self._go_on)\n",
        new="        forks.at_fork(self._start_afresh)\n",
        tests=[FORKS + "test_a_fork_waits_until_a_change_in_memory_is_whole"],
    ),
    Planted(
        "slot-of-the-dead-freed-without-guard",
        "Freeing a dead process's slot frees the one that another thread is just taking.",
        file="src/percola/coordination/local/active_slots.py",
        old="        with self._guard:\n            if slot == self._mine",
        new="        if True:\n            if slot == self._mine",
        tests=[
            LEASES
            + "test_a_slot_that_is_taken_while_another_thread_frees_those_of_the_dead_is_kept"
        ],
    ),
]

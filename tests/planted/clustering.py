"""Mistakes in the clusters of the web index."""

from tests.planted.planted import in_file

_TESTS = "tests/webindex/test_clustering_batches.py"
_LARGE = "tests/webindex/test_large_clusters.py"
_PRINTS = "tests/webindex/test_fingerprints.py"
in_clustering = in_file("src/webindex/observers/clustering.py", _TESTS)
in_leaders = in_file("src/webindex/observers/leaders.py", _TESTS)

PLANTED = [
    in_clustering(
        "cluster-named-by-timestamp",
        "New clusters of one page in one batch get the same name.",
        "test_two_pages_that_leave_a_cluster_in_one_batch_leave_two_clusters",
        "test_runs_of_one_batch_that_share_a_timestamp_end_in_the_components",
        old="self._move(part, cluster, self.create())",
        new='self._move(part, cluster, f"{min(part)[:16]}{self._t.start_ts:x}")',
    ),
    in_clustering(
        "merged-cluster-half-read",
        "A cluster that a page was just added to is taken for one of that page alone.",
        "test_runs_of_one_batch_that_share_a_timestamp_end_in_the_components",
        old="        if cluster not in self._loaded:",
        new="        if cluster not in self._before:",
    ),
    in_leaders(
        "followers-of-gone-leader-kept",
        "When the last page of a leader goes, the texts that it led keep it as their leader.",
        "test_runs_of_one_batch_that_share_a_timestamp_end_in_the_components",
        old="if deciding.led_by(one) == gone]",
        new="if deciding.led_by(one) == one]",
    ),
    in_leaders(
        "old-leader-stays-leader",
        "A text that comes before a leader and is near does not take its place.",
        "test_runs_of_one_batch_that_share_a_timestamp_end_in_the_components",
        old="(led_by <= content if begins else led_by != content)",
        new="(begins or led_by != content)",
    ),
    in_clustering(
        "led-text-stays-in-its-cluster",
        "A text that gets another leader does not move into the leader's cluster.",
        "test_runs_of_one_batch_that_share_a_timestamp_end_in_the_components",
        old="            if len(clusters) > 1:\n                self.merge",
        new="            if len(clusters) > 2:\n                self.merge",
    ),
    in_file("src/webindex/observers/summaries.py", _LARGE)(
        "links-inside-large-cluster-counted",
        "Links between the pages of a large cluster count for its document.",
        "test_any_history_of_a_large_cluster_ends_in_what_its_pages_say",
        old="        if its == cluster:",
        new="        if its is None:",
    ),
    in_file("src/webindex/page/fingerprints.py", _PRINTS)(
        "own-words-ignored",
        "Pages of one template are near, although each repeats a name of its own.",
        "test_pages_that_each_repeat_a_word_of_their_own_are_no_near_duplicates",
        old="if any(map(_names, left)) and any(map(_names, right)):",
        new="if all(map(_names, left)) and not right:",
    ),
]

"""Mistakes in the clusters of the web index."""

from tests.planted.planted import Planted

_TESTS = "tests/webindex/test_clustering_batches.py"
_BATCH = f"{_TESTS}::test_runs_of_one_batch_that_share_a_timestamp_end_in_the_components"
_LARGE = "tests/webindex/test_large_clusters.py"
_PRINTS = "tests/webindex/test_fingerprints.py"

PLANTED = [
    Planted(
        "cluster-named-by-timestamp",
        "New clusters of one page in one batch get the same name.",
        file="src/webindex/observers/clustering.py",
        old="self._move(part, cluster, self.create())",
        new='self._move(part, cluster, f"{min(part)[:16]}{self._t.start_ts:x}")',
        tests=[
            f"{_TESTS}::test_two_pages_that_leave_a_cluster_in_one_batch_leave_two_clusters",
            _BATCH,
        ],
    ),
    Planted(
        "merged-cluster-half-read",
        "A cluster that a page was just added to is taken for one of that page alone.",
        file="src/webindex/observers/clustering.py",
        old="        if cluster not in self._loaded:",
        new="        if cluster not in self._before:",
        tests=[_BATCH],
    ),
    Planted(
        "followers-of-gone-leader-kept",
        "When the last page of a leader goes, the texts that it led keep it as their leader.",
        file="src/webindex/observers/leaders.py",
        old="if deciding.led_by(one) == gone]",
        new="if deciding.led_by(one) == one]",
        tests=[_BATCH],
    ),
    Planted(
        "old-leader-stays-leader",
        "A text that comes before a leader and is near does not take its place.",
        file="src/webindex/observers/leaders.py",
        old="(led_by <= content if begins else led_by != content)",
        new="(begins or led_by != content)",
        tests=[_BATCH],
    ),
    Planted(
        "led-text-stays-in-its-cluster",
        "A text that gets another leader does not move into the leader's cluster.",
        file="src/webindex/observers/clustering.py",
        old="            if len(clusters) > 1:\n                self.merge",
        new="            if len(clusters) > 2:\n                self.merge",
        tests=[_BATCH],
    ),
    Planted(
        "links-inside-large-cluster-counted",
        "Links between the pages of a large cluster count for its document.",
        file="src/webindex/observers/summaries.py",
        old="        if its == cluster:",
        new="        if its is None:",
        tests=[f"{_LARGE}::test_any_history_of_a_large_cluster_ends_in_what_its_pages_say"],
    ),
    Planted(
        "own-words-ignored",
        "Pages of one template are near, although each repeats a name of its own.",
        file="src/webindex/page/fingerprints.py",
        old="if any(map(_names, left)) and any(map(_names, right)):",
        new="if all(map(_names, left)) and not right:",
        tests=[
            f"{_PRINTS}::test_pages_that_each_repeat_a_word_of_their_own_are_no_near_duplicates"
        ],
    ),
]

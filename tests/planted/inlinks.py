"""Mistakes in the counting of links."""

from tests.planted.planted import in_file

_TESTS = "tests/webindex/test_inlinks.py"
in_inlinks = in_file("src/webindex/observers/inlinks.py", _TESTS)
in_texts = in_file("src/webindex/observers/texts.py", _TESTS)

PLANTED = [
    in_inlinks(
        "delta-of-new-link-only",
        "What a page linked to before is not taken back from a large target.",
        "test_links_are_counted_once_whatever_runs_between_the_steps",
        old="_add_delta(t, target, before, after)\n    tables.set_or_delete",
        new="_add_delta(t, target, None, after)\n    tables.set_or_delete",
    ),
    in_inlinks(
        "delta-overwritten",
        "A transaction's difference replaces what is in the delta already.",
        "test_links_are_counted_once_whatever_runs_between_the_steps",
        old="so_far = t.get(column, target) or {",
        new="so_far = {",
    ),
    in_inlinks(
        "large-read-for-nothing",
        "A page that has read that its target is not large notifies as if it had written a delta.",
        "test_a_link_entered_while_its_target_becomes_large_is_counted",
        old="            t.notify(tables.inlinks_changed, target)",
        new="            t.notify(tables.inlinks_added, target)",
    ),
    in_inlinks(
        "counted-deltas-kept",
        "A count of all links leaves the deltas of those that it has read.",
        "test_a_count_takes_the_deltas_that_it_has_seen_and_leaves_later_ones",
        "test_links_are_counted_once_whatever_runs_between_the_steps",
        old="""    for shard in found.family(tables.delta):
        t.delete""",
        new="""    for shard in ():
        t.delete""",
    ),
    in_inlinks(
        "added-deltas-kept",
        "Deltas that were added to a tally stay, and are added again.",
        "test_links_are_counted_once_whatever_runs_between_the_steps",
        old="""    for shard in deltas:
        t.delete""",
        new="""    for shard in ():
        t.delete""",
    ),
    in_inlinks(
        "count-without-guard",
        "A count that finds the tally right does not conflict with a slower one that does not.",
        "test_a_slow_count_cannot_restore_links_that_a_faster_one_found_unchanged",
        old="before = t.get_for_update(tables.tally, row)\n    if before is None and",
        new="before = t.get(tables.tally, row)\n    if before is None and",
    ),
    in_inlinks(
        "first-count-without-guard",
        "The first count of a page does not conflict with the page's end.",
        "test_a_slow_count_cannot_leave_a_tally_on_a_page_that_has_gone",
        old="        t.get_for_update(tables.fingerprint if live",
        new="        t.get(tables.fingerprint if live",
    ),
    in_inlinks(
        "large-without-links",
        "A large page to which no link is left that counts is still called large.",
        "test_a_page_that_loses_its_links_is_no_longer_large",
        old="    if links <= 0:\n",
        new="    if links < 0:\n",
    ),
    in_inlinks(
        "large-by-links-that-count",
        "A page with many links of which few count is read whole for each of these.",
        "test_links_that_do_not_vouch_make_a_page_large_and_cause_no_count",
        old="    if links and len(sources) > (",
        new="    if links > (",
    ),
    in_inlinks(
        "small-stays-large",
        "A large page that a count finds small stays large.",
        "test_a_large_page_that_a_count_finds_small_is_no_longer_large",
        old="LARGE if large is None else LARGE // 2",
        new="LARGE if large is None else 0",
    ),
    in_inlinks(
        "count-for-any-link",
        "A link that does not vouch has its target counted.",
        "test_links_that_do_not_vouch_make_a_page_large_and_cause_no_count",
        old="if not (_counts(before) or _counts(after)):",
        new="if not (before or after):",
    ),
    in_inlinks(
        "large-counted-whole",
        "A page does not become large: every link costs a look at all others.",
        "test_one_more_link_to_a_large_page_does_not_read_the_others",
        old="len(sources) > (LARGE if",
        new="len(sources) > (10**9 if",
    ),
    in_inlinks(
        "texts-left-behind",
        "The texts of a page that is no longer large stay in `anchors`.",
        "test_links_are_counted_once_whatever_runs_between_the_steps",
        old="plant(t, row, anchors if now_large == tables.IN_ANCHORS else {})",
        new="plant(t, row, anchors) if now_large == tables.IN_ANCHORS else None",
    ),
    in_texts(
        "demoted-text-forgotten",
        "A text that leaves the tally is no candidate for returning.",
        "test_the_texts_shown_are_the_most_frequent_ones_after_any_changes",
        old="                self._best[part_of(last[1])] = last\n",
        new="",
    ),
    in_texts(
        "next-candidate-forgotten",
        "When a text enters the tally, the next one of its part is not looked for.",
        "test_the_texts_shown_are_the_most_frequent_ones_after_any_changes",
        old="= -entering[0]\n            self._look_for_best(part)",
        new="= -entering[0]\n            self._best.pop(part)",
    ),
    in_texts(
        "candidate-kept",
        "A text whose number changes stays the candidate that it was.",
        "test_the_texts_shown_are_the_most_frequent_ones_after_any_changes",
        old="        self._shown.pop(text, None)\n        self._look_for_best(part)",
        new="        if self._shown.pop(text, None):\n            self._look_for_best(part)",
    ),
    in_texts(
        "fewer-links-overlooked",
        "A text in the tally keeps its place when fewer links have it.",
        "test_the_texts_shown_are_the_most_frequent_ones_after_any_changes",
        old="if 0 < self._shown.get(text, 0) <= number:",
        new="if number and text in self._shown:",
    ),
    in_file("src/webindex/observers/documents.py", _TESTS)(
        "inside-texts-kept",
        "The texts of links within a document are not taken back.",
        "test_of_the_texts_of_each_url_of_a_document_the_most_frequent_count",
        old="                    anchors.subtract(words)",
        new="                    anchors.subtract([])",
    ),
]

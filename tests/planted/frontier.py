"""Mistakes in the lists of what to crawl next, and in what may be shown of a page."""

from tests.planted.planted import in_file

_TESTS = "tests/webindex/test_frontier.py"
_SITE_PICTURES = "tests/webindex/test_site_pictures.py"
_INLINKS = "tests/webindex/test_inlinks.py"
in_redirects = in_file("src/webindex/observers/redirects.py", _TESTS)
in_to_crawl = in_file("src/webindex/reports/to_crawl.py", _TESTS)

PLANTED = [
    in_redirects(
        "captured-url-kept",
        "A URL stays in the frontier when its first capture is parsed.",
        "test_a_url_leaves_when_it_is_loaded_and_returns_when_it_is_erased",
        old="            frontier.leave(t, row, tally)\n",
        new="",
    ),
    in_redirects(
        "first-parse-without-guard",
        "The first parse of a page does not conflict with a count that saw no capture.",
        f"{_INLINKS}::test_a_slow_count_leaves_no_entry_in_the_frontier_of_"
        "a_page_captured_meanwhile",
        old="tally = t.get_for_update(tables.tally, row)",
        new="tally = t.get(tables.tally, row)",
    ),
    in_file("src/webindex/observers/inlinks.py", _TESTS)(
        "old-level-kept",
        "A URL that moves to another level keeps its entry in the old one.",
        "test_any_order_of_loads_ends_in_the_same_frontier",
        f"{_INLINKS}::test_links_are_counted_once_whatever_runs_between_the_steps",
        old="    if before is not None:\n        frontier.leave(t, row, before)\n",
        new="",
    ),
    in_file("src/webindex/takedown/erasing.py", _TESTS)(
        "erased-page-not-entered",
        "A page that is removed does not return to the frontier.",
        "test_a_url_leaves_when_it_is_loaded_and_returns_when_it_is_erased",
        old="            frontier.enter(t, row, url, tally)",
        new="            pass",
    ),
    in_to_crawl(
        "loaded-url-listed",
        "A URL is listed until its capture has been parsed.",
        "test_a_url_leaves_when_it_is_loaded_and_returns_when_it_is_erased",
        old="if row.key < passed or url in captured:",
        new="if row.key < passed:",
    ),
    in_to_crawl(
        "blocked-range-passed-too-far",
        "Behind a blocked folder the rest of its host is passed over as well.",
        "test_what_is_blocked_is_never_listed_and_what_is_unblocked_at_once",
        old="surt(blocked or _root(url))",
        new="surt(_root(url))",
    ),
    in_file("src/webindex/load/transaction.py", _TESTS)(
        "older-capture-not-noted",
        "An older capture does not count for how often its page changes.",
        "test_pages_that_are_due_come_by_rank_and_move_with_what_is_loaded",
        old="if self._has_other_past and not self._is_new:",
        new="if False:",
    ),
    in_file("src/webindex/ranking/writing.py", _TESTS)(
        "rank-moves-nothing",
        "A page that is due stays at the level of its former rank.",
        "test_pages_that_are_due_come_by_rank_and_move_with_what_is_loaded",
        old="            rank_moved(t, row, rank)\n",
        new="",
    ),
    in_file("src/webindex/reports/withheld.py", _SITE_PICTURES)(
        "snippet-of-nosnippet",
        "A result shows the snippet of a page that asks for none.",
        "test_a_page_that_asks_for_it_is_shown_without_image_and_snippet",
        old="hit.url in hidden else hit",
        new="hit.url in () else hit",
    ),
]

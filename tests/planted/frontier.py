"""Mistakes in the lists of what to crawl next, and in what may be shown of a page."""

from __future__ import annotations

from tests.planted.planted import Planted

_TESTS = "tests/webindex/test_frontier.py::"
_ERASED = _TESTS + "test_a_url_leaves_when_it_is_loaded_and_returns_when_it_is_erased"
_BLOCKED = _TESTS + "test_what_is_blocked_is_never_listed_and_what_is_unblocked_at_once"
_ORDER = _TESTS + "test_any_order_of_loads_ends_in_the_same_frontier"
_DUE = _TESTS + "test_pages_that_are_due_come_by_rank_and_move_with_what_is_loaded"
_ANY = "tests/webindex/test_inlinks.py::test_links_are_counted_once_whatever_runs_between_the_steps"
_SLOW = (
    "tests/webindex/test_inlinks.py::"
    "test_a_slow_count_leaves_no_entry_in_the_frontier_of_a_page_captured_meanwhile"
)
_ASKED = (
    "tests/webindex/test_site_pictures.py::"
    "test_a_page_that_asks_for_it_is_shown_without_image_and_snippet"
)

PLANTED = [
    Planted(
        "captured-url-kept",
        "A URL stays in the frontier when its first capture is parsed.",
        file="src/webindex/observers/redirects.py",
        old="            frontier.leave(t, row, tally)\n",
        new="",
        tests=[_ERASED],
    ),
    Planted(
        "first-parse-without-guard",
        "The first parse of a page does not conflict with a count that saw no capture.",
        file="src/webindex/observers/redirects.py",
        old="tally = t.get_for_update(tables.tally, row)",
        new="tally = t.get(tables.tally, row)",
        tests=[_SLOW],
    ),
    Planted(
        "old-level-kept",
        "A URL that moves to another level keeps its entry in the old one.",
        file="src/webindex/observers/inlinks.py",
        old="    if before is not None:\n        frontier.leave(t, row, before)\n",
        new="",
        tests=[_ORDER, _ANY],
    ),
    Planted(
        "erased-page-not-entered",
        "A page that is removed does not return to the frontier.",
        file="src/webindex/takedown/erasing.py",
        old="            frontier.enter(t, row, url, tally)",
        new="            pass",
        tests=[_ERASED],
    ),
    Planted(
        "loaded-url-listed",
        "A URL is listed until its capture has been parsed.",
        file="src/webindex/reports/to_crawl.py",
        old="if row.key < passed or url in captured:",
        new="if row.key < passed:",
        tests=[_ERASED],
    ),
    Planted(
        "blocked-range-passed-too-far",
        "Behind a blocked folder the rest of its host is passed over as well.",
        file="src/webindex/reports/to_crawl.py",
        old="surt(blocked or _root(url))",
        new="surt(_root(url))",
        tests=[_BLOCKED],
    ),
    Planted(
        "older-capture-not-noted",
        "An older capture does not count for how often its page changes.",
        file="src/webindex/load/transaction.py",
        old="if self._has_other_past and not self._is_new:",
        new="if False:",
        tests=[_DUE],
    ),
    Planted(
        "rank-moves-nothing",
        "A page that is due stays at the level of its former rank.",
        file="src/webindex/ranking/writing.py",
        old="            rank_moved(t, row, rank)\n",
        new="",
        tests=[_DUE],
    ),
    Planted(
        "snippet-of-nosnippet",
        "A result shows the snippet of a page that asks for none.",
        file="src/webindex/reports/withheld.py",
        old="hit.url in hidden else hit",
        new="hit.url in () else hit",
        tests=[_ASKED],
    ),
]

"""Mistakes in what the site and the stories show, and in the reads under them."""

from __future__ import annotations

from tests.planted.planted import Planted

_COUNTS = "tests/webindex/test_site_counts.py"
_MANY = f"{_COUNTS}::test_of_twenty_thousand_in_links_a_story_reads_and_lists_about_a_thousand"
_TROUBLE = "test_site_live.py::test_a_trouble_of_the_repository_is_said_and_passes"
_PART = "test_2_1_cells.py::test_a_family_can_be_read_in_part_however_wide_the_rows_are"

PLANTED: list[Planted] = [
    Planted(
        "live-view-forgets-in-trouble",
        "While the repository cannot be read, the live view claims that nothing runs or failed.",
        file="src/webindex/site/live.py",
        old="replace(self._view, trouble=str(error))",
        new="View(trouble=str(error))",
        tests=[
            "tests/webindex/test_site_live.py::test_a_trouble_of_the_repository_is_said_and_passes"
        ],
    ),
    Planted(
        "story-counts-one-url",
        "A story shows the links to its own URL where search shows those to the whole document.",
        file="src/webindex/reports/page.py",
        old='story.document_in_links = shown.document["inlinks"]',
        new="story.document_in_links = len(story.in_links)",
        tests=[
            f"{_COUNTS}::test_search_and_story_show_one_count_of_links_and_say_what_it_is_made_of"
        ],
    ),
    Planted(
        "count-keeps-links-of-redirects-out",
        "A story leaves redirects out of the URLs that the count of links is the sum of.",
        file="src/webindex/reports/links.py",
        old='    roles |= dict.fromkeys(document["aliases"], "redirect")\n',
        new="",
        tests=[f"{_COUNTS}::test_a_redirect_shows_the_count_of_the_document_that_it_leads_to"],
    ),
    Planted(
        "story-reads-every-in-link",
        "A story reads all in-links of its page, of which there may be millions.",
        file="src/webindex/reports/links.py",
        old="while read < _PARTS and len(linking) < MOST:",
        new="while read < _PARTS:",
        tests=[
            f"{_COUNTS}::test_of_twenty_thousand_in_links_a_story_reads_and_lists_about_a_thousand"
        ],
    ),
    Planted(
        "lmdb-scan-walks-through-wide-rows",
        "A scan for few columns of a wide row looks at every other column of it.",
        file="src/percola/store/lmdb/store.py",
        old="_STEPS: Final = 24",
        new="_STEPS: Final = 1 << 30",
        tests=[
            f"{_COUNTS}::test_of_twenty_thousand_in_links_a_story_reads_and_lists_about_a_thousand"
        ],
    ),
    Planted(
        "lmdb-scan-ends-with-a-wide-row",
        "A scan that seeks past the last wanted column of a row ends instead of going to the next.",
        file="src/percola/store/lmdb/store.py",
        old='else row_part[:-1] + b"\\2"',
        new="else last",
        tests=[f"tests/paper/{_PART}"],
    ),
]

"""Mistakes in what the site and the stories show, and in the reads under them."""

from tests.planted.planted import in_file

_SERVE = "tests/unit/test_serve.py"
_RATES = "tests/unit/test_serve_rates.py"
_REPORTS = "tests/paper/test_2_4_reports.py"
_COUNTS = "tests/webindex/test_site_counts.py"
_CELLS = "tests/paper/test_2_1_cells.py"
in_links = in_file("src/webindex/reports/links.py", _COUNTS)
in_store = in_file("src/percola/store/lmdb/store.py", _COUNTS)

PLANTED = [
    in_file("src/percola/serve/sampler.py", _SERVE)(
        "page-forgets-in-trouble",
        "While the repository cannot be read, the page claims that nothing runs or failed.",
        "test_a_trouble_of_the_store_is_said_and_what_was_known_stays",
        old="replace(self._view, trouble=str(error))",
        new="View(trouble=str(error))",
    ),
    in_file("src/percola/serve/login.py", _SERVE)(
        "form-without-key",
        "A form that another site makes a browser send has its buttons pressed.",
        "test_nothing_is_done_without_the_key_of_the_session",
        old='return session is not None and _same(form.get("key", ""), session.key)',
        new="return session is not None",
    ),
    in_file("src/percola/serve/guard.py", _SERVE)(
        "forms-of-other-sites",
        "What another site has a browser send is taken for a form of this one.",
        "test_a_form_that_another_site_sends_does_nothing",
        old="return urlsplit(origin)",
        new="return True or urlsplit(origin)",
    ),
    in_file("src/percola/serve/app.py", _SERVE)(
        "samples-before-login",
        "The page's script is answered without the token.",
        "test_with_a_token_nothing_is_shown_before_it",
        old='            return self.messages.page(401, "Log in first.")\n',
        new="            pass\n",
    ),
    in_file("src/percola/serve/rates.py", _RATES)(
        "totals-pass-for-rates",
        "What a worker did in days is taken for what it did in the last second.",
        "test_totals_that_are_seen_for_the_first_time_are_no_rate",
        old="(last, 1.0) if len(seen) == 1 else",
        new="(Report(0, '', 0, 0, 5.0, 1, {}), 1.0) if len(seen) == 1 else",
    ),
    in_file("src/percola/observers/reports.py", _REPORTS)(
        "idle-workers-report",
        "A worker writes a report although nothing has changed.",
        "test_an_idle_worker_writes_no_report",
        old="        if row == self._row and report == self._written:\n",
        new="        if False:\n",
    ),
    in_file("src/webindex/reports/page.py", _COUNTS)(
        "story-counts-one-url",
        "A story shows the links to its own URL where search shows those to the whole document.",
        "test_search_and_story_show_one_count_of_links_and_say_what_it_is_made_of",
        old='story.document_in_links = shown.document["inlinks"]',
        new="story.document_in_links = len(story.in_links)",
    ),
    in_links(
        "count-keeps-links-of-redirects-out",
        "A story leaves redirects out of the URLs that the count of links is the sum of.",
        "test_a_redirect_shows_the_count_of_the_document_that_it_leads_to",
        old='    roles |= dict.fromkeys(document["aliases"], "redirect")\n',
        new="",
    ),
    in_links(
        "story-reads-every-in-link",
        "A story reads all in-links of its page, of which there may be millions.",
        "test_of_twenty_thousand_in_links_a_story_reads_and_lists_about_a_thousand",
        old="while read < _PARTS and len(linking) < MOST:",
        new="while read < _PARTS:",
    ),
    in_store(
        "lmdb-scan-walks-through-wide-rows",
        "A scan for few columns of a wide row looks at every other column of it.",
        "test_of_twenty_thousand_in_links_a_story_reads_and_lists_about_a_thousand",
        old="_STEPS: Final = 24",
        new="_STEPS: Final = 1 << 30",
    ),
    in_store(
        "lmdb-scan-ends-with-a-wide-row",
        "A scan that seeks past the last wanted column of a row ends instead of going to the next.",
        f"{_CELLS}::test_a_family_can_be_read_in_part_however_wide_the_rows_are",
        old='else row_part[:-1] + b"\\2"',
        new="else last",
    ),
]

"""Mistakes in reading crawls and loading them: revisits, long pages, damaged records."""

from tests.planted.planted import in_file

_REVISITS = "tests/webindex/test_revisits.py"
_WARC = "tests/webindex/test_warc.py"
_FRAMING = "tests/webindex/test_framing.py"
in_transaction = in_file("src/webindex/load/transaction.py", _REVISITS)

PLANTED = [
    in_file("src/webindex/observers/parse.py", _REVISITS)(
        "a-capture-wakes-no-revisit",
        "A capture that is parsed does not tell the revisits that were loaded before it.",
        "test_a_revisit_without_its_original_is_counted_until_that_arrives",
        "test_neither_of_two_loaders_at_once_loses_the_revisit",
        old="    offer_captures(t, [one for one in (found, *earlier.values()) if",
        new="    print(t, [one for one in (found, *earlier.values()) if",
    ),
    in_transaction(
        "a-revisit-locks-nothing",
        "Of a revisit and a capture of one page, loaded at once, neither sees the other.",
        "test_neither_of_two_loaders_at_once_loses_the_revisit",
        old="        t.get_for_update(tables.capture, row)\n        simple = (",
        new="        simple = (",
    ),
    in_transaction(
        "an-original-is-dropped-under-its-revisits",
        "The limit of earlier captures does not spare those that revisits refer to.",
        "test_a_capture_is_kept_beyond_the_bound_while_a_revisit_refers_to_it",
        old="            if not self._is_waited_for(key):\n",
        new="            if key:\n",
    ),
    in_file("src/webindex/load/revisits.py", _REVISITS)(
        "a-reference-is-believed-against-the-digest",
        "The capture at the URL and date of a reference is taken though its payload differs.",
        "test_a_digest_decides_against_a_reference_to_something_else",
        old="    return not differs and _usable(report, capture)\n",
        new="    return _usable(report, capture)\n",
    ),
    in_file("src/webindex/crawl/http_body.py", _WARC)(
        "a-long-page-is-cut-within-a-character",
        "The beginning of a long page ends with a part of a character.",
        "test_a_long_body_is_cut_between_two_characters",
        old="    while end > max(0, limit - 4) and body[end] & 0xC0 == 0x80:\n        end -= 1\n",
        new="",
    ),
    in_file("src/webindex/crawl/warc.py", _FRAMING)(
        "a-record-that-lost-bytes-is-believed",
        "Records of plain files are not checked against their block digest.",
        "test_a_plain_record_that_lost_bytes_is_damaged",
        old="            _check_digest(record)\n",
        new="            pass\n",
    ),
]

"""Mistakes in reading crawls and loading them: revisits, long pages, damaged records."""

from __future__ import annotations

from tests.planted.planted import Planted

_REVISITS = "tests/webindex/test_revisits.py"
_WARC = "tests/webindex/test_warc.py"
_FRAMING = "tests/webindex/test_framing.py"

PLANTED = [
    Planted(
        "a-capture-wakes-no-revisit",
        "A capture that is parsed does not tell the revisits that were loaded before it.",
        file="src/webindex/observers/parse.py",
        old="    offer_captures(t, [one for one in (found, *earlier.values()) if",
        new="    print(t, [one for one in (found, *earlier.values()) if",
        tests=[
            f"{_REVISITS}::test_a_revisit_without_its_original_is_counted_until_that_arrives",
            f"{_REVISITS}::test_neither_of_two_loaders_at_once_loses_the_revisit",
        ],
    ),
    Planted(
        "a-revisit-locks-nothing",
        "Of a revisit and a capture of one page, loaded at once, neither sees the other.",
        file="src/webindex/load/transaction.py",
        old="        t.get_for_update(tables.capture, row)\n        simple = (",
        new="        simple = (",
        tests=[f"{_REVISITS}::test_neither_of_two_loaders_at_once_loses_the_revisit"],
    ),
    Planted(
        "an-original-is-dropped-under-its-revisits",
        "The limit of earlier captures does not spare those that revisits refer to.",
        file="src/webindex/load/transaction.py",
        old="            if not self._is_waited_for(key):\n",
        new="            if key:\n",
        tests=[
            f"{_REVISITS}::test_a_capture_is_kept_beyond_the_bound_while_a_revisit_refers_to_it"
        ],
    ),
    Planted(
        "a-reference-is-believed-against-the-digest",
        "The capture at the URL and date of a reference is taken though its payload differs.",
        file="src/webindex/load/revisits.py",
        old="    return not differs and _usable(report, capture)\n",
        new="    return _usable(report, capture)\n",
        tests=[f"{_REVISITS}::test_a_digest_decides_against_a_reference_to_something_else"],
    ),
    Planted(
        "a-long-page-is-cut-within-a-character",
        "The beginning of a long page ends with a part of a character.",
        file="src/webindex/crawl/http_body.py",
        old="    while end > max(0, limit - 4) and body[end] & 0xC0 == 0x80:\n        end -= 1\n",
        new="",
        tests=[f"{_WARC}::test_a_long_body_is_cut_between_two_characters"],
    ),
    Planted(
        "a-record-that-lost-bytes-is-believed",
        "Records of plain files are not checked against their block digest.",
        file="src/webindex/crawl/warc.py",
        old="            _check_digest(record)\n",
        new="            pass\n",
        tests=[f"{_FRAMING}::test_a_plain_record_that_lost_bytes_is_damaged"],
    ),
]

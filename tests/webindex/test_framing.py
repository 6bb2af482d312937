"""WARC files that are damaged, cut off, cut into splits, compressed oddly, or no WARC at all."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import tempfile
from pathlib import Path

import pytest
from effort import tries
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from warc_files import Crawl, captures, packed, page, pages, rejections

from webindex.crawl.framing import Limit, frames, open_warc
from webindex.crawl.warc import (
    Capture,
    NotAWarcError,
    Rejected,
    Rejection,
    plan_splits,
    read_captures,
)


def examples(number: int) -> settings:
    """So many; what one of them writes the next one writes over."""
    return settings(
        max_examples=tries(number),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def outcome(path: Path) -> tuple[list[int], list[Rejection]]:
    """The numbers of the pages that are read, each byte for byte, and why others are not."""
    found = list(read_captures(path))
    numbers = [int(one.url.rpartition("/")[2]) for one in captures(found)]
    assert [one.body for one in captures(found)] == [page(n) for n in numbers]
    return numbers, [one.reason for one in rejections(found)]


def claiming(record: bytes, length: bytes) -> bytes:
    """A record with another Content-Length."""
    head, name, rest = record.partition(b"Content-Length: ")
    return head + name + length + b"\r\n" + rest.partition(b"\r\n")[2]


@pytest.mark.parametrize("compressed", [True, False])
def test_the_sign_of_a_longer_record_is_looked_for_only_where_one_is_longer(
    saved, compressed: bool
) -> None:
    crawl = pages(5, gzip=compressed)
    record = max(after - at for at, after in itertools.pairwise(pages(5, gzip=False).offsets))
    looked: list[int] = []

    class Sign:
        def search(self, data: bytes, start: int, end: int) -> None:
            looked.append(len(data))

    for usual, searches in ((record, 0), (100, 5)):
        looked.clear()
        file, is_gzip = open_warc(saved(crawl.data))
        with file:
            found = list(frames(file, is_gzip, 0, None, Limit(usual, Sign(), 2 * record)))  # type: ignore[arg-type]
        assert len(found) == 5 and len(looked) == searches


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("keep", [1, 40, 200, -1])
def test_a_download_that_broke_off_gives_the_whole_records_and_one_rejection(
    saved, compressed: bool, keep: int
) -> None:
    crawl = pages(5, gzip=compressed)
    cut = crawl.offsets[3] + keep if keep > 0 else len(crawl.data) - 5
    found = list(read_captures(saved(crawl.data[:cut])))
    whole = 3 if keep > 0 else 4
    assert [one.body for one in captures(found)] == [page(n) for n in range(whole)]
    [rejected] = rejections(found)
    assert found[-1] is rejected
    assert rejected.offset == crawl.offsets[whole]
    assert rejected.length == cut - crawl.offsets[whole]
    if keep != 1:
        assert rejected.reason is Rejection.TRUNCATED


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    "garbage", [b"garbage" * 50, b"\x1f\x8b\x08\x00" * 9, b"WARC/1.0", b"\xff"]
)
def test_garbage_between_records_is_reported_and_passed_over(
    saved, compressed: bool, garbage: bytes
) -> None:
    crawl = pages(4, gzip=compressed)
    at = crawl.offsets[2]
    found = list(read_captures(saved(crawl.data[:at] + garbage + crawl.data[at:])))
    assert [one.body for one in captures(found)] == [page(n) for n in range(4)]
    [rejected] = rejections(found)
    assert (rejected.reason, rejected.offset) == (Rejection.DAMAGED, at)
    assert rejected.length == len(garbage)


@pytest.mark.parametrize("where", [0, 1, 4, 12, 100, 300, -12, -6, -1])
def test_a_flipped_byte_costs_one_gzip_record_and_no_other(saved, where: int) -> None:
    crawl = pages(5)
    data = bytearray(crawl.data)
    at = crawl.offsets[2] + where if where >= 0 else crawl.offsets[3] + where
    data[at] ^= 0xFF
    found = list(read_captures(saved(bytes(data))))
    # Bytes 4 to 9 of a member are its time and the name of a system: nothing is lost with them.
    lost = [] if where == 4 else [2]
    assert [one.body for one in captures(found)] == [page(n) for n in range(5) if n not in lost]
    assert [one.offset for one in rejections(found)] == [crawl.offsets[n] for n in lost]
    assert all(one.reason is Rejection.DAMAGED for one in rejections(found))


def test_a_flipped_byte_in_a_plain_body_is_found_by_the_block_digest(saved) -> None:
    crawl = pages(3, gzip=False)
    data = bytearray(crawl.data)
    data[crawl.offsets[2] - 50] ^= 1
    found = list(read_captures(saved(bytes(data))))
    assert [one.body for one in captures(found)] == [page(0), page(2)]
    [rejected] = rejections(found)
    assert (rejected.reason, rejected.offset) == (Rejection.DAMAGED, crawl.offsets[1])


@pytest.mark.parametrize("length", [b"5", b"700", b"99999999"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_record_with_a_wrong_content_length_whose_content_is_there_is_read(
    saved, length: bytes, compressed: bool, place: int
) -> None:
    crawl = pages(4, gzip=False)
    records = crawl.records
    records[place] = claiming(records[place], length)
    data = b"".join(packed(one) if compressed else one for one in records)
    assert outcome(saved(data)) == ([0, 1, 2, 3], [])


def test_a_plain_record_that_lost_bytes_is_damaged(saved) -> None:
    crawl = pages(3, gzip=False)
    at = crawl.offsets[2] - 60
    damaged = saved(crawl.data[:at] + crawl.data[at + 20 :])
    assert outcome(damaged) == ([0, 2], [Rejection.DAMAGED])


def test_an_unreadable_content_length_costs_one_plain_record_and_no_other(saved) -> None:
    crawl = pages(4, gzip=False)
    start, end = crawl.offsets[1], crawl.offsets[2]
    wrong = claiming(crawl.data[start:end], b"x")
    damaged = saved(crawl.data[:start] + wrong + crawl.data[end:])
    assert outcome(damaged) == ([0, 2, 3], [Rejection.DAMAGED])


def test_a_member_shorter_than_its_record_claims_is_damaged(saved) -> None:
    crawl = pages(2)
    member = gzip.decompress(crawl.data[: crawl.offsets[1]])
    damaged = saved(packed(member[:-400]) + crawl.data[crawl.offsets[1] :])
    assert outcome(damaged) == ([1], [Rejection.DAMAGED])


def test_padding_and_empty_members_are_no_damage(saved) -> None:
    crawl = pages(2)
    at = crawl.offsets[1]
    data = crawl.data[:at] + packed(b"") + crawl.data[at:] + bytes(1000)
    assert outcome(saved(data)) == ([0, 1], [])


@examples(150)
@given(st.data())
def test_random_flips_never_raise_and_cost_no_undamaged_gzip_record(tmp_path, data) -> None:
    crawl = pages(8, size=300)
    damaged = bytearray(crawl.data)
    places = data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=12))
    for place in places:
        damaged[place] ^= data.draw(st.integers(1, 255))
    ends = [*crawl.offsets[1:], len(damaged)]
    sound = [
        f"https://example.org/{n}"
        for n, (start, end) in enumerate(zip(crawl.offsets, ends, strict=True))
        if damaged[start:end] == crawl.data[start:end]
    ]
    path = tmp_path / "flipped.warc.gz"
    path.write_bytes(damaged)
    try:
        found = list(read_captures(path))
    except NotAWarcError:
        assert not sound
        return
    urls = [one.url for one in captures(found)]
    assert urls == sorted(set(urls))
    assert set(sound) <= set(urls)
    # Nothing that was delivered is made up: the checksum has seen each body.
    assert all(one.body == page(int(one.url.rpartition("/")[2]), 300) for one in captures(found))


@examples(150)
@given(st.data())
def test_random_flips_in_a_plain_file_never_raise(tmp_path, data) -> None:
    damaged = bytearray(pages(4, gzip=False, size=200).data)
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=12)):
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.warc"
    path.write_bytes(damaged)
    try:
        found = list(read_captures(path))
    except NotAWarcError:
        return
    assert all(isinstance(one, Capture | Rejected) for one in found)


# --- one member for the whole file ---------------------------------------------------------------


def test_an_error_of_the_folder_in_which_a_file_is_unpacked_names_it(saved, monkeypatch) -> None:
    path = saved(packed(pages(3, gzip=False).data))
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: full.open("w+b"))
    with pytest.raises(OSError, match=r"No space left.*crawl.* is unpacked there") as error:
        list(read_captures(path))
    assert error.value.filename == tempfile.gettempdir()


def test_a_file_compressed_as_one_member_is_read_and_is_one_split(saved) -> None:
    plain = pages(6, gzip=False)
    content = packed(plain.data)
    path = saved(content)
    found = list(read_captures(path))
    assert [one.body for one in captures(found)] == [page(n) for n in range(6)]
    assert {(one.offset, one.length) for one in found} == {(0, len(content))}
    assert plan_splits(path, 100) == [(0, len(content))]
    assert list(read_captures(path, start=1)) == []


def test_one_member_is_read_behind_a_record_that_is_cut(saved) -> None:
    crawl = Crawl(gzip=False).add("https://example.org/long", page(0, 900_000))
    crawl.add("https://example.org/1", page(1))
    long, short = read_captures(saved(packed(crawl.data)), max_body=1000)
    assert isinstance(long, Capture) and long.cut == 1000
    assert isinstance(short, Capture) and short.body == page(1)


def test_one_member_that_breaks_off_gives_the_records_before(saved) -> None:
    content = packed(pages(40, gzip=False).data)
    numbers, rejected = outcome(saved(content[: len(content) // 2]))
    assert numbers == list(range(len(numbers))) and 10 < len(numbers) < 30
    assert rejected == [Rejection.TRUNCATED]


# --- splits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
def test_planned_splits_are_adjacent_near_the_target_and_begin_at_records(
    saved, compressed: bool
) -> None:
    crawl = pages(400, gzip=compressed, size=900)
    path = saved(crawl.data)
    target = len(crawl.data) // 9
    splits = plan_splits(path, target)
    assert splits[0][0] == 0 and splits[-1][1] == len(crawl.data)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(splits))
    assert all(target <= end - start < target + 3000 for start, end in splits[:-1])
    assert {start for start, _ in splits} <= set(crawl.offsets)
    parts = [list(read_captures(path, start=start, end=end)) for start, end in splits]
    assert len(parts) == 9
    assert [one for part in parts for one in part] == list(read_captures(path))


@examples(80)
@given(st.data())
@pytest.mark.parametrize("compressed", [True, False])
def test_every_record_is_read_by_exactly_one_split_wherever_the_file_is_cut(
    tmp_path, compressed: bool, data
) -> None:
    # Either is longer than what is read at once to see what a record is.
    content = bytearray(pages(120 if compressed else 60, gzip=compressed).data)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4), label="flips"):
        content[place] ^= 0x55
    path = tmp_path / "split.warc"
    path.write_bytes(content)
    inside = st.integers(0, len(content))
    points = sorted(data.draw(st.lists(inside, max_size=6), label="cut at"))
    edges = [0, *points, len(content)]
    parts = [
        one
        for start, end in itertools.pairwise(edges)
        for one in read_captures(path, start=start, end=end)
    ]
    assert parts == list(read_captures(path))


def test_a_warc_file_that_was_itself_crawled_is_not_taken_for_records(saved) -> None:
    # Compressed bytes do not compress, so the fetched file's members stand as they are in ours.
    inner = Crawl()
    for n in range(100):
        inner.add(f"https://inner.example/{n}", random.Random(n).randbytes(6000))
    crawl = pages(3)
    crawl.add("https://example.org/crawl.warc.gz", inner.data, http=[("Content-Type", "a/gzip")])
    for n in range(200):
        crawl.add(f"https://example.org/{n}", page(n))
    assert sum(member in crawl.data for member in inner.records) > 5
    path = saved(crawl.data)
    sequential = list(read_captures(path))
    assert not any("inner" in one.url for one in captures(sequential))
    splits = plan_splits(path, 7_000)
    assert {start for start, _ in splits} <= set(crawl.offsets)
    assert len(splits) > 10
    for cut in range(crawl.offsets[3], crawl.offsets[4], 20_011):
        ends = [(0, cut), (cut, len(crawl.data))]
        parts = [list(read_captures(path, start=a, end=b)) for a, b in ends]
        assert parts[0] + parts[1] == sequential


def test_a_split_needs_a_target(saved) -> None:
    with pytest.raises(ValueError, match="at least 1 byte"):
        plan_splits(saved(pages(1).data), 0)


# --- not a WARC ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html>\n<p>About\nWARC/1.0\r\nWARC-Type: response\r\n", "page or other markup"),
        (b"PK\x03\x04rest of it", "zip archive: of a WACZ, unpack the WARC files"),
        (b"\x28\xb5\x2f\xfd____", "zstandard"),
        (packed(b"some notes, compressed")[:5], "nothing is in it: it may have been cut off"),
        (packed(b"some notes, compressed"), "what it holds starts with b'some notes, compressed'"),
        (b"\x1f\x8b\x08 not really", "nothing in it can be unpacked"),
        (b"just words", "starts with b'just words'"),
        (bytes(3_000_000), "no WARC record"),
    ],
    ids=["empty", "html", "zip", "zstd", "cut gzip", "gzip of text", "fake gzip", "text", "zeros"],
)
def test_a_file_that_is_no_warc_is_one_clear_error_at_once(
    saved, content: bytes, says: str
) -> None:
    path = saved(content)
    for use in (read_captures, lambda p: plan_splits(p, 1000)):
        with pytest.raises(NotAWarcError, match=says) as error:
            use(path)
        assert str(path) in str(error.value)
        assert "Give a WARC file" in str(error.value)


def test_a_folder_and_a_missing_file_are_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(NotAWarcError, match=r"is a folder.*Give the files in it"):
        read_captures(tmp_path)
    with pytest.raises(NotAWarcError, match=r"There is no file .*missing\.warc\.gz"):
        read_captures(tmp_path / "missing.warc.gz")


def test_a_pipe_is_named_as_such() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(NotAWarcError, match=rf"/dev/fd/{reading} is a pipe.*save what it says"):
            read_captures(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)


def test_a_warc_whose_first_record_is_destroyed_is_still_a_warc(saved) -> None:
    crawl = pages(3)
    found = list(read_captures(saved(b"\xff" * 50 + crawl.data[50:])))
    assert [one.body for one in captures(found)] == [page(1), page(2)]
    assert [one.offset for one in rejections(found)] == [0]
    with open_warc(saved(crawl.data))[0] as file:
        assert file.read(0) == b""


@pytest.mark.parametrize("compressed", [True, False])
def test_an_arc_file_is_named_as_one(saved, compressed: bool) -> None:
    arc = b"filedesc://IAH-2008.arc 0.0.0.0 20080430204825 text/plain 1301\n1 1 InternetArchive\n"
    with pytest.raises(NotAWarcError, match="an ARC file, the format before WARC"):
        read_captures(saved(packed(arc) if compressed else arc))


@pytest.mark.parametrize("compressed", [True, False])
def test_a_header_with_nothing_behind_it_is_damaged(saved, compressed: bool) -> None:
    crawl = pages(2, gzip=False)
    header = crawl.data[: crawl.data.index(b"\r\n\r\n") + 4]
    rest = crawl.data[crawl.offsets[1] :]
    parts = [packed(header), packed(rest)] if compressed else [header, rest]
    assert outcome(saved(b"".join(parts))) == ([1], [Rejection.DAMAGED])

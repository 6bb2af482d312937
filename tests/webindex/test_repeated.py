"""What a host repeats around the texts of its pages is left out of what search shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import from_scratch
from chains import Chain, chain_in_memory, moved, page
from effort import tries
from from_scratch import gone
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reading_ahead import open_counted

from percola import Worker
from webindex import tables
from webindex.crawl.warc import Capture
from webindex.load.removals import scope_of
from webindex.observers import repeated
from webindex.observers.parse import parse
from webindex.observers.repeated import find_repeated, write_blocks
from webindex.page.outer_blocks import LEAST_LEFT, kept, outer_blocks
from webindex.page.text import collapse
from webindex.page.urls import block_row, page_id
from webindex.takedown.removing import remove

NOTE = "We use cookies to improve this site"
FOOT = "Copyright of all pages by their authors"
PAGES = sorted((f"https://example.org/{number}" for number in range(14)), key=page_id)


def words(number: object) -> str:
    return " ".join(f"own{number}n{word}" for word in range(20))


def html(number: object, *, head: str = NOTE, foot: str = FOOT) -> str:
    own = words(number)
    return f"<title>{number}</title><p>{head}</p><p>{own}</p><p>{own} again</p><p>{foot}</p>"


def own(number: object) -> str:
    """The text of a page without what is around it."""
    return f"{words(number)} {words(number)} again"


@contextmanager
def bounds(window: int, least: int) -> Iterator[None]:
    """Judge pages by fewer others."""
    with ExitStack() as stack:
        for owner in (repeated, from_scratch):
            stack.enter_context(mock.patch.object(owner, "WINDOW", window))
            stack.enter_context(mock.patch.object(owner, "REPEATED", least))
        stack.enter_context(mock.patch.object(repeated, "_reaches", {}))
        yield


# --- The blocks of one page -----------------------------------------------------------------


@given(st.lists(st.text("ab \t\x00ü語"), max_size=12))
def test_blocks_are_where_the_text_has_them(lines: list[str]) -> None:
    extracted = "\n".join(lines)
    text = collapse(extracted)
    blocks = outer_blocks(extracted, text)
    there = [line for one in lines if (line := collapse(one))]
    if blocks is None:
        return
    assert blocks["size"] == len(text)
    for _, end in blocks["first"]:
        assert any(text[:end] == " ".join(there[:n]) for n in range(1, len(there) + 1))
    for _, start in blocks["last"]:
        assert any(text[start:] == " ".join(there[n:]) for n in range(len(there)))
    ends = [end for _, end in blocks["first"]] + [start for _, start in blocks["last"][::-1]]
    assert ends == sorted(ends), "a block is either at the beginning or at the end"


def test_blocks_are_left_out_from_the_outside_inwards() -> None:
    lines = [
        *("One note here", "Up", "A second note"),
        "t" * 60,
        "Last but one",
        "Next",
        "The last one",
    ]
    text = " ".join(lines)
    blocks = outer_blocks("\n\n".join(lines), text)
    assert blocks is not None
    first, second = (digest for digest, _ in blocks["first"])
    last, before = (digest for digest, _ in blocks["last"])

    def left(*digests: str) -> str:
        return text[kept(blocks, digests)]

    assert left() == text[kept(None, [first])] == text
    assert left(first) == " ".join(lines[1:])
    assert left(second) == text, "not without the one outside of it"
    assert left(first, second, last) == " ".join(lines[3:6])
    assert left(first, second, last, before) == lines[3]
    assert left("of a block that was there before") == text


def test_of_a_text_that_would_be_nearly_empty_nothing_is_left_out() -> None:
    for size in (LEAST_LEFT - 1, LEAST_LEFT):
        text = f"{NOTE} {'t' * size}"
        blocks = outer_blocks(text.replace(f"{NOTE} ", f"{NOTE}\n"), text)
        assert blocks is not None
        digests = [digest for digest, _ in blocks["first"][:1]]
        assert len(text[kept(blocks, digests)]) == (size if size == LEAST_LEFT else len(text))


# --- A host ---------------------------------------------------------------------------------


def test_what_eight_pages_repeat_is_left_out_until_one_of_them_goes(empty: Chain) -> None:
    def shown(number: int) -> object:
        return empty.document(PAGES[number])["text"]

    def whole(number: int) -> str:
        return f"{NOTE} {own(number)} {FOOT}"

    empty.load([page(PAGES[number], html(number)) for number in range(7)])
    # The same text at another address is no further page.
    empty.verify([page(PAGES[12], html(0))])
    assert shown(3) == whole(3)
    empty.verify([page(PAGES[7], html(7))])
    assert [shown(number) for number in range(8)] == [own(number) for number in range(8)]
    assert empty.found("cookies") == [] != empty.found("own3n4")
    # Another text within the same frame: at no time is too much or too little cut off.
    empty.load([page(PAGES[3], html(33), 60.0)])
    assert empty.work()["find_repeated"] == 1
    empty.check()
    assert shown(3) == own(33)
    empty.verify([page(PAGES[3], html(33, foot="Now at the end of this page"), 120.0)])
    assert shown(3) == f"{own(33)} Now at the end of this page"
    assert shown(4) == f"{own(4)} {FOOT}"
    empty.verify([gone(page(PAGES[5], html(5)))])
    assert shown(4) == whole(4)


def test_a_takedown_takes_its_pages_out_of_what_is_repeated(empty: Chain) -> None:
    empty.process([page(url, html(number)) for number, url in enumerate(PAGES[:8])])
    removed = PAGES[0]
    remove(empty.repo, empty.index, [scope_of("url", removed)])
    empty.loaded = [one for one in empty.loaded if one.url != removed]
    empty.verify()
    with empty.repo.snapshot() as now:
        rows = {row.key: row for row in now.scan(tables.blocks)}
    assert rows.keys() == {block_row(url) for url in PAGES[1:8]}
    assert not any(tables.repeated in row for row in rows.values())


def any_page(rng: random.Random, number: int, seconds: float) -> Capture:
    around = [NOTE, FOOT, "Another note of this site", f"Only here {number}"]
    body = html(rng.randrange(9), head=rng.choice(around), foot=rng.choice(around))
    one = page(PAGES[number], body, seconds)
    match rng.randrange(10):
        case 0 | 1:
            return gone(one, seconds=0)
        case 2:
            return moved(one, rng.choice(PAGES), seconds=0)
    return one


@settings(max_examples=tries(10), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_came_and_went_in_whatever_order_the_rest_depends_on_the_pages_alone(
    seed: int,
) -> None:
    rng = random.Random(seed)
    window, least = rng.choice([(2, 2), (3, 2), (4, 2), (16, 8)])
    with bounds(window, least), chain_in_memory() as chain:
        for step in range(rng.choice([1, 4])):
            numbers = rng.sample(range(len(PAGES)), rng.choice([1, 4, 14]))
            captures = [any_page(rng, number, 60 * step) for number in numbers]
            chain.load(captures, rng.choice([1, 14]))
            if rng.random() < 0.7:
                chain.work(rng.choice([1, 3]))
                chain.check()
        chain.verify()


def test_a_run_that_commits_late_is_put_right_by_the_run_that_it_has_notified(empty: Chain) -> None:
    # Each page is judged by itself and the next one; of these, the first and the third have a note.
    first, new, third, *others = range(5)
    with bounds(2, 2):
        captures = {}
        for n in (first, new, third, *others):
            head = NOTE if n in (first, third) else f"Of {n} alone"
            captures[n] = page(PAGES[n], html(n, head=head, foot=f"At {n} alone"))
        empty.load([one for n, one in captures.items() if n != new])
        Worker(empty.repo, [parse]).run_until_idle()
        late = empty.repo.transaction()
        find_repeated.function(late, block_row(PAGES[third]))
        # A page between the two: the later run sees that nothing is repeated, as is written.
        empty.load([captures[new]])
        Worker(empty.repo, [parse]).run_until_idle()
        Worker(empty.repo, [find_repeated]).run_until_idle()
        assert empty.repo.snapshot().get(tables.repeated, block_row(PAGES[first])) is None
        late.commit()
        assert empty.repo.snapshot().get(tables.repeated, block_row(PAGES[first])) is not None
        empty.verify()


def test_on_a_host_of_thousands_of_pages_a_change_costs_a_bounded_number_of_cells(
    tmp_path: Path,
) -> None:
    first, last = "a note at the top", "a note at the end"
    found = {"first": [[first, 20]], "last": [[last, 100]], "size": 120}
    urls = [f"https://example.org/{number}" for number in range(4000)]

    with open_counted(tmp_path, prefetches=True) as (chain, calls):

        def changed(number: int) -> int:
            """Cells that are read and written when one of so many pages has something else."""
            before = calls.counts()
            with chain.repo.transaction() as t:
                write_blocks(t, urls[number // 2], {**found, "first": [], "text": "other"})
            Worker(chain.repo, [find_repeated]).run_until_idle()
            row = block_row(urls[number // 2])
            assert chain.repo.snapshot().get(tables.repeated, row) == [last]
            after = calls.counts()
            return sum(
                count.cells - (before[key].cells if key in before else 0)
                for key, count in after.items()
                if key[0] == "find_repeated"
            )

        costs, found_out = [], []
        with mock.patch.object(repeated, "_reaches", {}):
            for start, end in ((0, 100), (100, 4000)):
                with chain.repo.transaction() as t:
                    for url in urls[start:end]:
                        t.set(tables.outer, block_row(url), {**found, "text": url, "url": url})
                        t.set(tables.repeated, block_row(url), [last, first])
                found_out.append(changed(end - 2))  # How many pages there are.
                costs.append(changed(end))
    assert min(costs) > 30 and max(costs) < 300, costs
    assert max(found_out) < 2000, "the rows of a host that has grown are not all read"

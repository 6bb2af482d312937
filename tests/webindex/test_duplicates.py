"""Pages are folded into one exactly where they are copies, by labels that share none of its rules.

The labels and the judging are those of the benchmark `duplicates`, which measures documentation
packages; here it is pages of their shape, made up, and pages of the sample crawl.
"""

from __future__ import annotations

import random
import re

import pytest
from from_scratch import sample
from generated_pages import HOST, SHAPES, pages

from benchmarks.duplicates import Cluster, Figures, clusters, index_pages, judge, search
from benchmarks.labelled import Labelled, Original, label
from benchmarks.main_text import GENERATORS, Generator, main_text
from benchmarks.near_copies import KINDS, SHARE, SHORTEST, near_copy, without_dates
from webindex.workers.processes import open_index, open_repository

SAMPLE = Generator("sample", ("body",), ("div.navheader", "div.navfooter", "div#footer"))
GENERATOR = {"exceptions": "Javadoc", "classes": "Javadoc", "functions": "Sphinx"}


@pytest.fixture(scope="module")
def labelled() -> Labelled:
    found = Labelled()
    for shape in SHAPES:
        label(shape, GENERATORS[GENERATOR[shape]], pages(shape, 120), found, copies=12, seed=1)
    real = [(one.url, one.body) for one in sample() if one.status == 200]
    english = [(url, body) for url, body in real if not re.search("/(de|fr|ko)/", url)]
    label("sample", SAMPLE, english, found, copies=12, seed=1)
    return found


# --- The web index, judged ------------------------------------------------------------------


@pytest.fixture(scope="module")
def figures(labelled: Labelled, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    address = str(tmp_path_factory.mktemp("labelled") / "repo")
    with open_repository(address, create=True) as repo, open_index(repo, create=True) as index:
        index_pages(repo, index, labelled.pages(1))
        found = judge(labelled, clusters(repo))
        search(labelled, found, index)
    assert found.not_indexed == 0 and found.all_folded.of > 400 and found.all_found.of > 400
    return found


def test_no_page_vanishes_into_another_one(figures: Figures) -> None:
    assert [(one.url, one.shown_url) for one in figures.vanished] == []


def test_near_copies_are_found_with_their_original(figures: Figures) -> None:
    shares = {kind: str(one) for kind, one in figures.found.items()}
    assert figures.all_found.value >= 0.99, shares


def test_copies_with_the_same_bytes_are_always_found(figures: Figures) -> None:
    share = figures.found["same bytes"]
    assert share.part == share.of > 40


def test_a_page_that_stands_for_itself_is_found_by_its_title(figures: Figures) -> None:
    assert figures.searched_others.value > 0.9


# --- The labels -----------------------------------------------------------------------------


def test_pages_that_were_made_apart_are_labelled_distinct(labelled: Labelled) -> None:
    made = [one for one in labelled.originals if one.package in SHAPES]
    assert len(made) == 360 == len({one.like for one in made})


@pytest.mark.parametrize("kind", KINDS)
def test_a_near_copy_keeps_title_and_names_and_changes_few_words(
    labelled: Labelled, kind: str
) -> None:
    made = [one for one in labelled.copies if one.kind == kind and one.of.package in SHAPES]
    assert len(made) >= 12
    for copy in made:
        markup = copy.body.decode()
        # The content stands in another site's elements where the template is another one.
        there = Generator("there", ("main", "div#content"), copy.of.generator.without)
        main = main_text(markup, there)
        original = main_text(copy.of.body.decode(), copy.of.generator)
        assert main is not None and original is not None
        assert f"<title>{copy.of.title}</title>" in markup and copy.url != copy.of.url
        before, after = sorted(original.text.split()), sorted(main.text.split())
        changed = len(_without(before, after)) + len(_without(after, before))
        # A word replaced is one that is gone and one that is there.
        assert changed <= 4 * SHARE * len(before)
        assert original.words >= SHORTEST
        plain = kind in ("same bytes", "banner", "other navigation", "other template")
        assert (main.text == original.text) is plain


def _without(words: list[str], others: list[str]) -> list[str]:
    left = list(words)
    for one in others:
        if one in left:
            left.remove(one)
    return left


def test_near_copies_are_the_same_in_every_run() -> None:
    [(url, body), *_] = pages("classes", 1)
    main = main_text(body.decode(), GENERATORS["Javadoc"])
    assert main is not None
    for kind in KINDS:
        first, second = (
            near_copy(kind, url, body.decode(), main, random.Random(5)) for _ in range(2)
        )
        assert first == second


def test_a_page_of_few_words_has_no_near_copies() -> None:
    markup = f"<html><body><main><p>{'Few words. ' * 20}</p></main></body></html>"
    main = main_text(markup, GENERATORS["Javadoc"])
    assert main is not None and main.words == 40 < SHORTEST
    assert near_copy("words", f"{HOST}/few", markup, main, random.Random(1)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("As of 3 May 2012.", "As of 28 December 2021."),
        ("Released 2012-05-03", "Released 2013-11-30"),
        ("Version 3.1 of it", "Version 4 of it"),
        ("It is 2.10.3 now", "It is 2.11.0 now"),
    ],
)
def test_dates_and_versions_make_no_text_of_their_own(one: str, other: str) -> None:
    assert without_dates(one) == without_dates(other) != one


def test_numbers_that_are_no_versions_make_a_text_of_their_own() -> None:
    assert without_dates("Vec2f has 2 floats, 0.5 each") != without_dates("Vec3f has 3 floats, 0.5")


@pytest.mark.parametrize(
    ("generator", "markup"),
    [
        ("Javadoc", "<body><header>nav</header><main>a <b>b</b>&amp;c</main>foot</body>"),
        ("Doxygen", '<div class="header">h</div><div class="contents">a <b>b</b>&amp;c</div>'),
        ("Sphinx", '<nav>x</nav><div class="body">a <b>b</b>&#38;c</div><p>y</p>'),
        (
            "rustdoc",
            '<nav>x</nav><main><section id="main-content">a <b>b</b>&amp;c</section></main>',
        ),
        ("Haddock", '<div id="content"><div id="table-of-contents">t</div>a <i>b</i>&amp;c</div>'),
        (
            "Texinfo",
            "<body><div class=header>Next: x</div>a\n<b>b</b>&amp;c<script>x</script></body>",
        ),
        ("gtk-doc", '<div class="refentry">a <div>b&amp;c</div></div><div class="footer">f</div>'),
    ],
)
def test_the_main_text_is_what_the_generator_wrote_without_navigation(
    generator: str, markup: str
) -> None:
    main = main_text(markup, GENERATORS[generator])
    assert main is not None and main.text == "a b&c"
    assert "x" not in "".join(markup[start:end] for start, end in main.spans)


def test_a_page_without_the_element_of_its_generator_has_no_main_text() -> None:
    assert main_text("<body>text</body>", GENERATORS["Doxygen"]) is None


# --- The judging ----------------------------------------------------------------------------


def _set() -> tuple[Labelled, list[Original]]:
    found = Labelled()
    label("p", GENERATORS["Javadoc"], pages("classes", 4), found, copies=1, seed=1)
    return found, found.originals


def test_of_texts_in_one_cluster_all_but_the_shown_one_have_vanished() -> None:
    labelled, (a, b, c, d) = _set()
    one = Cluster(b.url, frozenset({a.url, b.url, c.url}))
    found = judge(labelled, [one, Cluster(d.url, frozenset({d.url}))])
    assert (found.all_folded.part, found.all_folded.of) == (2, 4)
    assert {page.url for page in found.vanished} == {a.url, c.url}
    assert {page.shown_url for page in found.vanished} == {b.url} and len(found.worst) == 3


def test_a_near_copy_that_is_shown_stands_for_its_original() -> None:
    labelled, (a, b, c, d) = _set()
    copy = next(one for one in labelled.copies if one.of is a)
    one = Cluster(copy.url, frozenset({a.url, b.url, copy.url}))
    rest = [Cluster(page.url, frozenset({page.url})) for page in (c, d)]
    found = judge(labelled, [one, *rest])
    assert [page.url for page in found.vanished] == [b.url]
    assert found.all_found.part == 1 and found.all_found.of == len(labelled.copies)
    assert copy.url not in {missed.url for missed in found.missed}


def test_pages_of_one_text_are_one_text_and_may_be_folded() -> None:
    found = Labelled()
    [(url, body)] = pages("classes", 1)
    label("p", GENERATORS["Javadoc"], [(url, body), (f"{url}?2", body)], found, copies=0, seed=1)
    cluster = Cluster(url, frozenset({url, f"{url}?2"}))
    figures = judge(found, [cluster])
    assert (figures.all_folded.part, figures.all_folded.of, figures.same) == (0, 1, 1)


def test_a_page_that_is_in_no_cluster_is_counted_apart() -> None:
    labelled, (a, b, c, d) = _set()
    found = judge(labelled, [Cluster(one.url, frozenset({one.url})) for one in (a, b, c)])
    assert found.not_indexed == 1 and found.all_folded.of == 3
    assert all(missed.of != d.url for missed in found.missed)

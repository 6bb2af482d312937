"""`webindex verify` of a repository that keeps resources: invariants 15 and 16.

No browser is needed: what is judged is what the repository says of its images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from linked_crawl import html, words
from pyspark.sql import SparkSession
from rendered_site import SITE, load_site, png

from percola import Repository, Transaction, Worker
from webindex.batch.verdict import Verdict
from webindex.batch.verify import verify
from webindex.page.urls import page_id, page_row
from webindex.rendering import tables as rendering
from webindex.rendering.browser import Answer, Rendered
from webindex.rendering.css import references_in
from webindex.rendering.render import inputs_of, render_with
from webindex.workers.processes import build_observers, open_index, open_repository

pytestmark = pytest.mark.timeout(900)

STYLE = '<link rel="stylesheet" href="/{}">'
FILES = {
    "": html("Home", words(1), [("/red", "red")], STYLE.format("main.css")),
    "red": html("Red", [*words(2), '<img src="red.png">'], head=STYLE.format("old.css")),
    "plain": html("Plain", words(3)),
    "framed": html("Framed", [*words(4), '<iframe src="/red"></iframe><img src="lost.png">']),
    "main.css": '@import "base.css"; body { color: red }',
    "base.css": "p { background: url(blue.png) }",
    "old.css": "->/base.css",
    "red.png": png(255, 0, 0),
    "same.png": png(255, 0, 0),
    "blue.png": png(0, 0, 255),
    "gone.css": None,
}


class StylesOnly:
    """Stands for a browser that asks for `main.css`, and for what stylesheets ask for."""

    version = "1"

    def render(self, url: str, answers: Callable[[str], tuple[str | None, Answer | None]]) -> Any:
        made, todo = Rendered(image=b"image", thumbnail=b"small"), [f"{SITE}main.css"]
        while todo:
            asked, answer = answers(todo.pop())
            assert asked is not None
            made.asked[asked] = None if answer is None else answer.digest
            if answer is not None:
                todo += [f"{SITE}{one}" for one in references_in(answer.body.decode("latin-1"))]
        return made


def work(repo: Repository, *, render: bool = True) -> None:
    with open_index(repo, create=True) as index:
        observers = build_observers(index, resources=True)
        if render:
            observers.append(render_with(StylesOnly()))  # type: ignore[arg-type]
        Worker(repo, observers, threads=1, warn_unobserved=False).run_until_idle()


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with open_repository(str(tmp_path / "index"), create=True) as opened:
        yield opened


def wrong(verdict: Verdict) -> set[tuple[int, str, str, str]]:
    return {(one.invariant, d.table, d.row, d.part) for one in verdict.judged for d in one.first}


@pytest.mark.long
def test_resources_uses_and_images_are_what_captures_make_them(
    spark: SparkSession, repo: Repository, tmp_path: Path
) -> None:
    def judged(at: int | None = None) -> Verdict:
        return verify(repo.address, spark=spark, quiet=True, at=at)

    load_site(repo, tmp_path, FILES)
    work(repo)
    repo.run(as_earlier_versions_had_it)
    verdict = judged()
    assert verdict.sentences() == [] and verdict.unfinished == []
    assert (verdict[15].checked, verdict[15].note) == (True, "")
    assert (verdict[16].compared, verdict[16].note) == (4, "")
    assert verdict[15].compared > 20

    # A stylesheet changes that two pages name, and two others have asked for. Nobody renders yet.
    (tmp_path / "later").mkdir()
    load_site(repo, tmp_path / "later", {"base.css": "p { background: url(red.png) }"}, day=2)
    work(repo, render=False)
    earlier = repo.snapshot().start_ts
    verdict = judged()
    assert verdict.sentences() == [] and verdict.unfinished == []
    assert verdict[16].note == "4 wait to be rendered"

    # Each kind of mistake is seen where it is, and nowhere else.
    work(repo)
    spoil(repo)
    verdict = judged()
    assert wrong(verdict) == SPOILT and verdict[16].note == "1 waits to be rendered"
    past = judged(at=earlier)
    assert past.sentences() == [] and not past[16].checked


HOME, RED, PLAIN, FRAMED = (SITE + name for name in ("", "red", "plain", "framed"))
SAME, LOST = f"{SITE}same.png", f"{page_id(f'{SITE}red.png')}/page/{page_id(RED)}"
ADDED = f"{page_id(f'{SITE}red.png')}/page/0"
BODY = blake2b(png(255, 0, 0), digest_size=16).hexdigest()
SPOILT = {
    (15, "uses", LOST, "by"),
    (15, "uses", ADDED, "by"),
    (15, "bodies", BODY, f"holder:{page_id(SAME)}"),
    (15, "bodies", BODY, "data"),
    (15, "resources", page_row(FRAMED), "entered"),
    (16, "renders", page_row(HOME), "image"),
    (16, "renders", page_row(PLAIN), "image"),
    # Without what is said of its image, nothing tells what the browser asked for.
    *(
        (15, "uses", f"{page_id(SITE + name)}/seen/{page_id(PLAIN)}", "by")
        for name in ("main.css", "base.css", "red.png")
    ),
}


def as_earlier_versions_had_it(t: Transaction) -> None:
    """An image whose answers are told by their bytes, without their types."""
    shown = t.get(rendering.about, page_row(HOME))
    assert shown is not None
    page = shown["page"].partition(" ")[0]
    asked = {url: told and told.partition(" ")[0] for url, told in shown["asked"].items()}
    inputs = inputs_of(page, asked, shown["version"])
    changed = {**shown, "page": page, "asked": asked, "inputs": inputs}
    assert shown["page"] != page and shown["asked"] != asked
    t.set(rendering.about, page_row(HOME), changed)


def spoil(repo: Repository) -> None:
    """Make the mistakes of `SPOILT`, and one that is about to be repaired."""

    def write(t: Transaction) -> None:
        t.delete(rendering.used_by, LOST)
        t.set(rendering.used_by, ADDED, f"{SITE}nobody")
        t.delete(rendering.holder[page_id(SAME)], BODY)
        t.set(rendering.data, BODY, rendering.packed(b"something else"))
        t.delete(rendering.entered, page_row(FRAMED))
        t.delete(rendering.about, page_row(PLAIN))
        for url in (HOME, RED):
            shown = t.get(rendering.about, page_row(url))
            assert shown is not None
            t.set(rendering.about, page_row(url), {**shown, "inputs": "others"})
        t.notify(rendering.render_due, page_row(RED))

    repo.run(write)

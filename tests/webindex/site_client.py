"""A site for tests, on a port of its own and in a thread: asked as a browser asks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from from_scratch import again, sample
from http_served import running
from selectolax.lexbor import LexborHTMLParser, LexborNode

from percola import Repository, Worker
from percola.serve import Names
from webindex.crawl.warc import Capture
from webindex.load.transaction import load_captures
from webindex.serving import TantivyIndex
from webindex.site.app import make_app
from webindex.workers.processes import build_observers, open_index, open_repository

CANONICAL, DUPLICATE = "https://www.sqlite.org/", "https://www.sqlite.org/index.html"
WORDS = "Zygomorphic wrasse recalibrate the tessellated harmonium while nobody listens at all"


class Page(LexborHTMLParser):
    """An answer's HTML, and short ways to look at it."""

    def words(self, selector: str = "body") -> str:
        """The text of the first element that is selected, its white space collapsed."""
        node = self.css_first(selector)
        assert node is not None, f"there is no {selector} in {self.html}"
        return " ".join(node.text().split())

    def all(self, selector: str) -> list[str]:
        """The text of every element that is selected."""
        return [" ".join(node.text().split()) for node in self.css(selector)]

    def link(self, selector: str) -> str:
        """Where the first link that is selected leads."""
        node = self.css_first(selector)
        assert node is not None, f"there is no {selector} in {self.html}"
        return node.attributes["href"] or ""

    def every(self) -> list[LexborNode]:
        """All elements."""
        return self.css("*")


@dataclass
class Served:
    """An open repository with its site."""

    repo: Repository
    index: TantivyIndex
    client: httpx.Client

    def page(self, path: str, *, status: int = 200, **parameters: str) -> Page:
        """Ask for a page, which must be answered with this status."""
        answer = self.client.get(path, params=parameters or None)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return Page(answer.text)

    def story(self, url: str, *, status: int = 200, **parameters: str) -> Page:
        return self.page("/page", status=status, url=url, **parameters)

    def load(self, *captures: Capture) -> None:
        load_captures(self.repo, captures, "/crawls/later.warc.gz")

    def work(self) -> None:
        observers = build_observers(self.index)
        Worker(self.repo, observers, threads=2, first_wait=0.001).run_until_idle()

    def process(self, *captures: Capture) -> None:
        """Load captures and work until nothing is left."""
        self.load(*captures)
        self.work()


@contextmanager
def served(folder: Path, host: str = "127.0.0.1") -> Iterator[Served]:
    """The site of a repository, which is made if it is not there, as if bound to `host`."""
    with (
        open_repository(str(folder), create=True) as repo,
        open_index(repo, create=True) as index,
        running(make_app(repo, index, Names(host))) as client,
    ):
        yield Served(repo, index, client)


def made(url: str, html: str, *, seconds: float = 0, status: int = 200, **headers: str) -> Capture:
    """A capture of a page of our own; `robots` is its X-Robots-Tag header, `to` its Location."""
    said = {"content-type": "text/html; charset=utf-8"}
    for name, header in (("robots", "x-robots-tag"), ("to", "location")):
        if name in headers:
            said[header] = headers[name]
    one = replace(sample()[0], url=url, body=html.encode(), status=status, headers=said)
    return again(one, seconds=seconds)


def article(title: str, text: str = WORDS, links: str = "") -> str:
    """A page long enough to be known by its words."""
    return (
        f"<!doctype html><html lang=en><title>{title}</title><body><h1>{title}</h1>"
        f"<p>{text}. {WORDS}. {WORDS}, said {text}. {links}</p></body></html>"
    )


# --- Fixtures -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(worked_off: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The whole sample; tests of a module only read it."""
    folder = shutil.copytree(worked_off, tmp_path_factory.mktemp("site") / "repo")
    with served(folder) as one:
        yield one


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Served]:
    """A repository with nothing in it."""
    with served(tmp_path / "repo") as one:
        yield one

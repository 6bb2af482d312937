"""`percola serve` in a thread, asked as a browser asks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from typing import Any

import httpx
from http_served import running

from percola import Observer, Repository
from percola.serve import Names
from percola.serve.app import make_app
from percola.serve.login import Login

TOKEN = "a token of more than sixteen characters"


@dataclass
class Served:
    """An open repository with its page."""

    repo: Repository
    client: httpx.Client
    own: dict[str, str] = field(default_factory=dict)

    def page(self, path: str = "/", *, status: int = 200) -> str:
        """A page's HTML, which must be answered with this status."""
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return answer.text

    def words(self, path: str = "/", *, status: int = 200) -> str:
        """A page's text."""
        return words(self.page(path, status=status))

    def samples(self, number: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.told(number)["samples"]
        return found

    def told(self, number: int = 0, have: str = "") -> dict[str, Any]:
        """What the page's script gets."""
        answer = self.client.get("/live.json", params={"since": str(number), "have": have})
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    def part(self, name: str) -> str:
        """The text of a part of the page."""
        return words(self.told()["parts"][name]["text"])

    def log_in(self, token: str = TOKEN) -> httpx.Response:
        return self.client.post("/login", data={"token": token}, headers=self.own)

    def key(self) -> str:
        """What the buttons of the page send, as it is now."""
        key = re.search(r'name="key" value="([^"]+)"', self.page())
        assert key is not None
        return unescape(key[1])

    def act(self, **form: str) -> httpx.Response:
        """Press a button of the page, as it is now."""
        return self.client.post("/act", data={"key": self.key(), **form}, headers=self.own)


def words(html: str) -> str:
    """The text of HTML, its white space collapsed."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@contextmanager
def served(
    repo: Repository, observers: Iterable[Observer[Any]] = (), *, token: str = ""
) -> Iterator[Served]:
    """The page of a repository, on a port of its own."""
    login = Login(token, repo.context.clock)
    with running(make_app(repo, observers, Names("127.0.0.1"), login)) as client:
        address = str(client.base_url).rstrip("/")
        yield Served(repo, client, {"Origin": address, "Sec-Fetch-Site": "same-origin"})

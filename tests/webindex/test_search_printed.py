"""What `webindex search` writes to a terminal."""

from __future__ import annotations

import pytest

from webindex.cli.main import print_results
from webindex.serving.base import SearchHit, SearchResults


def test_crawled_words_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    hit = SearchHit(
        cluster="c",
        score=1.0,
        url=f"https://a.example/{evil}",
        title=f"Title {evil}",
        snippet=((f"snippet {evil}", False), (f"hit {evil}", True)),
        language="en",
        host="a.example",
        duplicates=(f"https://b.example/{evil}",),
        inlinks=2,
        anchors=(),
        rank=1.0,
        aliases=("https://a.example/old", "https://a.example/older"),
    )
    print_results("words", SearchResults((hit,), 1))
    shown = capsys.readouterr().out
    for one in ("\x1b", "\x07", "\u202e"):
        assert one not in shown
    words = " ".join(shown.split())
    assert "1 page found" in words and "2 links lead here · en · 1 duplicate · 2 redirects" in words
    assert "Title" in words and "snippet" in words and "= https://b.example/" in words

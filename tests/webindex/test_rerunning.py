"""The pages of one host are parsed again after the parser has changed: `webindex rerun`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from chains import Chain
from web_commands import call, is_error

from webindex import tables
from webindex.observers import parse as parsing
from webindex.page.urls import BadUrlError, host, host_rows, page_row
from webindex.reports.versions import versions_of


def titles(chain: Chain) -> dict[str, str]:
    with chain.repo.snapshot() as now:
        rows = now.scan(tables.pages, columns=[tables.fingerprint])
        return {row[tables.fingerprint]["url"]: row[tables.fingerprint]["title"] for row in rows}


def test_one_host_is_parsed_again_with_the_new_parser_and_the_index_follows(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = titles(chain)
    hosts = Counter(host(url) for url in before)
    name, pages = hosts.most_common()[len(hosts) // 2]
    assert 0 < pages < len(before)
    with chain.repo.snapshot() as now:
        rows = now.scan(tables.pages, columns=[tables.capture])
        expected = sum(host(row[tables.capture]["url"]) == name for row in rows)
    parse_capture = parsing.parse_capture
    parsed: list[str] = []

    def newer(capture: Any, body: bytes) -> Any:
        page = parse_capture(capture, body)
        parsed.append(capture["url"])
        return None if page is None else replace(page, title=f"Zebra {page.title}")

    monkeypatch.setattr(parsing, "parse_capture", newer)
    said = call("rerun", "--repo", chain.repo.address, "parse", "--host", name, "--json")
    assert (said.code, said.json) == (0, {"observer": "parse", "rows": expected})
    runs = chain.work()
    assert runs["parse"] == expected
    assert {host(url) for url in parsed} == {name}
    assert titles(chain) == {
        url: f"Zebra {title}" if host(url) == name else title for url, title in before.items()
    }
    shown = chain.found("zebra")
    assert shown and {host(url) for url in shown} == {name}


def test_the_rows_of_a_host_are_those_of_its_pages_and_no_others() -> None:
    prefixes = tuple(host_rows("www.example.com"))
    for scheme in ("https", "http"):
        for tail in ("/", "/a?b", ":8443/", ":8080/x"):
            assert page_row(f"{scheme}://www.example.com{tail}").startswith(prefixes)
    for other in ("example.com", "a.www.example.com", "www.example.community"):
        assert not page_row(f"https://{other}/").startswith(prefixes)
    for number in range(500):
        assert page_row(f"https://www.example.com/{number}").startswith(prefixes)
    assert page_row("https://[::1]/").startswith(tuple(host_rows("[::1]")))


@pytest.mark.parametrize(
    "name", ["", "a b", "www.example.com/path", "www.example.com:80 80", "a:81"]
)
def test_what_is_no_host_is_refused(name: str) -> None:
    with pytest.raises(BadUrlError, match=f"^{name!r} is not the name of a host"):
        host_rows(name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parser"], "The web index has no observer 'parser'. It has: parse, "),
        (
            ["assemble", "--host", "a.org"],
            "The rows of clusters, where assemble runs, are not named",
        ),
        (["parse", "--host", "a b"], "a b"),
    ],
)
def test_a_mistake_is_one_sentence(chain: Chain, words: list[str], message: str) -> None:
    assert is_error(call("rerun", "--repo", chain.repo.address, *words), message)


def test_explain_tells_when_a_capture_was_loaded_by_the_log_of_times(chain: Chain) -> None:
    url = chain.loaded[0].url
    before = versions_of(chain.repo, page_row(url))
    chain.repo.collect_garbage()  # It logs the time, as workers do.
    after = versions_of(chain.repo, page_row(url))
    assert [one.committed_by for one in before] == [None] * len(after) and after
    assert all(datetime.fromisoformat(one.committed_by or "") for one in after)
    said = call("explain", "--repo", chain.repo.address, url)
    assert said.code == 0 and "Loaded by 2" in said.out, said.out

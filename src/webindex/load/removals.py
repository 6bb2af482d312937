"""Removals: which pages were removed by request, and which records are therefore not loaded.

A removal covers one URL, the URLs of a host, or those that begin with a prefix. It refuses every
record of them up to a `WARC-Date`, so that loading the same files again does not restore what was
removed, while a crawl made later does; a *block* refuses all records. Whether a record is refused
depends on these two dates alone, not on the order of loads and removals: so `webindex verify` and
`webindex rebuild` find the same pages by leaving refused records out.

Of a removal and a loader that runs at the same time, one sees the other:

    the loader began after the removal was committed   it reads the removal, and loads nothing
    the loader committed before that                   the removal finds the page by its scan
    otherwise                                          `parse` (or `settle`, or `ask_resource`) of
                                                       the record begins later than both: it reads
                                                       the removal, processes nothing, and has the
                                                       page erased (`removals.erase`)

So loaders only read `removals`, and those of one host do not conflict there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

from percola import Column, Snapshot, Transaction
from webindex import tables
from webindex.page.urls import (
    MAX_ROW_BYTES,
    BadUrlError,
    host,
    host_named,
    host_rows,
    normalise,
    page_row,
    surt,
)

__all__ = [
    "Rule",
    "Rules",
    "Scope",
    "all_rules",
    "lift",
    "put",
    "rules_for",
    "rules_in",
    "scope_of",
]

_HOST_KEY: Final = "host"
_HASH_TAIL: Final = 1 + 32

Until = str | None
"""The last refused `WARC-Date`, as captures store it; None refuses all."""

Kind = Literal["url", "host", "prefix"]


class Scope(NamedTuple):
    """The pages that a removal covers; made by `scope_of`."""

    kind: Kind
    name: str

    def covers(self, url: str) -> bool:
        """Whether this normalised URL is one of them."""
        if self.kind == "url":
            return url == self.name
        return host(url) == self.name if self.kind == "host" else url.startswith(self.name)

    def cell(self) -> tuple[Column[str, Any], str]:
        """The column and row of `removals` where its rule is."""
        if self.kind == "url":
            return tables.removed_page, page_row(self.name)
        if self.kind == "host":
            return tables.removed_under[_HOST_KEY], _host_row(self.name)
        key = blake2b(self.name.encode(), digest_size=16).hexdigest()
        return tables.removed_under[key], _host_row(host(self.name))

    def row_prefixes(self) -> list[str]:
        """Prefixes of the rows of its pages; rows of other pages may have them as well."""
        if self.kind == "url":
            return [page_row(self.name)]
        if self.kind == "host":
            return host_rows(self.name)
        # Rows of long URLs are cut, so that a long prefix may be longer than what is left of them.
        key = surt(self.name)[: MAX_ROW_BYTES - _HASH_TAIL - len("00/")]
        return [f"{byte:02x}/{key}" for byte in range(256)]


def scope_of(kind: Kind, text: str) -> Scope:
    """The pages that a user names.

    Raises:
        BadUrlError: `text` is no URL, no host, or a prefix in another form than URLs are kept in:
            normalised, it would cover other pages.
    """
    if kind == "host":
        return Scope(kind, host_named(text))
    url = normalise(text)
    if kind == "prefix" and url not in (text, f"{text}/"):
        raise BadUrlError(
            f"URLs that begin with {text!r} are kept as {url!r}: give the prefix in that form."
        )
    return Scope(kind, url)


class Rule(NamedTuple):
    """A removal: its pages, the last date that is refused (None: a block), when it was made."""

    scope: Scope
    until: Until
    at_ms: int

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        kind, name = self.scope
        return {kind: name, "blocked": self.until is None, "until": self.until, "at_ms": self.at_ms}


@dataclass(frozen=True, slots=True)
class Rules:
    """Removals, for deciding about records: those of some URLs (`rules_for`), or all of them.

    Attributes:
        pages: by URL, of single pages.
        hosts: by host, the prefixes under which URLs were removed; an empty one covers the host.
    """

    pages: Mapping[str, Until] = field(default_factory=dict)
    hosts: Mapping[str, Sequence[tuple[str, Until]]] = field(default_factory=dict)

    def refuses(self, url: str, date: str) -> bool:
        """Whether a record of this URL and date, as captures store it, is not to be loaded."""
        if url in self.pages and _covers(self.pages[url], date):
            return True
        if not self.hosts:
            return False
        under = self.hosts.get(host(url), ())
        return any(url.startswith(prefix) and _covers(until, date) for prefix, until in under)


def _covers(until: Until, date: str) -> bool:
    return until is None or date <= until


def rules_for(t: Snapshot, urls: Iterable[str]) -> Rules:
    """The removals that concern these URLs; on a store behind a network, in two calls."""
    rows = {page_row(url): url for url in urls}
    found = t.get_many((tables.removed_page, row) for row in rows)
    pages = {one["url"]: one["until"] for one in found if one is not None}
    names = dict.fromkeys(host(url) for url in rows.values())
    hosts = {}
    under = t.get_rows(tables.removals, [_host_row(name) for name in names], [tables.removed_under])
    for name, row in zip(names, under, strict=True):
        rules = row.family(tables.removed_under).values()
        if rules:
            hosts[name] = [(one["prefix"], one["until"]) for one in rules]
    return Rules(pages, hosts)


def all_rules(now: Snapshot) -> Iterator[Rule]:
    """Every removal: those of hosts and prefixes by host, then those of pages."""
    for row in now.scan(tables.removals, prefix=_host_row(""), columns=[tables.removed_under]):
        for one in row.family(tables.removed_under).values():
            name = row.key.removeprefix(_host_row(""))
            kind: Kind = "prefix" if one["prefix"] else "host"
            yield Rule(Scope(kind, one["prefix"] or name), one["until"], one["at_ms"])
    for row in now.scan(tables.removals, columns=[tables.removed_page]):
        page = row[tables.removed_page]
        yield Rule(Scope("url", page["url"]), page["until"], page["at_ms"])


def rules_in(now: Snapshot) -> Rules:
    """All removals, in the form that decides about records; it can be sent to Spark's tasks."""
    pages: dict[str, Until] = {}
    hosts: dict[str, list[tuple[str, Until]]] = {}
    for scope, until, _ in all_rules(now):
        if scope.kind == "url":
            pages[scope.name] = until
        elif scope.kind == "host":
            hosts.setdefault(scope.name, []).append(("", until))
        else:
            hosts.setdefault(host(scope.name), []).append((scope.name, until))
    return Rules(pages, hosts)


def put(t: Transaction, scope: Scope, until: Until, at_ms: int) -> None:
    """Enter a removal; one that is there already is extended, and a block stays one."""
    column, row = scope.cell()
    before = t.get_for_update(column, row)
    if before is not None:
        known = before["until"]
        until = None if known is None or until is None else max(known, until)
        if until == known:
            return
    if scope.kind == "url":
        what = {"url": scope.name}
    else:
        what = {"prefix": scope.name if scope.kind == "prefix" else ""}
    t.set(column, row, {**what, "until": until, "at_ms": at_ms})


def lift(t: Transaction, scope: Scope) -> bool:
    """Delete a removal, so that its pages can be loaded again; return whether there was one."""
    column, row = scope.cell()
    if t.get(column, row) is None:
        return False
    t.delete(column, row)
    return True


def _host_row(name: str) -> str:
    """The row of `removals` for a host; those of pages begin with two digits."""
    return f"host/{name}"

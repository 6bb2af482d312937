"""Tables that a repository has, tables that it has not, and what every error must be like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import percola
from percola import JSON, Repository, Table
from percola.cells import Kind

docs = Table("docs")
title = docs.column("title", str)
size = docs.column("size", int)
score = docs.column("score", float)
flag = docs.column("flag", bool)
blob = docs.column("blob")
extra = docs.column("extra", JSON)
seen = docs.column("seen", observed=True)
tags = docs.family("tag", int)
poke = docs.weak_column("poke")
keyed = Table("keyed", rows=bytes)
value = keyed.column("value")
TABLES = [docs, keyed]

strange = Table("strange")
elsewhere = strange.column("x", int)
other_weak = strange.weak_column("w")
other_family = strange.family("f")
twin = Table("docs")
missing = twin.column("missing", int)
missing_weak = twin.weak_column("missing-weak")
missing_family = twin.family("missing-family")


@pytest.fixture(params=["memory", "lmdb"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repository]:
    address = "memory:" if request.param == "memory" else tmp_path / "repo"
    with percola.open(address, schema=TABLES) as repo:
        repo.run(lambda t: t.set(title, "a", "as it was"))
        yield repo


def any_(thing: object) -> Any:
    """What a type checker would not have let through."""
    return thing


def everything(repo: Repository) -> object:
    """All that the repository holds, locks and notify entries included."""
    store = repo.context.store
    return [
        (
            [
                (row.key, [(c.name, v) for c, v in row.items()])
                for row in repo.snapshot().scan(table)
            ],
            [store.scan_kind(kind, table.name) for kind in (Kind.LOCK, Kind.NOTIFY, Kind.FAILED)],
        )
        for table in (docs, keyed)
    ]


def check_message(error: BaseException, words: str) -> None:
    """It is a sentence that names what was wrong."""
    text = str(error)
    assert words in text, text
    assert text.rstrip().endswith((".", ".)")), text
    assert len(text) < 500

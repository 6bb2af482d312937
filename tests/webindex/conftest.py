"""Fixtures of this folder: repositories and indexes, empty or with the sample processed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chains import Chain, open_chain
from fake_debs import two_packages
from from_scratch import sample

import percola
from percola import Repository, Worker
from webindex import tables
from webindex.load.transaction import load_captures
from webindex.serving import TantivyIndex
from webindex.workers.processes import build_observers, open_index, open_repository


@pytest.fixture(scope="session")
def worked_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a closed repository that has the whole sample: copy it to change it."""
    folder = tmp_path_factory.mktemp("sample") / "repo"
    captures = sample()
    with open_repository(str(folder), create=True) as repo, open_index(repo, create=True) as index:
        for at in range(0, len(captures), 32):
            load_captures(repo, captures[at : at + 32], "sample.warc.gz")
        Worker(repo, build_observers(index), threads=3).run_until_idle()
    return folder


@pytest.fixture
def folder(worked_off: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(worked_off, tmp_path / "repo"))


@pytest.fixture
def chain(folder: Path) -> Iterator[Chain]:
    """A web index with the sample processed, for one test."""
    with open_chain(folder.parent) as chain:
        chain.loaded = list(sample())
        yield chain


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Chain]:
    """A web index with nothing in it."""
    with open_chain(tmp_path) as chain:
        yield chain


@pytest.fixture
def repo() -> Iterator[Repository]:
    """A repository in memory with the tables of the web index."""
    with percola.open("memory:", schema=tables.SCHEMA) as opened:
        yield opened


@pytest.fixture
def index(tmp_path: Path) -> Iterator[TantivyIndex]:
    """A search index with nothing in it."""
    with TantivyIndex(tmp_path / "index") as opened:
        yield opened


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Writes bytes into a file."""

    def save(data: bytes, name: str = "crawl.warc.gz") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return save


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages of documents, one in two versions, on a machine that has no apt."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return two_packages(tmp_path / "cache")

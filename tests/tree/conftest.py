"""Two trees to judge: the project's own, and small ones with something wrong in them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def tree_of(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Makes a repository of the files given by name, and returns its root."""

    def make(files: Mapping[str, str]) -> Path:
        subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return make

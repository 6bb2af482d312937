"""docs/paper-map.md names only symbols and tests that exist.

The map is Markdown with tables of the columns Paper, Symbol and Test. A Symbol cell has dotted
paths in backticks, `percola.transactions.transaction.Transaction.commit`; a Test cell has tests by
file and name, `tests/paper/test_2_2_transactions.py::test_name`; commas or <br> stand between
several. A cell that opens with a dash says in words why it has none.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.tree.files import ROOT

Tree = Callable[[Mapping[str, str]], Path]

MAP = "docs/paper-map.md"
COLUMNS = ["Paper", "Symbol", "Test"]


def rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row of the map's tables, with the row's line number."""
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if cells == COLUMNS:
            inside = True
        elif inside and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            yield number, cells


def symbol_exists(path: str) -> bool:
    """Whether the dotted path leads through modules and classes to something."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:-1]:
            found = getattr(found, name, None)
        # A field of a dataclass without a default is no attribute of its class.
        last = parts[-1]
        return cut == len(parts) or hasattr(found, last) or last in _annotated(found)
    return False


def _annotated(found: object) -> set[str]:
    bases = found.__mro__ if isinstance(found, type) else ()
    return {name for base in bases for name in inspect.get_annotations(base)}


def is_test(root: Path, path: str) -> bool:
    """Whether `file::name` or `file::Class::name` is a test; a parameter set may follow it."""
    file, *names = re.sub(r"\[.*\]$", "", path).split("::")
    if not names or not names[-1].startswith("test_") or not (root / file).is_file():
        return False
    body: list[ast.stmt] = ast.parse((root / file).read_text(encoding="utf-8")).body
    for name in names:
        found = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ]
        if not found:
            return False
        body = found[0].body
    return True


def mistakes(root: Path) -> list[str]:
    """What the map names and the tree has not."""
    if not (root / MAP).is_file():
        return [f"{MAP} is missing"]
    entries = list(rows((root / MAP).read_text(encoding="utf-8")))
    if not entries:
        return [f"{MAP} has no table with the columns {', '.join(COLUMNS)}"]
    problems = []
    for number, cells in entries:
        where = f"{MAP}:{number}"
        if len(cells) != len(COLUMNS):
            problems.append(f"{where}: {len(cells)} cells instead of {len(COLUMNS)}")
            continue
        exists: dict[str, Callable[[str], bool]] = {
            "Symbol": symbol_exists,
            "Test": lambda path: is_test(root, path),
        }
        for column, cell in zip(COLUMNS[1:], cells[1:], strict=True):
            named = re.findall(r"`([^`]+)`", cell)
            if cell.startswith(("-", "–", "—")):
                continue
            if not named or re.sub(r"`[^`]+`|<br ?/?>|[,\s]", "", cell):
                problems.append(f"{where}: {column} is not a list of names in backticks: {cell}")
            problems += [
                f"{where}: {column} {name} does not exist"
                for name in named
                if not exists[column](name)
            ]
    return problems


def test_every_symbol_and_test_in_the_paper_map_exists() -> None:
    problems = mistakes(ROOT)
    assert not problems, "\n".join(problems)


@pytest.fixture
def mapped(tree_of: Tree, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A tree with one module, one file of tests and the given rows in its map."""

    def make(lines: str) -> Path:
        root = tree_of(
            {
                MAP: "# Map\n\n| Paper | Symbol | Test |\n|---|:--|---|\n" + lines,
                "src/mapped_code/__init__.py": "",
                "src/mapped_code/tx.py": (
                    "class Base:\n    def get(self): ...\n"
                    "class Transaction(Base):\n    start_ts: int\n    def commit(self): ...\n"
                ),
                "tests/paper/test_2_2.py": (
                    "def test_commit(): ...\nclass TestGet:\n    def test_own(self): ...\n"
                    "def helper(): ...\n"
                ),
            }
        )
        monkeypatch.syspath_prepend(root / "src")
        importlib.invalidate_caches()
        return root

    return make


def test_the_map_check_accepts_every_permitted_form(mapped: Callable[[str], Path]) -> None:
    root = mapped(
        "| §2.2 | `mapped_code.tx`, `mapped_code.tx.Transaction.commit` "
        "| `tests/paper/test_2_2.py::test_commit` |\n"
        "| figure 6, line 1 \\| 2 | `mapped_code.tx.Transaction.get`<br>"
        "`mapped_code.tx.Transaction.start_ts` "
        "| `tests/paper/test_2_2.py::test_commit[lmdb-2]`<br/>"
        "`tests/paper/test_2_2.py::TestGet::test_own` |\n"
        "| §2.6 | — Chubby is not ours | - a server's business |\n"
        "\n| Another | table |\n|---|---|\n| `no.such` | x |\n"
    )
    assert mistakes(root) == []


@pytest.mark.parametrize(
    ("symbol", "test"),
    [
        ("`mapped_code.tx.Transaction.rollback`", "`tests/paper/test_2_2.py::test_commit`"),
        ("`mapped_code.ty`", "`tests/paper/test_2_2.py::test_commit`"),
        ("`no_such_package.x`", "`tests/paper/test_2_2.py::test_commit`"),
        ("`mapped_code.Missing.commit`", "`tests/paper/test_2_2.py::test_commit`"),
        ("mapped_code.tx", "`tests/paper/test_2_2.py::test_commit`"),
        ("", "`tests/paper/test_2_2.py::test_commit`"),
        ("`mapped_code.tx`", "`tests/paper/test_2_2.py::test_rollback`"),
        ("`mapped_code.tx`", "`tests/paper/test_2_3.py::test_commit`"),
        ("`mapped_code.tx`", "`tests/paper/test_2_2.py`"),
        ("`mapped_code.tx`", "`tests/paper/test_2_2.py::helper`"),
        ("`mapped_code.tx`", "`tests/paper/test_2_2.py::TestGet::test_commit`"),
        ("`mapped_code.tx`", "`tests/paper/test_2_2.py::test_commit` and others"),
        ("`mapped_code.tx`", ""),
        ("`mapped_code.tx` | x", "`tests/paper/test_2_2.py::test_commit`"),
    ],
)
def test_the_map_check_sees(mapped: Callable[[str], Path], symbol: str, test: str) -> None:
    problems = mistakes(mapped(f"| §2.2 | {symbol} | {test} |\n"))
    assert len(problems) == 1
    assert problems[0].startswith(f"{MAP}:5: ")


def test_the_map_check_sees_a_missing_map_and_an_empty_one(
    tree_of: Tree, mapped: Callable[[str], Path]
) -> None:
    assert mistakes(tree_of({"README.md": "x"})) == [f"{MAP} is missing"]
    assert mistakes(mapped("")) == [f"{MAP} has no table with the columns Paper, Symbol, Test"]

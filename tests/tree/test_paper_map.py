"""docs/paper-map.md names only symbols and tests that exist, and leaves no section out.

The map is Markdown with tables of the columns Paper, Symbol and Test. A Symbol cell has dotted
paths in backticks, `percola.transactions.transaction.Transaction.commit`; a Test cell has tests by
file and name, `tests/paper/test_2_2_transactions.py::test_name`, separated by commas or <br>. A
cell that opens with a dash says in words why it has none.

Sections that claim or measure have tables of the columns Paper and Where it is shown: sentences
with symbols, tests, `make` targets, commands and links, or "Not here" or "Not yet" with the reason.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest

from tests.tree.files import ROOT

Tree = Callable[[Mapping[str, str]], Path]

MAP = "docs/paper-map.md"
COLUMNS = ["Paper", "Symbol", "Test"]
SHOWN = ["Paper", "Where it is shown"]
SECTIONS = ["1", "2", "2.1", "2.2", "2.3", "2.4", "2.5", "3", "3.1", "3.2", "3.3", "4", "5"]
FIGURES = range(1, 11)


def rows(text: str, columns: list[str] = COLUMNS) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row of the map's tables of these columns, with the row's line number."""
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if cells == columns:
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


def command_exists(words: str) -> bool:
    """Whether `percola NAME …`, `webindex NAME …` or `make NAME …` is a command."""
    program, name = words.split()[:2]
    if program == "make":
        return re.search(rf"^{name}:", (ROOT / "Makefile").read_text("utf-8"), re.M) is not None
    group = importlib.import_module(
        {"percola": "percola.cli.root", "webindex": "webindex.cli.main"}[program]
    )
    return name in group.cli.list_commands(click.Context(group.cli))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def unshown(root: Path) -> Iterator[str]:
    """What the tables of claims name and the tree does not have, and claims without a place."""
    page = root / MAP
    for number, cells in rows(page.read_text(encoding="utf-8"), SHOWN):
        where, shown = f"{MAP}:{number}", cells[-1]
        named = re.findall(r"`([^`]+)`", shown)
        links = re.findall(r"\]\(([^)]*)\)", shown)
        if len(cells) != len(SHOWN):
            yield f"{where}: {len(cells)} cells instead of {len(SHOWN)}"
            continue
        if not (named or links or shown.startswith(("Not here", "Not yet", "README"))):
            yield f"{where}: neither shown, nor not here or not yet: {shown}"
        for name in named:
            if name.startswith("tests/"):
                exists = is_test(root, name)
            elif re.match(r"(?:percola|webindex|make) ", name):
                exists = command_exists(name)
            else:
                exists = symbol_exists(name)
            if not exists:
                yield f"{where}: {name} does not exist"
        for link in links:
            file, _, anchor = link.partition("#")
            target = page if not file else page.parent / file
            if not target.is_file():
                yield f"{where}: the link leads to {file}, which does not exist"
            elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
                yield f"{where}: {target.name} has no heading for #{anchor}"


def test_every_symbol_and_test_in_the_paper_map_exists() -> None:
    problems = mistakes(ROOT)
    assert not problems, "\n".join(problems)


def test_every_claim_of_the_paper_is_shown_or_said_to_be_missing() -> None:
    assert len(list(rows((ROOT / MAP).read_text(encoding="utf-8"), SHOWN))) > 30
    problems = list(unshown(ROOT))
    assert not problems, "\n".join(problems)


def test_no_section_and_no_figure_of_the_paper_vanishes_from_the_map() -> None:
    text = (ROOT / MAP).read_text(encoding="utf-8")
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    with_rows = {
        section[1]
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
        if (section := re.match(r"§([\d.]+) ", heading)) and body.count("\n|") > 2
    }
    assert with_rows == set(SECTIONS)
    mentioned = {int(number) for number in re.findall(r"[Ff]igure (\d+)", text)}
    assert mentioned == set(FIGURES)


@pytest.mark.parametrize(
    "shown",
    [
        "Perhaps",
        "`mapped_code.tx.Transaction.rollback`",
        "`make nothing`",
        "`percola nothing`",
        "`tests/paper/test_2_2.py::test_rollback`",
        "[here](guide.md)",
        "[here](#nowhere)",
        "`mapped_code.tx` | x",
    ],
)
def test_the_check_of_claims_sees(mapped: Callable[[str], Path], shown: str) -> None:
    root = mapped("")
    table = "\n| Paper | Where it is shown |\n|---|---|\n"
    (root / MAP).write_text(f"# Map\n{table}| §1 | {shown} |\n")
    assert len(list(unshown(root))) == 1


def test_the_check_of_claims_accepts_every_permitted_form(mapped: Callable[[str], Path]) -> None:
    root = mapped("")
    forms = [
        "Not here: why",
        "Not yet",
        "README, a section",
        "`mapped_code.tx`, in words; `tests/paper/test_2_2.py::test_commit`",
        "`make bench ARGS=x`, `percola worker`, `webindex verify`",
        "[here](#map)",
    ]
    table = "\n| Paper | Where it is shown |\n|---|---|\n"
    (root / MAP).write_text(f"# Map\n{table}" + "".join(f"| §1 | {one} |\n" for one in forms))
    assert list(unshown(root)) == []


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

"""ARCHITECTURE.md and docs/decisions name only files and symbols that exist.

In backticks, `store/base.py` is a file below `src`, `src/percola`, `src/webindex` or the root,
`store/base.py:Store.read` a symbol of it, and `Store.read` a member of a class anywhere in `src`.
A walk's heading says how many files its lines name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.tree.files import ROOT, project_files, project_texts

Tree = Callable[[Mapping[str, str]], Path]

PAGE = "ARCHITECTURE.md"
DECISIONS = "docs/decisions"
BASES = ("", "src", "src/percola", "src/webindex", "src/percola/store")

SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"([\w./-]+\.(?:py|md))(?::([\w.]+))?")
FOLDER = re.compile(r"[\w-]+(?:/[\w-]+)*/")
MEMBER = re.compile(r"_?[A-Z]\w*[a-z]\w*(?:\.\w+)+")
WALK = re.compile(r"### .*: (\d+) files")


@cache
def _defined(path: Path) -> dict[str, set[str]]:
    """The names a module defines, and the members of its classes; "" for the module itself."""
    return _names(ast.parse(path.read_text(encoding="utf-8")))


def _names(module: ast.Module) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"": set(_bound(module.body))}
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = set(_bound(node.body))
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    found[node.name] |= {
                        target.attr
                        for target in ast.walk(method)
                        if isinstance(target, ast.Attribute)
                        and isinstance(target.ctx, ast.Store)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == "self"
                    }
    return found


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def file_of(root: Path, name: str, base: str = "") -> Path | None:
    """The file or folder that a page in the folder `base` means."""
    for folder in (base, *BASES):
        if (path := root / folder / name).exists():
            return path.resolve()
    return None


def has_symbol(path: Path, symbol: str) -> bool:
    first, _, member = symbol.partition(".")
    defined = _defined(path)
    return first in defined[""] and (not member or member in defined.get(first, ()))


def is_member(root: Path, symbol: str) -> bool:
    """Whether some class of the source has this member, or some class has this name in it."""
    return any(
        has_symbol(path, symbol)
        for path in project_files(root, ".py")
        if path.relative_to(root).parts[0] == "src"
    )


def mistakes(root: Path, page: str) -> Iterator[str]:
    """What a page names and the tree does not have."""
    text = (root / page).read_text(encoding="utf-8")
    base = str(Path(page).parent)
    spans = [
        (number, span)
        for number, line in enumerate(text.splitlines(), start=1)
        for span in SPAN.findall(line)
    ]
    for number, span in spans:
        where = f"{page}:{number}: `{span}`"
        if found := FILE.fullmatch(span):
            path = file_of(root, found[1], base)
            if path is None:
                yield f"{where}: there is no such file"
            elif found[2] and not has_symbol(path, found[2]):
                yield f"{where}: the file has no {found[2]}"
        elif FOLDER.fullmatch(span):
            if file_of(root, span, base) is None:
                yield f"{where}: there is no such folder"
        elif MEMBER.fullmatch(span) and not is_member(root, span):
            yield f"{where}: no class of the source has it"
    for number, line in enumerate(text.splitlines(), start=1):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", line):
            if not (root / base / link).exists():
                yield f"{page}:{number}: the link leads to {link}, which does not exist"


def walks(root: Path) -> Iterator[tuple[str, int, set[Path | None]]]:
    """The heading of each walk, how many files it says, and the files that its lines name."""
    text = (root / PAGE).read_text(encoding="utf-8")
    for section in re.split(r"^(?=##)", text, flags=re.MULTILINE):
        heading, _, body = section.partition("\n")
        if found := WALK.fullmatch(heading):
            named = [FILE.fullmatch(span) for span in SPAN.findall(body)]
            base = "src/webindex" if "WARC" in heading else "src/percola"
            yield (
                heading,
                int(found[1]),
                {file_of(root, one[1], base) for one in named if one is not None},
            )


def mapped(root: Path) -> Iterator[str]:
    """The paths in the page's tree map, below the root."""
    text = (root / PAGE).read_text(encoding="utf-8")
    [block] = re.findall(r"^## Tree\n+```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    parents: dict[int, str] = {-1: ""}
    for line in block.splitlines():
        depth = len(line) - len(line.lstrip())
        above = parents[max(one for one in parents if one < depth)]
        parents = {one: path for one, path in parents.items() if one < depth}
        for name in re.findall(r"(?<!\S)[\w/]+(?:/|\.py)(?!\S)", line):
            yield above + name
            if name.endswith("/"):
                parents.setdefault(depth, above + name)


def pages() -> list[str]:
    return [PAGE, *(name for name, _ in project_texts(ROOT, ".md") if name.startswith(DECISIONS))]


@pytest.mark.parametrize("page", pages())
def test_every_file_and_symbol_that_the_architecture_names_exists(page: str) -> None:
    problems = list(mistakes(ROOT, page))
    assert not problems, "\n".join(problems)


def test_each_of_the_five_walks_says_how_many_files_it_crosses() -> None:
    found = list(walks(ROOT))
    assert len(found) == 5
    for heading, count, files in found:
        assert count == len(files), f"{heading}: it names {len(files)}"


def test_the_tree_map_is_the_tree_and_fits_a_screen() -> None:
    found = list(mapped(ROOT))
    assert len(found) > 40
    missing = [path for path in found if not (ROOT / path).exists()]
    assert not missing
    for package in ("src/percola", "src/webindex"):
        tracked = {
            path.relative_to(ROOT / package).parts
            for path in project_files(ROOT)
            if path.is_relative_to(ROOT / package) and path.suffix == ".py"
        }
        top = {parts[0] if len(parts) == 1 else f"{parts[0]}/" for parts in tracked}
        top -= {"__init__.py", "__main__.py"}
        assert {f"{package}/{name}" for name in top} <= set(found)
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text.partition("## Tree")[2].count("\n") < 60


def test_every_decision_is_listed_and_has_its_three_sections() -> None:
    index = (ROOT / DECISIONS / "README.md").read_text(encoding="utf-8")
    files = sorted((ROOT / DECISIONS).glob("[0-9]*.md"))
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", index, re.MULTILINE)
    assert sorted(name for _, name in listed) == [path.name for path in files]
    titles = {name: title for title, name in listed}
    assert len({path.name[:3] for path in files}) == len(files), "two decisions with one number"
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0] == f"# {titles[path.name]}" and titles[path.name][:3] == path.name[:3]
        heads = [line for line in lines if line.startswith("## ")]
        assert heads == ["## Context", "## Decision", "## Cost"], path.name


@pytest.fixture
def tree(tree_of: Tree) -> Callable[[str], Path]:
    """A tree with a module and the given text in ARCHITECTURE.md."""

    def make(text: str) -> Path:
        return tree_of(
            {
                PAGE: text,
                "docs/guide.md": "",
                "src/percola/store/base.py": (
                    "LIMIT = 1\nclass Store:\n    size: int\n    def read(self):\n"
                    "        self.seen = 1\n"
                ),
            }
        )

    return make


def test_the_architecture_check_accepts_what_exists(tree: Callable[[str], Path]) -> None:
    root = tree(
        "`store/base.py` `src/percola/store/base.py:Store.read` `store/base.py:LIMIT` `store/` "
        "`Store.size` `Store.seen` `c:lock` `percola.open(…)` [guide](docs/guide.md#part)"
    )
    assert list(mistakes(root, PAGE)) == []


@pytest.mark.parametrize(
    "named",
    [
        "`store/memory.py`",
        "`store/base.py:Store.write`",
        "`store/base.py:Reader`",
        "`hbase/`",
        "`Store.write`",
        "`Scanner.look`",
        "[guide](docs/guides.md)",
    ],
)
def test_the_architecture_check_sees(tree: Callable[[str], Path], named: str) -> None:
    assert len(list(mistakes(tree(f"first\n{named}\n"), PAGE))) == 1


def test_a_walk_is_counted_by_its_distinct_files(tree: Callable[[str], Path]) -> None:
    root = tree("### A read: 2 files\n\n1. `store/base.py:Store.read` and `store/base.py`\n")
    [(_, said, files)] = walks(root)
    assert (said, len(files)) == (2, 1)

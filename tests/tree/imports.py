"""Which module imports which, read from the source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tree.files import project_texts


@dataclass(frozen=True)
class Import:
    """One name that a module takes from another: `from package.module import name`."""

    file: str
    line: int
    importer: str
    module: str
    name: str | None

    def __str__(self) -> str:
        what = f"{self.module}.{self.name}" if self.name else self.module
        return f"{self.file}:{self.line}: {what}"


def module_of(file: str) -> str:
    """The dotted name of `src/percola/store/base.py`; a package's is that of its folder."""
    parts = list(Path(file).relative_to("src").with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(root: Path) -> dict[str, ast.Module]:
    """Every Python file below `src`, by its path below `root`."""
    return {
        file: ast.parse(text, filename=file)
        for file, text in project_texts(root, ".py")
        if file.startswith("src/")
    }


def imports(file: str, tree: ast.Module) -> Iterator[Import]:
    """Every import of the module, also in functions, under TYPE_CHECKING and by import_module."""
    importer = module_of(file)
    package = importer.split(".") if file.endswith("/__init__.py") else importer.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, importer, alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(file, node.lineno, importer, module, alias.name)
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else None
            called = function.id if isinstance(function, ast.Name) else called
            first = node.args[0]
            if (
                called in {"import_module", "__import__"}
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                yield Import(file, node.lineno, importer, first.value, None)


def public_names(tree: ast.Module) -> set[str] | None:
    """The module's `__all__`, or None where it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value and any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                return set(ast.literal_eval(node.value))
    return None

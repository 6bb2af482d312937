"""Imports point one way, and the application sees only what a user sees."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.tree.files import ROOT
from tests.tree.imports import Import, imports, module_of, modules, public_names

Tree = Callable[[Mapping[str, str]], Path]

# From the bottom up: a module may import from its own layer and from those above it in this list.
# A package stands for everything in it. "percola" is the package's own `__init__`.
LAYERS: Final = (
    ("cells", "codecs", "errors", "schema", "rows", "clock", "metrics", "forks"),
    ("store",),
    ("oracle", "coordination"),
    ("calls", "prefetch", "batching", "catalog", "garbage", "leases", "holds", "news"),
    ("locks",),
    ("snapshot",),
    ("two_phase",),
    ("transaction",),
    ("retry", "observers", "gc"),
    ("folder",),
    ("addresses",),
    ("network",),
    ("repository",),
    (
        "worker",
        "targets",
        "joint",
        "feed",
        "feed_rules",
        "scanner",
        "sweep",
        "runs",
        "patience",
        "inspection",
        "row_rules",
        "check",
        "backup",
    ),
    ("percola",),
    ("spark", "cli", "testing", "devcluster", "__main__"),
)
LAYER_OF: Final = {part: number for number, layer in enumerate(LAYERS) for part in layer}

# What webindex may import from besides `percola` itself.
PUBLIC_PACKAGES: Final = ("percola.inspection", "percola.spark", "percola.testing")

# Everything that only an extra brings, by the name it is imported by.
EXTRAS: Final = (
    "can_ada fastwarc google grpc happybase jinja2 jpype kazoo matplotlib numpy opensearchpy "
    "pandas publicsuffixlist py4j pyarrow pycld2 pyspark resiliparse selectolax starlette "
    "tantivy uvicorn warcio xxhash"
)


def part_of(module: str) -> str:
    """`store` for `percola.store.lmdb`, `percola` for the package itself."""
    return module.split(".")[1] if "." in module else module


def imported_part(taken: Import, known: set[str]) -> str:
    """The part of Percola that an import names; `from percola import retry` names a module."""
    if taken.module == "percola" and f"percola.{taken.name}" in known:
        return part_of(f"percola.{taken.name}")
    return part_of(taken.module)


def wrong_directions(root: Path) -> list[str]:
    """Imports inside Percola of a higher layer, or of what is built on Percola."""
    trees = {file: tree for file, tree in modules(root).items() if file.startswith("src/percola/")}
    known = {module_of(file) for file in trees}
    problems = [
        f"{part} is in no layer: give it a place in LAYERS, in {Path(__file__).name}"
        for part in sorted({part_of(module) for module in known} - set(LAYER_OF))
    ]
    for file, tree in trees.items():
        for taken in imports(file, tree):
            top = taken.module.split(".")[0]
            if top in {"webindex", "benchmarks", "tests"}:
                problems.append(f"{taken} is built on Percola and not part of it")
            if top != "percola":
                continue
            low, high = part_of(taken.importer), imported_part(taken, known)
            if LAYER_OF.get(low, len(LAYERS)) < LAYER_OF.get(high, -1):
                problems.append(f"{taken} is above {low}")
    return problems


def not_public(root: Path) -> list[str]:
    """What webindex takes from Percola that no user is promised."""
    trees = modules(root)
    public = {
        module_of(file): public_names(tree)
        for file, tree in trees.items()
        if module_of(file) in {"percola", *PUBLIC_PACKAGES}
    }
    offered = (public.get("percola") or set()) | {p.split(".")[1] for p in PUBLIC_PACKAGES}
    problems = []
    for file, tree in trees.items():
        if not file.startswith("src/webindex/"):
            continue
        for taken in imports(file, tree):
            if taken.module.split(".")[0] != "percola":
                continue
            if taken.module == "percola":
                allowed = taken.name is None or taken.name in offered
            else:
                names = public.get(taken.module)
                allowed = taken.module in PUBLIC_PACKAGES and (
                    taken.name is None or names is None or taken.name in names
                )
            if not allowed:
                problems.append(f"{taken} is not public")
        problems += [
            f"{file}:{line}: percola.{name} is not public"
            for line, name in attributes_of_percola(tree)
            if name not in offered
        ]
    return problems


def attributes_of_percola(tree: ast.Module) -> list[tuple[int, str]]:
    """What a module uses of `import percola` (or `import percola as p`), by line."""
    bound = {
        alias.asname or "percola"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "percola" or (alias.name.startswith("percola.") and not alias.asname)
    }
    return [
        (node.lineno, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in bound
    ]


def extras_loaded(source: Path, statement: str) -> list[str]:
    """The extras that a fresh interpreter has loaded after `statement`."""
    program = f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({name.split(".")[0] for name in json.loads(run.stdout)} & set(EXTRAS.split()))


def test_a_lower_layer_never_imports_a_higher_one() -> None:
    problems = wrong_directions(ROOT)
    assert not problems, "\n".join(problems)


def test_webindex_uses_only_what_percola_makes_public() -> None:
    problems = not_public(ROOT)
    assert not problems, "\n".join(problems)


def test_importing_percola_loads_no_extra() -> None:
    assert extras_loaded(ROOT / "src", "import percola") == []


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("locks.py", "from percola.transaction import Transaction"),
        ("locks.py", "import percola.worker"),
        ("locks.py", "from percola import retry"),
        ("locks.py", "from percola import Worker"),
        ("store/lmdb.py", "from percola.oracle.base import Oracle"),
        ("store/lmdb.py", "from ..locks import resolve"),
        ("cells.py", "if TYPE_CHECKING:\n    from percola.store.base import Store"),
        ("transaction.py", "def late():\n    import percola.observers"),
        ("worker.py", "importlib.import_module('percola.spark')"),
        ("spark/source.py", "import webindex.pages"),
        ("helpers.py", "x = 1"),
    ],
)
def test_the_direction_check_sees(tree_of: Tree, file: str, statement: str) -> None:
    root = tree_of(
        {
            "src/percola/__init__.py": "from percola.worker import Worker",
            "src/percola/retry.py": "from percola.transaction import Transaction",
            "src/percola/worker.py": "from percola import retry",
            f"src/percola/{file}": statement,
        }
    )
    assert len(wrong_directions(root)) == 1


def test_the_direction_check_accepts_imports_downwards_and_within_a_layer(tree_of: Tree) -> None:
    root = tree_of(
        {
            "src/percola/__init__.py": "from percola.worker import Worker",
            "src/percola/errors.py": "from percola.cells import Cell",
            "src/percola/cells.py": "import percola.errors",
            "src/percola/store/lmdb.py": "from percola.store.base import Store",
            "src/percola/store/base.py": "from .. import errors",
            "src/percola/worker.py": "from percola import retry\nimport percola.store.base",
            "src/percola/retry.py": "import random",
            "src/percola/cli.py": "from percola import Worker",
        }
    )
    assert wrong_directions(root) == []


FACE: Final = {
    "src/percola/__init__.py": '__all__ = ["Table", "open"]',
    "src/percola/spark/__init__.py": '__all__ = ["configure"]',
}


@pytest.mark.parametrize(
    "statement",
    [
        "from percola.transaction import Transaction",
        "import percola.store.base",
        "from percola import cells",
        "from percola import Hidden",
        "import percola\nx = percola.Hidden",
        "import percola as p\nx = p.locks.resolve",
        "from percola.spark import _write",
        "from percola.spark.source import Reader",
    ],
)
def test_the_public_names_check_sees(tree_of: Tree, statement: str) -> None:
    assert not_public(tree_of({**FACE, "src/webindex/pages.py": statement}))


def test_the_public_names_check_accepts_what_is_public(tree_of: Tree) -> None:
    program = (
        "import percola, percola.spark\nimport percola as p\nfrom percola import Table, spark\n"
        "from percola.spark import configure\nfrom percola.testing import check\n"
        "p.open(percola.Table, percola.spark)"
    )
    assert not_public(tree_of({**FACE, "src/webindex/pages.py": program})) == []


def test_the_extras_check_sees_one_imported_deep_inside(tree_of: Tree) -> None:
    root = tree_of(
        {
            "src/percola/__init__.py": "import percola.oracle",
            "src/percola/oracle.py": "import grpc.aio",
            "src/grpc/__init__.py": "",
            "src/grpc/aio.py": "",
        }
    )
    assert extras_loaded(root / "src", "import percola") == ["grpc"]

"""Imports point one way, and the application sees only what a user sees."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.tree.files import ROOT
from tests.tree.imports import Import, imports, module_of, modules, public_names

Tree = Callable[[Mapping[str, str]], Path]

# From the bottom up: a part may import from the layers above its own in this list, and no two parts
# of one layer import each other. A package stands for everything in it that is not listed by
# itself; "percola" and "webindex" are the packages' own `__init__`.
LAYERS: Final = {
    "percola": (
        ("cells", "errors"),
        ("codecs", "clock", "extras"),
        ("schema",),
        ("platform",),
        ("rpc",),
        ("store",),
        ("store.lmdb", "store.remote"),
        ("store.hbase", "store.bigtable"),
        ("coordination",),
        ("coordination.local", "coordination.lock_service"),
        ("coordination.zookeeper",),
        ("oracle",),
        ("catalog",),
        ("paused", "recording"),
        ("transactions",),
        ("ranges", "tracing"),
        ("gc",),
        ("connect",),
        ("repository",),
        ("transactions.jobs", "observers", "feed", "inspection", "maintenance"),
        ("debezium",),
        ("percola",),
        ("spark", "devcluster", "recipes", "testing", "serve"),
        ("cli",),
    ),
    "webindex": (
        ("rendering.tables",),
        ("errors", "tables", "text_format", "sample"),
        ("devserver", "pdf"),
        ("crawl", "page", "incomplete", "journal", "spark"),
        ("serving", "load"),
        ("observers",),
        ("rendering",),
        ("takedown",),
        ("workers", "reports"),
        ("batch", "ranking", "site", "corpus"),
        ("cli",),
        ("main", "__main__", "webindex"),
    ),
}
LAYER_OF: Final = {
    f"{top}.{part}" if part != top else top: number
    for top, layers in LAYERS.items()
    for number, layer in enumerate(layers)
    for part in layer
}
TOGETHER: Final = {"percola.cells", "percola.errors"}
"""They name each other's types."""
MOST_MODULES: Final = 18
"""In one folder, its `__init__` aside: what still reads as a list of contents."""

# What webindex may import from besides `percola` itself.
PUBLIC_PACKAGES: Final = (
    "percola.devcluster",
    "percola.inspection",
    "percola.recipes",
    "percola.serve",
    "percola.spark",
    "percola.testing",
)

# Everything that only an extra brings, by the name it is imported by.
EXTRAS: Final = (
    "anyio can_ada fastwarc google grpc happybase jinja2 jpype kazoo matplotlib numpy opensearchpy "
    "pandas publicsuffixlist py4j pyarrow pycld2 pypdf pyspark resiliparse selectolax starlette "
    "tantivy uvicorn warcio xxhash"
)


def part_of(module: str) -> str:
    """`percola.store.lmdb` for `percola.store.lmdb.keys`: the longest name that LAYERS knows."""
    names = module.split(".")
    for length in range(len(names), 1, -1):
        if (name := ".".join(names[:length])) in LAYER_OF:
            return name
    return ".".join(names[:2])


def imported_part(taken: Import, known: set[str]) -> str:
    """The part that an import names; `from percola.transactions import retry` names a module."""
    named = f"{taken.module}.{taken.name}"
    return part_of(named if named in known else taken.module)


def wrong_directions(root: Path) -> list[str]:
    """Imports of a part from a higher layer or its own, or of what is built on Percola."""
    trees = {file: tree for file, tree in modules(root).items() if module_of(file) != ""}
    trees = {file: tree for file, tree in trees.items() if file.split("/")[1] in LAYERS}
    known = {module_of(file) for file in trees}
    problems = [
        f"{part} is in no layer: give it a place in LAYERS, in {Path(__file__).name}"
        for part in sorted({part_of(module) for module in known} - set(LAYER_OF))
    ]
    for file, tree in trees.items():
        own = file.split("/")[1]
        for taken in imports(file, tree):
            top = taken.module.split(".")[0]
            if top in {"benchmarks", "tests"} or (own, top) == ("percola", "webindex"):
                problems.append(f"{taken} is built on {own} and not part of it")
            if top != own:
                continue
            low, high = part_of(taken.importer), imported_part(taken, known)
            if low == high or {low, high} == TOGETHER:
                continue
            if LAYER_OF.get(low, len(LAYER_OF)) <= LAYER_OF.get(high, -1):
                problems.append(f"{taken} is not below {low}")
    return problems


def crowded(root: Path) -> list[str]:
    """Folders with so many modules that nobody finds one in them."""
    found = Counter(
        Path(file).parent.as_posix() for file in modules(root) if not file.endswith("/__init__.py")
    )
    return [f"{folder} has {n} modules" for folder, n in found.items() if n > MOST_MODULES]


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


def test_no_folder_is_crowded() -> None:
    assert crowded(ROOT) == []


def test_a_crowded_folder_is_seen(tree_of: Tree) -> None:
    names = [f"src/percola/store/m{n}.py" for n in range(MOST_MODULES + 1)]
    assert crowded(tree_of(dict.fromkeys(names, "x = 1"))) == ["src/percola/store has 19 modules"]


def test_webindex_uses_only_what_percola_makes_public() -> None:
    problems = not_public(ROOT)
    assert not problems, "\n".join(problems)


def test_importing_percola_loads_no_extra() -> None:
    assert extras_loaded(ROOT / "src", "import percola") == []


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("gc/rules.py", "from percola.observers.worker import Worker"),
        ("gc/rules.py", "import percola.observers.worker"),
        ("gc/rules.py", "from percola.observers import worker"),
        ("gc/rules.py", "from percola import Worker"),
        ("store/base.py", "from percola.oracle.base import Oracle"),
        ("store/base.py", "from ..gc import rules"),
        ("store/base.py", "from percola.store.lmdb.store import LmdbStore"),
        ("store/hbase/store.py", "from percola.store.bigtable.store import BigtableStore"),
        ("transactions/retry.py", "from percola.transactions.jobs.attempt import Attempt"),
        ("cells.py", "if TYPE_CHECKING:\n    from percola.store.base import Store"),
        ("gc/rules.py", "def late():\n    import percola.observers.worker"),
        ("observers/worker.py", "importlib.import_module('percola.spark')"),
        ("observers/worker.py", "from percola.inspection import failures"),
        ("spark/source.py", "import webindex.page.pages"),
        ("helpers.py", "x = 1"),
    ],
)
def test_the_direction_check_sees(tree_of: Tree, file: str, statement: str) -> None:
    root = tree_of(
        {
            "src/percola/__init__.py": "from percola.observers.worker import Worker",
            "src/percola/transactions/retry.py": "import random",
            "src/percola/observers/worker.py": "from percola.transactions import retry",
            f"src/percola/{file}": statement,
        }
    )
    assert len(wrong_directions(root)) == 1


def test_the_direction_check_accepts_imports_downwards_and_within_a_part(tree_of: Tree) -> None:
    root = tree_of(
        {
            "src/percola/__init__.py": "from percola.observers.worker import Worker",
            "src/percola/errors.py": "from percola.cells import Cell",
            "src/percola/cells.py": "import percola.errors",
            "src/percola/store/lmdb/store.py": "from percola.store.base import Store",
            "src/percola/store/base.py": "from .. import errors",
            "src/percola/observers/worker.py": "from percola.transactions import retry",
            "src/percola/observers/scanner.py": "import percola.store.base",
            "src/percola/transactions/jobs/attempt.py": "from percola.transactions import retry",
            "src/percola/transactions/retry.py": "import random",
            "src/percola/cli/worker.py": "from percola import Worker",
            "src/webindex/cli/main.py": "from percola import Worker",
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
        "from percola.transactions.transaction import Transaction",
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
    assert not_public(tree_of({**FACE, "src/webindex/page/pages.py": statement}))


def test_the_public_names_check_accepts_what_is_public(tree_of: Tree) -> None:
    program = (
        "import percola, percola.spark\nimport percola as p\nfrom percola import Table, spark\n"
        "from percola.spark import configure\nfrom percola.testing import check\n"
        "p.open(percola.Table, percola.spark)"
    )
    assert not_public(tree_of({**FACE, "src/webindex/page/pages.py": program})) == []


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

"""The documentation site: built strictly, without the network, with every public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from commands import make

import percola
import percola.recipes

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, elsewhere, with a proxy that nothing gets through."""
    folder = tmp_path_factory.mktemp("site")
    proxies = {f"{kind}_proxy": NOWHERE for kind in ("http", "https", "HTTP", "HTTPS")}
    done = make("docs", f"ARGS=--site-dir {folder}", **proxies)
    # With --quiet, MkDocs does not count the warnings that --strict refuses.
    said = done.stderr
    assert done.returncode == 0 and "INFO" in said and "WARNING" not in said, said
    return folder


@pytest.mark.long
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    described = set(re.findall(r'id="([\w.]+)"', pages))
    wanted = {f"percola.{name}" for name in percola.__all__}
    wanted |= {f"percola.recipes.{name}" for name in percola.recipes.__all__ if name.istitle()}
    assert wanted - described == set()
    assert "percola.Repository.run" in described
    assert "run it again if it conflicts" in pages, "the text of a docstring"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)"', re.IGNORECASE
    )
    pages = list(site.rglob("*.html"))
    found = {link for page in pages for link in loads.findall(page.read_text(encoding="utf-8"))}
    assert found == set()
    assert len(pages) > 50


def test_the_pages_that_are_kept_outside_of_docs_are_there(site: Path) -> None:
    catalogue = (site / "examples" / "catalogue.html").read_text(encoding="utf-8")
    assert 'href="../recipes.html"' in catalogue
    assert "<code>nightly.py</code>" in catalogue
    index = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="guide.html"' in index and 'href="examples/index.html"' in index
    assert (site / "search" / "search_index.json").stat().st_size > 100_000


def hooks() -> ModuleType:
    """`scripts/docs_hooks.py` as a module."""
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "scripts" / "docs_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[guide](docs/guide.md#scan)", "[guide](guide.md#scan)"),
        ("index.md", "[why](docs/decisions/README.md)", "[why](decisions/README.md)"),
        ("index.md", "[all](examples/)", "[all](examples/index.md)"),
        ("examples/links.md", "[r](../../docs/recipes.md)", "[r](../recipes.md)"),
        ("examples/links.md", "[graph.py](graph.py)", "`graph.py`"),
        ("scaling.md", "[A](../ARCHITECTURE.md#tree)", "[A](architecture.md#tree)"),
        ("guide.md", "[gone](gone.md)", "[gone](gone.md)"),
        ("guide.md", "[out](https://example.org/a.md)", "[out](https://example.org/a.md)"),
    ],
)
def test_a_link_to_a_file_leads_to_its_page(page: str, text: str, expected: str) -> None:
    at = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert hooks().on_page_markdown(text, page=at) == expected

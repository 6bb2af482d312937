"""MkDocs hooks: pages of the site that are kept outside of docs/, and links between them.

README.md, ARCHITECTURE.md and the others below become pages. On every page, a link to a file of
the repository leads to its page if it has one; to another file that exists, it becomes the file's
name. A link to a file that does not exist stays, and fails the strict build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
OUTSIDE: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/index.md",
    **{
        f"examples/{page.parent.name}/README.md": f"examples/{page.parent.name}.md"
        for page in sorted((ROOT / "examples").glob("*/README.md"))
    },
}
"""Files of the repository, and where they are on the site."""

_SOURCE: Final = {page: file for file, page in OUTSIDE.items()}
_LINK: Final = re.compile(r"\[([^\]\n]*(?:\n[^\]\n]*)?)\]\((?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages from outside of docs/."""
    for file, page in OUTSIDE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Rewrite links to files of the repository."""
    here = page.file.src_uri
    source = _SOURCE.get(here, f"docs/{here}")

    def rewrite(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        to = OUTSIDE.get(file)
        if to is None and file.startswith("docs/") and (ROOT / file).is_file():
            to = file.removeprefix("docs/")
        if to is None and (ROOT / file).is_dir() and (ROOT / file / "README.md").is_file():
            to = OUTSIDE.get(f"{file}/README.md", f"{file.removeprefix('docs/')}/README.md")
        if to is not None:
            return f"[{text}]({posixpath.relpath(to, posixpath.dirname(here) or '.')}{anchor})"
        if (ROOT / file).exists():
            return text if "`" in text else f"`{text}`"
        return found[0]

    return _LINK.sub(rewrite, markdown)

"""The README as a package index shows it, and the project's address.

Links of README.md are relative, so that they work in a clone, on the project's host and in the
documentation. A package index has none of these files. When PERCOLA_REPOSITORY is the address of
the repository, as in the workflow that builds the wheels, the links lead to the files of this
version there. Without it they become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK: Final = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")


def for_index(readme: str, repository: str, version: str) -> str:
    """README.md with links that lead to `version`'s files in `repository`; "": without links."""
    if not repository:
        return _LINK.sub(r"\1", readme)
    return _LINK.sub(rf"[\1]({repository}/blob/v{version}/\2)", readme)


class CustomMetadataHook(MetadataHookInterface):
    """Adds the README and, where it is known, the addresses of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` and `urls`; called by the build."""
        repository = os.environ.get("PERCOLA_REPOSITORY", "").rstrip("/")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = for_index(readme, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {}
        if repository:
            changes = f"{repository}/blob/v{metadata['version']}/CHANGELOG.md"
            metadata["urls"] = {"Source": repository, "Changelog": changes}

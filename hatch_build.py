"""The README as a package index shows it, and the project's address.

Links of README.md are relative, so that they work in a clone, on the project's host and in the
documentation. A package index has none of these files. When PERCOLA_REPOSITORY is the address of
the repository, as in the workflow that builds the wheels, the links lead to the files of this
version there. Without it they become plain text.

The wheel is pure Python. With PERCOLA_WHEEL=native it has the native engine of the store on LMDB,
as built by 'make native', and fits this platform only; any Python from 3.11 on, though.
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK: Final = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")

NATIVE: Final = "src/percola/_native.abi3.so"


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


class CustomBuildHook(BuildHookInterface[Any]):
    """Puts the native engine into the wheel, where that is asked for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the built file and the wheel's tag; called by the build."""
        if version == "editable" or os.environ.get("PERCOLA_WHEEL") != "native":
            return
        built = Path(self.root) / NATIVE
        if not built.exists():
            raise FileNotFoundError(f"There is no {NATIVE}: run 'make native' first.")
        build_data["force_include"][str(built)] = NATIVE.removeprefix("src/")
        build_data["pure_python"] = False
        platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
        build_data["tag"] = f"cp311-abi3-{platform}"

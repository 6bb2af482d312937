"""Gets the packages and mounts them: the newest version of each, and an older one if available.

A package that is unavailable is reported in a sentence, and the others are processed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from webindex.corpus import CorpusError
from webindex.corpus.archives import read_archive
from webindex.corpus.choosing import choose, quotas
from webindex.corpus.debian import Apt, UnavailableError
from webindex.corpus.mounting import Kind, Site, mount
from webindex.corpus.packages import Package

__all__ = ["Gathered", "Step", "choose_pages", "gather"]

Step = Callable[[str, int, int], None]
"""Called with progress: the current step, how much of it is done, out of how much."""


@dataclass(slots=True)
class Gathered:
    """A package that is available: its first crawl, and its recrawl if there is another version."""

    package: Package
    first: Site
    second: Site | None
    chosen: frozenset[str] = frozenset()

    @property
    def latest(self) -> Site:
        """The site as it is after the real recrawl."""
        return self.second or self.first

    def files(self) -> list[str]:
        """URLs of the documents of either version that are no folders, in their order."""
        both = [self.first, *([self.second] if self.second else [])]
        return sorted(
            {
                url
                for site in both
                for url, document in site.documents.items()
                if document.kind is not Kind.FOLDER
            }
        )


def gather(
    packages: Sequence[Package],
    cache: Path,
    spools: Path,
    complain: list[str],
    step: Step,
    *,
    resources: bool = False,
) -> list[Gathered]:
    """Get and mount the packages. `complain` is called with a sentence for each unavailable one.

    Raises CorpusError when there is no package at all.
    """
    apt = Apt(cache)
    apt.look_up(one.name for one in packages)
    found: list[Gathered] = []
    alone: list[str] = []
    for number, package in enumerate(packages):
        step(f"Getting {package.name}", number, len(packages))
        versions = apt.versions(package.name)
        if not versions:
            if apt.trouble is None:
                complain.append(f"{package.name}: apt does not know it and the cache has none.")
            continue
        newest = _first_of(package, versions, apt, spools, complain, resources)
        if newest is None:
            continue
        older = versions[versions.index(newest.version) + 1 :]
        oldest = _first_of(package, older[::-1], apt, spools, complain, resources)
        if oldest is None:
            alone.append(package.name)
            found.append(Gathered(package, newest, None))
        else:
            found.append(Gathered(package, oldest, newest))
    step("Getting packages", len(packages), len(packages))
    if apt.trouble is not None:
        missing = sorted({one.name for one in packages} - {one.package.name for one in found})
        if missing:
            complain.append(f"Not to be had: {', '.join(missing)}. {apt.trouble}")
    if alone:
        complain.append(f"No real recrawl, for only one version can be had: {', '.join(alone)}.")
    if not found:
        raise CorpusError(
            "No package can be had, so there is no corpus to make. " + " ".join(complain)
        )
    return found


def _first_of(
    package: Package,
    versions: Sequence[str],
    apt: Apt,
    spools: Path,
    complain: list[str],
    resources: bool,
) -> Site | None:
    """The first version that is available and has documents."""
    for version in versions:
        try:
            file = apt.get(package.name, version)
            spool = spools / f"{package.name}-{len(list(spools.iterdir()))}"
            archive = read_archive(file, spool, resources=resources)
        except UnavailableError as error:
            complain.append(f"{package.name} {version}: {error}.")
            continue
        site = mount(package, version, archive)
        if site.documents:
            return site
        complain.append(
            f"{package.name} {version}: it has no HTML documents where they were expected "
            f"({', '.join(one.folder for one in package.mounts)})."
        )
    return None


def choose_pages(gathered: Sequence[Gathered], pages: int | None, seed: int) -> None:
    """Choose `pages` documents (all of them for None), each package contributing its share."""
    files = [one.files() for one in gathered]
    sizes = [len(one) for one in files]
    for one, urls, count in zip(
        gathered, files, sizes if pages is None else quotas(sizes, pages), strict=True
    ):
        one.chosen = frozenset(choose(urls, count, seed))

"""Builds a corpus: reads packages, writes WARC files and a manifest.

The folder contains either a complete corpus or, during a build and after an interruption, a marker
file (`UNFINISHED`). Files get their final names only when all of them are written, the manifest
last. An interrupted build starts over; the packages that it downloaded are still in the cache.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from webindex.corpus import CorpusError, recrawling, seeding
from webindex.corpus.answers import Answer, page, redirect
from webindex.corpus.choosing import rank
from webindex.corpus.gathering import Gathered, Step, choose_pages, gather
from webindex.corpus.mounting import Document, Kind, Site
from webindex.corpus.packages import Package, named
from webindex.corpus.resources import asked_for
from webindex.corpus.seeding import Located, Plan, make_plan
from webindex.corpus.warcs import PART, Seen, WarcFile, write_crawl
from webindex.crawl.warc import MAX_BODY
from webindex.page import pages

__all__ = ["MANIFEST", "Wanted", "build"]

MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "crawl-docs.unfinished"
CACHE: Final = "packages"
_SPOOLS: Final = "unpacked"
_FORMAT: Final = 1
_START: Final = datetime(2025, 1, 6, tzinfo=UTC)
_BETWEEN: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested corpus. `pages` counts documents, None is all; `split` is in bytes.

    With `resources` the stylesheets, images and fonts of the pages are crawled as well.
    """

    seed: int = 1
    pages: int | None = None
    packages: str | None = None
    recrawl: bool = False
    split: int = 32 << 20
    resources: bool = False


def build(folder: Path, wanted: Wanted, *, cache: Path | None = None, step: Step) -> dict[str, Any]:
    """Build the corpus in `folder`; returns its manifest. An existing corpus is left unchanged.

    `cache` is the folder for .deb files, `folder/packages` by default.

    Raises:
        CorpusError: no package is available; or `folder` contains something else.
    """
    packages = named(wanted.packages)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = _found(folder, wanted)
        if there is None:
            with _claimed(folder):
                # Again: another run may have finished in between.
                there = _found(folder, wanted)
                if there is None:
                    _clear(folder)
                    made = _make(folder, wanted, packages, cache or folder / CACHE, step)
                    return {**made, "made_now": True}
                (folder / UNFINISHED).unlink()
        return {**there, "made_now": False}
    except OSError as error:
        raise CorpusError(
            f"The corpus could not be written: {error}. The next run in {folder} begins anew."
        ) from error


def _make(
    folder: Path, wanted: Wanted, packages: Sequence[Package], cache: Path, step: Step
) -> dict[str, Any]:
    began = time.monotonic()
    complaints: list[str] = []
    spools = folder / _SPOOLS
    spools.mkdir()
    try:
        gathered = gather(packages, cache, spools, complaints, step, resources=wanted.resources)
        choose_pages(gathered, wanted.pages, wanted.seed)
        crawls = _Crawls(folder, wanted, gathered, step)
        crawls.write()
        manifest = crawls.manifest(complaints)
    finally:
        shutil.rmtree(spools, ignore_errors=True)
    manifest["seconds"] = round(time.monotonic() - began, 1)
    _finish(folder, crawls.files, manifest)
    return manifest


# --- the folder -----------------------------------------------------------------------------------


def _found(folder: Path, wanted: Wanted) -> dict[str, Any] | None:
    """The manifest of an existing corpus as requested; None if the folder is free.

    Raises CorpusError if it contains anything that this command did not make.
    """
    manifest = folder / MANIFEST
    if manifest.exists():
        there = _read(manifest)
        # A corpus of an earlier version has no resources, and does not say so.
        asked = {"resources": False, **there.get("wanted", {})}
        if asked == asdict(wanted) and there.get("format") == _FORMAT:
            return there
        raise CorpusError(
            f"{folder} holds another corpus (made with {there.get('wanted')}). "
            "Name another folder, or remove that one first."
        )
    if not (folder / UNFINISHED).exists() and (
        other := sorted(one.name for one in folder.iterdir() if one.name != CACHE)
    ):
        raise CorpusError(
            f"{folder} is not empty (it has {other[0]!r}). Name a folder that is new or empty."
        )
    return None


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Mark the folder as unfinished, and exclude other runs."""
    with (folder / UNFINISHED).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorpusError(
                f"Another run is making a corpus in {folder}: wait for it, or name another folder."
            ) from None
        if not file.tell():
            file.write("A corpus is being made here, or its making was interrupted.\n")
            file.flush()
        yield


def _clear(folder: Path) -> None:
    """Remove the files of an interrupted run."""
    for old in [*folder.glob(f"*{PART}"), *folder.glob("*crawl-[0-9]*.warc.gz")]:
        old.unlink()
    shutil.rmtree(folder / _SPOOLS, ignore_errors=True)


def _read(manifest: Path) -> dict[str, Any]:
    try:
        found = json.loads(manifest.read_text("utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CorpusError(f"{manifest} is damaged: remove its folder and make the corpus anew.")
    return found


def _finish(folder: Path, files: list[WarcFile], manifest: dict[str, Any]) -> None:
    for file in files:
        file.part.rename(file.path)
    part = folder / (MANIFEST + PART)
    part.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
    part.rename(folder / MANIFEST)
    (folder / UNFINISHED).unlink()


# --- the crawls -----------------------------------------------------------------------------------


class _Crawls:
    """The crawls of one corpus, in order."""

    def __init__(self, folder: Path, wanted: Wanted, gathered: list[Gathered], step: Step) -> None:
        self._folder = folder
        self._wanted = wanted
        self._gathered = gathered
        self._step = step
        self._seen: Seen = {}
        self._crawled: list[dict[str, Any]] = []
        self._recrawled: dict[str, Counter[str]] = {}
        self._resources: Counter[str] = Counter()
        self._seeded: Counter[str] = Counter()
        self._plan: Plan | None = None
        self.files: list[WarcFile] = []

    def write(self) -> None:
        """Write all crawls, under temporary names."""
        firsts = [
            Located(one.first, document)
            for one in self._gathered
            for document in self._pages(one.first)
        ]
        plan = self._plan = make_plan(firsts, self._wanted.seed)
        _measure(plan)
        folders = [
            redirect(url, 301, target)
            for one in self._gathered
            for url, target in one.first.redirects.items()
            if _in(target, one.chosen)
        ]
        answers = [plan.answer(one.site, one.document) for one in firsts]
        shown: list[Answer] = []
        for one in self._gathered:
            resources = self._shown(one.first)
            self._resources[one.package.name] = len(resources)
            shown += [page(one.first, each) for each in resources]
        self._crawl(
            "crawl",
            [*answers, *folders, *plan.answers, *shown],
            "pages of Debian's documentation packages under their URLs on the web, "
            "with seeded mirrors, redirects, missing pages and links",
        )
        self._crawl(
            "recrawl",
            self._real(plan),
            "a real recrawl: the pages of packages of which there is a newer version",
        )
        self._crawl(
            "seeded-recrawl",
            self._made_up(plan),
            "a seeded recrawl: the changes are made up and no site ever had them",
        )

    def _pages(self, site: Site) -> list[Document]:
        """The chosen documents of a site."""
        chosen = next(
            one.chosen for one in self._gathered if site is one.first or site is one.second
        )
        return [document for url, document in site.documents.items() if _in(url, chosen)]

    def _shown(self, site: Site) -> list[Document]:
        """The resources of the chosen documents of a site, if they are wanted."""
        return asked_for(site, self._pages(site)) if self._wanted.resources else []

    def _crawl(self, name: str, answers: Iterable[Answer], about: str) -> None:
        seed = self._wanted.seed
        ordered = sorted(answers, key=lambda one: rank(seed, name, one.url))
        started = _START + timedelta(seconds=rank(seed, "start") % 86_400)
        started += _BETWEEN * len(self._crawled)
        statuses: Counter[str] = Counter()
        sizes: Counter[str] = Counter()

        def written(answer: Answer, body: bytes, same: bool) -> None:
            statuses[str(answer.status)] += 1
            sizes["all"] += len(body)
            sizes["longest"] = max(sizes["longest"], len(body))
            sizes["too long"] += len(body) > MAX_BODY
            self._count_recrawled(name, answer, body, same)
            self._step(f"Writing {name}", statuses.total(), len(ordered))

        files = write_crawl(
            self._folder,
            name,
            ordered,
            about=about,
            started=started,
            seed=seed,
            split=self._wanted.split,
            seen=self._seen,
            written=written,
        )
        self.files += files
        self._crawled.append(
            {
                "name": name,
                "real": name == "recrawl",
                "about": about,
                "started": started.isoformat(),
                "captures": len(ordered),
                "unchanged (revisit records)": sum(one.revisits for one in files),
                "bytes of bodies": sizes["all"],
                "bytes of the longest body": sizes["longest"],
                "bodies longer than an index takes by default": sizes["too long"],
                "by status": dict(sorted(statuses.items())),
                "files": [
                    {"name": one.path.name, "captures": one.captures, "bytes": one.bytes}
                    for one in files
                ],
            }
        )

    def _real(self, plan: Plan) -> Iterator[Answer]:
        for one in self._gathered:
            if one.second is not None:
                counts = self._recrawled.setdefault(one.package.name, Counter())
                yield from recrawling.real_recrawl(plan, one.first, one.second, one.chosen, counts)
                for resource in self._shown(one.second):
                    yield page(one.second, resource)

    def _count_recrawled(self, name: str, answer: Answer, body: bytes, same: bool) -> None:
        """Count the results of a real recrawl, by package."""
        if name != "recrawl" or answer.site is None or answer.document is None:
            return
        if answer.document.kind is Kind.RESOURCE:
            return
        counts = self._recrawled[answer.site.package.name]
        counts["pages"] += 1
        counts["same bytes"] += same
        first = next(one.first for one in self._gathered if one.second is answer.site)
        before = first.documents.get(answer.url)
        if not same and before is not None and self._plan is not None:
            old = self._plan.answer(first, before).body()
            counts["other text"] += _text(old, answer) != _text(body, answer)

    def _made_up(self, plan: Plan) -> Iterator[Answer]:
        latest = [
            Located(one.latest, document)
            for one in self._gathered
            for document in self._pages(one.latest)
        ]
        gone = list(recrawling.removals(plan, latest))
        yield from gone
        if self._wanted.resources:
            for one in self._gathered:
                yield from recrawling.restyled(plan, one.latest, self._pages(one.latest))
        if self._wanted.recrawl:
            alone = {one.package.name for one in self._gathered if one.second is None}
            rest = [one for one in latest if one.site.package.name in alone]
            taken = {one.url for one in gone}
            yield from recrawling.seeded_recrawl(plan, rest, taken, self._seeded)

    # --- the manifest ---

    def manifest(self, complaints: list[str]) -> dict[str, Any]:
        """Everything that was made, and everything that was unavailable."""
        assert self._plan is not None
        truth = self._plan.truth
        kinds = Counter(one["kind"] for one in truth.get("mirrors", ()))
        kinds["near, as the index judges"] = sum(
            one.get("near", False) for one in truth.get("mirrors", ())
        )
        hops = Counter(one["kind"] for one in truth.get("redirects", ()))
        removed = Counter(
            f"{one['status']}{', real' if one['real'] else ''}" for one in truth.get("removed", ())
        )
        return {
            "format": _FORMAT,
            "made_by": "webindex crawl-docs",
            "wanted": asdict(self._wanted),
            "not_to_be_had": complaints,
            "packages": [self._package(one) for one in self._gathered],
            "crawls": self._crawled,
            "shares": {**seeding.SHARES, **recrawling.SHARES},
            "counts": {
                "mirrors": dict(sorted(kinds.items())),
                "redirects": dict(sorted(hops.items())),
                "removed": dict(sorted(removed.items())),
                "seeded recrawl": dict(self._seeded),
                "files with links to other hosts": len(self._plan.links),
                **{
                    what: len(lines)
                    for what, lines in sorted(truth.items())
                    if what not in ("mirrors", "redirects", "removed")
                },
            },
            "truth": truth,
        }

    def _package(self, one: Gathered) -> dict[str, Any]:
        recrawled = self._recrawled.get(one.package.name)
        return {
            "name": one.package.name,
            "licence": one.package.licence,
            "mounts": {mount.folder: mount.url for mount in one.package.mounts},
            "version": one.first.version,
            "recrawl_version": one.second.version if one.second else None,
            "documents": len(one.first.documents),
            "by_kind": dict(Counter(str(d.kind) for d in one.first.documents.values())),
            "chosen": sum(_in(url, one.chosen) for url in one.first.documents),
            "resources": self._resources[one.package.name],
            "left_out": dict(one.first.left_out),
            "recrawl": dict(recrawled) if recrawled else None,
        }


def _in(url: str, chosen: frozenset[str]) -> bool:
    """Whether a document is chosen; a folder is when its index is."""
    return (url + "index.html" if url.endswith("/") else url) in chosen


def _text(body: bytes, answer: Answer) -> str:
    return pages.parse(body, answer.url, answer.content_type).text_hash


def _measure(plan: Plan) -> None:
    """Record whether the index treats each near copy as a duplicate."""
    lines = {one["url"]: one for one in plan.truth.get("mirrors", ()) if one["kind"] == "near"}
    for answer in plan.answers:
        line = lines.get(answer.url)
        if line is None or answer.site is None or answer.document is None:
            continue
        original = plan.answer(answer.site, answer.site.documents[line["of"]])
        ours = pages.parse(answer.body(), answer.url, answer.content_type)
        theirs = pages.parse(original.body(), original.url, original.content_type)
        line["same_text"] = ours.text_hash == theirs.text_hash
        if ours.sketch is not None and theirs.sketch is not None:
            line["near"] = ours.heading == theirs.heading and ours.sketch.is_near(theirs.sketch)

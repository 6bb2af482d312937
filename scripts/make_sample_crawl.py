"""Makes the sample crawl of webindex: real pages of three documentation sites, as WARC files.

    .venv/bin/python scripts/make_sample_crawl.py [FOLDER]

The pages come from Debian's documentation packages, so nothing is fetched from the sites. Needs
Debian or a system derived from it (`apt-get update` once before) and this project's environment.
Nothing is installed. The default folder is src/webindex/sample.

The same package versions give the same bytes. When one of the recorded versions is no longer to be
had, the script takes the current one and says so; NOTICES.md in the folder always tells which
versions were used.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import urldefrag, urljoin

from selectolax.lexbor import LexborHTMLParser
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from webindex.sample import (
    CHANGED_URL,
    CHANGED_WORDS,
    NEW_LINK,
    OLDER_URL,
    OLDER_WORDS,
)

SAMPLE = Path(__file__).resolve().parents[1] / "src" / "webindex" / "sample"

# Later than the newest page, so that no capture is older than what it shows.
STARTED = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
LARGEST_PAGE = 20_000
LARGEST_FILE = 1_000_000

APACHE_URL = "https://httpd.apache.org/docs/2.4/"
POSTGRESQL_URL = "https://www.postgresql.org/docs/15/"
SQLITE_URL = "https://www.sqlite.org/"
# A page that has not been translated is a link to the English one: the same bytes, its own URL.
APACHE_LANGUAGES = ("en", "de", "fr", "ko")
APACHE_TOPICS = 22
POSTGRESQL_PAGES = 60
SQLITE_PAGES = 50


@dataclass(frozen=True)
class Package:
    """A documentation package: where its pages lie in it, and how their site serves them."""

    name: str
    version: str
    pages: str
    url: str
    content_type: str
    server: str
    licence: str


PACKAGES = (
    # These pages declare their charset themselves, in three different ones; the server does not.
    Package(
        name="apache2-doc",
        version="2.4.71-1~deb12u1",
        pages="usr/share/doc/apache2-doc/manual",
        url=APACHE_URL,
        content_type="text/html",
        server="Apache",
        licence="Copyright The Apache Software Foundation; Apache License 2.0",
    ),
    Package(
        name="postgresql-doc-15",
        version="15.20-0+deb12u1",
        pages="usr/share/doc/postgresql-doc-15/html",
        url=POSTGRESQL_URL,
        content_type="text/html; charset=utf-8",
        server="nginx",
        licence="Copyright The PostgreSQL Global Development Group and The Regents of the "
        "University of California; PostgreSQL License",
    ),
    Package(
        name="sqlite3-doc",
        version="3.40.1-2+deb12u2",
        pages="usr/share/doc/sqlite3",
        url=SQLITE_URL,
        content_type="text/html; charset=utf-8",
        server="althttpd",
        licence="dedicated to the public domain by its authors",
    ),
)


@dataclass(frozen=True)
class Page:
    """A page of the documentation under its true URL."""

    url: str
    body: bytes
    package: Package
    changed: datetime

    def links(self) -> set[str]:
        """Addresses of the pages that this one links to, itself not among them."""
        found = set()
        for anchor in LexborHTMLParser(self.body).css("a[href]"):
            found.add(urldefrag(urljoin(self.url, anchor.attributes.get("href") or "")).url)
        return found - {self.url}


# --- packages ------------------------------------------------------------------------------------


def unpack(package: Package, folder: Path) -> tuple[Path, str]:
    """Download and unpack a package; returns where it lies and the version that it is."""
    for wanted in (f"{package.name}={package.version}", package.name):
        done = subprocess.run(
            ["apt-get", "download", wanted], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
        print(f"Could not get {wanted}: {done.stderr.strip().splitlines()[-1]}")
    else:
        sys.exit(
            f"No version of {package.name} could be had. Run `apt-get update`, then try again."
        )
    [archive] = folder.glob(f"{package.name}_*.deb")
    root = folder / package.name
    subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
    version = subprocess.run(
        ["dpkg-deb", "-f", archive, "Version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if version != package.version:
        print(f"Using {package.name} {version} for {package.version}: the files will differ.")
    return root, version


def read_page(package: Package, root: Path, path: str, url: str | None = None) -> Page:
    file = root / package.pages / path
    changed = datetime.fromtimestamp(int(file.stat().st_mtime), UTC)
    return Page(url or package.url + path, file.read_bytes(), package, changed)


# --- choice --------------------------------------------------------------------------------------


def densest(candidates: dict[str, set[str]], seeds: Iterable[str], count: int) -> list[str]:
    """Choose `count` of the candidates so that many of their links stay among them.

    Starting from the seeds, adds the candidate with the most links to and from those chosen. For
    a tie the first in the order of the candidates wins.
    """
    chosen = list(seeds)
    score = dict.fromkeys(candidates, 0)
    added = chosen
    while True:
        for new in added:
            score.pop(new, None)
            for other in score:
                score[other] += (other in candidates[new]) + (new in candidates[other])
        if len(chosen) >= count or not score:
            return chosen[:count]
        added = [max(score, key=score.__getitem__)]
        chosen += added


def small_pages(package: Package, root: Path) -> dict[str, Page]:
    """Pages of a package that are small enough, by path, those in subfolders left out."""
    folder = root / package.pages
    paths = sorted(file.name for file in folder.glob("*.html"))
    found = {path: read_page(package, root, path) for path in paths}
    return {path: page for path, page in found.items() if len(page.body) < LARGEST_PAGE}


def choose_apache(package: Package, root: Path) -> list[Page]:
    """Topics that exist in several languages, each in all of them, translated or not."""
    folder = root / package.pages
    topics: dict[str, set[str]] = {}
    german = []
    for english in sorted((folder / "en").rglob("*.html")):
        topic = english.relative_to(folder / "en").as_posix()
        versions = [folder / language / topic for language in APACHE_LANGUAGES]
        if not all(v.exists() and v.stat().st_size < LARGEST_PAGE for v in versions):
            continue
        if sum(not v.is_symlink() for v in versions) < 3:
            continue
        prefix = f"{package.url}en/"
        links = read_page(package, root, f"en/{topic}").links()
        topics[topic] = {link.removeprefix(prefix) for link in links if link.startswith(prefix)}
        if not (folder / "de" / topic).is_symlink():
            german.append(topic)
    chosen = densest(topics, german, APACHE_TOPICS)
    pages = [
        read_page(package, root, f"{language}/{topic}")
        for topic in chosen
        for language in APACHE_LANGUAGES
    ]
    # The site also answers without a language, and for a folder with its index.
    for topic in ("index.html", "bind.html", "mpm.html"):
        pages.append(read_page(package, root, f"en/{topic}", package.url + topic))
    pages.append(read_page(package, root, "en/index.html", f"{package.url}en/"))
    return pages


def choose_flat(package: Package, root: Path, seeds: tuple[str, ...], count: int) -> list[Page]:
    """Pages of a site that has all of them in one folder, with its front page under both names."""
    pages = small_pages(package, root)
    by_url = {page.url: path for path, page in pages.items()}
    links = {
        path: {by_url[link] for link in page.links() if link in by_url}
        for path, page in pages.items()
    }
    chosen = densest(links, [seed for seed in seeds if seed in pages], count)
    front = read_page(package, root, "index.html", package.url)
    return [front, *(pages[path] for path in chosen)]


# --- records -------------------------------------------------------------------------------------


class Crawl:
    """Writes records with nothing left to chance: dates and ids are functions of the rest."""

    def __init__(self, file: Path, description: str) -> None:
        self._out = io.BytesIO()
        self._file = file
        self._writer = WARCWriter(self._out, gzip=True)
        self._write(None, "warcinfo", STARTED, f"description: {description}\r\n".encode(), None)

    def page(self, page: Page, date: datetime, body: bytes | None = None) -> None:
        headers = [("Last-Modified", format_datetime(page.changed, usegmt=True))]
        self.response(
            page.url, date, page.package, page.package.content_type, body or page.body, headers
        )

    def response(
        self,
        url: str,
        date: datetime,
        package: Package,
        content_type: str,
        body: bytes,
        more: list[tuple[str, str]] | None = None,
        status: str = "200 OK",
    ) -> None:
        headers = [
            ("Date", format_datetime(date, usegmt=True)),
            ("Server", package.server),
            *(more or []),
            ("Content-Length", str(len(body))),
            ("Content-Type", content_type),
        ]
        http = StatusAndHeaders(status, headers, protocol="HTTP/1.1")
        self._write(url, "response", date, body, http)

    def request(self, url: str, date: datetime) -> None:
        host, _, path = url.removeprefix("https://").partition("/")
        headers = [("Host", host), ("Accept", "text/html"), ("User-Agent", "percola-sample")]
        self._write(
            url,
            "request",
            date,
            b"",
            StatusAndHeaders(f"GET /{path} HTTP/1.1", headers, is_http_request=True),
        )

    def damage_last(self, write: Callable[[], None]) -> None:
        """Write one record more, and spoil the middle of its compressed bytes."""
        start = self._out.tell()
        write()
        middle = (start + self._out.tell()) // 2
        self._out.getbuffer()[middle : middle + 8] = b"\xff" * 8

    def save(self) -> int:
        self._file.write_bytes(self._out.getvalue())
        return self._out.tell()

    def _write(
        self,
        url: str | None,
        kind: str,
        date: datetime,
        payload: bytes,
        http: StatusAndHeaders | None,
    ) -> None:
        stamp = date.strftime("%Y-%m-%dT%H:%M:%SZ")
        name = uuid.uuid5(uuid.NAMESPACE_URL, f"{self._file.name} {kind} {stamp} {url}")
        record = self._writer.create_warc_record(
            url,
            kind,
            payload=io.BytesIO(payload),
            http_headers=http,
            warc_content_type="application/warc-fields" if http is None else "",
            warc_headers_dict={"WARC-Date": stamp, "WARC-Record-ID": f"<urn:uuid:{name}>"},
        )
        self._writer.write_record(record)


def write_sample(file: Path, pages: list[Page], spoilt: Page, stylesheet: Page) -> int:
    crawl = Crawl(file, "sample of three documentation sites, one second between two captures")
    dates = (STARTED + timedelta(seconds=n) for n in range(10_000))
    crawl.request(pages[0].url, STARTED)
    middle = len(pages) // 2
    for number, page in enumerate(pages):
        if number == middle:
            crawl.damage_last(lambda: crawl.page(spoilt, next(dates)))
        crawl.page(page, next(dates))
    crawl.response(stylesheet.url, next(dates), stylesheet.package, "text/css", stylesheet.body)
    crawl.response(
        f"{APACHE_URL}en",
        next(dates),
        PACKAGES[0],
        "text/html; charset=iso-8859-1",
        b"<html><head><title>301 Moved Permanently</title></head></html>\n",
        [("Location", f"{APACHE_URL}en/")],
        "301 Moved Permanently",
    )
    crawl.response(
        f"{SQLITE_URL}no-such-page.html",
        next(dates),
        PACKAGES[2],
        "text/html; charset=utf-8",
        b"<html><head><title>Not Found</title></head><body>Not Found</body></html>\n",
        status="404 Not Found",
    )
    return crawl.save()


def write_recrawl(file: Path, pages: list[Page]) -> int:
    """One page that has changed a day later, and one as it might have been a year before."""
    by_url = {page.url: page for page in pages}
    crawl = Crawl(file, "a page of the sample captured later, and another captured earlier")
    added = f'<p>{CHANGED_WORDS} <a href="{NEW_LINK}">A first look at PostgreSQL</a></p>'
    later = STARTED + timedelta(days=1)
    crawl.page(by_url[CHANGED_URL], later, _with_paragraph(by_url[CHANGED_URL], added))
    earlier = STARTED - timedelta(days=365)
    crawl.page(
        by_url[OLDER_URL], earlier, _with_paragraph(by_url[OLDER_URL], f"<p>{OLDER_WORDS}</p>")
    )
    return crawl.save()


def _with_paragraph(page: Page, paragraph: str) -> bytes:
    """The page with a paragraph put before its first one."""
    before, mark, after = page.body.partition(b"<p>")
    if not mark:
        sys.exit(f"{page.url} has no paragraph to put another one before.")
    return before + paragraph.encode() + b"\n" + mark + after


# --- notices -------------------------------------------------------------------------------------

NOTICES = """\
# The sample crawl: where it comes from, and its licences

`sample.warc.gz` has {count} pages of three documentation sites. They were not fetched from the
sites: they are the pages of Debian's documentation packages, byte for byte, each under the address
that the site has for it. The HTTP headers are made up in the manner of the sites' servers.

| Package | Version | Pages | Served as | Copyright and licence |
|---|---|---|---|---|
{table}

The notices of the packages lie beside this file, as the packages have them:

{files}

`licences/Apache-2.0.txt` is the whole text of the Apache License, Version 2.0. The licences in the
packages' notices also cover program code that is not part of the sample.

The Apache HTTP Server, PostgreSQL and SQLite projects have nothing to do with this project and do
not endorse it. Their names belong to them.

## What was made or changed here

- The dates and HTTP headers of every record.
- The request record, the stylesheet's place in the crawl, the redirect from
  `{apache}en` and the missing page
  `{sqlite}no-such-page.html`.
- One record in the middle of `sample.warc.gz` is damaged on purpose: eight of its compressed bytes
  were overwritten. A reader must report it and go on. It was
  `{spoilt}`.
- `recrawl.warc.gz` has two pages with one paragraph of ours in each, and no other change. One is
  captured a day later than in the sample, with a new sentence and a new link:
  `{changed}`. The other is captured a year earlier and must change nothing
  in an index that knows the sample: `{older}`. Both are from SQLite's
  documentation, which is in the public domain.

## To make it again

    apt-get update
    make setup
    .venv/bin/python scripts/make_sample_crawl.py

The same package versions, with the same zlib, give the same bytes.
"""


def write_notices(
    folder: Path, roots: dict[str, tuple[Path, str]], pages: list[Page], spoilt: Page
) -> None:
    licences = folder / "licences"
    licences.mkdir(exist_ok=True)
    rows = []
    files = []
    for package in PACKAGES:
        root, version = roots[package.name]
        notice = licences / f"{package.name}.copyright.txt"
        shutil.copyfile(root / "usr/share/doc" / package.name / "copyright", notice)
        files.append(f"- `licences/{notice.name}`")
        count = sum(page.package is package for page in pages)
        rows.append(
            f"| {package.name} | {version} | {count} | `{package.url}` | {package.licence} |"
        )
    shutil.copyfile("/usr/share/common-licenses/Apache-2.0", licences / "Apache-2.0.txt")
    text = NOTICES.format(
        count=len(pages),
        table="\n".join(rows),
        files="\n".join(files),
        apache=APACHE_URL,
        sqlite=SQLITE_URL,
        spoilt=spoilt.url,
        changed=CHANGED_URL,
        older=OLDER_URL,
    )
    (folder / "NOTICES.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the sample crawl of webindex.")
    parser.add_argument("folder", nargs="?", type=Path, default=SAMPLE)
    folder: Path = parser.parse_args().folder
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            sys.exit(
                f"{tool} is missing: the pages come from Debian packages, so Debian is needed."
            )
    folder.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as scratch:
        roots = {package.name: unpack(package, Path(scratch)) for package in PACKAGES}
        apache, postgresql, sqlite = (roots[package.name][0] for package in PACKAGES)
        pages = choose_apache(PACKAGES[0], apache)
        pages += choose_flat(
            PACKAGES[1], postgresql, ("index.html", "tutorial-start.html"), POSTGRESQL_PAGES
        )
        seeds = ("index.html", "about.html", "features.html")
        # The last one is the one to be spoilt.
        *chosen, spoilt = choose_flat(PACKAGES[2], sqlite, seeds, SQLITE_PAGES + 1)
        pages += chosen
        stylesheet = read_page(PACKAGES[2], sqlite, "sqlite.css")
        sizes = {
            "sample.warc.gz": write_sample(folder / "sample.warc.gz", pages, spoilt, stylesheet),
            "recrawl.warc.gz": write_recrawl(folder / "recrawl.warc.gz", pages),
        }
        write_notices(folder, roots, pages, spoilt)

    urls = {page.url for page in pages}
    links = sum(len(page.links() & urls) for page in pages)
    repeated = len(pages) - len({page.body for page in pages})
    print(f"{len(pages)} pages, {links} links between them, {repeated} repeat another one's bytes.")
    for name, size in sizes.items():
        print(f"{folder / name}: {size:,} bytes")
    if sizes["sample.warc.gz"] >= LARGEST_FILE:
        sys.exit(f"sample.warc.gz is over {LARGEST_FILE:,} bytes: choose fewer pages.")


if __name__ == "__main__":
    main()

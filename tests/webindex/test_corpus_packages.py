"""Packages of documents: versions, archives, URLs, and the choice of a smaller sample."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from fake_debs import ar, deb, fake_apt, hard_link, link, prose

from webindex.corpus import CorpusError
from webindex.corpus.archives import read_archive
from webindex.corpus.choosing import choose, quotas
from webindex.corpus.debian import Apt, UnavailableError, compare_versions
from webindex.corpus.mounting import Kind, Site, mount
from webindex.corpus.packages import PACKAGES, Mount, Package, named

SQLITE = next(one for one in PACKAGES if one.name == "sqlite3-doc")
SITE = "usr/share/doc/sqlite3"


# --- versions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("2.4.68-1~deb12u1", "2.4.71-1~deb12u1"),
        ("15.9-0+deb12u1", "15.20-0+deb12u1"),
        ("1.0~rc1-1", "1.0-1"),
        ("1.0-1", "1.0-1+deb12u1"),
        ("1.0-1~deb12u1", "1.0-1"),
        ("9.9-1", "1:0.1-1"),
        ("1.0", "1.0a"),
        ("1.0a", "1.0+"),
        ("6.1.99-1", "6.1.192-1"),
    ],
)
def test_versions_are_ordered_as_debian_orders_them(older: str, newer: str) -> None:
    assert compare_versions(older, newer) < 0 < compare_versions(newer, older)


def test_versions_that_differ_in_spelling_only_are_equal() -> None:
    assert compare_versions("0:1.00-1", "1.0-1") == 0 == compare_versions("1.0", "1.0-0")


# --- getting packages ---------------------------------------------------------------------

OFFER = "sqlite3-doc | 3.1-1 | somewhere bookworm/main amd64 Packages\n"


def looked_up(cache: Path) -> Apt:
    """What apt says of the package, beside what is in a folder."""
    apt = Apt(cache)
    apt.look_up(["sqlite3-doc"])
    return apt


def test_apt_and_the_cache_together_tell_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = (
        "sqlite3-doc | 3.40.1-2 | somewhere bookworm/main amd64 Packages\n"
        "sqlite3-doc | 3.40.1-10 | somewhere bookworm-updates/main amd64 Packages\n"
        "sqlite3-doc | 9.9-9 | somewhere bookworm/main Sources\n"
    )
    monkeypatch.setenv("PATH", fake_apt(tmp_path / "bin", offers, tmp_path))
    deb(tmp_path / "cache", "sqlite3-doc", "1:3.1-1", {})
    apt = looked_up(tmp_path / "cache")
    assert apt.trouble is None
    assert apt.versions("sqlite3-doc") == ["1:3.1-1", "3.40.1-10", "3.40.1-2"]


def test_a_package_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", fake_apt(tmp_path / "bin", OFFER, tmp_path / "mirror"))
    original = deb(tmp_path / "mirror", "sqlite3-doc", "3.1-1", {f"{SITE}/a.html": prose("a")})
    apt = looked_up(tmp_path / "cache")
    got = apt.get("sqlite3-doc", "3.1-1")
    assert got.parent == tmp_path / "cache" and got.read_bytes() == original.read_bytes()
    original.unlink()
    assert apt.get("sqlite3-doc", "3.1-1") == got
    assert list((tmp_path / "cache").iterdir()) == [got]


def test_a_version_that_has_vanished_is_named_in_apts_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake_apt(tmp_path / "bin", OFFER, tmp_path))
    apt = looked_up(tmp_path / "cache")
    with pytest.raises(UnavailableError, match=r"Version '3\.1-1' for 'sqlite3-doc' was not found"):
        apt.get("sqlite3-doc", "3.1-1")
    assert list((tmp_path / "cache").iterdir()) == []


def test_empty_lists_of_apt_are_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake_apt(tmp_path / "bin", "", tmp_path))
    apt = looked_up(tmp_path / "cache")
    assert apt.trouble is not None and "apt-get update" in apt.trouble


def test_a_machine_without_apt_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    apt = looked_up(tmp_path / "cache")
    with pytest.raises(UnavailableError, match=r"no apt-get here.*\.deb files into"):
        apt.get("sqlite3-doc", "1.0-1")


def test_an_unknown_package_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(CorpusError, match=r"No package nonsense is known.*sqlite3-doc"):
        named("sqlite3-doc,nonsense")
    both = named("python3.11-doc, sqlite3-doc")
    assert [one.name for one in both] == ["sqlite3-doc", "python3.11-doc"]
    assert len(named("all")) == len(PACKAGES) > len(named(None)) == len(named("usual"))


# --- archives -----------------------------------------------------------------------------


@pytest.mark.parametrize("packed", ["xz", "gz"])
def test_documents_are_taken_out_of_a_package_byte_for_byte(tmp_path: Path, packed: str) -> None:
    files = {
        "usr/a.html": prose("a"),
        "usr/b.xhtml": prose("b"),
        "usr/style.css": b"p {}",
        "usr/packed.html.gz": gzip.compress(prose("packed")),
        "usr/again.html": hard_link("usr/a.html"),
    }
    found = read_archive(deb(tmp_path, "x", "1", files, packed=packed), tmp_path / "spool")
    assert {path: found.read(place) for path, place in found.documents.items()} == {
        "usr/a.html": prose("a"),
        "usr/b.xhtml": prose("b"),
        "usr/packed.html": prose("packed"),
        "usr/again.html": prose("a"),
    }


def test_links_are_followed_to_documents_and_through_folders(tmp_path: Path) -> None:
    files = {
        "usr/en/a.html": prose("a"),
        "usr/de/a.html": link("../en/a.html"),
        "usr/fr/a.html": link("../de/a.html"),
        "usr/all": link("en"),
        "usr/out.html": link("/etc/passwd.html"),
        "usr/round.html": link("about.html"),
        "usr/about.html": link("round.html"),
    }
    found = read_archive(deb(tmp_path, "x", "1", files), tmp_path / "spool")
    assert found.follow("usr/fr/a.html") == "usr/en/a.html" == found.follow("usr/all/a.html")
    assert found.follow("usr/out.html") is None
    assert found.follow("usr/round.html") is None


def test_a_hostile_path_in_a_package_writes_nothing_outside_the_spool_file(tmp_path: Path) -> None:
    package = deb(
        tmp_path / "in", "x", "1", {"../../../escaped.html": b"<p>", "/root.html": b"<p>"}
    )
    (tmp_path / "out").mkdir()
    found = read_archive(package, tmp_path / "out" / "spool")
    assert len(found.documents) == 2
    assert {one.name for one in tmp_path.rglob("*") if one.is_file()} == {package.name, "spool"}


def test_a_damaged_package_is_told(tmp_path: Path) -> None:
    package = deb(tmp_path, "x", "1", {"usr/a.html": prose("a") * 50})
    whole = package.read_bytes()
    for damaged in (b"", b"something else", whole[: len(whole) - 60], whole[:300] + b"\0" * 400):
        package.write_bytes(damaged)
        with pytest.raises(UnavailableError, match=r"x_1_all\.deb is damaged"):
            read_archive(package, tmp_path / "spool")


def test_a_package_that_cannot_be_unpacked_here_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "x_1_all.deb"
    package.write_bytes(ar({"debian-binary": b"2.0\n", "data.tar.zst": b"packed"}))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="packed with zstandard, which needs dpkg-deb"):
        read_archive(package, tmp_path / "spool")


# --- URLs ---------------------------------------------------------------------------------


def mounted(tmp_path: Path, package: Package, files: dict[str, bytes | tuple[str, str]]) -> Site:
    archive = read_archive(deb(tmp_path, package.name, "1", files), tmp_path / "spool")
    return mount(package, "1", archive)


def test_documents_stand_under_the_urls_of_their_site(tmp_path: Path) -> None:
    site = mounted(
        tmp_path,
        SQLITE,
        {
            f"{SITE}/index.html": prose("front"),
            f"{SITE}/c3ref/index.html": prose("reference"),
            f"{SITE}/c3ref/a b.html": prose("ab"),
            f"{SITE}/copy.html": link("index.html"),
            f"{SITE}/away.html": link("../elsewhere/x.html"),
            "usr/share/doc/other/x.html": prose("x"),
        },
    )
    assert {url: (d.kind, site.read(d)) for url, d in site.documents.items()} == {
        "https://www.sqlite.org/index.html": (Kind.PAGE, prose("front")),
        "https://www.sqlite.org/": (Kind.FOLDER, prose("front")),
        "https://www.sqlite.org/copy.html": (Kind.ALIAS, prose("front")),
        "https://www.sqlite.org/c3ref/index.html": (Kind.PAGE, prose("reference")),
        "https://www.sqlite.org/c3ref/": (Kind.FOLDER, prose("reference")),
        "https://www.sqlite.org/c3ref/a%20b.html": (Kind.PAGE, prose("ab")),
    }
    assert site.redirects == {"https://www.sqlite.org/c3ref": "https://www.sqlite.org/c3ref/"}
    assert site.left_out == {"links that lead out of the package": 1}


def test_a_star_in_a_mount_stands_for_the_language(tmp_path: Path) -> None:
    package = Package(
        "manual",
        (Mount("doc/en", "https://a.example/"), Mount("doc/*", "https://a.example/*/latest/")),
        "text/html",
        "nginx",
        "none",
    )
    site = mounted(
        tmp_path, package, {f"doc/{code}/x.html": prose(code) for code in ("en", "pt-BR")}
    )
    assert set(site.documents) == {
        "https://a.example/x.html",
        "https://a.example/pt-BR/latest/x.html",
    }


def test_every_mount_ends_where_its_pages_begin() -> None:
    for package in PACKAGES:
        assert package.licence and package.mounts
        for one in package.mounts:
            assert one.url.startswith("https://") and one.url.endswith("/")
            assert not one.folder.startswith("/") and not one.folder.endswith("/")
            assert one.folder.count("*") == one.url.count("*") <= 1


# --- a smaller sample ---------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 7, 100, 333, 1110, 5000])
def test_quotas_add_up_and_leave_no_package_out(total: int) -> None:
    sizes = [1000, 100, 9, 1]
    given = quotas(sizes, total)
    assert sum(given) == min(max(total, len(sizes)), sum(sizes))
    assert all(1 <= one <= size for one, size in zip(given, sizes, strict=True))


def test_the_same_seed_chooses_the_same_pages_front_page_first() -> None:
    names = [*(f"{n:03}.html" for n in range(200)), "index.html", "x/index.html"]
    urls = sorted(f"https://a.example/docs/{name}" for name in names)
    chosen = choose(urls, 41, 7)
    assert len(chosen) == 41 and chosen == choose(urls, 41, 7)
    assert "https://a.example/docs/index.html" in chosen
    assert chosen != choose(urls, 41, 8)
    # Neighbours come together: most pages have the next one beside them.
    beside = sum(b in chosen for a, b in pairwise(urls) if a in chosen)
    assert beside > 30

"""Declarations, addresses, options and observers that cannot work are refused at once."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import in_child, open_no_more

import percola
from percola import (
    ConflictingOptionsError,
    NotARepositoryError,
    Observer,
    ObserverError,
    PercolaError,
    Repository,
    RepositoryError,
    RepositoryVersionError,
    SchemaError,
    SchemaMismatchError,
    StoreFullError,
    Table,
    Transaction,
    UnknownColumnError,
    UnknownTableError,
    UsageError,
    Worker,
    WorkerOptions,
    observer,
)
from percola.observers.loading import load
from tests.unit.wrong_calls import (
    TABLES,
    any_,
    check_message,
    everything,
    missing_weak,
    other_weak,
    poke,
    seen,
    tags,
    title,
)
from tests.unit.wrong_calls import repo as repo


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.column("title", int), "a column of str"),
        (lambda t: t.column("seen"), "stays so: declare it with observed=True"),
        (lambda t: t.column("seen", str), "of bytes, observed"),
        (lambda t: t.family("title", str), "a family of str"),
        (lambda t: t.column("tag", int), "a column of int"),
        (lambda t: t.weak_column("seen"), "a weak column"),
        (lambda t: t.column("poke"), "a weak column"),
    ],
)
def test_a_schema_that_contradicts_the_stored_one_is_refused(
    tmp_path: Path, change: Callable[[Table[str]], object], words: str
) -> None:
    with percola.open(tmp_path / "repo", schema=TABLES) as repo:
        repo.run(lambda t: t.set(title, "a", "as it was"))
        stored = repo.schema.to_json()
    table = Table("docs")
    table.column("new")
    change(table)
    with pytest.raises(SchemaMismatchError) as caught:
        percola.open(tmp_path / "repo", schema=[Table("new"), table])
    check_message(caught.value, words)
    with pytest.raises(SchemaMismatchError, match=r"rows of bytes.*another name for the new table"):
        percola.open(tmp_path / "repo", schema=[Table("docs", rows=bytes)])
    with percola.open(tmp_path / "repo") as repo:
        assert repo.schema.to_json() == stored
        assert repo.snapshot().get(title, "a") == "as it was"


# --- Opening ----------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("chapter one")
    for create in (True, False):
        with pytest.raises(NotARepositoryError, match=r"thesis\.txt"):
            percola.open(tmp_path, schema=TABLES, create=create)
    with pytest.raises(NotARepositoryError, match="Name an empty or a new folder"):
        percola.create(tmp_path)
    assert tree(tmp_path) == {"thesis.txt": b"chapter one"}


def test_a_file_is_not_a_repository(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    for path in (file, file / "below"):
        with pytest.raises((NotARepositoryError, RepositoryError)) as caught:
            percola.open(path, schema=TABLES)
        check_message(caught.value, str(file))
    assert file.read_text() == "text"


def test_a_missing_repository_is_created_only_if_it_may_be(tmp_path: Path) -> None:
    for options in ({"create": False, "schema": TABLES}, {"schema": []}, {}):
        with pytest.raises(
            NotARepositoryError, match=r"There is no repository at .* with a schema"
        ):
            percola.open(tmp_path / "missing", **any_(options))
    assert not (tmp_path / "missing").exists()
    # What is to be typed is quoted as a shell takes it.
    with pytest.raises(NotARepositoryError, match=r"percola --repo '[^']+/not here' init"):
        percola.open(tmp_path / "not here")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_repository_of_another_version_is_not_touched(tmp_path: Path, version: object) -> None:
    folder = tmp_path / "repo"
    percola.open(folder, schema=TABLES).close()
    description = folder / "percola.json"
    changed = {**json.loads(description.read_text()), "format": version}
    description.write_text(json.dumps(changed))
    before = tree(folder)
    with pytest.raises(RepositoryVersionError, match="this version of Percola reads format 1"):
        percola.open(folder, schema=TABLES)
    assert tree(folder) == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"store": "lmdb"}', "null"])
def test_a_damaged_description_is_told_and_not_overwritten(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "repo"
    percola.open(folder, schema=TABLES).close()
    (folder / "percola.json").write_text(text)
    with pytest.raises(NotARepositoryError, match="Restore it from a backup") as caught:
        percola.open(folder, schema=TABLES)
    check_message(caught.value, "percola.json")
    assert (folder / "percola.json").read_text() == text


def test_a_description_that_cannot_be_opened_is_not_said_to_be_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    percola.open(folder, schema=TABLES).close()

    def use() -> None:
        open_no_more()
        percola.open(folder, schema=TABLES)

    why = f"The repository {folder} cannot be used: Too many open files."
    assert in_child(use) == f"RepositoryError: {why}"


@pytest.mark.parametrize("lost", ["store", "store/data.mdb"])
def test_a_repository_that_has_lost_its_store_is_not_begun_anew(tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "repo"
    percola.open(folder, schema=TABLES).close()
    (folder / lost).rename(tmp_path / "elsewhere")
    before = tree(folder)
    for options in ({"create": False}, {"schema": TABLES}):
        with pytest.raises(RepositoryError, match="lost its store") as caught:
            percola.open(folder, **any_(options))
        check_message(caught.value, str(folder / "store" / "data.mdb"))
    assert tree(folder) == before
    (tmp_path / "elsewhere").rename(folder / lost)
    percola.open(folder, schema=TABLES, create=False).close()


def test_a_repository_whose_store_leads_nowhere_or_was_emptied_is_not_begun_anew(
    tmp_path: Path,
) -> None:
    folder, elsewhere = tmp_path / "repo", tmp_path / "elsewhere"
    percola.open(folder, schema=TABLES).close()
    data = folder / "store" / "data.mdb"
    data.rename(elsewhere)
    data.symlink_to(elsewhere)
    percola.open(folder, create=False).close()
    contents = elsewhere.read_bytes()
    elsewhere.unlink()  # As if its disk were not mounted.
    with pytest.raises(RepositoryError, match=r"lost its store: there is no .*data\.mdb"):
        percola.open(folder, create=False)
    elsewhere.write_bytes(b"")
    with pytest.raises(RepositoryError, match=r"lost its store: there is nothing in .*data\.mdb"):
        percola.open(folder, create=False)
    assert elsewhere.read_bytes() == b""
    elsewhere.write_bytes(contents)
    percola.open(folder, create=False).close()


def test_a_repository_that_was_made_but_never_opened_is_begun(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    percola.open(folder, schema=TABLES).close()
    for path in (folder / "store").iterdir():
        path.unlink()
    (folder / "store" / "data.mdb").touch()  # As a process that was killed leaves it.
    percola.open(folder, schema=TABLES).close()


def test_a_repository_that_another_process_opens_first_at_this_moment_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = tmp_path / "repo", tmp_path / "other"
    for path in (folder, other):
        percola.create(path)
    for path in (folder / "store").iterdir():
        path.unlink()
    (folder / "store" / "data.mdb").touch()
    looked = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        found = looked(path, **options)
        if Path(path) == folder / "store" / "data.mdb" and not found.st_size:
            monkeypatch.undo()
            for made in ("data.mdb", "safe-point"):
                shutil.copy(other / "store" / made, folder / "store" / made)
        return found

    monkeypatch.setattr(os, "stat", stat)
    percola.open(folder, schema=TABLES).close()
    assert os.stat is looked


@pytest.mark.parametrize("file", ["rows.lock", "leases", "store/turn.lock", "store/safe-point"])
def test_a_file_that_is_a_link_to_nowhere_is_one_sentence(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "repo"
    percola.open(folder, schema=TABLES).close()
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to(tmp_path / "nowhere")

    def use() -> None:
        with percola.open(folder, schema=TABLES) as repo:
            repo.context.coordination.try_lock("docs", b"a")
            repo.context.coordination.oldest_held()

    with pytest.raises(RepositoryError, match="it is a symbolic link, and leads nowhere"):
        use()
    assert not (tmp_path / "nowhere").exists()


def test_a_repository_that_found_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(StoreFullError, match="no room left"):
            percola.open(folder, TABLES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []
    percola.open(folder, TABLES).close()


def test_a_place_where_nothing_can_be_created_is_told() -> None:
    """Not even the superuser makes a folder there."""
    with pytest.raises(RepositoryError, match="No repository can be created at /proc/percola"):
        percola.open("/proc/percola", schema=TABLES)


def test_a_path_that_leads_nowhere_is_one_sentence(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, why in ((loop, "symbolic links"), (tmp_path / ("a" * 300), "File name too long")):
        for create in (True, False):
            with pytest.raises(RepositoryError) as caught:
                percola.open(path, schema=TABLES, create=create)
            check_message(caught.value, f"{path} cannot be used: ")
            assert why in str(caught.value)


def test_a_current_folder_that_was_deleted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RepositoryError) as caught:
        percola.open("./repo", schema=TABLES)
    check_message(caught.value, "the current folder cannot be used: No such file or directory")
    with pytest.raises(UsageError) as unimported:
        load("app:observers")
    check_message(unimported.value, "Modules such as 'app' are imported from the current folder")
    percola.open(tmp_path / "repo", schema=TABLES).close()


@pytest.mark.parametrize("address", ["ftp://host", "cassandra://p/i", "lmdb:", "postgres://x"])
def test_an_address_of_no_known_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotARepositoryError) as caught:
        percola.open(address, schema=TABLES)
    check_message(caught.value, address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["", "a\0b", "\ud800"])
def test_an_address_that_no_folder_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Nothing is not the current folder: a variable that is not set, perhaps."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotARepositoryError, match="names no folder"):
        percola.open(address, schema=TABLES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "address", ['"repo"', "'repo'", "repo ", "repo\r", " hbase://a/b", '"lmdb:a"']
)
def test_an_address_in_quotes_or_white_space_makes_no_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Docker and others take what a file with variables has, quotes included."""
    monkeypatch.chdir(tmp_path)
    for use in (lambda: percola.create(address), lambda: percola.open(address, schema=TABLES)):
        with pytest.raises(NotARepositoryError) as caught:
            use()
        check_message(caught.value, f"{address!r} has white space or quotes around")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "repo ").mkdir()
    percola.open("repo ", schema=TABLES).close()


def test_sqlites_name_for_what_is_in_memory_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotARepositoryError) as caught:
        percola.open(":memory:", schema=TABLES)
    check_message(caught.value, "use memory: without a colon before it")
    assert list(tmp_path.iterdir()) == []


OPTIONS: dict[str, dict[str, Any]] = {
    "an unknown durability": {"durability": "lucky"},
    "a time to live of nothing": {"lock_ttl_seconds": 0},
    "a negative time to live": {"lock_ttl_seconds": -1},
    "a time to live of years": {"lock_ttl_seconds": 1e9},
    "a time to live that is no number": {"lock_ttl_seconds": float("nan")},
    "a negative timeout": {"lock_wait_seconds": -1},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_wrong_option_is_refused_and_creates_nothing(tmp_path: Path, case: str) -> None:
    with pytest.raises(ConflictingOptionsError) as caught:
        percola.open(tmp_path / "repo", schema=TABLES, **OPTIONS[case])
    name, given = next(iter(OPTIONS[case].items()))
    check_message(caught.value, str(given) if name != "durability" else repr(given))
    assert not (tmp_path / "repo").exists()


def test_a_memory_repository_takes_no_durability() -> None:
    with pytest.raises(ConflictingOptionsError, match="leave one of the two out"):
        percola.open("memory:", schema=TABLES, durability="full")


def test_a_process_opens_a_repository_with_one_durability(tmp_path: Path) -> None:
    with percola.open(tmp_path / "repo", schema=TABLES, durability="relaxed"):
        with pytest.raises(ConflictingOptionsError, match=r"'relaxed'.*'full'"):
            percola.open(tmp_path / "repo", schema=TABLES, durability="full")
        percola.open(tmp_path / "repo", schema=TABLES).close()


def _noop(t: Transaction, row: str) -> None:
    pass


def work(repo: Repository, *observed: Any, **options: Any) -> Worker:
    return Worker(repo, [observer(one)(_noop) for one in observed], **options)


OBSERVERS: dict[type[PercolaError], dict[str, tuple[str, Callable[[Repository], object]]]] = {
    ObserverError: {
        "a column that is not observed": ("observed=True", lambda repo: observer(title)(_noop)),
        "a column that the open repository does not observe": (
            "which this repository was not opened with as an observed column",
            lambda repo: work(repo, Table("docs").column("title", str, observed=True)),
        ),
        "a weak column that is another one in the open repository": (
            "which this repository was not opened with as a weak column",
            lambda repo: work(repo, Table("docs").weak_column("title")),
        ),
        "a family": ("tag", lambda repo: observer(any_(tags))(_noop)),
        "a name for a column": ("'seen'", lambda repo: observer(any_("seen"))(_noop)),
        "no function": ("function", lambda repo: Observer(seen, any_(None), "x")),
        "a function of the row alone": (
            "with a transaction and a row (too many positional arguments)",
            lambda repo: observer(seen, name="x")(any_(lambda row: None)),
        ),
        "a function of more": (
            "missing a required argument: 'more'",
            lambda repo: observer(seen, name="x")(any_(lambda t, row, more: None)),
        ),
        "a text for a number of workers": (
            "cannot have dedicated='all'",
            lambda repo: observer(seen, dedicated=any_("all"))(_noop),
        ),
        "a bare function": ("@observer", lambda repo: Worker(repo, any_([_noop]))),
        "no observers": ("at least one", lambda repo: work(repo)),
        "two of one name": ("two observers are named", lambda repo: work(repo, seen, poke)),
        "two on a weak column": (
            "it can have one",
            lambda repo: Worker(repo, [observer(poke, name=n)(_noop) for n in "ab"]),
        ),
    },
    SchemaError: {
        "a lambda without a name": ("'<lambda>'", lambda repo: observer(seen)(lambda t, row: None)),
        "a name with a colon": ("'a:b'", lambda repo: observer(seen, name="a:b")(_noop)),
    },
    UnknownTableError: {"a table": ("strange", lambda repo: work(repo, other_weak))},
    UnknownColumnError: {"a column": ("missing-weak", lambda repo: work(repo, missing_weak))},
    ConflictingOptionsError: {
        "options twice": (
            "not both",
            lambda repo: work(repo, seen, options=WorkerOptions(), threads=2),
        ),
        "a first wait above the longest": (
            "longer than its longest_wait",
            lambda repo: work(repo, seen, first_wait=20, longest_wait=10),
        ),
    },
}
WORKERS: list[tuple[str, Any]] = [
    *(("threads", 0), ("attempts", 0), ("first_wait", 0), ("longest_wait", -1), ("timeout", 0)),
    *(("rescan", 0), ("sweep", -5)),
    *((name, math.inf) for name in ("timeout", "rescan", "collect", "report")),
    # As of the environment.
    *((name, "4") for name in ("threads", "attempts", "timeout", "survey", "retention")),
    ("threads", 2.5),
]
OBSERVERS[ConflictingOptionsError] |= {
    f"{name}={bad}": (name, lambda repo, options={name: bad}: work(repo, seen, **options))
    for name, bad in WORKERS
}


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind in OBSERVERS for case in OBSERVERS[kind]]
)
def test_observers_and_workers_that_cannot_work_are_refused(
    repo: Repository, kind: type[PercolaError], case: str
) -> None:
    words, build = OBSERVERS[kind][case]
    before = everything(repo)
    with pytest.raises(kind) as caught:
        build(repo)
    assert type(caught.value) is kind
    assert words.lower() in str(caught.value).lower()
    assert everything(repo) == before


def test_an_unknown_worker_option_is_a_type_error(repo: Repository) -> None:
    with pytest.raises(TypeError, match="treads"):
        Worker(repo, [observer(seen)(_noop)], treads=4)

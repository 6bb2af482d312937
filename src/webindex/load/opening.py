"""Opens the repository of a web index, and refuses one that an incompatible older version made."""

from __future__ import annotations

import os

import percola
from percola import NotARepositoryError, Repository
from webindex import tables

__all__ = ["open_repository", "with_tables"]


def open_repository(address: str, *, create: bool = False) -> Repository:
    """Open the repository of a web index; NotARepositoryError if it does not exist.

    Only with `create` are the tables of a web index added to a repository that has others.
    """
    if create:
        return with_tables(address)
    try:
        repo = percola.open(address, create=False)
    except NotARepositoryError as error:
        if not address or os.path.exists(address):
            raise
        raise NotARepositoryError(
            f"There is no repository at {address}: 'webindex load' makes one from WARC files."
        ) from error
    _refuse_older(repo)
    missing = [one.name for one in tables.SCHEMA if one.name not in repo.schema]
    if missing and set(missing) <= tables.ADDED:
        repo.close()
        return percola.open(address, schema=tables.SCHEMA, create=False)
    if missing:
        repo.close()
        raise NotARepositoryError(
            f"The repository {address} holds no web index (it has no table {missing[0]!r}): "
            "'webindex load' adds one."
        )
    return repo


def with_tables(address: str | os.PathLike[str]) -> Repository:
    """Open a repository, creating it if needed, and add the tables of a web index."""
    try:
        # Before anything is added to it: afterwards an older one cannot be recognised.
        repo = percola.open(address, create=False)
    except NotARepositoryError:
        return percola.open(address, schema=tables.SCHEMA)
    _refuse_older(repo)
    repo.close()
    return percola.open(address, schema=tables.SCHEMA)


def _refuse_older(repo: Repository) -> None:
    """Close the repository and raise NotARepositoryError if its clusters follow older rules."""
    name = tables.keys.name
    if name not in repo.schema:
        return
    columns = {member.name for member in repo.schema.table(name).members}
    if tables.sketch_of.name in columns:
        return
    repo.close()
    raise NotARepositoryError(
        f"The web index in {repo.address} was made by an older version of Percola, which told "
        "near-duplicates in another way: load or rebuild it from its WARC files into an empty "
        "repository."
    )

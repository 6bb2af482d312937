"""§2.4: load the observers and tables that a command line or a Spark job names as MODULE:NAME.

`percola worker` and `percola.spark.run_workers` share the syntax and the error messages. Observers
are named rather than pickled: each worker process imports the program itself.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from percola import repository
from percola.errors import ObserverError, UsageError
from percola.observers.observer import Observer, what_to_list
from percola.repository import Repository
from percola.schema import Schema, Table

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@contextmanager
def opened(
    address: str,
    target: str,
    schema: str | None = None,
    *,
    durability: str | None = None,
    adds: bool = True,
) -> Iterator[tuple[Repository, list[Observer[Any]]]]:
    """Open a repository and load the observers to run on it, for the length of a block.

    Opens it with the tables of the observers' columns and those of `schema`, which names tables
    that the observers only write to. `durability` as for `percola.open`. Unless it `adds` to the
    schema, tables of which the repository lacks something are left out: another program's, perhaps.

    Raises what `load_observers`, `load_schema` and `percola.open` raise; NotARepositoryError if
    there is no repository at `address`.
    """
    with repository.open(address, create=False, durability=durability) as repo:
        observers = load_observers(target, repo)
        tables = {one.name: one for one in (() if schema is None else load_schema(schema))}
        for one in observers:
            if adds or _has_all(repo.schema, one.table):
                tables.setdefault(one.table.name, one.table)
        with repository.open(
            address, list(tables.values()), create=False, durability=durability
        ) as whole:
            yield whole, observers


def _has_all(stored: Schema, table: Table[Any]) -> bool:
    """Whether a repository has all of a table, so that to declare it changes nothing."""
    there = Schema(one for one in stored if one.name == table.name)
    return Schema([table]).merged_into(there).plain() == there.plain()


def load_schema(target: str) -> list[Table[Any]]:
    """Load the tables that `MODULE:NAME` names: a list of tables, one Table or a Schema."""
    found = load(target)
    tables = [found] if isinstance(found, Table) else found
    if not isinstance(tables, Iterable) or isinstance(tables, str | bytes):
        raise UsageError(f"{target} is {_a(found)}, not a list of tables.")
    tables = list(tables)
    for one in tables:
        if not isinstance(one, Table):
            raise UsageError(f"{target} should be a list of tables, but it holds {_a(one)}.")
    Schema(tables)
    return tables


def load_observers(target: str, repo: Repository) -> list[Observer[Any]]:
    """Load the observers that `MODULE:NAME` names, or that it returns when called.

    NAME is an observer, a list of them, or a function that returns either; a function that
    takes an argument is given the repository.
    """
    found = load(target)
    if needs_call(found):
        found = _call(target, found, repo)
    observers = [found] if isinstance(found, Observer) else found
    if not isinstance(observers, Iterable) or isinstance(observers, str | bytes):
        raise UsageError(
            f"{target} gives {_a(found)}; it should be an observer, a list of observers, or a "
            "function that returns them."
        )
    observers = list(observers)
    for one in observers:
        if not isinstance(one, Observer):
            raise ObserverError(
                f"{target} holds {_a(one)}, which is not an observer: {what_to_list(one)}."
            )
    return observers


def needs_call(found: object) -> bool:
    """Whether the loaded object is a function that returns observers, rather than observers."""
    return not isinstance(found, Observer) and callable(found)


def _call(target: str, function: Any, repo: Repository) -> object:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    needed = [one for one in parameters if one.default is one.empty and one.kind in _POSITIONAL]
    try:
        return function(repo) if needed else function()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target} raised {_raised(error)}.") from error


def load(target: str) -> Any:
    """Load the attribute that `MODULE:NAME` names; the current directory is importable.

    Raises UsageError if there is no such module or attribute, if the import failed (the message
    has the exception and its location), or if the module opens a repository when it is imported:
    the program would run, and perhaps write, before the name has been checked.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise UsageError(
            f"{target!r} names nothing that can be imported: write MODULE:NAME, as in "
            "'myapp.main:observers'."
        )
    if module_name.endswith(".py") or "/" in module_name:
        path, where = os.path.relpath(module_name), ""
        if path.startswith(os.pardir + os.sep):  # It cannot be imported from here.
            folder, path = os.path.split(os.path.abspath(path))
            where = f", in the folder {folder}"
        raise UsageError(
            f"{module_name!r} is a file; name the module, as in 'import'{where}: "
            f"{path.removesuffix('.py').replace(os.sep, '.')}:{name}."
        )
    module = _import(module_name)
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        file = getattr(module, "__file__", None)
        if file is None and hasattr(module, "__path__"):
            raise UsageError(
                f"There is no module {module_name!r}, only a folder of that name "
                f"({next(iter(module.__path__))}): go to the folder that has "
                f"{module_name.replace('.', '/')}.py, or install it."
            ) from None
        public = [one for one in vars(module) if not one.startswith("_")]
        defined = [one for one in public if not isinstance(getattr(module, one), ModuleType)]
        raise UsageError(
            f"The module {module_name!r} ({file or 'of Python'}) has no {name!r}. It has: "
            f"{', '.join(defined[-12:]) or 'nothing'}."
        ) from None


def _import(name: str) -> Any:
    try:
        here = os.getcwd()
    except OSError as error:
        raise UsageError(
            f"Modules such as {name!r} are imported from the current folder, which cannot be used: "
            f"{error.strerror}. Change to another folder."
        ) from error
    if here not in sys.path:
        sys.path.insert(0, here)
    importing = repository.IMPORTING.set(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"There is no module {error.name!r}, neither in {here} nor installed in this "
                "Python's environment."
            ) from None
        raise UsageError(f"Importing {name!r} raised {_raised(error)}.") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"Importing {name!r} raised {_raised(error)}.") from error
    finally:
        repository.IMPORTING.reset(importing)


def _raised(error: BaseException) -> str:
    """The exception and where it was raised, without a full stop."""
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({error.filename}, line {error.lineno})"
        text = error.msg
    else:
        text = str(error)
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith("<") and frame.filename != importlib.__file__
        ]
        # The line in the user's code is more useful than one in a library that it called.
        own = [
            frame
            for frame in frames
            if _PACKAGE not in frame.filename and "site-packages" not in frame.filename
        ]
        if own:
            where = f" ({own[-1].filename}, line {own[-1].lineno})"
    first_line = text.strip().splitlines()[0] if text.strip() else ""
    return f"{type(error).__name__}{': ' if first_line else ''}{first_line.rstrip('.')}{where}"


def _a(value: object) -> str:
    shown = repr(value)
    return f"{shown[:60]}{'…' if len(shown) > 60 else ''} ({type(value).__name__})"

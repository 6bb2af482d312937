"""§2.4 Configure a user's Spark session for Percola; optional.

Spark finds `format("percola")` without this where `percola` is installed beside PySpark
(`pyspark_percola`). This module sets the session properties for filter pushdown and catalogs.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from percola.connect.address import portable
from percola.errors import ConflictingOptionsError
from percola.spark.catalog import JARS, catalog_settings
from percola.spark.session import GATEWAY, add_to_jvm
from percola.spark.versions import check_version

B = TypeVar("B", SparkSession.Builder, SparkSession)

SETTINGS: Final = {
    # Without it, Spark refuses a reader with the option pushFilters.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def configure(target: B, *, catalogs: Mapping[str, str] | None = None) -> B:
    """Configure a session builder or an existing session for Percola.

        builder = percola.spark.configure(SparkSession.builder, catalogs={"shop": "./shop"})
        builder.getOrCreate().sql("SELECT * FROM shop.products").show()

    Filters can then be pushed down (the option pushFilters). In an existing session the data
    source is registered too, for environments where Spark does not find it by itself. A builder
    with a local master lets Spark use this Python, unless `PYSPARK_PYTHON` names another.

    Args:
        target: a builder, or a session.
        catalogs: catalogs for Spark SQL: their names, and the addresses of their repositories.

    Returns `target`. Raises CatalogJarMissingError if catalogs are given and their jar has not
    been built, ValueError for an invalid catalog name, ConflictingOptionsError for one that the
    session has for another repository, SparkTooOldError for a PySpark before 4.1.
    """
    check_version()
    settings = SETTINGS | (catalog_settings(catalogs) if catalogs else {})
    jar = settings.pop(JARS, None)
    if isinstance(target, SparkSession.Builder):
        # Its getOrCreate takes the session that is there, and gives it settings but no jar.
        there = _of_builders()
        _check_unchanged(there, catalogs or (), settings)
        is_local = str(target._options.get("spark.master")).startswith("local")
        if is_local and there is None and GATEWAY not in os.environ:
            # Spark looks for data sources with the `python3` of the PATH: that of another
            # environment where a program is run by the path of its Python, as a timer does.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if jar is not None:
            known = target._options.get(JARS)
            jars = f"{known},{jar}" if known else jar
            target.config(JARS, jars if there is not None else add_to_jvm(jars))
            if there is not None:
                _add(jar, there)
            elif not is_remote() and (context := SparkContext._active_spark_context) is not None:
                # getOrCreate makes a session of this context, whose executors get no other jars.
                context._jsc.addJar(_addable(jar, context))
        for name, value in settings.items():
            target.config(name, value)
        return target
    from percola.spark.source import PercolaDataSource  # It imports Arrow.

    _check_unchanged(target, catalogs or (), settings)
    if jar is not None:
        _add(jar, target)
    for name, value in settings.items():
        target.conf.set(name, value)
    target.dataSource.register(PercolaDataSource)
    return target


def _of_builders() -> SparkSession | None:
    """The session that every builder's getOrCreate takes, in whichever thread; None: a new one.

    It need not be the active one, which each thread has for itself.
    """
    if is_remote():
        try:
            return SparkSession.active()
        except PySparkException:
            return None
    first = SparkSession._instantiatedSession
    return first if first is not None and first._sc._jsc is not None else None


def _check_unchanged(
    session: SparkSession | None, names: Iterable[str], settings: Mapping[str, str]
) -> None:
    """Raise ConflictingOptionsError if a session has one of the catalogs for another repository.

    Spark makes a catalog when it is first used, and keeps it whatever the settings become. A new
    session has none yet, but it may have settings for one from those that Spark started with.
    """
    if session is None:
        return
    for name in names:
        key = f"spark.sql.catalog.{name}.path"
        before = session.conf.get(key, None)
        if before is not None and portable(before) != settings[key] and _has_made(session, name):
            raise ConflictingOptionsError(
                f"This session has a catalog {name!r} of {before} already, and would go on to read "
                f"and write that, not {settings[key]}: use another name, or spark.newSession()."
            )


def _has_made(session: SparkSession, name: str) -> bool:
    return any(row[0] == name for row in session.sql("SHOW CATALOGS").collect())


def _add(jar: str, session: SparkSession) -> None:
    session.sql(f"ADD JAR '{_addable(jar, getattr(session, '_sc', None))}'")


def _addable(jar: str, context: SparkContext | None) -> str:
    """The jar's path, or that of a copy where it has characters that ADD JAR takes for others.

    SQL ends its text at a quote, and Spark encodes spaces and signs twice: then it looks for the
    classes in a file that is not there.
    """
    if re.fullmatch(r"[\w./-]+", jar):
        return jar
    # Every later task fetches it, of whichever session. So it stays for as long as the JVM, which
    # may outlive this process and removes its own folder; that of a remote one is not known here.
    folder = tempfile.mkdtemp(prefix="percola-catalog-", dir=getattr(context, "_temp_dir", None))
    return shutil.copy(jar, folder)

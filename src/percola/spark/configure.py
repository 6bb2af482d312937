"""§2.4 What a Spark session of one's own needs to use Percola: two lines, and both are optional.

`spark.read.format("percola")` is found without any of this where `percola` is installed beside
PySpark (`pyspark_percola`). What is left is what a session has to be told when it is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from percola.spark.catalog import JARS, catalog_settings

B = TypeVar("B", SparkSession.Builder, SparkSession)

SETTINGS: Final = {
    # Without it, Spark refuses a reader with the option pushFilters.
    "spark.sql.python.filterPushdown.enabled": "true",
}


def configure(target: B, *, catalogs: Mapping[str, str] | None = None) -> B:
    """Set a session up for Percola: one that is being built, or one that is there.

        builder = percola.spark.configure(SparkSession.builder, catalogs={"shop": "./shop"})
        builder.getOrCreate().sql("SELECT * FROM shop.products").show()

    Filters may then be handed down (the option pushFilters). A session that is there also gets
    the data source registered, for where Spark does not find it by itself.

    Args:
        target: a builder, or a session.
        catalogs: catalogs for Spark SQL: their names, and the addresses of their repositories.

    Returns what it was given. Raises CatalogJarMissingError if there are catalogs and their jar
    has not been built, ValueError for a name that no catalog can have.
    """
    settings = SETTINGS | (catalog_settings(catalogs) if catalogs else {})
    jar = settings.pop(JARS, None)
    if isinstance(target, SparkSession.Builder):
        if jar is not None:
            known = target._options.get(JARS)
            target.config(JARS, f"{known},{jar}" if known else jar)
        for name, value in settings.items():
            target.config(name, value)
        return target
    from percola.spark.source import PercolaDataSource  # It brings Arrow along.

    if jar is not None:
        target.sql(f"ADD JAR '{jar}'")
    for name, value in settings.items():
        target.conf.set(name, value)
    target.dataSource.register(PercolaDataSource)
    return target

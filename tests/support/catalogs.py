"""Catalogs of Percola in a Spark session that runs already."""

from __future__ import annotations

import itertools

from needs import lack, need
from pyspark.sql import SparkSession

from percola.spark import CatalogJarMissingError, catalog_settings

_numbers = itertools.count()


def new_catalog(spark: SparkSession, address: str) -> str:
    """The name of a catalog of the repository, which no other test has used."""
    need("javac")
    catalog = f"shop{next(_numbers)}"
    try:
        settings = catalog_settings({catalog: address})
    except CatalogJarMissingError as error:
        lack("javac", str(error))
    del settings["spark.jars"]  # The session has it.
    for key, value in settings.items():
        spark.conf.set(key, value)
    return catalog

"""§2.4 Percola's tables in Spark SQL: a catalog, in a jar that is built from the Java beside it.

    spark.sql.catalog.shop       io.percola.spark.PercolaCatalog
    spark.sql.catalog.shop.path  ./shop                             SELECT * FROM shop.products

Spark loads catalogs by the name of a Java class. This one delegates to the Python data source
(`percola.spark.source`), so storage access is not implemented twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from percola.connect.address import portable
from percola.errors import PercolaError

__all__ = ["CATALOG_CLASS", "JARS", "CatalogJarMissingError", "catalog_jar", "catalog_settings"]

JARS: Final = "spark.jars"
CATALOG_CLASS: Final = "io.percola.spark.PercolaCatalog"
_JAR: Final = Path(__file__).with_name("percola-catalog.jar")


class CatalogJarMissingError(PercolaError):
    """The jar of the catalog has not been built."""


def catalog_jar() -> Path:
    """The jar that a session needs in `spark.jars` to use the catalog.

    Raises CatalogJarMissingError where it has not been built.
    """
    if not _JAR.exists():
        raise CatalogJarMissingError(
            f"The catalog's jar is missing at {_JAR}. Wheels contain it; in a source tree, "
            "'make setup' builds it if there is a Java compiler (a JDK of version 17 or newer)."
        )
    return _JAR


def catalog_settings(catalogs: Mapping[str, str]) -> dict[str, str]:
    """The settings of a session with these catalogs: each name, and the address of its repository.

    Raises CatalogJarMissingError, ValueError for a name that Spark cannot have.
    """
    settings = {JARS: str(catalog_jar())}
    for name, address in catalogs.items():
        if not name.isidentifier():
            raise ValueError(
                f"{name!r} is no name of a catalog: use letters, digits and underscores."
            )
        if name.lower() == "percola":
            raise ValueError(
                "A catalog cannot be named 'percola': Spark would take it for the data source of "
                "that name. Use another name."
            )
        settings[f"spark.sql.catalog.{name}"] = CATALOG_CLASS
        settings[f"spark.sql.catalog.{name}.path"] = portable(address)
    return settings

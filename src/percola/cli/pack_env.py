"""`pack-env`: packs the environment that Spark's executors need."""

from __future__ import annotations

from pathlib import Path

import click
from rich import filesize

from percola.cli.session import Session, json_option
from percola.platform import packing


@click.command("pack-env")
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="A further installed package, and what it requires; may be repeated.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The interpreter on the executors' machines.  [default: one of this version on the PATH]",
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
@click.pass_obj
def pack_env(session: Session, packages: tuple[str, ...], python: str | None, file: Path) -> None:
    """Pack Percola and its packages for Spark's executors.

    FILE is an archive for 'spark-submit --archives FILE#environment'. Unpack it into a folder
    'environment' for the driver as well, and set PYSPARK_PYTHON=./environment/bin/python there:
    executors then need nothing but a Python of this version. PySpark is left out, for executors
    have that of their Spark.
    """
    packed = packing.pack(file, packages, python)
    session.show(
        {"file": str(file), "bytes": packed.size, "packages": packed.packages},
        f"Packed {len(packed.packages)} packages into {file} ({filesize.decimal(packed.size)}).",
    )

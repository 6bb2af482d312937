"""The jars of HBase, fetched by Maven: the client's for `hbase://…`, the servers' for a cluster.

The work is done by `hbase_jars.sh` beside this file, which needs no Python: set-up calls it first.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from percola.errors import PercolaError

SCRIPT: Final = Path(__file__).with_name("hbase_jars.sh")
SETS: Final = ("client", "server")
KDC: Final = "kdc"
KAFKA: Final = "kafka"
SPARK_KAFKA: Final = "spark-kafka"
FOR_TESTS: Final = (KDC, KAFKA, SPARK_KAFKA)
"""A Kerberos server, a Kafka broker, and Spark's connector to it: sets that only tests need, so
each is fetched separately."""


class JarsError(PercolaError):
    """The jars of HBase are not here and cannot be fetched; the message says why."""


def install(which: str, tell: Callable[[str], object] = lambda line: None) -> Path:
    """Fetch a set of jars unless it is here, which may take minutes; its folder.

    Args:
        which: "client", "server", or one of `FOR_TESTS`.
        tell: called with a line when fetching begins.

    Raises:
        JarsError: no Maven, or it fails; nothing is left half fetched.
    """
    if which not in (*SETS, *FOR_TESTS):
        raise JarsError(f"The sets of jars are {' and '.join(SETS)}; there is no {which!r}.")
    shell = shutil.which("bash")
    if shell is None:
        raise JarsError("Fetching HBase's jars takes bash, which is not here: install it.")
    with subprocess.Popen(
        [shell, SCRIPT, "install", which],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as fetching:
        assert fetching.stdout is not None and fetching.stderr is not None
        last = ""
        # It prints a line at most, so that nothing waits for the other pipe to be read.
        for line in fetching.stderr:
            last = line.strip()
            tell(last)
        folder = fetching.stdout.read().strip()
    if fetching.returncode:
        raise JarsError(last or f"{SCRIPT} ended with {fetching.returncode}.")
    return Path(folder)


def install_all(tell: Callable[[str], object] = lambda line: None) -> dict[str, Path]:
    """The same with every set; their folders."""
    return {which: install(which, tell) for which in SETS}

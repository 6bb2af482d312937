"""Environments with an older PySpark, each made once; `make clean` removes them.

Percola is installed as users do it, so the bounds of pyproject.toml have their say. All else is
what requirements.lock pins, by hash.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import needs

ROOT: Final = Path(__file__).resolve().parents[2]
RELEASES: Final = {
    "4.1": ("4.1.4", "bcbd5e18690cf79d438e97210ad06fb8d451a251bb77becc2b0418868d2acd73"),
    "4.2": ("4.2.1", "d79b7c8ee41e66a9202fe6f600ca90b931ca571ae9dbdf31c58d2672e5102da0"),
}
"""The release that is installed for each, and the SHA-256 of its source archive."""

_FOLDER: Final = ROOT / "build" / "pyspark"


def python_with(minor: str) -> Path:
    """The interpreter of an environment that has Percola, editable, and this PySpark."""
    needs.need("index")
    version, digest = RELEASES[minor]
    home = _FOLDER / minor
    python, stamp = home / "bin" / "python", home / "installed"
    pins = _pins()
    texts = [one.read_text() for one in (ROOT / "pyproject.toml", Path(__file__))]
    made_of = [str(ROOT), sys.version, version, pins, *texts]
    wanted = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    home.parent.mkdir(parents=True, exist_ok=True)
    done = _uv("venv", "--clear", "--python", sys.executable, home)
    assert done.returncode == 0, done.stderr
    spark, others = home / "pyspark.txt", home / "others.txt"
    spark.write_text(f"pyspark=={version} --hash=sha256:{digest}\n")
    others.write_text(pins)
    into = ("pip", "install", "--python", python)
    done = _uv(*into, "--no-deps", "--require-hashes", "--requirement", spark)
    if done.returncode:
        why = done.stderr.strip().splitlines()
        needs.lack("index", f"PySpark {version} could not be installed: {' '.join(why)}")
    # With it, uv does not choose another version: that would be an error here.
    asked = (f"{ROOT}[spark]", f"pyspark[connect,pipelines]=={version}")
    done = _uv(*into, "--constraint", others, "--editable", *asked)
    assert done.returncode == 0, done.stderr
    stamp.write_text(wanted)
    return python


def _uv(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    uv = Path(sys.executable).with_name("uv")
    command = [uv, arguments[0], "--quiet", *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def _pins() -> str:
    """The lock file without its PySpark."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", lock)
    return "\n".join(one for one in entries if not one.startswith("pyspark=="))

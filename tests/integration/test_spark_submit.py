"""Programs, and the command `webindex`, under `spark-submit`: its JVM, master and properties."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from catalogs import catalog_settings
from commands import Answer, answer_of

import percola
import percola.cli
import webindex
from percola import Table
from percola.cells import Kind
from percola.store.base import Put, RowMutation

BIN = Path(sys.executable).parent
WEBINDEX = Path(webindex.__file__).with_name("__main__.py")
PERCOLA = Path(percola.cli.__file__).with_name("__main__.py")
SAMPLE = Path(webindex.__file__).with_name("sample") / "sample.warc.gz"
SECONDS = 300

PROGRAM = """
import sys
from names import name_of
from pyspark.sql import SparkSession
from percola.spark import catalog_settings, configure, spark_session

with spark_session("local[7]", app="ours", config={"spark.x": "ours", "spark.y": "ours"}) as spark:
    context = spark.sparkContext
    conf = context.getConf()
    print("given:", context.master, context.appName, conf.get("spark.x"), conf.get("spark.y"))
    frame = spark.createDataFrame(
        context.parallelize(range(20), 4).map(lambda n: (name_of(n), n)), "row string, n bigint"
    )
    frame.write.format("percola").mode("append").option("table", "numbers").save(sys.argv[1])
catalogs = {"mine": sys.argv[1]}
with spark_session("local[7]", config=catalog_settings(catalogs)) as spark:
    print("again:", spark.sparkContext.master, spark.sparkContext.getConf().get("spark.x"))
    print("rows:", *spark.sql("SELECT count(*), sum(n) FROM mine.numbers").first())
spark = configure(SparkSession.builder, catalogs=catalogs).getOrCreate()
print("by a builder:", *spark.sql("SELECT count(*), sum(n) FROM mine.numbers").first())
print("jars:", *(jar.split("/")[-1] for jar in spark.conf.get("spark.jars").split(",")))
"""

numbers = Table("numbers")
n = numbers.column("n", int)

Submit = Callable[..., Answer]


@pytest.fixture
def submit(java_home: Path, tmp_path: Path) -> Submit:
    """`spark-submit` with these arguments, in a folder of its own."""

    def run(*arguments: object) -> Answer:
        variables = {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": sys.executable}
        line = [BIN / "spark-submit", "--conf", "spark.ui.enabled=false", *arguments]
        return answer_of(line, cwd=tmp_path, seconds=SECONDS, **variables)

    return run


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program above, and beside it the module that it imports, for `--py-files`."""
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "names.py").write_text("def name_of(n):\n    return f'row {n:02}'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    percola.open(tmp_path / "repo", schema=[numbers]).close()
    return tmp_path / "repo"


def test_a_program_runs_with_the_master_and_the_properties_of_spark_submit(
    submit: Submit, program: Path, repo: Path
) -> None:
    catalog_settings({})  # Its jar is there.
    with zipfile.ZipFile(jar := program.with_name("theirs.jar"), "w") as archive:
        archive.writestr("nothing", "")
    done = submit(
        *("--master", "local[2]", "--name", "theirs", "--conf", "spark.x=theirs", "--jars", jar),
        *("--py-files", program.parent / "shipped" / "names.py", program, repo),
    )
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "given: local[2] theirs theirs ours",
        "again: local[2] theirs",
        "rows: 20 190",
        "by a builder: 20 190",
        "jars: theirs.jar percola-catalog.jar",
    ]


@pytest.mark.long
def test_webindex_loads_prints_its_report_and_refuses_a_mistake_in_a_sentence(
    submit: Submit, tmp_path: Path
) -> None:
    options = ("--master", "local[2]", WEBINDEX, "load", "--repo", tmp_path / "index")
    done = submit(*options, SAMPLE)
    assert done.code == 0, done.err
    assert re.search(r"^Loaded +206 of 206 captures", done.out)
    with percola.open(tmp_path / "index") as index:
        assert any(index.pending().values())
    wrong = submit(*options, tmp_path / "none.warc.gz")
    assert wrong.code != 0
    # spark-submit prints what the program writes to standard error on standard output.
    assert "none.warc.gz" in wrong.out
    assert "Traceback" not in wrong.err + wrong.out


def document_in(output: str) -> Any:
    """The JSON in it, beside the progress, which spark-submit prints there as well."""
    [document] = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(document)


@pytest.mark.long
def test_percola_checks_in_the_session_of_spark_submit_and_tells_errors_by_its_exit_code(
    submit: Submit, repo: Path
) -> None:
    """Whatever master the command names, which does not even exist."""
    options = ("--master", "local[2]", PERCOLA, "--repo", repo, "--json", "check")
    done = submit(*options, "--master", "spark://nowhere:7077")
    assert done.code == 0, done.err
    assert document_in(done.out)["sound"] is True
    with percola.open(repo) as opened:
        opened.context.store.mutate(
            [RowMutation("numbers", b"row", (), [Put(Kind.WRITE, b"n", 1, b"?")])]
        )
    done = submit(*options, "--spark")
    assert done.code == 1
    found = document_in(done.out)
    assert "undecodable-write" in [one["rule"] for one in found["findings"]]

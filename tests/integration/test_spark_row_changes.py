"""UPDATE, DELETE and MERGE in Spark SQL: one transaction each, which loses nobody's change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from catalogs import new_catalog
from children import wait_in_child
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_processes import kill_all, python_workers
from stores import in_thread, put, put_all

import percola
from percola import DATE, INT64, JSON, Repository, Table
from percola.cells import Kind, Op, decode_write
from percola.maintenance.check import check
from percola.recipes import Sums
from percola.recipes import check as recomputed
from percola.store.walks import scan_writes, walk_kind
from percola.transactions.jobs import JOBS, JointTransaction, RowWrites, new_run

shop = Table("products")
name = shop.column("name", str, observed=True)
price = shop.column("price", float, observed=True)
note = shop.column("note", str)
labels = shop.family("labels", str)

blobs = Table("blobs", rows=bytes)
length = blobs.column("length", int)

days = Table("days", rows=DATE)
turnover = days.column("turnover", INT64)

facts = Table("facts")
word = facts.column("word", str)
value = facts.column("value", JSON)
more = facts.family("more", JSON)

sold = Table("sold")
cents = sold.column("cents", INT64)
earned = Sums("earned", sold, {"cents": int})

Wait = Callable[..., object]
Rows = dict[str, tuple[str | None, float | None]]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", schema=[shop]) as repository:
        fill(repository, 10)
        yield repository


def fill(repository: Repository, count: int) -> None:
    with repository.transaction(notify=False) as t:
        for number in range(count):
            t.set(name, f"p{number:03}", f"name {number}")
            t.set(price, f"p{number:03}", float(number))


@pytest.fixture
def sql(spark: SparkSession, repo: Repository) -> Callable[[str], None]:
    catalog = new_catalog(spark, repo.address)

    def run(text: str) -> None:
        spark.sql(text.replace("$", f"{catalog}.products"))

    return run


Sql = Callable[[str], None]


def rows(repository: Repository) -> Rows:
    with repository.snapshot() as snapshot:
        return {one.key: (one.get(name), one.get(price)) for one in snapshot.scan(shop)}


@contextmanager
def blocking(repo: Repository, row: str, **options: Any) -> Iterator[JointTransaction]:
    """A live job holds the price of a row during the block, and is to be aborted after that."""
    job = JointTransaction(repo, "blocking", new_run(repo), ["products"], **options)
    begun = job.attempt(0, 0)
    assert begun is not None
    begun.write([RowWrites("products", row.encode(), {price.key: b"0.0"})])
    with begun.kept_alive():
        yield job


def notified(repository: Repository) -> list[str]:
    """The columns that observers have to look at, with their rows."""
    entries = walk_kind(repository.context.store, Kind.NOTIFY, "products")
    return [f"{cell.row.decode()}.{cell.column.decode()}" for cell, _, _ in entries]


def assert_sound(repository: Repository) -> None:
    assert [str(one) for one in check(repository)] == []
    assert list(walk_kind(repository.context.store, Kind.LOCK, "products")) == []


# --- What changes -----------------------------------------------------------------------


def test_the_first_transaction_of_a_repository_may_be_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It reads at timestamp 0, where nothing has been written yet."""
    with percola.open(tmp_path / "new", schema=[shop]) as empty:
        catalog = new_catalog(spark, empty.address)
        spark.sql(f"DELETE FROM {catalog}.products WHERE price > 1")
        assert empty.snapshot().start_ts == 0 or rows(empty) == {}
        spark.sql(
            f"MERGE INTO {catalog}.products t USING (SELECT 'p1' AS row, 2D AS price) s "
            "ON t.row = s.row WHEN MATCHED THEN UPDATE SET price = s.price "
            "WHEN NOT MATCHED THEN INSERT (row, price) VALUES (s.row, s.price)"
        )
        assert rows(empty) == {"p1": (None, 2.0)}
        assert_sound(empty)


def test_an_update_writes_and_notifies_only_what_differs(sql: Sql, repo: Repository) -> None:
    with repo.snapshot() as before:
        versions = {row: before.version(name, row) for row in ("p001", "p002")}
    sql("UPDATE $ SET price = price * 2, name = upper(name) WHERE row IN ('p000', 'p001')")
    with repo.snapshot() as after:
        assert (after.get(name, "p001"), after.get(price, "p001")) == ("NAME 1", 2.0)
        assert after.version(name, "p001") > versions["p001"]
        assert after.version(name, "p002") == versions["p002"]
    # 0.0 * 2 is what it was.
    assert sorted(notified(repo)) == ["p000.name", "p001.name", "p001.price"]
    assert_sound(repo)


def test_null_deletes_a_cell_and_a_map_replaces_a_family(sql: Sql, repo: Repository) -> None:
    with repo.transaction() as t:
        t.set(labels["colour"], "p001", "black")
        t.set(labels["size"], "p001", "big")
    sql("UPDATE $ SET name = NULL, labels = map('size', 'small', 'new', 'yes') WHERE row = 'p001'")
    with repo.snapshot() as after:
        found = after.get_row(shop, "p001")
        assert {column.name: value for column, value in found.items()} == {
            "price": 1.0,
            "labels:new": "yes",
            "labels:size": "small",
        }
    assert_sound(repo)


def test_a_delete_removes_whole_rows_some_or_all(sql: Sql, repo: Repository) -> None:
    put(repo, labels["colour"], "p009", "black")
    sql("DELETE FROM $ WHERE price > 2.5")
    assert rows(repo) == {f"p00{n}": (f"name {n}", float(n)) for n in range(3)}
    sql("DELETE FROM $")
    assert rows(repo) == {}
    assert_sound(repo)


def test_truncate_removes_all_rows_at_one_commit_and_observers_see_it(
    sql: Sql, repo: Repository
) -> None:
    put(repo, labels["colour"], "p011", "blue", notify=False)
    sql("TRUNCATE TABLE $")
    assert rows(repo) == {}
    assert len(set(committed(repo).values())) == 1
    # Of the observed columns, and only where rows had them.
    assert notified(repo) == [f"p{n:03}.{one}" for n in range(10) for one in ("name", "price")]
    assert_sound(repo)
    sql("TRUNCATE TABLE $")


def test_truncate_fails_in_a_sentence_and_leaves_all_rows(
    spark: SparkSession, repo: Repository
) -> None:
    catalog = new_catalog(spark, repo.address)
    spark.conf.set(f"spark.sql.catalog.{catalog}.option.lockWaitSeconds", "0.2")
    with percola.open(repo.address, [JOBS]) as other:
        # Begun before, so the statement also waits for as long as the lock of a dead job lasts.
        with (
            blocking(other, "p005", ttl_seconds=2) as job,
            pytest.raises(PySparkException) as caught,
        ):
            spark.sql(f"TRUNCATE TABLE {catalog}.products")
        assert "products['p005'].price has been locked for " in str(caught.value)
        assert "Traceback" not in str(caught.value)
        assert job.abort()
    assert len(rows(repo)) == 10
    assert_sound(repo)


def test_a_merge_is_what_spark_computes_itself_and_one_commit(
    spark: SparkSession, sql: Sql, repo: Repository
) -> None:
    """The same MERGE by a full join of frames, in Spark alone."""
    fill(repo, 300)
    spark.range(200, 400).selectExpr(
        "format_string('p%03d', id) AS k", "CAST(id AS DOUBLE) * 1.5 AS p"
    ).createOrReplaceTempView("incoming")
    before = spark.createDataFrame(
        [(row, *values) for row, values in rows(repo).items()],
        "row string, name string, price double",
    )
    joined = before.join(
        spark.table("incoming"), before["row"] == spark.table("incoming")["k"], "full"
    )
    wanted = joined.where("k IS NULL OR row IS NULL OR p < 400").selectExpr(
        "coalesce(row, k) AS row", "if(row IS NULL, 'new', name) AS name", "coalesce(p, price) AS p"
    )
    sql(
        "MERGE INTO $ t USING incoming s ON t.row = s.k WHEN MATCHED AND s.p >= 400 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET price = s.p "
        "WHEN NOT MATCHED THEN INSERT (row, name, price) VALUES (s.k, 'new', s.p)"
    )
    assert rows(repo) == {row: (text, cost) for row, text, cost in wanted.collect()}
    with repo.snapshot() as after:
        changed = [f"p{n:03}" for n in (*range(201, 267), *range(300, 400))]
        assert len({after.version(price, row) for row in changed}) == 1
    assert_sound(repo)


def test_a_row_is_not_deleted_with_the_record_of_what_it_has_contributed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its contribution could not be taken back any more. Other rows go."""
    with percola.open(tmp_path / "sold", schema=[sold, *earned.tables]) as repo:
        put_all(repo, cents, {"a": 5, "b": 1})
        repo.run(lambda t: earned.contribute(t, "a", {"all": {"cents": 5}}))
        table = f"{new_catalog(spark, repo.address)}.sold"
        merge = f"MERGE INTO {table} t USING (SELECT 'a' k) s ON t.row = s.k"
        frame = spark.sql("SELECT 'a' row, true gone")
        writer = frame.write.format("percola").mode("append")
        writer = writer.options(table="sold", deleteColumn="gone")
        attempts: list[Callable[[], object]] = [
            lambda: spark.sql(f"DELETE FROM {table} WHERE cents > 3"),
            lambda: spark.sql(f"TRUNCATE TABLE {table}"),
            lambda: spark.sql(f"{merge} WHEN MATCHED THEN DELETE"),
            *(
                lambda how=how: writer.option("atomicity", how).save(repo.address)  # type: ignore[misc]
                for how in ("row", "chunk", "job")
            ),
        ]
        for attempt in attempts:
            with pytest.raises(PySparkException, match=r"sold\['a'\]\.applied\.earned records"):
                attempt()
        assert [row.key for row in repo.snapshot().scan(sold)] == ["a", "b"]
        spark.sql(f"DELETE FROM {table} WHERE row = 'b'")
        spark.sql(f"UPDATE {table} SET cents = NULL")
        repo.run(lambda t: earned.contribute(t, "a", {}))  # As its observer does now.
        assert list(repo.snapshot().scan(sold)) == []
        assert recomputed(repo, [earned]) == []


def test_a_row_key_may_change_to_one_that_is_free(sql: Sql, repo: Repository) -> None:
    sql("UPDATE $ SET row = concat('q', row) WHERE row = 'p001'")
    found = rows(repo)
    assert "p001" not in found and found["qp001"] == ("name 1", 1.0)
    assert_sound(repo)


def test_a_table_whose_rows_are_bytes_is_updated(spark: SparkSession, tmp_path: Path) -> None:
    with percola.open(tmp_path / "blobs", schema=[blobs]) as repo:
        put_all(repo, length, {b"\0\1": 1, b"\0\2": 2})
        catalog = new_catalog(spark, repo.address)
        spark.sql(f"UPDATE {catalog}.blobs SET length = length + 5 WHERE row = X'0001'")
        spark.sql(f"DELETE FROM {catalog}.blobs WHERE row = X'0002'")
        with repo.snapshot() as after:
            assert {one.key: one[length] for one in after.scan(blobs)} == {b"\0\1": 6}


def test_json_that_stays_is_not_encoded_again(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes the digits of a decimal, of which Python's float has only some."""
    with percola.open(tmp_path / "facts", schema=[facts]) as repo:
        frame = spark.sql(
            "SELECT 'a' row, 'x' word, named_struct('n', 0.12345678901234567890BD) value, "
            "map('k', named_struct('n', 0.00001BD)) more"
        )
        frame.write.format("percola").mode("append").option("table", "facts").save(repo.address)
        catalog = new_catalog(spark, repo.address)
        spark.sql(f"UPDATE {catalog}.facts SET word = 'y'")
        found = spark.table(f"{catalog}.facts").first()
        assert found is not None
        assert found.asDict() == {
            "row": "a",
            "word": "y",
            "value": '{"n":0.1234567890123456789}',
            "more": {"k": '{"n":0.00001}'},
        }
        assert len(list(repo.versions(value, "a"))) == 1
        assert len(list(repo.versions(more["k"], "a"))) == 1
        spark.sql(f"""UPDATE {catalog}.facts SET value = '{{"n": 2}}', more = map('k', '3')""")
        assert repo.snapshot().get(value, "a") == {"n": 2}
        assert repo.snapshot().get(more["k"], "a") == 3


# --- What fails -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE $ SET row = 'p002' WHERE row = 'p001'", "The row 'p002' of 'products' is there"),
        (
            """MERGE INTO $ t USING (SELECT 'p001' k) s ON t.name = s.k
            WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (row, name) VALUES (s.k, 'x')""",
            "The row 'p001' of 'products' is there",
        ),
        (
            """MERGE INTO $ t USING (SELECT * FROM VALUES ('n', 'a'), ('n', 'b') AS v(k, x)) s
            ON t.row = s.k WHEN MATCHED THEN DELETE
            WHEN NOT MATCHED THEN INSERT (row, name) VALUES (s.k, s.x)""",
            "which of the two should win is not defined",
        ),
        (
            """MERGE INTO $ t USING (SELECT 'p001' k UNION ALL SELECT 'p001') s ON t.row = s.k
            WHEN MATCHED THEN DELETE""",
            "Two rows to write have the key of products['p001']",
        ),
        (
            """MERGE INTO $ t USING (SELECT 'n' k) s ON t.row = s.k
            WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (row) VALUES (s.k)""",
            "The row 'n' of 'products' would have no value",
        ),
    ],
)
def test_what_is_not_defined_is_refused_in_a_sentence_and_nothing_is_written(
    sql: Sql, repo: Repository, statement: str, sentence: str
) -> None:
    before = rows(repo)
    with pytest.raises(PySparkException) as caught:
        sql(statement)
    assert sentence in str(caught.value)
    assert "Traceback" not in str(caught.value) and 'File "' not in str(caught.value)
    assert rows(repo) == before
    assert_sound(repo)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE $ SET note = touched(price)",
        "DELETE FROM $ WHERE touched(price) = ''",
        """MERGE INTO $ t USING (SELECT 'p003' k) s ON t.row = s.k AND touched(t.price) = ''
        WHEN MATCHED THEN UPDATE SET note = 'x'""",
    ],
)
def test_a_row_that_somebody_changes_while_the_statement_runs_fails_it(
    spark: SparkSession, sql: Sql, repo: Repository, statement: str
) -> None:
    """The change comes between Spark's reading and its writing, from a function of the query.

    It is to a column that the statement does not write, except by DELETE.
    """
    address = repo.address

    def touched(_: float | None) -> str:
        with percola.open(address, [shop]) as other, other.transaction() as t:
            t.set(name, "p003", "theirs")
        return ""

    spark.udf.register("touched", touched)
    with pytest.raises(PySparkException) as caught:
        sql(statement)
    assert "products['p003'].name was changed at " in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert rows(repo)["p003"] == ("theirs", 3.0)
    with repo.snapshot() as after:
        assert [after.get(note, row) for row in rows(repo)] == [None] * 10
    assert_sound(repo)


def test_a_cell_that_a_family_gains_while_the_statement_runs_stays(
    spark: SparkSession, sql: Sql, repo: Repository
) -> None:
    """There is no cell yet that the statement could lock."""
    address = repo.address

    def touched(_: float | None) -> str:
        with percola.open(address, [shop]) as other, other.transaction() as t:
            t.set(labels["new"], "p003", "theirs")
        return ""

    spark.udf.register("touched", touched)
    sql("DELETE FROM $ WHERE touched(price) = ''")
    assert rows(repo) == {"p003": (None, None)}
    assert repo.snapshot().get(labels["new"], "p003") == "theirs"
    assert_sound(repo)


def test_rows_of_a_type_are_named_by_their_value(spark: SparkSession, tmp_path: Path) -> None:
    address = str(tmp_path / "days")

    def fill_day(repository: Repository, one: date) -> None:
        repository.run(lambda t: t.set(turnover, one, 1))

    with percola.open(address, [days]) as repository:
        fill_day(repository, date(2010, 10, 4))
        fill_day(repository, date(2010, 10, 5))
    catalog = new_catalog(spark, address)

    def touched(_: int | None) -> int:
        with percola.open(address, [days]) as other, other.transaction() as t:
            t.set(turnover, date(2010, 10, 5), 7)
        return 2

    spark.udf.register("touched_day", touched, "bigint")
    for statement, sentence in (
        ("row = DATE '2010-10-05' WHERE row = DATE '2010-10-04'", "The row 2010-10-05 of 'days' "),
        ("turnover = touched_day(turnover)", "days[2010-10-05].turnover was changed at "),
    ):
        with pytest.raises(PySparkException) as caught:
            spark.sql(f"UPDATE {catalog}.days SET {statement}")
        assert sentence in str(caught.value)


# --- Who is killed ----------------------------------------------------------------------

MERGE = (
    "MERGE INTO $ t USING incoming s ON t.row = s.k WHEN MATCHED AND s.id % 3 = 0 THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET price = t.price + 1 "
    "WHEN NOT MATCHED THEN INSERT (row, price) VALUES (s.k, -1)"
)
MERGED = {
    f"p{n:03}": (None, -1.0) if n >= 300 else (f"name {n}", n + (n >= 200))
    for n in range(400)
    if n % 3 or n < 200 or n >= 300
}


def merge_and_kill(
    spark: SparkSession, address: str, folder: Path, victims: Callable[[], list[int]], wait: Wait
) -> None:
    """Run the MERGE while a lock stops it in the middle; kill the victims, and let it go on."""
    catalog = new_catalog(spark, address)
    reached, go = folder / "reached", folder / "go"

    def gate(number: int) -> int:
        reached.touch()
        wait_in_child(go.exists)
        return number

    spark.udf.register("gate", gate, "bigint")
    spark.range(200, 400).selectExpr(
        "gate(id) AS id", "format_string('p%03d', id) AS k"
    ).createOrReplaceTempView("incoming")
    with percola.open(address, [shop, JOBS]) as repo:
        fill(repo, 300)
        before = committed(repo)
        merging = in_thread(lambda: spark.sql(MERGE.replace("$", f"{catalog}.products")))
        wait(lambda: merging.done() or reached.exists(), seconds=90, what="Spark's tasks")
        # Begun after the statement's snapshot, so that its reads do not wait for this lock.
        with blocking(repo, "p250") as job:
            go.touch()

            def locked() -> bool:
                return merging.done() or len(locks(repo)) > 20

            wait(locked, seconds=90, what="locks of the MERGE")
            assert not merging.done(), str(merging.exception())
            assert kill_all(victims())
            assert committed(repo) == before, "something was visible before the commit"
            assert job.abort()
        merging.result(180)
        assert rows(repo) == MERGED
        assert_sound(repo)


def committed(repo: Repository) -> dict[str, int]:
    """The newest commit_ts of each cell, whatever is locked: a reader would wait for the locks."""
    return {
        str(cell): max(ts for ts, raw in records if decode_write(raw).op is not Op.ROLLBACK)
        for cell, records in scan_writes(repo.context.store, "products", limit=10_000)[0]
    }


def locks(repo: Repository) -> list[object]:
    return list(walk_kind(repo.context.store, Kind.LOCK, "products"))


def test_a_merge_whose_python_workers_are_killed_is_there_once(
    spark: SparkSession, repo: Repository, tmp_path: Path, wait_until: Wait
) -> None:
    merge_and_kill(spark, repo.address, tmp_path, lambda: python_workers(spark), wait_until)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Spark hands a writer its first rows before it has the last ones."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name, "10000") or ""
    spark.conf.set(name, "10")
    yield
    spark.conf.set(name, before)


def test_a_task_whose_rows_another_attempt_has_written_does_not_wait_with_each_of_them(
    spark: SparkSession, small_batches: None, sql: Sql, repo: Repository
) -> None:
    """As when a process is lost between the end of its work and its report: Spark runs it again."""
    fill(repo, 3000)
    address, before = repo.address, repo.snapshot().start_ts
    first = [True]

    def written(_: float | None) -> str:
        # The statement's name is its timestamp, which is one of a few.
        if first.pop():
            with percola.open(address, [shop, JOBS]) as other:
                for run in range(before, other.context.oracle.read_timestamp() + 1):
                    attempt = JointTransaction(other, *job_of(run)).attempt(0, 10**9)
                    assert attempt is not None
                    row = f"by {run}".encode()
                    attempt.write([RowWrites("products", row, {name.key: b"x"})])
                    attempt.finish()
        first.append(False)
        return "x"

    spark.udf.register("written", written)
    in_thread(lambda: sql("UPDATE $ SET note = repeat(written(price), 20000)")).result(60)
    with percola.open(address, [shop, JOBS]) as other:
        for run in range(before, before + 100):
            JointTransaction(other, *job_of(run)).abort()
    assert len([row for row in rows(repo) if row.startswith("by ")]) == 1
    assert len(rows(repo)) == 3001
    assert_sound(repo)


def job_of(run: int) -> tuple[str, int, list[str]]:
    """The arguments of `JointTransaction` for the run of a statement."""
    return f"write/{run:020}", run, ["products"]


# --- What ends a statement that waits for a lock ----------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_task_that_waits_for_a_lock_ends_with_its_statement(
    spark: SparkSession,
    small_batches: None,
    repo: Repository,
    tmp_path: Path,
    wait_until: Wait,
    how: str,
) -> None:
    """The lock is one of a job that goes on; the task would wait for it for a minute."""
    reached, go, late, fail = (tmp_path / one for one in ("reached", "go", "late", "fail"))

    def gate(row: str) -> str:
        reached.touch()
        wait_in_child(go.exists)
        if row == "p250":
            late.touch()
            wait_in_child(fail.exists)
            raise ValueError("no such note")
        return "x" * 100_000

    def running() -> int:
        infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        return sum(one.numRunningTasks() for one in infos)

    spark.udf.register("gate", gate)
    catalog = new_catalog(spark, repo.address)
    update = f"UPDATE {catalog}.products SET note = gate(row)"
    with percola.open(repo.address, [shop, JOBS]) as other:
        fill(other, 300)
        updating = in_thread(lambda: spark.sql(update))
        wait_until(lambda: updating.done() or reached.exists(), seconds=60, what="the tasks")
        with blocking(other, "p001") as job:
            go.touch()
            wait_until(lambda: updating.done() or late.exists(), seconds=60, what="row 250")
            # The writer has locked all other rows of its first chunk, of 8 MB.
            wait_until(lambda: updating.done() or len(locks(repo)) > 80, seconds=60, what="locks")
            assert not updating.done()
            if how == "cancelled":
                spark.sparkContext.cancelAllJobs()
            else:
                fail.touch()
            wait_until(lambda: not running(), seconds=10, what="the end of the task")
            assert not updating.done() or locks(repo), "nobody holds the lock any more"
        assert job.abort()
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        updating.result(60)
    assert ("no such note" if how == "failed" else "cancelled") in str(caught.value)
    assert {one[1] for one in rows(repo).values()} == {float(n) for n in range(300)}
    assert_sound(repo)

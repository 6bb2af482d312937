"""§2.4 Percola's tables in Spark SQL, through the catalog: real queries in a real session."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from catalogs import new_catalog
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from stores import in_thread, put

import percola
from benchmarks import spark_write
from percola import ConflictingOptionsError, Repository, Table
from percola.gc.time_log import TimeLog, read_log
from percola.spark import catalog_jar, catalog_settings, configure

shop = Table("products")
name = shop.column("name", str)
price = shop.column("price", float)
note = shop.column("note", str)
labels = shop.family("labels", str)

sales = Table("sales", feed=True)
amount = sales.column("amount", int)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", schema=[shop, sales]) as repository:
        with repository.transaction() as t:
            t.set(name, "p1", "Anvil")
            t.set(price, "p1", 10.5)
            t.set(labels["colour"], "p1", "black")
            t.set(name, "p2", "Bell")
            t.set(note, "p3", "neither name nor price")
            t.set(amount, "s1", 7)
        yield repository


@pytest.fixture
def catalog(spark: SparkSession, repo: Repository) -> Iterator[str]:
    catalog = new_catalog(spark, repo.address)
    yield catalog
    spark.sql("USE spark_catalog.default")


Query = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def query(spark: SparkSession, catalog: str) -> Query:
    def run(text: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in spark.sql(text.replace("$", catalog)).collect()]

    return run


# --- What there is ----------------------------------------------------------------------------


def test_tables_and_their_columns_are_listed(query: Query) -> None:
    assert query("SHOW TABLES IN $") == [("", "products", False), ("", "sales", False)]
    assert query("SHOW NAMESPACES IN $") == [("default",)]
    assert [row[:2] for row in query("DESCRIBE $.products")] == [
        ("row", "string"),
        ("name", "string"),
        ("price", "double"),
        ("note", "string"),
        ("labels", "map<string,string>"),
    ]


def test_a_namespace_is_another_repository(
    spark: SparkSession, query: Query, catalog: str, tmp_path: Path
) -> None:
    with percola.open(tmp_path / "archive", schema=[sales]) as archive, archive.transaction() as t:
        t.set(amount, "old", 1)
    other = f"{catalog}_two"
    settings = catalog_settings({other: str(tmp_path / "archive")})
    for key, value in settings.items():
        if key != "spark.jars":
            spark.conf.set(key, value)
    spark.conf.set(f"spark.sql.catalog.{other}.path.archive", str(tmp_path / "archive"))
    assert query(f"SELECT row FROM {other}.archive.sales") == [("old",)]
    assert query(f"SELECT row FROM {other}.sales UNION ALL SELECT row FROM $.sales") == [
        ("old",),
        ("s1",),
    ]


# --- Reading ----------------------------------------------------------------------------------


def test_a_table_is_selected_with_nulls_where_a_row_has_no_cell(query: Query) -> None:
    assert query("SELECT * FROM $.products ORDER BY row") == [
        ("p1", "Anvil", 10.5, None, {"colour": "black"}),
        ("p2", "Bell", None, None, None),
        ("p3", None, None, "neither name nor price", None),
    ]


@pytest.mark.parametrize("table", ["products", "sales"])
def test_reading_fewer_columns_loses_no_rows(query: Query, repo: Repository, table: str) -> None:
    put(repo, amount, "s2", 1)
    rows = {"products": 3, "sales": 2}[table]
    assert query(f"SELECT count(*) FROM $.{table}") == [(rows,)]
    assert len(query(f"SELECT row FROM $.{table}")) == rows
    if table == "products":
        assert query("SELECT count(*), count(price) FROM $.products") == [(3, 1)]
        assert sorted(query("SELECT price FROM $.products"), key=str) == [(10.5,), (None,), (None,)]


def test_only_the_columns_that_a_query_needs_are_read(spark: SparkSession, catalog: str) -> None:
    frame = spark.sql(f"SELECT price FROM {catalog}.products WHERE row = 'p1'")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "columns=row,price" in plan
    assert "pushed=EqualTo(row,p1)" in plan
    assert frame.collect() == [(10.5,)]


@pytest.mark.parametrize("key", ["page-url", "page.url", "page `url`"])
def test_the_rows_key_may_have_a_name_that_sql_quotes(
    spark: SparkSession, query: Query, catalog: str, repo: Repository, key: str
) -> None:
    spark.conf.set(f"spark.sql.catalog.{catalog}.option.rowColumn", key)
    column = f"`{key.replace('`', '``')}`"
    assert query(f"SELECT name FROM $.products WHERE {column} = 'p2'") == [("Bell",)]
    query(f"UPDATE $.products SET name = 'Gong' WHERE {column} = 'p2'")
    query(f"DELETE FROM $.products WHERE {column} > 'p2'")
    assert query(f"SELECT {column}, name FROM $.products ORDER BY 1") == [
        ("p1", "Anvil"),
        ("p2", "Gong"),
    ]


def test_filters_that_are_handed_down_keep_the_same_rows(query: Query) -> None:
    assert query("SELECT row FROM $.products WHERE price > 10") == [("p1",)]
    assert query("SELECT row FROM $.products WHERE price IS NULL ORDER BY row") == [
        ("p2",),
        ("p3",),
    ]
    assert query("SELECT name FROM $.products WHERE row LIKE 'p2%'") == [("Bell",)]
    assert query("SELECT row FROM $.products WHERE note IS NOT NULL AND price IS NULL") == [("p3",)]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("name = 'Anvil' OR price IS NULL", ["p1", "p2", "p3"]),
        ("(name = 'Bell' OR price > 10) AND row > 'p1'", ["p2"]),
        ("upper(name) = 'BELL'", ["p2"]),
    ],
)
def test_filters_that_only_spark_can_apply_need_no_setting(
    spark: SparkSession, query: Query, where: str, rows: list[str]
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "false")  # As in a session that configures the catalog alone.
    try:
        found = query(f"SELECT row FROM $.products WHERE {where} ORDER BY row")
    finally:
        spark.conf.set(setting, before or "false")
    assert found == [(row,) for row in rows]


def test_all_references_of_a_query_read_at_one_timestamp(query: Query, repo: Repository) -> None:
    done = threading.Event()
    commits = itertools.count(100)

    def commit() -> None:
        while not done.is_set():
            number = next(commits)
            with repo.transaction() as t:
                t.set(amount, "s1", number)
                t.set(price, "p1", float(number))

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        found = [
            query(
                "SELECT a.amount, b.amount, p.price FROM $.sales a"
                " JOIN (SELECT * FROM $.sales) b USING (row) JOIN $.products p ON p.row = 'p1'"
            )
            for _ in range(4)
        ]
    finally:
        done.set()
        thread.join()
    for [(one, other, third)] in found:
        assert one == other == third
    assert len({one for [(one, _, _)] in found}) == 4, "something was committed between the queries"


def test_a_cached_frame_leaves_the_timestamp_of_other_queries_alone(
    spark: SparkSession, query: Query, repo: Repository, catalog: str
) -> None:
    """Nor does one that was cached make a query read its tables at two timestamps."""
    frame = spark.table(f"{catalog}.sales").cache()
    [before] = frame.where("row = 's1'").select("amount").collect()
    put(repo, amount, "s1", 100)
    put(repo, price, "p1", 100.0)
    both = "SELECT s.amount, p.price FROM $.sales s JOIN $.products p ON s.row='s1' AND p.row='p1'"
    assert query(both) == [(100, 100.0)]
    assert frame.where("row = 's1'").select("amount").collect() == [before]
    frame.unpersist()


def test_frames_have_a_timestamp_each_and_views_that_of_the_query(
    spark: SparkSession, repo: Repository, catalog: str
) -> None:
    sales = spark.table(f"{catalog}.sales").where("row = 's1'")
    sales.createOrReplaceTempView("view_of_sales")
    put(repo, amount, "s1", 100)
    put(repo, price, "p1", 100.0)
    products = spark.table(f"{catalog}.products").where("row = 'p1'")
    products.createOrReplaceTempView("view_of_products")
    [joined] = sales.crossJoin(products.drop("row")).collect()
    assert (joined.amount, joined.price) == (7, 100.0)
    put(repo, price, "p1", 200.0)
    [seen] = spark.sql(
        "SELECT amount, price FROM view_of_sales CROSS JOIN view_of_products"
    ).collect()
    assert seen == (100, 200.0)
    for view in ("view_of_sales", "view_of_products"):
        spark.catalog.dropTempView(view)


def test_a_reader_of_a_catalogs_table_cannot_choose_the_timestamp_by_locks(
    spark: SparkSession, catalog: str
) -> None:
    avoiding = spark.read.option("onLock", "avoid")
    with pytest.raises(PySparkException, match="the one that their catalog chooses: leave it out"):
        avoiding.table(f"{catalog}.sales").count()


def test_a_reader_of_a_catalogs_table_is_not_given_the_cells_of_a_family(
    spark: SparkSession, catalog: str
) -> None:
    of_family = spark.read.option("family", "labels")
    with pytest.raises(PySparkException, match="load the family by format"):
        of_family.table(f"{catalog}.products").count()


def test_a_version_is_a_timestamp_of_the_past(query: Query, repo: Repository) -> None:
    with repo.snapshot() as before:
        ts = before.start_ts
    put(repo, amount, "s1", 9)
    assert query(f"SELECT amount FROM $.sales VERSION AS OF {ts}") == [(7,)]
    assert query(
        f"SELECT o.amount, n.amount FROM $.sales VERSION AS OF {ts} o JOIN $.sales n USING (row)"
    ) == [(7, 9)]


def test_a_time_is_one_of_the_past_by_the_log_of_times(
    spark: SparkSession, query: Query, repo: Repository, catalog: str
) -> None:
    times = TimeLog(repo.context.store, repo.context.clock, None)
    times.newest_older(repo.context.oracle.read_timestamp())
    [entry] = read_log(repo.context.store)
    when = datetime.fromtimestamp(entry.wall / 1000, UTC)
    put(repo, amount, "s1", 9)
    stamp = f"TIMESTAMP '{when:%Y-%m-%d %H:%M:%S.%f}Z'"
    assert query(f"SELECT amount FROM $.sales TIMESTAMP AS OF {stamp}") == [(7,)]
    assert query(
        f"SELECT o.amount, n.amount FROM $.sales TIMESTAMP AS OF {stamp} o "
        "JOIN $.sales n USING (row)"
    ) == [(7, 9)]
    table = f"{catalog}.sales"
    [row] = spark.read.option("timestampAsOf", when.isoformat()).table(table).collect()
    assert row.amount == 7
    frame = spark.read.format("percola").option("table", "sales")
    [row] = frame.option("timestampAsOf", when.isoformat()).load(repo.address).collect()
    assert row.amount == 7
    with pytest.raises(PySparkException, match="The log of times begins at"):
        query("SELECT * FROM $.sales TIMESTAMP AS OF '2020-01-01'")
    with pytest.raises(PySparkException, match=r"There is no snapshot at .* yet: it is"):
        query("SELECT * FROM $.sales TIMESTAMP AS OF '2200-01-01'")


# --- Writing ----------------------------------------------------------------------------------


def test_rows_are_inserted_by_sql_and_by_a_frame(
    spark: SparkSession, query: Query, catalog: str, repo: Repository
) -> None:
    query("INSERT INTO $.sales VALUES ('s2', 20), ('s3', 30)")
    query("INSERT INTO $.sales (row, amount) SELECT concat(row, '-copy'), amount FROM $.sales")
    spark.range(1).select(col("id").cast("string").alias("row"), col("id").alias("amount")).writeTo(
        f"{catalog}.sales"
    ).append()
    with repo.snapshot() as now:
        assert {row.key: row[amount] for row in now.scan(sales)} == {
            "0": 0,
            "s1": 7,
            "s1-copy": 7,
            "s2": 20,
            "s2-copy": 20,
            "s3": 30,
            "s3-copy": 30,
        }


def test_a_table_is_followed_as_a_stream_into_another(
    spark: SparkSession, query: Query, catalog: str, repo: Repository, tmp_path: Path
) -> None:
    put(repo, amount, "s9", 90)
    stream = (
        spark.readStream.option("startingTimestamp", "earliest")
        .table(f"{catalog}.sales")
        .selectExpr("row", "cast(amount AS double) AS price")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .toTable(f"{catalog}.products")
    )
    assert stream.awaitTermination(120)
    assert query("SELECT row, price FROM $.products WHERE row = 's9'") == [("s9", 90.0)]


def test_what_an_aggregate_of_a_stream_updates_is_written_over(
    spark: SparkSession, query: Query, catalog: str, repo: Repository, tmp_path: Path
) -> None:
    sums = (
        spark.readStream.option("startingTimestamp", "earliest")
        .table(f"{catalog}.sales")
        .selectExpr("'sum of ' || left(row, 1) AS row", "amount")
        .groupBy("row")
        .agg({"amount": "sum"})
        .selectExpr("row", "cast(`sum(amount)` AS double) AS price")
    )
    shuffled = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # Each has a store of the state.
    try:
        for add, total in ((5, 5.0), (6, 11.0)):
            put(repo, amount, f"u{add}", add)
            written = sums.writeStream.outputMode("update").trigger(availableNow=True)
            written = written.option("checkpointLocation", str(tmp_path / "checkpoint"))
            assert written.toTable(f"{catalog}.products").awaitTermination(120)
            found = query("SELECT price FROM $.products WHERE row = 'sum of u'")
            assert found == [(total,)]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(shuffled))


# --- Mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("SELECT * FROM $.nothing", "cannot be found"),
        ("SELECT * FROM $.sales VERSION AS OF 99999999", "no snapshot at 99999999 yet"),
        ("SELECT * FROM $.sales TIMESTAMP AS OF '2026-01-01'", "has no log of times yet"),
        ("CREATE TABLE $.x (a INT)", "are declared in Python"),
        ("DROP TABLE $.sales", "are declared in Python"),
        ("TRUNCATE TABLE $.sales PARTITION (row = 's1')", "does not support partition management"),
        ("CREATE NAMESPACE $.more", "are repositories"),
        ("INSERT INTO $.sales SELECT row, name FROM $.products", "amount"),
    ],
)
def test_a_mistake_is_one_sentence(query: Query, text: str, sentence: str) -> None:
    with pytest.raises(PySparkException, match=sentence) as raised:
        query(text)
    assert "Traceback" not in str(raised.value)


@pytest.mark.parametrize("wrong", [{"pth": "./x"}, {}])
def test_a_catalog_with_wrong_settings_names_the_right_ones(
    spark: SparkSession, catalog: str, wrong: dict[str, str]
) -> None:
    catalog = f"wrong_{'_'.join(wrong)}".replace(".", "_")
    spark.conf.set(f"spark.sql.catalog.{catalog}", "io.percola.spark.PercolaCatalog")
    for key, value in wrong.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}.{key}", value)
    with pytest.raises((AnalysisException, PySparkException), match="path"):
        spark.sql(f"SELECT * FROM {catalog}.sales").collect()


def test_a_builder_keeps_other_jars(catalog: str, tmp_path: Path) -> None:
    builder = SparkSession.Builder().config("spark.jars", "/other.jar")
    assert configure(builder, catalogs={"shop": str(tmp_path)}) is builder
    assert builder._options["spark.jars"] == f"/other.jar,{catalog_jar()}"
    assert builder._options["spark.sql.catalog.shop.path"] == str(tmp_path)


def test_a_session_takes_the_jar_from_whatever_folder_it_is_in(
    spark: SparkSession,
    catalog: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = spark._jsparkSession.sharedState().jarClassLoader()
    # Every later task of this session fetches the jars: they have to outlive the test.
    jars = tmp_path_factory.mktemp("jars")
    for folder in ("größe-1", "a b", "Bob's", "100%"):
        (jars / folder).mkdir()
        jar = shutil.copy(catalog_jar(), jars / folder / f"{len(folder)}.jar")
        with monkeypatch.context() as patched:
            patched.setattr("percola.spark.catalog._JAR", Path(jar))
            configure(spark.newSession(), catalogs={"elsewhere": str(jars)})
        added = loader.getURLs()[-1]
        assert added.openStream().read() == ord("P"), folder  # As in PK.
        if folder != "größe-1":
            # The JVM's own folder: it may outlive this process, and serves the jar until it ends.
            assert added.getPath().startswith(str(spark.sparkContext._temp_dir))


@pytest.fixture
def configure_a_builder(
    catalog: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], object]:
    """Configures a builder, with a catalog whose jar has this name."""

    def configured(name: str) -> None:
        # Every later task of the session fetches the jar: it has to outlive the test.
        jar = shutil.copy(catalog_jar(), tmp_path_factory.mktemp("jars") / name)
        monkeypatch.setattr("percola.spark.catalog._JAR", Path(jar))
        configure(SparkSession.Builder(), catalogs={"unused": str(tmp_path_factory.getbasetemp())})

    return configured


def test_a_builder_that_will_take_the_session_that_is_there_gives_it_the_jar(
    spark: SparkSession, configure_a_builder: Callable[[str], object]
) -> None:
    configure_a_builder("of-a-builder.jar")
    added = spark._jsparkSession.sharedState().jarClassLoader().getURLs()
    assert any(one.getPath().endswith("of-a-builder.jar") for one in added)


def test_a_builder_gives_the_jar_to_a_context_that_has_no_session_yet(
    spark: SparkSession,
    configure_a_builder: Callable[[str], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one of `SparkContext(…)`. Its driver is given the jar as by `spark-submit`."""
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    configure_a_builder("of-a-context.jar")
    assert "of-a-context.jar" in str(spark.sparkContext._jsc.sc().listJars())


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Another repository, with the same table, which is empty."""
    with percola.open(tmp_path / "other", schema=[sales]) as repo:
        return repo.address


def test_a_session_keeps_a_catalog_and_refuses_its_name_for_another_repository(
    spark: SparkSession, catalog: str, repo: Repository, other: str
) -> None:
    session = spark.newSession()
    for _ in range(2):
        configure(session, catalogs={"kept": repo.address})
        assert session.sql("SELECT row FROM kept.sales").collect() == [("s1",)]
    assert spark.sql(f"SELECT row FROM {catalog}.sales").count() == 1  # The active session again.
    with pytest.raises(ConflictingOptionsError, match=r"has a catalog 'kept' of .*: use another"):
        configure(session, catalogs={"kept": other})

    def configure_builder() -> None:
        configure(SparkSession.Builder(), catalogs={catalog: other})

    with pytest.raises(ConflictingOptionsError, match=f"has a catalog {catalog!r} of "):
        configure_builder()
    # A thread without an active session, and one where it is another: the builder takes the first.
    with pytest.raises(ConflictingOptionsError, match=f"has a catalog {catalog!r} of "):
        in_thread(configure_builder).result()
    assert session.sql("SELECT row FROM kept.sales").count() == 1
    with pytest.raises(ConflictingOptionsError, match=f"has a catalog {catalog!r} of "):
        configure_builder()


def test_a_new_session_takes_another_repository_for_a_catalog_that_spark_started_with(
    spark: SparkSession, catalog: str, repo: Repository, other: str
) -> None:
    session = spark.newSession()
    for key, value in catalog_settings({"kept": repo.address}).items():
        if key != "spark.jars":
            session.conf.set(key, value)
    configure(session, catalogs={"kept": other})
    assert session.sql("SELECT row FROM kept.sales").collect() == []
    with pytest.raises(ConflictingOptionsError, match=r"has a catalog 'kept' of .*other already"):
        configure(session, catalogs={"kept": repo.address})


@pytest.mark.parametrize("wrong", ["percola", "my-shop", ""])
def test_a_name_that_no_catalog_can_have_is_refused(catalog: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="catalog"):
        catalog_settings({wrong: "./shop"})


@pytest.mark.long
def test_the_benchmark_of_writes_finds_rows_that_a_statement_has_left_as_they_were(
    spark: SparkSession, catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def configured(session: SparkSession, catalogs: dict[str, str]) -> None:
        for key, value in catalog_settings(catalogs).items():
            if key != "spark.jars":  # The session has it.
                session.conf.set(key, value)

    monkeypatch.setattr(spark_write, "configure", configured)
    update = f"{spark_write.STATEMENTS['UPDATE']} WHERE size > 0"
    monkeypatch.setitem(spark_write.STATEMENTS, "UPDATE", update)
    with pytest.raises(percola.PercolaError, match=r"15 rows .* come to 110, .* to 109\."):
        spark_write._statements(spark, tmp_path, 10, 1, "relaxed")

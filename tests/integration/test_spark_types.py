"""§2.4 A shop's tables with decimals, dates and times, in real Spark: its answers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from catalogs import new_catalog
from effort import mostly_long
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import percola
from percola import (
    DATE,
    INT16,
    INT64,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Repository,
    Table,
    array_of,
    decimal_of,
    map_of,
    struct_of,
)
from percola.spark import configure

products = Table("products", rows=INT64, feed=True)
name = products.column("name", str)
price = products.column("price", decimal_of(12, 2))
made = products.column("made", DATE)
seen = products.column("seen", TIMESTAMP)
due = products.column("due", TIMESTAMP_NTZ)
stock = products.column("stock", INT16)
tags = products.column("tags", array_of(str))
prices = products.column("prices", map_of(DATE, decimal_of(12, 2)))
maker = products.column("maker", struct_of(name=str, since=DATE))

days = Table("days", rows=DATE)
turnover = days.column("turnover", decimal_of(18, 2))

amounts = Table("amounts", rows=decimal_of(6, 2))
count = amounts.column("count", INT64)

FIRST = date(2009, 12, 25)
MOMENT = datetime(2010, 10, 4, 12, 30, 0, 123456, tzinfo=UTC)
COLUMNS = (
    "row bigint, name string, price decimal(12,2), made date, seen timestamp, due timestamp_ntz, "
    "stock smallint, tags array<string>, prices map<date,decimal(12,2)>, "
    "maker struct<name:string,since:date>"
)


def product(number: int) -> tuple[object, ...]:
    """A product; some have no price, no tags, or came before 1970."""
    day = FIRST + timedelta(days=number % 40) - timedelta(days=20_000 * (number % 7 == 0))
    cost = None if number % 11 == 0 else Decimal(number * 37 - 400) / 100
    return (
        number - 50,
        f"product {number}",
        cost,
        day,
        MOMENT + timedelta(seconds=number),
        MOMENT.replace(tzinfo=None) - timedelta(hours=number),
        number % 9 - 4,
        None if number % 5 == 0 else [f"t{number % 3}", None],
        {day: cost},
        {"name": f"maker {number % 4}", "since": FIRST},
    )


PRODUCTS = [product(number) for number in range(200)]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    where = tmp_path_factory.mktemp("shop") / "repo"
    with percola.open(where, schema=[products, days, amounts]) as repository:
        yield repository


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> DataFrame:
    """What Spark itself holds: the products that are written."""
    return spark.createDataFrame(PRODUCTS, COLUMNS)


@pytest.fixture(scope="module")
def written(repo: Repository, expected: DataFrame) -> Repository:
    """The repository with the products, as Spark has written them."""
    write(repo, products, expected)
    return repo


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark hands filters to Python sources."""
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    configure(spark)
    yield
    spark.conf.set(setting, str(before))


def write(repo: Repository, table: Table[object] | Table[int], frame: DataFrame) -> None:
    writer = frame.write.format("percola").mode("append").option("table", table.name)
    writer.save(repo.address)


def read(spark: SparkSession, repo: Repository, table: str, **options: str) -> DataFrame:
    return spark.read.format("percola").options(table=table, **options).load(repo.address)


# --- Written and read -------------------------------------------------------------------------


def test_what_spark_wrote_has_the_values_of_python(written: Repository) -> None:
    with written.snapshot() as snapshot:
        found = list(snapshot.scan(products))
        assert [row.key for row in found] == [row[0] for row in PRODUCTS]
        for row, wanted in zip(found, PRODUCTS, strict=True):
            columns = (name, price, made, seen, due, stock, tags, prices, maker)
            assert [row.get(one) for one in columns] == list(wanted[1:])


def test_what_spark_reads_is_what_it_wrote(
    spark: SparkSession, written: Repository, expected: DataFrame
) -> None:
    frame = read(spark, written, "products")
    assert frame.schema.simpleString() == expected.schema.simpleString()
    assert sorted(frame.collect()) == sorted(expected.collect())


QUERIES = (
    "SELECT made, sum(price), avg(price), max(seen), min(due) FROM {} GROUP BY made ORDER BY made",
    "SELECT maker.name, sum(price * stock) FROM {} GROUP BY 1 ORDER BY 1",
    "SELECT count(*), sum(price) FROM {} WHERE price > 12.345 AND made >= DATE'2010-01-05'",
    "SELECT row FROM {} WHERE price = 1.07 OR price IS NULL ORDER BY row",
    "SELECT row, prices[made] FROM {} WHERE made < DATE'1970-01-01' ORDER BY row",
    "SELECT row FROM {} WHERE seen <= TIMESTAMP'2010-10-04 12:31:00.123456Z' ORDER BY row",
    "SELECT row FROM {} WHERE due > TIMESTAMP_NTZ'2010-10-03 00:00:00' ORDER BY row",
    "SELECT row FROM {} WHERE row > -7 AND row <= 11 AND stock < 2 ORDER BY row",
    "SELECT row FROM {} WHERE row IN (-50, 0, 3, 9000) ORDER BY row",
    "SELECT tag, count(*) FROM (SELECT explode(tags) AS tag FROM {}) GROUP BY tag ORDER BY tag",
)


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("pushed", mostly_long(["true", "false"]))
def test_queries_have_the_answers_of_spark_itself(
    spark: SparkSession, written: Repository, expected: DataFrame, pushed: str
) -> None:
    expected.createOrReplaceTempView("theirs")
    read(spark, written, "products", pushFilters=pushed).createOrReplaceTempView("ours")
    for query in QUERIES:
        if pushed == "true" and (" WHERE " not in query or " OR " in query):
            continue  # Spark refuses a reader that supports filters and gets none.
        theirs = spark.sql(query.format("theirs")).collect()
        assert spark.sql(query.format("ours")).collect() == theirs, query
        assert theirs, query


@pytest.mark.usefixtures("pushdown")
def test_ranges_of_ordered_rows_are_pushed_down_and_exact(
    spark: SparkSession, repo: Repository
) -> None:
    every = [FIRST - timedelta(days=15_000) + timedelta(days=1000 * at) for at in range(30)]
    with repo.transaction() as t:
        for at, day in enumerate(every):
            t.set(turnover, day, Decimal(at))
        for at in range(-50, 50):
            t.set(count, Decimal(at) / 4, at)
    frame = read(spark, repo, "days", pushFilters="true")
    for text, wanted in (
        ("row >= '1970-01-01' AND row < '2000-01-01'", lambda d: date(1970, 1, 1) <= d < Y2K),
        (f"row = DATE'{every[3]}'", lambda d: d == every[3]),
        ("row > DATE'9999-12-30'", lambda d: False),
    ):
        found = frame.where(text)
        assert sorted(row.row for row in found.collect()) == [d for d in every if wanted(d)]
    values = read(spark, repo, "amounts", pushFilters="true")
    for text in ("row < -0.25", "row BETWEEN -1.5 AND 0.5", "row > 0.249", "row > 0.2500001"):
        low = [Decimal(at) / 4 for at in range(-50, 50)]
        theirs = spark.createDataFrame([(one,) for one in low], "row decimal(6,2)").where(text)
        assert sorted(values.where(text).select("row").collect()) == sorted(theirs.collect())
    bounded = read(spark, repo, "amounts", startRow="-0.5", endRow="0.75")
    assert [float(row.row) for row in bounded.orderBy("row").collect()] == [
        -0.5, -0.25, 0.0, 0.25, 0.5,
    ]  # fmt: skip


Y2K = date(2000, 1, 1)


def test_narrower_types_are_written_and_wider_ones_refused_in_a_sentence(
    spark: SparkSession, repo: Repository
) -> None:
    narrow = spark.createDataFrame([(7, 3)], "row smallint, count int")
    write(repo, amounts, narrow.selectExpr("CAST(row AS tinyint) AS row", "count"))
    with repo.snapshot() as snapshot:
        assert snapshot.get(count, Decimal(7)) == 3
    wide = spark.createDataFrame([(7, 70_000)], "row bigint, stock int")
    with pytest.raises(PySparkException) as caught:
        write(repo, products, wide)
    sentence = (
        "The column products.stock holds int16, which is smallint in Spark; it cannot be int: "
        "cast it to smallint."
    )
    assert sentence in str(caught.value)
    wider = spark.read.format("percola").option("table", "products")
    frame = wider.schema("row decimal(20,0), stock double").load(repo.address)
    assert frame.schema.simpleString() == "struct<row:decimal(20,0),stock:double>"
    with pytest.raises(PySparkException, match=r"it cannot be decimal\(11,2\)"):
        wider.schema("row bigint, price decimal(11,2)").load(repo.address).collect()


# --- The catalog and streams ------------------------------------------------------------------


def test_the_catalog_describes_writes_and_reads_the_types(
    spark: SparkSession, written: Repository, expected: DataFrame
) -> None:
    catalog = new_catalog(spark, written.address)
    described = spark.sql(f"DESCRIBE {catalog}.products").collect()
    assert {row[0]: row[1] for row in described} == {
        field.name: field.dataType.simpleString() for field in expected.schema
    }
    expected.createOrReplaceTempView("theirs")
    for query in QUERIES:
        if " OR " in query:
            continue
        ours = spark.sql(query.format(f"{catalog}.products")).collect()
        assert ours == spark.sql(query.format("theirs")).collect(), query
    spark.sql(f"INSERT INTO {catalog}.days VALUES (DATE'2024-02-29', 12.5), (DATE'1582-10-15', 1)")
    with written.snapshot() as snapshot:
        assert str(snapshot.get(turnover, date(2024, 2, 29))) == "12.50"
        assert snapshot.get(turnover, date(1582, 10, 15)) == 1


@pytest.mark.parametrize(
    "where",
    [
        "seen < TIMESTAMP'9999-12-31 23:59:59 America/New_York'",
        "seen <=> TIMESTAMP'+10000-01-01 00:00:00Z'",
        "seen >= TIMESTAMP'0000-12-31 23:59:59Z' AND row < -40",
        "due < TIMESTAMP_NTZ'+10000-01-01 00:00:00' AND stock = 2",
        "made > DATE'0000-12-31'",
        "made IN (DATE'+10000-01-01', DATE'2009-12-26')",
        "NOT made = DATE'-0044-03-15'",
    ],
)
@pytest.mark.parametrize("java8", ["false", "true"])
def test_filters_may_name_times_that_python_has_not(
    spark: SparkSession, written: Repository, expected: DataFrame, where: str, java8: str
) -> None:
    catalog = new_catalog(spark, written.address)
    expected.createOrReplaceTempView("theirs")
    spark.conf.set("spark.sql.datetime.java8API.enabled", java8)
    try:
        query = f"SELECT row FROM {{}} WHERE {where} ORDER BY row"
        ours = spark.sql(query.format(f"{catalog}.products")).collect()
    finally:
        spark.conf.unset("spark.sql.datetime.java8API.enabled")
    assert ours == spark.sql(query.format("theirs")).collect()


def test_a_filter_with_a_time_that_python_has_not_leaves_others_to_the_source(
    spark: SparkSession, written: Repository
) -> None:
    catalog = new_catalog(spark, written.address)
    frame = spark.sql(
        f"SELECT name FROM {catalog}.products WHERE row = 7 AND made > DATE'0000-12-31'"
    )
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "pushed=EqualTo(row,7)" in plan
    assert frame.collect() == [("product 57",)]


def test_a_stream_has_the_types_of_the_table(
    spark: SparkSession, written: Repository, expected: DataFrame, tmp_path: Path
) -> None:
    source = spark.readStream.format("percola").option("table", "products")
    frame = source.option("feedColumns", "true").load(written.address)
    out = str(tmp_path / "out")
    stream = frame.writeStream.format("parquet").option("checkpointLocation", f"{out}-checkpoint")
    query = stream.trigger(availableNow=True).start(out)
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    found = spark.read.parquet(out).select(*expected.columns)
    assert found.schema.simpleString() == expected.schema.simpleString()
    assert sorted(found.collect()) == sorted(expected.collect())

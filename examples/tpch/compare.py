"""Compare the answers that recipes have kept with Spark's, which reads the base tables."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

import percola
import percola.spark
from load import KEYS, TABLES, columns_of
from percola import Repository
from queries import ANSWERS, SCHEMA

SQL = {
    1: """
        SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
               sum(l_extendedprice * (1 - l_discount)),
               sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
               avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
        FROM lineitem
        WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAYS
        GROUP BY l_returnflag, l_linestatus
        ORDER BY l_returnflag, l_linestatus
    """,
    3: """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate,
               o_shippriority
        FROM customer, orders, lineitem
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
          AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate
        LIMIT 10
    """,
    5: """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM customer, orders, lineitem, supplier, nation, region
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
          AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey
          AND n_regionkey = r_regionkey AND r_name = 'ASIA'
          AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
        GROUP BY n_name
        ORDER BY revenue DESC
    """,
    6: """
        SELECT sum(l_extendedprice * l_discount)
        FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
          AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
    """,
    10: """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal,
               n_name, c_address, c_phone, c_comment
        FROM customer, orders, lineitem, nation
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
          AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01'
          AND l_returnflag = 'R' AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC
        LIMIT 20
    """,
}


def compare(spark: SparkSession, repo: Repository) -> list[str]:
    """One line for each query; it ends with "equal" if all rows are, in order."""
    at = repo.snapshot()
    for table in TABLES:
        name = table.name
        reader = spark.read.format("percola").option("table", name)
        frame = reader.option("snapshot", str(at.start_ts)).load(repo.address)
        key = "substring(row, 1, 10)" if name in ("orders", "lineitem") else "row"
        frame = frame.selectExpr(f"cast({key} AS long) AS {KEYS[name][0]}", *columns_of(table))
        frame.createOrReplaceTempView(name)
    lines = []
    for number, kept in ANSWERS.items():
        ours = kept(at)
        theirs: list[tuple[Any, ...]] = [tuple(row) for row in spark.sql(SQL[number]).collect()]
        found = "equal" if ours == theirs else f"{ours}, but Spark has {theirs}"
        lines.append(f"Q{number}: {len(theirs)} rows, {found}")
    return lines


if __name__ == "__main__":
    builder = percola.spark.configure(SparkSession.builder.master("local[2]").appName("tpch"))
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with percola.open("tpch", SCHEMA) as repo:
        print("\n".join(compare(spark, repo)))
    spark.stop()

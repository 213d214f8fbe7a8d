"""Our tokens of Spark SQL against Spark: it finds the same parameters, or refuses the statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sagas.sql_text.parsed import parse_sql

pytest.importorskip("pyspark")
pytestmark = pytest.mark.slow

STATEMENTS = [
    ("select :x::int as a", ["1"]),
    ("select cast(named_struct('a', 1) as struct<a:int>).a as a, :x as x", ["1", "1"]),
    ("select /* :no /* nested */ :no */ :x as x", ["1"]),
    ("select 'it''s :no' as a, :x as x", ["it's :no", "1"]),
    (r"select 'it\'s :no' as a, :x as x", ["it's :no", "1"]),
    (r'select "say \":no\"" as a, :x as x', ['say ":no"', "1"]),
    ("select \"a\"\"b:no\" as a, :x as x", ['a"b:no', "1"]),
    (r"select r'back\' as a, :x as x", ["back\\", "1"]),
    ('select R"a:no" as a, :x as x', ["a:no", "1"]),
    ("select `n:no`, :x as x from (select 1 as `n:no`) as t", ["1", "1"]),
    ("select 1 as a -- :no \\\n :no\n, :x as x", ["1", "1"]),
    ("select /*+ BROADCAST(t) */ :x as x from (select 1) as t", ["1"]),
    ("select map('a:no', 1)['a:no'] as a, :x as x", ["1", "1"]),
    ("select 'a' 'b:no' as a, :x as x; ", ["ab:no", "1"]),
    ("select 7 % 4 as a, '%' as b", ["3", "%"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def test_spark_reads_the_parameters_that_we_read(spark: Any) -> None:
    for statement, expected in STATEMENTS:
        names = parse_sql(statement, "spark").parameters
        (row,) = spark.sql(statement, args=dict.fromkeys(names, "1")).collect()
        assert [str(value) for value in row] == expected, statement

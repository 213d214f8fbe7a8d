"""Counts from Parquet files are the counts that Spark makes of their rows."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.manifest import StagedFile
from saga_spark.row_fingerprint import fingerprint_aggregates, read_fingerprint, row_words
from saga_spark.staging import parquet_metrics
from saga_spark.staging.parquet_metrics import can_count, count_files, hash_strings
from saga_spark.storage import list_staged_files

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1500

COLUMNS = {
    "byte": "cast(id % 100 as byte)",
    "short": "cast(id as short)",
    "close": "cast(1000 + id % 50 as int)",
    "far": "cast(id * 1000003 % 2000000011 as int)",
    "huge": "if(id % 2 = 0, 9223372036854775807 - id, cast('-9223372036854775808' as bigint) + id)",
    "single": "if(id % 5 = 0, float('NaN'), float(id / 7))",
    "twice": "case id % 4 when 0 then -0D when 1 then double('-Infinity') when 2 then double('NaN') else id / 3D end",
    "yes": "id % 3 = 0",
    "day": "date_add(date'1969-06-01', cast(id as int))",
    "moment": "timestamp_micros(id * 1000000007 - 500000000000)",
    "local": "cast(timestamp_micros(id * 1000000007) as timestamp_ntz)",
    "money": "cast(id * 1.25 - 2000 as decimal(12,2))",
    "whole": "cast(id - 1500 as decimal(20,0))",
    "total": "cast(id * 3.125 - 2000 as decimal(22,3))",
    "word": "elt(cast(1 + id % 3 as int), 'left', '', 'grün')",
    "text": "substr(repeat(concat(cast(id as string), 'ä'), 30), 1, cast(id % 101 as int))",
    "bytes": "cast(concat('b', cast(id as string)) as binary)",
}
"""Under each name one column of numbers, dates or texts; every seventh value of its nullable twin is null."""


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("files") / "all")
    columns = [f"{value} as {name}" for name, value in COLUMNS.items()]
    columns += [
        f"if(id % 7 = {at % 7}, null, {value}) as `{name} or.null`" for at, (name, value) in enumerate(COLUMNS.items())
    ]
    columns.append("cast(null as string) as nothing")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as a runner has it
    frame = spark.range(ROWS).selectExpr(*columns)
    frame.write.option("parquet.dictionary.page.size", "20000").parquet(folder)
    return folder


def test_file_metrics_equal_spark_aggregates(spark: SparkSession, files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.read.parquet(files)
    assert can_count(frame.schema)
    row = frame.agg(*fingerprint_aggregates(row_words(frame.schema))).first()
    assert row is not None
    monkeypatch.setattr(parquet_metrics, "BATCH_ROWS", 700)  # several batches, and more than one dictionary
    counted = count_files(list_staged_files(f"file://{files}"), frame.schema)
    assert counted is not None
    assert counted.fingerprint == read_fingerprint(row.asDict())
    assert counted.fingerprint.rows == ROWS
    names = [name for name in frame.columns if name in counted.sums]
    summed = frame.selectExpr(*(f"sum(cast(`{name}` as decimal(38,3)))" for name in names)).first()
    assert summed is not None
    points = [getattr(frame.schema[name].dataType, "scale", 0) for name in names]
    assert [Decimal(counted.sums[name]) / 10**point for name, point in zip(names, points, strict=True)] == list(summed)
    assert "huge" in names


def test_each_column_is_counted_alone(spark: SparkSession, files: str, tmp_path: Path) -> None:
    """A difference in one column cannot hide in the other ones."""
    pairs = {name: [f"{name} or.null", name] for name in COLUMNS}
    frame = spark.read.parquet(files)
    sums = [
        aggregate
        for name, pair in pairs.items()
        for aggregate in fingerprint_aggregates(row_words(frame.schema, pair), name)
    ]
    row = frame.agg(*sums).first()
    assert row is not None
    table = pq.read_table(files)
    for name, pair in pairs.items():
        file = tmp_path / f"{name}.parquet"
        pq.write_table(table.select(pair), file, use_dictionary=False, row_group_size=900)
        schema = frame.select(*(f"`{column}`" for column in pair)).schema
        counted = count_files([StagedFile(file.as_uri(), 0, 0)], schema)
        assert counted is not None
        assert counted.fingerprint == read_fingerprint(row.asDict(), name), name


def test_unsupported_types_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    for other in (
        "array(1)",
        "struct(1)",
        "map(1, 2)",
        "cast(1 as decimal(28,7))",
        "interval 1 day",
        "'a' collate UTF8_LCASE",
    ):
        assert not can_count(spark.sql(f"select {other} as v").schema), other
    schema = spark.sql("select cast(1 as decimal(28,6)) as v").schema
    for values, kind in (
        (["1.5", "1000000000000"], pa.decimal128(28, 6)),  # too large for a bigint
        (["1.5", "2.5"], pa.decimal128(20, 6)),  # not the type in the schema
    ):
        table = pa.table({"v": pa.array(values).cast(kind)})
        pq.write_table(table, tmp_path / "one.parquet")
        assert count_files(list_staged_files(f"file://{tmp_path}"), schema) is None
    pq.write_table(pa.table({"w": pa.array([1])}), tmp_path / "one.parquet")
    assert count_files(list_staged_files(f"file://{tmp_path}"), schema) is None


def test_xxhash64_matches_published_values() -> None:
    """Values of the reference implementation, with the seed 0."""
    texts = [b"", b"a", b"abc", b"message digest", b"abcdefghijklmnopqrstuvwxyz", b"1234567890" * 8]
    wanted = [
        0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B, 0x44BC2CF5AD770999, 0x066ED728FCEEB3BE, 0xCFE1F278FA89835C,
        0xE04A477F19EE145D,
    ]  # fmt: skip
    offsets = np.cumsum([0, *map(len, texts)])
    assert hash_strings(offsets, np.frombuffer(b"".join(texts), np.uint8), 0).tolist() == wanted

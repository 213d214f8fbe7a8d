"""The comparison of `saga reconcile` in DuckDB gives what that of the step `reconcile` gives in Spark, on random sides
with values of many types.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from saga_spark.reconcile.comparison import compare_tables
from saga_spark.reconcile.comparison_database import ComparisonDatabase, open_comparison
from saga_spark.reconcile.exact_numbers import exact_number
from saga_spark.reconcile.key_comparison import BUCKETS, find_differing_keys
from saga_spark.reconcile.reconcile_spec import ComparisonSpec

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
KEY = ("name", "number")
NAMES = ("a", "A", "a ", "ß", "SS", "é", "e\u0301", "☃", "'", '"', "\\", "a\nb", "", None)
EXACT = ("0", "1", "1.000000001", "1.000000000001", "-1", "2.5", "2.51", "9" * 26)
VALUES: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "exact": (pa.decimal128(38, 12), (None, *map(Decimal, EXACT))),
    "double": (pa.float64(), (None, 0.0, -0.0, 0.1, float("nan"), float("inf"), float("-inf"))),
    "moment": (pa.timestamp("us", "UTC"), (None, MOMENT, MOMENT + timedelta(microseconds=1))),
    "text": (pa.string(), NAMES),
    "flag": (pa.bool_(), (None, True, False)),
}
SCHEMA = pa.schema(
    [("name", pa.string()), ("number", pa.int32()), *((name, kind) for name, (kind, _) in VALUES.items())]
)


def write_sides(folder: Path, chance: random.Random, keys: int) -> None:
    """Sides that share most rows; keys are missing, doubled and null, and values are changed to others."""
    sides: dict[str, list[list[Any]]] = {"left": [], "right": []}
    for _ in range(keys):
        key = [chance.choice(NAMES), chance.choice((None, *range(keys)))]
        row = [*key, *(chance.choice(values) for _, values in VALUES.values())]
        other = list(row)
        if chance.random() < 0.3:
            at = chance.randrange(len(VALUES))
            other[2 + at] = chance.choice(list(VALUES.values())[at][1])
        for side, line in (("left", row), ("right", other)):
            sides[side] += [line] * chance.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2))
    for side, rows in sides.items():
        chance.shuffle(rows)
        columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(SCHEMA)]
        pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"{side}.parquet")


def open_sides(database: ComparisonDatabase, folder: Path) -> None:
    for side in ("left", "right"):
        file = f"read_parquet('{folder / side}.parquet')"
        database.view(f"{side}_side", f"SELECT * REPLACE ({exact_number('exact::VARCHAR')} AS exact) FROM {file}")


def differing_in_duckdb(folder: Path, values: tuple[str, ...], tolerance: Decimal | None) -> dict[Any, tuple[Any, ...]]:
    with open_comparison(folder, None, 0.0, lambda connection: None) as database:
        open_sides(database, folder)
        if not find_differing_keys(database, "left_side", "right_side", KEY, values, tolerance):
            return {}
        amounts = "left_exact, right_exact" if "exact" in values else "NULL, NULL"
        rows = database.run(f"SELECT name, number, kind, left_rows, right_rows, {amounts} FROM differing")
    numbers = {row[:2]: [None if text is None else Decimal(text) for text in row[5:]] for row in rows}
    return {row[:2]: (*row[2:5], *(numbers[row[:2]] if row[2] != "duplicate" else ())) for row in rows}


def differing_in_spark(
    spark: SparkSession, folder: Path, values: tuple[str, ...], tolerance: Decimal | None
) -> dict[Any, tuple[Any, ...]]:
    left, right = (spark.read.parquet(str(folder / f"{side}.parquet")) for side in ("left", "right"))
    report = compare_tables(left, right, ComparisonSpec(KEY, values, tolerance, samples=100_000))
    rows: dict[Any, tuple[Any, ...]] = {}
    for sample in report["samples"]:
        shown = tuple((sample[side] or {}).get("exact") for side in ("left", "right"))
        details = shown if sample["kind"] != "duplicate" else ()
        rows[(sample["key"]["name"], sample["key"]["number"])] = (sample["kind"], *sample["rows"], *details)
    return rows


def check(spark: SparkSession, folder: Path, seed: int, keys: int, tolerance: Decimal | None) -> None:
    write_sides(folder, random.Random(seed), keys)
    values = tuple(VALUES) if tolerance is None else ("exact",)
    ours, theirs = differing_in_duckdb(folder, values, tolerance), differing_in_spark(spark, folder, values, tolerance)
    assert ours == theirs
    assert {row[0] for row in ours.values()} == {"missing_left", "missing_right", "differing", "duplicate"}


@pytest.mark.slow
def test_duckdb_and_spark_find_the_same_differences(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, 1, 300, None)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [None, Decimal("0.000000001"), Decimal("0.0000000019"), Decimal("1e20")])
@pytest.mark.parametrize("seed", range(2, 7))
def test_duckdb_and_spark_find_the_same_differences_in_many_sides(
    spark: SparkSession, tmp_path: Path, seed: int, tolerance: Decimal | None
) -> None:
    check(spark, tmp_path, seed, 20_000, tolerance)


@pytest.mark.parametrize("spoiled", [0, 1, 5, 5000], ids=["none", "one", "few", "most"])
def test_every_differing_key_is_found_however_many_there_are(tmp_path: Path, spoiled: int) -> None:
    with open_comparison(tmp_path, None, 0.0, lambda connection: None) as database:
        rows = f"SELECT 'saga-' || range AS name, 1.5::DECIMAL(38, 9) AS exact FROM range({6 * BUCKETS})"
        database.view("left_side", rows)
        database.view("right_side", f"SELECT name, CASE WHEN rowid < {spoiled} THEN 2 ELSE exact END AS exact"
                   f" FROM (SELECT *, row_number() OVER () - 1 AS rowid FROM ({rows}))")  # fmt: skip
        assert find_differing_keys(database, "left_side", "right_side", ("name",), ("exact",)) is (spoiled > 0)
        if spoiled:
            kinds = database.run(
                "SELECT kind, count(*), min(left_exact), max(right_exact) FROM differing GROUP BY kind"
            )
            assert kinds == [("differing", spoiled, Decimal("1.5"), Decimal(2))]

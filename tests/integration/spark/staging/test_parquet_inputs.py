"""Parquet files of other programs as one input: what a real Spark reads, and what is refused with file and column."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pandas.core.arrays.arrow.extension_types import ArrowPeriodType as PeriodType

from saga_spark.inputs.frozen_inputs import freeze_inputs, open_frozen_input
from saga_spark.inputs.parquet_input import freeze_files
from saga_spark.job_errors import UnreadableInput
from saga_spark.settings import SparkSettings
from tests.helpers.small_spark import task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NS = 1_000_000_007


def freeze(spark: SparkSession, root: Path, path: str = "in/*.parquet", **values: Any) -> dict[str, Any]:
    context = task_context(spark, SparkSettings(root=root, stage=(root / "stage").as_uri()))
    request = {"inputs": {"rows": {"kind": "parquet", "values": {"parquet": path, **values}}},
               "folder": (root / "stage" / "my inputs").as_uri(), "known": {}}  # fmt: skip
    return freeze_inputs(context, request)["inputs"]["rows"]


def read(
    spark: SparkSession, root: Path, path: str = "in/*.parquet", **values: Any
) -> tuple[dict[str, str], list[Any]]:
    frame = open_frozen_input(spark, freeze(spark, root, path, **values))
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    return types, sorted((row.asDict(recursive=True) for row in frame.collect()), key=str)


def write(root: Path, name: str, **columns: Any) -> Path:
    path = root / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def test_the_columns_of_all_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "2026-01.parquet", id=pa.array([1], pa.int32()), amount=[1.5])
    write(tmp_path, "2026-02.parquet", discount=["half"], AMOUNT=[2.5], id=pa.array([2**40], pa.int64()))
    types, rows = read(spark, tmp_path)
    assert types == {"id": "bigint", "amount": "double", "discount": "string"}
    assert rows == [
        {"id": 1, "amount": 1.5, "discount": None},
        {"id": 2**40, "amount": 2.5, "discount": "half"},
    ]
    assert not (tmp_path / "stage").exists(), "no file was copied"


@pytest.mark.parametrize(
    ("file", "column", "problem"),
    [
        ("day=2026-01-01/a.parquet", "day", "has a column day, and its folder day=2026-01-01 names that column too"),
        ("Day=2026-01-01/a.parquet", "dAY", "has a column dAY, and its folder Day=2026-01-01 names that column too"),
        ("day=__HIVE_DEFAULT_PARTITION__/a.parquet", "day", "names that column too; remove the column from the file"),
        ("day=1/DAY=2/a.parquet", "id", "lies in the folders day=1 and DAY=2, which name the same column"),
    ],
)
def test_a_column_of_file_and_folder_is_refused(file: str, column: str, problem: str, tmp_path: Path) -> None:
    """Spark would replace the file's values with the folder's, or read one of the folders."""
    uri = write(tmp_path, file, **{column: ["2026-01-01"]}).as_uri()
    with pytest.raises(UnreadableInput, match=problem) as refused:
        freeze_files("rows", [uri], (tmp_path / "in").as_uri(), (tmp_path / "stage").as_uri())
    assert file in str(refused.value)


def test_nested_columns_are_merged_and_empty_files_decide_nothing(spark: SparkSession, tmp_path: Path) -> None:
    small, large = (
        pa.struct([("n", kind), *more]) for kind, more in ((pa.int16(), []), (pa.int64(), [("s", pa.string())]))
    )
    write(tmp_path, "a.parquet", at=pa.array([{"n": 1}], small), list=pa.array([[{"n": 1}]], pa.list_(small)))
    write(
        tmp_path,
        "b.parquet",
        at=pa.array([{"n": 2**40, "s": "x"}], large),
        list=pa.array([[{"n": 2, "s": "y"}]], pa.list_(large)),
    )
    pd.DataFrame({"at": [], "late": []}).to_parquet(tmp_path / "in" / "c.parquet")
    types, rows = read(spark, tmp_path)
    assert types == {
        "at": "struct<n:bigint,s:string>",
        "list": "array<struct<n:bigint,s:string>>",
        "late": "string",
    } or (types["late"] == "double")
    assert [row["at"] for row in rows] == [{"n": 1, "s": None}, {"n": 2**40, "s": "x"}]
    assert [row["list"] for row in rows] == [[{"n": 1, "s": None}], [{"n": 2, "s": "y"}]]


def test_what_pandas_writes_is_read_exactly(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame = pd.DataFrame(
        {
            "at": pd.to_datetime(["2026-10-25 00:30:00.000001", None]),
            "zoned": pd.to_datetime(["2026-10-25 00:30Z", "2026-10-25 01:30Z"]).tz_convert("Europe/Berlin"),
            "kind": pd.Categorical(["a", "b"]),
            "nothing": [None, None],
            "time": [dt.time(10, 11, 12, 131415), None],
            "price": [Decimal("1.10"), Decimal("2.20")],
        }
    )
    frame.to_parquet(tmp_path / "in" / "a.parquet")
    for column, array in {
        "half": pa.array([1.5, None], pa.float32()).cast(pa.float16()),
        "u8": pa.array([255, None], pa.uint8()),
        "u32": pa.array([2**32 - 1, None], pa.uint32()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
        "large": pa.array(["x", None], pa.large_string()),
        "decimal": pa.array([Decimal("1.5"), None], pa.decimal256(20, 2)),
        "list": pa.array([[1_000], None], pa.list_(pa.timestamp("ns"))),
        "time_ns": pa.array([1, None], pa.time64("ns")),
    }.items():
        table = pq.read_table(tmp_path / "in" / "a.parquet")
        pq.write_table(table.append_column(column, array), tmp_path / "in" / "a.parquet")
    types, [first, second] = read(spark, tmp_path)
    assert types == {
        "at": "timestamp_ntz", "zoned": "timestamp", "kind": "string", "nothing": "string", "time": "string",
        "price": "decimal(3,2)", "half": "float", "u8": "smallint", "u32": "bigint", "u64": "decimal(20,0)",
        "large": "string", "decimal": "decimal(20,2)", "list": "array<timestamp_ntz>", "time_ns": "string",
    }  # fmt: skip
    if first["kind"] == "b":
        first, second = second, first
    zoned = first.pop("zoned"), second.pop("zoned")
    assert [value.astimezone(dt.UTC).hour for value in zoned] == [0, 1]
    assert first == {
        "at": dt.datetime(2026, 10, 25, 0, 30, 0, 1), "kind": "a", "nothing": None, "time": "10:11:12.131415",
        "price": Decimal("1.10"), "half": 1.5, "u8": 255, "u32": 2**32 - 1, "u64": Decimal(2**64 - 1), "large": "x",
        "decimal": Decimal("1.50"), "list": [dt.datetime(1970, 1, 1, 0, 0, 0, 1)], "time_ns": "00:00:00.000000001",
    }  # fmt: skip
    assert {name for name, value in second.items() if value is not None} == {"kind", "price"}


def test_columns_of_nulls_and_unsigned_numbers_take_the_type_of_the_other_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path, "a.parquet", x=pa.nulls(1), n=pa.array([255], pa.uint8()))
    write(tmp_path, "b.parquet", x=["text"], n=pa.array([2**40], pa.int64()))
    types, rows = read(spark, tmp_path)
    assert types == {"x": "string", "n": "bigint"}
    assert rows == [{"x": "text", "n": 2**40}, {"x": None, "n": 255}]


def test_folders_keep_the_text_of_their_names(spark: SparkSession, tmp_path: Path) -> None:
    for folder, stamp in (("shop=007/day=2026-01-01/n=1", 1_000), ("shop=12d/day=2026-01-02/n=2", 2_000)):
        write(tmp_path, f"{folder}/a.parquet", id=[stamp], at=pa.array([stamp], pa.timestamp("ns")))
    types, rows = read(spark, tmp_path, "in")
    assert types == {"id": "bigint", "at": "timestamp_ntz", "shop": "string", "day": "date", "n": "int"}
    assert [(row["shop"], row["day"], row["n"], row["at"].microsecond) for row in rows] == [
        ("007", dt.date(2026, 1, 1), 1, 1),
        ("12d", dt.date(2026, 1, 2), 2, 2),
    ]


NESTED = pa.struct([("a", pa.uint32()), ("b", pa.map_(pa.string(), pa.decimal128(3, 1)))])
EXACT: dict[str, tuple[pa.Array, str, list[Any]]] = {
    "fixed": (pa.array([b"abcd", None], pa.binary(4)), "binary", [b"abcd", None]),
    "decimal256": (pa.array([Decimal("9" * 36 + ".99")], pa.decimal256(38, 2)), "decimal(38,2)",
                   [Decimal("9" * 36 + ".99")]),
    "date64": (pa.array([0], pa.date64()), "date", [dt.date(1970, 1, 1)]),
    "dates": (pa.array([dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)]), "date",
              [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)]),
    "times": (pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]), "timestamp_ntz",
              [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "milliseconds": (pa.array([1500], pa.timestamp("ms")), "timestamp_ntz", [dt.datetime(1970, 1, 1, 0, 0, 1, 500000)]),
    "seconds": (pa.array([15], pa.timestamp("s")), "timestamp_ntz", [dt.datetime(1970, 1, 1, 0, 0, 15)]),
    "time32": (pa.array([1500], pa.time32("ms")), "string", ["00:00:01.500"]),
    "nested": (pa.array([[{"a": 2**32 - 1, "b": [("k", Decimal("1.1"))]}]], pa.list_(NESTED)),
               "array<struct<a:bigint,b:map<string,decimal(3,1)>>>", [[{"a": 2**32 - 1, "b": {"k": Decimal("1.1")}}]]),
    "nested time": (pa.array([{"t": 1000}], pa.struct([("t", pa.time64("us"))])), "struct<t:string>",
                    [{"t": "00:00:00.001000"}]),
    "map keys": (pa.array([[(1000, "x")]], pa.map_(pa.timestamp("ns"), pa.string())), "map<timestamp_ntz,string>",
                 [{dt.datetime(1970, 1, 1, 0, 0, 0, 1): "x"}]),
    "fixed list": (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), "array<int>", [[1, 2]]),
    "nulls in a list": (pa.array([[None]], pa.list_(pa.null())), "array<string>", [[None]]),
    "floats": (pa.array([-0.0, float("inf"), 5e-324]), "double", [-0.0, float("inf"), 5e-324]),
    "large binary": (pa.array([b"\x00\xff"], pa.large_binary()), "binary", [b"\x00\xff"]),
}  # fmt: skip


@pytest.mark.sampled(keep=5)
@pytest.mark.parametrize("case", EXACT)
def test_a_column_is_read_exactly(case: str, spark: SparkSession, tmp_path: Path) -> None:
    column, kind, values = EXACT[case]
    write(tmp_path, "a.parquet", n=pa.array(range(len(values))), c=column)
    types, rows = read(spark, tmp_path)
    assert types["c"] == kind
    assert str([row["c"] for row in sorted(rows, key=lambda row: row["n"])]) == str(values)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "types": ({"id": ["a"]}, "the column id is int64 in the file 1.parquet and string in the file 2.parquet"),
    "floats": ({"id": [1.5]}, "the column id is int64 in the file 1.parquet and double in the file 2.parquet"),
    "nanoseconds": (
        {"at": pa.array([1_000, NS], pa.timestamp("ns"))},
        r"file 2.parquet has the value 1970-01-01 00:00:01.000000007 in the column at \(timestamp\[ns\]\)",
    ),
    "duration": ({"d": pa.array([1], pa.duration("s"))}, r"file 2.parquet the column d has the type duration\[s\]"),
    "decimal": (
        {"d": pa.array([Decimal(10) ** 50], pa.decimal256(60, 2))},
        r"in the file 2.parquet the column d has the type decimal256\(60, 2\), but a decimal of Spark has 38 digits",
    ),
    "period": (
        {"p": pa.ExtensionArray.from_storage(PeriodType("M"), pa.array([672]))},
        r"file 2.parquet the column p has the type period, which Spark would read as numbers; write dates or text",
    ),
    "uuid": ({"u": pa.array([uuid.uuid4().bytes], pa.uuid())}, "2.parquet the column u has the type .*uuid"),
    "nested": (
        {"s": pa.array([{"d": 1}], pa.struct([("d", pa.duration("s"))]))},
        "in the file 2.parquet the column s.d has the type duration",
    ),
    "case": ({"a": [1], "A": [2]}, "in the file 2.parquet the columns a and A have one name to Spark"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_spark_cannot_read_is_refused_with_file_and_column(case: str, spark: SparkSession, tmp_path: Path) -> None:
    columns, message = REFUSED[case]
    write(tmp_path, "1.parquet", id=[1])
    write(tmp_path, "2.parquet", **columns)
    with pytest.raises(UnreadableInput, match=message):
        freeze(spark, tmp_path)


@pytest.mark.parametrize("content", [b"", b"PAR1 no", b"id,amount\n1,2\n"])
def test_a_damaged_file_is_named(content: bytes, spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "1.parquet", id=[1])
    (tmp_path / "in" / "2.parquet").write_bytes(content)
    with pytest.raises(
        UnreadableInput, match=r"the input rows: the file 2\.parquet is not a Parquet file, or is damaged"
    ):
        freeze(spark, tmp_path)


def test_a_file_that_is_added_later_is_not_read_by_a_retry(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "1.parquet", id=[1])
    frozen = freeze(spark, tmp_path)
    write(tmp_path, "2.parquet", id=["other"])
    assert [row.id for row in open_frozen_input(spark, frozen).collect()] == [1]

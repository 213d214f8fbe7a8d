"""Iceberg tables partitioned by every transform, written by a real Spark in several time zones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from saga_spark.job.job_spec import Output
from saga_spark.manifest import CommitTag, Manifest, Target
from saga_spark.reconcile.comparison import compare_inputs
from saga_spark.sinks.sink import Publication
from saga_spark.staging.stage_task import stage_outputs
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.small_spark import task_context
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: dict[str, tuple[IcebergType, str]] = {
    "id": (LongType(), "bigint"),
    "n": (IntegerType(), "int"),
    "day": (DateType(), "date"),
    "at": (TimestamptzType(), "timestamp"),
    "wall": (TimestampType(), "timestamp_ntz"),
    "word": (StringType(), "string"),
    "price": (DecimalType(38, 2), "decimal(38,2)"),
    "raw": (BinaryType(), "binary"),
}
TIMES = [
    datetime(2026, 11, 1, 5, 30, tzinfo=UTC),  # the repeated hour of America/New_York, twice
    datetime(2026, 11, 1, 6, 30, 0, 1, tzinfo=UTC),
    datetime(2026, 4, 4, 14, 40, tzinfo=UTC),  # the one of Pacific/Chatham, on the next day there
    datetime(2026, 2, 1, 23, 30, tzinfo=UTC),
    datetime(2025, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1960, 2, 29, 12, tzinfo=UTC),
]
WORDS = ["", "a", "abcd", "abcde", "grüße", "日本語テキスト", "x" * 300, "a/b=c%", "🙂🙂🙂🙂"]
PRICES = ["0", "-0.01", "12.34", "-12.34", "1.28", "-1.28", "9" * 36 + ".99", "-" + "8" * 36 + ".99"]


def rows(first: int = 1) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{**dict.fromkeys(COLUMNS), "id": first}]
    for number in range(18):
        at = TIMES[number % len(TIMES)]
        made.append(
            {
                "id": first + 1 + number,
                "n": [0, -1, 7, -2147483640, 2147483647][number % 5],
                "day": at.date(),
                "at": at,
                "wall": at.replace(tzinfo=None) + timedelta(minutes=number),
                "word": WORDS[number % len(WORDS)],
                "price": Decimal(PRICES[number % len(PRICES)]),
                "raw": WORDS[number % len(WORDS)].encode(),
            }
        )
    return made


@pytest.fixture
def lake(server: DatabaseServer, tmp_path: Path) -> Iterator[Lake]:
    with open_lake("sql", server, tmp_path) as lake:
        lake.catalog.create_namespace("s")
        yield lake


def create(lake: Lake, partitions: Sequence[tuple[str, str]]) -> None:
    schema = Schema(
        *(NestedField(at, name, kind, required=False) for at, (name, (kind, _)) in enumerate(COLUMNS.items(), 1))
    )
    fields = [
        PartitionField(schema.find_field(name).field_id, 1000 + at, parse_transform(transform), f"p{at}")
        for at, (name, transform) in enumerate(partitions)
    ]
    lake.catalog.create_table("s.d", schema, partition_spec=PartitionSpec(*fields))


def literal(value: Any, kind: str) -> str:
    if value is None:
        return f"cast(null as {kind})"
    match kind:
        case "timestamp":
            return f"timestamp_micros({round((value - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))})"
        case "timestamp_ntz":
            return f"timestamp_ntz'{value}'"
        case "date":
            return f"date'{value}'"
        case "binary":
            return f"X'{value.hex()}'"
        case "string":
            return f"'{value}'"
    return f"cast('{value}' as {kind})"


def write(
    lake: Lake, spark: SparkSession, wanted: Sequence[dict[str, Any]], zone: str, saga: str, **output: Any
) -> Publication:
    """Stage with Spark and publish."""
    values = ", ".join(
        f"({', '.join(literal(row[name], kind) for name, (_, kind) in COLUMNS.items())})" for row in wanted
    )
    spec = {"table": "lake.s.d", "mode": "append", **output}
    target = Target(saga, "facts", 1, "output")
    folder = f"{lake.settings.stage}/{target.attempt_path(1)}"
    request = {
        "arguments": {
            "job": {"sql": f"select * from values {values} as v({', '.join(COLUMNS)})"},
            "conf": {"spark.sql.session.timeZone": zone, "spark.sql.adaptive.enabled": True},
            "outputs": {"output": spec},
        },
        "inputs": {},
        "targets": {"output": {"folder": folder, "key": target.publish_key, "generation": 1, "epoch": 1}},
    }
    staged = stage_outputs(task_context(spark, lake.settings), request)["manifests"]["output"]
    manifest = Manifest.from_json(staged)
    publication = Publication(Output.parse("output", spec), manifest, CommitTag(target, 1, manifest.sha, "test"))
    lake.publish(publication)
    return publication


def assert_partitions_are_right(lake: Lake) -> int:
    """Each file of the table has exactly the rows of its partition, computed by pyiceberg from the values."""
    table = lake.table("s.d")
    tasks = list(table.scan().plan_files())
    for task in tasks:
        content = pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None)  # pyright: ignore[reportArgumentType]
        for at, field in enumerate(table.specs()[task.file.spec_id].fields):
            kind = table.schema().find_type(field.source_id)
            column = content.column(table.schema().find_column_name(field.source_id) or "").to_pylist()
            transform = field.transform.transform(kind)
            expected = {transform(internal(value)) for value in column}
            assert expected == {task.file.partition[at]}, field
    return len(tasks)


def internal(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


EVERY = [
    [("at", "hour"), ("n", "bucket[4]"), ("word", "truncate[3]"), ("day", "month"), ("wall", "year")],
    [
        *(("at", "day"), ("at", "bucket[3]"), ("price", "truncate[100]"), ("wall", "hour"), ("wall", "bucket[7]")),
        *(("id", "truncate[5]"), ("word", "bucket[6]"), ("word", "identity")),
    ],
]
MORE = [
    [("at", "day")],
    [("at", "month"), ("price", "bucket[4]")],
    [("at", "year"), ("day", "bucket[5]"), ("n", "truncate[10]")],
    [("at", "identity")],
    [("wall", "day")],
    [("wall", "month"), ("raw", "bucket[4]")],
    [("day", "day"), ("raw", "truncate[2]")],
    [("day", "year")],
    [("day", "identity"), ("price", "identity"), ("raw", "identity")],
]


@pytest.mark.parametrize(
    "partitions",
    [*EVERY, *(pytest.param(more, marks=pytest.mark.slow) for more in MORE)],
    ids=lambda parts: "+".join(f"{kind}({name})" for name, kind in parts),
)
def test_every_transform_in_every_zone(partitions: list[tuple[str, str]], lake: Lake, spark: SparkSession) -> None:
    create(lake, partitions)
    zones = ["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Chatham"]
    written = [write(lake, spark, rows(1 + at * 100), zone, f"s{at}") for at, zone in enumerate(zones)]
    assert assert_partitions_are_right(lake) > 2
    assert lake.rows("s.d") == [row for at in range(4) for row in rows(1 + at * 100)]
    assert len({publication.manifest.hash for publication in written}) == 4
    lake.revert(written[1])
    lake.revert(written[2])
    assert lake.rows("s.d") == [*rows(1), *rows(301)]
    assert_partitions_are_right(lake)


@pytest.mark.parametrize(
    "partitions",
    [
        pytest.param([("at", "day")], id="day", marks=pytest.mark.slow),
        pytest.param([("n", "bucket[4]"), ("word", "truncate[2]")], id="bucket+truncate", marks=pytest.mark.slow),
        pytest.param([("price", "truncate[100]"), ("wall", "month")], id="truncate+month"),
    ],
)
def test_replacing_modes_and_their_undo(partitions: list[tuple[str, str]], lake: Lake, spark: SparkSession) -> None:
    create(lake, partitions)
    before = rows(1)
    write(lake, spark, before, "Pacific/Chatham", "first")
    changed = [{**row, "id": row["id"] + 1000} for row in before[3:5]]
    overwrite = write(lake, spark, changed, "Asia/Kolkata", "second", mode="overwrite_partitions")
    table = lake.table("s.d")

    def partition(row: dict[str, Any]) -> tuple[Any, ...]:
        fields = table.spec().fields
        kinds = [table.schema().find_type(field.source_id) for field in fields]
        names = [table.schema().find_column_name(field.source_id) or "" for field in fields]
        return tuple(
            field.transform.transform(kind)(internal(row[name]))
            for field, kind, name in zip(fields, kinds, names, strict=True)
        )

    replaced = {partition(row) for row in changed}
    kept = [row for row in before if partition(row) not in replaced]
    assert 0 < len(kept) < len(before)
    assert lake.rows("s.d") == [*kept, *changed]
    lake.revert(overwrite)
    assert lake.rows("s.d") == before

    merged = [{**row, "raw": b"merged"} for row in before[5:7]]
    merge = write(lake, spark, merged, "America/New_York", "third", mode="merge", key=["id"])
    assert lake.rows("s.d") == [next((new for new in merged if new["id"] == row["id"]), row) for row in before]
    assert_partitions_are_right(lake)
    lake.revert(merge)
    assert lake.rows("s.d") == before
    assert_partitions_are_right(lake)


def test_overwriting_partitions_after_the_partitioning_has_changed(lake: Lake, spark: SparkSession) -> None:
    create(lake, [("at", "month")])
    before = rows(1)
    write(lake, spark, before, "UTC", "first")
    with lake.table("s.d").update_spec() as update:
        update.remove_field("p0")
        update.add_field("at", parse_transform("day"), "by_day")
        update.add_field("n", parse_transform("bucket[2]"), "by_n")
    changed = [{**before[1], "id": 1000}]
    write(lake, spark, changed, "Europe/Berlin", "second", mode="overwrite_partitions")
    day, bucket = before[1]["at"].date(), parse_transform("bucket[2]").transform(IntegerType())
    kept = [
        row
        for row in before
        if row["at"] is None or row["at"].date() != day or bucket(row["n"]) != bucket(before[1]["n"])
    ]
    assert lake.rows("s.d") == [*kept, *changed]
    assert len(kept) < len(before)
    assert_partitions_are_right(lake)


@pytest.mark.slow
def test_a_reconciliation_finds_the_same_rows(
    lake: Lake, spark: SparkSession, server: DatabaseServer, tmp_path: Path
) -> None:
    """Written in the zone of Chatham, compared with PostgreSQL, whose role has another zone."""
    create(lake, [("at", "hour"), ("wall", "day"), ("n", "bucket[2]")])
    write(lake, spark, rows(1), "Pacific/Chatham", "first")
    url = server.url().replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("""drop table if exists d; create table d (id bigint, n int, day date, at timestamptz,
            wall timestamp, word text, price numeric(38, 2), raw bytea)""")
        connection.execute("set timezone = 'America/New_York'")
        for row in rows(1):
            connection.execute("insert into d values (%s, %s, %s, %s, %s, %s, %s, %s)", list(row.values()))
        connection.execute("alter role current_user set timezone = 'America/New_York'")
    settings = lake.settings.model_copy(update={"connections": {"shop": url}})
    sides = {"left": {"kind": "table", "values": {"table": "lake.s.d"}},
             "right": {"kind": "connection", "values": {"connection": "shop", "table": "d"}}}  # fmt: skip
    try:
        for number, condition in enumerate(
            (None, {"at": [str(TIMES[0]), "2026-11-01T01:30:00.000001-05:00"]}, "hour(at) = 5 and day(wall) = 1")
        ):
            request = {"inputs": sides, "folder": (tmp_path / f"c{number}").as_uri(), "known": {}}
            arguments = {"left": {}, "right": {}, "key": "id", **({"filter": condition} if condition else {})}
            comparison = compare_inputs(task_context(spark, settings), {**request, "arguments": arguments})
            counts = [side["rows"] for side in (comparison["left"], comparison["right"])]
            assert (comparison["verdict"], counts) == ("equal", [[19, 19], [6, 6], [3, 3]][number])
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("alter role current_user reset all")


@pytest.mark.parametrize(
    ("partition", "row", "message"),
    [
        (
            ("n", "truncate[10]"),
            {"n": -2147483648},
            "the value -2147483648 in n, which truncate.10. takes out of the range",
        ),
        (("price", "truncate[100]"), {"price": Decimal("-" + "9" * 36 + ".99")}, "99.99 in price, which truncate"),
    ],
    ids=["int", "decimal"],
)
def test_a_truncated_value_out_of_range_is_refused(
    partition: tuple[str, str], row: dict[str, Any], message: str, lake: Lake
) -> None:
    create(lake, [partition])
    short = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    wide = lake.table("s.d").schema().as_arrow()
    schema = pa.schema([(field.name, short.get(field.type, field.type)) for field in wide])
    staged = lake.staged(pa.Table.from_pylist([{**dict.fromkeys(COLUMNS), **row}], schema=schema), "s.d")
    [problem] = lake.sink.check(staged)
    assert re.search(message, problem), problem

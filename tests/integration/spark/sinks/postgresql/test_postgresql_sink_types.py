"""Rows on the way into PostgreSQL: types, odd texts, and values that would lose something."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from psycopg.types.json import set_json_loads

from saga_spark.sinks.postgresql import tables
from saga_spark.sinks.postgresql.tables import type_problem
from sagas.errors import Rejected
from sagas.text.exact_json import decode_json
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.postgresql.warehouse import Warehouse, open_warehouse

MOMENT = datetime(2026, 3, 29, 1, 30, 0, 123456)
ZONED = MOMENT.replace(tzinfo=UTC)
LARGE = Decimal("-1234567890123456789012345678.0123456789")
PAIR = pa.struct([("a", pa.string()), ("b", pa.decimal128(20, 1))])
TEXTS = ["", " ", ",", '"', 'a,"b"\n c\r\nd', "\\.", "\\N", "NULL", "ümläut 🙂", "\t", "'; drop table x; --", None]

COLUMNS: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "tiny": (pa.int8(), "smallint", [-128, 127]),
    "small": (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    "whole": (pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    "big": (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    "money": (pa.decimal128(38, 10), "numeric", [LARGE, Decimal("0E-10")]),
    "real": (pa.float32(), "real", [0.10000000149011612, float("-inf")]),
    "double": (pa.float64(), "double precision", [0.1, 1.7976931348623157e308]),
    "truth": (pa.bool_(), "boolean", [True, False]),
    "day": (pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31)]),
    "moment": (pa.timestamp("us", "UTC"), "timestamp with time zone", [ZONED, ZONED.replace(year=1700)]),
    "local": (pa.timestamp("us"), "timestamp without time zone", [MOMENT, MOMENT.replace(year=1)]),
    "bytes": (pa.binary(), "bytea", [b"\x00\xff\\", b""]),
    "list": (pa.list_(pa.int64()), "jsonb", [[1, None, 2**60], []]),
    "nested": (PAIR, "jsonb", [{"a": 'x"', "b": Decimal("12345678901234567.5")}, {"a": None, "b": None}]),
    "json": (pa.string(), "json", ['{"a": 1}', "[]"]),
    "uuid": (pa.string(), "uuid", ["00000000-0000-0000-0000-000000000001"] * 2),
    "code": (pa.string(), "character varying(3)", ["abc", ""]),
}  # fmt: skip


@pytest.fixture
def warehouse(server: DatabaseServer, tmp_path: Path) -> Warehouse:
    return open_warehouse(server, tmp_path, "create table other (id bigint)")


def table_of(nulls: bool = True) -> pa.Table:
    arrays = {
        name: pa.array([*values, *([None] if nulls else [])], type) for name, (type, _, values) in COLUMNS.items()
    }
    return pa.table({"id": range(3 if nulls else 2), **arrays})


def read(warehouse: Warehouse, table: str) -> list[dict[str, Any]]:
    with psycopg.connect(warehouse.url) as connection:
        set_json_loads(decode_json, connection)
        connection.execute("set timezone to 'UTC'")
        cursor = connection.execute(f"select * from {table} order by id")  # pyright: ignore
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]


@pytest.mark.parametrize("existing", [True, False])
def test_every_type_arrives_exactly(warehouse: Warehouse, existing: bool) -> None:
    if existing:
        columns = ", ".join(f'"{name}" {type}' for name, (_, type, _) in COLUMNS.items())
        warehouse.run(f"create table typed (id bigint primary key, {columns})")
    rows = table_of()
    ours = warehouse.stage(warehouse.output("append", "typed"), rows, files=2)
    warehouse.publish(ours)
    expected = rows.to_pylist()
    for row in expected:
        for name, value in row.items():
            if name == "json" and existing and value is not None:
                row[name] = json.loads(value)
            if name == "uuid" and existing and value is not None:
                row[name] = UUID(value)
    typed_rows = read(warehouse, "typed")
    for row in typed_rows:
        row["real"] = pa.scalar(row["real"], pa.float32()).as_py()  # the driver reads its shortest text as a double
    assert typed_rows == expected
    warehouse.revert(ours)
    if existing:
        assert warehouse.rows("typed") == []


def test_keys_of_maps_are_the_texts_of_their_json(warehouse: Warehouse) -> None:
    keys = {
        "flag": (pa.bool_(), True, "true"),
        "raw": (pa.binary(), b"\x00a", "0061"),
        "price": (pa.decimal128(5, 2), Decimal("1.10"), "1.10"),
        "n": (pa.int64(), 2**60, str(2**60)),
        "text": (pa.string(), 'a"b', 'a"b'),
    }
    columns = {name: pa.array([[(key, 1)]], pa.map_(kind, pa.int64())) for name, (kind, key, _) in keys.items()}
    warehouse.publish(warehouse.stage(warehouse.output("append", "maps"), pa.table({"id": [1], **columns})))
    [row] = read(warehouse, "maps")
    assert {name: row[name] for name in keys} == {name: {text: 1} for name, (_, _, text) in keys.items()}


def test_strings_arrive_unchanged(warehouse: Warehouse) -> None:
    warehouse.publish(
        warehouse.stage(warehouse.output("append", "texts"), pa.table({"id": range(len(TEXTS)), "text": TEXTS}))
    )
    assert [row["text"] for row in read(warehouse, "texts")] == TEXTS


def test_a_table_of_one_column_keeps_its_nulls(warehouse: Warehouse) -> None:
    warehouse.publish(
        warehouse.stage(warehouse.output("append", "texts"), pa.table({"id": pa.array([None, "", None])}))
    )
    assert [row["id"] for row in read(warehouse, "texts")] == ["", None, None]


def test_more_rows_than_a_batch(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COPY_BATCH_ROWS", 1000)
    warehouse.publish(warehouse.stage(warehouse.output("append", "many"), pa.table({"id": range(10_500)}), files=3))
    assert warehouse.run("select count(*), sum(id), max(id) from many") == [(10_500, 10_500 * 10_499 // 2, 10_499)]


REFUSED = {
    "a NUL character": ("text", pa.array(["a\0b"]), "has a string with a NUL character"),
    "a number out of range": ("smallint", pa.array([40_000], pa.int32()), "out of range for type smallint"),
    "a text too long": ("varchar(3)", pa.array(["abcd"]), "too long for type character varying"),
    "digits before the point": ("numeric(4, 2)", pa.array([Decimal("123.45")]), "numeric field overflow"),
    "no json": ("jsonb", pa.array(["{"]), "invalid input syntax for type json"),
    "a check": ("integer check (value <> 7)", pa.array([7], pa.int32()), 'relation "typed" violates check constraint'),
    "a domain": ("positive", pa.array([-1], pa.int32()), "violates check constraint"),
    "no value": ("integer not null", pa.array([None], pa.int32()), 'in column "value" of relation "typed"'),
}  # fmt: skip


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_the_table_refuses_is_refused_before_the_commit_point(warehouse: Warehouse, case: str) -> None:
    type, values, output = REFUSED[case]
    warehouse.run(f"create domain positive as integer check (value > 0); create table typed (value {type})")
    ours = warehouse.stage(warehouse.output("append", "typed"), pa.table({"value": values}))
    assert warehouse.sink.check(ours) == []
    with pytest.raises(Rejected, match=r"does not accept the rows|NUL") as refused:
        warehouse.sink.prepare(ours)
    assert output in str(refused.value)
    assert warehouse.tables() == {"other", "typed"}


@pytest.mark.parametrize(
    ("spark", "target", "message"),
    [
        ("decimal(12,4)", "numeric(12,2)", "rounded away"),
        ("decimal(12,4)", "bigint", "rounded away"),
        ("decimal(12,4)", "double precision", "does not fit"),
        ("double", "numeric", "does not fit"),
        ("double", "real", "does not fit"),
        ("long", "double precision", "does not fit"),
        ("timestamp", "timestamp without time zone", "time zone"),
        ("timestamp_ntz", "timestamp with time zone", "time zone"),
        ("timestamp", "timestamp(3) with time zone", "microseconds"),
        ("timestamp", "date", "does not fit"),
        ("string", "integer", "does not fit"),
        ("string", "text[]", "does not fit"),
        ("integer", "text", "does not fit"),
        ("boolean", "integer", "does not fit"),
        ({"type": "array", "elementType": "long", "containsNull": True}, "bigint[]", "does not fit"),
        ("interval day to second", "interval", "does not fit"),
    ],
)
def test_lossy_type_conversions_are_refused(spark: Any, target: str, message: str) -> None:
    assert message in (type_problem(spark, target) or "")


@pytest.mark.parametrize(
    ("spark", "target"),
    [
        ("decimal(12,2)", "numeric(12,2)"),
        ("decimal(12,2)", "numeric"),
        ("decimal(20,0)", "bigint"),
        ("integer", "bigint"),
        ("long", "numeric(20,0)"),
        ("timestamp", "timestamp(6) with time zone"),
        ("timestamp_ntz", "timestamp without time zone"),
        ("string", "character varying(3)"),
        ("varchar(5)", "text"),
        ("string", "mood"),
        ({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}, "json"),
    ],
)
def test_lossless_type_conversions_are_accepted(spark: Any, target: str) -> None:
    assert type_problem(spark, target) is None

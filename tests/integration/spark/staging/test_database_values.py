"""Values of a real PostgreSQL as a job reads them: exactly, or refused with column and value."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.inputs.postgresql_input import DatabaseInput, extract_database_inputs
from saga_spark.job_errors import UnreadableInput
from tests.helpers.database_servers import DatabaseServer

USUAL, WHOLE = pa.decimal128(38, 18), pa.decimal128(38, 0)


@pytest.fixture(scope="module")
def url(postgres_server: DatabaseServer) -> str:
    url = postgres_server.url().replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            """
            create domain cents as numeric(20, 2);
            create type colour as enum ('red', 'green');
            create table wei (owner text, amount numeric);
            insert into wei values ('ada', 5000000000000000000000), ('ada', 2500000000000000000000);
            """
        )
    return url


def read(url: str, query: str, folder: Path) -> pa.Table:
    wanted = DatabaseInput("rows", {"query": query}, (folder / "rows" / "part.parquet").as_uri())
    extract_database_inputs(url, [wanted], lambda _: None, lambda _: None)
    assert [path.name for path in (folder / "rows").iterdir()] == ["part.parquet"], "no text is left behind"
    return pq.read_table(folder / "rows" / "part.parquet")


def test_a_sum_of_numeric_is_exact(url: str, tmp_path: Path) -> None:
    rows = read(url, "select owner, sum(amount) total from wei group by owner", tmp_path)
    assert rows.to_pylist() == [{"owner": "ada", "total": Decimal(7500000000000000000000)}]
    assert rows.schema.field("total").type == WHOLE


@pytest.mark.parametrize(
    ("expressions", "kind", "values"),
    [
        (["1.10::numeric", "null::numeric"], USUAL, ["1.10", None]),
        (["12345678901234567890.123456789012345678::numeric"], USUAL, ["12345678901234567890.123456789012345678"]),
        (["99999999999999999999999999999999999999::numeric"], WHOLE, ["9" * 38]),
        (["-0.00000000000000000000000000000000000001::numeric"], pa.decimal128(38, 38), ["-0." + "0" * 37 + "1"]),
        (["123456789.50::numeric(65,30)"], USUAL, ["123456789.5"]),
        (
            ["1.123456789012345678901234567890::numeric(65,30)"],
            pa.decimal128(38, 30),
            ["1.12345678901234567890123456789"],
        ),
        (["1234::numeric(3,-2)"], USUAL, ["1200"]),
        (["0.00012::numeric(2,5)"], USUAL, ["0.00012"]),
        (["1.5::cents"], pa.decimal128(20, 2), ["1.50"]),
        (["sum(n) from (values (0.1::numeric(5,2)), (-99.95)) v(n)"], USUAL, ["-99.85"]),
        (["'12345.67'::money"], USUAL, ["12345.67"]),
        (["9223372036854775807::int8 * 9"], USUAL, None),
    ],
)
def test_a_numeric_of_any_precision_is_exact(
    expressions: list[str], kind: pa.DataType, values: list[str | None] | None, url: str, tmp_path: Path
) -> None:
    query = " union all ".join(f"(select {text.replace(' from ', ' as n from ', 1)})" for text in expressions)
    if values is None:
        with pytest.raises(UnreadableInput, match="out of range"):
            read(url, f"select * from ({query}) as v(n)", tmp_path)
        return
    rows = read(url, f"select * from ({query}) as v(n)", tmp_path)
    assert rows.schema.field("n").type == kind
    assert rows.column("n").to_pylist() == [None if value is None else Decimal(value) for value in values]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("'NaN'::numeric", r"has the value NaN in the column n \(numeric\), which no decimal of Spark holds"),
        ("'Infinity'::numeric", "has the value Infinity in the column n"),
        ("'NaN'::numeric(5,2)", r"has the value NaN in the column n \(numeric\(5, ?2\)\)"),
        ("1e38::numeric", "has the value 1" + "0" * 38 + r" in the column n \(numeric\), which has 39 digits"),
        ("repeat('9', 200)::numeric", r"\(200 characters\) in the column n .*which has 200 digits"),
        ("v from (values (1e37::numeric), (0.001)) v(v)", "and no decimal of 38 digits holds both"),
        ("'infinity'::timestamptz", "has the value infinity in the column n"),
        ("'-infinity'::date", "has the value -infinity in the column n"),
        ("'12026-01-01 00:00'::timestamp", "has the value 12026-01-01 00:00:00 in the column n"),
        ("'0044-03-15 BC'::date", "has the value 0044-03-15 BC in the column n"),
        ("1/0", "division by zero"),
        ("nothing", 'column "nothing" does not exist'),
        ('1 as n, 2 as "N"', r"two columns of the same name \(n, N\)"),
    ],
)
def test_a_value_that_spark_cannot_hold_is_refused_with_its_column(
    expression: str, message: str, url: str, tmp_path: Path
) -> None:
    text = expression.replace(" from ", " as n from ", 1) if " as n" not in expression else expression
    with pytest.raises(UnreadableInput, match=message) as refused:
        read(url, f"select {text}" if " as n" in text else f"select {text} as n", tmp_path)
    assert str(refused.value).startswith("the input rows ")


@pytest.mark.parametrize("kind", ["numeric", "numeric(5,2)"])
def test_a_refused_value_is_shown_with_its_row(kind: str, url: str, tmp_path: Path) -> None:
    query = f"select 'ada' as owner, 1::{kind} as n union all select 'bob', 'NaN'::{kind}"
    with pytest.raises(
        UnreadableInput, match=r"has the value NaN in the column n .* of the row with owner = bob, which"
    ):
        read(url, query, tmp_path)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'0.1'::float8 + 0.2", 0.1 + 0.2),
        ("'NaN'::float8", "nan"),
        ("'-Infinity'::float4", float("-inf")),
        ("'24:00:00'::time", "24:00:00"),
        ("'10:11:12.123456+02'::timetz", "10:11:12.123456+02"),
        ("'1 mon 2 days 03:04:05.6'::interval", "1 mon 2 days 03:04:05.6"),
        (
            "'{\"n\": 12345678901234567890.12345678901234567890}'::jsonb",
            '{"n": 12345678901234567890.12345678901234567890}',
        ),
        ("'{\"n\": 1.10}'::json", '{"n": 1.10}'),
        ("'6f1b0f4e-9d5c-4a8e-b6a2-0a1b2c3d4e5f'::uuid", "6f1b0f4e-9d5c-4a8e-b6a2-0a1b2c3d4e5f"),
        ("array[1.10, null, 0.1::numeric]", "{1.10,NULL,0.1}"),
        ("array['2026-10-25 00:30+00'::timestamptz]", '{"2026-10-25 00:30:00+00"}'),
        ("'green'::colour", "green"),
        ("numrange(1.10, 2)", "[1.10,2)"),
        ("'\\x00ff0a'::bytea", b"\x00\xff\n"),
        ("'a'::char(3)", "a  "),
        ("E'line\\n\"quoted\", x'", 'line\n"quoted", x'),
        ("'0001-01-01'::date::text", "0001-01-01"),
    ],
)
def test_other_types_are_read_as_they_are(expression: str, value: Any, url: str, tmp_path: Path) -> None:
    # A role or a database may set what changes the text of values.
    with psycopg.connect(url, autocommit=True) as connection:
        for setting in ("extra_float_digits = -15", "timezone = 'Asia/Tokyo'", "datestyle = 'German'",
                        "intervalstyle = 'iso_8601'", "bytea_output = 'escape'"):  # fmt: skip
            connection.execute(f"alter role current_user set {setting}")  # pyright: ignore[reportArgumentType]
    try:
        [seen] = read(url, f"select {expression} as n", tmp_path).column("n").to_pylist()
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("alter role current_user reset all")
    assert (str(seen) if value == "nan" else seen) == value

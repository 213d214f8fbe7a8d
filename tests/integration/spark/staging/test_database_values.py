"""Values of a real PostgreSQL as a job reads them: exactly, or refused with column and value."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from saga_spark.inputs.postgresql_input import DatabaseInput, extract_database_inputs
from saga_spark.job_errors import UnreadableInput
from sagas.errors import InfrastructureError
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


def read(url: str, query: str, folder: Path, **more: Any) -> pa.Table:
    wanted = DatabaseInput("rows", {"query": query, **more}, (folder / "rows" / "part.parquet").as_uri())
    extract_database_inputs(url, [wanted], lambda _: None, lambda _: None, name="shop")
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


@pytest.mark.parametrize(
    ("sql", "value", "ids"),
    [
        ("n = any(:v)", [Decimal("1.10"), 2], [1, 2]),
        ("n = any(:v)", [2, None, Decimal("1.1")], [1, 2]),
        ("n = any(:v)", [Decimal("12345678901234567890.123456789012345678"), 2], [2, 3]),
        ("n = any(:v::numeric[])", [], []),
        ("n = any(:v)", [None], []),
        ("array[n] <@ :v", [[Decimal("1.10")], [2]], [1, 2]),
        ("word = any(:v)", ["a,b", None, 'it\'s "x"\\'], [1, 3]),
        ("n = any(:v)", ["1.10", 2], "`:v` of an input is a list of strings and other values; write all of them as"),
        ("n = any(:v)", [True, 2], "`:v` of an input is a list of strings and other values"),
        ("n = any(:v)", [{"a": 1}], "`:v` of an input is an object; give it a string, number or list"),
        ("word = :v", "a\x00b", r"the input rows cannot be read: .*NUL .*; correct its `params` or its `where`"),
        (
            "word = :v",
            "a\ud800b",
            r"the input rows cannot be read: .*surrogates.*; correct its `params` or its `where`",
        ),
        ("n = :v", "x", "invalid input syntax for type numeric"),
        (
            "n > nextval('numbers') and 0 < :v",
            1,
            "cannot execute nextval.. in a read-only transaction; correct its SQL",
        ),
        ("repeat(word, 1000000000) = :v", "x", "out of memory|requested length too large|invalid memory|exceed"),
    ],
)
def test_the_parameters_of_a_query(sql: str, value: Any, ids: list[int] | str, url: str, tmp_path: Path) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("""drop table if exists p; create sequence if not exists numbers;
            create table p (id int, n numeric, word text);
            insert into p values (1, 1.1, 'a,b'), (2, 2.00, null), (3, 12345678901234567890.123456789012345678, ''),
                                 (4, null, null)""")
        connection.execute("update p set word = %s where id = 3", ('it\'s "x"\\',))
    query = f"select id from p where {sql}"
    if isinstance(ids, list):
        assert sorted(read(url, query, tmp_path, params={"v": value}).column("id").to_pylist()) == ids
        return
    with pytest.raises(UnreadableInput, match=ids):
        read(url, query, tmp_path, params={"v": value})


def test_a_where_that_the_driver_cannot_send_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="the input rows cannot be read: cannot adapt type 'dict'"):
        read(url, "select 1 as n", tmp_path, where={"n": {"a": 1}})


def test_a_lost_connection_is_tried_again(url: str, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="terminating connection"):
        read(url, "select pg_terminate_backend(pg_backend_pid()) as n", tmp_path)


@pytest.mark.parametrize("kind", ["numeric", "numeric(5,2)"])
def test_a_refused_value_is_shown_with_its_row(kind: str, url: str, tmp_path: Path) -> None:
    query = f"select 'ada' as owner, 1::{kind} as n union all select 'bob', 'NaN'::{kind}"
    with pytest.raises(
        UnreadableInput, match=r"has the value NaN in the column n .* of the row with owner = bob, which"
    ):
        read(url, query, tmp_path)


@pytest.mark.sampled(keep=20)
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
        ("'0001-01-01'::date", date(1, 1, 1)),
        ("'9999-12-31'::date", date(9999, 12, 31)),
        ("'1582-10-10'::date", date(1582, 10, 10)),
        ("'0001-01-01 00:00+00'::timestamptz", datetime(1, 1, 1, tzinfo=UTC)),
        ("'9999-12-31 23:59:59.999999+00'::timestamptz", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        ("'2026-10-25 02:30+01'::timestamptz", datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
        ("'1883-11-18 12:03:57.5'::timestamp", datetime(1883, 11, 18, 12, 3, 57, 500000)),
        ("9223372036854775807", 2**63 - 1),
        ("'-32768'::int2", -32768),
        ("'-0'::float8", -0.0),
        ("5e-324::float8", 5e-324),
        ("'4294967295'::oid", "4294967295"),
        ("B'0101'", "0101"),
        ("'infinity'::interval", "infinity"),
        ("array['infinity'::timestamptz]", "{infinity}"),
        ("tstzrange('2026-10-25 02:30+02', null)", '["2026-10-25 00:30:00+00",)'),
        ("'{[1,3)}'::int4multirange", "{[1,3)}"),
        ("'a=>1'::text", "a=>1"),
        ("'10.0.0.1/8'::inet", "10.0.0.1/8"),
        ("row(1.10, 'x')", "(1.10,x)"),
        ("'(1,2.5)'::point", "(1,2.5)"),
        ("true", True),
        ("''", ""),
        ("'\\x'::bytea", b""),
        (r"'\N'", r"\N"),
        ("E'\\r\\n'", "\r\n"),
        ("'NaN'", "NaN"),
        (r"'\.'", r"\."),
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
    assert not isinstance(value, float) or str(seen) == str(value)


@pytest.mark.parametrize(
    "more",
    [
        {"query": "select id from input_hold where until <= :now", "params": {"now": "2026-05-01T12:00:00+02:00"}},
        {"table": "input_hold", "where": "until <= :now", "params": {"now": "2026-05-01T12:00:00+02:00"}},
        {"table": "input_hold", "where": {"until": ["2026-05-01T11:00:00+02:00", "2026-05-01 09:00:00"]}},
    ],
)
def test_the_offset_of_a_parameter_is_not_dropped(url: str, tmp_path: Path, more: dict[str, Any]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists input_hold (id int, until timestamp)")
        connection.execute("delete from input_hold")
        connection.execute("insert into input_hold values (1, '2026-05-01 09:00:00'), (2, '2026-05-01 11:00:00')")
    wanted = DatabaseInput("rows", more, (tmp_path / "rows" / "part.parquet").as_uri())
    with pytest.raises(
        UnreadableInput, match=r"a timestamp at its place, which holds no time zone and would drop \+02"
    ):
        extract_database_inputs(url, [wanted], lambda _: None, lambda _: None, name="shop")
    cast = {"query": "select id from input_hold where until <= :now::timestamptz"}
    rows = read(url, cast["query"], tmp_path, params={"now": "2026-05-01T12:00:00+02:00"})
    assert rows.to_pylist() == [{"id": 1}]


LONG = "0.12345678901234567890"


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"query": "select id from input_rate where rate = :v", "params": {"v": LONG}}, "double precision"),
        ({"query": "select id from input_rate where small = any(:v)", "params": {"v": "{16777217}"}}, "real"),
        ({"query": "select id from input_rate where fee <= :v", "params": {"v": "12.345"}}, "money"),
        ({"table": "input_rate", "where": "rate < :v", "params": {"v": LONG}}, "double precision"),
        ({"table": "input_rate", "where": {"small": ["0.5", "16777217"]}}, "real"),
        ({"table": "input_rate", "where": {"small": 16777217}}, "real"),
        ({"table": "input_rate", "where": "rate in (:v)", "params": {"v": Decimal(LONG)}}, "double precision"),
        ({"table": "input_rate", "where": "small = any(:v)", "params": {"v": [Decimal(16777217)]}}, "real"),
        ({"query": "select id from input_rate where span @> :v", "params": {"v": LONG}}, "input_span"),
    ],
)
def test_a_number_of_a_parameter_is_not_rounded(url: str, tmp_path: Path, more: dict[str, Any], place: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop table if exists input_rate; drop type if exists input_span")
        connection.execute("create type input_span as range (subtype = float8)")
        connection.execute(
            "create table input_rate (id int, rate float8, small real, fee money, span input_span, n numeric)"
        )
        connection.execute(f"insert into input_rate values (1, {LONG}, 16777216, 12.35, '[0,1)', {LONG})")  # pyright: ignore[reportArgumentType]
    wanted = DatabaseInput("rows", more, (tmp_path / "rows" / "part.parquet").as_uri())
    with pytest.raises(UnreadableInput, match=f"PostgreSQL takes a {place}.* at its place, which would be another"):
        extract_database_inputs(url, [wanted], lambda _: None, lambda _: None, name="shop")
    whole = "select id, 3 * abs(:v) as v from input_rate where n = :w::numeric"
    rows = read(url, whole, tmp_path, params={"v": "0.10", "w": LONG})
    assert rows.to_pylist() == [{"id": 1, "v": Decimal("0.30")}]


@pytest.mark.parametrize(
    "more",
    [
        {"table": "input_single", "where": {"small": Decimal("0.1")}},
        {"table": "input_single", "where": {"small": [None, Decimal("0.10"), 7], "rate": Decimal("0.1")}},
        {"table": "input_single", "where": {"rate": Decimal("0.1"), "n": [Decimal("0.1"), 3]}},
        {"table": "input_single", "where": "small = :v", "params": {"v": Decimal("0.1")}},
        {"table": "input_single", "where": "small in (:v, :w)", "params": {"v": Decimal("0.1"), "w": 5}},
        {
            "table": "input_single",
            "where": "small between :v and :w",
            "params": {"v": Decimal("0"), "w": Decimal("0.1")},
        },
        {"query": "select * from input_single where small = any(:v)", "params": {"v": [Decimal("0.1"), None, 5]}},
        {"query": "select * from input_single where small = :v and rate = :v", "params": {"v": Decimal("0.1")}},
    ],
)
def test_a_number_equals_the_float_that_is_written_so(url: str, tmp_path: Path, more: dict[str, Any]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists input_single (id int, small real, rate float8, n numeric)")
        connection.execute("delete from input_single")
        connection.execute("insert into input_single values (1, 0.1, 0.1, 0.1), (2, 0.25, 0.25, 0.25)")
    wanted = DatabaseInput("rows", more, (tmp_path / "rows" / "part.parquet").as_uri())
    extract_database_inputs(url, [wanted], lambda _: None, lambda _: None, name="shop")
    assert [row["id"] for row in pq.read_table(tmp_path / "rows" / "part.parquet").to_pylist()] == [1]

"""`--from`: the rows of a file as inputs, exactly, or a sentence with file, line and column."""

from __future__ import annotations

import gzip
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from saga_cli.input_files import InvalidRows, file_digest, read_rows
from saga_cli.main import _print_error
from sagas.errors import UsageError

SCHEMA = {
    "properties": {
        "sku": {"type": "string"},
        "n": {"type": "integer"},
        "price": {"$ref": "#price"},
        "ok": {"type": "boolean"},
        "o": {"properties": {"n": {"type": "integer"}}},
    },
    "$defs": {"price": {"$anchor": "price", "type": "number"}},
}


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def values(path: Path, schema: Any = SCHEMA) -> list[Any]:
    rows, mistakes = read_rows(path, schema)
    assert mistakes == []
    return [row.value for row in rows]


ROWS = [{"sku": "007", "n": 12345678901234567890, "price": Decimal("1.10")}, {"sku": "b", "price": Decimal("2E+2")}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "sku,n,price\n007,12345678901234567890,1.10\nb,,2e2\n"),
        ("a.csv", "\ufeffsku,n,price\r\n007,12345678901234567890,1.10\r\nb,,2e2"),
        ("a.csv.gz", "sku,n,price\n007,12345678901234567890,1.10\nb,,2e2\n"),
        ("a.jsonl", '{"sku": "007", "n": 12345678901234567890, "price": 1.10}\n\n{"sku": "b", "price": 2e2}'),
        ("a.jsonl.gz", '{"sku": "007", "n": 12345678901234567890, "price": 1.10}\n{"sku": "b", "price": 2e2}'),
        ("a.json", '[{"sku": "007", "n": 12345678901234567890, "price": 1.10}, {"sku": "b", "price": 2e2}]'),
        ("A.JSON.GZ", '[{"sku": "007", "n": 12345678901234567890, "price": 1.10}, {"sku": "b", "price": 2e2}]'),
    ],
)
def test_rows_are_exact(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.lower().endswith(".gz") else content.encode())
    rows = values(path)
    assert rows == ROWS
    assert str(rows[0]["price"]) == "1.10"


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    plain, packed = write(tmp_path / "a.csv", "n\n1\n"), write(tmp_path / "a.csv.gz", "n\n1\n")
    assert file_digest(plain) == file_digest(packed)


UNQUOTED = 'a quote stands in a cell without quotes; write the cell in quotes, and this quote twice: "5"" pipe"'


def test_a_quote_in_the_header_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.csv:1: column 2: a quote stands in a cell without quotes"):
        read_rows(write(tmp_path / "a.csv", 'sku,n"o\na,1'), SCHEMA)


@pytest.mark.parametrize(
    ("name", "content", "mistake"),
    [
        ("a.jsonl", "[" * 100_000 + "]" * 100_000, ":1: the row is nested too deeply"),
        ("a.jsonl", "{}\n" + "1" * 5_000, "a.jsonl:2: the number " + "1" * 40 + "… has more than 4,000 digits"),
        ("a.jsonl", '{"n": NaN}', "a.jsonl:1: NaN is not a JSON number"),
        ("a.csv", "a\n" + "b" * 131_073, "a.csv:2: a cell has more than 131,072 characters; is a quote missing?"),
        ("a.csv", "n,sku\n1,a\nx,b", "a.csv:3: column n: 'x' is not a whole number"),
        ("a.csv", 'n,ok,sku\nx,maybe, "a"', "a.csv:2: column n: 'x' is not a whole number, and column ok: 'maybe' is"
                                           ' not true or false, and column sku: a blank stands before the quote; write'
                                           ' ,"…" without it'),
        ("a.csv", "o.n\n007", "'007' is not a whole number: it has a leading zero; leave it out, or declare"
                                " the field as a string"),
        ("a.csv", "sku,n\na", ":2: 1 cell, but the header has 2; quote a cell that contains a comma or a line end"),
        ("a.csv", 'sku,n\n"a\nb",1\na,b,c', ":4: 3 cells, but the header has 2; quote a cell that contains a comma or a"
                                            " line end"),
        ("a.csv", 'sku,n\n"a"b,1', ":2: text follows a closing quote; write a quote inside a quoted cell twice"),
        ("a.csv", 'sku,n\n1,2\n"a,1\nb,2', "a.csv:3: a quoted cell is not closed"),
        ("a.csv", 'sku,n\n5" pipe,1', f"a.csv:2: column sku: {UNQUOTED}"),
        ("a.csv", 'sku,n\n"a\nb",1\n"c",1"', f"a.csv:4: column n: {UNQUOTED}"),
        ("a.csv", 'sku,n\r\nab"",1\r\n', f"a.csv:2: column sku: {UNQUOTED}"),
        ("a.csv", 'sku,n\na "b, c",1\n', f"a.csv:2: cell 1: {UNQUOTED}"),
        ("a.csv", 'n,sku\n1, "a b"', 'a.csv:2: column sku: a blank stands before the quote; write ,"…" without it'),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_a_mistake(tmp_path: Path, name: str, content: str, mistake: str) -> None:
    rows, [problem] = read_rows(write(tmp_path / name, content), SCHEMA)
    assert len(rows) <= 1
    assert problem.endswith(mistake)


@pytest.mark.parametrize(
    ("name", "content", "mistake"),
    [
        ("a.csv", "sku,n,sku\na,1,b", "a.csv:1: the columns 1 and 3 are both named sku; rename or remove one"),
        ("a.csv", "sku, n\na,1", "a.csv:1: the name of column 2, ' n', has blanks around it; remove them"),
        ("a.csv", "sku;n\na;1", "a.csv:1: the header has semicolons between the names, and CSV has commas"),
        ("a.csv", "sku\tn\na\t1", "a.csv:1: the header has tabs between the names, and CSV has commas"),
        ("a.csv", "sku,,n\na,,1", "a.csv:1: column 2 has no name; name it, or remove it from all rows"),
        ("a.csv", "a,a.b\nx,y", "a.csv:1: column a contains column a.b; keep one"),
        ("a.csv", "a.b,a\nx,y", "a.csv:1: column a contains column a.b; keep one"),
        ("a.csv", "", "a.csv has no header line with the field names"),
        ("a.csv", "sku,n\n\xe9".encode("latin-1"), "a.csv is not UTF-8 text; save it as UTF-8"),
        ("a.json", '{"sku": "a"}', "a.json is not an array of inputs"),
        ("a.json", '[{"sku": }]', "a.json:1: not JSON: a value is missing: write it, or null (column 10)"),
        (
            "a.txt",
            "",
            "--from takes a .jsonl, .json, .csv or .parquet file, or one of the first three with .gz, not a.txt",
        ),
        ("a.parquet", "x", "a.parquet cannot be read as Parquet: "),
    ],
)
def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path, name: str, content: str | bytes, mistake: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_rows(write(tmp_path / name, content), SCHEMA)
    assert mistake in raised.value.message


@pytest.mark.parametrize("data", [b"n\n1\n", gzip.compress(b"n\n1\n", mtime=0)[:-9]], ids=["plain", "cut off"])
def test_a_file_that_is_not_compressed_is_a_mistake(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="is not a complete gzip file"):
        read_rows(path, SCHEMA)


def table(tmp_path: Path, *columns: tuple[str, Any]) -> Path:
    fields = [arrow.field(name, array.type) for name, array in columns]
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.Table.from_arrays([array for _, array in columns], schema=arrow.schema(fields)), path)
    return path


NOW = datetime(2026, 2, 1, 12, 30, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (arrow.array([Decimal("1.10")], arrow.decimal128(10, 2)), "1.10"),
        (arrow.array([Decimal("9" * 70 + ".25")], arrow.decimal256(76, 2)), "9" * 70 + ".25"),
        (arrow.array([2**63 + 1], arrow.uint64()), "9223372036854775809"),
        (arrow.array([0.1], arrow.float32()), "0.1"),
        (arrow.array([0.1], arrow.float64()), "0.1"),
        (arrow.array([12.0], arrow.float64()), "12"),
        (arrow.array([2.0**60], arrow.float64()), str(2**60)),
        (arrow.array([123456792.0], arrow.float32()), "123456792"),
        (arrow.array([65504.0], arrow.float64()).cast(arrow.float16()), "65504"),
        (arrow.array([[Decimal("0.50"), None]], arrow.list_(arrow.decimal128(4, 2))), "[Decimal('0.50'), None]"),
        (arrow.array([NOW], arrow.timestamp("us", "Europe/Berlin")), "2026-02-01T12:30:00.000005Z"),
        (arrow.array([1_000_000_000_000_000_001], arrow.timestamp("ns")), "2001-09-09T01:46:40.000000001"),
        (arrow.array([-1], arrow.timestamp("ns", "UTC")), "1969-12-31T23:59:59.999999999Z"),
        (arrow.array([[{"at": NOW}]], arrow.list_(arrow.struct([("at", arrow.timestamp("ms", "UTC"))]))),
         "[{'at': '2026-02-01T12:30:00Z'}]"),
        (arrow.array([date(2026, 2, 1)], arrow.date32()), "2026-02-01"),
        (arrow.array([date(2026, 2, 1)], arrow.date64()), "2026-02-01"),
        (arrow.array([time(12, 30)], arrow.time64("us")), "12:30:00"),
        (arrow.array([timedelta(seconds=1.5)], arrow.duration("ms")), "PT1.5S"),
        (arrow.array(["a"]).dictionary_encode(), "a"),
        (arrow.array([[("k", Decimal("1.0"))]], arrow.map_(arrow.string(), arrow.decimal128(3, 1))),
         "{'k': Decimal('1.0')}"),
    ],
)  # fmt: skip
def test_a_value_of_parquet_keeps_its_digits(tmp_path: Path, array: Any, value: str) -> None:
    [row] = values(table(tmp_path, ("v", array)))
    assert str(row["v"]) == value


def test_a_decimal_is_a_string_where_the_schema_has_a_string(tmp_path: Path) -> None:
    path = table(tmp_path, ("sku", arrow.array([Decimal("1.10")], arrow.decimal128(4, 2))))
    assert values(path) == [{"sku": "1.10"}]


def test_what_json_has_no_form_for_is_refused_with_its_row_and_column(tmp_path: Path) -> None:
    path = table(tmp_path, ("price", arrow.array([1.0, float("nan"), None, float("-inf")])))
    rows, mistakes = read_rows(path, SCHEMA)
    assert [row.number for row in rows] == [1, 3]
    assert [mistake.rpartition("a.parquet ")[2] for mistake in mistakes] == [
        "row 2: column price: nan is not a JSON number; leave the cell empty",
        "row 4: column price: -inf is not a JSON number; leave the cell empty",
    ]
    with pytest.raises(UsageError, match="the column v has the type binary, and binary has no form in JSON"):
        read_rows(table(tmp_path, ("v", arrow.array([b"x"]))), SCHEMA)
    with pytest.raises(UsageError, match="has several columns named v; rename them"):
        read_rows(table(tmp_path, ("v", arrow.array([1])), ("v", arrow.array([2]))), SCHEMA)


@pytest.mark.parametrize("name", [".", "/dev/zero", "x" * 5_000])
def test_rows_come_from_files(name: str) -> None:
    with pytest.raises(UsageError, match=r"--from takes a file|there is no file") as raised:
        read_rows(Path(name), {})
    assert len(raised.value.message) < 500


def test_invalid_rows_are_reported_in_their_order_each_on_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = InvalidRows([f"my rows.jsonl:{n}: the input\nneeds `x`" for n in (30, 4, *range(40, 50))])
    assert _print_error(False, error) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        r"error: my rows.jsonl:4: the input\nneeds `x`",
        r"my rows.jsonl:30: the input\nneeds `x`",
    ]
    assert len(lines) == 12
    assert lines[-2:] == ["… and 2 more", "help: nothing was started; fix the file first"]


ORDERS = {
    "type": "object",
    "required": ["amount", "customer", "at"],
    "properties": {
        "amount": {"type": "number"},
        "customer": {"type": "string"},
        "at": {"default": "now"},
        "card": {"type": "integer", "x-sensitive": True},
    },
}


@pytest.mark.parametrize(
    ("content", "closed", "mistake"),
    [
        (
            "amuont,customer\n1,ann\n2,bob",
            False,
            ":1: the input needs amount, which no column has, and there is amuont; did you mean amount?",
        ),
        ("customer\nann\nbob", False, ":1: the input needs amount, which no column has; add it"),
        ("amount,customer,crad\n1,ann,2", True, ":1: the column crad is not a field of the input; did you mean card?"),
        ("amount,customer,x\n1,ann,2", True, ":1: the column x is not a field of the input; rename or remove it"),
        (
            "12.50,ann\n1,bob",
            False,
            ":1: this line looks like data; write a header with names of fields above it: amount, customer, at, card",
        ),
    ],
)
def test_a_header_that_no_row_can_fit_is_one_mistake(tmp_path: Path, content: str, closed: bool, mistake: str) -> None:
    path = write(tmp_path / "a.csv", content)
    with pytest.raises(UsageError) as raised:
        read_rows(path, {**ORDERS, "additionalProperties": not closed})
    assert raised.value.message == f"{path}{mistake}"


def test_a_column_that_the_schema_only_allows_is_read(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.csv", "amount,customer,more\n1,ann,2"), ORDERS) == [
        {"amount": 1, "customer": "ann", "more": "2"}
    ]


def test_the_columns_of_a_parquet_file_are_compared_once(tmp_path: Path) -> None:
    path = table(tmp_path, ("amuont", arrow.array([1, 2])), ("customer", arrow.array(["ann", "bob"])))
    with pytest.raises(UsageError) as raised:
        read_rows(path, ORDERS)
    assert raised.value.message.endswith("a.parquet: the input needs amount, which no column has, and there is amuont;"
                                        " did you mean amount?")  # fmt: skip


def test_a_sensitive_cell_is_not_quoted(tmp_path: Path) -> None:
    _, mistakes = read_rows(write(tmp_path / "a.csv", "amount,customer,card\n1,ann,4111x\nx,ann,"), ORDERS)
    assert [mistake.rpartition("a.csv:")[2] for mistake in mistakes] == [
        "2: column card: the value is not a whole number",
        "3: column amount: 'x' is not a number",
    ]

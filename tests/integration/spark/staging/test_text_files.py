"""CSV and JSON that a job reads itself: what Spark cannot parse is an error, never null in silence."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from saga_spark.job.job_execution import run_job
from saga_spark.job.job_spec import Job
from saga_spark.job_errors import UnreadableInput, to_job_error
from saga_spark.settings import SparkSettings
from sagas.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOBS = """
def rows(spark, inputs, path, format, amount="string", **options):
    schema = f"id bigint, amount {amount}, note string"
    rows = spark.read.schema(schema).options(**options).format(format).load(path).where("id > 0")
    return rows.selectExpr("id", "to_number(amount, 'S9999999999.99') as amount", "note")
"""
FAILFAST = {"mode": "FAILFAST", "header": True, "multiLine": True, "enforceSchema": False, "escape": '"'}


def run(spark: SparkSession, root: Path, path: Path, format: str, **options: Any) -> DataFrame:
    (root / "text_jobs.py").write_text(JOBS)
    arguments = {
        "job": "text_jobs:rows",
        "params": {"path": str(path), "format": format, **options},
        "outputs": {"output": {"parquet": "out"}},
    }
    settings = SparkSettings(root=root, stage=(root / "stage").as_uri(), python_path=(str(root),))
    return run_job(spark, Job.parse(arguments), {}, settings)["output"]


@pytest.mark.sampled(keep=4)
@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.csv", 'id,amount,note\n1,2.50,"x\ny"\nb,2.50,z\n', ["a.csv: ", "[null,2.50,z]", '"b"']),
        ("few.csv", "id,amount,note\n1,2.50\n", ["few.csv: ", "Malformed CSV record: 1,2.50"]),
        ("many.csv", "id,amount,note\n1,2.50,x,more\n", ["many.csv: ", "Malformed CSV record: 1,2.50,x,more"]),
        ("large.csv", "id,amount,note\n9223372036854775808,2.50,x\n", ["large.csv: ", "9223372036854775808"]),
        ("twice.csv", "id,id,note\n1,2.50,x\n", ["twice.csv: ", "CSV header does not conform to the schema"]),
        ("b.csv", "id,sum,note\n1,2.50,x\n", ["b.csv: ", "CSV header does not conform to the schema"]),
        ("c.csv", "id;amount;note\n1;2.50;x\n", ["c.csv: ", "Number of column in CSV header is not equal to"]),
        ("d.json", '{"id": 1}\n{"id": "x"}\n', ["d.json: ", "'id' and the value x"]),
        ("e.json", '{"id": 1}\n{"id":\n', ["e.json: ", "Malformed records"]),
    ],
)
def test_what_cannot_be_parsed_is_named_and_not_retried(
    name: str, content: str, parts: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    options = {**FAILFAST, "multiLine": name.endswith("csv")}
    frame = run(spark, tmp_path, tmp_path / name, name.rpartition(".")[2], **options)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's own error, translated below
        frame.collect()
    error = to_job_error(raised.value, "the job text_jobs:rows")
    assert isinstance(error, UnreadableInput)
    assert str(error).startswith("the job text_jobs:rows cannot read a file: file:///")
    assert all(part in str(error) for part in parts), str(error)


EXPECTED = [(1, Decimal("2.50"), "grün")]


@pytest.mark.parametrize(
    ("content", "options", "rows"),
    [
        ("\ufeffid,amount,note\n1,2.50,grün\n".encode(), {}, EXPECTED),
        ("id,amount,note\r\n1,+2.5,grün\r\n".encode(), {}, EXPECTED),
        ("id;amount;note\n1; 2.5;grün\n".encode("latin-1"), {"sep": ";", "encoding": "ISO-8859-1"}, EXPECTED),
        ("id,amount,note\n1,2.50,grün\n".encode("utf-16"), {"encoding": "UTF-16"}, EXPECTED),
        (b'id,amount,note\n1,-.05,"say ""x"",\r\ny"\n', {}, [(1, Decimal("-0.05"), 'say "x",\r\ny')]),
        (b"id,amount,note\n\n1,,\n\n", {}, [(1, None, None)]),
        (b"id,amount,note\n1,2.505,x\n", {}, "INVALID_FORMAT.MISMATCH_INPUT.*2.505"),
        (b'id,amount,note\n1,"2,50",x\n', {}, "INVALID_FORMAT.MISMATCH_INPUT.*2,50"),
        (b"id,amount,note\n1,12345678901.00,x\n", {}, "INVALID_FORMAT.MISMATCH_INPUT.*12345678901.00"),
    ],
    ids=["BOM", "CRLF", "latin-1", "utf-16", "quotes", "nothing", "digits", "comma", "precision"],
)
def test_csv_is_read_exactly_or_refused(
    content: bytes, options: dict[str, Any], rows: list[Any] | str, spark: SparkSession, tmp_path: Path
) -> None:
    """The file is read with the options that the how-to guide recommends."""
    (tmp_path / "a.csv").write_bytes(content)
    frame = run(spark, tmp_path, tmp_path / "a.csv", "csv", **{**FAILFAST, **options})
    if isinstance(rows, list):
        assert [tuple(row) for row in frame.collect()] == rows
        return
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's own error, translated below
        frame.collect()
    error = to_job_error(raised.value, "the job text_jobs:rows")
    assert isinstance(error, UsageError), "not retried"
    assert re.search(rows, str(error)), str(error)


@pytest.mark.parametrize(("kind", "form"), [("decimal(12,2)", "S9{10}.9{2}"), ("decimal(38,0)", "S9{38}")])
def test_a_decimal_of_csv_is_read_as_text(kind: str, form: str, spark: SparkSession, tmp_path: Path) -> None:
    """Spark rounds it, and takes 2,50 for 250."""
    (tmp_path / "a.csv").write_text("id,amount,note\n1,2.50,x\n")
    message = f"reads the column amount of CSV from file:.*a.csv as {re.escape(kind)}, .*to_number.amount, '{form}'"
    with pytest.raises(UsageError, match=message):
        run(spark, tmp_path, tmp_path / "a.csv", "csv", **FAILFAST, amount=kind)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_job_must_choose_what_happens_to_malformed_records(format: str, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"id": 1}\n' if format == "json" else "1,2.50,x\n")
    message = f"the job text_jobs:rows reads {format.upper()} from file:.* without `mode`, so Spark would read"
    with pytest.raises(UsageError, match=message):
        run(spark, tmp_path, tmp_path / "a", format)
    for mode in ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"):
        assert [row.id for row in run(spark, tmp_path, tmp_path / "a", format, mode=mode).collect()] == [1]

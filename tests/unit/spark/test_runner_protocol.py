"""The protocol of worker and runner, and the messages of failed jobs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException

from saga_spark.inputs.copied_values import CopiedColumn
from saga_spark.inputs.frozen_inputs import JobInputs
from saga_spark.inputs.postgresql_input import input_query
from saga_spark.job.job_execution import check_outputs
from saga_spark.job_errors import JobFailed, RunnerLost, last_error_line, to_disk_error, to_job_error
from saga_spark.runner.runner_process import heap_bytes
from saga_spark.runner.runner_protocol import (
    decode_message,
    encode_message,
    error_from_json,
    error_to_json,
    settings_from_json,
    settings_to_json,
)
from saga_spark.settings import SparkSettings
from saga_spark.storage import list_parquet_files, list_staged_files, spark_path, to_uri
from sagas.errors import InfrastructureError, Unavailable, Unequipped, UsageError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (JobFailed("no", {"line": 3}), JobFailed),
        (UsageError("no", help="do"), UsageError),
        (Unequipped("no", help="do"), Unequipped),
        (InfrastructureError("no"), InfrastructureError),
        (Unavailable("no"), Unavailable),
        (RunnerLost("no", memory=True), RunnerLost),
        (ZeroDivisionError("ours"), InfrastructureError),
    ],
)
def test_errors_keep_their_kind(error: Exception, kind: type[Exception]) -> None:
    received = error_from_json(decode_message(encode_message(error_to_json(error))))
    assert type(received) is kind
    assert str(error) in str(received)
    if isinstance(error, JobFailed) and isinstance(received, JobFailed):
        assert received.details == error.details
    if isinstance(error, RunnerLost) and isinstance(received, RunnerLost):
        assert received.memory == error.memory
    if isinstance(error, UsageError) and isinstance(received, UsageError):
        assert received.help == error.help


def test_settings_survive_serialization(tmp_path: Path) -> None:
    settings = SparkSettings(root=tmp_path, python_path=("a", "b"), connections={"shop": "postgresql://x"})
    assert settings_from_json(decode_message(encode_message(settings_to_json(settings)))) == settings
    assert settings_from_json(settings_to_json(settings.model_copy(update={"remote": "sc://x"}))).remote == "sc://x"


def test_memory_is_an_amount() -> None:
    assert (heap_bytes("512m"), heap_bytes("2G")) == (2**29, 2**31)
    with pytest.raises(UsageError, match="not an amount of memory"):
        heap_bytes("plenty")


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        ("Job 3 cancelled because SparkContext was shut down", Unavailable),
        ("<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE", Unavailable),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed.", Unavailable),
        ("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", InfrastructureError),
    ],
)
def test_a_lost_session_costs_no_attempt_but_lost_executors_do(printed: str, kind: type[Exception]) -> None:
    assert type(to_job_error(AnalysisException(message=printed), "the job a:b")) is kind


def test_a_job_error_mentioning_a_lost_session_is_a_failure() -> None:
    ours = ValueError("SparkContext was shut down")
    assert isinstance(to_job_error(ours, "the job a:b"), JobFailed)


def test_a_full_disk_is_named() -> None:
    error = OSError(28, "No space left on device")
    assert str(to_job_error(error, "the job a:b")) == "the job a:b could not write: the disk is full; free some space"


def test_a_full_disk_for_an_input_is_reported_and_other_errors_are_retryable() -> None:
    assert str(to_disk_error(OSError(28, "No space left on device"), "reading the inputs")) == (
        "reading the inputs: the disk is full; free some space"
    )
    assert str(to_disk_error(PermissionError(13, "Permission denied", "/data/x"), "reading the inputs")) == (
        "reading the inputs: PermissionError: [Errno 13] Permission denied: '/data/x'"
    )
    assert to_disk_error(TimeoutError(110, "Connection timed out"), "reading the inputs") is None


def test_out_of_memory_names_the_setting_to_raise() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in "
        "stage 1.0 (TID 1) (localhost executor driver): org.apache.spark.memory.SparkOutOfMemoryError: "
        "[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes of memory, got 0.\n\tat org.apache.spark.memory"
    )
    assert str(to_job_error(AnalysisException(message=text), "the job a:b")) == (
        "the job a:b ran out of memory; raise `memory` under [spark] or use more partitions"
    )
    ours = ValueError("java.lang.OutOfMemoryError is what we look for")
    assert "what we look for" in str(to_job_error(ours, "the job a:b"))


def test_the_query_plan_is_omitted() -> None:
    error = AnalysisException(message="[UNRESOLVED] no column `x`;\n'Project ['x]\n+- Range (0, 3)")
    assert str(to_job_error(error, "the job a:b")) == "the job a:b failed: [UNRESOLVED] no column `x`"


def test_a_python_worker_error_is_its_last_line() -> None:
    text = (
        'An exception was thrown:\nTraceback (most recent call last):\n  File "x.py", line 3, in f\nValueError: bad\n'
    )
    error = PythonException(message=text)
    assert str(to_job_error(error, "the job a:b")) == "the job a:b failed: ValueError: bad"


def test_a_program_error_is_its_last_output() -> None:
    output = "starting\njava.lang.IllegalStateException: no orders\n\tat Main.main(Main.java)\nshutdown hook called\n"
    assert last_error_line(output) == "java.lang.IllegalStateException: no orders"
    assert last_error_line("one\ntwo\n") == "two"
    assert last_error_line("") == "it wrote no output"


def test_invalid_job_results_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^the job returned nothing for the output output; return a Spark DataFrame$"):
        check_outputs(None, ["output"], "the job")
    with pytest.raises(UsageError, match=r"returned no output rejects; did you mean reject\?"):
        check_outputs({"facts": None, "reject": None}, ["facts", "rejects"], "the job")
    with pytest.raises(UsageError, match="returned a list; return a mapping with a DataFrame for each of a, b"):
        check_outputs([], ["a", "b"], "the job")
    with pytest.raises(UsageError, match="returned the output c, which the step does not declare"):
        check_outputs({"a": None, "c": None}, ["a"], "the job")


def test_inputs_are_a_mapping_and_attributes() -> None:
    orders = SimpleNamespace()
    inputs = JobInputs({"orders": orders})  # pyright: ignore[reportArgumentType]
    assert inputs["orders"] is inputs.orders is orders
    assert list(inputs) == ["orders"]
    with pytest.raises(AttributeError, match="the job has no input order; did you mean orders"):
        _ = inputs.order
    with pytest.raises(KeyError, match="the job has no input order"):
        _ = inputs["order"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"table": "orders"}, 'SELECT * FROM "orders"'),
        ({"table": "shop.orders", "columns": ["id", "Odd"]}, 'SELECT "id", "Odd" FROM "shop"."orders"'),
        ({"query": "select 1 as x;"}, "SELECT * FROM (\nselect 1 as x\n) AS input"),
        ({"table": "t", "where": "a > 1 -- b\n"}, 'SELECT * FROM "t" WHERE (\na > 1 -- b\n\n)'),
        (
            {
                "query": "select ':no', d::text from o where d = :day::date and n = any(:ids) -- :no\n",
                "params": {"day": "x' or 'a' = 'a", "ids": [1, 2]},
            },
            "SELECT * FROM (\nselect ':no', d::text from o where d = 'x'' or ''a'' = ''a'::date "
            "and n = any('{1,2}'::int2[]) -- :no\n\n) AS input",
        ),
        (
            {"table": "t", "where": "a > :low", "params": {"low": 3}},
            'SELECT * FROM "t" WHERE (\na > 3\n)',
        ),
        (
            {"table": "t", "where": {"day": "it's", "n": 3, "x": None, "k": [1, 2]}},
            'SELECT * FROM "t" WHERE "day" = \'it\'\'s\' AND "n" = 3 AND "x" IS NULL AND ("k" IN (1, 2))',
        ),
    ],
)
def test_the_query_of_an_input(values: dict[str, object], text: str) -> None:
    assert input_query(values).as_string(None) == text


@pytest.mark.parametrize(
    ("oid", "precision", "scale", "kind"),
    [
        (1700, None, None, None),
        (1700, 10, 2, pa.decimal128(10, 2)),
        (1700, 50, 2, None),
        (21, None, None, pa.int32()),
        (1184, None, None, pa.timestamp("us", tz="UTC")),
        (2950, None, None, pa.string()),
    ],
)
def test_types_of_the_database(oid: int, precision: int | None, scale: int | None, kind: pa.DataType | None) -> None:
    described = SimpleNamespace(name="c", type_code=oid, type_display="t", precision=precision, scale=scale)
    assert CopiedColumn.of(described).type == kind


def test_files_by_folder_and_by_pattern(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    root = tmp_path / "with space"
    for name in ("day=1/a.parquet", "day=2/b.parquet", "_hidden/c.parquet", "day=2/.d.parquet", "day=2/e.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [1, 2]}), root / name)
    parquet_files = list_parquet_files(root.as_uri())
    assert [file.uri for file in parquet_files] == [
        (root / "day=1/a.parquet").as_uri(),
        (root / "day=2/b.parquet").as_uri(),
    ]
    assert [path.uri[-9:] for path in list_parquet_files(f"{root}/day=*/b*")] == ["b.parquet"]
    assert [path.uri[-9:] for path in list_parquet_files(str(root / "day=1" / "a.parquet"))] == ["a.parquet"]
    assert list_parquet_files(str(tmp_path / "nothing")) == []
    assert [path.rows for path in list_staged_files(root.as_uri())] == [2, 2]
    assert spark_path(parquet_files[0].uri) == f"file://{root}/day=1/a.parquet"
    assert to_uri("s3://bucket/x", "bucket/y/z") == "s3://bucket/y/z"

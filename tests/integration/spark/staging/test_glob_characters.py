"""Names with the special characters of globs, which Spark takes every path as: each names one file or folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from saga_spark.inputs.frozen_inputs import freeze_inputs, open_frozen_input
from saga_spark.inputs.input_columns import parquet_columns
from saga_spark.manifest import Manifest
from saga_spark.settings import SparkSettings
from saga_spark.staging.stage_task import stage_outputs
from saga_spark.storage import local_path
from tests.helpers.small_spark import task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ["a1", "a*", "a?", "a[1]", "a{1,2}", "a\\1", "a\\*", "a]}b", "a [b"]
FOLDER = "shop*[1]{x,y}?\\z"


def write_row(file: Path, name: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"name": [name]}), file)


def test_each_file_is_read_and_staged_once(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / FOLDER
    for other in ("shop1x1\\z", "shop*1x1\\z"):  # what the folder's name matches as a glob
        write_row(tmp_path / other / "in" / "a1.parquet", "of another folder")
    for name in NAMES:
        write_row(root / "in" / f"{name}.parquet", name)
        write_row(root / "days" / f"day={name}" / "rows.parquet", name)
    settings = SparkSettings(root=root, stage=(root / "stage").as_uri())
    sources = {name: {"kind": "parquet", "values": {"parquet": path}}
               for name, path in {"rows": "in", "days": "days", "some": "in/a[*].parquet"}.items()}  # fmt: skip
    request = {"inputs": sources, "folder": f"{settings.stage}/in", "known": {}}
    inputs = freeze_inputs(task_context(spark, settings), request)["inputs"]
    rows = {name: open_frozen_input(spark, frozen).collect() for name, frozen in inputs.items()}
    assert sorted(row.name for row in rows["rows"]) == sorted(NAMES)
    assert {(row.name, row.day) for row in rows["days"]} == {(name, name) for name in NAMES}
    assert [row.name for row in rows["some"]] == ["a*"], "the escaped name of one file"
    columns = parquet_columns("in", root)
    assert columns is not None
    assert list(columns.names) == ["name"]

    arguments = {"job": {"sql": "select name, day from days"}, "audit": [{"not_null": ["name"]}],
                 "outputs": {"output": {"parquet": "out", "mode": "append"}}}  # fmt: skip
    target = {"folder": f"{settings.stage}/out", "key": "k", "generation": 1, "epoch": 1}
    request = {"arguments": arguments, "inputs": {"days": inputs["days"]}, "targets": {"output": target}}
    manifest = Manifest.from_json(stage_outputs(task_context(spark, settings), request)["manifests"]["output"])
    staged = [row for file in manifest.files for row in pq.read_table(local_path(file.uri)).to_pylist()]
    assert sorted(row["name"] for row in staged) == sorted(NAMES)
    staged_input = {"format": "parquet", "files": [file.uri for file in manifest.files]}
    assert open_frozen_input(spark, staged_input).count() == len(NAMES), "a step that reads the output of a step"

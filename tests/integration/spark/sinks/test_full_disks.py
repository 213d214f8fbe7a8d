"""Sinks on a disk that has no room for the rows: seen in the audit, and nothing is visible if it fills up later."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import sink_for
from sagas.errors import InfrastructureError, Rejected
from tests.integration.spark.staged_outputs import stage

ROWS = pa.table({"id": range(2000), "noise": [os.urandom(1000) for _ in range(2000)]})
KINDS = {"iceberg": {"table": "lake.sales.facts"}, "parquet": {"parquet": "facts"}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_on_a_full_disk_fails_cleanly(small_disk: Path, tmp_path: Path, kind: str) -> None:
    lake = {"type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": small_disk.as_uri()}
    settings = SparkSettings(root=small_disk, stage=(tmp_path / "stage").as_uri(), catalogs={"lake": lake})
    ours = stage(settings, KINDS[kind], ROWS)
    sink = sink_for(ours.output.kind, settings)
    [problem] = sink.check(ours)
    assert str(small_disk) in problem
    assert "bytes" in problem
    assert "free" in problem
    with pytest.raises(InfrastructureError, match="No space left on device"):
        sink.prepare(ours)
    with pytest.raises((InfrastructureError, Rejected)):  # the second: its files are not where they should be
        sink.publish([ours], sink.read_state([ours]), together=False)
    assert sink.find(ours.output, ours.tag.target) is None
    sink.clean_up(ours)
    assert list(small_disk.rglob("*.parquet")) == []

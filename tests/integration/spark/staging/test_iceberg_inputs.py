"""Iceberg tables as inputs: deletes are applied, time travel is exact, and a retry reads the recorded snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSchemasUpdate
from pyiceberg.types import DoubleType, LongType, StringType

from saga_spark.inputs.frozen_inputs import freeze_inputs
from saga_spark.inputs.iceberg_input import freeze_table
from saga_spark.job_errors import JobFailed, UnreadableInput
from saga_spark.runner.spark_session import create_sessions
from saga_spark.runner.task_context import TaskContext
from saga_spark.storage import local_path
from sagas.errors import InfrastructureError
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.iceberg.delete_files import delete_equal, delete_positions
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake
from tests.integration.spark.staging.staging_environment import FakeRunner, open_staging

PRICES = pa.schema([("id", pa.int32()), ("name", pa.string()), ("price", pa.float32())])
NAME = "silver.prices"

Rows = list[tuple[Any, ...]]


@dataclass
class PricesTable:
    """A table of prices; each call of ``add`` is one file."""

    lake: Lake

    @property
    def catalog(self) -> Catalog:
        return self.lake.catalog

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def add(self, *ids: int) -> int:
        """The snapshot's id."""
        table = self.table
        rows = [{"id": number, "name": f"n{number}", "price": number / 2} for number in ids]
        wanted = [name for name in PRICES.names if name in table.schema().column_names]
        table.append(pa.Table.from_pylist(rows, PRICES).select(wanted))
        return table.metadata.current_snapshot_id or 0

    def freeze(self, **values: Any) -> dict[str, Any]:
        uri = (self.lake.settings.root / "inputs" / "part.parquet").as_uri()
        return freeze_table(self.lake.settings, "prices", {"table": f"lake.{NAME}", **values}, uri)

    def read(self, **values: Any) -> Rows:
        frozen_inputs = self.freeze(**values)
        rows = content(frozen_inputs)
        assert frozen_inputs["rows"] == len(rows)
        return rows

    def own(self, frozen: Mapping[str, Any]) -> bool:
        """Are these the table's own files?"""
        return all("/warehouse/" in uri for uri in frozen["files"])


def content(frozen: Mapping[str, Any]) -> Rows:
    tables = [pq.ParquetFile(local_path(uri)).read() for uri in frozen["files"]]
    assert len({str(table.schema.remove_metadata()) for table in tables}) == 1, "Spark looks at one file's columns only"
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.fixture
def prices_table(server: DatabaseServer, tmp_path: Path) -> Iterator[PricesTable]:
    with open_lake("sql", server, tmp_path) as lake:
        lake.catalog.create_namespace("silver")
        lake.catalog.create_table(NAME, PRICES)
        yield PricesTable(lake)


# ── deleted rows ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plain_table_is_read_from_its_own_files(prices_table: PricesTable) -> None:
    assert prices_table.read() == []
    prices_table.add(1, 2)
    prices_table.add(3)
    assert prices_table.own(prices_table.freeze())
    assert prices_table.read() == [(1, "n1", 0.5), (2, "n2", 1.0), (3, "n3", 1.5)]


def test_position_deletes_are_applied(prices_table: PricesTable) -> None:
    prices_table.add(1, 2, 3)
    prices_table.add(4, 5)
    first, second = sorted(task.file.file_path for task in prices_table.table.scan().plan_files())
    many = {path: pq.ParquetFile(local_path(path)).metadata.num_rows for path in (first, second)}
    before = prices_table.table.metadata.current_snapshot_id
    delete_positions(prices_table.table, {first: [0], second: [1]})
    delete_positions(prices_table.table, {first: [1]})
    frozen_inputs = prices_table.freeze()
    assert not prices_table.own(frozen_inputs)
    assert (frozen_inputs["rows"], len(content(frozen_inputs))) == (2, 2)
    gone = {row["id"] for path in many for row in pq.ParquetFile(local_path(path)).read().to_pylist()}
    assert {row[0] for row in content(frozen_inputs)} < gone
    assert content(frozen_inputs) == sorted(
        tuple(row.values()) for row in prices_table.table.scan().to_arrow().to_pylist()
    )
    prices_table.add(6)
    assert [row[0] for row in prices_table.read()][-1] == 6
    assert len(prices_table.read(as_of=before)) == 5


def test_equality_deletes_are_refused(prices_table: PricesTable) -> None:
    before = prices_table.add(1, 2, 3)
    delete_equal(prices_table.table, "id", [2])
    prices_table.add(4)
    with pytest.raises(UnreadableInput) as caught:
        prices_table.freeze()
    assert caught.value.message == (
        "the input prices: the table lake.silver.prices has equality deletes; rewrite its data files (compaction) "
        "with the engine that writes it"
    )
    assert len(prices_table.read(as_of=before)) == 3
    rows = pa.Table.from_pylist([{"id": 1, "name": "n1", "price": 0.5}], PRICES)
    prices_table.table.overwrite(rows)  # as after a compaction: the delete file is older than all live files
    assert prices_table.read() == [(1, "n1", 0.5)]


# ── time travel──────────────────────────────────────────────────────────────────────────────────────────────────


def test_as_of_accepts_a_snapshot_a_tag_a_branch_or_a_timestamp(prices_table: PricesTable) -> None:
    first = prices_table.add(1)
    prices_table.table.manage_snapshots().create_tag(first, "20260131").create_branch(first, "month-end").commit()
    between = datetime.fromtimestamp((prices_table.table.metadata.last_updated_ms + 1) / 1000, UTC)
    time.sleep(0.01)
    prices_table.add(2)
    with prices_table.table.update_schema() as update:
        update.rename_column("name", "title")
    for moment in (first, str(first), "20260131", 20260131, "month-end", between.isoformat(), str(between)[:-6]):
        assert prices_table.read(as_of=moment) == [(1, "n1", 0.5)], moment
        [file] = prices_table.freeze(as_of=moment)["files"]
        assert pq.read_schema(local_path(file)).names == ["id", "name", "price"], "the columns of that time"
    assert len(prices_table.read(as_of="main")) == 2
    for wrong, sentence in {
        "yesterday": "`as_of` is a snapshot id, a tag, a branch or a timestamp of the table, not yesterday",
        "4711": "`as_of` is a snapshot id, a tag, a branch or a timestamp of the table, not 4711",
        "2001-01-01": "the table has no snapshot as of 2001-01-01",
    }.items():
        with pytest.raises(JobFailed) as caught:
            prices_table.freeze(as_of=wrong)
        assert caught.value.message == f"the input prices: {sentence}"


# ── other columns than before ───────────────────────────────────────────────────────────────────────────────────


def add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("currency", StringType())


def rename_column(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("name", "title")


def drop_column(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("name")


def widen_columns(table: Table) -> None:
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.update_column("price", DoubleType())


CHANGES: dict[str, tuple[Callable[[Table], None], Rows]] = {
    "added": (add_column, [(1, "n1", 0.5, None), (2, "n2", 1.0, None)]),
    "renamed": (rename_column, [(1, "n1", 0.5), (2, "n2", 1.0)]),
    "dropped": (drop_column, [(1, 0.5), (2, 1.0)]),
    "widened": (widen_columns, [(1, "n1", 0.5), (2, "n2", 1.0)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_columns_follow_the_current_schema(prices_table: PricesTable, change: str) -> None:
    alter, rows = CHANGES[change]
    prices_table.add(1, 2)
    alter(prices_table.table)
    assert prices_table.read() == rows, "although no snapshot has the new columns"
    [file] = prices_table.freeze()["files"]
    now = prices_table.table.schema()
    assert pq.read_schema(local_path(file)).names == [field.name for field in now.fields]
    assert str(pq.read_schema(local_path(file)).field("id").type) == ("int64" if change == "widened" else "int32")


def test_files_older_than_every_known_schema_are_read(prices_table: PricesTable) -> None:
    """Metadata clean-up removes a schema that no snapshot names; its files remain."""
    prices_table.add(1, 2)
    rename_column(prices_table.table)
    table = prices_table.table
    table.append(pa.Table.from_pylist([{"id": 3, "title": "n3", "price": 1.5}], table.schema().as_arrow()))
    old = [
        schema.schema_id for schema in table.metadata.schemas if schema.schema_id != table.metadata.current_schema_id
    ]
    removal = RemoveSchemasUpdate.model_validate({"schema-ids": old})
    prices_table.catalog.commit_table(prices_table.table, (), (removal,))
    assert len(prices_table.table.metadata.schemas) == 1
    assert prices_table.read() == [(1, "n1", 0.5), (2, "n2", 1.0), (3, "n3", 1.5)]


class Freezing(FakeRunner):
    """Inputs are read as the runner does it."""

    async def run(self, task: str, request: Mapping[str, Any], *, tag: str, on_progress: Any) -> dict[str, Any]:
        played = await super().run(task, request, tag=tag, on_progress=on_progress)
        if task != "freeze":
            return played
        run = TaskContext(1, tag, self.settings, create_sessions(self.settings), on_progress)
        return await asyncio.to_thread(freeze_inputs, run, dict(request))


@pytest.mark.parametrize("change", CHANGES)
async def test_a_retry_reads_the_snapshot_that_was_recorded_first(
    prices_table: PricesTable, tmp_path: Path, change: str
) -> None:
    prices_table.add(1, 2)
    staging = await open_staging(tmp_path, f"sqlite:///{tmp_path / 'day_close.db'}")
    staging = replace(
        staging, settings=staging.settings.model_copy(update={"catalogs": prices_table.lake.settings.catalogs})
    )
    arguments = {**staging.invocation().arguments, "inputs": {"prices": {"table": f"lake.{NAME}"}}}
    asked = replace(staging.invocation(), arguments=arguments)

    async def lost() -> None:
        raise InfrastructureError("the runner is gone")

    first, second = (
        Freezing(staging.settings, staging.saga, during={"stage": lost}),
        Freezing(staging.settings, staging.saga),
    )
    with pytest.raises(InfrastructureError):
        await staging.attempt(first, invocation=asked).run()
    CHANGES[change][0](prices_table.table)
    prices_table.add(3)
    await staging.attempt(second, invocation=asked).run()
    await staging.databases.close()
    assert second.tasks == ["stage", "audit"]
    read = second.asked["stage"]["inputs"]
    assert read == first.asked["stage"]["inputs"]
    assert content(read["prices"]) == [(1, "n1", 0.5), (2, "n2", 1.0)]
    assert pq.read_schema(local_path(read["prices"]["files"][0])).names == PRICES.names

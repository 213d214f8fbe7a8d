"""Tables that others alter: between the audit and the commit, and before; partitions and deleted rows included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType

from saga_activities.guard.entry_key import EntryKey
from saga_spark import output_records
from saga_spark.manifest import Target
from saga_spark.sinks.sink import Publication
from saga_spark.staging.publishing import OutputPublisher
from saga_spark.staging.staging_attempt import transaction
from sagas.errors import Rejected
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.sampling import mostly_slow
from tests.integration.spark.sinks.iceberg.delete_files import delete_equal, delete_positions
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake
from tests.integration.spark.staging.staging_environment import clock, open_staging

pytestmark = pytest.mark.slow

FACTS = pa.schema([("id", pa.int32()), ("day", pa.string()), ("shop", pa.string())])


@pytest.fixture
def lake(server: DatabaseServer, tmp_path: Path) -> Iterator[Lake]:
    with open_lake("sql", server, tmp_path) as opened:
        yield opened


def facts(*rows: tuple[int, str, str]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(FACTS.names, row, strict=True)) for row in rows], FACTS)


def seen(lake: Lake) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in lake.rows()]


MON, TUE = (1, "mon", "a"), (2, "tue", "a")


# ── between the audit and the commit ────────────────────────────────────────────────────────────────────────────


def add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("currency", StringType())


def rename_column(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("shop", "store")


def drop_column(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("shop")


def widen_column(table: Table) -> None:
    with table.update_schema() as update:
        update.update_column("id", LongType())


def partition_by_day(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")


def delete_by_value(table: Table) -> None:
    delete_equal(table, "id", [1])


CHANGES: dict[str, tuple[str, Callable[[Table], None], str]] = {
    "column added": (
        "append", add_column,
        "the output has no column currency, which the table lake.sales.facts has",
    ),
    "column renamed": (
        "append", rename_column,
        "the output has no column store, which the table lake.sales.facts has",
    ),
    "column dropped": ("append", drop_column, "the table lake.sales.facts has no column shop, which the output has"),
    "type widened": (
        "append", widen_column,
        "the column id is int in the output and long in the table lake.sales.facts",
    ),
    "partitions added": ("append", partition_by_day, "the file 00000.parquet has several values of day"),
    "rows deleted by value": (
        "overwrite", delete_by_value,
        "the table has equality deletes; rewrite its data files (compaction) with the engine that writes it",
    ),
}  # fmt: skip


def ready(lake: Lake, mode: str, name: str = "sales.facts") -> Publication:
    """A table with one row, and two more that passed the audit and are placed."""
    lake.publish(lake.staged(facts(MON), name, saga="old"))
    ours = lake.staged(facts((3, "mon", "b"), (4, "tue", "b")), name, mode=mode, name=name.partition(".")[2])
    assert lake.sink.check(ours) == []
    lake.sink.prepare(ours)
    return ours


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_altered_after_the_audit_is_refused(lake: Lake, change: str) -> None:
    mode, alter, sentence = CHANGES[change]
    ours = ready(lake, mode)
    alter(lake.table())
    before = lake.table().metadata
    with pytest.raises(Rejected) as caught:
        lake.sink.publish([ours], lake.sink.read_state([ours]), together=False)
    assert caught.value.message.startswith(f"the table lake.sales.facts no longer accepts the output facts: {sentence}")
    assert "\n" not in caught.value.message
    assert lake.table().metadata == before
    assert lake.sink.find(ours.output, ours.tag.target) is None
    files = lake.files()
    lake.sink.clean_up(ours)
    assert len(lake.files()) == len(files) - 1, "what was placed is gone"


def test_an_altered_table_refuses_a_joint_publication(lake: Lake) -> None:
    ours = [ready(lake, "append", name) for name in ("sales.facts", "sales.totals")]
    drop_column(lake.table("sales.totals"))
    with pytest.raises(Rejected, match=r"the table lake\.sales\.totals no longer accepts the output totals"):
        lake.sink.publish(ours, lake.sink.read_state(ours), together=True)
    assert (lake.ids("sales.facts"), lake.ids("sales.totals")) == ([1], [1])


async def test_the_guard_rejects_and_stores_nothing(lake: Lake, tmp_path: Path) -> None:
    """A rejection after the commit point parks the saga; when the column is there again, the next attempt publishes."""
    staging = await open_staging(tmp_path, f"sqlite:///{tmp_path / 'day_close.db'}")
    staging = replace(staging, settings=staging.settings.model_copy(update={"catalogs": lake.settings.catalogs}))
    ours = ready(lake, "append")
    spec, target = {"table": "lake.sales.facts", "mode": "append"}, Target(staging.saga, "facts", 1, "facts")
    assert ours.tag.target == target

    async def body(sql: Any) -> None:
        await sql.execute(output_records.set_staged(target, 1, ours.manifest))

    async with transaction(staging.guard.engine) as connection:
        await output_records.take_over(
            connection, target, saga="day", place="lake.sales.facts", spec=spec, together=False
        )
    address = EntryKey(staging.saga, "facts", 1)
    assert (await staging.guard.do(address, None, body, **clock())).kind == "done"
    publishing = OutputPublisher(staging.settings, staging.guard.engine, staging.invocation("confirm"))
    rename_column(lake.table())
    outcome = await staging.guard.confirm(address, await publishing.publish(), **clock())
    assert (outcome.kind, outcome.retryable) == ("rejected", False)
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("the table lake.sales.facts no longer accepts the output facts")
    assert (await staging.row()).state == "STAGED"
    with lake.table().update_schema() as update:
        update.rename_column("store", "shop")
    assert (await staging.guard.confirm(address, await publishing.publish(), **clock())).kind == "done"
    assert ((await staging.row()).state, lake.ids()) == ("PUBLISHED", [1, 3, 4])
    await staging.databases.close()


# ── partitions that changed before ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def evolved(lake: Lake) -> Lake:
    """Rows from before it was partitioned, rows partitioned by the day, and the shop has joined the day."""
    lake.publish(lake.staged(facts(MON, TUE), saga="old"))
    partition_by_day(lake.table())
    lake.publish(lake.staged(facts((3, "tue", "a")), saga="newer"))
    with lake.table().update_spec() as update:
        update.add_field("shop", IdentityTransform(), "shop")
    assert len(lake.table().specs()) == 3
    return lake


MODES: dict[str, tuple[dict[str, Any], list[tuple[int, str, str]]]] = {
    "append": ({}, [MON, TUE, (3, "tue", "a"), (4, "tue", "a")]),
    "overwrite": ({}, [(4, "tue", "a")]),
    "overwrite_partitions": ({}, [MON, (4, "tue", "a")]),
    "overwrite_where": ({"where": {"day": "tue"}}, [MON, (4, "tue", "a")]),
}


@pytest.mark.parametrize("mode", mostly_slow(MODES, {"append", "overwrite_partitions"}))
def test_files_of_earlier_partition_specs_are_replaced_and_restored(evolved: Lake, mode: str) -> None:
    more, rows = MODES[mode]
    ours = evolved.staged(facts((4, "tue", "a")), mode=mode, **more)
    before = seen(evolved)
    evolved.publish(ours)
    assert seen(evolved) == rows
    evolved.revert(ours)
    assert seen(evolved) == before


def test_a_merge_reaches_into_files_of_earlier_partitions(evolved: Lake) -> None:
    ours = evolved.staged(facts((2, "tue", "z"), (5, "tue", "z")), mode="merge", key="id")
    before = seen(evolved)
    evolved.publish(ours)
    assert seen(evolved) == [MON, (2, "tue", "z"), (3, "tue", "a"), (5, "tue", "z")]
    evolved.append([{"id": 9, "day": "wed", "shop": "a"}])
    evolved.sink.clean_up(ours)
    assert evolved.ids() == [1, 2, 3, 5, 9]
    with evolved.table().update_spec() as update:
        update.remove_field("shop")
    evolved.publish(evolved.staged(facts((6, "wed", "b")), saga="last"))
    assert evolved.ids() == [1, 2, 3, 5, 6, 9]
    assert before == [MON, TUE, (3, "tue", "a")]


# ── rows that others have deleted ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mode", "more", "rows"),
    [
        pytest.param("append", {}, [1, 3, 4, 9], marks=pytest.mark.slow),
        pytest.param("overwrite", {}, [9], marks=pytest.mark.slow),
        ("overwrite_where", {"where": {"id": [3, 9]}}, [1, 4, 9]),
        ("merge", {"key": "id"}, [1, 3, 4, 9]),
    ],
)
def test_deleted_rows_are_not_restored(lake: Lake, mode: str, more: dict[str, Any], rows: list[int]) -> None:
    days = [(number, "mon", "a") for number in (1, 2, 3, 4)]
    lake.publish(lake.staged(facts(*days), saga="old"))
    [file] = [task.file.file_path for task in lake.table().scan().plan_files()]
    delete_positions(lake.table(), {file: [1]})
    assert lake.ids() == [1, 3, 4]
    ours = lake.staged(facts((9, "mon", "b")), mode=mode, **more)
    lake.publish(ours)
    assert lake.ids() == rows
    lake.revert(ours)
    assert lake.ids() == [1, 3, 4]


def test_the_audit_refuses_to_rewrite_a_table_with_equality_deletes(lake: Lake) -> None:
    lake.publish(lake.staged(facts(MON, TUE), saga="old"))
    delete_by_value(lake.table())
    ours = lake.staged(facts((9, "mon", "b")), mode="merge", key="id")
    assert lake.sink.check(ours) == [
        "the table lake.sales.facts has equality deletes; rewrite its data files (compaction) with the engine that "
        "writes it"
    ]
    added = lake.staged(facts((9, "mon", "b")), mode="append")
    lake.publish(added)
    lake.revert(added)

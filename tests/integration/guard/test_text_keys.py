"""Texts by which the engine finds its rows are exact: "e" and "e " are two of them, in each table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from saga_activities.connections import open_engine
from saga_activities.guard.schema import create_metadata
from saga_activities.guard.tables import metadata
from saga_activities.ledger.tables import CompressedJson, UtcTime, ledger_metadata
from saga_activities.locks.tables import metadata as lock_metadata
from saga_spark.output_records import metadata as output_metadata
from tests.helpers.new_databases import new_url

METADATA = (metadata, lock_metadata, ledger_metadata, output_metadata)


def text_keys(table: sa.Table) -> Iterator[str]:
    """The columns of text in a key or an index of the table."""
    groups = [*table.constraints, *table.indexes]
    columns = {column.name: column for group in groups for column in getattr(group, "columns", ())}
    yield from (name for name, column in columns.items() if isinstance(column.type, sa.String))


def example_row(table: sa.Table) -> dict[str, Any]:
    """Values for all columns without which no row can be inserted; each text is "e"."""
    required = (column for column in table.columns if not column.nullable and column.autoincrement is not True)
    return {column.name: _example(column.type) for column in required}


def _example(type: sa.types.TypeEngine[Any]) -> Any:
    match type:
        case sa.String():
            return "e"
        case UtcTime():
            return datetime(2026, 1, 1, tzinfo=UTC)
        case CompressedJson():
            return "{}"
        case _:
            return True if isinstance(type, sa.Boolean) else 1


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
async def test_a_blank_at_the_end_makes_another_key(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    engine, tested = open_engine("own", await new_url(kind, request, tmp_path), 2), list[str]()
    try:
        for tables in METADATA:
            await create_metadata(engine, tables, ())
        async with engine.connect() as connection:
            for table in (table for tables in METADATA for table in tables.sorted_tables):
                await connection.execute(table.insert().values(example_row(table)))
                for name in text_keys(table):
                    tested.append(f"{table.name}.{name}")
                    count = sa.select(sa.func.count()).where(table.c[name] == "e ")
                    assert (await connection.execute(count)).scalar() == 0, tested[-1]
    finally:
        await engine.dispose()
    assert {"saga_guard.step", "saga_version_seen.entity", "saga_lock.key", "saga_run.saga_id"} < set(tested)

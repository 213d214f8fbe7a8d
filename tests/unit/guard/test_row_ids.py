"""Ids that a database counts: none is given a second time, also after its row was deleted."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from saga_activities.enqueued.tables import enqueued_table
from saga_activities.enqueued.tables import metadata as enqueued_metadata
from saga_activities.guard.tables import metadata as guard_metadata
from saga_activities.ledger.tables import ledger_metadata

_COUNTED = [
    table
    for metadata in (enqueued_metadata, guard_metadata, ledger_metadata)
    for table in metadata.tables.values()
    if table.autoincrement_column is not None
]


def test_some_tables_count_their_rows() -> None:
    assert {"saga_enqueued", "saga_outbox", "saga_audit"} <= {table.name for table in _COUNTED}


@pytest.mark.parametrize("table", _COUNTED, ids=lambda table: table.name)
def test_sqlite_gives_no_id_a_second_time(table: sa.Table) -> None:
    """Without this word SQLite takes the largest id that is there, plus one."""
    assert "AUTOINCREMENT" in str(CreateTable(table).compile(dialect=sqlite.dialect()))


def test_a_row_that_is_enqueued_after_a_deleted_one_has_another_id() -> None:
    engine = sa.create_engine("sqlite://")
    enqueued_metadata.create_all(engine)
    with engine.begin() as connection:
        insert = sa.insert(enqueued_table).values(saga="checkout", input="{}")
        first = connection.execute(insert).inserted_primary_key
        connection.execute(sa.delete(enqueued_table))
        second = connection.execute(insert).inserted_primary_key
    assert first != second

"""Columns of SQLite that make numbers of text: their declared type has the affinity NUMERIC, and names no number."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.parameters.column_catalog import makes_numbers_of_text
from saga_workers.doctor.doctor_result import DoctorResult
from sagas.text.shortening import join_names

_COLUMNS = text(
    "SELECT t.name AS owner, c.name AS name, c.type AS type FROM sqlite_schema t, pragma_table_info(t.name) c"
    " WHERE t.type = 'table' ORDER BY t.name, c.cid"
)
_MAX_NAMES = 5


async def check_column_types(name: str, engine: AsyncEngine) -> list[DoctorResult]:
    """Name these columns; nothing without any. Raises SQLAlchemyError."""
    if engine.dialect.name != "sqlite":
        return []
    async with engine.connect() as connection:
        columns = (await connection.execute(_COLUMNS)).all()
    risky = [f"{each.owner}.{each.name} ({each.type})" for each in columns if makes_numbers_of_text(each.type)]
    if not risky:
        return []
    names = join_names(risky, _MAX_NAMES)
    message = f"SQLite stores text that reads as a number as this number, `007` as 7, because of the types of {names}"
    return [DoctorResult(f"columns of {name}", None, message, "declare columns of text as TEXT")]

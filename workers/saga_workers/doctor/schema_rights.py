"""The check of `saga doctor` for roles that can run code as the role of a connection."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.foreign_rights import find_foreign_rights
from saga_workers.doctor.doctor_result import DoctorResult


async def check_schema_rights(name: str, engine: AsyncEngine, trusted: Collection[str] = ()) -> list[DoctorResult]:
    """Fail for each other role that owns or may create objects which the worker's SQL uses. Raises SQLAlchemyError."""
    if engine.dialect.name != "postgresql":
        return []
    async with engine.connect() as connection:
        raw = (await connection.get_raw_connection()).dbapi_connection
        rights = await connection.run_sync(lambda _: find_foreign_rights(raw, trusted))
    check = f"search_path of {name}"
    if rights is None:
        message = (
            "no role that is not trusted owns or may create what the catalog shows the worker's SQL to use: schemas, "
            "tables, foreign keys, types, operators and functions"
        )
        return [DoctorResult(check, True, message)]
    return [DoctorResult(check, False, rights.message, rights.help)]

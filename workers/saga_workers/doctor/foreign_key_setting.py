"""A role of PostgreSQL whose sessions check no foreign keys: the engine refuses every statement of such a session."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.session_settings import with_foreign_keys, without_foreign_keys
from saga_workers.doctor.doctor_result import DoctorResult


async def check_foreign_key_setting(name: str, engine: AsyncEngine) -> list[DoctorResult]:
    """Fail if foreign keys and triggers are off, and the engine may not change that. Raises SQLAlchemyError."""
    if engine.dialect.name != "postgresql":
        return []
    async with engine.connect() as connection:
        version = int((await connection.execute(text("SHOW server_version_num"))).scalar_one())
        setting = (await connection.execute(text(with_foreign_keys(version, local=True)))).scalar()
        who = (await connection.execute(text("SELECT current_user::text, current_database()::text"))).one()
    if setting != "replica":
        return []
    message, _, help = without_foreign_keys(*who).partition("; ")
    return [DoctorResult(f"foreign keys of {name}", False, message, help)]

"""The check of `saga doctor` for views and routines of other accounts in a database of MySQL or MariaDB."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.schema import MYSQL_DIALECTS
from saga_workers.doctor.doctor_result import DoctorResult
from sagas.text.shortening import join_names

_MAX_NAMES = 5
# The server shows an account the objects that it may use. A trigger runs with the rights of its definer only.
_OBJECTS = text(
    "select concat(kind, ' ', name, ' of ', definer) from ("
    "select 'view' as kind, table_name as name, definer from information_schema.views where table_schema = database()"
    " union all select lower(routine_type), routine_name, definer from information_schema.routines"
    " where routine_schema = database()"
    ") objects where definer <> current_user() and definer not in ('mysql.sys@localhost', 'mariadb.sys@localhost')"
)


async def check_definers(name: str, engine: AsyncEngine) -> list[DoctorResult]:
    """Name the views and routines whose definer is another account: it can have them run with the rights of the worker
    (`sql security invoker`), also later. Raises SQLAlchemyError.
    """
    if engine.dialect.name not in MYSQL_DIALECTS:
        return []
    async with engine.connect() as connection:
        objects = sorted(str(row) for row in (await connection.execute(_OBJECTS)).scalars())
    check = f"definers of {name}"
    if not objects:
        return [DoctorResult(check, True, "its views and routines belong to the account of the connection")]
    message = (
        f"{join_names(objects, limit=_MAX_NAMES)}: with `sql security invoker` they run code with the rights of the "
        "worker if its SQL uses them"
    )
    return [DoctorResult(check, None, message, "trust these accounts, or make the objects anew as a trusted account")]

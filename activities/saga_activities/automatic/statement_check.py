"""Decides whether the effect of a statement can be undone automatically: its text first, then the catalog."""

from __future__ import annotations

from saga_activities.automatic.called_functions import check_functions
from saga_activities.automatic.postgresql import check_merge
from saga_activities.automatic.table_access import TableAccess, shape_of_change
from saga_activities.automatic.table_shape import check_change
from saga_activities.automatic.unique_keys import conflict_keys
from saga_activities.guard.sql_session import SqlSession
from sagas.sql_text.row_changes import RowChange, analyse


async def check_statement(sql: SqlSession, statement: str) -> tuple[RowChange, TableAccess | None]:
    """Return what ``statement`` does, and its table (None if it changes nothing).

    Raises :class:`sagas.sql_text.row_changes.NotImageable`.
    """
    change = analyse(statement, sql.dialect)
    await check_functions(sql, change)
    if change.kind == "read":
        return change, None
    shape = await shape_of_change(sql, change)
    check_change(shape, change)
    table = TableAccess(sql, shape)
    if change.kind == "merge":
        await check_merge(sql)
    if change.conflict is not None and change.conflict.rows:
        await conflict_keys(sql, table)
    return change, table

"""Warnings of MySQL and MariaDB that mean another result: text of which a statement has used only a part, as a number.

In strict mode this is an error where a statement stores the value, but not where it compares it: for
``id in ('[5]')`` the text is the number 0.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.json_parameters import UnusableParameter

_TRUNCATED = 1292


async def refuse_truncated(connection: AsyncConnection) -> None:
    """Raise UnusableParameter if the last statement has taken text for a number or a time that it is not."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if not getattr(driver._result, "warning_count", 0):
        return
    warnings: Any = (await connection.exec_driver_sql("SHOW WARNINGS")).all()
    for _, code, message in warnings:
        if int(code) == _TRUNCATED:
            words = str(message)[:200]
            raise UnusableParameter(
                f"the database has compared or computed with a part of a text only: {words} ({_TRUNCATED}); give a"
                " value of the type of the column, or write a cast that takes the whole text"
            )

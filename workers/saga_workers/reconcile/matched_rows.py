"""Counts the rows that a printed delete or update matches, in its database: none may change more than the one meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark.reconcile.findings import DECLARATION, Finding, row_condition, select_command
from saga_workers.runtime.databases import open_command_engine
from sagas.settings import Settings
from sagas.settings.reconcile import EffectTable

MAX_COUNTED = 100
"""Maximum number of commands of each table whose rows are counted; the others become selects."""

WHY = "no_repair"
"""The detail that says why the command of a finding only shows rows."""


async def with_safe_commands(
    settings: Settings, findings: Sequence[Finding], dialects: Mapping[str, str], effects: Mapping[str, EffectTable]
) -> list[Finding]:
    """The findings, with a select in place of each delete and update of a declared table that does not match exactly
    one row.
    """
    changing: dict[str, list[int]] = {}
    for index, finding in enumerate(findings):
        connection, _, statement = finding.command.partition(": ")
        if finding.details.get(DECLARATION) in effects and statement.startswith(("delete ", "update ")):
            changing.setdefault(connection, []).append(index)
    safe = list(findings)
    for connection, indexes in changing.items():
        engine = open_command_engine(settings.sql_connection(connection))
        counted: dict[str | None, int] = {}
        try:
            for index in indexes:
                finding = findings[index]
                counted[finding.place] = counted.get(finding.place, 0) + 1
                why = f"only the first {MAX_COUNTED} rows are looked at; repair these, and reconcile again"
                if counted[finding.place] <= MAX_COUNTED:
                    why = await _problem(engine, finding, row_condition(finding, dialects[connection], effects))
                if why:
                    select = select_command(finding, dialects[connection], effects)
                    safe[index] = replace(finding, command=select, details={**finding.details, WHY: why})
        finally:
            await engine.dispose()
    return safe


async def _problem(engine: AsyncEngine, finding: Finding, condition: str) -> str:
    """Why the condition does not identify one row; empty if it does."""
    table = str(finding.place).partition(".")[2]
    statement = f"select count(*) from (select 1 as one from {table} where {condition} limit 2) matched"  # noqa: S608
    try:
        async with engine.connect() as connection:
            count = await _first_value(connection, statement)
    except Exception:  # noqa: BLE001 - drivers have no common class of errors
        return "the database cannot compare a value of the row; change the row by hand"
    if count == 1:
        return ""
    rows = "no row matches" if not count else "more than one row matches"
    return f"{rows} the key and the declaration; inspect the rows, and change the right one by hand"


async def _first_value(connection: Any, statement: str) -> int:
    """A count by the driver itself, which interprets no character of a statement without parameters."""
    cursor = (await connection.get_raw_connection()).driver_connection.cursor()
    if inspect.isawaitable(cursor):
        cursor = await cursor
    try:
        await cursor.execute(statement)
        return (await cursor.fetchone())[0]
    finally:
        await cursor.close()

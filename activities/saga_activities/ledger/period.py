"""Reads of the ledger about a period: how the sagas that began in it have ended, and which of them took longest."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.ledger.records import OutcomeCount, RunRow
from saga_activities.ledger.rows import read_rows
from saga_activities.ledger.tables import claim_table, run_table

_RUN = run_table.c
_CLAIM = claim_table.c


async def count_outcomes(engine: AsyncEngine, since: datetime, saga: str | None) -> list[OutcomeCount]:
    """The sagas that began since then and have ended, by name and state: one statement, over the rows of the period."""
    seconds = _seconds(engine.dialect.name)
    query = (
        sa.select(_RUN.saga, _RUN.state, sa.func.count(), sa.func.sum(seconds), sa.func.max(seconds))
        .where(*_ended_since(since, saga))
        .group_by(_RUN.saga, _RUN.state)
        .order_by(_RUN.saga, _RUN.state)
    )
    async with engine.connect() as connection:
        return [
            OutcomeCount(name, state, count, round(float(total), 3), round(float(longest), 3))
            for name, state, count, total, longest in await connection.execute(query)
        ]


async def slowest_runs(engine: AsyncEngine, since: datetime, saga: str | None, limit: int) -> list[RunRow]:
    """The ended sagas of the period that took longest, the slowest first."""
    slowest = (
        sa.select(_RUN.saga_id, _RUN.started_at)
        .where(*_ended_since(since, saga))
        .order_by(_seconds(engine.dialect.name).desc(), _RUN.saga_id)
        .limit(limit)
    )
    async with engine.connect() as connection:
        keys = [(saga_id, started_at) for saga_id, started_at in await connection.execute(slowest)]
        rows = {(row.view.id, row.started_at): row for row in await read_rows(connection, keys)}
    return [rows[key] for key in keys if key in rows]


async def count_open_members(engine: AsyncEngine, since: datetime, saga: str | None) -> dict[str, int]:
    """The sagas that bulk workflows have claimed since then and run now, by name."""
    query = sa.select(_CLAIM.saga, sa.func.count()).where(_CLAIM.bulk_id.is_not(None), _CLAIM.claimed_at >= since)
    if saga is not None:
        query = query.where(_CLAIM.saga == saga)
    async with engine.connect() as connection:
        return {row[0]: row[1] for row in await connection.execute(query.group_by(_CLAIM.saga))}


def _ended_since(since: datetime, saga: str | None) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = [_RUN.started_at >= since, _RUN.ended_at.is_not(None)]
    return conditions if saga is None else [*conditions, _RUN.saga == saga]


def _seconds(dialect: str) -> sa.ColumnElement[Any]:
    """From the start of a row's saga to its end, or to that before its undo, to the millisecond."""
    if dialect == "postgresql":
        return sa.extract("epoch", _RUN.ran_until - _RUN.started_at)
    if dialect == "sqlite":
        return (sa.func.julianday(_RUN.ran_until) - sa.func.julianday(_RUN.started_at)) * 86400.0
    return sa.func.timestampdiff(sa.text("microsecond"), _RUN.started_at, _RUN.ran_until) / 1e6

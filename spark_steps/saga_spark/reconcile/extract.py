"""What a database knows: its guard, its outbox and the rows that are effects, all in one snapshot, as Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.guard.tables import guard
from saga_activities.guard.tables_messaging import outbox
from saga_activities.outbox import HELD
from saga_spark.reconcile.effects import Effects
from saga_spark.reconcile.journal import Rows

MARGIN = 3600.0
"""Seconds that are read before a window: a row is written after its attempt was scheduled, by another clock."""

_PAGE = 20_000
_IDS = 500

GUARD_SCHEMA = pa.schema(
    [
        ("connection", pa.string()),
        ("saga_id", pa.string()),
        ("step", pa.string()),
        ("generation", pa.int32()),
        ("reason", pa.string()),  # of the `do` row: do, or undo for a seal; null without one
        ("undone", pa.bool_()),
        ("created_at", pa.float64()),  # of the `do` row
        ("result", pa.string()),
    ]
)
OUTBOX_SCHEMA = pa.schema(
    [
        ("connection", pa.string()),
        ("saga_id", pa.string()),
        ("step", pa.string()),
        ("generation", pa.int32()),
        ("event_id", pa.string()),
        ("topic", pa.string()),
        ("status", pa.string()),
        ("created_at", pa.float64()),
        ("published_at", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is looked at: everything, what has happened ``since`` (seconds since the epoch), or one saga and its nested
    ones. ``older`` are sagas that ended in the window and may have begun, and done all, before it."""

    since: float | None = None
    saga_id: str | None = None
    older: tuple[str, ...] = ()

    @property
    def floor(self) -> float | None:
        return None if self.since is None else self.since - MARGIN


def effect_schema(amounts: int) -> pa.Schema:
    """``bound`` is what ties a row to its step, ``row`` its key as JSON, ``time`` in seconds, ``a0 …`` the amounts."""
    columns = [(f"a{at}", pa.string()) for at in range(amounts)]
    return pa.schema([("bound", pa.string()), ("row", pa.string()), ("time", pa.float64()), *columns])


async def extract(
    engine: AsyncEngine, name: str, effects: Sequence[Effects], folder: Path, scope: Scope
) -> dict[str, int]:
    """Read one connection into ``guard/``, ``outbox/`` and ``effects/`` of the folder; the rows of each."""
    counts: dict[str, int] = {}
    level = "SERIALIZABLE" if engine.dialect.name == "sqlite" else "REPEATABLE READ"
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level=level)
        async with connection.begin():
            tables = set(await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()))
            if guard.name in tables:
                results = any(one.amounts or one.binding == "result" for one in effects)
                with Rows(folder / "guard" / f"{name}.parquet", GUARD_SCHEMA) as rows:
                    await _guard(connection, name, rows, scope, results)
                    counts["guard"] = rows.count
                with Rows(folder / "outbox" / f"{name}.parquet", OUTBOX_SCHEMA) as rows:
                    await _outbox(connection, name, rows, scope)
                    counts["outbox"] = rows.count
            for one in effects:
                with Rows(folder / "effects" / f"{one.name}.parquet", effect_schema(len(one.amounts))) as rows:
                    await _effects(connection, one, rows, scope)
                    counts[one.name] = rows.count
    return counts


async def _guard(connection: AsyncConnection, name: str, rows: Rows, scope: Scope, results: bool) -> None:
    table = guard.c
    is_do = table.op == "do"
    query = sa.select(
        table.saga_id,
        table.step,
        table.generation,
        sa.func.max(sa.case((is_do, table.reason))),
        sa.func.max(sa.case((table.op == "undo", 1), else_=0)),
        sa.func.max(sa.case((is_do, table.created_at))),
        sa.func.max(sa.case((is_do, table.result))) if results else sa.null(),
    ).group_by(table.saga_id, table.step, table.generation)
    conditions: list[sa.ColumnElement[bool] | None] = [_of_saga(table.saga_id, scope)]
    if scope.floor is not None:
        # Whole sagas, however old their first rows are.
        recent = sa.select(table.saga_id).where(table.created_at >= scope.floor)
        conditions = [table.saga_id.in_(recent)]
        conditions += [
            sa.and_(table.saga_id.in_(scope.older[at : at + _IDS]), table.saga_id.not_in(recent))
            for at in range(0, len(scope.older), _IDS)
        ]
    for condition in conditions:
        found = await connection.stream(query if condition is None else query.where(condition))
        async for page in found.partitions(_PAGE):
            for saga_id, step, generation, reason, undone, created_at, result in page:
                rows.add(name, saga_id, step, generation, reason, bool(undone), created_at, result)


async def _outbox(connection: AsyncConnection, name: str, rows: Rows, scope: Scope) -> None:
    table = outbox.c
    query = sa.select(
        table.saga_id,
        table.step,
        table.generation,
        table.event_id,
        table.topic,
        table.status,
        table.created_at,
        table.published_at,
    )
    condition = _of_saga(table.saga_id, scope)
    if condition is not None:
        query = query.where(condition)
    elif scope.since is not None:
        # What was held, or could not be published, was written long before it was published; and the saga that an
        # event waits for may have ended only now.
        recent = (table.created_at >= scope.since, table.published_at >= scope.since)
        query = query.where(sa.or_(*recent, table.status == HELD))
    found = await connection.stream(query)
    async for page in found.partitions(_PAGE):
        for row in page:
            rows.add(name, *row)


def _of_saga(column: sa.ColumnElement[str], scope: Scope) -> sa.ColumnElement[bool] | None:
    if scope.saga_id is None:
        return None
    return sa.or_(column == scope.saga_id, column.startswith(f"{scope.saga_id}/", autoescape=True))


async def _effects(connection: AsyncConnection, effects: Effects, rows: Rows, scope: Scope) -> None:
    bound = sa.literal_column(f"({effects.expression})")
    columns = [bound, sa.literal_column(f"({effects.time})") if effects.time else sa.null()]
    columns += [sa.literal_column(name) for name in (*effects.key, *effects.amounts)]
    query = sa.select(*(column.label(f"c{at}") for at, column in enumerate(columns))).select_from(
        sa.text(effects.table)
    )
    if effects.where:
        query = query.where(sa.text(f"({effects.where})"))
    if scope.floor is not None and effects.time:
        query = query.where(columns[1] >= sa.bindparam("floor", _moment(connection, scope.floor)))
    if effects.binding != "result":
        condition = _of_saga(sa.cast(bound, sa.String(2000)), scope)
        query = query if condition is None else query.where(condition)
    keys = len(effects.key)
    found = await connection.stream(query)
    async for page in found.partitions(_PAGE):
        for value, time, *rest in page:
            key = json.dumps(dict(zip(effects.key, rest[:keys], strict=True)), default=str, ensure_ascii=False)
            amounts = (None if one is None else str(one) for one in rest[keys:])
            rows.add(None if value is None else str(value), key, _seconds(time), *amounts)


def _moment(connection: AsyncConnection, seconds: float) -> datetime:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if connection.dialect.name == "postgresql" else moment.replace(tzinfo=None)


def _seconds(value: Any) -> float | None:
    match value:
        case None:
            return None
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        case str():
            return _seconds(datetime.fromisoformat(value))
    return float(value)

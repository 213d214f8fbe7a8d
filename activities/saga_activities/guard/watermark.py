"""The watermark of a participant database: attempts scheduled before it are refused, and older rows may be purged.

Without it, guard rows are kept forever. It is never derived from age alone: it stays below the start of the oldest
saga that is open or can still be undone, and rows are purged only when every transaction that read the old watermark
is over. A duplicate attempt is never a reason to delete a row.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from sqlalchemy import TextClause, bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.guard.tables import now_sql
from saga_activities.guard.two_phase.prepared import sagas_with_prepared
from sagas.portions import in_portions

RETENTION = 30 * 24 * 3600.0
"""Seconds for which the rows of a finished saga are kept at least."""

PORTION = 1000
"""Sagas purged at a time, so that the purge never holds many locks."""

_READ_AT_ONCE = 50 * PORTION
"""Sagas to purge that are read at a time. A read may pass over the whole table, so there must be few of them."""

_SELECT_WATERMARK = text("SELECT watermark FROM saga_watermark WHERE id = 1")
_RAISE_WATERMARK = "UPDATE saga_watermark SET watermark = :mark, raised_at = {now} WHERE id = 1 AND watermark < :mark"
RESET = "update saga_watermark set watermark = {now} where id = 1"
"""Takes back a watermark in the future, and leaves it at the present time: every saga that was purged below it has
started earlier, so its late attempts are still refused.
"""

_SAGA_TABLES = ("saga_guard", "saga_request", "saga_image")
"""The tables that are purged. The watermark refuses late attempts of purged sagas: guarded steps and requests alike."""


def _select_expired(table: str) -> TextClause:
    """The next sagas after ``:after`` that have only rows below ``:mark``.

    Only old rows are looked at, which an index of their times finds, and none that an earlier read has passed over.
    """
    return text(
        f"SELECT DISTINCT o.saga_id FROM {table} o WHERE o.created_at < :mark AND o.saga_id > :after"
        f" AND o.saga_id NOT IN :kept AND NOT EXISTS"
        f" (SELECT 1 FROM {table} n WHERE n.saga_id = o.saga_id AND n.created_at >= :mark)"
        " ORDER BY o.saga_id LIMIT :most"
    ).bindparams(bindparam("kept", expanding=True))


def _delete_saga(table: str) -> TextClause:
    return text(f"DELETE FROM {table} WHERE saga_id = :saga_id AND created_at < :mark")


def highest_allowed(oldest_open: float | None, now: float, retention: float = RETENTION) -> float:
    """The highest allowed watermark, seconds since the epoch: at most ``now - retention``, and at most ``oldest_open``,
    the start of the oldest saga that is not final or can still be undone (None if there is none)."""
    limit = now - retention
    return limit if oldest_open is None else min(limit, oldest_open)


async def read(engine: AsyncEngine) -> float:
    """The watermark, seconds since the epoch by Temporal's clock."""
    async with engine.connect() as connection:
        return float((await connection.execute(_SELECT_WATERMARK)).scalar() or 0.0)


async def raise_to(engine: AsyncEngine, mark: float) -> float:
    """Raise the watermark to ``mark``; it never goes down. Returns its current value."""
    async with engine.connect() as connection:
        raised = _RAISE_WATERMARK.format(now=now_sql(engine.dialect.name))
        await connection.execute(text(raised), {"mark": mark})
        return float((await connection.execute(_SELECT_WATERMARK)).scalar() or 0.0)


async def clean_up(
    engine: AsyncEngine,
    *,
    oldest_open: float | None,
    now: float,
    longest_transaction: float,
    retention: float = RETENTION,
    more_tables: Sequence[str] = (),
) -> int:
    """Raise the watermark, wait ``longest_transaction`` seconds, purge the sagas below it; returns how many, in the
    table that had most of them.

    ``more_tables`` also have rows of sagas, with ``saga_id`` and ``created_at``.

    A saga is purged completely or not at all: while one of its rows is above the watermark, an attempt of another of
    its steps may also be. One with a prepared transaction is kept: its rows are locked, and decide about it.
    """
    mark = await raise_to(engine, highest_allowed(oldest_open, now, retention))
    await asyncio.sleep(longest_transaction)
    kept = sorted(await sagas_with_prepared(engine)) or [""]  # an empty list has no type on PostgreSQL
    purged = Counter[str]()
    async with engine.connect() as connection:
        for table in (*_SAGA_TABLES, *more_tables):
            old, forget = _select_expired(table), _delete_saga(table)
            after, is_last = "", False
            while not is_last:
                values = {"mark": mark, "after": after, "kept": kept, "most": _READ_AT_ONCE}
                sagas = (await connection.execute(old, values)).scalars().all()
                for portion in in_portions(sagas, PORTION):
                    await connection.execute(forget, [{"saga_id": saga_id, "mark": mark} for saga_id in portion])
                purged[table] += len(sagas)
                after, is_last = sagas[-1] if sagas else after, len(sagas) < _READ_AT_ONCE
    return max(purged.values(), default=0)

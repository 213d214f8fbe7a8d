"""Claims: which sagas a bulk workflow runs, until their rows are written.

A claim is a row of ``saga_claim``; its key is the saga's id, so an id is claimed once. It is deleted in the transaction
that writes the saga's row of ``saga_run``: an id that has neither is free. Starts of single sagas claim their ids, too,
without a bulk workflow.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.ledger.rows import RunRecord, insert_arrays, storable, write_rows
from saga_activities.ledger.tables import claim_table, definition_table, run_table

_CLAIM = claim_table.c
_RUN = run_table.c
_AT_ONCE = 500
_STARTED_AGAIN = ("COMPENSATED", "RESIDUE")


@dataclass(frozen=True, slots=True)
class NewClaim:
    """An id to claim. ``input_digest``: see :func:`sagas.protocol.payloads.input_digest`."""

    saga_id: str
    input_digest: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it was read. ``bulk_id`` is None for a saga that was started on its own."""

    saga_id: str
    bulk_id: str | None
    saga: str
    input_digest: str
    claimed_at: datetime
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The newest row of a saga that has ended, or is parked. ``generation`` is the highest of its entries."""

    saga_id: str
    saga: str
    state: str
    input_digest: str | None
    generation: int


@dataclass(slots=True)
class ClaimResult:
    """``claimed`` ids are this bulk workflow's now; ``earlier``: what is known of them from before, with ``again``.

    ``ended`` ids have a row, ``taken`` ones a claim of somebody else.
    """

    claimed: set[str] = field(default_factory=set)
    earlier: dict[str, EarlierRun] = field(default_factory=dict)
    ended: dict[str, EarlierRun] = field(default_factory=dict)
    taken: dict[str, Claim] = field(default_factory=dict)


async def claim(
    engine: AsyncEngine,
    claims: Sequence[NewClaim],
    *,
    saga: str,
    bulk_id: str | None,
    at: datetime,
    again: bool = False,
    definition: Mapping[str, Any] | None = None,
) -> ClaimResult:
    """Claim the ids that are free, and tell about the others. Repeating it for the same bulk workflow changes nothing.

    ``again``: also those of sagas that were undone. ``definition`` is kept for the machines that are recorded later.
    """
    result = ClaimResult()
    if definition is not None:
        async with _transaction(engine) as connection:
            await _write_definition(connection, definition)
    for start in range(0, len(claims), _AT_ONCE):
        part = claims[start : start + _AT_ONCE]
        async with _transaction(engine) as connection:
            await _insert_claims(connection, [_row(one, saga, bulk_id, at) for one in part])
            ids = [one.saga_id for one in part]
            held = {one.saga_id: one for one in await _read_claims(connection, ids)}
            ours = [id for id in ids if (own := held.get(id)) is not None and own.bulk_id == bulk_id]
            # Read after the insert: whoever has ended such a saga has deleted its claim in the same transaction.
            earlier = await _read_runs(connection, ours)
            refused = [id for id, run in earlier.items() if not (again and run.state in _STARTED_AGAIN)]
            if refused:
                await connection.execute(sa.delete(claim_table).where(_CLAIM.saga_id.in_(refused)))
        result.taken |= {id: one for id, one in held.items() if one.bulk_id != bulk_id}
        result.ended |= {id: earlier[id] for id in refused}
        result.earlier |= {id: run for id, run in earlier.items() if id not in refused}
        result.claimed |= set(ours) - set(refused)
    return result


async def read_claim(engine: AsyncEngine, saga_id: str) -> Claim | None:
    """The claim of this id; None if there is none."""
    async with engine.connect() as connection:
        return next(iter(await _read_claims(connection, [saga_id])), None)


async def read_claims(engine: AsyncEngine, saga_ids: Sequence[str]) -> dict[str, Claim]:
    """The claim of each id that has one."""
    async with engine.connect() as connection:
        return {one.saga_id: one for one in await _read_claims(connection, saga_ids)}


async def list_claims(engine: AsyncEngine, conditions: Sequence[sa.ColumnElement[bool]], limit: int) -> list[Claim]:
    """The newest claims of bulk workflows that meet the conditions."""
    query = (
        sa.select(claim_table)
        .where(_CLAIM.bulk_id.is_not(None), *conditions)
        .order_by(_CLAIM.claimed_at.desc(), _CLAIM.saga_id)
        .limit(limit)
    )
    async with engine.connect() as connection:
        return [_to_claim(row) for row in await connection.execute(query)]


async def record(engine: AsyncEngine, records: Sequence[RunRecord]) -> None:
    """Write rows of ``saga_run`` and delete the claims of their sagas, in one transaction."""
    async with _transaction(engine) as connection:
        await write_rows(connection, records)
        for start in range(0, len(records), _AT_ONCE):
            ids = [one.saga_id for one in records[start : start + _AT_ONCE]]
            await connection.execute(sa.delete(claim_table).where(_CLAIM.saga_id.in_(ids)))


async def hand_over(engine: AsyncEngine, saga_ids: Sequence[str], bulk_id: str) -> None:
    """The sagas of a bulk workflow have workflows of their own now, as if they had been started alone."""
    async with _transaction(engine) as connection:
        for start in range(0, len(saga_ids), _AT_ONCE):
            condition = sa.and_(_CLAIM.saga_id.in_(saga_ids[start : start + _AT_ONCE]), _CLAIM.bulk_id == bulk_id)
            await connection.execute(sa.update(claim_table).where(condition).values(bulk_id=None))


async def _write_definition(connection: AsyncConnection, definition: Mapping[str, Any]) -> None:
    """Keep a definition under its digest: the machines of bulk workflows are stored without it."""
    values = {"digest": definition["digest"], "definition": json.dumps(definition)}
    dialect = connection.dialect.name
    if dialect in ("mysql", "mariadb"):
        await connection.execute(mysql.insert(definition_table).prefix_with("IGNORE"), values)
        return
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(definition_table)
    await connection.execute(insert.on_conflict_do_nothing(), values)


@asynccontextmanager
async def _transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction on a connection that may be in autocommit mode, as those of guards are."""
    begin = "BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else "START TRANSACTION"
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.exec_driver_sql(begin)
        try:
            yield connection
        except BaseException:
            await connection.exec_driver_sql("ROLLBACK")
            raise
        await connection.exec_driver_sql("COMMIT")


async def _insert_claims(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    dialect = connection.dialect.name
    if dialect == "postgresql":
        insert = postgresql.insert(claim_table).on_conflict_do_nothing()
        await insert_arrays(connection, claim_table, rows, insert)
    elif dialect == "sqlite":
        await connection.execute(sqlite.insert(claim_table).on_conflict_do_nothing(), rows)
    else:
        await connection.execute(mysql.insert(claim_table).prefix_with("IGNORE"), rows)


def _row(new: NewClaim, saga: str, bulk_id: str | None, at: datetime) -> dict[str, Any]:
    return {
        "saga_id": new.saga_id,
        "bulk_id": bulk_id,
        "saga": saga,
        "input_digest": new.input_digest,
        "claimed_at": at,
        "labels": storable(new.labels),
    }


async def _read_claims(connection: AsyncConnection, ids: Sequence[str]) -> list[Claim]:
    rows = await connection.execute(sa.select(claim_table).where(_CLAIM.saga_id.in_(ids)))
    return [_to_claim(row) for row in rows]


def _to_claim(row: Any) -> Claim:
    return Claim(row.saga_id, row.bulk_id, row.saga, row.input_digest, row.claimed_at, row.labels or {})


async def _read_runs(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, EarlierRun]:
    if not ids:
        return {}
    columns = (_RUN.saga_id, _RUN.saga, _RUN.state, _RUN.input_digest, _RUN.generation)
    rows = await connection.execute(sa.select(*columns).where(_RUN.saga_id.in_(ids)).order_by(_RUN.started_at))
    return {row.saga_id: EarlierRun(row.saga_id, row.saga, row.state, row.input_digest, row.generation) for row in rows}


def seconds_to_time(at: float) -> datetime:
    """A time of Temporal's clock."""
    return datetime.fromtimestamp(at, UTC)

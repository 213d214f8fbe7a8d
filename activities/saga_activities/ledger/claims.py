"""Claims: which sagas a bulk workflow runs, until their rows are written.

A claim is a row of ``saga_claim``; its key is the saga's id, so an id is claimed once. It is deleted in the transaction
that writes the saga's row of ``saga_run``: an id that has neither is free. One whose end nobody writes is deleted after
the ledger's retention, see :mod:`saga_activities.ledger.retention`. Starts of single sagas also claim their ids,
without a bulk workflow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_activities.database_clock import database_datetime
from saga_activities.ledger.audit import list_forgetting
from saga_activities.ledger.records import (
    Claim,
    ClaimResult,
    EarlierRun,
    NewClaim,
    RunFilter,
    RunRecord,
    SingleClaim,
)
from saga_activities.ledger.rows import (
    among,
    begins_with,
    has_label,
    insert_together,
    read_newest,
    storable,
    write_rows,
)
from saga_activities.ledger.tables import claim_table, definition_table, run_table
from sagas.portions import in_portions
from sagas.protocol.saga_view import STARTED_AGAIN
from sagas.text.exact_json import encode_json

_CLAIM = claim_table.c
_RUN = run_table.c
_AT_ONCE = 500
_USE_INTERVAL = timedelta(hours=1)


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

    ``again``: also those of sagas that were undone, unless their values are being forgotten. ``definition`` is kept for
    the machines that are recorded later.
    """
    result = ClaimResult()
    if definition is not None:
        async with _transaction(engine) as connection:
            await _write_definition(connection, definition, await database_datetime(connection))
    for part in in_portions(claims, _AT_ONCE):
        async with _transaction(engine) as connection:
            inserted = await _insert_claims(connection, [_row(new, saga, bulk_id, at) for new in part])
            ids = [new.saga_id for new in part]
            others = [id for id in ids if id not in inserted]
            held = {claim.saga_id: claim for claim in await claims_of(connection, others)}
            ours = [id for id in ids if id in inserted or ((own := held.get(id)) and own.bulk_id == bulk_id)]
            # Read after the insert: the end of such a saga has deleted its claim in the same transaction.
            earlier = await runs_of(connection, ours)
            refused = [id for id, run in earlier.items() if not (again and run.state in STARTED_AGAIN)]
            if refused:
                await connection.execute(sa.delete(claim_table).where(among(connection, _CLAIM.saga_id, refused)))
        refused += await _release_forgotten(engine, [id for id in earlier if id not in refused], bulk_id)
        result.taken |= {id: claim for id, claim in held.items() if claim.bulk_id != bulk_id}
        result.ended |= {id: earlier[id] for id in refused}
        result.earlier |= {id: run for id, run in earlier.items() if id not in refused}
    return result


async def _release_forgotten(engine: AsyncEngine, saga_ids: Sequence[str], bulk_id: str | None) -> list[str]:
    """Delete the claims of those of these sagas whose values are being forgotten; their ids.

    Called after the claims are committed: a forget looks for claims after its record, so one of the two refuses.
    """
    forgetting = await list_forgetting(engine, saga_ids) if saga_ids else []
    if forgetting:
        async with _transaction(engine) as connection:
            ours = sa.and_(among(connection, _CLAIM.saga_id, forgetting), _CLAIM.bulk_id == bulk_id)
            await connection.execute(sa.delete(claim_table).where(ours))
    return forgetting


async def claim_single(engine: AsyncEngine, new: NewClaim, *, saga: str) -> SingleClaim:
    """Claim an id for a saga with a workflow of its own, and read what is known of it."""
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        at = await database_datetime(connection)
        while True:
            insert = _insert(connection.dialect.name)
            # Without the option SQLAlchemy does not keep the number of an INSERT.
            inserted = await connection.execute(
                insert, _row(new, saga, None, at), execution_options={"preserve_rowcount": True}
            )
            made = inserted.rowcount == 1
            held = None if made else next(iter(await claims_of(connection, [new.saga_id])), None)
            if made or held is not None:  # else the saga has just ended, and its claim was deleted
                # Read after the insert: the transaction that deleted the claim has written the row of the saga.
                return SingleClaim(at if made else None, held, await read_newest(connection, new.saga_id))


async def release_single(engine: AsyncEngine, saga_id: str, *, at: datetime) -> None:
    """Delete the claim of a single saga that was made ``at`` this time, because no saga was started."""
    await _delete(engine, _CLAIM.saga_id == saga_id, _CLAIM.bulk_id.is_(None), _CLAIM.claimed_at == at)


async def release_unstarted(engine: AsyncEngine, claim: Claim) -> None:
    """Delete the claim of a saga that had not begun when its bulk workflow was closed."""
    await _delete(engine, _CLAIM.saga_id == claim.saga_id, _CLAIM.bulk_id == claim.bulk_id)


async def _delete(engine: AsyncEngine, *conditions: sa.ColumnElement[bool]) -> None:
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(sa.delete(claim_table).where(*conditions))


async def read_claim(engine: AsyncEngine, saga_id: str) -> Claim | None:
    """The claim of this id; None if there is none."""
    async with engine.connect() as connection:
        return next(iter(await claims_of(connection, [saga_id])), None)


async def read_claims(engine: AsyncEngine, saga_ids: Sequence[str]) -> dict[str, Claim]:
    """The claim of each id that has one."""
    async with engine.connect() as connection:
        return {claim.saga_id: claim for claim in await claims_of(connection, saga_ids)}


async def list_bulk_ids(engine: AsyncEngine) -> list[str]:
    """The bulk workflows that have claims."""
    async with engine.connect() as connection:
        query = sa.select(_CLAIM.bulk_id).where(_CLAIM.bulk_id.is_not(None)).distinct()
        return list((await connection.execute(query)).scalars())


async def oldest_bulk_claim(engine: AsyncEngine) -> datetime | None:
    """When the oldest claim of a bulk workflow was made; None if there is none."""
    async with engine.connect() as connection:
        query = sa.select(_CLAIM.claimed_at).where(_CLAIM.bulk_id.is_not(None)).order_by(_CLAIM.claimed_at).limit(1)
        return (await connection.execute(query)).scalar()


async def list_claims(
    engine: AsyncEngine, criteria: RunFilter, limit: int, bulk_ids: Collection[str] | None = None
) -> list[Claim]:
    """The newest claims of bulk workflows that match; a claim has no state. ``bulk_ids``: only theirs."""
    conditions: list[sa.ColumnElement[bool]] = [_CLAIM.bulk_id.is_not(None)]
    if bulk_ids is not None:
        conditions.append(_CLAIM.bulk_id.in_(bulk_ids))
    if criteria.saga is not None:
        conditions.append(_CLAIM.saga == criteria.saga)
    if criteria.since is not None:
        conditions.append(_CLAIM.claimed_at >= criteria.since)
    if criteria.id_prefix:
        conditions.append(begins_with(_CLAIM.saga_id, criteria.id_prefix))
    conditions += [has_label(_CLAIM.labels, name, value) for name, value in criteria.labels.items()]
    order = (_CLAIM.claimed_at.desc(), _CLAIM.saga_id)
    query = sa.select(claim_table).where(*conditions).order_by(*order).limit(limit)
    async with engine.connect() as connection:
        return [_to_claim(row) for row in await connection.execute(query)]


async def oldest_single_claims(engine: AsyncEngine, min_age: timedelta, limit: int) -> list[str]:
    """The ids of sagas with workflows of their own that were claimed this long ago and have not ended."""
    async with engine.connect() as connection:
        query = (
            sa.select(_CLAIM.saga_id)
            .where(_CLAIM.bulk_id.is_(None), _CLAIM.claimed_at < await database_datetime(connection) - min_age)
            .order_by(_CLAIM.claimed_at, _CLAIM.saga_id)
            .limit(limit)
        )
        return list((await connection.execute(query)).scalars())


async def record(engine: AsyncEngine, records: Sequence[RunRecord], *, bulk_id: str | None = None) -> None:
    """Write rows of ``saga_run`` and delete the claims of sagas that have ended, in one transaction.

    A row with a later state stays as it is. At most one record for each key. ``bulk_id``: the bulk workflow in which
    the sagas have ended; None if they had workflows of their own.
    """
    async with _transaction(engine) as connection:
        await write_rows(connection, await _with_claimed_labels(connection, records))
        ended = [record for record in records if record.ended_at is not None]
        for part in in_portions(ended, _AT_ONCE):
            if bulk_id is None:
                await _delete_ended(connection, part)
            else:
                of_these = among(connection, _CLAIM.saga_id, [record.saga_id for record in part])
                await connection.execute(sa.delete(claim_table).where(of_these, _CLAIM.bulk_id == bulk_id))


async def _with_claimed_labels(connection: AsyncConnection, records: Sequence[RunRecord]) -> Sequence[RunRecord]:
    """The records, with the labels of their claims where they have none: an undo may write the first row of a saga."""
    ids = [record.saga_id for record in records if record.labels is None]
    claims = {claim.saga_id: claim for claim in await claims_of(connection, ids)}

    def labelled(record: RunRecord) -> RunRecord:
        claim = claims.get(record.saga_id) if record.labels is None else None
        if claim is None or not claim.may_be_of(record):
            return record
        is_later = claim.claimed_at > record.updated_at  # that of the next generation
        return record if is_later else replace(record, labels=claim.labels)

    return [labelled(record) for record in records] if claims else records


async def _delete_ended(connection: AsyncConnection, records: Sequence[RunRecord]) -> None:
    """Delete the claims of sagas that have ended in workflows of their own; also those that were continued after their
    bulk workflow had been terminated.

    Not that of another saga, which a bulk workflow runs under the same id or has let go: it still takes its claim. Nor
    that of a later generation in a bulk workflow: the row of an earlier one may be written again.
    """
    claims = {claim.saga_id: claim for claim in await claims_of(connection, [record.saga_id for record in records])}

    def is_over(claim: Claim, record: RunRecord) -> bool:
        if claim.is_single_start:
            return True  # whoever has the id: the row keeps bulk workflows from it now
        is_later = record.ended_at is not None and claim.claimed_at > record.ended_at
        return claim.may_be_of(record) and (claim.bulk_id is None or not is_later)

    pairs = [(claims[record.saga_id], record) for record in records if record.saga_id in claims]
    own = {(claim.saga_id, claim.claimed_at) for claim, record in pairs if is_over(claim, record)}
    if own:
        of_these = sa.tuple_(_CLAIM.saga_id, _CLAIM.claimed_at).in_(sorted(own))
        await connection.execute(sa.delete(claim_table).where(of_these))


async def hand_over(engine: AsyncEngine, saga_ids: Sequence[str], *, bulk_id: str) -> None:
    """Make the claims of sagas that have left a bulk workflow those of single sagas.

    They are kept until the sagas have ended: another bulk workflow would run them a second time.
    """
    async with _transaction(engine) as connection:
        for part in in_portions(saga_ids, _AT_ONCE):
            of_these = among(connection, _CLAIM.saga_id, part)
            ours = sa.and_(of_these, _CLAIM.bulk_id == bulk_id)
            run_id = sa.func.coalesce(_CLAIM.run_id, "")  # its run may have taken it
            await connection.execute(sa.update(claim_table).where(ours).values(bulk_id=None, run_id=run_id))


async def take(engine: AsyncEngine, saga_id: str, *, claimed_at: datetime, run_id: str) -> bool:
    """Give the claim of a saga that leaves its bulk workflow to one run, once. False if another run has had it, or if
    the saga has ended since: then the claim is deleted, or that of a later generation.
    """
    this = sa.and_(_CLAIM.saga_id == saga_id, _CLAIM.claimed_at == claimed_at)
    async with _transaction(engine) as connection:
        is_free = sa.func.coalesce(_CLAIM.run_id, "") == ""
        await connection.execute(sa.update(claim_table).where(this, is_free).values(run_id=run_id))
        taken = (await connection.execute(sa.select(_CLAIM.run_id).where(this))).scalar()
    return taken == run_id


async def _write_definition(connection: AsyncConnection, definition: Mapping[str, Any], now: datetime) -> None:
    """Keep a definition under its digest: the machines of bulk workflows are stored without it.

    The time of its use keeps it from the purge until the rows of the sagas are there.
    """
    used = definition_table.c.used_at
    this = definition_table.c.digest == definition["digest"]
    if (await connection.execute(sa.select(used).where(this, used > now - _USE_INTERVAL))).first() is not None:
        return  # most of the time: bulk workflows that start at the same time do not wait for each other
    values = {"digest": definition["digest"], "definition": encode_json(definition).decode(), "used_at": now}
    dialect = connection.dialect.name
    if dialect in ("mysql", "mariadb"):
        upsert: Any = mysql.insert(definition_table).on_duplicate_key_update(used_at=now)
    else:
        upsert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(definition_table)
        upsert = upsert.on_conflict_do_update(index_elements=["digest"], set_={"used_at": now})
    await connection.execute(upsert, values)


@asynccontextmanager
async def _transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction on a connection that may be in autocommit mode, as those of guards are."""
    begin = "BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else "START TRANSACTION"
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.exec_driver_sql(begin)
        try:
            yield connection
        except BaseException:  # also a cancel: no transaction may stay open in the pool
            await connection.exec_driver_sql("ROLLBACK")
            raise
        await connection.exec_driver_sql("COMMIT")


async def _insert_claims(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Insert those that do not exist. The ids that were inserted, as far as the database tells."""
    dialect = connection.dialect.name
    if dialect != "postgresql":
        await connection.execute(_insert(dialect), rows)
        return set()
    statement, parameters = insert_together(claim_table, rows, _insert(dialect))
    return set((await connection.execute(statement.returning(_CLAIM.saga_id), parameters)).scalars())


def _insert(dialect: str) -> Any:
    """A statement that leaves existing claims as they are."""
    if dialect in ("mysql", "mariadb"):
        return mysql.insert(claim_table).prefix_with("IGNORE")
    return (sqlite.insert if dialect == "sqlite" else postgresql.insert)(claim_table).on_conflict_do_nothing()


def _row(new: NewClaim, saga: str, bulk_id: str | None, at: datetime) -> dict[str, Any]:
    return {
        "saga_id": new.saga_id,
        "bulk_id": bulk_id,
        "saga": saga,
        "input_digest": new.input_digest,
        "claimed_at": at,
        "labels": storable(new.labels),
        "run_id": None,
    }


async def claims_of(connection: AsyncConnection, ids: Sequence[str]) -> list[Claim]:
    """The claims of these ids."""
    if not ids:
        return []
    rows = await connection.execute(sa.select(claim_table).where(among(connection, _CLAIM.saga_id, ids)))
    return [_to_claim(row) for row in rows]


def _to_claim(row: Any) -> Claim:
    return Claim(row.saga_id, row.bulk_id, row.saga, row.input_digest, row.claimed_at, row.labels or {}, row.run_id)


async def runs_of(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, EarlierRun]:
    """The newest row of each of these ids that has one."""
    if not ids:
        return {}
    columns = (_RUN.saga_id, _RUN.saga, _RUN.state, _RUN.input_digest, _RUN.generation)
    of_these = among(connection, _RUN.saga_id, ids)
    rows = await connection.execute(sa.select(*columns).where(of_these).order_by(_RUN.started_at))
    return {row.saga_id: EarlierRun(row.saga_id, row.saga, row.state, row.input_digest, row.generation) for row in rows}


def seconds_to_time(at: float | Decimal) -> datetime:
    """A time of Temporal's clock, in milliseconds as views have it: rows of one run are found by it."""
    exact = datetime.fromtimestamp(float(at), UTC)
    return exact.replace(microsecond=exact.microsecond // 1000 * 1000)

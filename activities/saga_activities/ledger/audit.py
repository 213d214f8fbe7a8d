"""The record of who has seen the `x-sensitive` values of a saga in clear, who had them forgotten, and who has started,
operated or decoded what over HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.database_clock import database_datetime
from saga_activities.ledger.rows import among
from saga_activities.ledger.tables import MAX_PAUSE_TEXT, audit_table, run_table
from sagas.definition.times import format_timestamp
from sagas.portions import in_portions
from sagas.protocol.access_view import Access, AccessView
from sagas.text.json_values import encodable
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

_AUDIT = audit_table.c
_RUN = run_table.c
_SHOWN = 100
_SHOWN_REPEATS = 10
"""Starts of an id that exists. A client may repeat one every second, and must not hide the other accesses."""

_IDS_AT_ONCE = 500


async def record_access(
    engine: AsyncEngine, saga_id: str, what: Access, *, who: str, reason: str | None, detail: str | None = None
) -> int:
    """Record an access before it happens; the number of the record."""
    texts = {"who": _stored(who), "reason": reason and _stored(reason), "detail": detail and _stored(detail)}
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        at = await database_datetime(connection)
        row = {"saga_id": saga_id, "what": what, "at": at, **texts}
        written = await connection.execute(sa.insert(audit_table).values(row))
    assert written.inserted_primary_key is not None
    return written.inserted_primary_key[0]


@dataclass(frozen=True, slots=True)
class StartAccess:
    """The start of a saga over HTTP, so many seconds ago."""

    saga_id: str
    who: str
    outcome: str
    age: float


@dataclass(frozen=True, slots=True)
class DecodeAccess:
    """Payloads that a token has had decoded since so many seconds ago. ``row``: the number of their record, if any."""

    who: str
    namespaces: str
    payloads: int
    age: float
    row: int | None


async def record_starts(engine: AsyncEngine, starts: Sequence[StartAccess]) -> None:
    """Record starts after they have been answered."""
    async with engine.begin() as connection:
        now = await database_datetime(connection)
        rows = [
            {
                "saga_id": start.saga_id,
                "what": "start",
                "at": now - timedelta(seconds=start.age),
                "who": _stored(start.who),
                "outcome": start.outcome,
            }
            for start in starts
        ]
        await connection.execute(sa.insert(audit_table), rows)


async def record_decoding(engine: AsyncEngine, access: DecodeAccess) -> int:
    """Record decoded payloads, or how many they have become; the number of the record."""
    counted = {"detail": _stored(access.namespaces), "payloads": access.payloads}
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        if access.row is not None:
            await connection.execute(sa.update(audit_table).where(_AUDIT.id == access.row).values(counted))
            return access.row
        at = await database_datetime(connection) - timedelta(seconds=access.age)
        row = {"saga_id": "", "what": "decode", "at": at, "who": _stored(access.who), **counted}
        written = await connection.execute(sa.insert(audit_table).values(row))
    assert written.inserted_primary_key is not None
    return written.inserted_primary_key[0]


@dataclass(frozen=True, slots=True)
class Decoded:
    """How many payloads one token has had decoded within a period, and when it began to for the last time."""

    who: str
    payloads: int
    last: datetime


async def read_decoded(engine: AsyncEngine, age: timedelta) -> list[Decoded]:
    """The payloads that were decoded within this time, for each token, the latest first."""
    last = sa.func.max(_AUDIT.at, type_=_AUDIT.at.type)
    columns = (_AUDIT.who, sa.func.sum(_AUDIT.payloads).label("payloads"), last.label("last"))
    query = sa.select(*columns).where(_AUDIT.saga_id == "", _AUDIT.what == "decode").group_by(_AUDIT.who)
    async with engine.connect() as connection:
        since = await database_datetime(connection) - age
        rows = (await connection.execute(query.where(_AUDIT.at >= since).order_by(last.desc()))).all()
    return [Decoded(row.who, int(row.payloads or 0), row.last) for row in rows]


async def record_outcome(engine: AsyncEngine, number: int, outcome: str) -> None:
    """Add the answer to the request that has this record."""
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(sa.update(audit_table).where(_AUDIT.id == number).values(outcome=outcome))


def _stored(text: str) -> str:
    """The text on one line, as far as the column has room."""
    return shorten(encodable(printable_line(text)), MAX_PAUSE_TEXT - 1)


async def read_accesses(engine: AsyncEngine, saga_id: str) -> list[AccessView]:
    """The newest hundred accesses to a saga and the newest ten starts that have started nothing, the oldest first."""
    columns = (_AUDIT.id, _AUDIT.what, _AUDIT.at, _AUDIT.who, _AUDIT.reason, _AUDIT.detail, _AUDIT.outcome)
    query = sa.select(*columns).where(_AUDIT.saga_id == saga_id).order_by(_AUDIT.id.desc())
    is_repeat = sa.and_(_AUDIT.what == "start", _AUDIT.outcome != "started")
    async with engine.connect() as connection:
        others = (await connection.execute(query.where(~is_repeat).limit(_SHOWN))).all()
        repeats = (await connection.execute(query.where(is_repeat).limit(_SHOWN_REPEATS))).all()
    rows = sorted([*others, *repeats], key=lambda row: (row.at, row.id))
    return [
        AccessView(
            at=format_timestamp(row.at.timestamp()) or "",
            what=row.what,
            who=row.who,
            reason=row.reason,
            detail=row.detail,
            outcome=row.outcome,
        )
        for row in rows
    ]


async def begin_forgetting(
    engine: AsyncEngine, saga_ids: Sequence[str], *, who: str, reason: str | None, not_before: datetime | None
) -> list[int]:
    """Record that the values of these sagas are about to be forgotten; the numbers of the records.

    ``not_before``: when the saga has ended, by Temporal's clock; that of the database may be late.
    From here on no worker begins an undo of them, or another run.
    """
    ids: list[int] = []
    async with engine.begin() as connection:
        now = await database_datetime(connection)
        at = now if not_before is None else max(now, not_before)
        row = {"what": "forget", "at": at, "who": _stored(who), "reason": reason and _stored(reason)}
        for saga_id in saga_ids:
            written = await connection.execute(sa.insert(audit_table).values({"saga_id": saga_id, **row}))
            primary_key = written.inserted_primary_key
            assert primary_key is not None
            ids.append(primary_key[0])
    return ids


async def withdraw_forgetting(engine: AsyncEngine, ids: Sequence[int]) -> None:
    """Delete the records of :func:`begin_forgetting`: nothing was forgotten."""
    async with engine.begin() as connection:
        for part in in_portions(ids, _IDS_AT_ONCE):
            await connection.execute(sa.delete(audit_table).where(_AUDIT.id.in_(part), _AUDIT.completed_at.is_(None)))


async def complete_forgetting(engine: AsyncEngine, saga_ids: Sequence[str]) -> None:
    """Record that all values of the sagas were replaced that can be."""
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        now = await database_datetime(connection)
        for part in in_portions(saga_ids, _IDS_AT_ONCE):
            open_rows = sa.and_(_AUDIT.saga_id.in_(part), _AUDIT.what == "forget", _AUDIT.completed_at.is_(None))
            await connection.execute(sa.update(audit_table).where(open_rows).values(completed_at=now))


async def begun_forgetting(engine: AsyncEngine, saga_id: str, since: datetime | None) -> AccessView | None:
    """The newest record that the values of the saga are forgotten, or being forgotten; None if there is none.

    ``since``: when the saga was started; a record before that is about an earlier generation of its id.
    """
    query = sa.select(_AUDIT.at, _AUDIT.who, _AUDIT.reason).where(_AUDIT.saga_id == saga_id, _AUDIT.what == "forget")
    if since is not None:
        query = query.where(_AUDIT.at >= since)
    async with engine.connect() as connection:
        row = (await connection.execute(query.order_by(_AUDIT.id.desc()).limit(1))).first()
    if row is None:
        return None
    at = format_timestamp(row.at.timestamp()) or ""
    return AccessView(at=at, what="forget", who=row.who, reason=row.reason)


async def is_forgetting(engine: AsyncEngine, saga_id: str, since: datetime | None) -> bool:
    """True while the values of the saga, which was started ``since``, are being forgotten, also if that was killed."""
    query = sa.select(_AUDIT.id).where(
        _AUDIT.saga_id == saga_id, _AUDIT.what == "forget", _AUDIT.completed_at.is_(None)
    )
    if since is not None:
        query = query.where(_AUDIT.at >= since)
    async with engine.connect() as connection:
        return (await connection.execute(query.limit(1))).first() is not None


async def list_forgetting(engine: AsyncEngine, saga_ids: Sequence[str]) -> list[str]:
    """The ids among these of which the newest saga in the ledger has its values being forgotten."""
    began = sa.select(sa.func.max(_RUN.started_at)).where(_RUN.saga_id == _AUDIT.saga_id).scalar_subquery()
    async with engine.connect() as connection:
        of_these = among(connection, _AUDIT.saga_id, saga_ids)
        query = sa.select(_AUDIT.saga_id).where(of_these, _AUDIT.what == "forget", _AUDIT.completed_at.is_(None))
        return list((await connection.execute(query.where(_AUDIT.at >= began).distinct())).scalars())


async def was_forgotten(engine: AsyncEngine, saga_id: str, since: datetime | None) -> bool:
    """True if all values of the saga, which was started ``since``, were replaced before."""
    query = sa.select(_AUDIT.id).where(_AUDIT.saga_id == saga_id, _AUDIT.completed_at.is_not(None))
    if since is not None:
        query = query.where(_AUDIT.at >= since)
    async with engine.connect() as connection:
        return (await connection.execute(query.limit(1))).first() is not None

"""The check of `saga doctor` for a connection pooler that gives each transaction another session of PostgreSQL."""

from __future__ import annotations

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from saga_workers.doctor.doctor_result import DoctorResult

_LONGEST = 5.0
"""Seconds; a pooler with a single session lets the second transaction wait for the end of the first."""


async def check_session_pooling(name: str, engine: AsyncEngine) -> list[DoctorResult]:
    """Fail if a connection does not keep its session: statements that the driver has prepared, locks of a session and
    prepared transactions do not survive that. Raises SQLAlchemyError.
    """
    if engine.dialect.name != "postgresql":
        return []
    changes = False
    try:
        async with asyncio.timeout(_LONGEST), engine.connect() as first, engine.connect() as second:
            # Two sessions are given back, and a pooler lends the one that came last first.
            before = await _session(first), await _session(second)
            await first.rollback()
            await second.rollback()
            changes = await _session(first) != before[0]
            await first.rollback()
    except TimeoutError:
        what = f"two sessions were not given within {_LONGEST:g} s, so a connection pooler was not looked for"
        return [DoctorResult(f"sessions of {name}", False, what, "look at its limit of connections, and try again")]
    if not changes:
        return []
    message = (
        "a connection pooler gives each transaction another session: steps, the ledger and the relay then lose the "
        "statements that the driver has prepared, and two_phase does not end"
    )
    help = "connect to PostgreSQL itself, or to a pooler that keeps a session for each client (session pooling)"
    return [DoctorResult(f"sessions of {name}", False, message, help)]


async def _session(connection: AsyncConnection) -> int:
    await connection.execution_options(isolation_level="READ COMMITTED")
    return (await connection.execute(text("select pg_catalog.pg_backend_pid()"))).scalar_one()

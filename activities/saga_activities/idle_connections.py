"""Connections that were idle in a pool: checked before their next use.

A firewall or a NAT forgets an idle connection without a word to its ends. Whatever is sent on it afterwards is lost,
and nothing ever comes back, so an attempt would wait for all of its time before it tries a new connection.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

_IDLE_SINCE = "saga_idle_since"
_UNCHECKED = 2.0
"""Seconds for which a connection may be idle and is used without a check, which costs a round trip."""

_ANSWER_TIMEOUT = 1.0
"""Seconds in which a connection must answer, or a new one replaces it."""


def check_idle_connections(engine: Engine) -> None:
    """Replace connections that do not answer any more when the pool gives them out. For PostgreSQL, MySQL, MariaDB."""
    answers = _postgresql_answers if engine.dialect.name == "postgresql" else _mysql_answers

    def returned(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    def given_out(connection: Any, record: Any, _proxy: Any) -> None:
        since = record.info.get(_IDLE_SINCE)
        if since is None or time.monotonic() - since < _UNCHECKED:
            return
        if not connection.run_async(answers):
            raise InvalidatePoolError  # the others have gone the same way

    event.listen(engine, "checkin", returned)
    event.listen(engine, "checkout", given_out)


async def _postgresql_answers(connection: Any) -> bool:
    import psycopg
    from psycopg import generators, waiting

    raw = connection.pgconn
    try:
        raw.send_query(b"")
        # Not by a cursor: cancelled, it would ask the server to cancel the query, and wait for that.
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            await waiting.wait_async(generators.execute(raw), raw.socket, interval=_ANSWER_TIMEOUT)
    except (psycopg.Error, OSError, TimeoutError):
        raw.finish()
        return False
    return True


async def _mysql_answers(connection: Any) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            await connection.ping(reconnect=False)
    except Exception:  # noqa: BLE001  the driver has errors of its own for each way in which a connection breaks
        return False
    return True

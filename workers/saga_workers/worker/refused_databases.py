"""Looks, when a worker starts, for databases that it will not use."""

from __future__ import annotations

import asyncio
import logging

from sqlalchemy.exc import SQLAlchemyError

from saga_activities.connections import DatabaseConnections
from saga_activities.foreign_rights import ForeignRights
from sagas.errors import UsageError

_TIMEOUT = 15.0
"""Seconds; a database that does not answer is reported by the attempts that use it."""

log = logging.getLogger("saga.worker")


async def log_refused_databases(databases: DatabaseConnections) -> None:
    """Log an error for each database in which other roles can run code as the worker."""
    for name in databases.names():
        try:
            engine = databases.engine(name)
            if engine.dialect.name == "postgresql":
                async with asyncio.timeout(_TIMEOUT), engine.connect():
                    pass
        except ForeignRights as error:
            log.error("%s", error)
        except (SQLAlchemyError, OSError, TimeoutError, UsageError):
            continue

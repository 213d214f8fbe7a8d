"""The statements and errors of the ledger's database, imported when it is asked for the first time."""

from __future__ import annotations

from sqlalchemy.exc import DataError, SQLAlchemyError

from saga_activities.guard.unreadable_rows import ChangedRow, MissingRowKey
from saga_activities.ledger import audit, batches, circuit_breakers, claims, forgetting, identity, pauses, period, rows
from saga_workers.runtime.database_access import driver_message

__all__ = [
    "ChangedRow",
    "DataError",
    "MissingRowKey",
    "SQLAlchemyError",
    "audit",
    "batches",
    "circuit_breakers",
    "claims",
    "driver_message",
    "forgetting",
    "identity",
    "pauses",
    "period",
    "rows",
]

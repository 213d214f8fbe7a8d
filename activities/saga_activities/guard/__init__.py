"""The guard room: a step's effect and its memory, in one local transaction."""

from __future__ import annotations

from saga_activities.guard.address import Address
from saga_activities.guard.guard import Guard
from saga_activities.guard.protocol import Body, Mode
from saga_activities.guard.sql_handle import Row, Sql, SyncSql

__all__ = ["Address", "Body", "Guard", "Mode", "Row", "Sql", "SyncSql"]

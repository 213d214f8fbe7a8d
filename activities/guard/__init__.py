"""The guard room: a step's effect and its memory, in one local transaction."""

from __future__ import annotations

from activities.guard.address import Address
from activities.guard.guard import Guard
from activities.guard.protocol import Body, Mode
from activities.guard.sql_handle import Row, Sql, SyncSql

__all__ = ["Address", "Body", "Guard", "Mode", "Row", "Sql", "SyncSql"]

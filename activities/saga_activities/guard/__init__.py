"""The guard room: a step's effect and its memory, in one local transaction."""

from __future__ import annotations

from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import GuardedBody, GuardMode
from saga_activities.guard.session import Row, SqlSession, SyncSqlSession
from saga_activities.guard.tables import EntryKey

__all__ = ["EntryKey", "Guard", "GuardMode", "GuardedBody", "Row", "SqlSession", "SyncSqlSession"]

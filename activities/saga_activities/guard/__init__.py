"""The guard: records each operation of a step in the same local transaction as its effect."""

from __future__ import annotations

from saga_activities.guard.action_sql import ActionSql, SyncActionSql
from saga_activities.guard.guard import Guard
from saga_activities.guard.rules import GuardedBody, GuardMode
from saga_activities.guard.sql_session import Row, SqlSession
from saga_activities.guard.tables import EntryKey

__all__ = ["ActionSql", "EntryKey", "Guard", "GuardMode", "GuardedBody", "Row", "SqlSession", "SyncActionSql"]

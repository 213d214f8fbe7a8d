"""The setting ``bulk_wait`` of `[serve]` and `[enqueue]`: the time in which starts share a workflow."""

from __future__ import annotations

from sagas.errors import UsageError
from sagas.settings import Settings

MAX_BULK_WAIT = 1.0
"""Seconds."""


def check_bulk_wait(settings: Settings, table: str, bulk_wait: float) -> None:
    """Raise UsageError if starts are to share workflows in a project without a ledger, or after too long a wait."""
    if bulk_wait > MAX_BULK_WAIT:
        raise UsageError(
            f"{table}.bulk_wait is longer than {MAX_BULK_WAIT:g}s, for which starts would wait for each other",
            help='write a duration such as bulk_wait = "250ms"',
        )
    if bulk_wait > 0 and settings.ledger.connection is None:
        raise UsageError(
            f"{table}.bulk_wait needs a ledger, which keeps the states of sagas that share a workflow",
            help="set [ledger] connection in saga.toml, and run saga setup",
        )

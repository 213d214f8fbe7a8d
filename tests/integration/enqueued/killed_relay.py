"""Points of the delivery at which a relay, or a worker that delivers, kills itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from saga_workers.enqueued.deliveries import Deliveries
from saga_workers.enqueued.enqueued_table import EnqueuedTable
from saga_workers.enqueued.row_delivery import RowDelivery
from saga_workers.start.start_answers import StartAnswers

POINTS: dict[str, tuple[type, str, bool]] = {
    "rows are read": (Deliveries, "take_rows", True),
    "before a saga is started": (RowDelivery, "deliver", False),
    "a saga is started": (RowDelivery, "deliver", True),
    "before rows are deleted": (EnqueuedTable, "delete", False),
    "rows are deleted": (EnqueuedTable, "delete", True),
}
SHARED_POINTS: dict[str, tuple[type, str, bool]] = {
    "before a group is started": (StartAnswers, "answer", False),
    "a group is started": (StartAnswers, "answer", True),
}
"""With ``bulk_wait``, under which a group of rows is started in one workflow."""

"""Name: the method, and whether the process dies after it."""


def die_at(point: str, count: int) -> None:
    """Let this process die when it passes the point for this number of times."""
    owner, name, after = (POINTS | SHARED_POINTS)[point]
    method: Callable[..., Awaitable[Any]] = getattr(owner, name)
    passed = 0

    async def dying(*args: Any) -> Any:
        nonlocal passed
        result = await method(*args) if after else None
        passed += 1
        if passed == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result if after else await method(*args)

    setattr(owner, name, dying)

"""Updates of bulk workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.updates import send_update

UPDATE_TIMEOUT = 30.0
"""Seconds. A saga leaves only after its chunk has ended, and other sagas may be leaving at the same time."""


async def update_bulk_workflow(temporal: Temporal, bulk_id: str, name: str, arguments: Sequence[Any]) -> Any:
    """The answer of a bulk workflow; None if it has ended, and so every saga in it has left or ended.

    Raises like :func:`send_update`.
    """
    try:
        return await send_update(temporal, bulk_id, name, arguments, timeout=UPDATE_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise

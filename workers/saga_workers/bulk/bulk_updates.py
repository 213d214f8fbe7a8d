"""Updates of bulk workflows."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

UPDATE_TIMEOUT = 30.0
"""Seconds. A saga leaves only after its chunk has ended, and other sagas may be leaving at the same time."""

_BUSY = (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNAVAILABLE)
_BUSY_INTERVAL = 0.2


async def update_bulk_workflow(temporal: Temporal, bulk_id: str, name: str, arguments: Sequence[Any]) -> Any:
    """The response of a bulk workflow; None if it has ended, and so every saga in it has left or ended.

    While Temporal is busy or unreachable, the same update is sent again. Raises TimeoutError without a response,
    WorkflowUpdateFailedError, and other errors of Temporal.
    """
    handle = temporal.get_workflow_handle(bulk_id)
    update_id = str(uuid.uuid4())  # an update whose answer was lost is not carried out a second time
    until = time.monotonic() + UPDATE_TIMEOUT
    while True:
        seconds = until - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                timeout = timedelta(seconds=UPDATE_TIMEOUT)
                return await handle.execute_update(name, args=arguments, id=update_id, rpc_timeout=timeout)
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise TimeoutError from error
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            if error.status not in _BUSY or seconds < 1.0:
                raise
        # Temporal limits the updates in flight of one workflow.
        await asyncio.sleep(_BUSY_INTERVAL)

"""Updates: requests to a running workflow, whose answers come from its worker."""

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

_BUSY = (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNAVAILABLE)
_BUSY_INTERVAL = 0.2


async def send_update(
    temporal: Temporal,
    workflow_id: str,
    name: str,
    arguments: Sequence[Any],
    *,
    timeout: float,
    update_id: str | None = None,
) -> Any:
    """The answer to an update. While Temporal is busy or unreachable, the same update is sent again.

    Raises TimeoutError without an answer within ``timeout`` seconds, WorkflowUpdateFailedError, and other errors of
    Temporal, such as NOT_FOUND without an open run.
    """
    handle = temporal.get_workflow_handle(workflow_id)
    id = update_id or str(uuid.uuid4())  # an update whose answer was lost is not carried out a second time
    until = time.monotonic() + timeout
    while True:
        seconds = until - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await handle.execute_update(name, args=arguments, id=id, rpc_timeout=timedelta(seconds=timeout))
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise TimeoutError from error
        except RPCError as error:
            if error.status not in _BUSY or seconds < 1.0:
                raise
        # Temporal limits the updates in flight of one workflow.
        await asyncio.sleep(_BUSY_INTERVAL)

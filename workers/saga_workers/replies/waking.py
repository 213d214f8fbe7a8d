"""From a recorded reply to the attempt that waits for it: Temporal takes its end from any process with its token."""

from __future__ import annotations

import logging

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from saga_activities.request.reply import outcome_of
from saga_activities.request.rows import Request
from saga_activities.temporal import failure_of
from sagas.wire import encode_done

log = logging.getLogger("saga.replies")

_GONE = (RPCStatusCode.NOT_FOUND,)
"""The attempt is over: it timed out, the saga turned back, or it has been told already."""

_NEVER = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED)


async def wake(client: Client, found: Request, key: str) -> bool:
    """Tell the waiting attempt what the row says; False when nobody waits any more.

    Whoever asks next finds the reply in the row, so being late loses nothing. Raises RPCError: Temporal is not there.
    """
    if found.waiter is None or found.outcome is None:
        return False
    outcome = outcome_of(found.outcome, found.data or "null", found.waiter.attempt)
    handle = client.get_async_activity_handle(task_token=found.waiter.token)
    try:
        if outcome.kind == "done":
            await handle.complete(encode_done(outcome, found.waiter.attempt))
        else:
            await handle.fail(failure_of(outcome, found.waiter.attempt))
    except RPCError as error:
        if error.status in _GONE:
            log.info("%s: the reply is recorded; the attempt that waited for it is over", key)
            return False
        if error.status in _NEVER:
            log.error("%s: Temporal does not take the reply (%s); the next attempt finds it", key, error.message)
            return False
        raise
    return True

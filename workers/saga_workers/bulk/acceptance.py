"""The acceptance of a bulk workflow: until a worker has claimed the ids, it may still refuse all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError, TemporalError
from temporalio.service import RPCError, RPCStatusCode

from sagas.bulk.names import CLAIMED_UPDATE
from sagas.errors import SagaError
from sagas.protocol.payloads import REFUSED_TYPE

CLAIM_TIMEOUT = 8.0
"""Seconds to wait until a worker has claimed the ids of a bulk workflow."""


class NotClaimed(SagaError):
    """No worker has claimed the saga yet, and the one that does so may refuse it."""

    def __init__(self, saga_id: str) -> None:
        self.saga_id = saga_id
        super().__init__(help=f"start {saga_id} again with the same id and input; it runs once")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``elsewhere``: the ids that the workflow has not claimed, so that others answer for them.

    These are all of its sagas if it was refused, with the reason ``refusal``. ``refused``: why single inputs were.
    """

    elsewhere: Set[str]
    refusal: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


def refusal_of(error: WorkflowFailureError) -> str | None:
    """Why a worker has refused a bulk workflow; None if it failed otherwise."""
    cause = error.cause
    return cause.message if isinstance(cause, ApplicationError) and cause.type == REFUSED_TYPE else None


async def wait_accepted(handle: WorkflowHandle[Any, Any], ids: Collection[str]) -> Acceptance | None:
    """Return what has become of the ids of a bulk workflow; None if no worker tells in time."""
    # With an id of its own, repeats wait for the same update: Temporal holds only few that no worker has answered.
    update = handle.execute_update(CLAIMED_UPDATE, id=CLAIMED_UPDATE, result_type=dict)
    try:
        return await _wait_accepted(handle, ids, update)
    except RPCError:
        return None


async def start_accepted(
    temporal: Client, start: WithStartWorkflowOperation[Any, Any], id: str, ids: Collection[str]
) -> Acceptance | None:
    """Start the bulk workflow ``id``, as :func:`wait_accepted`. Sent with the start, the update takes no workflow task
    of its own.

    Raises RPCError if Temporal does not answer, or refuses the start.
    """
    update = temporal.execute_update_with_start_workflow(
        CLAIMED_UPDATE, start_workflow_operation=start, id=CLAIMED_UPDATE, result_type=dict
    )
    started = asyncio.ensure_future(start.workflow_handle())
    try:
        return await _wait_accepted(temporal.get_workflow_handle(id), ids, update)
    finally:
        # The SDK keeps the error of a start that nobody waits for any more, and asyncio prints one that nobody reads.
        started.cancel()
        await asyncio.wait({started})
        if not started.cancelled():
            started.exception()


async def _wait_accepted(
    handle: WorkflowHandle[Any, Any], ids: Collection[str], update: Awaitable[Mapping[str, Any]]
) -> Acceptance | None:
    try:
        async with asyncio.timeout(CLAIM_TIMEOUT):
            claimed = await _claimed(handle, update)
    except WorkflowFailureError as error:
        return Acceptance(frozenset(ids), refusal_of(error))
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Acceptance(frozenset(ids))  # Temporal has deleted it
    except (TimeoutError, TemporalError):
        return None
    return Acceptance({*claimed["existing"], *claimed.get("alone", ())}, refused=claimed.get("refused", {}))


async def _claimed(handle: WorkflowHandle[Any, Any], update: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return await update
    except WorkflowUpdateFailedError:
        return await handle.result()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return await handle.result()  # it has ended already

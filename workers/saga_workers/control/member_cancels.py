"""Cancels many sagas of bulk workflows where they are: one request for all that share a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.temporal.temporal_runs import count_pollers, describe_run
from sagas.bulk.wire_format import CANCEL_UPDATE

ANSWER_TIMEOUT = 30.0
"""Seconds within which a worker answers for a bulk workflow."""


async def cancel_members(
    temporal: Temporal, ledger: RunLedger, saga_ids: Sequence[str], request: Mapping[str, Any]
) -> dict[str, str]:
    """Cancel those of the sagas that bulk workflows run; returns what the cancel means for each of them.

    Those that have left or ended, and those whose bulk workflow does not answer, are missing: they have to be asked one
    by one. ``request``: as the update `cancel` of a single saga takes it. Raises LedgerUnavailable.
    """
    members: dict[str, list[str]] = {}
    for id, claim in (await ledger.claims(saga_ids)).items():
        if claim.bulk_id is not None:
            members.setdefault(claim.bulk_id, []).append(id)
    answers = await asyncio.gather(*(_cancel(temporal, bulk_id, ids, request) for bulk_id, ids in members.items()))
    return {id: answer for one in answers for id, answer in one.items()}


async def _cancel(
    temporal: Temporal, bulk_id: str, saga_ids: Sequence[str], request: Mapping[str, Any]
) -> Mapping[str, str]:
    described = await describe_run(temporal, bulk_id)
    if described is None or not described.run.running or not await count_pollers(temporal, described.run.task_queue):
        return {}
    handle = temporal.get_workflow_handle(bulk_id)
    timeout = timedelta(seconds=ANSWER_TIMEOUT)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await handle.execute_update(CANCEL_UPDATE, args=[list(saga_ids), request], rpc_timeout=timeout)
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowUpdateFailedError):
        return {}
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return {}

"""Cancels many sagas of bulk workflows where they are: one request for all that share a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowUpdateFailedError

from saga_workers.control.bulk_updates import update_bulk_workflow
from saga_workers.ledger.run_ledger import RunLedger
from saga_workers.temporal.temporal_runs import count_pollers, describe_run
from sagas.bulk.wire_format import CANCEL_UPDATE


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
    try:
        return await update_bulk_workflow(temporal, bulk_id, CANCEL_UPDATE, [list(saga_ids), request]) or {}
    except (TimeoutError, WorkflowUpdateFailedError):
        return {}

"""Reads what a saga was really given and has returned, from wherever it still is."""

from __future__ import annotations

from typing import Any

from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.machine_query import query_machine, read_machine, verifying_keys
from saga_workers.temporal.saga_input import UnreadableRunInput, first_input
from saga_workers.temporal.temporal_runs import RunDescription, count_pollers
from sagas.errors import RefusedError
from sagas.protocol.payloads import unpack_state


async def read_state(locator: Locator, location: Location) -> dict[str, Any] | None:
    """The state of the machine: its run, its bulk workflow or the ledger has it. None if none of them answers, or it is
    encrypted with a key that is not here. Raises SagaError for a state in the ledger that cannot be read here.
    """
    for run in (location.undo, location.run):
        if run is not None and (state := await _of_run(locator, run)) is not None:
            return state
    if location.member is not None and location.member.bulk is not None:
        return await _of_member(locator, location.member.bulk, location.saga_id)
    packed = await locator.ledger.machine(location.saga_id)
    return None if packed is None else unpack_state(packed)


async def read_input(locator: Locator, location: Location) -> Any:
    """The input of the saga from the beginning of its history, which needs no worker; None if it cannot be read."""
    if location.run is None:
        return None
    try:
        return await first_input(locator.temporal, location.run, locator.keys)
    except (UnreadableRunInput, RPCError):
        return None


async def _of_run(locator: Locator, described: RunDescription) -> dict[str, Any] | None:
    try:
        return await read_machine(locator.temporal, described.run, locator.settings)
    except UNREADABLE_PAYLOAD:
        return None


async def _of_member(locator: Locator, bulk: RunDescription, saga_id: str) -> dict[str, Any] | None:
    if not await count_pollers(locator.temporal, bulk.run.task_queue):
        return None
    run_id = (bulk.run.id, bulk.run.run_id)
    try:
        packed = await query_machine(locator.temporal, run_id, verifying_keys(locator.settings), member=saga_id)
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError, RefusedError, *UNREADABLE_PAYLOAD):
        return None
    return None if packed is None else unpack_state(packed)

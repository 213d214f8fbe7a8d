"""Asks a run for the state of a saga's machine, and believes only an answer that the project has signed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError, RPCStatusCode

from saga_workers.temporal.foreign_payloads import UNREADABLE_PAYLOAD
from saga_workers.temporal.temporal_runs import RunInfo, count_pollers
from sagas.definition.model import Definition
from sagas.definition.snapshot import from_snapshot
from sagas.errors import RefusedError
from sagas.protocol.payloads import MACHINE_QUERY, VIEW_QUERY, unpack_state
from sagas.protocol.signed_content import message_content
from sagas.settings import Settings
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.json_payloads import question

_QUERY_TIMEOUT = timedelta(seconds=5)


async def query_machine(
    temporal: Temporal,
    run_id: tuple[str, str],
    keys: SigningKeys | None,
    *,
    member: str | None = None,
    timeout: timedelta | None = None,
) -> str | None:
    """The state as :func:`sagas.protocol.payloads.pack_state` writes it; None if the saga has not begun.

    ``run_id``: the ids of workflow and run. ``member``: the saga, if this is a bulk workflow. ``keys``: those of the
    project; None if it accepts anything.

    Raises RefusedError if no worker with such a key has answered this very query, and what a query raises.
    """
    workflow_id, run = run_id
    saga_id, nonce = member or workflow_id, secrets.token_hex(16)
    args = [nonce] if member is None else [member, nonce]
    handle = temporal.get_workflow_handle(workflow_id, run_id=run)
    answer: Any
    try:
        answer = await handle.query(MACHINE_QUERY, args=[question(each) for each in args], rpc_timeout=timeout)
    except UNREADABLE_PAYLOAD as error:
        raise RefusedError(f"the answer of {saga_id} cannot be read: {error}") from error
    if answer is None:
        return None
    if isinstance(answer, Mapping) and isinstance(packed := answer.get("machine"), str):
        content = message_content([saga_id, run, nonce], answer)
        if keys is None or keys.verifies("state", content, answer.get("signature")):
            return packed
    raise RefusedError(
        f"the state of {saga_id} is not signed with a key of this project, so it is not used; clients and workers need "
        "the worker.definition_key with which the saga was started"
    )


async def read_definition(temporal: Temporal, run: RunInfo, settings: Settings | None) -> Definition | None:
    """Query the run for its definition; None if no worker answers in time or it has not loaded one yet."""
    state = await read_machine(temporal, run, settings)
    return None if state is None else from_snapshot(state["definition"])


async def read_machine(temporal: Temporal, run: RunInfo, settings: Settings | None) -> dict[str, Any] | None:
    """Query the run for the state of its machine; None if no worker answers in time, with a key of the project, or if
    it has not begun.
    """
    if not await count_pollers(temporal, run.task_queue):
        return None
    try:
        packed = await query_machine(temporal, (run.id, run.run_id), verifying_keys(settings), timeout=_QUERY_TIMEOUT)
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError, RefusedError):
        return None
    return unpack_state(packed) if packed else None


async def answers_no_query(temporal: Temporal, run: RunInfo) -> bool:
    """True if Temporal passes no query on to a closed run, now or later: its workflow task had failed again and again,
    or it was closed before the first one.
    """
    try:
        await temporal.get_workflow_handle(run.id, run_id=run.run_id).query(VIEW_QUERY, rpc_timeout=_QUERY_TIMEOUT)
    except RPCError as error:
        return not run.running and error.status is RPCStatusCode.FAILED_PRECONDITION
    except (WorkflowQueryFailedError, WorkflowQueryRejectedError, *UNREADABLE_PAYLOAD):
        return False
    return False


def verifying_keys(settings: Settings | None) -> SigningKeys | None:
    """The keys with which answers are verified; None if the project accepts anything, or if there is no project."""
    return None if settings is None or settings.worker.accept == "any" else settings.signing_keys(create=False)

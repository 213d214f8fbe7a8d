"""The definition a run carries: the one it was started with, whatever the project's files say today."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.service import RPCError

from saga_workers.pollers import count_pollers
from saga_workers.runs import RunInfo
from sagas.definition.model import Definition
from sagas.wire import unpack_state

_PATIENCE = timedelta(seconds=5)


async def definition_of(temporal: Temporal, run: RunInfo) -> Definition | None:
    """What the run itself answers; None when it cannot: nobody polls, it is not in time, it has not begun."""
    from sagas.machine.machine import Machine

    if not await count_pollers(temporal, run.task_queue):
        return None
    handle = temporal.get_workflow_handle(run.id, run_id=run.run_id)
    try:
        packed = await handle.query("machine", result_type=str, rpc_timeout=_PATIENCE)
    except (RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
        return None
    return Machine.restore(unpack_state(packed)).definition if packed else None

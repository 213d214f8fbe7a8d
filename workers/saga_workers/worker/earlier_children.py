"""Looks up how an earlier child has ended: a nested saga of a run of its parent that has not started it itself."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client as Temporal
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue

from saga_workers.temporal.saga_runs import describe_saga_run
from saga_workers.temporal.temporal_runs import RunDescription
from saga_workers.views.saga_view import view_of_run
from sagas.machine.parked import MOST_REPORTED
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.workflow.failures import child_result
from sagas.workflow.json_payloads import read_payload


async def look_up_earlier_child(temporal: Temporal, saga_id: str, parent: str) -> dict[str, Any]:
    """Return the ``state`` of the newest run of the nested saga, or undo, ``saga_id``, without refused ones: RUNNING;
    how it has ended, with the ``result`` of the run (COMPLETED) or the ``view`` in its failure; TERMINATED if there is
    none; FOREIGN if it was not started by the saga ``parent``.

    Raises RPCError.
    """
    described = await describe_saga_run(temporal, saga_id)
    if described is None:
        return {"state": "TERMINATED"}
    run = described.run
    # Temporal itself writes the parent of a run: no client that starts one can.
    if run.parent_id not in (parent, parent + UNDO_SUFFIX):
        return {"state": "FOREIGN"}
    if run.running:
        return await _running(temporal, described)
    if run.status is WorkflowExecutionStatus.COMPLETED:
        handle = temporal.get_workflow_handle(run.id, run_id=run.run_id, result_type=RawValue)
        return {"state": "COMPLETED", "result": read_payload((await handle.result()).payload)}
    try:
        await temporal.get_workflow_handle(run.id, run_id=run.run_id).result(follow_runs=False)
    except WorkflowFailureError as error:
        state, view = child_result(error.cause, saga_id, run.workflow_type)
        return {"state": state, "view": None if view is None else view.to_json()}
    return {"state": "TERMINATED"}


async def _running(temporal: Temporal, described: RunDescription) -> dict[str, Any]:
    """The answer for an open run. ``run_id``: that of its first run, for which a cancel is signed. ``waits``: what
    waits in it for an operator.
    """
    run, view = described.run, await view_of_run(temporal, described)
    saga_id = run.id.removesuffix(UNDO_SUFFIX)
    waits = [{"id": saga_id, "saga": view.saga, **parked.to_json()} for parked in view.parked]
    return {
        "state": "RUNNING",
        "run_id": run.raw.first_run_id or run.run_id,
        "saga_state": view.state,
        "blocked": view.waits_for_a_person,
        "waits": waits[:MOST_REPORTED],
    }

"""Looks up how an earlier child has ended: a nested saga of which its parent has not seen the end.

Another run of the parent has started it, or an operator has continued it after it was terminated, in the workflow of
its undo. What a closed run says of its end counts only if the project has signed it: a run has the parent that its
start names, and anybody may close a workflow that has the id of the parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue

from saga_workers.location.location import Location
from saga_workers.location.locator import Locator
from saga_workers.location.served_runs import is_on_own_queue
from saga_workers.location.traces import effects_with_nested, open_effects_of_all, undecided_undo
from saga_workers.location.verified_outcomes import outcome_of
from saga_workers.temporal.foreign_payloads import UNREADABLE_VALUE, read_single_payload
from saga_workers.temporal.holding_runs import holder_in_words
from saga_workers.temporal.root_starts import nested_root_start
from saga_workers.temporal.run_history import start_of_run
from saga_workers.temporal.temporal_runs import (
    RunDescription,
    RunInfo,
    count_pollers,
    describe_run,
    list_runs_below,
)
from saga_workers.views.answering import Workers
from saga_workers.views.saga_view import view_of_run
from sagas.machine.parked import MOST_REPORTED
from sagas.protocol.nested_result import completed_child
from sagas.protocol.origin import same_owner
from sagas.protocol.payloads import NOTIFICATION_WORKFLOW, UNDO_SUFFIX, is_delivery_id
from sagas.protocol.redelivery_names import REDELIVERY_WORKFLOW
from sagas.protocol.saga_view import SagaView
from sagas.protocol.signed_content import message_content
from sagas.settings import Settings
from sagas.settings.signing_keys import Purpose, SigningKeys
from sagas.workflow.failures import child_result
from sagas.workflow.json_payloads import read_payload


async def look_up_earlier_child(
    settings: Settings, locator: Locator, id: str, parent: str, root_start: str, *, undone: bool = False
) -> dict[str, Any]:
    """Return the ``state`` of the nested saga ``id``, or of its undo, if the id is that of one: RUNNING, or its end
    with its ``view``. TERMINATED: it can be continued; GONE: there is no run that has ended by itself; UNSIGNED: the
    project has not signed the end; FOREIGN: the saga ``parent``, whose root saga is known by ``root_start``, has not
    started the open run, whose ``holder`` says which one it is, and the nested saga has these ``effects``, which may be
    none; FREE: nor has it become a saga.

    ``undone``: it is to be undone, so of one that is GONE also ``why`` it cannot be started again for that, or None.

    Of a notification or a redelivery: OWN or FOREIGN for its open run, FREE without one.

    Raises RPCError, and SagaError for a guard that cannot be read.
    """
    if is_delivery_id(id):
        return await _delivery(locator, id)
    location = await locator.within_temporal().locate(id)
    if (
        id.endswith(UNDO_SUFFIX)
        and (stranger := await _stranger_with_undo_id(settings, locator, location, parent)) is not None
    ):
        return await _foreign(settings, stranger, id)
    child = location.run
    if child is not None and child.run.parent_id not in (parent, parent + UNDO_SUFFIX):
        # Temporal itself writes the parent of a run.
        if location.kind == "unknown" and not undone:
            return {"state": "FREE"}
        if not child.run.running and undone:
            return {"state": "GONE", "why": await _why_not_again(settings, locator, id)}
        if not child.run.running:
            return {"state": "UNSIGNED"}
        return await _foreign(settings, child.run, id)
    if child is not None and not same_owner(await nested_root_start(child.run), root_start):
        # Another saga that has had the id of the parent has started it.
        if child.run.running:
            return await _foreign(settings, child.run, id)
        return {"state": "GONE", **({"why": await _why_not_again(settings, locator, id)} if undone else {})}
    if (undo := location.undo) is not None and not same_owner(await nested_root_start(undo.run), root_start):
        if undo.run.running:
            return await _foreign(settings, undo.run, id)
        location = replace(location, undo=None)
    if id.endswith(UNDO_SUFFIX):
        return await _undo(locator, location)
    if location.open_run is not None:
        return await _running(locator, location.open_run)
    end = None if location.undo is None else await _closed(locator, location.undo.run)
    if end is None or end["state"] == "REFUSED":  # a refused undo has changed nothing
        end = {"state": "GONE"} if child is None else await _closed(locator, child.run)
    if end["state"] == "REFUSED" and await _open_effects(settings, id):
        end = {"state": "GONE"}  # no step of this run has run, but one before it was deleted
    if undone and child is None and end["state"] == "GONE":
        return {**end, "why": await _why_not_again(settings, locator, id)}
    return end


async def _foreign(settings: Settings, run: RunInfo, id: str) -> dict[str, Any]:
    return {"state": "FOREIGN", "holder": holder_in_words(run), "effects": await _open_effects(settings, id)}


async def _stranger_with_undo_id(
    settings: Settings, locator: Locator, location: Location, parent: str
) -> RunInfo | None:
    """The open run with the id of the undo of a nested saga that is none; None if it may be one, or if there is none.

    The undo of an operator has no parent, but a worker.
    """
    described = await describe_run(locator.temporal, location.saga_id + UNDO_SUFFIX)
    if described is None or not described.run.running:
        return None
    run, undo = described.run, location.undo
    if undo is None or undo.run.run_id != run.run_id:
        return run
    if run.parent_id in (parent, parent + UNDO_SUFFIX) or run.task_queue == settings.temporal.task_queue:
        return None
    return None if await count_pollers(locator.temporal, run.task_queue) else run


async def _open_effects(settings: Settings, id: str) -> str:
    id = id.removesuffix(UNDO_SUFFIX)
    return open_effects_of_all(await effects_with_nested(settings, id), id)


async def _delivery(locator: Locator, id: str) -> dict[str, Any]:
    """The answer about a notification or a redelivery: its run counts if the project has signed its order."""
    described = await describe_run(locator.temporal, id)
    if described is None or not described.run.running:
        return {"state": "FREE"}
    run = described.run
    if (purpose := _PURPOSES.get(run.workflow_type)) is not None and is_on_own_queue(locator, run):
        started = await start_of_run(locator.temporal, id, run.run_id)
        if started is not None and await _is_signed(locator.keys, run, purpose, started.input.payloads):
            return {"state": "OWN"}
    return {"state": "FOREIGN", "holder": holder_in_words(run)}


_PURPOSES: Mapping[str, Purpose] = {NOTIFICATION_WORKFLOW: "notification", REDELIVERY_WORKFLOW: "redelivery"}
"""The purpose of the signature of an order, by the type of the run that it has started."""


async def _is_signed(keys: SigningKeys | None, run: RunInfo, purpose: Purpose, payloads: Sequence[Payload]) -> bool:
    if keys is None or not keys.keys:
        return True
    try:
        order = await read_single_payload(payloads, run.converter)
    except UNREADABLE_VALUE:
        return False
    signature = order.get("signature") if isinstance(order, dict) else None
    return isinstance(order, dict) and keys.verifies(purpose, message_content([run.id], order), signature)


async def _why_not_again(settings: Settings, locator: Locator, id: str) -> str | None:
    """Why a nested saga whose run was deleted cannot be started again to be undone; None if the guards know enough, or
    if sagas that are nested in it are known, which it undoes then.
    """
    deleted = "Temporal has no run of it any more, and"
    effects = await effects_with_nested(settings, id)
    if not any(effects.values()) and not await _has_nested_runs(locator, id):
        return f"{deleted} no guard has an effect of it: undo by hand what it has done, then decide `done`"
    problem = undecided_undo(id, effects[id])
    return None if problem is None else f"{deleted} {problem}; undo the rest by hand, then decide `done`"


async def _has_nested_runs(locator: Locator, id: str) -> bool:
    async for _ in list_runs_below(locator.temporal, f"{id}/"):
        return True
    return False


async def _undo(locator: Locator, location: Location) -> dict[str, Any]:
    undo, child = location.undo, location.run
    if undo is not None and undo.run.running:
        return await _running(locator, undo)
    end = {"state": "GONE"}
    if undo is not None:
        end = await _closed(locator, undo.run)
    elif child is not None and not child.run.running:
        end = await _closed(locator, child.run)
        if end["state"] != "COMPENSATED":
            return {"state": "GONE"}
    return end if end["state"] in ("COMPENSATED", "RESIDUE", "REFUSED", "UNSIGNED") else {"state": "GONE"}


async def _closed(locator: Locator, run: RunInfo) -> dict[str, Any]:
    """The answer for a closed run."""
    outcome = await outcome_of(locator, run)
    if not outcome.is_believed:
        return {"state": "UNSIGNED"}
    if outcome.view is not None:
        view = await _with_result(locator, run, outcome.view)
        return {"state": view.state, "view": view.to_json()}
    return {"state": "TERMINATED"} if run.ended_from_outside else await _refused(locator, run)


async def _with_result(locator: Locator, run: RunInfo, view: SagaView) -> SagaView:
    """The view of the nested saga without its steps, and with its whole output."""
    output = view.output
    if run.status is WorkflowExecutionStatus.COMPLETED:
        handle = locator.temporal.get_workflow_handle(run.id, run_id=run.run_id, result_type=RawValue)
        output = read_payload((await handle.result()).payload)
        if run.parent_id is not None:
            output = completed_child(output, run.id, run.workflow_type)[1].output
    return SagaView(
        id=view.id,
        saga=view.saga,
        state=view.state,
        phase=view.phase,
        reason=view.reason,
        output=output,
        committed_at=view.committed_at,
        residue=view.residue,
        row_locks=view.row_locks,
    )


async def _refused(locator: Locator, run: RunInfo) -> dict[str, Any]:
    """The answer for a closed run that has left no view. Its own words are not signed, and decide nothing."""
    try:
        await locator.temporal.get_workflow_handle(run.id, run_id=run.run_id).result(follow_runs=False)
    except WorkflowFailureError as error:
        state, _ = child_result(error.cause, run.id, run.workflow_type)
        return {"state": "REFUSED" if state == "REFUSED" else "UNSIGNED"}
    return {"state": "UNSIGNED"}


async def _running(locator: Locator, described: RunDescription) -> dict[str, Any]:
    """The answer for an open run. ``run_id``: that of its first run, for which a cancel is signed. ``waits``: what
    waits in it for an operator, if a worker of the project says so: the parent signs it as its own.
    """
    run, view = described.run, await view_of_run(Workers(locator.temporal, locator.keys), described)
    saga_id = run.id.removesuffix(UNDO_SUFFIX)
    told = () if view.is_unverified else view.parked
    waits = [{"id": saga_id, "saga": view.saga, **parked.to_json()} for parked in told]
    return {
        "state": "RUNNING",
        "workflow_id": run.id,
        "run_id": run.raw.first_run_id or run.run_id,
        "saga_state": "RUNNING" if view.is_unverified else view.state,
        "blocked": view.waits_for_a_person and not view.is_unverified,
        "waits": waits[:MOST_REPORTED],
    }

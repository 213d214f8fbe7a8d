"""Best-effort notifications when a saga reaches a milestone.

They never affect the saga: nothing waits for them, and an expression that fails is reported with the notification.
"""

from __future__ import annotations

from typing import Any

from sagas.definition.model import Milestone, Notification, Retry
from sagas.definition.sensitivity import SensitiveMask
from sagas.definition.times import format_timestamp
from sagas.machine.expressions import arguments
from sagas.machine.expressions.evaluation import DefinitionError
from sagas.machine.state import ParkedOperation, SagaRun
from sagas.protocol.messages import Call, GuardSpec, Notify
from sagas.protocol.payloads import NOTIFICATION_PREFIX, idempotency_key, notification_workflow_id
from sagas.protocol.public_reason import public_reason, quotes_others
from sagas.protocol.saga_view import ReasonView


def notify_milestone(run: SagaRun, milestone: Milestone) -> None:
    """Send every notification whose ``when`` contains this milestone, which the saga has just reached."""
    for number, notification in enumerate(run.definition.notify):
        if milestone in notification.when:
            _notify(run, number, notification, milestone)


def _notify(run: SagaRun, number: int, notification: Notification, milestone: Milestone) -> None:
    name = f"{NOTIFICATION_PREFIX}{number}-{milestone}"
    before = sum(row["id"] == name or row["id"].startswith(f"{name}-") for row in run.notifications)
    id = f"{name}-{before + 1}" if before else name
    key = idempotency_key(run.saga_id, id, run.generation)
    do = notification.do
    run.notifications.append(
        {
            "id": id,
            "event": key,
            "when": milestone,
            "uses": do.uses,
            "at": format_timestamp(run.now),
            "run": notification_workflow_id(run.saga_id, id, run.generation),
        }
    )
    call, problem = None, None
    try:
        call_arguments = arguments.notification_arguments(run, number, do, _event_payload(run, key, milestone))
    except DefinitionError as error:
        problem = str(error)
    else:
        call = Call(
            id=id,
            entry=id,
            step=id,
            op="do",
            key=key,
            generation=run.generation,
            action=do.uses,
            arguments=call_arguments,
            summary=f"✉ tell {_receiver_name(do.uses, call_arguments)}: {run.definition.saga} is {milestone}",
            timeout=do.timeout,
            retry=Retry(max_attempts=1),
            task_queue=do.task_queue,
            guard=None if do.connection is None else GuardSpec(do.connection),
            local=do.local,
            sensitive_texts=run.plan.sensitive_texts(run.input),
        )
    run.emit(Notify(id, run.notifications[-1]["run"], milestone, do.uses, notification.intervals, call, problem))


def _receiver_name(uses: str, call_arguments: dict[str, Any]) -> str:
    """The receiver shown in the Web UI: the connection of a request or the topic of an event, else the action."""
    return str(call_arguments.get("connection") or call_arguments.get("topic") or uses)


def _event_payload(run: SagaRun, key: str, milestone: Milestone) -> dict[str, Any]:
    """The default payload, unless ``with`` gives another. The id is the same in every attempt."""
    mask = SensitiveMask(run.plan.sensitive_values(run.input))
    data: dict[str, Any] = {
        "id": run.saga_id,
        "saga": run.definition.saga,
        "state": run.state,
        "reason": run.reason and mask.value(public_reason(ReasonView.from_json(run.reason)).to_json()),
        "output": mask.value(run.output),
        "started_at": format_timestamp(run.started_at),
        "ended_at": format_timestamp(run.ended_at),
    }
    if milestone == "parked":
        data["parked"] = [
            {"step": operation.step, "op": operation.op, "why": mask.text(_public_why(run, operation))}
            for operation in run.parked.values()
        ]
    if milestone == "residue":
        data["residue"] = [{name: row[name] for name in row if name != "command"} for row in run.residue]
    return {"id": key, "type": f"saga.{milestone}", "timestamp": format_timestamp(run.now), "data": data}


def _public_why(run: SagaRun, parked: ParkedOperation) -> str:
    """The reason of parking, if it is a rejection in the business's own words."""
    entry = run.entry(parked.step)
    operation = entry and {"do": entry, "undo": entry.undo, "confirm": entry.confirm}[parked.op]
    error = None if operation is None or operation.outcome != "rejected" else operation.error
    if error is not None and not quotes_others("rejected", error.get("quotes")):
        return parked.why
    return f"{parked.step} waits for an operator; `saga show` has the words"

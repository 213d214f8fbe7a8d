"""Best-effort notifications: who is told, and what, at the moments a saga comes through.

Telling changes nothing here: no answer comes back, nothing waits, and an expression that fails is told with the
notification, never held against the saga.
"""

from __future__ import annotations

from typing import Any

from sagas.definition.model import Moment, Notification, Retry
from sagas.machine import arguments
from sagas.machine.arguments import DefinitionFault
from sagas.machine.commands import Call, Guard, Notify
from sagas.machine.keys import NOTIFICATION, notification_run, step_key
from sagas.machine.moments import iso
from sagas.machine.run import Run


def reached(run: Run, moment: Moment) -> None:
    """The saga has come to this moment, now; told to everybody whose ``when`` names it."""
    for number, notification in enumerate(run.definition.notify):
        if moment in notification.when:
            _tell(run, number, notification, moment)


def _tell(run: Run, number: int, notification: Notification, moment: Moment) -> None:
    name = f"{NOTIFICATION}{number}-{moment}"
    before = sum(row["id"] == name or row["id"].startswith(f"{name}-") for row in run.notifications)
    id = f"{name}-{before + 1}" if before else name
    key = step_key(run.saga_id, id, run.generation)
    do = notification.do
    run.notifications.append(
        {
            "id": id,
            "event": key,
            "when": moment,
            "uses": do.uses,
            "at": iso(run.now),
            "run": notification_run(run.saga_id, id, run.generation),
        }
    )
    call, problem = None, None
    try:
        given = arguments.notification(run, number, do, _event(run, key, moment))
    except DefinitionFault as error:
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
            arguments=given,
            summary=f"✉ tell {_receiver(do.uses, given)}: {run.definition.saga} is {moment}",
            timeout=do.timeout,
            retry=Retry(max_attempts=1),
            task_queue=do.task_queue,
            guard=None if do.connection is None else Guard(do.connection),
            local=do.local,
        )
    run.emit(Notify(id, run.notifications[-1]["run"], moment, do.uses, notification.intervals, call, problem))


def _receiver(uses: str, given: dict[str, Any]) -> str:
    """Whom the Web UI names: the connection of a request or the topic of an event, else the action."""
    return str(given.get("connection") or given.get("topic") or uses)


def _event(run: Run, key: str, moment: Moment) -> dict[str, Any]:
    """What a receiver is told unless ``with`` says otherwise. The id is the same in every attempt."""
    data: dict[str, Any] = {
        "id": run.saga_id,
        "saga": run.definition.saga,
        "state": run.state,
        "reason": run.reason,
        "output": run.output,
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at),
    }
    if moment == "parked":
        data["parked"] = [{"step": one.step, "op": one.op, "why": one.why} for one in run.parked.values()]
    if moment == "residue":
        data["residue"] = [dict(row) for row in run.residue]
    return {"id": key, "type": f"saga.{moment}", "timestamp": iso(run.now), "data": data}

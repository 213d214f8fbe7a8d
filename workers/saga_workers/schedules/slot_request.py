"""The start of a saga for one time of its schedule: equal whoever makes it, so that each time has one saga."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from saga_workers.start.saga_starter import SagaStarter, id_problem, id_text
from saga_workers.start.start_requests import StartRequest
from sagas.definition.model import ScheduleTrigger
from sagas.definition.saga_ids import check_saga_id
from sagas.errors import UsageError
from sagas.expressions import ExpressionError, compile_value
from sagas.protocol.schedule_order import SLOT_LABEL, slot_text
from sagas.schedules.zones import read_zone


async def slot_request(
    starter: SagaStarter, variables: Mapping[str, Any], scheduled_at: datetime
) -> tuple[StartRequest, str]:
    """The start for a time, in UTC, and the id of its saga.

    Raises UsageError if the saga has no schedule, or the input or the id is refused for this time.
    """
    definition = starter.definition
    schedule, slot = definition.schedule, slot_text(scheduled_at)
    if schedule is None:
        raise UsageError(
            f"the saga {definition.saga} has no schedule", help="add one under `triggers`; saga setup removes old ones"
        )
    context = {
        "trigger": trigger_value(schedule, scheduled_at),
        "vars": dict(variables),
        "saga": {"name": definition.saga},
    }
    request = await starter.check(_evaluate("input", schedule.input, context))
    id = request.id or f"{definition.saga}-{slot}"
    if schedule.id is not None:
        value = _evaluate("id", schedule.id, context)
        text = id_text(value)
        if text is None:
            raise UsageError(f"the `id` of the schedule {id_problem(value)} at {slot}")
        id = text
    labels = {SLOT_LABEL: slot, **request.labels}
    return replace(request, labels=labels), check_saga_id(id)


def trigger_value(schedule: ScheduleTrigger, scheduled_at: datetime) -> dict[str, str]:
    """The value of ``trigger`` in expressions: the time in UTC, and its date in the schedule's time zone."""
    date = scheduled_at.astimezone(UTC).astimezone(read_zone(schedule.timezone)).date()
    return {"scheduled_at": slot_text(scheduled_at), "scheduled_date": date.isoformat()}


def _evaluate(field: str, template: Any, context: Mapping[str, Any]) -> Any:
    try:
        return compile_value(template).render(context)
    except ExpressionError as error:
        slot = context["trigger"]["scheduled_at"]
        raise UsageError(f"the `{field}` of the schedule cannot be evaluated at {slot}: {error.message}") from None

"""A schedule of Temporal for the schedule of a definition, and what differs between the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleCalendarSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
)

from sagas.definition.model import Definition, ScheduleTrigger
from sagas.protocol.payloads import SCHEDULE_WORKFLOW
from sagas.protocol.schedule_order import schedule_order
from sagas.protocol.signed_content import message_content
from sagas.schedules.cron import FIRST_YEAR, LAST_YEAR, Cron, parse_cron
from sagas.settings.signing_keys import SigningKeys
from sagas.workflow.json_payloads import UnreadableValue, raw_json, read_payload
from sagas.workflow.summaries import run_summary

_FIELDS = ("second", "minute", "hour", "day_of_month", "month", "day_of_week", "year")
_EVERY_YEAR = tuple(range(FIRST_YEAR, LAST_YEAR + 1))


def make_schedule(
    definition: Definition, trigger: ScheduleTrigger, *, id: str, task_queue: str, keys: SigningKeys
) -> Schedule:
    """The schedule ``id`` as Temporal should have it. Without keys its order is not signed."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            SCHEDULE_WORKFLOW,
            raw_json(signed_order(id, definition.saga, trigger, keys)),
            id=id,
            task_queue=task_queue,
            static_summary=run_summary(f"scheduled start of {definition.saga}"),
        ),
        spec=ScheduleSpec(
            calendars=[_calendar(parse_cron(trigger.cron), trigger.cron)],
            jitter=timedelta(seconds=trigger.jitter) if trigger.jitter else None,
            time_zone_name=trigger.timezone,
        ),
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy[trigger.overlap.upper()],
            catchup_window=timedelta(seconds=trigger.catchup_window),
        ),
        state=ScheduleState(),
    )


def signed_order(id: str, saga: str, trigger: ScheduleTrigger, keys: SigningKeys) -> dict[str, Any]:
    """The order of the schedule ``id``; its signature is None without keys."""
    order = schedule_order(id, saga, trigger)
    return {**order, "signature": keys.sign("schedule", message_content([id], order))}


def cron_text(cron: Cron) -> str:
    """The cron expression in seven fields of numbers, as any server of Temporal reads them."""
    calendar = _calendar(cron, "")
    return " ".join(_field_text(getattr(calendar, field)) for field in _FIELDS)


def _field_text(ranges: Sequence[ScheduleRange]) -> str:
    texts = []
    for each in ranges:
        step = f"/{each.step}" if each.step > 1 else ""
        texts.append(str(each.start) if each.start == each.end else f"{each.start}-{each.end}{step}")
    return ",".join(texts) or "*"


def _calendar(cron: Cron, comment: str) -> ScheduleCalendarSpec:
    return ScheduleCalendarSpec(
        second=_ranges(cron.seconds),
        minute=_ranges(cron.minutes),
        hour=_ranges(cron.hours),
        day_of_month=_ranges(cron.days),
        month=_ranges(cron.months),
        day_of_week=_ranges(cron.weekdays),
        year=[] if cron.years is None else _ranges(cron.years),
        comment=comment,
    )


def _ranges(values: Sequence[int]) -> list[ScheduleRange]:
    """The fewest ranges of equal steps, from the first value on."""
    ranges: list[ScheduleRange] = []
    rest = list(values)
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        count = 1
        while count < len(rest) and rest[count] - rest[count - 1] == step:
            count += 1
        if count == 2 and step > 1:
            count = 1  # the second may begin a longer range
        ranges.append(ScheduleRange(rest[0], rest[count - 1], step if count > 1 else 1))
        rest = rest[count:]
    return ranges


def order_of(schedule: Schedule) -> Mapping[str, Any]:
    """The order that a schedule of the server gives; empty if it has none that can be read."""
    payload = order_payload(schedule)
    try:
        order = None if payload is None else read_payload(payload)
    except UnreadableValue:
        return {}
    return order if isinstance(order, Mapping) else {}


def order_payload(schedule: Schedule) -> Payload | None:
    """The argument of the workflow that a schedule of the server starts, if it has one."""
    args = getattr(schedule.action, "args", ())
    return args[0] if len(args) == 1 and isinstance(args[0], Payload) else None


def is_signed(order: Mapping[str, Any], keys: SigningKeys) -> bool:
    """True if a key of this project has signed the order."""
    try:
        return keys.verifies("schedule", message_content([order["schedule"]], order), order.get("signature"))
    except (RecursionError, LookupError, ValueError, TypeError):
        return False


def differences(wanted: Schedule, current: Schedule) -> list[str]:
    """The fields in which the schedule of the server differs from the one that the project wants, but for its order."""
    return [name for (name, value), (_, other) in zip(_facts(wanted), _facts(current), strict=True) if value != other]


def _facts(schedule: Schedule) -> Iterator[tuple[str, Any]]:
    spec, policy, action = schedule.spec, schedule.policy, schedule.action
    times = [
        sorted(tuple(_values(getattr(calendar, field), field) for field in _FIELDS) for calendar in spec.calendars)
    ]
    yield "cron", (times, list(spec.cron_expressions), list(spec.intervals), list(spec.skip))
    yield "times of its begin and end", (spec.start_at, spec.end_at)
    yield "timezone", spec.time_zone_name or "UTC"
    yield "jitter", spec.jitter or timedelta()
    yield "overlap", policy.overlap
    yield "catchup_window", policy.catchup_window
    yield "pause on failure", policy.pause_on_failure
    if isinstance(action, ScheduleActionStartWorkflow):
        yield "action", (action.workflow, action.id, action.task_queue)
        yield "timeouts of its runs", (action.execution_timeout or None, action.run_timeout or None)
        yield "retry policy of its runs", action.retry_policy
    yield "limit of starts", schedule.state.limited_actions


def _values(ranges: Sequence[ScheduleRange], field: str) -> tuple[int, ...]:
    if not ranges and field == "year":
        return _EVERY_YEAR
    values = {value for each in ranges for value in range(each.start, max(each.start, each.end) + 1, max(1, each.step))}
    return tuple(sorted(values))

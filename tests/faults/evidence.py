"""What can be seen of a saga from outside the engine: tables, Temporal's history, the story it tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.api.enums.v1 import EventType

from tests.faults.stage import Stage


@dataclass(frozen=True)
class Effect:
    """A line of the journal: an effect that was committed. ``at`` is PostgreSQL's own commit time (seconds)."""

    step: str
    op: str
    at: float


@dataclass(frozen=True)
class GuardRow:
    step: str
    generation: int
    op: str
    reason: str
    at: float


@dataclass(frozen=True)
class Activity:
    """One scheduled activity of the history, and its recorded end; ``end`` is open while there is none."""

    id: str
    name: str
    end: str
    scheduled: int
    ended: int | None


@dataclass(frozen=True)
class Evidence:
    """Everything the checker judges by."""

    balances: Mapping[str, int]
    holds: int
    order: str | None
    journal: tuple[Effect, ...]
    guard: tuple[GuardRow, ...]
    story: Mapping[str, Any]
    status: str
    activities: tuple[Activity, ...]
    runs: int
    totals: frozenset[int]
    idle_transactions: int
    prepared: int
    seconds: float


_JOURNAL = """
select step, op, extract(epoch from pg_xact_commit_timestamp(xmin))::float8 from journal where saga_id = %s
order by 3, id
"""
_GUARD = """
select step, generation, op, reason, extract(epoch from pg_xact_commit_timestamp(xmin))::float8 from saga_guard
where saga_id = %s
"""
_OPEN = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'saga-worker-%' and state like 'idle in transaction%'
"""
_ENDS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("done", "activity_task_completed_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("failed", "activity_task_failed_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("timed out", "activity_task_timed_out_event_attributes"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("cancelled", "activity_task_canceled_event_attributes"),
}


async def gather(stage: Stage, story: Mapping[str, Any], saga_id: str | None = None) -> Evidence:
    """Read everything once, after the run."""
    saga_id = saga_id or stage.saga_id
    client = await stage.client()
    described = await client.temporal.get_workflow_handle(saga_id).describe()
    runs = [one async for one in client.temporal.list_workflows(f"WorkflowId = '{saga_id}'")]
    orders = await stage.admin("select state from orders where saga_id = %s", saga_id)
    return Evidence(
        balances=dict(await stage.admin("select id, balance from accounts")),
        holds=(await stage.admin("select coalesce(sum(amount), 0)::int from holds where saga_id = %s", saga_id))[0][0],
        order=orders[0][0] if orders else None,
        journal=tuple(Effect(*row) for row in await stage.admin(_JOURNAL, saga_id)),
        guard=tuple(GuardRow(*row) for row in await stage.admin(_GUARD, saga_id)),
        story=story,
        status=described.status.name if described.status is not None else "?",
        activities=await activities_of(stage, saga_id),
        runs=max(len(runs), 1),
        totals=frozenset(stage.totals),
        idle_transactions=(await stage.admin(_OPEN))[0][0],
        prepared=(await stage.admin("select count(*) from pg_prepared_xacts"))[0][0],
        seconds=stage.seconds if stage.seconds is not None else 0.0,
    )


async def activities_of(stage: Stage, saga_id: str) -> tuple[Activity, ...]:
    """The activities of the saga's history, in the order they were scheduled."""
    client = await stage.client()
    found: dict[int, Activity] = {}
    async for event in client.temporal.get_workflow_handle(saga_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            said = event.activity_task_scheduled_event_attributes
            found[event.event_id] = Activity(said.activity_id, said.activity_type.name, "open", event.event_id, None)
        elif event.event_type in _ENDS:
            end, attributes = _ENDS[event.event_type]
            at = getattr(event, attributes).scheduled_event_id
            one = found[at]
            found[at] = Activity(one.id, one.name, end, one.scheduled, event.event_id)
    return tuple(found.values())

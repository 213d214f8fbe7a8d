"""Evidence of a saga from outside the engine: tables, Temporal's history, and `saga show`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.cell_environment import CellEnvironment
from tests.faults.evidence.activity_history import Activity, activities_of


@dataclass(frozen=True)
class Effect:
    """A line of the journal: an effect that was committed. ``at`` is PostgreSQL's own commit time (seconds)."""

    step: str
    op: str
    at: float
    generation: int = 1


@dataclass(frozen=True)
class GuardRow:
    step: str
    generation: int
    op: str
    reason: str
    at: float


@dataclass(frozen=True)
class Evidence:
    """All evidence the checker uses."""

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
select step, op, extract(epoch from pg_xact_commit_timestamp(xmin))::float8, generation from journal
where saga_id = %s or starts_with(saga_id, %s)
order by 3, id
"""
_GUARD = """
select step, generation, op, reason, extract(epoch from pg_xact_commit_timestamp(xmin))::float8 from saga_guard
where saga_id = %s or starts_with(saga_id, %s)
"""
_OPEN = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'saga-worker-%' and state like 'idle in transaction%'
"""
_PREPARED = "select count(*) from pg_prepared_xacts where database = current_database()"


async def gather(env: CellEnvironment, story: Mapping[str, Any], saga_id: str | None = None) -> Evidence:
    """Read everything once, after the run."""
    saga_id = saga_id or env.saga_id
    client = await env.client()
    described = await client.temporal.get_workflow_handle(saga_id).describe()
    runs = [workflow async for workflow in client.temporal.list_workflows(f"WorkflowId = '{saga_id}'")]
    orders = await env.admin("select state from orders where saga_id = %s", saga_id)
    return Evidence(
        balances=dict(await env.admin("select id, balance from accounts")),
        holds=(await env.admin("select coalesce(sum(amount), 0)::int from holds"))[0][0],
        order=orders[0][0] if orders else None,
        journal=tuple(Effect(*row) for row in await env.admin(_JOURNAL, saga_id, f"{saga_id}/")),
        guard=tuple(GuardRow(*row) for row in await env.admin(_GUARD, saga_id, f"{saga_id}/")),
        story=story,
        status=described.status.name if described.status is not None else "?",
        activities=await activities_of(client.temporal.get_workflow_handle(saga_id)),
        runs=max(len(runs), 1),
        totals=frozenset(env.totals),
        idle_transactions=(await env.admin(_OPEN))[0][0],
        prepared=(await env.admin(_PREPARED))[0][0],
        seconds=env.seconds if env.seconds is not None else 0.0,
    )

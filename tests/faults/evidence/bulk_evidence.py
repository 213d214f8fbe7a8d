"""The evidence of the sagas of one bulk workflow. Each is checked on its own, by the same rules as a single one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.faults.bulk_environment import BulkCellEnvironment
from tests.faults.cells import Cell
from tests.faults.evidence.activity_history import activities_of
from tests.faults.evidence.checker import HOLD, MOVES, check
from tests.faults.evidence.evidence import Effect, Evidence, GuardRow

_JOURNAL = """
select saga_id, step, op, extract(epoch from pg_xact_commit_timestamp(xmin))::float8, generation
from journal order by 4, id
"""
_GUARD = """
select saga_id, step, generation, op, reason, extract(epoch from pg_xact_commit_timestamp(xmin))::float8
from saga_guard
"""
_OPEN = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'saga-worker-%' and state like 'idle in transaction%'
"""
_STATUS = {"COMPLETED": "COMPLETED", "COMPENSATED": "FAILED", "RESIDUE": "FAILED"}
"""How Temporal would have closed a saga that has no workflow of its own."""


async def check_members(cell: Cell, env: BulkCellEnvironment) -> list[str]:
    """The violations of every saga of the bulk workflow, which is over."""
    evidence = await gather_members(env)
    others = cell.row.others.get(cell.position, cell.expected)
    violations = []
    for id in env.members:
        expected = cell.expected if id == env.saga_id else others
        violations += [f"{id}: {each_check}" for each_check in check(evidence[id], expected, cell.row.shape)]
    return violations + await _claims(env)


async def _claims(env: BulkCellEnvironment) -> list[str]:
    """A claim is given back at the end; that of a parked saga is of its own workflow."""
    rows = await env.admin("select saga_id, bulk_id from saga_claim")
    claimed = [id for id, bulk_id in rows if bulk_id is not None or await env.own_workflow(id) is None]
    return [f"the ids of {sorted(claimed)} are still claimed"] if claimed else []


async def gather_members(env: BulkCellEnvironment) -> Mapping[str, Evidence]:
    """Read everything once, after the run. The accounts, shared by all, are given to each without what others moved."""
    journal = {id: _of(id, rows) for rows in [await env.admin(_JOURNAL)] for id in env.members}
    guard = {id: _of(id, rows) for rows in [await env.admin(_GUARD)] for id in env.members}
    balances = Counter(dict(await env.admin("select id, balance from accounts")))
    holds = dict(await env.admin("select saga_id, sum(amount)::int from holds group by saga_id"))
    orders = dict(await env.admin("select saga_id, state from orders"))
    shared = Evidence(
        balances={},
        holds=0,
        order=None,
        journal=(),
        guard=(),
        story={},
        status="",
        activities=(),
        runs=1,
        totals=frozenset(env.totals),
        idle_transactions=(await env.admin(_OPEN))[0][0],
        prepared=0,
        seconds=env.seconds if env.seconds is not None else 0.0,
    )
    collected = {}
    for id in env.members:
        own = balances.copy()
        for other in env.members:
            if other != id:
                own.subtract(moved(journal[other]))
        collected[id] = replace(
            shared,
            balances=dict(own),
            holds=sum(amount for holder, amount in holds.items() if _owner(holder, env.members) == id),
            order=orders.get(id),
            journal=tuple(Effect(*row) for row in journal[id]),
            guard=tuple(GuardRow(*row) for row in guard[id]),
            **await _story(env, id),
        )
    return collected


async def _story(env: BulkCellEnvironment, id: str) -> Mapping[str, Any]:
    """The story, and the status and activities of its own workflow if the saga has left the shared one."""
    client = await env.client()
    story = await client.show(id)
    own = await env.own_workflow(id)
    if own is None:
        return {"story": story, "status": _STATUS.get(await env.ledger_state(id) or "", "?")}
    runs = [workflow async for workflow in client.temporal.list_workflows(f"WorkflowId = '{id}'")]
    return {
        "story": story,
        "status": own.status.name if own.status is not None else "?",
        "activities": await activities_of(client.temporal.get_workflow_handle(id)),
        "runs": max(len(runs), 1),
    }


def _owner(saga_id: str, members: Sequence[str]) -> str | None:
    """The member that a saga is, or is nested in."""
    return next((id for id in members if saga_id == id or saga_id.startswith(f"{id}/")), None)


def _of(id: str, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return [row[1:] for row in rows if _owner(row[0], [id]) is not None]


def moved(journal: Sequence[Sequence[Any]]) -> Mapping[str, int]:
    """Amounts that the effects of a journal have moved, by account."""
    change: Counter[str] = Counter()
    for step, op, *_ in journal:
        for account, amount in MOVES[step].items():
            change[account] += amount if op == "do" else -amount
    del change[HOLD]
    return change

"""What waits for a person: the parked operations of all sagas, one by one and in groups with the same trouble."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client as Temporal

from saga_workers.listing import Wanted, query_of, quoted
from saga_workers.runs import list_runs
from saga_workers.stories import read_story
from sagas.blocked import blocked_steps
from sagas.wire import UNDO_SUFFIX

_AT_ONCE = 16
_TROUBLE = "(SagaState IN ('PARKED', 'COMPENSATING', 'COMMITTED') OR (SagaState = 'RUNNING' AND SagaStep IS NOT NULL))"
"""Sagas in which something can be parked while the rest goes on, and those that a nested saga blocks or has blocked; a
plain running one is found with ``every`` only."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One parked operation. ``decisions`` are those that are possible here."""

    saga: str
    saga_id: str
    step: str
    op: str
    why: str
    since: str
    decisions: tuple[str, ...]

    @property
    def base(self) -> str:
        """The step of the definition, without the number of an item."""
        return self.step.partition("#")[0]


@dataclass(frozen=True, slots=True)
class Inbox:
    """``unasked`` are sagas in trouble that could not tell, each with the reason."""

    waiting: tuple[Waiting, ...]
    unasked: Mapping[str, str]


async def read_inbox(temporal: Temporal, wanted: Wanted, *, every: bool = False, nested: bool = False) -> Inbox:
    """Ask all sagas in trouble (``every``: all that run) what is parked. Raises UsageError: a filter is wrong.

    ``nested``: what blocks one of them is told too when it is parked in a nested saga that the filter does not name.
    """
    where = "ExecutionStatus = 'Running'" + ("" if every else f" AND {_TROUBLE}")
    if wanted.where:
        where = f"({wanted.where}) AND {where}"
    narrowed = Wanted(wanted.saga, (), wanted.since, wanted.labels, where, wanted.task_queue)
    ids = list(
        dict.fromkeys([run.id.removesuffix(UNDO_SUFFIX) async for run in list_runs(temporal, query_of(narrowed))])
    )
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(saga_id: str) -> dict[str, Any]:
        async with gate:
            return await read_story(temporal, saga_id)

    stories: dict[str, dict[str, Any]] = {}
    while ids:
        stories |= zip(ids, await asyncio.gather(*(ask(id) for id in ids)), strict=True)
        blocking = [child["id"] for id in ids for child in stories[id].get("children") or () if child.get("waits")]
        ids = [id for id in dict.fromkeys(blocking) if nested and id not in stories]
    unasked = {
        id: story["incomplete"] for id, story in stories.items() if story.get("incomplete") and not story.get("parked")
    }
    return Inbox(tuple(one for story in stories.values() for one in waiting_in(story)), unasked)


def waiting_in(story: Mapping[str, Any]) -> list[Waiting]:
    """What is parked in this saga itself; a nested saga tells of its own."""
    elsewhere = blocked_steps(story)
    return [
        Waiting(story["saga"], story["id"], one["step"], one["op"], one["why"], one["since"], tuple(one["decisions"]))
        for one in story.get("parked") or ()
        if one["step"] not in elsewhere
    ]


def grouped(waiting: Iterable[Waiting]) -> list[dict[str, Any]]:
    """The groups with the same saga, step, operation and error, the largest first."""
    groups: dict[tuple[str, str, str, str], list[Waiting]] = {}
    for one in waiting:
        groups.setdefault((one.saga, one.base, one.op, one.why), []).append(one)
    rows = [
        {
            "saga": saga,
            "step": step,
            "op": op,
            "error": why,
            "count": len(members),
            "oldest": min(one.since for one in members),
            "ids": sorted({one.saga_id for one in members}),
            "decisions": [one for one in members[0].decisions if all(one in other.decisions for other in members)],
            "command": _command(saga, step, op, why, members),
        }
        for (saga, step, op, why), members in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["oldest"]))


def _command(saga: str, step: str, op: str, why: str, members: list[Waiting]) -> str:
    first = members[0]
    if len(members) == 1:
        return f"saga resolve {shlex.quote(first.saga_id)} {first.step} retry --reason '…'"
    where = shlex.quote(f"WorkflowType = {quoted(saga)}")
    return f"saga resolve --where {where} {step} retry --op {op} --error {shlex.quote(why)} --reason '…'"

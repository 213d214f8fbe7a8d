"""Replies which say that a command of a saga is done, although the saga has ended as if it had not happened.

They are recorded in the outbox's database, where the saga would have found them before its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from saga_activities.guard.tables import request_table
from saga_activities.messaging.kafka_request import DONE
from saga_spark.reconcile.findings import Finding
from saga_workers.location.locator import Locator
from saga_workers.location.traces import reading_tables
from saga_workers.reconcile.current_views import current_views
from saga_workers.temporal.temporal_runs import list_runs
from saga_workers.views.saga_list import SagaFilter, visibility_query
from sagas.protocol.payloads import UNDO_SUFFIX
from sagas.protocol.saga_view import SagaView
from sagas.settings import Settings

BACKWARD_ENDS = ("COMPENSATED", "RESIDUE")
"""States of sagas that may have ended without a step whose command was sent."""

MAX_SAGAS = 2_000
"""Maximum number of sagas that are looked up in Temporal."""

_BATCH_SIZE = 500


@dataclass(frozen=True, slots=True)
class _DoneCommand:
    """A command whose recorded reply says done."""

    key: str
    saga_id: str
    step: str
    generation: int


async def find_late_replies(
    locator: Locator, settings: Settings, states: Mapping[str, str], since: float | None
) -> list[Finding]:
    """The findings about the sagas of ``states``, and with ``since`` also about sagas that ended before it and have
    received a reply after it. Raises SagaError.
    """
    backward = [saga_id for saga_id, state in states.items() if state in BACKWARD_ENDS]
    commands = await _done_commands(settings, backward)
    if since is not None:
        commands += [command for command in await _answered(settings, since) if command.saga_id not in states]
    return await _judge(locator, settings, commands)


async def latest_late_replies(locator: Locator, settings: Settings) -> list[Finding]:
    """The findings about the sagas that have ended last. Raises SagaError."""
    criteria = SagaFilter(states=BACKWARD_ENDS, task_queue=settings.temporal.task_queue)
    saga_ids: dict[str, None] = {}
    async for run in list_runs(locator.temporal, visibility_query(criteria)):
        saga_ids[run.id.removesuffix(UNDO_SUFFIX)] = None
        if len(saga_ids) == MAX_SAGAS:
            break
    return await _judge(locator, settings, await _done_commands(settings, saga_ids))


async def _done_commands(settings: Settings, saga_ids: Collection[str]) -> list[_DoneCommand]:
    ids = list(saga_ids)
    batches = [ids[at : at + _BATCH_SIZE] for at in range(0, len(ids), _BATCH_SIZE)]
    return await _select(settings, [request_table.c.saga_id.in_(batch) for batch in batches])


async def _answered(settings: Settings, since: float) -> list[_DoneCommand]:
    return await _select(settings, [request_table.c.answered_at >= since])


async def _select(settings: Settings, conditions: Sequence[sa.ColumnElement[bool]]) -> list[_DoneCommand]:
    outbox = settings.kafka.outbox
    if outbox is None or not conditions:
        return []
    columns = request_table.c
    query = sa.select(columns.step_key, columns.saga_id, columns.step, columns.generation).where(
        columns.op == "do", columns.outcome == DONE
    )
    commands: list[_DoneCommand] = []
    async with reading_tables(settings.sql_connection(outbox), "the commands") as (engine, tables):
        if request_table.name not in tables:
            return []
        async with engine.connect() as database:
            for condition in conditions:
                commands += [_DoneCommand(*row) for row in await database.execute(query.where(condition))]
    return commands


async def _judge(locator: Locator, settings: Settings, commands: Sequence[_DoneCommand]) -> list[Finding]:
    saga_ids = list(dict.fromkeys(command.saga_id for command in commands))[:MAX_SAGAS]
    views = await current_views(locator, saga_ids)
    return [
        Finding(
            "late_reply",
            saga_id=view.id,
            saga=view.saga,
            state=view.state,
            step=command.step,
            generation=command.generation,
            place=settings.kafka.outbox,
            row={"step_key": command.key},
        )
        for command in commands
        if (view := views.get(command.saga_id)) is not None and _contradicts(command, view)
    ]


def _contradicts(command: _DoneCommand, view: SagaView) -> bool:
    """True if the saga has ended without an undo of the command, and without knowing its effect."""
    if view.state not in BACKWARD_ENDS or command.step in {row.step for row in view.residue}:
        return False
    entry = next((step for step in view.steps if step.id == command.step), None)
    if entry is None or entry.generation != command.generation or entry.effect == "none":
        return False
    return entry.state not in ("COMPENSATED", "DONE")

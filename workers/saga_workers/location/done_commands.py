"""Commands of sagas to Kafka participants whose recorded replies say done, and whose undo is not done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from saga_activities.guard.tables import request_table
from saga_activities.messaging.kafka_request import DONE
from saga_workers.location.traces import reading_tables
from sagas.portions import in_portions
from sagas.settings import Settings

_BATCH_SIZE = 500


@dataclass(frozen=True, slots=True)
class DoneCommand:
    """A command whose recorded reply says done, and that of its undo does not."""

    key: str
    saga_id: str
    step: str
    generation: int


async def done_commands(settings: Settings, saga_ids: Collection[str]) -> list[DoneCommand]:
    """The done commands of these sagas. Raises SagaError."""
    batches = in_portions(list(saga_ids), _BATCH_SIZE)
    return await _select(settings, [request_table.c.saga_id.in_(batch) for batch in batches])


async def commands_done_since(settings: Settings, since: float) -> list[DoneCommand]:
    """The done commands whose replies are not older. Raises SagaError."""
    return await _select(settings, [request_table.c.answered_at >= since])


async def _select(settings: Settings, conditions: Sequence[sa.ColumnElement[bool]]) -> list[DoneCommand]:
    outbox = settings.kafka.outbox
    if outbox is None or not conditions:
        return []
    columns, undo = request_table.c, request_table.alias("undo").c
    is_undone = sa.exists().where(
        undo.saga_id == columns.saga_id,
        undo.step == columns.step,
        undo.generation == columns.generation,
        undo.op == "undo",
        undo.outcome == DONE,
    )
    query = sa.select(columns.step_key, columns.saga_id, columns.step, columns.generation).where(
        columns.op == "do", columns.outcome == DONE, ~is_undone
    )
    commands: list[DoneCommand] = []
    async with reading_tables(settings.sql_connection(outbox), "the commands") as (engine, tables):
        if request_table.name not in tables:
            return []
        async with engine.connect() as database:
            for condition in conditions:
                commands += [DoneCommand(*row) for row in await database.execute(query.where(condition))]
    return commands

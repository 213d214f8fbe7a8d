"""Tells of which steps the guards may have deleted the rows, for a saga that has not ended: then no row does not mean
that a step has not happened.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saga_activities.guard import watermark
from saga_activities.guard.tables import guard_table
from saga_workers.location.traces import reading_tables
from sagas.definition.model import Definition, has_effect
from sagas.settings import Settings

if TYPE_CHECKING:
    from saga_workers.location.traces import RecordedEffect


@dataclass(frozen=True, slots=True)
class PurgedEvidence:
    """The ``steps`` on a ``connection`` whose guard has no row of the saga, and has deleted rows of sagas that began
    when it did, or later.
    """

    connection: str
    steps: tuple[str, ...]


async def purged_evidence(
    settings: Settings,
    definition: Definition,
    began_at: float,
    effects: Sequence[RecordedEffect],
    known: Collection[str],
) -> PurgedEvidence | None:
    """The first connection whose guard may have deleted the rows of a saga that began then; None if there is none.

    ``effects``: those that are recorded of the saga; a guard deletes all rows of a saga or none. ``known``: steps of
    which a person has told. Raises SagaError.
    """
    recorded = {effect.connection for effect in effects}
    for connection in settings.sql_connections():
        steps = tuple(
            step.id
            for step in definition.steps
            if has_effect(step) and step.do.connection == connection.name and step.id not in known
        )
        if not steps or connection.name in recorded:
            continue
        async with reading_tables(connection, "the watermark of the guard") as (engine, tables):
            mark = await watermark.read(engine) if guard_table.name in tables else 0.0
        if mark > began_at:
            return PurgedEvidence(connection.name, steps)
    return None

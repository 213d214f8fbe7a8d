"""Tells of which steps the guards may have deleted the rows, for a saga that has not ended: then no row does not mean
that a step has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from saga_activities.guard import watermark
from saga_activities.guard.tables import guard_table
from saga_workers.location.traces import RecordedEffect, reading_tables
from sagas.settings import Settings
from sagas.text.shortening import join_names


@dataclass(frozen=True, slots=True)
class PurgedEvidence:
    """The ``steps`` on a ``connection`` whose guard has no row of the saga, and has deleted rows of sagas that began
    when it did, or later.
    """

    connection: str
    steps: tuple[str, ...]

    @property
    def text(self) -> str:
        """The question that nobody can answer, and what a person can do, in words."""
        return (
            f"the guard of {self.connection} has deleted rows of sagas as old as this one, so nobody knows which of "
            "its steps there have happened: look for the effects of "
            f"{join_names(self.steps, 5)}, and undo what is there"
        )


async def purged_evidence(
    settings: Settings, steps: Mapping[str, Sequence[str]], began_at: float, effects: Sequence[RecordedEffect]
) -> PurgedEvidence | None:
    """The first connection whose guard may have deleted the rows of a saga that began then, in seconds since the epoch;
    None if there is none.

    ``steps``: the guarded steps in question, by connection. ``effects``: those that are recorded of the saga; a guard
    deletes all rows of a saga or none. Raises SagaError.
    """
    recorded = {effect.connection for effect in effects}
    for connection in settings.sql_connections():
        asked = steps.get(connection.name)
        if not asked or connection.name in recorded:
            continue
        async with reading_tables(connection, "the watermark of the guard") as (engine, tables):
            mark = await watermark.read(engine) if guard_table.name in tables else 0.0
        if mark > began_at:
            return PurgedEvidence(connection.name, tuple(asked))
    return None

"""Tells of which steps the guards may have deleted the rows, for a saga that has not ended: then no row does not mean
that a step has not happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from saga_activities.guard import watermark
from saga_activities.guard.tables import guard_table
from saga_workers.location.locator import Locator
from saga_workers.location.traces import RecordedEffect, reading_tables
from saga_workers.temporal.temporal_runs import describe_run, list_runs_below
from sagas.definition.model import Definition, StepDefinition, guarded_effects, is_nested
from sagas.protocol.payloads import idempotency_key
from sagas.settings import Settings
from sagas.text.shortening import join_names


@dataclass(frozen=True, slots=True)
class PurgedEvidence:
    """The ``steps`` on a ``connection`` whose guard has no row of the saga, and has deleted rows of sagas that began
    when it did, or later. Those of nested sagas are paths: `STEP/STEP`.
    """

    connection: str
    steps: tuple[str, ...]

    @property
    def own_steps(self) -> tuple[str, ...]:
        """The steps of the saga itself, which are or start these."""
        return tuple(dict.fromkeys(step.partition("/")[0] for step in self.steps))

    @property
    def rows_are_gone(self) -> str:
        """The state of the guard, in words."""
        return f"the guard of {self.connection} has deleted rows of sagas as old as this one"

    @property
    def text(self) -> str:
        """The question that nobody can answer, and what a person can do, in words."""
        return (
            f"{self.rows_are_gone}, so nobody knows which of its steps there have happened: look for the effects of "
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
    recorded = {name for effect in effects for name in (effect.connection, *effect.shared_with)}
    for connection in settings.sql_connections():
        asked = steps.get(connection.name)
        if not asked or connection.name in recorded:
            continue
        async with reading_tables(connection, "the watermark of the guard") as (engine, tables):
            mark = await watermark.read(engine) if guard_table.name in tables else 0.0
        if mark > began_at:
            return PurgedEvidence(connection.name, tuple(asked))
    return None


async def purged_nested_evidence(
    locator: Locator,
    settings: Settings,
    definitions: Mapping[str, Definition],
    saga_id: str,
    definition: Definition,
    began_at: float,
    *,
    told: Collection[str],
) -> PurgedEvidence | None:
    """Return the first connection whose guard may have deleted the rows of a saga that is nested in this one, and has
    no run that would tell its end; None if there is none. A person has ``told`` of these steps what is there.

    Of a nested saga whose name is computed nothing is known before it starts: it looks itself then. ``began_at``: when
    the outer saga began. Raises SagaError, RPCError.
    """
    nested: dict[str, list[RecordedEffect]] | None = None
    for step in definition.steps:
        steps = _steps_of_nested(step, definitions, ()) if is_nested(step) and step.id not in told else {}
        if not steps or await _has_run(locator, saga_id, step):
            continue
        nested = await locator.effects_of_nested(saga_id) if nested is None else nested
        effects = chain.from_iterable(rows for id, rows in nested.items() if _step_of(id, saga_id) == step.id)
        purged = await purged_evidence(settings, steps, began_at, list(effects))
        if purged is not None:
            return purged
    return None


def _steps_of_nested(
    step: StepDefinition, definitions: Mapping[str, Definition], around: Collection[str]
) -> dict[str, list[str]]:
    """The guarded steps of the nested saga and of those in it, by connection. ``around``: the sagas around it."""
    name = (step.do.with_ or {}).get("name")
    definition = definitions.get(name) if isinstance(name, str) and name not in around else None
    if definition is None:
        return {}
    steps = {connection: [f"{step.id}/{id}" for id in ids] for connection, ids in guarded_effects(definition).items()}
    for inner in filter(is_nested, definition.steps):
        for connection, ids in _steps_of_nested(inner, definitions, {*around, definition.saga}).items():
            steps.setdefault(connection, []).extend(f"{step.id}/{id}" for id in ids)
    return steps


async def _has_run(locator: Locator, saga_id: str, step: StepDefinition) -> bool:
    """True if Temporal has a run of the nested saga, which is asked instead of the guards, or of one item of a
    `for_each`: each of its other items asks itself, and what a run has completed must not be undone by hand.
    """
    id = idempotency_key(saga_id, step.id, 1)
    if step.for_each is None:
        return await describe_run(locator.temporal, id) is not None
    async for _ in list_runs_below(locator.temporal, f"{id}#"):
        return True
    return False


def _step_of(id: str, saga_id: str) -> str:
    """The step of the saga that has started this nested one, or the one around that."""
    entry = id.removeprefix(f"{saga_id}/").partition("/")[0]
    return entry.partition("@")[0].partition("#")[0]

"""Traces of the nested sagas that an earlier run of a saga has started."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from saga_workers.location.locator import Locator
from saga_workers.location.traces import RecordedEffect, effects_with_nested, open_effects_of_all, open_origin
from saga_workers.location.verified_outcomes import state_of
from saga_workers.temporal.root_starts import nested_root_start
from saga_workers.temporal.temporal_runs import describe_run
from sagas.protocol.origin import same_owner
from sagas.protocol.payloads import REPEATS_MEMO, entry_id, idempotency_key
from sagas.settings import Settings

_MAX_ITEMS = 1_000
"""Items of one `for_each` that are looked up."""

_MAX_MISSING = 1
"""Generations without a trace before one that has left some: no guard had to do with them, and their runs are deleted.
"""


@dataclass(frozen=True, slots=True)
class NestedTrace:
    """The latest generation of a nested saga which may have effects.

    ``state``: that of its run, or None if it has none any more. ``saga``: its name, or None if nobody knows it.
    ``repeats``: its run has started it again after one that was deleted.
    """

    entry: str
    id: str
    generation: int
    state: str | None
    saga: str | None
    repeats: bool

    @property
    def child(self) -> dict[str, Any] | None:
        """The nested saga as its parent keeps it; None if nobody knows its name."""
        if self.saga is None:
            return None
        child = {"id": self.id, "step": self.entry, "saga": self.saga, "state": self.state or "TERMINATED"}
        return {**child, "repeats": True} if self.repeats else child


async def nested_traces(
    settings: Settings, locator: Locator, saga_id: str, step: str, generation: int, root_start: str
) -> AsyncIterator[NestedTrace]:
    """The nested sagas of this step of the saga that have a run, or effects in the guards. One that was compensated is
    none of them, and neither is one of another root saga than that with this ``root_start``. ``generation``: that of
    the saga, so the least one of its steps. Raises SagaError, RPCError.
    """
    for index in (None, *range(_MAX_ITEMS)):
        trace = await _latest_trace(settings, locator, saga_id, entry_id(step, index), generation, root_start)
        if trace is None and index is not None:
            return
        if trace is not None and trace.state not in ("COMPENSATED", "REFUSED"):
            yield trace


async def _latest_trace(
    settings: Settings, locator: Locator, saga_id: str, entry: str, first: int, root_start: str
) -> NestedTrace | None:
    latest, missing = None, 0
    for generation in itertools.count(first):
        id = idempotency_key(saga_id, entry, generation)
        trace = await _trace(settings, locator, id, entry, generation, root_start)
        missing = 0 if trace is not None else missing + 1
        if missing > _MAX_MISSING:
            return latest
        latest = trace or latest
    return latest


async def _trace(
    settings: Settings, locator: Locator, id: str, entry: str, generation: int, root_start: str
) -> NestedTrace | None:
    described = await describe_run(locator.temporal, id)
    if described is not None and same_owner(await nested_root_start(described.run), root_start):
        run = described.run
        repeats = REPEATS_MEMO in run.raw.memo.fields
        return NestedTrace(entry, id, generation, await state_of(locator, run), run.workflow_type, repeats)
    recorded = {
        nested: [effect for effect in effects if same_owner(_root_start(effect), root_start)]
        for nested, effects in (await effects_with_nested(settings, id)).items()
    }
    if not open_effects_of_all(recorded, id):
        return None
    effects = recorded[id]
    origin = open_origin(effects) or next((effect.origin for effect in effects if effect.origin is not None), None)
    return NestedTrace(entry, id, generation, None, None if origin is None else origin.saga, repeats=False)


def _root_start(effect: RecordedEffect) -> str:
    return "" if effect.origin is None else effect.origin.root_start

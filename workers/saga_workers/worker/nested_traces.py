"""Traces of the nested sagas that an earlier run of a saga has started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from saga_workers.location.locator import Locator
from saga_workers.location.traces import guarded_effects
from saga_workers.location.verified_outcomes import state_of
from saga_workers.temporal.temporal_runs import describe_run
from sagas.protocol.payloads import entry_id, idempotency_key
from sagas.settings import Settings

_MAX_ITEMS = 1_000
"""Items of one `for_each` that are looked up."""


@dataclass(frozen=True, slots=True)
class NestedTrace:
    """A nested saga which may have effects. ``state``: that of its run, or None if it has none any more."""

    entry: str
    state: str | None


async def nested_traces(settings: Settings, locator: Locator, saga_id: str, step: str) -> AsyncIterator[NestedTrace]:
    """The nested sagas of this step of the saga that have a run, or effects in the guards. One that was compensated is
    none of them. Raises SagaError, RPCError.
    """
    for index in (None, *range(_MAX_ITEMS)):
        entry = entry_id(step, index)
        child = idempotency_key(saga_id, entry, 1)
        described = await describe_run(locator.temporal, child)
        state = None if described is None else await state_of(locator, described.run)
        if described is None and not any(effect.open for effect in await guarded_effects(settings, child)):
            if index is not None:
                return
        elif state not in ("COMPENSATED", "REFUSED"):
            yield NestedTrace(entry, state)

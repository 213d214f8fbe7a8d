"""The origin of a saga, which is what it was started with, as the guard stores it with the first effects."""

from __future__ import annotations

from sagas.machine.state import SagaRun
from sagas.protocol.origin import Origin
from sagas.protocol.payloads import input_digest


def effect_recorded(run: SagaRun) -> bool:
    """Return whether a guard has recorded an effect of the saga."""
    entries = (entry for record in run.steps.values() for entry in record.entries)
    return any(entry.outcome == "done" and run.step(entry).do.guarded for entry in entries)


def origin_of(run: SagaRun) -> Origin:
    """Return what the saga was started with; without the input if it has `x-sensitive` values."""
    return Origin(
        run.definition.saga,
        run.definition.digest,
        input_digest(run.input),
        run.now if run.started_at is None else run.started_at,
        run.generation,
        run.input,
        run.plan.sensitive_schema is None,
        run.variables,
        run.parent,
    )

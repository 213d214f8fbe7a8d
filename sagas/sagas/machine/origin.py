"""The origin of a saga, which is what it was started with, as guards store it with the first effects, and the rows of
commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagas.builtins.messaging import REQUEST
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, Operation
from sagas.machine.state import SagaRun
from sagas.protocol.origin import Origin
from sagas.protocol.payloads import input_digest


def effect_recorded(run: SagaRun) -> bool:
    """Return whether a guard has recorded an effect of the saga."""
    return any(operation.guarded for operation in _done(run))


def command_recorded(run: SagaRun) -> bool:
    """Return whether a command of the saga is done."""
    return any(operation.uses == REQUEST for operation in _done(run))


def _done(run: SagaRun) -> Iterator[Operation]:
    entries = (entry for record in run.steps.values() for entry in record.entries)
    return (run.step(entry).do for entry in entries if entry.outcome == "done")


def origin_of(run: SagaRun) -> Origin:
    """Return what the saga was started with; without the input if it has `x-sensitive` values."""
    started_at = run.now if run.started_at is None else run.started_at
    return build_origin(
        run.definition,
        run.plan,
        run.variables,
        run.input,
        started_at,
        generation=run.generation,
        parent=run.parent,
        root_start=run.root_start,
    )


def build_origin(
    definition: Definition,
    plan: ExecutionPlan,
    variables: Mapping[str, Any],
    input: Any,
    started_at: float,
    *,
    generation: int = 1,
    parent: str | None = None,
    root_start: str = "",
) -> Origin:
    """Return the origin of a saga of this definition; without the input if it has `x-sensitive` values."""
    return Origin(
        definition.saga,
        definition.digest,
        input_digest(input),
        started_at,
        generation,
        input,
        plan.sensitive_schema is None,
        variables,
        parent,
        root_start=root_start,
    )

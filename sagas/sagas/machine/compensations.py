"""The compensation of a step, as it is when the step is undone."""

from __future__ import annotations

from sagas.definition.model import Operation, StepDefinition
from sagas.machine.state import Entry, OperationState, SagaRun


def current_alternate(step: StepDefinition, undo: OperationState) -> Operation:
    """The current compensation of the step: the alternate in use, or `compensate.confirmed`."""
    assert step.compensate is not None
    if undo.undoes_confirmed and step.compensate.confirmed is not None:
        return step.compensate.confirmed
    return step.compensate.alternates[undo.alternate]


def is_always_undone(run: SagaRun, entry: Entry) -> bool:
    """True for an attempted step whose compensation runs whatever became of the attempts."""
    compensate = run.step(entry).compensate
    return compensate is not None and compensate.always and entry.min_attempts > 0 and entry.state != "SKIPPED"

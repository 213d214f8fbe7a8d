"""The calls of participants that a saga may still make: what a new version of the actions must be able to perform.

When in doubt a call counts: the first version of an action may go only when no saga can come back to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sagas.definition.model import Operation, StepDefinition
from sagas.machine.state import SagaRun, StepRecord

CallRole = Literal["do", "probe", "compensate", "confirm"]

_BEYOND_ACTION = frozenset(
    {"DONE", "REJECTED", "SKIPPED", "COMPENSATING", "COMPENSATED", "NOTHING_TO_UNDO", "CONFIRMING", "CONFIRMED"}
)
_UNDONE = frozenset({"COMPENSATED", "NOTHING_TO_UNDO"})


@dataclass(frozen=True, slots=True)
class RemainingCall:
    """An operation of a step. ``arguments``: as the definition writes them; those of the action for a short form."""

    step: str
    role: CallRole
    operation: Operation
    arguments: Mapping[str, Any]


def remaining_calls(run: SagaRun) -> list[RemainingCall]:
    """The calls that a running saga may still make, and those of the undo of a completed one."""
    if run.state in ("COMPENSATED", "RESIDUE"):
        return []
    steps = run.definition.steps
    if run.state == "COMPLETED":
        return [call for step in steps for call in _each(step, "compensate", step.compensations)]
    if _may_repeat_steps(run):
        return [call for step in steps for call in _all_of_step(step)]
    return [call for step in steps for call in _of_step(run, step, run.steps[step.id])]


def _may_repeat_steps(run: SagaRun) -> bool:
    """True if the states of the steps do not tell what is over: they run again after a savepoint, or an earlier run of
    the saga may have done more than this one knows.
    """
    if run.phase != "committed" and any(step.savepoint is not None for step in run.definition.steps):
        return True
    ahead = (entry.ahead or entry.taken_over for record in run.steps.values() for entry in record.entries)
    return run.earlier.exist or any(ahead)


def _all_of_step(step: StepDefinition) -> Iterator[RemainingCall]:
    yield from _forward(step)
    yield from _each(step, "compensate", step.compensations)
    yield from _confirm(step)


def _of_step(run: SagaRun, step: StepDefinition, record: StepRecord) -> Iterator[RemainingCall]:
    states = {entry.state for entry in record.entries}
    goes_back = run.phase == "backward"
    in_progress = not states <= _BEYOND_ACTION | {"PENDING"}
    if in_progress or (not goes_back and _has_pending_items(record)):
        yield from _forward(step)
    if not states <= _UNDONE or (not states and not goes_back):
        yield from _each(step, "compensate", step.compensations)
    if not goes_back and states != {"CONFIRMED"}:
        yield from _confirm(step)


def _has_pending_items(record: StepRecord) -> bool:
    items = 1 if record.items is None else len(record.items)
    return len(record.entries) < items or any(entry.state not in _BEYOND_ACTION for entry in record.entries)


def _forward(step: StepDefinition) -> Iterator[RemainingCall]:
    yield from _each(step, "do", (step.do,))
    if step.probe is not None:
        yield from _each(step, "probe", (step.probe.operation,))


def _confirm(step: StepDefinition) -> Iterator[RemainingCall]:
    yield from _each(step, "confirm", () if step.confirm is None else (step.confirm,))


def _each(step: StepDefinition, role: CallRole, operations: tuple[Operation, ...]) -> Iterator[RemainingCall]:
    for operation in operations:
        arguments = step.do.with_ if operation.with_ is None else operation.with_
        yield RemainingCall(step.id, role, operation, arguments or {})

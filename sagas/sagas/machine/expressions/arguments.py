"""The arguments of operations and notifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.registry import is_read_call, response_expressions
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Operation, StepDefinition
from sagas.expressions.limits import WorkMeter
from sagas.machine.expressions.context import expression_context, overall_state
from sagas.machine.expressions.evaluation import DefinitionError, render
from sagas.machine.failure_reasons import failure_cause
from sagas.machine.state import Entry, EntryOperation, SagaRun


def sent_arguments(entry: Entry, op: EntryOperation, operation: Operation) -> Mapping[str, Any]:
    """The arguments of an operation as they were sent; as they are written if they could not be computed."""
    sent = {"do": entry, "undo": entry.undo, "confirm": entry.confirm}[op]
    if sent is not None and sent.arguments is not None:
        return sent.arguments
    return (operation.with_ if operation.with_ is not None else entry.arguments) or {}


def forward_arguments(run: SagaRun, entry: Entry, override: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of a forward attempt. An operator's corrected arguments, ``override``, take precedence."""
    if override is not None:
        return dict(override)
    return render_forward_arguments(run.plan, run.work, run.step(entry), expression_context(run, entry))


def forward_argument(run: SagaRun, entry: Entry, name: str) -> Any:
    """One argument of a forward attempt, without the evaluation of the others; None if it is not given."""
    if entry.override is not None:
        return entry.override.get(name)
    value = (run.step(entry).do.with_ or {}).get(name)
    return render(run.plan, run.work, (entry.step, "do", name), value, expression_context(run, entry))


def render_forward_arguments(
    plan: ExecutionPlan, work: WorkMeter, step: StepDefinition, names: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of the forward call of a step. ``names``: see :func:`expression_context`.

    Raises DefinitionError, also for a pivot with a computed method that only reads, which the checks of the definition
    could not see (SAGA207): nobody could say later whether it has taken effect.
    """
    given = _render_arguments(plan, work, (step.id, "do"), step.do, names)
    if step.pivot and step.do.uses == "http" and is_read_call("http", given):
        raise DefinitionError(
            f"{step.id}.method: {given.get('method', 'GET')} only reads, so `{step.id}` cannot be the pivot"
        )
    return given


def operation_arguments(
    run: SagaRun,
    entry: Entry,
    place: str,
    op: Operation,
    key: str,
    override: Mapping[str, Any] | None = None,
    *,
    is_written: bool = True,
) -> dict[str, Any]:
    """The arguments of a compensation, confirm or probe; the short form reuses those of the forward attempt.

    ``is_written``: ``op`` is that of the definition.
    """
    if override is not None:
        return dict(override)
    if op.with_ is None:
        if entry.ahead and entry.arguments is None:
            entry.arguments = forward_arguments(run, entry, entry.override)
        return dict(entry.arguments or {})
    names = expression_context(run, entry, key=key, with_own_result=True)
    if run.reason is None:
        # `on_failure: continue` compensates one step while the saga goes on: the step's own failure is the reason.
        names["saga"]["reason"] = failure_cause(entry)
    return _render_arguments(run.plan, run.work, (entry.step, place), op, names, is_written=is_written)


def _render_arguments(
    plan: ExecutionPlan,
    work: WorkMeter,
    place: tuple[str, ...],
    op: Operation,
    names: Mapping[str, Any],
    *,
    is_written: bool = True,
) -> dict[str, Any]:
    arguments = dict(op.with_ or {})
    # Expressions over the response are evaluated by the worker that receives it.
    late = {name: arguments.pop(name) for name in response_expressions(op.uses) if name in arguments}
    return {**render(plan, work, place, arguments, names, is_written=is_written), **late}


def notification_arguments(run: SagaRun, number: int, op: Operation, event: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a notification. All steps are visible; the result of one that never ran is null."""
    names = expression_context(run)
    names["saga"] = {**names["saga"], "state": run.state}
    names["event"] = event
    never = {"result": None, "results": None}
    names["steps"] = {
        id: {**run.step_values.get(id, never), "state": overall_state(rec)} for id, rec in run.steps.items()
    }
    return _render_arguments(run.plan, run.work, ("notify", str(number)), op, names)

"""The values of `if`, `for_each`, `output`, `locks.keys`, `labels` and `fairness_key`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, StepDefinition
from sagas.definition.sensitivity import SensitiveMask
from sagas.expressions.limits import WorkMeter
from sagas.machine.expressions.context import expression_context
from sagas.machine.expressions.evaluation import DefinitionError, evaluate, evaluate_condition, render, wrong_value
from sagas.machine.state import Entry, SagaRun
from sagas.text.exact_json import value_text
from sagas.text.json_values import encodable


def should_run(run: SagaRun, step: StepDefinition) -> bool:
    """The value of ``if``."""
    if step.if_ is None:
        return True
    return evaluate_condition(run, step.id, "if", step.if_, expression_context(run))


def for_each_items(run: SagaRun, step: StepDefinition) -> list[Any]:
    """The list of a for_each."""
    value = evaluate(run, (step.id, "for_each"), step.for_each, expression_context(run))
    if not isinstance(value, list):
        raise wrong_value(run.plan, f"{step.id}.for_each", step.for_each, value, "is not a list", run.input)
    return value


def evaluate_output(run: SagaRun) -> Any:
    return render_output(run.plan, run.work, run.definition, expression_context(run))


def render_output(plan: ExecutionPlan, work: WorkMeter, definition: Definition, names: Mapping[str, Any]) -> Any:
    """The output of the saga. ``names``: see :func:`expression_context`."""
    return render(plan, work, ("output",), definition.output, names)


def evaluate_lock_keys(run: SagaRun) -> Any:
    """The value of `locks.keys`."""
    locks = run.definition.locks
    return None if locks is None else evaluate(run, ("locks", "keys"), locks.keys, expression_context(run))


def evaluate_labels(run: SagaRun) -> dict[str, str]:
    """The labels for search; the values are strings."""
    made = (
        evaluate(run, ("labels",), dict(run.definition.labels), expression_context(run))
        if run.definition.labels
        else {}
    )
    # A nested saga may have been given what only the schema of its parent marks.
    mask = SensitiveMask(run.plan.sensitive_values(run.input))
    return {name: mask.text(value_text(value)) for name, value in made.items()}


FAIRNESS_KEY_BYTES = 64
"""Temporal rejects longer keys by failing the workflow task, which would repeat forever."""


def fairness_key(run: SagaRun, entry: Entry) -> str | None:
    """Temporal's fairness key of the step's operations, evaluated with the names of the forward attempt."""
    source = run.step(entry).fairness_key
    if source is None or "${{" not in source:
        key = source
    else:
        key = value_text(evaluate(run, (entry.step, "fairness_key"), source, expression_context(run, entry)))
    if key is not None and encodable(key) != key:
        raise DefinitionError(f"{entry.id}: the fairness key contains half a surrogate pair")
    if key is not None and len(key.encode()) > FAIRNESS_KEY_BYTES:
        raise DefinitionError(f"{entry.id}: the fairness key is longer than {FAIRNESS_KEY_BYTES} bytes")
    return key

"""Evaluates the expressions of a definition.

A failing expression raises :class:`DefinitionError`. The step is then FAILED without a retry, because evaluation is
deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.schema_messages import shown_value
from sagas.definition.sensitivity import is_sensitive
from sagas.expressions import ExpressionError, compile_expression, compile_value
from sagas.expressions.limits import WorkMeter
from sagas.expressions.template_syntax import OPENING
from sagas.machine.state import SagaRun
from sagas.protocol.outcomes import Failure, Outcome
from sagas.text.masked_texts import mask_texts
from sagas.text.printable import MASK

DEFINITION_FAILURE = "definition"


class DefinitionError(Exception):
    """An expression or an argument of the definition cannot be evaluated; a retry cannot help."""


def definition_outcome(error: DefinitionError) -> Outcome:
    """The outcome of an attempt whose arguments could not be evaluated."""
    return Outcome("failed", failure=Failure(DEFINITION_FAILURE, str(error)), attempt=1, retryable=False)


def evaluate_condition(run: SagaRun, step: str, place: str, source: str, names: Mapping[str, Any]) -> bool:
    value = evaluate(run, (step, place), source, names)
    if not isinstance(value, bool):
        raise wrong_value(run.plan, f"{step}.{place}", source, value, "is neither true nor false", run.input)
    return value


def wrong_value(plan: ExecutionPlan, place: str, source: Any, value: Any, problem: str, input: Any) -> DefinitionError:
    """The error for an expression whose value is of the wrong kind; a sensitive value is not quoted."""
    text = " ".join(str(source).split())
    shown = MASK if _reads_sensitive_input(plan, source) else shown_value(value)
    message = mask_texts(f"{shown} {problem}", plan.sensitive_texts(input))
    return DefinitionError(f"{place}: {message}, in `{shortened(text)}`")


def _reads_sensitive_input(plan: ExecutionPlan, source: Any) -> bool:
    """True if the value may be a sensitive one, which may be too short to be recognised in a text."""
    if plan.sensitive_schema is None or not isinstance(source, str):
        return False
    template = compile_value(source if OPENING in source else f"{OPENING}{source}\n}}}}")
    paths = [reference.path for _, expression in template.expressions for reference in expression.references]
    return any(may_be_sensitive(plan, path) for path in paths)


def may_be_sensitive(plan: ExecutionPlan, path: tuple[str, ...]) -> bool:
    schema = plan.sensitive_schema
    return schema is not None and (path[0] == "item" or (path[0] == "input" and is_sensitive(schema, path[1:])))


def evaluate(run: SagaRun, place: tuple[str, ...], source: Any, names: Mapping[str, Any]) -> Any:
    """Evaluate a field: one expression, with or without ``${{ }}``, or a value that contains expressions."""
    try:
        if isinstance(source, str) and "${{" not in source and place[-1] not in ("for_each", "output"):
            run.work.begin_value()
            return compile_expression(source).evaluate(names, run.work)
    except ExpressionError as error:
        error.text = error.text or str(source)
        raise _definition_error(run.plan, place, error, names) from None
    return render(run.plan, run.work, place, source, names)


def render(
    plan: ExecutionPlan,
    work: WorkMeter,
    place: tuple[str, ...],
    value: Any,
    names: Mapping[str, Any],
    *,
    is_written: bool = True,
) -> Any:
    """Evaluate the expressions in a value. ``is_written``: it is that at this path of the definition."""
    try:
        return (plan.compiled_template(place, value) if is_written else compile_value(value)).render(names, work)
    except ExpressionError as error:
        raise _definition_error(plan, place, error, names) from None


_SHOWN = 120
"""Characters of an expression in a message."""


def shortened(text: str) -> str:
    """The text of an expression for a message."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _definition_error(
    plan: ExecutionPlan, place: tuple[str, ...], error: ExpressionError, names: Mapping[str, Any]
) -> DefinitionError:
    text = " ".join(error.text.split())
    shown = f", in `{shortened(text)}`" if text else ""
    message = mask_texts(error.message + shown, plan.sensitive_texts(names.get("input")))
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
    return DefinitionError(f"{'.'.join(map(_written, place))}{field}: {message}")


def _written(part: str) -> str:
    """A part of the path of a template as the definition has it: the arguments stand under `with`."""
    if part.startswith("compensate."):
        part = part.removesuffix(".0").replace(".1", "[1]").replace(".2", "[2]")
        return f"{part}.with"
    return {"do": "with", "confirm": "confirm.with", "probe": "probe.with"}.get(part, part)

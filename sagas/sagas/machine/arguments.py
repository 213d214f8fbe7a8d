"""Evaluates the expressions of a definition (``with``, ``if``, ``for_each``, ``probe``, ``output`` …).

A failing expression raises :class:`DefinitionError`. The step is then FAILED without a retry, because evaluation is
deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.registry import response_expressions
from sagas.definition.analysis.step_graph import ExecutionPlan
from sagas.definition.model import Definition, Operation, Probe, StepDefinition, checked_entry
from sagas.definition.schema_messages import shown_value
from sagas.definition.sensitivity import is_sensitive
from sagas.definition.times import format_timestamp
from sagas.expressions import ExpressionError, compile_expression, compile_value
from sagas.expressions.limits import WorkMeter
from sagas.expressions.template_syntax import OPENING
from sagas.expressions.values import OmittedValue, UnusableValue
from sagas.machine.state import Entry, EntryOperation, SagaRun, StepRecord
from sagas.machine.state_budget import STATE_BUDGET
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import idempotency_key
from sagas.protocol.size_limits import MAX_PAYLOAD_BYTES, is_omitted
from sagas.text.exact_json import value_text
from sagas.text.hidden_texts import hide_texts
from sagas.text.json_values import encodable
from sagas.text.printable import MASK

DEFINITION_FAILURE = "definition"


class DefinitionError(Exception):
    """An expression or an argument of the definition cannot be evaluated; a retry cannot help."""


def definition_outcome(error: DefinitionError) -> Outcome:
    """The outcome of an attempt whose arguments could not be evaluated."""
    return Outcome("failed", failure=Failure(DEFINITION_FAILURE, str(error)), attempt=1, retryable=False)


def expression_context(
    run: SagaRun, entry: Entry | None = None, *, key: str | None = None, with_own_result: bool = False
) -> dict[str, Any]:
    """The names an expression may use. ``with_own_result``: include the entry's own result, as in a compensation."""
    saga = saga_names(run.definition, run.saga_id, run.started_at)
    names: dict[str, Any] = {
        "input": run.input,
        "steps": run.step_values,
        "vars": run.variables,
        "saga": {**saga, "reason": run.reason},
    }
    if entry is None:
        return names
    forward_key = idempotency_key(run.saga_id, entry.id, entry.generation)
    names["step"] = step_names(forward_key, key)
    if entry.index is not None:
        names["item"] = (run.record(entry).items or [])[entry.index]
        names["index"] = entry.index
    if with_own_result:
        own = readable_result(entry.id, entry.result)
        shown = {**run.step_values.get(entry.step, {}), "result": own, "state": entry.state}
        names["steps"] = {**run.step_values, entry.step: shown}
    return names


def saga_names(definition: Definition, saga_id: str, started_at: float | None) -> dict[str, Any]:
    """The value of ``saga`` in expressions, while there is no reason to roll back."""
    return {"id": saga_id, "name": definition.saga, "started_at": format_timestamp(started_at), "reason": None}


def step_names(forward_key: str, key: str | None = None) -> dict[str, Any]:
    """The value of ``step``. ``key``: that of the call, if it is not the forward one."""
    return {"key": key or forward_key, "forward_key": forward_key}


def failure_cause(entry: Entry) -> dict[str, object]:
    """The cause of rollback for this entry: the error of its last attempt, whatever the merged outcome."""
    error = entry.error or {"type": "Unknown", "message": f"{entry.id} did not respond", "details": {}}
    return {
        "kind": entry.failure_kind or "failed",
        "step": checked_entry(entry.id) or entry.id,
        "type": error["type"],
        "message": error["message"],
        "details": error["details"],
    }


def failure_message(entry: Entry, op: EntryOperation) -> str:
    """The reason for parking an operation: its last error."""
    error, operation = entry.error, entry.id
    if op == "undo":
        error, operation = entry.undo.error if entry.undo else None, "the compensation"
    elif op == "confirm":
        error, operation = entry.confirm.error if entry.confirm else None, "the confirm"
    return f"{error['type']}: {error['message']}" if error else f"{operation} has not succeeded"


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
    return _render(run.plan, run.work, (entry.step, "do", name), value, expression_context(run, entry))


def render_forward_arguments(
    plan: ExecutionPlan, work: WorkMeter, step: StepDefinition, names: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of the forward call of a step. ``names``: see :func:`expression_context`."""
    return _render_arguments(plan, work, (step.id, "do"), step.do, names)


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
    return {**_render(plan, work, place, arguments, names, is_written=is_written), **late}


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


def should_run(run: SagaRun, step: StepDefinition) -> bool:
    """The value of ``if``."""
    if step.if_ is None:
        return True
    return _evaluate_condition(run, step.id, "if", step.if_, expression_context(run))


def for_each_items(run: SagaRun, step: StepDefinition) -> list[Any]:
    """The list of a for_each."""
    value = _evaluate(run, (step.id, "for_each"), step.for_each, expression_context(run))
    if not isinstance(value, list):
        raise wrong_value(run.plan, f"{step.id}.for_each", step.for_each, value, "is not a list", run.input)
    return value


def evaluate_output(run: SagaRun) -> Any:
    return render_output(run.plan, run.work, run.definition, expression_context(run))


def render_output(plan: ExecutionPlan, work: WorkMeter, definition: Definition, names: Mapping[str, Any]) -> Any:
    """The output of the saga. ``names``: see :func:`expression_context`."""
    return _render(plan, work, ("output",), definition.output, names)


def evaluate_lock_keys(run: SagaRun) -> Any:
    """The value of `locks.keys`."""
    locks = run.definition.locks
    return None if locks is None else _evaluate(run, ("locks", "keys"), locks.keys, expression_context(run))


def evaluate_labels(run: SagaRun) -> dict[str, str]:
    """The labels for search; the values are strings."""
    made = (
        _evaluate(run, ("labels",), dict(run.definition.labels), expression_context(run))
        if run.definition.labels
        else {}
    )
    return {name: value_text(value) for name, value in made.items()}


FAIRNESS_KEY_BYTES = 64
"""Temporal rejects longer keys by failing the workflow task, which would repeat forever."""


def fairness_key(run: SagaRun, entry: Entry) -> str | None:
    """Temporal's fairness key of the step's operations, evaluated with the names of the forward attempt."""
    source = run.step(entry).fairness_key
    if source is None or "${{" not in source:
        key = source
    else:
        key = value_text(_evaluate(run, (entry.step, "fairness_key"), source, expression_context(run, entry)))
    if key is not None and encodable(key) != key:
        raise DefinitionError(f"{entry.id}: the fairness key contains half a surrogate pair")
    if key is not None and len(key.encode()) > FAIRNESS_KEY_BYTES:
        raise DefinitionError(f"{entry.id}: the fairness key is longer than {FAIRNESS_KEY_BYTES} bytes")
    return key


def probe_verdict(run: SagaRun, entry: Entry, probe: Probe, outcome: Outcome) -> tuple[str, Any]:
    """The verdict of a probe's response: ``done`` with the result, ``absent`` or ``unknown``."""
    response = _readable_response(outcome.result)
    if outcome.marker == "absent":
        return "absent", None
    if probe.done is None and probe.absent is None:
        said = response.get("probe") if isinstance(response, dict) else None
        if said in ("done", "absent"):
            return said, response.get("result")
        return "unknown", None
    names = {**expression_context(run, entry), "response": response}
    if probe.done is not None and _evaluate_condition(run, entry.step, "probe.done", probe.done, names):
        result = None
        if probe.result is not None:
            result = _evaluate(run, (entry.step, "probe.result"), probe.result, names)
        return "done", result
    if probe.absent is not None and _evaluate_condition(run, entry.step, "probe.absent", probe.absent, names):
        return "absent", None
    return "unknown", None


def _evaluate_condition(run: SagaRun, step: str, place: str, source: str, names: Mapping[str, Any]) -> bool:
    value = _evaluate(run, (step, place), source, names)
    if not isinstance(value, bool):
        raise wrong_value(run.plan, f"{step}.{place}", source, value, "is neither true nor false", run.input)
    return value


def wrong_value(plan: ExecutionPlan, place: str, source: Any, value: Any, problem: str, input: Any) -> DefinitionError:
    """The error for an expression whose value is of the wrong kind; a sensitive value is not quoted."""
    text = " ".join(str(source).split())
    shown = MASK if _reads_sensitive_input(plan, source) else shown_value(value)
    message = hide_texts(f"{shown} {problem}", plan.sensitive_texts(input))
    return DefinitionError(f"{place}: {message}, in `{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}`")


_SHOWN_VALUES = 3


def unmet_requirement(run: SagaRun, entry: Entry) -> str:
    """The message of a `require` without one: its condition, with the single values that it reads."""
    source = (run.step(entry).do.with_ or {}).get("that")
    if entry.override is not None or not isinstance(source, str):
        return "the requirement is not met"
    template, plan = compile_value(source if OPENING in source else f"{OPENING}{source}\n}}}}"), run.plan
    paths = dict.fromkeys(
        reference.path for _, expression in template.expressions for reference in expression.references
    )
    names, values = expression_context(run, entry), list[str]()
    for path in paths:
        value: Any = names
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and not isinstance(value, Mapping | list | UnusableValue):
            values.append(f"{'.'.join(path)} is {MASK if _may_be_sensitive(plan, path) else shown_value(value)}")
    text = " ".join(source.replace(OPENING, "").replace("}}", "").split())
    where = f", where {', '.join(values[:_SHOWN_VALUES])}" if values else ""
    message = f"the requirement is not met: `{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}`{where}"
    return hide_texts(message, plan.sensitive_texts(run.input))


def _reads_sensitive_input(plan: ExecutionPlan, source: Any) -> bool:
    """True if the value may be a sensitive one, which may be too short to be recognised in a text."""
    if plan.sensitive_schema is None or not isinstance(source, str):
        return False
    template = compile_value(source if OPENING in source else f"{OPENING}{source}\n}}}}")
    paths = [reference.path for _, expression in template.expressions for reference in expression.references]
    return any(_may_be_sensitive(plan, path) for path in paths)


def _may_be_sensitive(plan: ExecutionPlan, path: tuple[str, ...]) -> bool:
    schema = plan.sensitive_schema
    return schema is not None and (path[0] == "item" or (path[0] == "input" and is_sensitive(schema, path[1:])))


def _evaluate(run: SagaRun, place: tuple[str, ...], source: Any, names: Mapping[str, Any]) -> Any:
    """Evaluate a field: one expression, with or without ``${{ }}``, or a value that contains expressions."""
    try:
        if isinstance(source, str) and "${{" not in source and place[-1] not in ("for_each", "output"):
            run.work.begin_value()
            return compile_expression(source).evaluate(names, run.work)
    except ExpressionError as error:
        error.text = error.text or str(source)
        raise _definition_error(run.plan, place, error, names) from None
    return _render(run.plan, run.work, place, source, names)


def _render(
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


def _definition_error(
    plan: ExecutionPlan, place: tuple[str, ...], error: ExpressionError, names: Mapping[str, Any]
) -> DefinitionError:
    text = " ".join(error.text.split())
    shown = f", in `{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}`" if text else ""
    message = hide_texts(error.message + shown, plan.sensitive_texts(names.get("input")))
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
    return DefinitionError(f"{'.'.join(map(_written, place))}{field}: {message}")


def _written(part: str) -> str:
    """A part of the path of a template as the definition has it: the arguments stand under `with`."""
    if part.startswith("compensate."):
        part = part.removesuffix(".0").replace(".1", "[1]").replace(".2", "[2]")
        return f"{part}.with"
    return {"do": "with", "confirm": "confirm.with", "probe": "probe.with"}.get(part, part)


def publish_result(run: SagaRun, record: StepRecord) -> None:
    """Make a settled step visible to expressions. The cost does not depend on the number of steps."""
    step = run.plan.steps[record.id]
    if step.for_each is not None:
        ids = (entry.id for entry in record.entries)
        results = [readable_result(id, result) for id, result in zip(ids, record.results or [], strict=False)]
        run.step_values[record.id] = {"result": None, "results": results, "state": overall_state(record)}
        return
    entry = record.entries[0]
    good = entry.outcome == "done" and not entry.failure_ignored
    result = readable_result(entry.id, entry.result) if good else None
    run.step_values[record.id] = {"result": result, "results": None, "state": overall_state(record)}


def readable_result(id: str, result: Any) -> Any:
    """The result of an entry in expressions: one that was too large to be kept is no data, whatever reads it."""
    if not is_omitted(result):
        return result
    if "reason" in result:
        return OmittedValue(f"the result of {id} cannot be used: {result['reason']}")
    return OmittedValue(
        f"the result of {id} was not kept: it has {result['bytes']:,} bytes as JSON, a result may have "
        f"{MAX_PAYLOAD_BYTES:,}, and all results of a saga {STATE_BUDGET:,} compressed; return fewer columns or rows, "
        "or write them to a table or a file and return a reference to it"
    )


def _readable_response(response: Any) -> Any:
    """The response to a probe; a body that was too large is neither there nor missing."""
    if isinstance(response, dict) and response.get("omitted") == "size" and "bytes" in response:
        why = f"the body of the response has {response['bytes']:,} bytes as JSON and was not kept"
        return {**response, "json": OmittedValue(why), "text": OmittedValue(why)}
    return response


def overall_state(record: StepRecord) -> str:
    """The state of a step: that of its only entry, or of the first item that is not DONE."""
    for entry in record.entries:
        if entry.state not in ("DONE", "CONFIRMED") or record.items is None:
            return entry.state
    return "DONE" if record.settled else "RUNNING" if record.begun else "PENDING"

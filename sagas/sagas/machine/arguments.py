"""What expressions see, and the values of ``with``, ``if``, ``for_each``, ``probe`` and ``output``.

Everything raises :class:`DefinitionFault` when an expression fails: the step is then FAILED without a retry, because
the same expression fails the same way every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Operation, Probe, Step
from sagas.expressions import ExpressionError, compile_expression
from sagas.machine.keys import step_key
from sagas.machine.moments import iso
from sagas.machine.run import Run
from sagas.machine.state import Entry, StepRecord
from sagas.outcomes import Failure, Outcome

DEFINITION = "definition"


class DefinitionFault(Exception):
    """An expression or an argument of the definition cannot be evaluated; trying again cannot help."""


def fault(error: DefinitionFault) -> Outcome:
    """The outcome of an attempt that could not even be formulated."""
    return Outcome("failed", failure=Failure(DEFINITION, str(error)), attempt=1, retryable=False)


def context(run: Run, entry: Entry | None = None, *, key: str | None = None, own: bool = False) -> dict[str, Any]:
    """The names an expression may use. ``own``: also the entry's own result, as in a compensation."""
    names: dict[str, Any] = {"input": run.input, "steps": run.view, "vars": run.variables, "saga": _saga(run)}
    if entry is None:
        return names
    forward_key = step_key(run.saga_id, entry.id, entry.generation)
    names["step"] = {"key": key or forward_key, "forward_key": forward_key}
    if entry.index is not None:
        names["item"] = (run.record(entry).items or [])[entry.index]
        names["index"] = entry.index
    if own:
        shown = {**run.view.get(entry.step, {}), "result": entry.result, "state": entry.state}
        names["steps"] = {**run.view, entry.step: shown}
    return names


def _saga(run: Run) -> dict[str, Any]:
    return {
        "id": run.saga_id,
        "name": run.definition.saga,
        "started_at": iso(run.started_at),
        "reason": run.reason,
    }


def cause_of(entry: Entry) -> dict[str, object]:
    """The reason that this entry's end gives: the last attempt's own word, whatever the joined outcome."""
    error = entry.error or {"type": "Unknown", "message": f"{entry.id} did not answer", "details": {}}
    return {
        "kind": entry.word or "failed",
        "step": entry.id,
        "type": error["type"],
        "message": error["message"],
        "details": error["details"],
    }


def forward(run: Run, entry: Entry) -> dict[str, Any]:
    """The arguments of a forward attempt. A person's corrected arguments win."""
    if entry.override is not None:
        return entry.override
    step = run.step(entry)
    return _with(run, (step.id, "do"), step.do, context(run, entry))


def operation(
    run: Run, entry: Entry, place: str, op: Operation, key: str, override: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of a compensation, a confirm or a probe; its short form takes those of the forward attempt."""
    if override is not None:
        return dict(override)
    if op.with_ is None:
        return dict(entry.arguments or {})
    names = context(run, entry, key=key, own=True)
    if run.reason is None:
        # `on_failure: continue` undoes a step alone: its own end is the reason, for the saga goes on.
        names["saga"]["reason"] = cause_of(entry)
    return _with(run, (entry.step, place), op, names)


def _with(run: Run, place: tuple[str, ...], op: Operation, names: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(op.with_ or {})
    # `result` of http is an expression over the response, evaluated where the response is.
    late = {"result": given.pop("result")} if op.uses == "http" and "result" in given else {}
    try:
        return {**run.plan.template(place, given).render(names), **late}
    except ExpressionError as error:
        raise DefinitionFault(f"{'.'.join(place)}: {error.message}") from None


def notification(run: Run, number: int, op: Operation, event: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a notification: all steps can be named, those that never ran with a null result."""
    names = context(run)
    names["saga"] = {**names["saga"], "state": run.state}
    names["event"] = event
    never = {"result": None, "results": None}
    names["steps"] = {id: {**run.view.get(id, never), "state": step_state(rec)} for id, rec in run.steps.items()}
    return _with(run, ("notify", str(number)), op, names)


def wanted(run: Run, step: Step) -> bool:
    """The value of ``if``."""
    if step.if_ is None:
        return True
    value = _evaluate(run, (step.id, "if"), step.if_, context(run))
    if not isinstance(value, bool):
        raise DefinitionFault(f"{step.id}.if: neither true nor false")
    return value


def items(run: Run, step: Step) -> list[Any]:
    """The list of a for_each."""
    value = _evaluate(run, (step.id, "for_each"), step.for_each, context(run))
    if not isinstance(value, list):
        raise DefinitionFault(f"{step.id}.for_each: not a list")
    return value


def output(run: Run) -> Any:
    return _evaluate(run, ("output",), run.definition.output, context(run))


def labels(run: Run) -> dict[str, str]:
    """What people search for; the values are text."""
    made = _evaluate(run, ("labels",), dict(run.definition.labels), context(run)) if run.definition.labels else {}
    return {name: str(value) for name, value in made.items()}


FAIRNESS_KEY_BYTES = 64
"""Temporal refuses longer ones, and by failing the task for ever."""


def fairness_key(run: Run, entry: Entry) -> str | None:
    """Temporal's fairness key of the step's operations, from the names that the forward attempt may use."""
    source = run.step(entry).fairness_key
    if source is None or "${{" not in source:
        key = source
    else:
        key = str(_evaluate(run, (entry.step, "fairness_key"), source, context(run, entry)))
    if key is not None and len(key.encode()) > FAIRNESS_KEY_BYTES:
        raise DefinitionFault(f"{entry.id}: the fairness key is longer than {FAIRNESS_KEY_BYTES} bytes")
    return key


def probed(run: Run, entry: Entry, probe: Probe, answer: Outcome) -> tuple[str, Any]:
    """What a probe's answer says: ``done`` with the result, ``absent`` or ``unknown``."""
    response = answer.result
    if answer.marker == "absent":
        return "absent", None
    if probe.done is None and probe.absent is None:
        said = response.get("probe") if isinstance(response, dict) else None
        if said in ("done", "absent"):
            return said, response.get("result")
        return "unknown", None
    names = {**context(run, entry), "response": response}
    if probe.done is not None and _truth(run, entry.step, "probe.done", probe.done, names):
        result = None
        if probe.result is not None:
            result = _evaluate(run, (entry.step, "probe.result"), probe.result, names)
        return "done", result
    if probe.absent is not None and _truth(run, entry.step, "probe.absent", probe.absent, names):
        return "absent", None
    return "unknown", None


def _truth(run: Run, step: str, place: str, source: str, names: Mapping[str, Any]) -> bool:
    value = _evaluate(run, (step, place), source, names)
    if not isinstance(value, bool):
        raise DefinitionFault(f"{step}.{place}: neither true nor false")
    return value


def _evaluate(run: Run, place: tuple[str, ...], source: Any, names: Mapping[str, Any]) -> Any:
    """A field that is one expression, with or without its ``${{ }}``, or a plain value with expressions in it."""
    try:
        if isinstance(source, str) and "${{" not in source and place[-1] not in ("for_each", "output"):
            return compile_expression(source).evaluate(names)
        return run.plan.template(place, source).render(names)
    except ExpressionError as error:
        raise DefinitionFault(f"{'.'.join(place)}: {error.message}") from None


def publish(run: Run, record: StepRecord) -> None:
    """Make a step's end visible to expressions. Constant cost, whatever the number of steps."""
    step = run.plan.steps[record.id]
    if step.for_each is not None:
        run.view[record.id] = {"result": None, "results": record.results or [], "state": step_state(record)}
        return
    entry = record.entries[0]
    result = entry.result if entry.outcome == "done" and not entry.continued else None
    run.view[record.id] = {"result": result, "results": None, "state": step_state(record)}


def step_state(record: StepRecord) -> str:
    """One word for a step: of its only entry, or of the first item that is not DONE."""
    for entry in record.entries:
        if entry.state not in ("DONE", "CONFIRMED") or record.items is None:
            return entry.state
    return "DONE" if record.settled else "RUNNING" if record.begun else "PENDING"

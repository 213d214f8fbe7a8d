"""The decisions that are possible about an operation (the table in cli.md), and the answers accepted with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from sagas.builtins.automatic import RESTORE
from sagas.builtins.messaging import DROP, RELEASE
from sagas.builtins.registry import BUILTINS
from sagas.definition.call_arguments import (
    argument_problem,
    fixed_argument_problem,
    replaced_arguments,
    statement_problem,
)
from sagas.definition.model import Operation, is_read
from sagas.definition.replacement import replacement_refusal
from sagas.errors import nearest
from sagas.machine.compensations import current_alternate
from sagas.machine.corrected_probes import probe_of
from sagas.machine.decisions.form import json_type, malformed_decision
from sagas.machine.decisions.result_uses import result_problem
from sagas.machine.expressions import arguments
from sagas.machine.operator_record import repetition_refusal
from sagas.machine.retries import is_single_attempt
from sagas.machine.state import OUTPUT_STEP, Entry, SagaRun
from sagas.machine.unclosed_skips import is_unclosed
from sagas.protocol.messages import DecisionMade
from sagas.protocol.saga_view import Decision, EntryOperation
from sagas.text.masked_texts import mask_texts

_WITHOUT_ARGUMENTS = (RESTORE, RELEASE, DROP)

DECIDABLE_AFTER = 15 * 60
"""Seconds of retries after which an operator may decide about an operation that is not parked."""


def decision_refusal(run: SagaRun, decision: DecisionMade) -> str | None:
    """Why this decision is refused, as one sentence; None when it is accepted."""
    wrong = malformed_decision(decision)
    if wrong is not None:
        return wrong
    if run.finished:
        return f"{run.saga_id} has ended ({run.state}): there is nothing left to decide"
    if decision.decision == "retry" and (full := repetition_refusal(run)) is not None:
        return full
    if decision.step == OUTPUT_STEP and OUTPUT_STEP in run.parked:
        return _impossible_decision(decision, ["retry", "done"], "`output`")
    entry = run.entry(decision.step)
    if entry is None:
        return _unknown_entry(run, decision.step)
    if entry.decision is not None and not is_unclosed(entry):
        who = entry.decision.get("who")
        return f"{who} has already decided about {entry.id} ({entry.decision['decision']}); the first decision applies"
    parked = run.parked.get(entry.id)
    op = parked.op if parked else current_operation(run, entry)
    blocking = run.children.get(entry.id, {}).get("waits")
    if parked is None and blocking:
        return f"{entry.id} waits for the nested saga {blocking[0]['id']}: decide there about {blocking[0]['step']}"
    if parked is None and not _retried_for_long(run, entry, op, decision.at):
        return (
            f"{entry.id} is {entry.state}: only what is parked or has been retried for over 15 minutes can be decided"
        )
    return (
        _unsafe_retry(run, decision, entry, op)
        or _impossible_decision(decision, possible_decisions(run, entry, op), _describe_operation(entry, op))
        or _missing_evidence(run, decision, entry, op)
        or _unsuitable_arguments(run, decision, entry, op)
        or _unsuitable_result(run, decision, entry, op)
        or _definition_refusal(run, decision)
    )


def _unsuitable_arguments(run: SagaRun, decision: DecisionMade, entry: Entry, op: EntryOperation) -> str | None:
    """Arguments that an operation of the engine does not take: its attempts would fail, or ignore them."""
    operation = decided_operation(run, entry, op)
    if decision.arguments is None:
        return None
    if not takes_arguments(operation):
        return f"--with has no effect: {_describe_operation(entry, op)} takes no arguments"
    if (text := _expression_in(decision.arguments)) is not None:
        shown = mask_texts(text[:60], run.plan.sensitive_texts(run.input))
        return f"with takes values, and `{shown}` would be text: write the value, or correct the definition"
    if operation.uses not in BUILTINS:
        return None
    original = arguments.sent_arguments(entry, op, operation)
    new = replaced_arguments(operation.uses, decision.arguments, original)
    reads = op == "do" and is_read(run.step(entry))
    problem = (
        fixed_argument_problem(decision.arguments, original)
        or argument_problem(operation.uses, new)
        or statement_problem(operation.uses, new, reads=reads)
    )
    if problem is None:
        return None
    replaces = "; --with replaces all arguments" if "needs the argument" in problem else ""
    return f"--with does not fit: {mask_texts(problem, run.plan.sensitive_texts(run.input))}{replaces}"


def _unsuitable_result(run: SagaRun, decision: DecisionMade, entry: Entry, op: EntryOperation) -> str | None:
    if decision.decision != "done":
        return None
    if op == "do":
        return result_problem(run, entry, decision.result)
    if decision.result is None:
        return None
    return f"--result has no effect: {_describe_operation(entry, op)} has no result"


def _expression_in(value: Any) -> str | None:
    """The first text with an expression, which a definition would evaluate."""
    match value:
        case str():
            return value if "${{" in value else None
        case Mapping():
            return next((text for item in value.values() if (text := _expression_in(item)) is not None), None)
        case list():
            return next((text for item in value if (text := _expression_in(item)) is not None), None)
    return None


def decided_operation(run: SagaRun, entry: Entry, op: EntryOperation) -> Operation | None:
    step = run.step(entry)
    if op == "undo":
        return None if step.compensate is None or entry.undo is None else current_alternate(step, entry.undo)
    return step.do if op == "do" else step.confirm


def takes_arguments(operation: Operation | None) -> TypeGuard[Operation]:
    return operation is not None and operation.uses not in _WITHOUT_ARGUMENTS


def corrects_with_arguments(run: SagaRun, entry: Entry, op: EntryOperation) -> bool:
    """Return whether a parked operation can be retried with other arguments. A step whose `if` or `for_each` has failed
    has none yet.
    """
    if not takes_arguments(decided_operation(run, entry, op)) or (op == "do" and entry.started_at is None):
        return False
    return not _may_have_taken_effect(run, entry, op)


def current_operation(run: SagaRun, entry: Entry) -> EntryOperation:
    """The current operation of the entry. Once the saga goes backward, looking up its effect is part of the undo, also
    a lookup that began before: an operator, who sees an UNKNOWN step, cannot tell them apart."""
    undone = run.compensating or (run.phase == "backward" and entry.state == "UNKNOWN")
    if entry.undo is not None and (entry.undo.state in ("RUNNING", "PARKED") or undone):
        return "undo"
    if entry.confirm is not None and entry.confirm.state in ("RUNNING", "PARKED"):
        return "confirm"
    return "do"


def possible_decisions(run: SagaRun, entry: Entry, op: EntryOperation) -> list[Decision]:
    """The decisions allowed for an operation (the table in cli.md).

    There is no `retry` where the effect is unknown and the participant must not be called twice.
    """
    if op in ("undo", "confirm"):
        return ["retry", "done", "skip"]
    step = run.step(entry)
    unsure = entry.outcome == "unknown" and not entry.resolved
    possible: list[Decision] = [] if unsure and is_single_attempt(step) and probe_of(run, entry) is None else ["retry"]
    if run.phase != "forward":
        return [*possible, "done", "skip"]
    if step.pivot:
        return [*possible, "done", "compensate"]
    return [*possible, "done", "skip"] if run.earlier.pivot_in_place else [*possible, "done", "skip", "compensate"]


def _describe_operation(entry: Entry, op: EntryOperation) -> str:
    return {"do": entry.id, "undo": f"the undo of {entry.id}", "confirm": f"the confirm of {entry.id}"}[op]


def _impossible_decision(decision: DecisionMade, allowed: Sequence[str], where: str) -> str | None:
    if decision.decision in allowed:
        return None
    return f"`{decision.decision}` is not possible for {where}; possible: {', '.join(allowed)}"


def _unknown_entry(run: SagaRun, wanted: str) -> str:
    begun = [entry.id for record in run.steps.values() for entry in record.entries]
    items = [id for id in begun if id.startswith(f"{wanted}#")]
    if items:
        parked = [id for id in items if id in run.parked]
        return f"{wanted} runs once per item: decide about one of them, for instance {(parked or items)[0]}"
    step = wanted.partition("#")[0]
    if wanted in run.steps or (step in run.steps and run.steps[step].items is not None):
        return f"{wanted} has not begun, so there is nothing to decide about it"
    near = nearest(wanted, dict.fromkeys([*run.parked, *begun, *run.steps]))
    hint = f"did you mean {near}?" if near else f"parked: {', '.join(run.parked) or 'nothing'}"
    return f"{run.saga_id} has no step {wanted}; {hint}"


def _retried_for_long(run: SagaRun, entry: Entry, op: EntryOperation, at: float) -> bool:
    """True for an operation that is not parked, but has been retried for so long that an operator may decide."""
    if entry.flight is None:
        return False
    step = run.step(entry)
    operation = {"do": None, "undo": entry.undo, "confirm": entry.confirm}[op]
    since = entry.started_at if operation is None else operation.started_at or entry.ended_at
    attempts = entry.min_attempts if operation is None else operation.min_attempts
    flight = run.flights[entry.flight]
    if flight.kind in ("wait", "saga") or since is None:
        return False
    # A first attempt that is still within its timeout is not being retried.
    return at - since > DECIDABLE_AFTER and (
        attempts > 0 or flight.kind == "timer" or at - flight.started_at > step.do.timeout
    )


def _missing_evidence(run: SagaRun, decision: DecisionMade, entry: Entry, op: EntryOperation) -> str | None:
    step = run.step(entry)
    pivot = op == "do" and step.pivot and run.phase == "forward"
    needed = (decision.decision == "done" and (op == "undo" or pivot)) or (
        decision.decision == "compensate" and pivot and not step.do.guarded
    )
    if needed and not (decision.evidence or "").strip():
        has = "is undone" if op == "undo" else "has happened" if decision.decision == "done" else "has not happened"
        what = _describe_operation(entry, op)
        return f"`{decision.decision}` for {what} needs --evidence, which says how you know that {entry.id} {has}"
    return None


def _unsafe_retry(run: SagaRun, decision: DecisionMade, entry: Entry, op: EntryOperation) -> str | None:
    """Why a retry is unsafe: an earlier attempt may have had its effect, and there is no guard to check."""
    if decision.decision != "retry" or not _may_have_taken_effect(run, entry, op):
        return None
    step, unsure = run.step(entry), entry.outcome == "unknown" and not entry.resolved
    if unsure and is_single_attempt(step) and probe_of(run, entry) is None:
        return (
            f"{entry.id} may have taken effect, and its participant must not be called twice: check there, then decide"
        )
    if decision.arguments is not None:
        return f"{entry.id} may have taken effect and has no guard: retry it without --with, or decide done or skip"
    return None


def _may_have_taken_effect(run: SagaRun, entry: Entry, op: EntryOperation) -> bool:
    step = run.step(entry)
    if op != "do" or is_read(step) or step.do.guarded:
        return False
    flight = run.flights.get(entry.flight or "")
    unsure = entry.outcome == "unknown" and not entry.resolved
    return unsure or (flight is not None and flight.kind == "call")


def _definition_refusal(run: SagaRun, decision: DecisionMade) -> str | None:
    if decision.definition is None:
        return None
    if not isinstance(decision.definition, Mapping):
        return f"the definition must be an object, not {json_type(decision.definition)}"
    return replacement_refusal(run.definition, decision.definition)

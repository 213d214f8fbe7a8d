"""Rules 7, 10 and §4: what cannot be evaluated is never called; corrected values are used as given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Operation, StepDefinition, checked_entry
from sagas.protocol.messages import Call, StartSaga
from tests.unit.engine.machine_properties.inputs import definition_faults
from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation


def check_call(ledger: Ledger, call: Call) -> None:
    """A call may only use arguments from the definition or from an operator."""
    step = ledger.step(call.entry)
    given = ledger.given.get((call.entry, call.op))
    if call.key not in ledger.sent:
        _check_withdrawn(ledger, call.entry, call.op, call.id, call.arguments)
    if call.op == "do":
        _check_forward(ledger, step, call.entry, call.id, call.arguments)
        _check_repeated(ledger, call.key, call.id, call.arguments)
        return
    asked = definition_faults.of(step, call.action, call.op)
    if asked is None:
        return  # only the guard is called
    mine = given is not None and ledger.given_for.get((call.entry, call.op)) in (None, call.action)
    if mine and dict(call.arguments) != dict(given or {}):
        raise Violation("retry --with", f"{call.id} got {call.arguments}, not {given}, as a person said")
    if given is not None and not mine and given and dict(call.arguments) == dict(given):
        raise Violation("retry --with", f"{call.id} got the arguments that a person gave another alternate")
    if ledger.maybe_given.get(call.entry) == call.arguments:
        return
    _check_correction(ledger, step, call, asked)
    if not mine and definition_faults.broken(asked.with_):
        raise Violation("rule 10", f"{call.id} is asked with {call.arguments}, which nobody could evaluate")
    after_confirm = step.compensate.confirmed if step.compensate and call.guard and call.guard.confirmed else None
    if after_confirm is not None and given is None and definition_faults.broken(after_confirm.with_):
        raise Violation("rule 10", f"{call.id} may undo a confirmed effect with what nobody could evaluate")


def _check_correction(ledger: Ledger, step: StepDefinition, call: Call, asked: Operation) -> None:
    """Check that a call which does not follow the correction of its step has a decision about it."""
    corrected = ledger.given.get((call.entry, "do"))
    if corrected is None or ledger.arguments.get(call.entry) != corrected or not asked.with_:
        return
    if all(value == f"${{{{ steps.{step.id}.result.id }}}}" for value in asked.with_.values()):
        return  # what the corrected call has returned
    if call.op in ("undo", "confirm") and (call.entry, call.op) not in ledger.retried:
        raise Violation("retry --with", f"{call.id} has {call.arguments}, but {step.id} was called with {corrected}")


def check_child(ledger: Ledger, start: StartSaga) -> None:
    given = {"name": start.saga, "input": start.input}
    if start.saga_id not in ledger.sent:
        _check_withdrawn(ledger, start.entry, "do", start.id, given)
    _check_forward(ledger, ledger.step(start.entry), start.entry, start.id, given)
    _check_repeated(ledger, start.saga_id, start.id, given)


def _check_repeated(ledger: Ledger, key: str, id: str, arguments: Mapping[str, Any]) -> None:
    """One key, or id of a nested saga, has one intention, also where a later correction withdraws it."""
    earlier = ledger.sent.get(key)
    if earlier is not None and dict(earlier) != dict(arguments):
        raise Violation("one key, one intention", f"{id} sends {arguments} under the key of {earlier}")


def _check_withdrawn(ledger: Ledger, entry: str, op: str, id: str, arguments: Mapping[str, Any]) -> None:
    withdrawn = ledger.withdrawn.get((entry, op))
    if withdrawn is not None and dict(arguments) == dict(withdrawn):
        raise Violation("retry --definition", f"{id} got {withdrawn}, which the corrected definition withdrew")


def _check_forward(ledger: Ledger, step: StepDefinition, entry: str, id: str, arguments: Any) -> None:
    given = ledger.given.get((entry, "do"))
    if given is not None and dict(arguments) != dict(given):
        raise Violation("retry --with", f"{id} got {arguments}, not {given}, as a person said")
    parts = [step.if_, step.for_each, step.fairness_key, None if given is not None else step.do.with_]
    if definition_faults.broken(parts):
        raise Violation("rule 10", f"{id} is asked with {arguments}, which nobody could evaluate")
    if step.if_ is not None and not ledger.input[step.if_.removesuffix(" }}").partition("input.")[2]]:
        raise Violation("if", f"{id} is asked although its `if` is false")


def check_story(ledger: Ledger) -> None:
    """Rule 10: what can not be evaluated has failed at once; nothing tries it again."""
    if ledger.story["digest"] != ledger.definition.digest:
        raise Violation("rule 7", f"the saga runs {ledger.story['digest']}, not {ledger.definition.digest}")
    if not ledger.mistaken:
        return
    for e in ledger.story["steps"]:
        being_sealed = ledger.step(e["id"]).pivot and ledger.stop_ordered
        if (
            e["state"] == "RUNNING"
            and never_evaluable(ledger, e["id"])
            and not ledger.decided(e["id"])
            and not being_sealed
        ):
            raise Violation("rule 10", f"{e['id']} is RUNNING, but nobody can evaluate it")


def never_evaluable(ledger: Ledger, entry: str) -> bool:
    """True if an entry's forward action cannot be called with the current definition."""
    step = ledger.step(entry)
    if "#" in entry:
        return definition_faults.broken([step.do.with_, step.fairness_key]) and (entry, "do") not in ledger.given
    return definition_faults.broken(definition_faults.forward(step)) and (entry, "do") not in ledger.given


def check_reason(ledger: Ledger) -> None:
    """`definition` is the reason exactly where an expression has failed."""
    reason = ledger.story["reason"]
    entry = reason["step"]
    mistaken = (
        entry is not None
        and never_evaluable(ledger, entry)
        and not ledger.decided(entry)
        and not _failed_check(ledger, entry)
    )
    if reason["kind"] == "definition":
        parts = definition_faults.forward(ledger.step(entry)) if entry else []
        if not definition_faults.broken(parts) and not definition_faults.fragile(parts):
            raise Violation("rule 10", f"the reason is the definition of {entry}, which has no mistake")
    elif mistaken and reason["kind"] in ("failed", "rejected", "unknown"):
        raise Violation("rule 10", f"{entry} could not be evaluated, but the reason is {reason['kind']}")


def _failed_check(ledger: Ledger, entry: str) -> bool:
    """The reason names this entry because its pre-check was not passed, so the entry was never evaluated."""
    rows = [row for row in ledger.story["steps"] if checked_entry(row["id"]) == entry]
    return any(row["state"] in ("REJECTED", "FAILED", "UNKNOWN") for row in rows)


def synchronous(ledger: Ledger) -> set[str]:
    """Reasons that need no event of their own: an expression that fails, a requirement that is not met."""
    reasons: set[str] = set()
    for step in ledger.definition.steps:
        parts = definition_faults.forward(step)
        if definition_faults.broken(parts) or definition_faults.fragile(parts):
            reasons.add("definition")
        if step.do.uses == "require":
            reasons.add("rejected")
    return reasons

"""What may be asked of a saga from outside: decisions of a person, and the undo of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

from sagas.machine import mended
from sagas.machine.calls import asked_once
from sagas.machine.decisions import op_of
from sagas.machine.events import Decision, DecisionMade
from sagas.machine.plan import is_nested, is_read
from sagas.machine.run import OUTPUT, Run
from sagas.machine.state import Entry, EntryOp

WORDS: tuple[str, ...] = get_args(Decision)

STUCK_AFTER = 15 * 60
"""Seconds of retrying after which a person may decide about an operation that is not parked."""


def refusal(run: Run, decision: DecisionMade) -> str | None:
    """Why this decision cannot be accepted, in one sentence; None when it can."""
    wrong = _malformed(decision)
    if wrong is not None:
        return wrong
    if run.finished:
        return f"{run.saga_id} is over ({run.state}): there is nothing left to decide"
    if decision.step == OUTPUT and OUTPUT in run.parked:
        return _not_among(decision, ["retry", "done"], "`output`")
    entry = run.entry(decision.step)
    if entry is None:
        return _unknown(run, decision.step)
    if entry.decision is not None:
        who = entry.decision.get("who")
        return f"{who} has already decided about {entry.id} ({entry.decision['decision']}): the first decision wins"
    parked = run.parked.get(entry.id)
    op = parked.op if parked else op_of(run, entry)
    blocking = run.children.get(entry.id, {}).get("waits")
    if parked is None and blocking:
        return f"{entry.id} waits for the nested saga {blocking[0]['id']}: decide there about {blocking[0]['step']}"
    if parked is None and not _stuck(run, entry, op, decision.at):
        return f"{entry.id} is {entry.state}: a person decides only what is parked or was retried for over 15 minutes"
    return (
        _unchangeable(run, decision, entry, op)
        or _not_among(decision, decisions_of(run, entry, op), _words(entry, op))
        or _without_evidence(run, decision, entry, op)
        or _other_definition(run, decision)
    )


def decisions_of(run: Run, entry: Entry, op: EntryOp) -> list[str]:
    """The row of the table in cli.md; without `retry` where the participant must not be asked twice."""
    if op in ("undo", "confirm"):
        return ["retry", "done", "skip"]
    step = run.step(entry)
    unsure = entry.outcome == "unknown" and not entry.resolved
    possible = [] if unsure and asked_once(step) and step.probe is None else ["retry"]
    if run.phase != "forward":
        return [*possible, "done", "skip"]
    if step.pivot:
        return [*possible, "done", "compensate"]
    return [*possible, "done", "skip", "compensate"]


def _words(entry: Entry, op: EntryOp) -> str:
    return {"do": entry.id, "undo": f"the compensation of {entry.id}", "confirm": f"the confirm of {entry.id}"}[op]


def _not_among(decision: DecisionMade, allowed: list[str], where: str) -> str | None:
    if decision.decision in allowed:
        return None
    return f"`{decision.decision}` is not possible for {where}; possible: {', '.join(allowed)}"


def _malformed(decision: DecisionMade) -> str | None:
    """It comes from outside as JSON, so every field may hold anything."""
    for name, value in (("step", decision.step), ("decision", decision.decision), ("reason", decision.reason)):
        if not isinstance(value, str) or not value.strip():
            return f"a decision needs the text `{name}`, not {value!r}"
    if decision.decision not in WORDS:
        near = get_close_matches(decision.decision, WORDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"there is no decision `{decision.decision}`: the words are {', '.join(WORDS)}{hint}"
    if decision.arguments is not None and not isinstance(decision.arguments, Mapping):
        return f"--with takes an object of arguments, not {kind_of(decision.arguments)}"
    if decision.evidence is not None and not isinstance(decision.evidence, str):
        return f"--evidence takes a text, not {kind_of(decision.evidence)}"
    return None


def kind_of(value: Any) -> str:
    """What JSON calls this value."""
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case None:
            return "null"
        case _:
            return "an object"


def _unknown(run: Run, wanted: str) -> str:
    begun = [entry.id for record in run.steps.values() for entry in record.entries]
    items = [id for id in begun if id.startswith(f"{wanted}#")]
    if items:
        stuck = [id for id in items if id in run.parked]
        return f"{wanted} runs once per item: decide about one of them, for instance {(stuck or items)[0]}"
    step = wanted.partition("#")[0]
    if wanted in run.steps or (step in run.steps and run.steps[step].items is not None):
        return f"{wanted} has not begun, so there is nothing to decide about it"
    near = get_close_matches(wanted, [*dict.fromkeys([*run.parked, *begun, *run.steps])], n=1)
    hint = f"did you mean {near[0]}?" if near else f"parked: {', '.join(run.parked) or 'nothing'}"
    return f"{run.saga_id} has no step {wanted}; {hint}"


def _stuck(run: Run, entry: Entry, op: EntryOp, at: float) -> bool:
    if entry.flight is None:
        return False
    step = run.step(entry)
    operation = {"do": None, "undo": entry.undo, "confirm": entry.confirm}[op]
    since = entry.started_at if operation is None else operation.started_at or entry.ended_at
    made = entry.made if operation is None else operation.made
    flight = run.flights[entry.flight]
    if flight.kind in ("wait", "saga") or since is None:
        return False
    # A first attempt that is still within its timeout is not being retried.
    return at - since > STUCK_AFTER and (made > 0 or flight.kind == "timer" or at - flight.since > step.do.timeout)


def _without_evidence(run: Run, decision: DecisionMade, entry: Entry, op: EntryOp) -> str | None:
    step = run.step(entry)
    pivot = op == "do" and step.pivot and run.phase == "forward"
    needed = (decision.decision == "done" and (op == "undo" or pivot)) or (
        decision.decision == "compensate" and pivot and not step.do.guarded
    )
    if needed and not (decision.evidence or "").strip():
        return f"`{decision.decision}` for {_words(entry, op)} needs --evidence: how do you know?"
    return None


def _unchangeable(run: Run, decision: DecisionMade, entry: Entry, op: EntryOp) -> str | None:
    """What must not be repeated after an attempt that may have happened, where no guard can tell."""
    step = run.step(entry)
    if decision.decision != "retry" or op != "do" or is_read(step) or step.do.guarded or is_nested(step):
        return None
    flight = run.flights.get(entry.flight or "")
    unsure = entry.outcome == "unknown" and not entry.resolved
    if not unsure and (flight is None or flight.kind != "call"):
        return None
    if unsure and asked_once(step) and step.probe is None:
        return f"{entry.id} may have happened, and its participant must not be asked twice: look there, then decide"
    if decision.arguments is not None:
        return f"{entry.id} may have happened and has no guard: retry it without --with, or decide done or skip"
    return None


def _other_definition(run: Run, decision: DecisionMade) -> str | None:
    if decision.definition is None:
        return None
    if not isinstance(decision.definition, Mapping):
        return f"the definition has to be an object, not {kind_of(decision.definition)}"
    return mended.refusal(run.definition, decision.definition)


def can_undo(run: Run) -> bool:
    """Rule 15: completed, no pivot, and every confirmed step can be undone after its confirm."""
    if run.state != "COMPLETED" or run.plan.pivot is not None or run.plan.forward_only or run.undoing_finished:
        return False
    for record in run.steps.values():
        step = run.plan.steps[record.id]
        for entry in record.entries:
            if entry.outcome != "done" or entry.continued or is_read(step):
                continue
            if step.compensate is None and not is_nested(step):
                return False
            confirmed = entry.confirm is not None and entry.confirm.state == "DONE"
            if confirmed and (step.compensate is None or step.compensate.confirmed is None):
                return False
    return True

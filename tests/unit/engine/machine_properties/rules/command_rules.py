"""Rules that each command must satisfy when it is issued."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sagas.protocol.messages import Call, StartSaga, UndoSaga
from tests.unit.engine.machine_properties.environment.guard_model import DECISIONS
from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation, operation_of, step_id

SETTLED = {"DONE", "SKIPPED", "CONFIRMING", "CONFIRMED"}
UNDONE = {"DONE", "NOTHING_TO_UNDO", "SKIPPED"}


def check_call(ledger: Ledger, call: Call) -> None:
    """All rules for one call."""
    if call.id in ledger.calls or call.id in ledger.sagas:
        raise Violation("call id", f"{call.id} is in flight already")
    _check_key(ledger, call)
    if call.action in DECISIONS:
        return  # it only records a decision in the guard; no action runs
    if not isinstance(call.retry.max_attempts, int) or call.retry.max_attempts < 1:
        raise Violation("rule 4", f"{call.id} may try {call.retry.max_attempts} times: not finite")
    ended_attempts = ledger.attempts.get(operation_of(call), 0)
    marked = call.guard is not None and call.guard.mode == "mark"  # calls the guard only
    if (
        call.op in ("do", "undo", "confirm")
        and not marked
        and ended_attempts is not None
        and call.earlier_attempts != ended_attempts
    ):
        mine = f"{call.id} says {call.earlier_attempts} earlier attempts, {ended_attempts} ended"
        raise Violation("earlier attempts", mine)
    match call.op:
        case "do":
            _check_do(ledger, call)
        case "undo":
            check_undo(ledger, call.entry, call.id)
            _check_alternate(ledger, call)
            _check_frozen(ledger, call)
        case "confirm":
            _check_confirm(ledger, call)
        case "seal" | "probe":
            step = ledger.step(call.entry)
            early = not step.pivot and step.kind != "retriable"
            if ledger.committed and early and not ledger.undo_requested:
                raise Violation("I10", f"{call.id} past the commit point")


def check_child(ledger: Ledger, start: StartSaga) -> None:
    if start.id in ledger.calls or start.id in ledger.sagas:
        raise Violation("call id", f"{start.id} is in flight already")
    _check_key_text(ledger, start.entry, ledger.entry(start.entry)["generation"], start.saga_id, "")
    _check_forward(ledger, start.entry, start.id)


def check_child_undo(ledger: Ledger, undo: UndoSaga) -> None:
    if undo.id in ledger.calls or undo.id in ledger.sagas:
        raise Violation("call id", f"{undo.id} is in flight already")
    check_undo(ledger, undo.entry, undo.id)


def _check_key(ledger: Ledger, call: Call) -> None:
    suffix = {"do": "", "seal": "", "probe": "", "undo": r"/undo(\.[1-9]\d*)?", "confirm": "/confirm"}[call.op]
    _check_key_text(ledger, call.entry, call.generation, call.key, suffix)


def _check_key_text(ledger: Ledger, entry: str, generation: int, key: str, suffix: str) -> None:
    mark = "" if generation == 1 else f"@{generation}"
    if re.fullmatch(re.escape(f"{ledger.saga_id}/{entry}{mark}") + suffix, key) is None:
        raise Violation("rule 8: keys", f"{key} for {entry}, generation {generation}")


def _check_forward(ledger: Ledger, entry: str, id: str) -> None:
    """May this entry go forward now?"""
    step = ledger.step(entry)
    if ledger.story["phase"] == "backward":
        raise Violation("rule 2", f"going backward starts no attempt, but {id} was asked for")
    if ledger.is_cut_off(step.id):
        raise Violation("finish", f"{id} starts although {ledger.finished_by} completes the saga")
    unguarded_pivot = step.pivot and not step.do.guarded
    if ledger.stop_ordered and not ledger.committed and not unguarded_pivot:
        raise Violation("rules 5, 6", f"{id} starts although a cancel or the deadline was recorded")
    if step.kind == "retriable" and ledger.definition.pivot is not None and not ledger.committed:
        raise Violation("I10", f"{id} starts before the pivot succeeded")
    for need in ledger.definition.step(step.id).needs:
        ready = SETTLED
        if ledger.definition.step(need).on_failure == "continue":
            ready = SETTLED | {"COMPENSATED", "NOTHING_TO_UNDO", "REJECTED", "FAILED", "UNKNOWN"}
        waiting = [e["id"] for e in ledger.story["steps"] if e["step"] == need and e["state"] not in ready]
        if waiting:
            raise Violation("needs", f"{id} starts before {waiting} ended")
    if ledger.committed and step.kind == "retriable" and ledger.definition.pivot is not None:
        for e in ledger.story["steps"]:
            early = ledger.definition.step(e["step"])
            empty = early.for_each is not None and "#" not in e["id"]
            waits = early.confirm is not None and not empty
            open_confirm = waits and e["outcome"] == "done" and e["state"] != "CONFIRMED"
            if open_confirm and early.kind == "compensatable" and not _excused(ledger, e["id"]):
                raise Violation("rule 13", f"{id} starts before {e['id']} is confirmed")


def _check_do(ledger: Ledger, call: Call) -> None:
    _check_forward(ledger, call.entry, call.id)
    step = ledger.step(call.entry)
    last = ledger.last_outcome(call.key)
    if last is not None and last.kind == "done" and not ledger.decided(call.entry):
        raise Violation("outcomes", f"{call.id} again, although it is done")
    if step.kind != "read" and call.guard is None and not step.do.idempotent:
        if call.retry.max_attempts > 1 and not call.at_most_once:
            raise Violation("idempotent: false", f"{call.id} may be repeated by the platform on its own")
        if call.key in ledger.uncertain and not ledger.decided(call.entry):
            raise Violation("idempotent: false", f"{call.id} repeated after an unknown attempt without a probe")
    if step.pivot and call.cancellable:
        raise Violation("rule 2", "a pivot attempt is never cancelled")
    before = call.arguments.get("before")
    if "before" in call.arguments and step.needs:
        source = [e for e in ledger.story["steps"] if e["step"] == step.needs[-1]]
        each = ledger.definition.step(step.needs[-1]).for_each is not None
        if source and not ledger.decided(call.entry):
            whole = each and any("#" not in e["id"] for e in source)  # an empty list, or one that failed
            expected = [] if whole else [_visible(e) for e in source] if each else _visible(source[0])
            if before != expected:
                raise Violation(
                    "arguments", f"{call.id} got {before!r} of {step.needs[-1]}, whose result is {expected!r}"
                )


def _visible(e: Mapping[str, Any]) -> Any:
    """The result that dependants see: null for what was left out, or undone alone (rule 11)."""
    return e["result"] if e["outcome"] == "done" and e["state"] not in ("SKIPPED", "COMPENSATED") else None


def check_undo(ledger: Ledger, entry: str, id: str) -> None:
    """May this entry be undone now?"""
    step = ledger.step(entry)
    if step.pivot or step.kind == "retriable" or step.kind == "read":
        raise Violation("I10", f"{id}: a {step.kind} step is never compensated")
    if ledger.committed and not ledger.undo_requested:
        raise Violation("I10", f"{id} past the commit point")
    backward = ledger.story["phase"] == "backward"
    if not backward:
        if step.on_failure != "continue":
            raise Violation("rule 2", f"{id} although the saga goes forward")
        if any(c.entry == entry and c.op == "do" for c in ledger.calls.values()):
            raise Violation("rule 2", f"{id} while its own attempt is in flight")
        return
    if ledger.forward_in_flight():
        raise Violation("rule 2", f"{id} starts before {ledger.forward_in_flight()} settled")
    for e in ledger.later(entry):
        if _excused(ledger, e["id"]):
            continue
        own = ledger.step(e["id"])
        effectful = own.compensate is not None or own.do.uses == "saga"
        state = (e["compensation"] or {}).get("state")
        open_ = e["outcome"] in ("done", "unknown") and effectful and state not in UNDONE and e["state"] != "SKIPPED"
        if own.on_failure == "continue" and e["state"] in ("REJECTED", "FAILED", "NOTHING_TO_UNDO", "COMPENSATED"):
            open_ = False
        if open_ or ledger.log.net(e["id"]) > 0:
            raise Violation("I9", f"{id} is asked for before {e['id']} is undone ({e['state']}, {state})")


def _check_alternate(ledger: Ledger, call: Call) -> None:
    number = int(call.key.rpartition("/undo.")[2]) if "/undo." in call.key else 0
    if number == 0 or (call.guard is not None and call.guard.mode == "mark"):
        return
    base = call.key.rpartition("/undo")[0] + "/undo"
    before = base if number == 1 else f"{base}.{number - 1}"
    last = ledger.last_outcome(before)
    if last is not None and last.kind == "unknown" and not ledger.decided(call.entry):
        raise Violation("rule 3", f"alternate {number} of {call.entry} after an unknown attempt of the one before")


def _check_frozen(ledger: Ledger, call: Call) -> None:
    """The short form of a compensation gets the argument values of the forward call."""
    step = ledger.step(call.entry)
    if step.compensate is None or ledger.decided(call.entry) or call.entry not in ledger.arguments:
        return
    for alternate in step.compensate.alternates:
        short = alternate.uses == call.action and alternate.with_ is None
        if short and dict(call.arguments) != dict(ledger.arguments[call.entry]):
            raise Violation("short form", f"{call.id} got {call.arguments}, not {ledger.arguments[call.entry]}")


def _check_confirm(ledger: Ledger, call: Call) -> None:
    if not ledger.committed:
        raise Violation("rule 13", f"{call.id} before the commit point")
    own = step_id(call.entry)
    for e in ledger.story["steps"]:
        above = ledger.definition.step(e["step"])
        empty = above.for_each is not None and "#" not in e["id"]
        if above.id in ledger.ancestors[own] and above.confirm is not None and e["outcome"] == "done" and not empty:
            done = e["state"] == "CONFIRMED" or (above.on_failure == "continue" and e["state"] == "COMPENSATED")
            if not done and not _excused(ledger, e["id"]):
                raise Violation("rule 13", f"{call.id} before its ancestor {e['id']} is confirmed")
    if ledger.entry(call.entry)["outcome"] != "done":
        raise Violation("rule 13", f"{call.id}: {call.entry} is not done")


def _excused(ledger: Ledger, entry: str) -> bool:
    """An operator closed it."""
    return any(e == entry for e, _ in ledger.skipped) or any(r.get("entry") == entry for r in ledger.child_residue)

"""Rules about the end: the final state against what really happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.protocol.payloads import idempotency_key
from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation

TRIED = {"rejected", "failed", "unknown", "late"}


def check_end(ledger: Ledger) -> None:
    """I2: the final state matches every effect."""
    story = ledger.story
    residue = {r["step"]: r["kind"] for r in story["residue"]}
    if (story["state"] == "RESIDUE") != bool(residue):
        raise Violation("RESIDUE", f"state {story['state']} with residue {story['residue']}")
    for entry in residue:
        closed = any(e == entry for e, _ in ledger.skipped)
        inherited = any(r["step"] == entry or r["entry"] == entry for r in ledger.child_residue)
        if not closed and not inherited:
            raise Violation("RESIDUE", f"{entry} is named, but no person left anything there")
    if ledger.finished_by is not None:
        given = ledger.given.get((ledger.finished_by, "do"), {"output": {"by": ledger.finished_by}})
        if story["output"] != (None if story["phase"] == "backward" else given["output"]):
            raise Violation("finish", f"{ledger.finished_by} completes the saga, and its output is {story['output']}")
    if story["phase"] == "backward":
        _check_backward(ledger, residue)
    else:
        _check_forward(ledger, residue)
    if story["parked"]:
        raise Violation("states", f"{story['state']} with parked entries")
    if story["ended_at"] is None:
        raise Violation("states", "over, but no time says when")


def _check_backward(ledger: Ledger, residue: Mapping[str, str]) -> None:
    for entry, generation in ledger.log.identities():
        net = ledger.log.net(entry, generation)
        if net and not _named(ledger, entry, residue):
            raise Violation("I2", f"{ledger.story['state']}, but the effect of {entry}@{generation} still stands")
        confirmed = ledger.log.count(entry, generation, "confirm")
        if confirmed and not ledger.undo_requested:
            raise Violation("rule 13", f"{entry} was confirmed in a saga that went backward")
    for e in ledger.story["steps"]:
        undone = e["state"] in ("COMPENSATED", "NOTHING_TO_UNDO", "PENDING", "REJECTED", "FAILED", "SKIPPED")
        if not undone and ledger.definition.step(e["step"]).compensate and not _named(ledger, e["id"], residue):
            raise Violation("states", f"{ledger.story['state']}, but {e['id']} is {e['state']}")
        _check_always(ledger, e)
        acted = ledger.decided(e["id"])  # an operator may have undone it by hand
        if e["state"] == "NOTHING_TO_UNDO" and not acted and ledger.log.count(e["id"], e["generation"], "do"):
            raise Violation("states", f"{e['id']} says there was nothing to undo, but its effect was made")


def _check_always(ledger: Ledger, e: Mapping[str, Any]) -> None:
    """A compensation that always runs has run for a step without effect, if it was attempted, and only then."""
    step = ledger.step(e["id"])
    if step.compensate is None or e["outcome"] not in ("rejected", "failed") or ledger.decided(e["id"]):
        return
    key = idempotency_key(ledger.saga_id, e["id"], e["generation"])
    wanted = step.compensate.always and key in ledger.sent
    state = (e["compensation"] or {}).get("state")
    if (state == "DONE") != wanted:
        raise Violation("always", f"{e['id']} is {e['outcome']}, and its compensation {state}")
    if step.do.guarded and any(each.guarded for each in step.compensate.alternates[:1]):
        ran = ledger.log.count(e["id"], e["generation"], "always")
        if wanted and len(step.compensate.alternates) == 1 and ran != 1:
            raise Violation("always", f"the compensation of {e['id']} ran {ran} times")


def _check_forward(ledger: Ledger, residue: Mapping[str, str]) -> None:
    for e in ledger.story["steps"]:
        entry, step = e["id"], ledger.definition.step(e["step"])
        if step.kind == "read" or entry in residue or (step.for_each is not None and "#" not in entry):
            continue
        net = ledger.log.net(entry)
        if e["outcome"] == "done" and e["state"] in ("DONE", "CONFIRMED") and net != 1:
            raise Violation("I2", f"{ledger.story['state']}: {entry} is {e['state']}, its effect is there {net} times")
        if e["state"] == "SKIPPED" and net:
            raise Violation("I2", f"{entry} is SKIPPED, but its effect is there")
        best_effort = step.kind == "retriable" and step.on_failure == "continue"
        if e["state"] not in ("DONE", "CONFIRMED", "SKIPPED"):
            if step.on_failure != "continue":
                raise Violation("I2", f"{ledger.story['state']}, but {entry} is {e['state']}")
            if net and not best_effort:
                raise Violation("rule 11", f"{entry} was continued, but its effect stands")
            if best_effort and e["outcome"] in TRIED and entry not in _not_done(ledger):
                raise Violation("rule 11", f"{entry} is {e['outcome']} and not listed under not_done")
        wanted = 1 if step.confirm is not None and e["state"] in ("DONE", "CONFIRMED") else 0
        if ledger.log.confirmed(entry) != wanted:
            raise Violation("rule 13", f"{entry} ({e['state']}) was confirmed {ledger.log.confirmed(entry)} times")


def _not_done(ledger: Ledger) -> set[str]:
    items = ledger.story["not_done"]
    return {item["step"] if isinstance(item, dict) else item for item in items}


def _named(ledger: Ledger, entry: str, residue: Mapping[str, str]) -> bool:
    return entry in residue or any(r["entry"] == entry for r in ledger.child_residue)

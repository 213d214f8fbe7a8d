"""Rule 18: what follows a savepoint runs again, only when it is undone, and only as often as the savepoint allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation, step_id
from tests.unit.engine.machine_properties.rules import definition_rules


def run_again(before: Mapping[str, Any], story: Mapping[str, Any]) -> str | None:
    """The savepoint whose followers have just started again, the earliest of them."""
    runs = {item["step"]: item["runs"] for item in before.get("savepoints", ())}
    return next((item["step"] for item in story.get("savepoints", ()) if item["runs"] > runs[item["step"]]), None)


def goes_past(before: Mapping[str, Any], story: Mapping[str, Any]) -> bool:
    """A cancel or the deadline goes past a savepoint to which a failure has led, and is the reason from then on."""
    if not story.get("savepoints") or before["phase"] != "backward":
        return False
    return before["reason"]["step"] is not None and (story["reason"] or {}).get("step", "") is None


def check(ledger: Ledger, before: Mapping[str, Any]) -> None:
    """Every event: how a further run begins, and that none begins otherwise."""
    if not before:
        return
    savepoint = run_again(before, ledger.story)
    if savepoint is None:
        _check_generations(ledger, before)
        return
    item = next(each_savepoint for each_savepoint in ledger.story["savepoints"] if each_savepoint["step"] == savepoint)
    if before["phase"] == "committed" or not (ledger.causes or definition_rules.synchronous(ledger)):
        raise Violation("rule 18", f"what follows {savepoint} runs again, but nothing has failed")
    if item["runs"] > item["attempts"]:
        raise Violation("rule 18", f"run {item['runs']} of {item['attempts']} after {savepoint}")
    if ledger.stop_ordered:
        raise Violation("rule 18", f"a run after {savepoint} although a cancel or the deadline goes past it")
    undos = [parked["step"] for parked in before["parked"] if parked["op"] == "undo"]
    if undos:
        raise Violation("rule 18", f"a run after {savepoint} although the undo of {undos} waits for an operator")
    followers = {step.id for step in ledger.definition.steps if savepoint in ledger.ancestors[step.id]}
    old = {entry["id"]: entry for entry in before["steps"]}
    for entry, generation in ledger.log.identities():
        past = generation <= old.get(entry, {}).get("generation", generation)
        if step_id(entry) in followers and past and ledger.log.net(entry, generation):
            raise Violation("rule 18", f"{entry}@{generation} still stands when what follows {savepoint} runs again")
        current = old.get(entry, {}).get("generation") == generation
        kept = current and step_id(entry) not in followers and ledger.step(entry).on_failure != "continue"
        if kept and ledger.log.count(entry, generation, "undo"):
            raise Violation("rule 18", f"{entry} does not follow {savepoint} and was undone")
    for entry in ledger.story["steps"]:
        was = old.get(entry["id"])
        same = was is not None and was["generation"] == entry["generation"]
        if entry["step"] in followers and same and was is not None and was["started_at"] is not None:
            raise Violation("rule 18", f"{entry['id']} runs again under the same key")
        if entry["step"] not in followers and not same:
            raise Violation("rule 18", f"{entry['id']} does not follow {savepoint} and has another generation")
    _forget(ledger, followers)


def _check_generations(ledger: Ledger, before: Mapping[str, Any]) -> None:
    old = {entry["id"]: entry["generation"] for entry in before["steps"]}
    for entry in ledger.story["steps"]:
        grown = entry["generation"] > old.get(entry["id"], entry["generation"])
        if grown and not ledger.decided(entry["id"]):
            raise Violation("rule 18", f"{entry['id']} has a new generation without a decision or a savepoint")


def _forget(ledger: Ledger, followers: set[str]) -> None:
    """Forget the notes of the run before: they do not apply to the next."""
    for noted in (ledger.given, ledger.given_for, ledger.withdrawn, ledger.asked_at):
        for key in [key for key in noted if step_id(key[0]) in followers]:
            del noted[key]  # pyright: ignore[reportArgumentType]
    for entry in [entry for entry in ledger.waiting if step_id(entry) in followers]:
        del ledger.waiting[entry]
    for entry in [entry for entry in ledger.arguments if step_id(entry) in followers]:
        del ledger.arguments[entry]
    ledger.refused -= {entry for entry in ledger.refused if step_id(entry) in followers}

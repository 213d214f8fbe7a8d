"""Rules about the view after each event, and about every effect when it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.protocol.messages import Call, Finish, StartSaga
from sagas.protocol.outcomes import ROW_LOCKED
from sagas.protocol.payloads import idempotency_key
from sagas.text.exact_json import decode_json, encode_json
from sagas.text.json_values import json_problem
from tests.unit.engine.machine_properties.environment.effects import Effect
from tests.unit.engine.machine_properties.oracle import show_schema
from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation
from tests.unit.engine.machine_properties.rules import definition_rules, savepoint_rules

FINAL = {"COMPLETED", "COMPENSATED", "RESIDUE"}
BEFORE_COMMIT = {"retry", "done", "skip", "compensate"}
ON_PIVOT = {"retry", "done", "compensate"}
LATER = {"retry", "done", "skip"}


def check_effect(ledger: Ledger, effect: Effect) -> None:
    """I3 and I4, at commit time; ``effect`` is already in the log."""
    log, entry, generation = ledger.log, effect.entry, effect.generation
    made, undone = log.count(entry, generation, "do"), log.count(entry, generation, "undo")
    name = f"{entry}@{generation}"
    if made > 1:
        raise Violation("I3", f"the effect of {name} was made {made} times")
    if undone > made:
        raise Violation("I3", f"{name} was undone {undone} times, made {made} times")
    if log.net(entry) > 1:
        raise Violation("I3", f"two generations of {entry} stand at once")
    if log.count(entry, generation, "always") > 1 or (effect.kind == "always" and undone):
        raise Violation("always", f"the compensation of {name}, which had no effect, ran twice")
    if effect.kind == "do" and (undone or log.count(entry, generation, "always")):
        raise Violation("I4", f"a late attempt of {name} took effect after its compensation")
    if effect.kind == "confirm" and (log.count(entry, generation, "confirm") > 1 or made - undone != 1):
        raise Violation("I3", f"{name} was confirmed twice, or without its effect")
    if effect.kind == "do" and ledger.step(entry).kind == "retriable" and not ledger.committed and not effect.by_hand:
        raise Violation("I10", f"the retriable {name} took effect before the commit point")
    if effect.kind == "undo" and ledger.committed and not ledger.undo_requested:
        raise Violation("I10", f"{name} was undone past the commit point")
    if effect.kind == "undo" and log.confirmed(entry) and not effect.by_hand:
        compensate = ledger.step(entry).compensate
        wanted = compensate.confirmed.uses if compensate and compensate.confirmed else None
        if effect.action != wanted:
            raise Violation("confirmed", f"the confirmed {name} was undone by {effect.action}, not by {wanted}")


def check_story(ledger: Ledger, before: Mapping[str, Any], finished: bool) -> None:
    """The document itself, its changes, and whether the saga may be idle."""
    story = ledger.story
    wrong = show_schema.problems(story)
    if wrong:
        raise Violation("cli.md", "; ".join(wrong))
    try:
        decode_json(encode_json(story))
    except (TypeError, ValueError) as error:
        raise Violation("cli.md", f"the story is not JSON: {error}") from error
    if (problem := json_problem(story)) is not None:
        raise Violation("cli.md", f"the story is not JSON: {problem}")
    if before:
        _check_change(ledger, before, story)
    parked = [(p["step"], p["op"]) for p in story["parked"]]
    if len(parked) != len(set(parked)):
        raise Violation("parked", f"an entry is listed twice: {parked}")
    calls = [c.id for c in ledger.calls.values() if c.op != "probe"]
    if story["state"] == "PARKED":
        if not parked:
            raise Violation("PARKED", "parked, but no entry says what a person shall decide")
        if calls or ledger.sagas:
            raise Violation("PARKED", f"parked although {calls + list(ledger.sagas)} can still run")
    for e in story["steps"]:
        _check_knowledge(ledger, e)
    if finished != (story["state"] in FINAL):
        raise Violation("states", f"finished is {finished} in state {story['state']}")
    for item in story["parked"]:
        _check_parked(ledger, item)


def _check_change(ledger: Ledger, before: Mapping[str, Any], story: Mapping[str, Any]) -> None:
    new_reason = before["reason"] is not None and story["reason"] != before["reason"]
    past = savepoint_rules.goes_past(before, story)
    if new_reason and not past and savepoint_rules.run_again(before, story) is None:
        raise Violation("reason", f"changed from {before['reason']} to {story['reason']}")
    if before["committed_at"] is not None and story["committed_at"] != before["committed_at"]:
        raise Violation("commit point", "it moved or went away")
    turned = before["phase"] != story["phase"]
    allowed = {("forward", "committed"), ("forward", "backward")}
    if ledger.undo_requested:
        allowed.add(("committed", "backward"))
    if savepoint_rules.run_again(before, story):
        allowed |= {("backward", "forward"), ("backward", "committed"), ("backward", "backward")}
    if turned and (before["phase"], story["phase"]) not in allowed:
        raise Violation("phases", f"from {before['phase']} to {story['phase']}")
    old = {e["id"]: e for e in before["steps"]}
    for e in story["steps"]:
        was = old.get(e["id"])
        if was is None or was["generation"] != e["generation"] or ledger.decided(e["id"]):
            continue
        if (
            was["state"] not in ("PENDING", "RUNNING")
            and was["outcome"] not in (None, "unknown", e["outcome"])
            and e["outcome"] != "late"
        ):
            raise Violation("outcomes", f"{e['id']} was {was['outcome']} and is now {e['outcome']}")


def _check_knowledge(ledger: Ledger, e: Mapping[str, Any]) -> None:
    """§1: a won seal is knowledge, so nobody reads `unknown` where nothing happened."""
    closed = (e["compensation"] or {}).get("state") == "NOTHING_TO_UNDO"
    empty = ledger.step(e["id"]).for_each is not None and "#" not in e["id"]
    if e["state"] != "NOTHING_TO_UNDO" or empty or ledger.decided(e["id"]):
        return
    received = ledger.received.get(idempotency_key(ledger.saga_id, e["id"], e["generation"]), [])
    last = next((message for message in reversed(received) if not message.not_started), None)
    rejected = last is not None and (last.kind == "rejected" or (last.failure and last.failure.type == ROW_LOCKED))
    word = "rejected" if rejected else "failed"  # a row that is locked for too long is a rejection
    if e["outcome"] != word or (e["compensation"] is not None and not closed):
        raise Violation("seal", f"{e['id']} has nothing to undo, and its outcome is {e['outcome']}, not {word}")


def _check_parked(ledger: Ledger, item: Mapping[str, Any]) -> None:
    """The decisions offered are the table in cli.md, and nothing is parked for infrastructure failures."""
    if item["step"] == "output":
        if set(item["decisions"]) != {"retry", "done"}:
            raise Violation("cli.md decisions", f"output offers {item['decisions']}")
        return
    step = ledger.step(item["step"])
    if item["op"] in ("undo", "confirm"):
        expected = LATER
    elif step.pivot:
        expected = ON_PIVOT
    elif ledger.committed or step.kind == "retriable":
        expected = LATER
    else:
        expected = BEFORE_COMMIT
    asked_once = item["op"] == "do" and not step.do.guarded and not step.do.idempotent
    corrected = (item["step"], "do") in ledger.given  # then its probe may ask about another effect, and is not asked
    may_lack_probe = step.probe is None or (corrected and "retry" not in item["decisions"])
    if asked_once and may_lack_probe and ledger.entry(item["step"])["outcome"] == "unknown":
        expected = expected - {"retry"}  # §4: never repeated without a probe that reports absent
    if set(item["decisions"]) != expected:
        raise Violation("cli.md decisions", f"{item['step']} {item['op']} offers {item['decisions']}, not {expected}")
    if item["op"] == "undo":
        words = [o for key, received in ledger.received.items() if key.startswith("undo ") for o in received[-1:] if
                 _entry_of(ledger, key) == item["step"]]  # fmt: skip
        if words and words[-1].infrastructure and not ledger.decided(item["step"]):
            raise Violation("rule 3", f"the undo of {item['step']} is given up for trouble of the infrastructure")


def _entry_of(ledger: Ledger, operation: str) -> str:
    key = operation.split(" ")[1].removeprefix(f"{ledger.saga_id}/")
    return key.partition("/")[0].partition("@")[0]


def check_commit(ledger: Ledger) -> None:
    """The transition to committed."""
    pivot = ledger.definition.pivot
    if pivot is not None and not ledger.is_cut_off(pivot.id):
        if ledger.log.net(pivot.id) != 1:
            raise Violation("rule 5", f"committed, but the effect of the pivot {pivot.id} is not there")
        return
    if ledger.definition.recovery == "forward":
        return
    if ledger.forward_in_flight():
        raise Violation("rule 13", f"committed while {ledger.forward_in_flight()} run")
    for e in ledger.story["steps"]:
        own = ledger.definition.step(e["step"])
        done = e["state"] in ("DONE", "SKIPPED", "CONFIRMING", "CONFIRMED", "PARKED")
        if not done and own.on_failure != "continue":
            raise Violation("rule 13", f"committed although {e['id']} is {e['state']}")


def check_turn(ledger: Ledger) -> None:
    """The transition to backward."""
    pivot = ledger.definition.pivot
    if pivot is not None and not ledger.undo_requested and ledger.log.net(pivot.id) > 0:
        raise Violation("rule 5", f"going backward although the effect of the pivot {pivot.id} is there")
    if ledger.definition.recovery == "forward" and not ledger.undo_requested:
        raise Violation("recovery: forward", "such a saga never goes backward")
    reason = ledger.story["reason"]
    if reason is None:
        raise Violation("reason", "going backward without a reason")
    definition_rules.check_reason(ledger)
    if ledger.undo_requested:
        if reason["kind"] != "undone":
            raise Violation("reason", f"undone by a person, but the reason is {reason['kind']}")
    elif reason["kind"] not in {*ledger.causes, *definition_rules.synchronous(ledger)} and not ledger.decisions:
        raise Violation("reason", f"{reason['kind']} was never seen; only {ledger.causes}")
    elif (
        ledger.causes and ledger.causes[0] in ("cancelled", "deadline", "parent") and reason["kind"] != ledger.causes[0]
    ):
        raise Violation("reason", f"{reason['kind']} although {ledger.causes[0]} was recorded first")


def check_finish(ledger: Ledger, finish: Finish, more: list[Any]) -> None:
    """Nothing runs any more when the saga has finished."""
    running = [c.id for c in ledger.calls.values() if c.op != "probe"] + list(ledger.sagas)  # a probe changes nothing
    if running or any(isinstance(c, Call | StartSaga) for c in more):
        raise Violation("states", f"{finish.state} although {running} run")
    if finish.state != ledger.story["state"]:
        raise Violation("states", f"finished as {finish.state}, but the story says {ledger.story['state']}")

"""The operator: resolves parked entries truthfully, and sometimes tries a decision that is not allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.builtins.messaging import DROP, RELEASE
from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.machine.machine import Machine
from sagas.protocol.messages import DecisionMade
from tests.unit.engine.machine_properties.environment.effects import Effect
from tests.unit.engine.machine_properties.environment.environment import Environment
from tests.unit.engine.machine_properties.oracle.ledger import Ledger

STUCK_AFTER = 15 * 60
"""Seconds after which an operator may decide about an entry that is still retried (cli.md)."""

CORRECTED: Mapping[str, Mapping[str, Any]] = {
    "saga": {"name": "child", "input": {"corrected": True}},
    "wait": {"for": 3.0},
    "require": {"that": True, "message": "corrected"},
    "pass": {"result": {"corrected": True}},
    "finish": {"when": True, "output": {"corrected": True}},
}
"""The arguments of `retry --with`, by action; other actions accept any."""
OWN = (RESTORE, RELEASE, DROP)
"""Operations of the engine, which take no arguments."""


def decide(
    ledger: Ledger,
    env: Environment,
    item: Mapping[str, Any],
    preference: str,
    correction: str,
    repaired: Definition,
    at: float,
) -> DecisionMade:
    """A decision about one parked entry, as close to the preference as the facts allow.

    A retry may come with a ``correction``: ``with`` other arguments, with the repaired ``definition``, or ``both``.
    """
    usual = "retry" if "retry" in item["decisions"] else "done"
    decision = preference if preference in item["decisions"] else usual
    entry = item["step"]
    # `done` on a sealed entry makes no effect, because no row can be done any more.
    sealed = decision == "done" and entry != "output" and item["op"] == "do" and _sealed(ledger, env, entry)
    if entry != "output" and decision != "retry" and not sealed:
        decision = _truthful(ledger, env, entry, item["op"], decision)
    more: dict[str, Any] = {}
    if decision == "retry":
        if correction in ("with", "both") and correctable(ledger, entry, item["op"]):
            more["arguments"] = corrected(ledger, entry, item["op"])
        if correction in ("definition", "both"):
            more["definition"] = to_snapshot(repaired)
    else:
        more["evidence"] = "seen with my own eyes"
    if decision == "done" and item["op"] == "do":
        more["result"] = {"id": "by hand"}
    return DecisionMade(entry, decision, "decided in a test", "ann", at, **more)  # pyright: ignore[reportArgumentType]


def stuck(ledger: Ledger, machine: Machine, in_flight: set[str], at: float) -> list[Mapping[str, Any]]:
    """Entries retried for so long that an operator may decide before they are parked.

    While an attempt is in flight no operator makes an effect by hand or confirms that there is none.
    """
    collected: list[Mapping[str, Any]] = []
    parked = {item["step"] for item in ledger.story["parked"]}
    for e in ledger.story["steps"]:
        if e["id"] in parked or e["state"] not in ("RUNNING", "UNKNOWN", "COMPENSATING", "CONFIRMING"):
            continue
        busy = any(ledger.calls[id].entry == e["id"] for id in in_flight)
        wishes = ("retry", "done", "skip", "compensate") if not busy else ("retry",)
        events = [
            DecisionMade(e["id"], preference, "it takes too long", "ann", at, evidence="seen") for preference in wishes
        ]
        possible = [event.decision for event in events if machine.check_decision(event) is None]
        if possible:
            collected.append({"step": e["id"], "op": ledger.op_of(e["id"]), "decisions": possible, "parked": False})
    return collected


def _sealed(ledger: Ledger, env: Environment, entry: str) -> bool:
    generation = ledger.entry(entry)["generation"]
    return any(base.decided(entry, generation) for base in env.databases.values())


def correctable(ledger: Ledger, entry: str, op: str) -> bool:
    """Other arguments are allowed unless an unguarded effect may exist under the old ones."""
    if entry == "output":
        return False
    step = ledger.step(entry)
    if op == "undo" and (step.compensate is None or any(each.uses in OWN for each in step.compensate.alternates)):
        return False
    if op == "confirm" and step.confirm is not None and step.confirm.uses in OWN:
        return False
    return not _unsure(ledger, entry, op) or step.do.guarded


def _unsure(ledger: Ledger, entry: str, op: str) -> bool:
    """True if the operation may have happened, or may be happening now."""
    in_flight = any(call.entry == entry for call in ledger.calls.values())
    maybe = in_flight or ledger.entry(entry)["outcome"] == "unknown"
    return op == "do" and maybe and ledger.step(entry).kind != "read"


def corrected(ledger: Ledger, entry: str, op: str) -> Mapping[str, Any]:
    """Operator-supplied arguments, different from all before."""
    uses = ledger.step(entry).do.uses if op == "do" else ""
    return CORRECTED.get(uses, {"corrected": len(ledger.decisions)})


def _truthful(ledger: Ledger, env: Environment, entry: str, op: str, decision: str) -> str:
    """Make the environment match the decision: the operator checked, or made the effect by hand."""
    step, generation = ledger.step(entry), ledger.entry(entry)["generation"]
    stands = env.log.net(entry, generation) > 0
    if op == "do" and step.pivot and decision == "compensate" and stands and not step.do.guarded:
        decision = "done"
    if decision == "done" or (op == "do" and not step.do.guarded):
        _drop_late_attempts(env, entry, generation, op)
    if decision == "done":
        # The participant has the manual effect, whatever it answered under the key before.
        env.participant.undone.discard(_key(ledger, entry, generation) if op == "do" else "")
        _by_hand(env, entry, generation, op)
    elif op == "do" and not step.do.guarded:
        if decision == "skip" and stands and not ledger.committed:
            env.record(Effect(entry, generation, "undo", "by hand", by_hand=True))
        if decision == "skip" or step.pivot:
            env.participant.refuse(_key(ledger, entry, generation))
    return decision


def _by_hand(env: Environment, entry: str, generation: int, op: str) -> None:
    """The operator makes the missing effect before declaring it done."""
    stands = env.log.net(entry, generation) > 0
    if env.step(entry).kind == "read":
        return
    missing = {"do": not stands, "undo": stands, "confirm": not env.log.count(entry, generation, "confirm")}
    if missing[op]:
        env.record(Effect(entry, generation, op, "by hand", by_hand=True))  # pyright: ignore[reportArgumentType]


def _drop_late_attempts(env: Environment, entry: str, generation: int, op: str) -> None:
    """Nobody decides while an attempt may still be under way, unless the guard holds it off."""
    ops = {op, "do"} if not env.step(entry).do.guarded else {op, "seal"}
    env.zombies = [
        z for z in env.zombies if not (z.call.entry == entry and z.call.generation == generation and z.call.op in ops)
    ]


def _key(ledger: Ledger, entry: str, generation: int) -> str:
    return f"{ledger.saga_id}/{entry}" + ("" if generation == 1 else f"@{generation}")


def illegal(ledger: Ledger, at: float) -> list[tuple[str, DecisionMade]]:
    """Decisions that must be refused in the present state, each with the reason why."""
    collected: list[tuple[str, DecisionMade]] = []

    def ask(why: str, step: str, decision: str, evidence: str | None = "seen") -> None:
        event = DecisionMade(step, decision, "try", "bob", at, result={"id": "x"}, evidence=evidence)  # pyright: ignore[reportArgumentType]
        collected.append((why, event))

    ask("no such step", "nowhere", "retry")
    for item in ledger.story["parked"]:
        entry = item["step"]
        absent = entry != "output" and _key(ledger, entry, ledger.entry(entry)["generation"]) in ledger.absent
        if entry != "output" and not correctable(ledger, entry, item["op"]) and not absent:
            retry = DecisionMade(item["step"], "retry", "try", "bob", at, arguments={"other": 1})
            collected.append(("it may have happened under the old arguments, and no guard can tell", retry))
        other = {**to_snapshot(ledger.definition), "steps": to_snapshot(ledger.definition)["steps"][1:]}
        if item["step"] != "output":
            retry = DecisionMade(item["step"], "retry", "try", "bob", at, definition=other)
            collected.append(("the definition has other steps", retry))
    for item in ledger.story["parked"]:
        for decision in ("retry", "done", "skip", "compensate"):
            if decision not in item["decisions"]:
                ask(f"{decision} is not offered for {item['op']}", item["step"], decision)
        if item["op"] == "undo" or (item["step"] != "output" and ledger.step(item["step"]).pivot):
            ask("done needs evidence", item["step"], "done", None)
    parked = {item["step"] for item in ledger.story["parked"]}
    for e in ledger.story["steps"]:
        settled = e["state"] in ("DONE", "PENDING", "SKIPPED", "COMPENSATED", "CONFIRMED")
        undoing = (e["compensation"] or {}).get("state") in ("RUNNING", "UNKNOWN", "FAILED")
        if e["id"] not in parked and settled and not undoing:
            ask("it is not stuck", e["id"], "done")
        since = ledger.asked_at.get((e["id"], ledger.op_of(e["id"])))
        if e["id"] not in parked and since is not None and at - since <= STUCK_AFTER:
            ask("it has not been tried for 15 minutes yet", e["id"], "retry")
    return collected

"""The person at the desk: decides about what is parked, truthfully, and sometimes asks for what is not allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.machine.events import DecisionMade

from .book import Book
from .effects import Effect
from .world import World


def decide(book: Book, world: World, item: Mapping[str, Any], wish: str, at: float) -> DecisionMade:
    """A decision about one parked entry, as near to the wish as the truth allows."""
    usual = "retry" if "retry" in item["decisions"] else "done"
    decision = wish if wish in item["decisions"] else usual
    entry = item["step"]
    if entry != "output" and decision == "done" and book.entry(entry)["outcome"] == "late":
        decision = "retry"  # the guard has sealed it: no row can say done any more
    if entry != "output" and decision != "retry":
        decision = _truthful(book, world, entry, item["op"], decision)
    evidence = "seen with my own eyes" if decision != "retry" else None
    result = {"id": "by hand"} if decision == "done" and item["op"] == "do" else None
    return DecisionMade(entry, decision, "decided in a test", "ann", at, result=result, evidence=evidence)  # pyright: ignore[reportArgumentType]


def _truthful(book: Book, world: World, entry: str, op: str, decision: str) -> str:
    """Make the world fit what the person says: they looked, or did it by hand."""
    step, generation = book.step(entry), book.entry(entry)["generation"]
    stands = world.log.net(entry, generation) > 0
    if op == "do" and step.pivot and decision == "compensate" and stands and not step.do.guarded:
        decision = "done"
    if decision == "done" or (op == "do" and not step.do.guarded):
        _silence(world, entry, generation, op)
    if decision == "done":
        _by_hand(world, entry, generation, op)
    elif op == "do" and not step.do.guarded:
        if decision == "skip" and stands and not book.committed:
            world.record(Effect(entry, generation, "undo", "by hand", by_hand=True))
        if decision == "skip" or step.pivot:
            world.participant.refuse(_key(book, entry, generation))
    return decision


def _by_hand(world: World, entry: str, generation: int, op: str) -> None:
    """The person makes the effect that is missing, before they say that it is there."""
    stands = world.log.net(entry, generation) > 0
    if world.step(entry).kind == "read":
        return
    missing = {"do": not stands, "undo": stands, "confirm": not world.log.count(entry, generation, "confirm")}
    if missing[op]:
        world.record(Effect(entry, generation, op, "by hand", by_hand=True))  # pyright: ignore[reportArgumentType]


def _silence(world: World, entry: str, generation: int, op: str) -> None:
    """Nobody decides while an attempt may still be under way, unless the guard holds it off."""
    ops = {op, "do"} if not world.step(entry).do.guarded else {op}
    world.zombies = [
        z for z in world.zombies if not (z.call.entry == entry and z.call.generation == generation and z.call.op in ops)
    ]


def _key(book: Book, entry: str, generation: int) -> str:
    return f"{book.saga_id}/{entry}" + ("" if generation == 1 else f"@{generation}")


def illegal(book: Book, at: float) -> list[tuple[str, DecisionMade]]:
    """Decisions that must be refused in the present state, each with the reason why."""
    found: list[tuple[str, DecisionMade]] = []

    def ask(why: str, step: str, decision: str, evidence: str | None = "seen") -> None:
        event = DecisionMade(step, decision, "try", "bob", at, result={"id": "x"}, evidence=evidence)  # pyright: ignore[reportArgumentType]
        found.append((why, event))

    ask("no such step", "nowhere", "retry")
    for item in book.story["parked"]:
        for decision in ("retry", "done", "skip", "compensate"):
            if decision not in item["decisions"]:
                ask(f"{decision} is not offered for {item['op']}", item["step"], decision)
        if item["op"] == "undo" or (item["step"] != "output" and book.step(item["step"]).pivot):
            ask("done needs evidence", item["step"], "done", None)
    parked = {item["step"] for item in book.story["parked"]}
    for e in book.story["steps"]:
        settled = e["state"] in ("DONE", "PENDING", "SKIPPED", "COMPENSATED", "CONFIRMED")
        undoing = (e["compensation"] or {}).get("state") in ("RUNNING", "UNKNOWN", "FAILED")
        if e["id"] not in parked and settled and not undoing:
            ask("it is not stuck", e["id"], "done")
    return found

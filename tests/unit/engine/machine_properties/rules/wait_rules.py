"""Rules for what the machine performs itself: the first signal counts, timers are exact, a `finish` skips the rest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sagas.protocol.messages import DecisionMade, SignalReceived
from tests.unit.engine.machine_properties.inputs import definition_faults
from tests.unit.engine.machine_properties.oracle.ledger import Ledger, Violation

ENDED = {"DONE", "REJECTED", "PARKED"}


def received(ledger: Ledger, event: SignalReceived) -> None:
    """A signal comes: it counts if it is the first of its name."""
    ledger.signals.setdefault(event.name, event)


def decided(ledger: Ledger, event: DecisionMade) -> None:
    """An operator retries a wait: a rejection that was already used must not apply again."""
    if event.decision == "retry" and event.step in ledger.refused:
        ledger.refused.discard(event.step)
        ledger.signals.pop(str(_arguments(ledger, event.step).get("signal")), None)
    if event.decision == "retry":
        ledger.waiting.pop(event.step, None)


def finished(ledger: Ledger, before: Mapping[str, Any]) -> None:
    """Note the `finish` that completes the saga, before what it allows is checked."""
    old = {e["id"]: e for e in before["steps"]} if before else {}
    for e in ledger.story["steps"]:
        if e["uses"] == "finish":
            _check_finish(ledger, e, old.get(e["id"], {"state": "PENDING"}))


def check(ledger: Ledger, before: Mapping[str, Any]) -> None:
    """The view of every wait and every requirement, after each event."""
    old = {e["id"]: e for e in before["steps"]} if before else {}
    for e in ledger.story["steps"]:
        was = old.get(e["id"], {"state": "PENDING"})
        if e["uses"] == "require":
            _check_require(ledger, e, was)
        elif e["uses"] == "wait":
            _check_wait(ledger, e, was)
        elif e["uses"] == "pass":
            _check_pass(ledger, e)
    if ledger.story["phase"] == "backward" and not ledger.undo_requested:
        ledger.finished_by = None
    for e in ledger.story["steps"]:
        if ledger.is_cut_off(e["step"]) and e["state"] not in ("PENDING", "SKIPPED"):
            raise Violation("finish", f"{e['id']} is {e['state']}, but {ledger.finished_by} completes the saga")


def _check_require(ledger: Ledger, e: Mapping[str, Any], was: Mapping[str, Any]) -> None:
    if e["state"] == was["state"] or e["state"] not in ("DONE", "REJECTED") or _by_hand(ledger, e["id"]):
        return
    met = (e["id"], "do") in ledger.given or "== 7" in str(ledger.step(e["id"]).do.with_)
    if met != (e["state"] == "DONE"):
        raise Violation("require", f"{e['id']} is {e['state']}, but its condition is {met}")


def _check_pass(ledger: Ledger, e: Mapping[str, Any]) -> None:
    given = ledger.given.get((e["id"], "do"), {"result": {"n": 7}})
    if e["outcome"] == "done" and not _by_hand(ledger, e["id"]) and e["result"] != given["result"]:
        raise Violation("pass", f"{e['id']} has the result {e['result']}, not {given['result']}")


def _check_finish(ledger: Ledger, e: Mapping[str, Any], was: Mapping[str, Any]) -> None:
    if e["state"] == was["state"] or e["state"] != "DONE" or _by_hand(ledger, e["id"]):
        return
    met = (e["id"], "do") in ledger.given or "== 7" in str(ledger.step(e["id"]).do.with_)
    if e["result"] is not met:
        raise Violation("finish", f"{e['id']} says {e['result']}, but its condition is {met}")
    if met and ledger.finished_by is None:
        ledger.finished_by = e["id"]


def _check_wait(ledger: Ledger, e: Mapping[str, Any], was: Mapping[str, Any]) -> None:
    id, given = e["id"], _arguments(ledger, e["id"])
    if definition_faults.broken(given):
        return
    first = ledger.signals.get(str(given.get("signal")))
    if e["state"] == "RUNNING":
        ledger.waiting.setdefault(id, ledger.now)
        if first is not None and ledger.story["phase"] != "backward":
            raise Violation("wait", f"{id} goes on waiting, although its signal has come")
    same = e["state"] == was["state"] and e["generation"] == was.get("generation", e["generation"])
    if same or e["state"] not in ENDED or _by_hand(ledger, id):
        return
    over = ledger.now - ledger.waiting.get(id, ledger.now)
    if e["state"] == "DONE":
        _check_done(ledger, e, given, first, over)
    elif e["outcome"] == "rejected" and first is not None and first.reject is not None:
        ledger.refused.add(id)
    elif e["error"] is None or e["error"]["type"] != "definition":
        then = {"rejected": "reject", "failed": "park"}.get(str(e["outcome"]), "park")
        if given.get("on_timeout", "reject") != then or over < given.get("timeout", 1e9):
            raise Violation("wait", f"{id} is {e['state']} ({e['outcome']}) after {over} s of {given}")


def _check_done(
    ledger: Ledger, e: Mapping[str, Any], given: Mapping[str, Any], first: SignalReceived | None, over: float
) -> None:
    id, output = e["id"], e["result"]
    if "signal" not in given:
        until = datetime.fromisoformat(given["until"]).timestamp() if "until" in given else None
        early = ledger.now < until if until is not None else over < _seconds(ledger, given["for"])
        if early:
            raise Violation("wait", f"{id} is over after {over} s of {given}")
    elif first is not None:
        if (output["data"], output["by"]) != (first.data, first.who) or first.reject is not None:
            raise Violation("wait", f"{id} says {output}, but the first signal was {first}")
    elif given.get("on_timeout") != "continue" or over < given["timeout"] or output["data"] is not None:
        raise Violation("wait", f"{id} is DONE with {output}, but no signal came in {over} s of {given}")


def _arguments(ledger: Ledger, entry: str) -> Mapping[str, Any]:
    return ledger.given.get((entry, "do")) or ledger.step(entry).do.with_ or {}


def _seconds(ledger: Ledger, value: Any) -> float:
    return float(ledger.input["n"]) if isinstance(value, str) else float(value)


def _by_hand(ledger: Ledger, entry: str) -> bool:
    return any(d.step == entry and d.decision != "retry" for d in ledger.decisions)

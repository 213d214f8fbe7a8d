"""Records of the oracle during a run: work in flight, causes, outcomes received, decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sagas.definition.model import Definition, StepDefinition
from sagas.definition.snapshot import to_snapshot
from sagas.protocol.messages import Call, DecisionMade, SignalReceived, StartSaga, UndoSaga
from sagas.protocol.outcomes import Outcome
from tests.unit.engine.machine_properties.environment.effects import EffectLog
from tests.unit.engine.machine_properties.inputs import definition_faults


class Violation(AssertionError):
    """A rule of the contract is broken; the message starts with the rule."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"[{rule}] {text}")
        self.rule = rule


def step_id(entry: str) -> str:
    return entry.partition("#")[0]


def index_of(entry: str) -> int:
    return int(entry.partition("#")[2] or 0)


def operation_of(call: Call) -> str:
    """Identity of the operation of a call: its key, and where the guard decides it."""
    where = "" if call.guard is None else f"{call.guard.mode} {call.guard.connection}"
    return f"{call.op} {call.key} {where}"


@dataclass
class Ledger:
    """Facts about one run, seen from outside.

    ``retried``: the operations that a person has retried, by entry.
    ``given``: the arguments of `retry --with`, by entry and operation (``given_for``: for this action);
    ``maybe_given``: those of an entry that may be for its undo; ``withdrawn``: those that a later retry with a
    definition has made void.
    ``sent``: the arguments that went out under a forward key, or id of a nested saga, once an attempt may have been
    made. ``signals``: the first of each name that still counts; ``absent``: keys a probe reported absent;
    ``asked_at``: since when an operation is requested; ``waiting``: since when a `wait` runs; ``refused``: waits that
    took a rejection.
    ``finished_by``: the `finish` that completes the saga. ``mistaken``: the definition has an expression that can not
    be evaluated.
    """

    definition: Definition
    saga_id: str
    log: EffectLog
    input: Mapping[str, Any] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    sagas: dict[str, StartSaga | UndoSaga] = field(default_factory=dict)
    cancelling: set[str] = field(default_factory=set)
    received: dict[str, list[Outcome]] = field(default_factory=dict)
    uncertain: dict[str, float] = field(default_factory=dict)
    attempts: dict[str, int | None] = field(default_factory=dict)
    arguments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    retried: set[tuple[str, str]] = field(default_factory=set)
    causes: list[str] = field(default_factory=list)
    stop_ordered: bool = False
    decisions: list[DecisionMade] = field(default_factory=list)
    given: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    given_for: dict[tuple[str, str], str] = field(default_factory=dict)
    maybe_given: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    withdrawn: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    sent: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    signals: dict[str, SignalReceived] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    asked_at: dict[tuple[str, str], float] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    finished_by: str | None = None
    now: float = 0.0
    mistaken: bool = False
    skipped: set[tuple[str, str]] = field(default_factory=set)
    child_residue: list[Mapping[str, Any]] = field(default_factory=list)
    undo_requested: bool = False
    committed: bool = False
    story: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.adopt(self.definition)
        self.ancestors: dict[str, frozenset[str]] = {}
        for step in self.definition.steps:
            above = set(step.needs)
            for id in step.needs:
                above |= self.ancestors[id]
            self.ancestors[step.id] = frozenset(above)

    def adopt(self, definition: Definition) -> None:
        """The definition was repaired; its steps and their order are the same."""
        self.definition = definition
        self.mistaken = definition_faults.broken(to_snapshot(definition))

    def withdraw(self, entry: str, op: str) -> Mapping[str, Any] | None:
        """Forget the arguments given for an operation, and return them."""
        self.given_for.pop((entry, op), None)
        return self.given.pop((entry, op), None)

    def step(self, entry: str) -> StepDefinition:
        return self.definition.step(step_id(entry))

    def later(self, entry: str) -> list[Mapping[str, Any]]:
        """Entries whose effects must be undone before this one."""
        own = step_id(entry)
        return [
            e
            for e in self.story["steps"]
            if own in self.ancestors[e["step"]] or (e["step"] == own and index_of(e["id"]) > index_of(entry))
        ]

    def forward_in_flight(self) -> list[str]:
        """All forward work in flight."""
        calls = [c.id for c in self.calls.values() if c.op == "do"]
        return calls + [s.id for s in self.sagas.values() if isinstance(s, StartSaga)]

    def decided(self, entry: str) -> bool:
        return any(d.step == entry for d in self.decisions)

    def is_cut_off(self, step: str) -> bool:
        """True for a step below the `finish` that completes the saga."""
        return self.finished_by is not None and self.finished_by in self.ancestors[step]

    def entry(self, id: str) -> Mapping[str, Any]:
        return next(e for e in self.story["steps"] if e["id"] == id)

    def op_of(self, id: str) -> str:
        """The operation of an entry that a decision is about."""
        parked = next((p["op"] for p in self.story["parked"] if p["step"] == id), None)
        if parked is not None or id == "output":
            return parked or "do"
        if self.story["phase"] == "backward" and self.entry(id)["state"] == "UNKNOWN":
            return "undo"  # the probe is part of its undo
        return {"COMPENSATING": "undo", "CONFIRMING": "confirm"}.get(self.entry(id)["state"], "do")

    def last_outcome(self, key: str) -> Outcome | None:
        return self.received[key][-1] if self.received.get(key) else None

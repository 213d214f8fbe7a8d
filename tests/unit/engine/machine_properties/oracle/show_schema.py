"""The shape of `saga show`: exactly the fields of the contract, with values of the right kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SAGA_STATES = {"RUNNING", "COMMITTED", "COMPLETED", "COMPENSATING", "COMPENSATED", "PARKED", "RESIDUE"}
STEP_STATES = {
    "PENDING", "RUNNING", "DONE", "REJECTED", "FAILED", "UNKNOWN", "SKIPPED", "COMPENSATING", "COMPENSATED",
    "NOTHING_TO_UNDO", "CONFIRMING", "CONFIRMED", "PARKED",
}  # fmt: skip
OUTCOMES = {"done", "rejected", "failed", "unknown", "late", None}
COMPENSATION_STATES = {
    "PENDING", "RUNNING", "DONE", "NOTHING_TO_UNDO", "REJECTED", "FAILED", "UNKNOWN", "PARKED", "SKIPPED",
}  # fmt: skip
REASONS = {
    "rejected", "failed", "unknown", "cancelled", "deadline", "late", "undone", "parent", "operator", "definition",
    "locked", "terminated",
}  # fmt: skip
GUARANTEES = {"guarded", "two-phase", "participant-keyed", "at-least-once"}
DECISIONS = {"retry", "done", "skip", "compensate"}
INTERVENTIONS = DECISIONS | {"pause", "resume", "cancel", "undo"}

Check = Callable[[Any], bool]


def _one_of(values: set[Any]) -> Check:
    return lambda value: value in values


def _is(*types: type) -> Check:
    """An instance of one of the types; a bool is not a number."""
    return lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _anything(value: Any) -> bool:
    return True


_TEXT, _FLAG, _COUNT = _is(str), _is(bool), _is(int)
_OPTIONAL_TEXT = _TIME = _or_none(_TEXT)

SAGA: dict[str, Check] = {
    "id": _TEXT, "saga": _TEXT, "digest": _TEXT, "generation": _COUNT, "state": _one_of(SAGA_STATES),
    "phase": _one_of({"forward", "committed", "backward"}), "reason": _or_none(_is(dict)), "input": _anything,
    "output": _anything, "labels": _is(dict), "started_at": _TIME, "committed_at": _TIME, "ended_at": _TIME,
    "deadline_at": _TIME, "can_undo": _FLAG, "undo_refusal": _OPTIONAL_TEXT, "undo_until": _TIME,
    "cancel_requested": _FLAG, "overdue": _FLAG,
    "steps_omitted": _anything, "parent": _or_none(_is(str, dict)), "children": _is(list), "web_ui": _or_none(_TEXT),
    "steps": _is(list), "parked": _is(list), "not_done": _is(list), "residue": _is(list), "operator": _is(list),
    "notifications": _is(list),
}  # fmt: skip
STEP: dict[str, Check] = {
    "id": _TEXT, "step": _TEXT, "name": _TEXT, "uses": _TEXT, "state": _one_of(STEP_STATES),
    "outcome": _one_of(OUTCOMES), "generation": _COUNT, "attempts": _or_none(_COUNT),
    "guarantee": _one_of(GUARANTEES), "result": _anything, "error": _or_none(_is(dict)), "started_at": _TIME,
    "ended_at": _TIME, "compensation": _or_none(_is(dict)), "confirmation": _or_none(_is(dict)),
}  # fmt: skip
COMPENSATION: dict[str, Check] = {
    "uses": _TEXT, "state": _one_of(COMPENSATION_STATES), "attempts": _or_none(_COUNT), "alternate": _COUNT,
    "error": _or_none(_is(dict)), "ended_at": _TIME,
}  # fmt: skip
REASON: dict[str, Check] = {
    "kind": _one_of(REASONS), "step": _or_none(_TEXT), "type": _or_none(_TEXT), "message": _or_none(_TEXT),
    "details": _is(dict),
}  # fmt: skip
PARKED: dict[str, Check] = {
    "step": _TEXT, "op": _one_of({"do", "undo", "confirm"}), "since": _TEXT, "why": _TEXT,
    "decisions": lambda value: isinstance(value, list) and set(value) <= DECISIONS, "commands": _is(list),
}  # fmt: skip
RESIDUE: dict[str, Check] = {
    "step": _TEXT, "kind": _one_of({"effect_stays", "effect_missing", "effect_unclear"}), "system": _or_none(_TEXT),
    "key": _or_none(_TEXT), "command": _or_none(_TEXT),
}  # fmt: skip
OPERATOR: dict[str, Check] = {
    "at": _TEXT, "who": _TEXT, "step": _TEXT, "decision": _one_of(INTERVENTIONS), "reason": _TEXT,
    "evidence": _or_none(_TEXT),
}  # fmt: skip
_REPEATED: dict[str, Check] = {"next_attempt_at": _TEXT}
"""Of a call that waits for its next attempt."""
SAVEPOINT: dict[str, Check] = {"step": _TEXT, "runs": _COUNT, "attempts": _COUNT}
LOCKS: dict[str, Check] = {
    "state": _one_of({"WAITING", "HELD", "RELEASED"}), "keys": _is(list), "since": _TIME, "waits_for": _is(list),
}  # fmt: skip
BLOCKER: dict[str, Check] = {"key": _TEXT, "owner": _TEXT, "since": _TEXT}
NOTIFICATION: dict[str, Check] = {
    "id": _TEXT, "event": _TEXT, "when": _one_of({"completed", "compensated", "parked", "residue", "overdue"}),
    "uses": _TEXT, "at": _TEXT, "run": _TEXT, "state": _or_none(_TEXT), "attempts": _or_none(_COUNT),
    "error": _or_none(_is(dict)), "next_attempt_at": _TIME, "ended_at": _TIME,
}  # fmt: skip


def problems(story: Mapping[str, Any]) -> list[str]:
    """Everything in which the document differs from the contract; empty when it does not."""
    always = {name: value for name, value in story.items() if name not in ("savepoints", "locks", "row_locks")}
    differences = _differs("story", always, SAGA)
    if "locks" in story:
        differences += _differs("locks", story["locks"], LOCKS)
        for item in story["locks"].get("waits_for", ()):
            differences += _differs("waits_for", item, BLOCKER)
    for item in story.get("savepoints", ()):
        undoing: dict[str, Check] = {"undoing": _is(list)} if "undoing" in item else {}
        differences += _differs("savepoints", item, {**SAVEPOINT, **undoing})
    if story.get("reason") is not None:
        quotes: dict[str, Check] = {"quotes": lambda value: value is True} if "quotes" in story["reason"] else {}
        differences += _differs("reason", story["reason"], {**REASON, **quotes})
    for step in story.get("steps", ()):
        fields = {"effect": _one_of({"none"}), "result_kept": lambda kept: kept is False, **_REPEATED}
        read = {name: check for name, check in fields.items() if name in step}
        differences += _differs(f"step {step.get('id')}", step, {**STEP, **read, **_arguments(step)})
        for name in ("compensation", "confirmation"):
            if (operation := step.get(name)) is not None:
                repeated = _REPEATED if "next_attempt_at" in operation else {}
                expected = {**COMPENSATION, **repeated, **_arguments(operation)}
                differences += _differs(f"{name} of {step.get('id')}", operation, expected)
    shapes = (("parked", PARKED), ("residue", RESIDUE), ("operator", OPERATOR), ("notifications", NOTIFICATION))
    for name, shape in shapes:
        for item in story.get(name, ()):
            kinds = {
                "operator": {"arguments": _is(dict), "definition": _TEXT, "error": _TEXT},
                "residue": {"saga": _TEXT},
            }.get(name, {})
            given = {field: kind for field, kind in kinds.items() if field in item}
            differences += _differs(name, item, {**shape, **given})
    return differences


def _arguments(call: Mapping[str, Any]) -> dict[str, Check]:
    """A call that has succeeded has none."""
    if "arguments" not in call:
        return {}
    ended = call["state"] == "DONE" or call.get("outcome") == "done"
    return {"arguments": (lambda _: False) if ended else _is(dict)}


def _differs(where: str, value: Mapping[str, Any], shape: Mapping[str, Check]) -> list[str]:
    if value.keys() != shape.keys():
        return [f"{where}: missing {sorted(shape.keys() - value.keys())}, extra {sorted(value.keys() - shape.keys())}"]
    return [f"{where}.{name} is {value[name]!r}" for name, check in shape.items() if not check(value[name])]

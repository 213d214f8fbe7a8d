"""Converts a Definition to plain JSON and back without loss, computes its digest, and compares replacements.

Snapshots are read inside Temporal workflows, so conversion only moves values: no validation and no schema. Fields
with their default value are left out, which keeps the header of a run small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sagas.builtins.automatic import RESTORE
from sagas.definition.model import (
    ENGINE_ACTIONS,
    Definition,
    Operation,
    StepDefinition,
)
from sagas.expressions.template_syntax import split_template
from sagas.text.exact_json import canonical_json
from sagas.text.records import pack_record, restore_record


def to_snapshot(definition: Definition) -> dict[str, Any]:
    """The definition as JSON data; ``from_snapshot`` returns an equal one."""
    return pack_record(definition)


def from_snapshot(data: Mapping[str, Any]) -> Definition:
    """The definition of a run. Raises KeyError or TypeError for invalid data."""
    return restore_record(Definition, data)


_ANNOTATIONS = ("title", "description", "$comment", "examples")


def digest_of(definition: Definition) -> str:
    """``sha256:…`` over the canonical JSON of everything that affects execution.

    Descriptive texts, the forms of results and the order of steps in the file are left out: `needs` determines the
    order completely.
    """
    data = to_snapshot(replace(definition, description="", digest=""))
    steps = {}
    for step in data["steps"]:
        step.pop("name", None)
        step.pop("result_form", None)
        step["needs"] = sorted(step.get("needs", []))
        steps[step["id"]] = step
    data["steps"] = steps
    data = {key: value if key == "input" else normalized_expressions(value) for key, value in data.items()}
    data["input"] = without_annotations(data.get("input", {}))
    return "sha256:" + hashlib.sha256(canonical_json(data).encode()).hexdigest()


def normalized_expressions(value: Any) -> Any:
    """Strip whitespace around expressions; whitespace inside them stays, because it may be part of a string."""
    if isinstance(value, Mapping):
        return {key: normalized_expressions(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normalized_expressions(item) for item in value]
    if not isinstance(value, str) or "${{" not in value:
        return value
    parts = [[part.expression, part.text.strip() if part.expression else part.text] for part in split_template(value)]
    return {"${{": parts}


def without_annotations(schema: Any) -> Any:
    """A JSON Schema without annotations; properties keep their names even if these look like annotations."""
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key in _ANNOTATIONS:
            continue
        if key in ("properties", "$defs", "patternProperties", "dependentSchemas") and isinstance(value, dict):
            result[key] = {name: without_annotations(part) for name, part in value.items()}
        elif key in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            result[key] = [without_annotations(part) for part in value]
        elif key == "required" and isinstance(value, list):
            result[key] = sorted(value, key=str)
        elif key in ("enum", "const", "default"):
            result[key] = value
        else:
            result[key] = without_annotations(value)
    return result


# Replacing the definition of a running saga (`saga resolve --definition`, rule 10). Calls made under the old definition
# must stay valid under the new one: where each effect is, which database guards it, and how many alternates can undo
# it. Expressions, arguments and timeouts may change.
def replacement_refusal(running: Definition, snapshot: Mapping[str, Any]) -> str | None:
    """Why the running saga cannot continue with this definition, as one sentence; None if it can."""
    try:
        corrected = from_snapshot(snapshot)
        needs = [(step.id, step.needs) for step in corrected.steps]
    except (KeyError, TypeError, ValueError, AttributeError):
        return "the definition does not have the form that a run carries: read it from a file with --definition"
    if corrected.saga != running.saga or needs != [(step.id, step.needs) for step in running.steps]:
        return "the definition has other steps than the running saga; only their contents may change"
    if corrected.recovery != running.recovery:
        return f"the running saga has `recovery: {running.recovery}`, which must not change"
    if corrected.locks != running.locks:
        return "`locks` must not change while the saga runs"
    for old, new in zip(running.steps, corrected.steps, strict=True):
        what = _changed_aspect(old, new)
        if what is not None:
            return (
                f"{what} of {old.id} must not change while the saga runs; only expressions, arguments, timeouts "
                "and retries may"
            )
    return None


def _changed_aspect(old: StepDefinition, new: StepDefinition) -> str | None:
    undo, other = old.compensate, new.compensate
    facts = {
        "the kind": (old.kind, new.kind),
        "the location of the effect": (_effect_location(old.do), _effect_location(new.do)),
        "`two_phase`": (old.do.two_phase, new.do.two_phase),
        "`for_each`": (old.for_each is None, new.for_each is None),
        "`savepoint`": (old.savepoint is None, new.savepoint is None),
        "`confirm`": (_effect_location(old.confirm), _effect_location(new.confirm)),
        "`probe`": (old.probe is None or new.probe is not None, True),
        "`compensate`": (
            undo and [_effect_location(alternate) for alternate in undo.alternates],
            other and _leading_locations(other.alternates, undo),
        ),
        "`compensate.always`": (undo is not None and undo.always, other is not None and other.always),
        "`compensate.confirmed`": (
            undo and _effect_location(undo.confirmed),
            other and _effect_location(other.confirmed),
        ),
    }
    return next((name for name, (before, now) in facts.items() if before != now), None)


def _leading_locations(alternates: tuple[Operation, ...], undo: Any) -> list[Any]:
    """The locations of the first alternates, as many as the old definition has; additional ones are allowed."""
    return [_effect_location(alternate) for alternate in alternates[: len(undo.alternates) if undo else None]]


def _effect_location(action: Operation | None) -> tuple[str | None, str | None] | None:
    """The place of an action's effect: its connection, and its name if the state machine performs it.

    It is also the name of an automatic compensation: those of other steps may have left rows to it.
    """
    if action is None:
        return None
    own = action.uses if action.uses in (*ENGINE_ACTIONS, RESTORE) else None
    return action.connection, own

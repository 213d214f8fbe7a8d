"""The isolation of a saga in words: the output of `saga explain --isolation`."""

from __future__ import annotations

from typing import Any

from sagas.definition.analysis.isolation import Measure, Risk, StepIsolation, isolation_of
from sagas.definition.model import Definition

MEASURE_DESCRIPTIONS: dict[Measure, str] = {
    "lock": "locks: another saga with one of the keys waits",
    "tcc": "confirm: until then the effect is a reservation that others can recognise",
    "row lock": "compensate: auto: other such steps wait for the rows, and the undo parks if a row has changed",
    "commutative": "commutative: what others add in between stays, also after the undo",
    "version check": "version check: the update is rejected if the row has changed since it was read",
}


def isolation_document(definition: Definition) -> dict[str, Any]:
    """The value of ``isolation`` in the JSON document of `saga explain --isolation`."""
    locks, pivot = definition.locks, definition.pivot
    until = pivot.id if pivot else None
    return {
        "locks": None if locks is None else {"keys": locks.keys, "from": locks.from_, "until": locks.until},
        "steps": [step.to_json(until) for step in isolation_of(definition)],
    }


def describe_visibility(definition: Definition, step: StepIsolation) -> str:
    """The time in which others can see the effect of a step that may still be undone."""
    pivot = definition.pivot
    end = f"{pivot.id} is done" if pivot else "the last step is done"
    if step.visible:
        return f"visible from its end until {end}, and may be undone until then"
    if step.hidden == "staged":
        return f"staged: nobody sees it before {end}"
    if step.hidden == "held":
        return f"held events: nobody sees them before {end}"
    if step.hidden == "prepared":
        return f"prepared: nobody sees it before {end}, and writers of its rows wait until then"
    return "never undone once it is done"


def describe_risk(step: StepIsolation, risk: Risk) -> str:
    """An anomaly as one sentence."""
    match risk.anomaly:
        case "dirty read":
            return f"others may read the effect of {step.step}, which is then undone"
        case "lost update":
            return f"{step.step} or its undo may overwrite what others have written in between"
    return f"{', '.join(risk.steps)} may rely on what has changed since {step.step} has read it"

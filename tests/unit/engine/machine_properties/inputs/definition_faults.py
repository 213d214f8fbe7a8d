"""Definitions with a mistake that only shows at run time, and its repair."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sagas.definition.model import Definition, Operation, Probe, StepDefinition
from sagas.definition.snapshot import from_snapshot, to_snapshot

LOST = "input.lost."
"""What a broken expression reads: a missing input field. Repaired, it reads the input itself."""

FRAGILE = ".result.id"
"""An expression with this fails where the result is null or has no such field."""


def repaired(definition: Definition) -> Definition:
    """The definition with every broken expression corrected, as `saga resolve --definition` gets it."""
    text = json.dumps(to_snapshot(definition)).replace(LOST, "input.")
    return replace(from_snapshot(json.loads(text)), digest=f"{definition.digest}:mended")


def broken(value: Any) -> bool:
    """True if a part of a definition can never be evaluated."""
    return LOST in json.dumps(value)


def fragile(value: Any) -> bool:
    """True if the results decide whether a part of a definition can be evaluated."""
    return FRAGILE in json.dumps(value)


def forward(step: StepDefinition) -> list[Any]:
    """Everything that has to be evaluated before the step's action is called."""
    return [step.if_, step.for_each, step.do.with_, step.fairness_key]


def of(step: StepDefinition, action: str, op: str) -> Operation | None:
    """The operation of the step that this call carries out."""
    operations: Mapping[str, list[Operation]] = {
        "do": [step.do],
        "confirm": [step.confirm] if step.confirm else [],
        "probe": [step.probe.operation] if step.probe else [],
        "undo": [
            *(step.compensate.alternates if step.compensate else ()),
            *([step.compensate.confirmed] if step.compensate and step.compensate.confirmed else []),
        ],
    }
    return next((operation for operation in operations.get(op, []) if operation.uses == action), None)


def understood(probe: Probe) -> bool:
    """The responses of the probe can be distinguished."""
    return not broken([probe.done, probe.absent, probe.result])

"""Masks in findings the amounts that a saga keeps private: the guard, which is compared, has them in clear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from saga_spark.reconcile.findings import DECLARATION, EXPECTED_PREFIX, Finding
from sagas.protocol.saga_view import SagaView
from sagas.settings.reconcile import EffectTable
from sagas.text.printable import MASK


def expects_amounts(finding: Finding) -> bool:
    """True if the finding has a value of a step's result."""
    return any(name.startswith(EXPECTED_PREFIX) and value is not None for name, value in finding.details.items())


def without_private_amounts(finding: Finding, view: SagaView | None, declared: Mapping[str, EffectTable]) -> Finding:
    """The finding with `•••` in place of the amounts that ``view`` masks in the result of the step, or does not have,
    and of those of the row, which may be the same.
    """
    effects = declared.get(str(finding.details.get(DECLARATION)))
    if effects is None or not expects_amounts(finding):
        return finding
    details = dict(finding.details)
    for column, field in effects.amounts.items():
        expected = f"{EXPECTED_PREFIX}{column}"
        if details.get(expected) is not None and not _shows(view, finding.step, str(field)):
            details |= {name: MASK for name in (column, expected) if details.get(name) is not None}
    return replace(finding, details=details)


def _shows(view: SagaView | None, entry: str | None, field: str) -> bool:
    """True if the view has this dotted field of the result of an entry in clear."""
    row = next((step for step in view.steps if step.id == entry), None) if view is not None else None
    value: Any = None if row is None else row.result
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value is not None and MASK not in str(value)

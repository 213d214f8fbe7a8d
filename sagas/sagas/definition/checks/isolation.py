"""Checks of what a definition declares about isolation."""

from __future__ import annotations

from sagas.definition.diagnostics import Report
from sagas.definition.draft import SagaDraft


def check_isolation(draft: SagaDraft, report: Report) -> None:
    """Check what `commutative` declares."""
    for step in draft.steps:
        if step.parsed.get("commutative") and step.reads:
            position = step.parsed.position_of("commutative")
            report.add("SAGA261", position, f"`{step.id}` only reads", "remove `commutative`")

"""Publications whose undo an operator has decided as `done`: closed by decision, which is no difference.

The engine has not reverted them, so their commit tags are still in the sinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saga_spark.reconcile.findings import Finding
from saga_workers.location.locator import Locator
from saga_workers.reconcile.reconcile_input import current_view
from sagas.protocol.saga_view import DecisionView, SagaView


async def split_decided(locator: Locator, findings: Sequence[Finding]) -> tuple[list[Finding], list[dict[str, Any]]]:
    """Split findings about outputs: those that remain, and a row for each that a decision explains.

    A row has saga_id, saga, step, output, place, who, at, reason and evidence.
    """
    remaining: list[Finding] = []
    decided: list[dict[str, Any]] = []
    views: dict[str, SagaView | None] = {}
    for finding in findings:
        if finding.kind != "effect_not_undone" or finding.saga_id is None:
            remaining.append(finding)
            continue
        if finding.saga_id not in views:
            views[finding.saga_id] = await current_view(locator, finding.saga_id)
        decision = _decision(views[finding.saga_id], finding)
        if decision is None:
            remaining.append(finding)
        else:
            decided.append(_row(finding, decision))
    return remaining, decided


def _decision(view: SagaView | None, finding: Finding) -> DecisionView | None:
    """The last decision about the undo of the step in the generation of the finding, if it was `done`."""
    if view is None or not any(
        step.id == finding.step
        and step.generation == finding.generation
        and step.compensation is not None
        and step.compensation.state == "DONE"
        for step in view.steps
    ):
        return None
    last = next((decision for decision in reversed(view.operator) if decision.step == finding.step), None)
    return last if last is not None and last.decision == "done" else None


def _row(finding: Finding, decision: DecisionView) -> dict[str, Any]:
    return {
        "saga_id": finding.saga_id,
        "saga": finding.saga,
        "step": finding.step,
        "output": finding.details["output"],
        "place": finding.place,
        "who": decision.who,
        "at": decision.at,
        "reason": decision.reason,
        "evidence": decision.evidence,
    }

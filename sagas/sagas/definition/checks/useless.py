"""Fields that are allowed but do nothing where they stand."""

from __future__ import annotations

from sagas.builtins import BUILTINS
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, StepDraft

_FOR_ACTIVITIES = ("timeout", "heartbeat", "retry", "task_queue", "priority", "fairness_key")
_FOR_UNGUARDED = ("idempotent", "settle", "probe")


def check_useless(draft: Draft, report: Report) -> None:
    """Warn about each field that has no effect."""
    for step in draft.steps:
        do = step.step.do
        builtin = BUILTINS.get(do.uses)
        if builtin is not None and builtin.where == "engine":
            _warn(step, (*_FOR_ACTIVITIES, *_FOR_UNGUARDED), f"because `{do.uses}` runs no activity", report)
        elif do.guarded:
            _warn(step, _FOR_UNGUARDED, "because the guard already knows every outcome", report)
        if step.step.for_each is None:
            _warn(step, ("max_parallel",), "without `for_each`", report)


def _warn(step: StepDraft, fields: tuple[str, ...], why: str, report: Report) -> None:
    for field in fields:
        if field in step.parsed:
            report.add("SAGA118", step.parsed.place(field), f"`{field}` of `{step.id}` has no effect {why}")

"""What is risky because a participant cannot be asked, or cannot run in the way the step wants."""

from __future__ import annotations

from sagas.builtins import BUILTINS
from sagas.definition.build import LOCAL_TIMEOUT, can_be_local
from sagas.definition.checks.probes import answers
from sagas.definition.diagnostics import Report
from sagas.definition.draft import Draft, StepDraft


def check_participants(draft: Draft, report: Report) -> None:
    """Unguarded steps whose attempts may stay unknown, and `execution: local`."""
    for step in draft.steps:
        uses, local = step.step.do.uses, step.step.do.local
        if uses in draft.actions or uses in BUILTINS or not local:
            _check_unguarded(draft, step, report)
        _check_local(step, report)


def _check_unguarded(draft: Draft, step: StepDraft, report: Report) -> None:
    do = step.step.do
    builtin = BUILTINS.get(do.uses)
    if do.guarded or answers(draft, step) or (builtin is not None and builtin.where == "engine"):
        return
    place = step.parsed.at("uses")
    if step.step.pivot:
        report.add("SAGA220", place, f"the pivot `{step.id}` is unguarded and has no `probe` that can answer")
    elif not step.reads and not do.idempotent:
        report.add("SAGA221", place, f"`{step.id}` is unguarded, not idempotent and has no `probe` that can answer")


def _check_local(step: StepDraft, report: Report) -> None:
    do = step.step.do
    if step.parsed.get("execution") != "local" or can_be_local(do):
        return
    if not do.guarded:
        reason = "is not guarded by a database transaction"
    elif do.timeout > LOCAL_TIMEOUT:
        reason = f"may take longer than {LOCAL_TIMEOUT:g}s (give it a shorter `timeout`)"
    else:
        reason = "has a `heartbeat`" if do.heartbeat is not None else "has a `task_queue`"
    report.add("SAGA116", step.parsed.at("execution"), f"`{step.id}` {reason}, so it cannot run locally")
